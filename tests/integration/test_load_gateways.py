"""``orchestrator load`` at gateways that get in the way, and addresses as people paste them."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.cli.main import main
from tests.harness import AGAINST_THE_CLOCK
from tests.integration.gateway import HTML, Gateway
from tests.integration.load_server import serving

pytestmark = AGAINST_THE_CLOCK

LOAD = ("--concurrency", "1", "--requests", "3", "--input-tokens", "8", "--output-tokens", "4")


@dataclass
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


def load(url: str, *args: str, **env: str) -> Done:
    """Runs ``load`` in this process, because starting 70 of them takes minutes."""
    kept = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    collected = gc.get_threshold()
    out, err, command = io.StringIO(), io.StringIO(), ["orchestrator", "load", url, *LOAD, *args]
    with (
        patch.dict(os.environ, env),
        patch.object(sys, "argv", command),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    for one, handler in kept.items():
        signal.signal(one, handler)
    gc.set_threshold(*collected)
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def measured(url: str, *args: str, **env: str) -> dict[str, Any]:
    """What was measured; with what was noted on stderr."""
    done = load(url, *args, "--format", "json", **env)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["requests"] == {"scheduled": 3, "ok": 3, "failed": 0}
    return found


def refused(url: str, *args: str, **env: str) -> str:
    done = load(url, *args, **env)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("status", "body"), [(401, b""), (403, b""), (404, b""), (500, b""), (200, HTML), (200, b"[]")]
)
def test_a_named_model_needs_no_list(status: int, body: bytes) -> None:
    with serving(Gateway(list_status=status, list_body=body or b"no")) as server:
        url = f"http://127.0.0.1:{server.port}"
        found = measured(url, "--model", "m")
        assert f"does not list its models (HTTP {status})" in " ".join(found["notes"])
        said = refused(url)
    if status in (401, 403):
        assert f"needs a key (HTTP {status}): name its variable with --api-key-env" in said
    else:
        assert "lists no models: name one with --model" in said


def test_a_model_may_be_listed_under_another_name_than_it_is_asked_by() -> None:
    with serving(Gateway(models=("llama3.2:latest",), takes=("llama3.2",))) as server:
        url = f"http://127.0.0.1:{server.port}"
        found = measured(url, "--model", "llama3.2")
        said = refused(url, "--model", "lama3.2")
    assert "lists llama3.2:latest; it answers to 'llama3.2', too" in " ".join(found["notes"])
    assert "it lists llama3.2:latest, not 'lama3.2'" in said


@pytest.mark.parametrize("model", [(), ("--model", "m1")])
def test_a_refused_key_is_told_from_a_missing_one(model: tuple[str, ...]) -> None:
    with serving(Gateway(key="sk-the-right-one", list_status=401)) as server:
        url = f"http://127.0.0.1:{server.port}"
        said = refused(url, "--api-key-env", "MYK", *model, MYK="sk-wrong-key")
        header = refused(url, "--header", "Authorization: Bearer ${MYK}", *model, MYK="sk-wrong")
        none = refused(url, *model)
    assert "the key in MYK was refused (HTTP 401)" in said
    assert "the key in the header of --header was refused (HTTP 401)" in header
    assert "needs a key (HTTP 401): name its variable with --api-key-env" in none


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("status", [400, 403, 409, 415, 418, 422, 500, 501, 502, 503])
def test_whatever_a_gateway_says_to_unknown_fields_a_plainer_request_is_tried(
    status: int, api: str
) -> None:
    with serving(Gateway(unknown_fields=status)) as server:
        found = measured(f"http://127.0.0.1:{server.port}", "--api", api)
    assert "no way to fix the output length" in " ".join(found["notes"])


def test_a_gateway_that_refuses_everything_is_told_with_its_answer_and_what_to_try() -> None:
    with serving(Gateway(unknown_fields=500)) as server:
        url = f"http://127.0.0.1:{server.port}"
        said = refused(url, "--extra-body", '{"top_k": 1}')
        posts = [request for request in server.requests if request.body]
    assert "its last answer: HTTP 500 Said: something went wrong" in said
    assert "--extra-body" in said
    assert len(posts) <= 20


def test_a_chance_failure_of_the_trial_costs_no_exactness() -> None:
    gateway = Gateway()

    async def once(request: Any, reader: Any, writer: Any) -> None:
        if request.number == 1:
            writer.write(b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n")
        else:
            await gateway(request, reader, writer)

    with serving(once) as server:
        measured(f"http://127.0.0.1:{server.port}")
        last = server.requests[-2].json
    assert last["return_token_ids"] and isinstance(last["prompt"], list)


@pytest.mark.parametrize("pasted", ["/api/v3", "/api/v3/", "/api/v3/chat/completions"])
def test_a_base_path_without_v1_is_taken_as_it_was_pasted(pasted: str) -> None:
    with serving(Gateway(root="/api/v3")) as server:
        found = measured(f"http://127.0.0.1:{server.port}{pasted}", "--api", "chat")
    assert found["path"] == "/chat/completions"
    assert found["url"].endswith("/api/v3")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions/", "/v1/models"])
def test_a_pasted_path_of_an_api_is_that_api(path: str) -> None:
    with serving(Gateway(slash=307 if path.endswith("/") else None)) as server:
        found = measured(f"http://127.0.0.1:{server.port}{path}")
    assert found["api"] == ("chat" if "chat" in path else "completions")
    assert found["path"] == ("/v1/completions" if path == "/v1/models" else path)


def test_a_pasted_path_and_another_api_are_told_with_what_works() -> None:
    with serving(Gateway()) as server:
        url = f"http://127.0.0.1:{server.port}"
        said = refused(f"{url}/v1/chat/completions", "--api", "completions")
        assert f"leave out --api completions, or give the server's address, {url}\n" in said
        measured(f"{url}/v1/chat/completions")
        measured(url, "--api", "completions")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_the_place_that_a_redirect_names_can_be_given(status: int, api: str) -> None:
    with serving(Gateway(slash=status)) as server:
        said = refused(f"http://127.0.0.1:{server.port}", "--api", api)
        place = re.search(r"it is at (\S+) \(give that URL\)", said)
        assert place is not None, said
        found = measured(place[1])
    assert (found["api"], found["path"][-1]) == (api, "/")


@pytest.mark.parametrize(
    "pasted",
    [
        "/openai/v1?api-version=2026-01-01",
        "/openai/v1/chat/completions?api-version=2026-01-01",
        "/openai?api-version=2026-01-01",
    ],
)
def test_a_query_of_the_address_goes_with_every_request(pasted: str) -> None:
    with serving(Gateway(root="/openai/v1", version="2026-01-01")) as server:
        found = measured(f"http://127.0.0.1:{server.port}{pasted}", "--api", "chat")
        asked = {request.head.split(b" ")[1] for request in server.requests}
        asked -= {b"/openai/version", b"/openai/metrics"}  # of the engine behind it, not of the API
    assert found["path"] == "/v1/chat/completions?api-version=2026-01-01"
    assert all(b"api-version=2026-01-01" in path for path in asked)


def test_a_deployment_that_is_a_path_is_asked_there() -> None:
    root = "/openai/deployments/gpt"
    with serving(Gateway(root=root, version="1", list_status=404)) as server:
        url = f"http://127.0.0.1:{server.port}{root}/chat/completions?api-version=1"
        measured(url, "--model", "gpt")


def test_a_key_in_a_query_is_refused_and_not_shown() -> None:
    said = refused("http://127.0.0.1:9/v1?key=sk-secret-secret")
    assert "its query holds 'key', which may be a key" in said
    assert "sk-secret" not in said
