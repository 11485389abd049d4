"""In which dialect an endpoint is asked: candidates, its list of models, keys, and refused trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.http import HttpResponse
from orchestrator.load.point import Target
from orchestrator.spec.address import parse_address
from orchestrator.spec.dialect import SGLANG_GENERATE, TGI_STREAM, Dialect
from orchestrator.sweep import detect_dialect as module
from orchestrator.sweep.detect_dialect import (
    ModelListing,
    TrialFailed,
    detect_dialect,
    dialects,
    key_problem,
    list_models,
    only_model,
)

TARGET = Target("http://h:8000", "m")
WITH_KEY = replace(TARGET, api_key="secret")
OK = {"status": "ok", "error_class": None, "http_status": 200, "chunks": 2, "error": None}
COUNTED = OK | {"output_tokens": 2, "token_count_source": "usage"}
REFUSED = {"status": "error", "error_class": "http_4xx", "http_status": 400, "chunks": 0}
REFUSED |= {"error": "unknown field", "output_tokens": None, "token_count_source": None}


def test_an_api_with_a_wire_of_its_own_has_one_dialect() -> None:
    assert dialects("tgi") == [replace(TGI_STREAM, adapter_field="adapter_id")]
    assert dialects("sglang") == [replace(SGLANG_GENERATE, adapter_field="lora_path")]


def test_dialects_go_from_token_ids_to_no_length_control() -> None:
    first, *_, last = dialects("completions")
    assert first.prompt_token_ids and first.return_token_ids
    assert not last.prompt_token_ids and not last.return_token_ids
    assert last.length_control == "none"


def test_chat_takes_no_token_ids() -> None:
    assert not any(dialect.prompt_token_ids for dialect in dialects("chat"))


def test_a_model_that_is_not_listed_is_noted() -> None:
    listing = ModelListing({"a": "vllm", "b": "vllm"}, HttpResponse(200, b""))
    assert listing.note_on("a") is None
    assert listing.note_on("c") == "the endpoint lists a, b; it answers to 'c', too"


def test_the_only_model_of_an_endpoint_needs_no_name() -> None:
    assert only_model(TARGET, ModelListing({"a": "vllm"}, HttpResponse(200, b""))) == "a"
    with pytest.raises(InputError, match="lists a, b: name one with --model"):
        only_model(TARGET, ModelListing({"a": "x", "b": "x"}, HttpResponse(200, b"")))


@pytest.mark.parametrize(
    ("target", "key_name", "from_file", "text"),
    [
        (TARGET, None, False, "needs a key (HTTP 401): name its variable with --api-key-env"),
        (TARGET, None, True, "needs a key (HTTP 401): name its variable with api_key_env"),
        (WITH_KEY, "KEY", False, "the key in KEY was refused (HTTP 401)"),
        (WITH_KEY, None, False, "its key was refused (HTTP 401)"),
    ],
)
def test_a_problem_with_a_key_says_what_to_do(
    target: Target, key_name: str | None, from_file: bool, text: str
) -> None:
    assert key_problem(target, 401, key_name, from_file).endswith(text)


def test_a_second_path_is_asked_for_models_where_the_first_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    urls: list[str] = []

    def ask(url: str, **_: Any) -> HttpResponse:
        urls.append(url)
        if len(urls) == 1:
            return HttpResponse(404, b"")
        return HttpResponse(200, b'{"data": [{"id": "m", "owned_by": "vllm"}]}')

    monkeypatch.setattr(module, "ask", ask)
    address = parse_address("http://h:8000/llm")
    listing = list_models(replace(TARGET, url=address.base), address)
    assert listing.owners == {"m": "vllm"}
    assert len(urls) == 2


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        (
            "http://localhost:8001",
            "is the server up? (orchestrator emulator --port 8001 imitates one)",
        ),
        ("http://10.0.0.7:8001", "is the server up?"),
    ],
)
def test_without_a_server_on_this_machine_the_emulator_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, hint: str
) -> None:
    monkeypatch.setattr(module, "ask", lambda *_, **__: HttpResponse(0, error="refused"))
    with pytest.raises(InputError) as refusal:
        list_models(replace(TARGET, url=url), parse_address(url))
    assert str(refusal.value) == f"no server answers at {url}: refused; {hint}"


def trials(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> list[Dialect]:
    """Let trial requests have these rows, the last one again and again. Returns the dialects that
    will be tried.
    """
    tried: list[Dialect] = []
    left = list(rows)

    def send(target: Target, dialect: Dialect, *_: object) -> dict[str, Any]:
        tried.append(dialect)
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr(module, "_row_of_trial", send)
    monkeypatch.setattr(module, "_is_emulator", lambda target: False)
    return tried


def test_the_next_dialect_is_tried_when_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = trials(monkeypatch, REFUSED, COUNTED)
    detected = detect_dialect(TARGET, dialects("chat"), None, 1.0)
    assert len(tried) == 2
    assert not detected.dialect.return_token_ids
    assert detected.counts


@pytest.mark.parametrize("status", [400, 403, 409, 415, 418, 422, 500, 501, 502, 503])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_plainer_request_is_tried_whatever_status_refuses_unknown_fields(
    status: int, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row_of_trial(target: Target, dialect: Dialect, *_: object) -> dict[str, Any]:
        is_plain = dialect.length_control == "none"
        return COUNTED if is_plain else REFUSED | {"http_status": status}

    monkeypatch.setattr(module, "_row_of_trial", row_of_trial)
    monkeypatch.setattr(module, "_is_emulator", lambda target: False)
    detected = detect_dialect(TARGET, dialects(api), None, 1.0)
    assert "no way to fix the output length" in " ".join(detected.notes)


def test_an_endpoint_that_refuses_every_dialect_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = trials(monkeypatch, REFUSED)
    with pytest.raises(TrialFailed, match="refuses every kind of request we know") as failed:
        detect_dialect(TARGET, dialects("chat"), None, 1.0)
    assert len(tried) == len(dialects("chat"))
    assert failed.value.status == 400


def test_a_status_that_may_be_chance_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = REFUSED | {"error_class": "http_5xx", "http_status": 500}
    tried = trials(monkeypatch, busy, COUNTED)
    detect_dialect(TARGET, dialects("chat"), None, 1.0)
    assert len(tried) == 2
    assert tried[0] == tried[1]


def test_too_many_requests_end_the_trial_and_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    trials(monkeypatch, REFUSED | {"http_status": 429})
    with pytest.raises(TrialFailed) as failed:
        detect_dialect(TARGET, dialects("chat"), None, 1.0)
    assert failed.value.may_pass


def test_replies_without_counts_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    trials(monkeypatch, OK | {"output_tokens": 2, "token_count_source": "chunks"})
    detected = detect_dialect(TARGET, dialects("chat"), None, 1.0)
    assert not detected.counts
    assert detected.notes[-1].startswith("the endpoint reports no token counts")
