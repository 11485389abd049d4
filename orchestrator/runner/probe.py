"""Finds out, before anything is measured, which models, request fields and token ids an endpoint
accepts.

It sends real requests for two tokens through the real client. Dialects are tried from the one that
tells most to the plainest; when the endpoint refuses one with 400 or 422 (or one with a cache_salt
with 5xx) the next is tried.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.emulator import is_emulator
from orchestrator.errors import InputError
from orchestrator.http_control import Answer, ask
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import parse_url
from orchestrator.load.workloads import RandomWorkload
from orchestrator.load.workloads.content import SMALLER_IDS
from orchestrator.redaction import hidden, redacted
from orchestrator.spec.dialect import SGLANG_GENERATE, TGI_STREAM, Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level

if TYPE_CHECKING:
    from orchestrator.spec.settings import EngineSettings

_EXACT = ("usage", "token_ids", "continuous_usage", "native")
PROBE_TOKENS = 2
_NATIVE = {"tgi": TGI_STREAM, "sglang": SGLANG_GENERATE}


@dataclass(frozen=True, slots=True)
class Probed:
    """How to talk to an endpoint. ``notes``: sentences for the user on what it cannot do."""

    dialect: Dialect
    vocabulary: tuple[int, int] | None
    notes: tuple[str, ...] = ()
    counts: bool = True  # it reports how many tokens it generated
    emulated: bool = False  # it is our emulator


def dialects(api: str) -> list[Dialect]:
    """The dialects to try for an API, best first."""
    if api in _NATIVE:
        return [_NATIVE[api]]
    ids = api == "completions"
    wire, path = (
        ("openai_completions", "/v1/completions")
        if ids
        else ("openai_chat", "/v1/chat/completions")
    )
    full = Dialect(wire, path, prompt_token_ids=ids, return_token_ids=True)
    newer = Dialect(wire, path, done_marker=False)  # OpenAI's own models
    return [
        full,
        replace(full, return_token_ids=False),
        replace(full, return_token_ids=False, prompt_token_ids=False),
        Dialect(
            wire, path, length_control="generation_config", min_tokens_field=None, done_marker=False
        ),
        Dialect(wire, path, length_control="none", min_tokens_field=None, done_marker=False),
        replace(
            newer,
            length_control="none",
            min_tokens_field=None,
            max_tokens_field="max_completion_tokens",
        ),
    ]


def salted_first(
    candidates: Sequence[Dialect], owner: str, settings: EngineSettings
) -> list[Dialect]:
    """Before the candidates the same ones with a cache_salt, where ``with_salt`` gives them one."""
    from orchestrator.engines.endpoint import with_salt

    salted = [with_salt(one, owner, settings) for one in candidates]
    return [
        *(one for one, plain in zip(salted, candidates, strict=True) if one != plain),
        *candidates,
    ]


def list_models(target: Target) -> dict[str, str] | None:
    """The models that an endpoint lists, with who it says owns them; None if it has no list.

    Raises InputError when it does not answer."""
    parse_url(target.url)  # raises InputError for a bad URL
    answer = _ask(target, "/v1/models")
    if answer.status == 0:
        said = answer.error
        hint = "--insecure does without" if "certificate" in said else "is the server up?"
        hint = "is it an http:// address?" if "TLS handshake" in said else hint
        raise InputError(f"no server answers at {target.url}: {said}; {hint}")
    if answer.status in (401, 403):
        raise InputError(
            f"{target.url} needs a key (HTTP {answer.status}): name its variable with --api-key-env"
        )
    if answer.redirects and not target.model:  # with one, the trial request will tell
        raise InputError(f"{target.url} does not list its models: {answer.outcome}")
    return _models(answer) if answer.status == 200 else None


def _models(answer: Answer) -> dict[str, str] | None:
    try:
        return {str(model["id"]): str(model.get("owned_by")) for model in answer.json()["data"]}
    except (KeyError, TypeError):
        return None


def probe(
    target: Target, candidates: Sequence[Dialect], tokenizer: str | None, timeout_s: float
) -> Probed:
    """The first dialect in which an endpoint answers, each within ``timeout_s``: some load their
    model at the first request. Raises InputError with the endpoint's last answer if there is none.
    """
    said = ""
    for dialect in candidates:
        vocabularies = SMALLER_IDS if dialect.prompt_token_ids and not tokenizer else (None,)
        for vocabulary in vocabularies:
            row = _try(target, dialect.salted("probe"), tokenizer, vocabulary, timeout_s)
            if row["status"] == "ok" or row["error_class"] == "wrong_length":
                counts = row["output_tokens"] is None or row["token_count_source"] in _EXACT
                notes = _notes(dialect, candidates[0], row)
                if not counts:
                    how = (
                        "the tokenizer counts its replies"
                        if tokenizer
                        else "one per streamed event is assumed"
                    )
                    notes.append(f"the endpoint reports no token counts: {how}")
                return Probed(dialect, vocabulary, tuple(notes), counts, _is_emulator(target))
            said = str(row["error"])
            # what has begun to answer refuses nothing
            in_stream = row["http_status"] == 200 and row["error_class"] in (
                "http_4xx",
                "stream_error",
            )
            in_stream = in_stream and not row["chunks"]
            # (vLLM refuses token ids in a stream)
            refused = row["http_status"] in (400, 422) or in_stream
            # it may be the salt
            if not refused and not (dialect.cache_salt and row["error_class"] == "http_5xx"):
                raise InputError(
                    f"{target.url}{dialect.path} failed a trial request: {row['error_class']}: {said}"
                )
            if not any(words in said.lower() for words in ("vocab", "token id", "invalid token")):
                break
    hint = """leave out a field that it refuses, like --extra-body '{"temperature": null}'"""
    refused = f"{target.url}{candidates[0].path} refuses every kind of request we know; its last answer: {said}"
    raise InputError(f"{refused}; {hint}")


def _is_emulator(target: Target) -> bool:
    said = _ask(target, "/version").json()
    return isinstance(said, dict) and is_emulator(str(said.get("version")))


def _ask(target: Target, path: str) -> Answer:
    url = target.url.rstrip("/") + path
    answer = ask(
        url, api_key=target.api_key or "", more_headers=target.headers, verify_tls=target.verify_tls
    )
    body = hidden(answer.body.decode(errors="replace"), target.secrets).encode()
    error, location = (redacted(text, target.secrets) for text in (answer.error, answer.location))
    return replace(answer, body=body, error=error, location=location)


def _try(
    target: Target,
    dialect: Dialect,
    tokenizer: str | None,
    vocabulary: tuple[int, int] | None,
    timeout_s: float,
) -> dict[str, Any]:
    """The row of one request of two tokens."""
    point = LoadPoint(
        targets=(target,),
        dialect=dialect,
        workload=RandomWorkload(
            name="probe", input_tokens=Lengths(fixed=16), output_tokens=Lengths(fixed=PROBE_TOKENS)
        ),
        level=Level(control="concurrency", value=1),
        arrivals=Arrivals(),
        duration_s=None,
        requests=1,
        seed=time.time_ns() & 0xFFFFFFFF,  # a prompt that no measurement will send
        request_timeout_s=timeout_s,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
    )
    client = LoadClient()
    client.prepare(point)
    row: dict[str, Any] = client.run(time.monotonic_ns()).requests.to_pylist()[0]
    return row


def _notes(dialect: Dialect, best: Dialect, row: dict[str, Any]) -> list[str]:
    notes = []
    if best.prompt_token_ids and not dialect.prompt_token_ids:
        notes.append("the endpoint takes no token ids: prompts are text")
    if dialect.length_control == "none":
        notes.append(
            "the endpoint has no way to fix the output length: requests may end early, see output_tokens"
        )
    elif row["error_class"] == "wrong_length":
        said = f"the endpoint does not keep to the output length it is asked for ({row['error']})"
        notes.append(f"{said}: such answers count as failed, unless you give --natural-lengths")
    return notes
