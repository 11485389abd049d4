"""``orchestrator load`` against gateways that refuse or redirect, and with addresses as people paste
them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.harness import AGAINST_THE_CLOCK
from tests.in_this_process import Completed, run_here
from tests.integration.gateway import HTML, Gateway
from tests.integration.load_server import serving

pytestmark = AGAINST_THE_CLOCK

LOAD = ("--concurrency", "1", "--requests", "3", "--input-tokens", "8", "--output-tokens", "4")


def load(url: str, *args: str, **env: str) -> Completed:
    """Three short requests, one after the other."""
    return run_here("load", url, *LOAD, *args, **env)


def measured(url: str, *args: str, **env: str) -> dict[str, Any]:
    """The document that ``load`` prints of three requests that succeeded. Their measurement may be
    invalid, because other tests keep the machine busy.
    """
    completed = load(url, *args, "--format", "json", **env)
    assert completed.returncode in (0, 3), completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    assert document["requests"] == {"scheduled": 3, "ok": 3, "failed": 0}
    return document


def refused(url: str, *args: str, **env: str) -> str:
    """The message of a ``load`` that sends no load and ends with status 2."""
    completed = load(url, *args, **env)
    assert (completed.returncode, completed.stdout) == (2, ""), completed.stderr
    return completed.stderr


@pytest.mark.parametrize(
    ("status", "body"), [(401, b""), (403, b""), (404, b""), (500, b""), (200, HTML), (200, b"[]")]
)
def test_a_named_model_needs_no_list(status: int, body: bytes) -> None:
    with serving(Gateway(list_status=status, list_body=body or b"no")) as server:
        url = f"http://127.0.0.1:{server.port}"
        document = measured(url, "--model", "m")
        assert f"does not list its models (HTTP {status})" in " ".join(document["notes"])
        message = refused(url)
    if status in (401, 403):
        assert f"needs a key (HTTP {status}): name its variable with --api-key-env" in message
    else:
        assert "lists no models: name one with --model" in message


def test_a_model_may_be_listed_under_another_name_than_it_is_asked_by() -> None:
    with serving(Gateway(models=("llama3.2:latest",), takes=("llama3.2",))) as server:
        url = f"http://127.0.0.1:{server.port}"
        document = measured(url, "--model", "llama3.2")
        message = refused(url, "--model", "lama3.2")
    assert "lists llama3.2:latest; it answers to 'llama3.2', too" in " ".join(document["notes"])
    assert "it lists llama3.2:latest, not 'lama3.2'" in message


@pytest.mark.parametrize("model", [(), ("--model", "m1")])
def test_a_refused_key_is_distinguished_from_a_missing_one(model: tuple[str, ...]) -> None:
    with serving(Gateway(key="sk-the-right-one", list_status=401)) as server:
        url = f"http://127.0.0.1:{server.port}"
        message = refused(url, "--api-key-env", "MYK", *model, MYK="sk-wrong-key")
        message_of_header = refused(
            url, "--header", "Authorization: Bearer ${MYK}", *model, MYK="sk-wrong"
        )
        message_without_key = refused(url, *model)
    assert "the key in MYK was refused (HTTP 401)" in message
    assert "the key in the header of --header was refused (HTTP 401)" in message_of_header
    assert "needs a key (HTTP 401): name its variable with --api-key-env" in message_without_key


@pytest.mark.parametrize(("status", "api"), [(422, "completions"), (503, "chat")])
def test_a_plainer_request_is_tried_however_a_gateway_refuses_unknown_fields(
    status: int, api: str
) -> None:
    with serving(Gateway(unknown_fields=status)) as server:
        document = measured(f"http://127.0.0.1:{server.port}", "--api", api)
    assert "no way to fix the output length" in " ".join(document["notes"])


def test_the_message_of_a_gateway_that_refuses_everything_has_its_answer_and_what_to_try() -> None:
    with serving(Gateway(unknown_fields=500)) as server:
        url = f"http://127.0.0.1:{server.port}"
        message = refused(url, "--extra-body", '{"top_k": 1}')
        posts = [request for request in server.requests if request.body]
    assert "its last answer: HTTP 500 Said: something went wrong" in message
    assert "--extra-body" in message
    assert len(posts) <= 20


def test_exact_requests_are_sent_though_the_first_trial_failed_by_chance() -> None:
    gateway = Gateway()

    async def fails_once(request: Any, reader: Any, writer: Any) -> None:
        if request.number == 1:
            writer.write(b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n")
        else:
            await gateway(request, reader, writer)

    with serving(fails_once) as server:
        measured(f"http://127.0.0.1:{server.port}")
        body = server.requests[-2].json
    assert body["return_token_ids"] and isinstance(body["prompt"], list)


@pytest.mark.parametrize("pasted", ["/api/v3", "/api/v3/", "/api/v3/chat/completions"])
def test_a_base_path_without_v1_is_taken_as_it_was_pasted(pasted: str) -> None:
    with serving(Gateway(root="/api/v3")) as server:
        document = measured(f"http://127.0.0.1:{server.port}{pasted}", "--api", "chat")
    assert document["path"] == "/chat/completions"
    assert document["url"].endswith("/api/v3")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions/", "/v1/models"])
def test_a_pasted_path_of_an_api_is_that_api(path: str) -> None:
    with serving(Gateway(slash=307 if path.endswith("/") else None)) as server:
        document = measured(f"http://127.0.0.1:{server.port}{path}")
    assert document["api"] == ("chat" if "chat" in path else "completions")
    assert document["path"] == ("/v1/completions" if path == "/v1/models" else path)


def test_the_message_about_a_pasted_path_and_another_api_says_what_works() -> None:
    with serving(Gateway()) as server:
        url = f"http://127.0.0.1:{server.port}"
        message = refused(f"{url}/v1/chat/completions", "--api", "completions")
        assert f"leave out --api completions, or give the server's address, {url}\n" in message
        measured(f"{url}/v1/chat/completions")
        measured(url, "--api", "completions")


@pytest.mark.parametrize(("status", "api"), [(302, "completions"), (308, "chat")])
def test_the_url_that_a_redirect_names_can_be_given(status: int, api: str) -> None:
    with serving(Gateway(slash=status)) as server:
        message = refused(f"http://127.0.0.1:{server.port}", "--api", api)
        named_url = re.search(r"it is at (\S+) \(give that URL\)", message)
        assert named_url is not None, message
        document = measured(named_url[1])
    assert (document["api"], document["path"][-1]) == (api, "/")


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
        document = measured(f"http://127.0.0.1:{server.port}{pasted}", "--api", "chat")
        targets = {request.head.split(b" ")[1] for request in server.requests}
        # of the engine behind it, not of the API
        targets -= {b"/openai/version", b"/openai/metrics", b"/openai/prometheus/metrics"}
    assert document["path"] == "/v1/chat/completions?api-version=2026-01-01"
    assert all(b"api-version=2026-01-01" in path for path in targets)


def test_a_deployment_that_is_a_path_is_asked_there() -> None:
    root = "/openai/deployments/gpt"
    with serving(Gateway(root=root, version="1", list_status=404)) as server:
        url = f"http://127.0.0.1:{server.port}{root}/chat/completions?api-version=1"
        measured(url, "--model", "gpt")


def test_a_key_in_a_query_is_refused_and_not_shown() -> None:
    message = refused("http://127.0.0.1:9/v1?key=sk-secret-secret")
    assert "its query holds 'key', which may be a key" in message
    assert "sk-secret" not in message
