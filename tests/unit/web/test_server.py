"""Who is answered, and with what: the server over real connections of this machine."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from orchestrator.base.errors import InputError, ResultsError
from orchestrator.results.store import Store
from orchestrator.web.server import (
    FIRST_LOOK_S,
    RETRY_AFTER_S,
    TOKEN_VARIABLE,
    Address,
    application,
    serve,
    token_for,
)
from orchestrator.web.watched import WatchedResults
from tests.unit.plan.stored_sweeps import planned, store_sweep

LOCAL = Address("127.0.0.1", 8787, token=None)
OPEN = Address("0.0.0.0", 8787, token="open sesame")


@pytest.fixture
def store(tmp_path) -> Store:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned(levels=[1, 2, 3]))
    return store


def asked(
    results: WatchedResults,
    address: Address,
    ask: Callable[[TestClient], Awaitable[Any]],
    first_look_s: float = 60.0,
) -> Any:
    """What ``ask`` returns of a server that runs meanwhile."""

    async def session() -> Any:
        app = application(results, address, first_look_s)
        async with TestClient(TestServer(app)) as client:
            return await ask(client)

    return asyncio.run(session())


def status_of(address: Address, store: Store, path: str = "/healthz", **headers: str) -> int:
    async def ask(client: TestClient) -> int:
        async with client.get(path, headers=headers) as answer:
            return answer.status

    return asked(WatchedResults(store.uri), address, ask)


@pytest.mark.parametrize("host", ["localhost", "localhost:8787", "127.0.0.1:8787", "[::1]:8787"])
def test_names_of_this_machine_are_answered(store, host):
    assert status_of(LOCAL, store, Host=host) == 200


@pytest.mark.parametrize("host", ["example.org", "example.org:8787", "localhost.example.org"])
@pytest.mark.parametrize("path", ["/", "/events", "/metrics", "/healthz"])
def test_another_name_is_refused_even_if_it_leads_here(store, path, host):
    assert status_of(LOCAL, store, path, Host=host) == 403


def test_beyond_loopback_nothing_of_the_results_is_answered_without_the_token(store):
    assert status_of(OPEN, store, "/metrics") == 401
    assert status_of(OPEN, store, "/events") == 401
    assert status_of(OPEN, store, "/?token=guess") == 401


def test_the_token_may_stand_in_the_address_or_in_the_header(store):
    assert status_of(OPEN, store, "/metrics?token=open%20sesame", Host="node7:8787") == 200
    assert status_of(OPEN, store, "/metrics", Authorization="Bearer open sesame") == 200


def test_a_probe_needs_no_token(store):
    assert status_of(OPEN, store, "/healthz", Host="10.0.0.7:8787") == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_there_is_no_token(host):
    assert token_for(host, {TOKEN_VARIABLE: "abc"}) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node7"])
def test_beyond_loopback_the_token_is_that_of_the_environment_or_new(host):
    assert token_for(host, {TOKEN_VARIABLE: "abc"}) == "abc"
    assert len(token_for(host, {})) >= 32
    assert token_for(host, {}) != token_for(host, {})


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_refusals_are_kept_by_no_cache_either(store, path):
    async def ask(client: TestClient) -> Any:
        async with client.get(path, headers={"Host": "example.org"}) as answer:
            return answer.headers

    headers = asked(WatchedResults(store.uri), LOCAL, ask)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_only_reads(store, method):
    async def ask(client: TestClient) -> int:
        async with client.request(method, "/") as answer:
            return answer.status

    assert asked(WatchedResults(store.uri), LOCAL, ask) == 405


def test_the_page_is_of_what_was_seen_last(store):
    results = WatchedResults(store.uri)
    results.look()

    async def ask(client: TestClient) -> str:
        async with client.get("/") as answer:
            return await answer.text()

    assert f'"attempts": {results.now.attempts}' in asked(results, LOCAL, ask)


async def next_change(answer: ClientResponse) -> dict:
    while True:
        line = await answer.content.readline()
        assert line, "the server ended the events"
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))


class Hasty(WatchedResults):
    """Looks without a pause."""

    pause_s = 0.0


def test_what_is_measured_reaches_a_page_that_listens(store):
    results = Hasty(store.uri)
    results.look()
    before = results.now

    async def ask(client: TestClient) -> list[dict]:
        query = f"edition={before.edition}&serial={before.serial}&attempts={before.attempts}"
        async with client.get(f"/events?{query}") as answer:
            first = await next_change(answer)
            await asyncio.to_thread(store_sweep, store, planned(levels=[1, 2, 3, 4]))
            changes = [first]
            while changes[-1]["attempts"] < before.attempts + 2:  # of two deployments
                changes.append(await next_change(answer))
            return changes

    changes = asked(results, LOCAL, ask)
    assert changes[0]["texts"] == ""
    assert changes[-1]["texts"]
    assert changes[-1]["bins"]


def test_a_page_of_another_edition_is_told_so_and_left(store):
    results = WatchedResults(store.uri)
    results.look()

    async def ask(client: TestClient) -> list[bytes]:
        async with client.get("/events?edition=7&attempts=0") as answer:
            return [line async for line in answer.content if line.startswith(b"data: ")]

    (change,) = asked(results, LOCAL, ask)
    assert json.loads(change.removeprefix(b"data: "))["edition"] == results.now.edition


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "two", "²"])
@pytest.mark.parametrize("name", ["edition", "serial", "attempts"])
def test_a_page_that_has_no_possible_number_is_refused(store, name, number):
    assert status_of(LOCAL, store, f"/events?{name}={number}") == 400


class Unanswered(WatchedResults):
    """A storage that never answers."""

    looks = 0
    pause_s = 0.0
    reason = "the bucket does not answer"

    def look(self) -> bool:
        self.looks += 1
        raise ResultsError(self.reason)


def test_a_storage_that_does_not_answer_is_asked_again_and_said_once(store, capsys):
    results = Unanswered(store.uri)

    async def ask(client: TestClient) -> int:
        while results.looks < 3:
            async with client.get("/healthz") as answer:
                assert answer.status == 200
        return results.looks

    asked(results, LOCAL, ask)
    assert capsys.readouterr().err.count("the bucket does not answer") == 1


def test_the_first_metrics_have_what_is_stored(store):
    async def ask(client: TestClient) -> str:
        async with client.get("/metrics") as answer:
            return await answer.text()

    assert 'orchestrator_points{experiment="exp"' in asked(WatchedResults(store.uri), LOCAL, ask)


def test_metrics_that_were_never_read_are_refused_at_once_rather_than_empty(store):
    class NeverRead(WatchedResults):
        def look(self) -> bool:
            return not asked_once.wait(10)

    asked_once = threading.Event()

    async def ask(client: TestClient) -> tuple[int, str, str]:
        async with client.get("/metrics") as answer:
            asked_once.set()
            return answer.status, await answer.text(), answer.headers["Retry-After"]

    refusal = asked(NeverRead(store.uri), LOCAL, ask, FIRST_LOOK_S)
    assert refusal == (503, "the results have not been read yet\n", str(RETRY_AFTER_S))
    assert FIRST_LOOK_S < 1.0


def test_metrics_that_cannot_be_read_are_refused_with_the_reason_but_no_secret(store):
    results = Unanswered(store.uri)
    results.reason = "https://me:s3cret@bucket does not answer"

    async def ask(client: TestClient) -> tuple[int, str]:
        while results.looks < 2:  # the first has failed by then
            async with client.get("/healthz"):
                pass
        async with client.get("/metrics") as answer:
            return answer.status, await answer.text()

    status, text = asked(results, LOCAL, ask, first_look_s=0.01)
    assert status == 503
    assert text.startswith("the results have not been read yet: https://")
    assert "bucket does not answer" in text
    assert "s3cret" not in text


def test_a_port_that_is_taken_is_said(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}.*another --port"):
            serve(WatchedResults(store.uri), "127.0.0.1", port, None, print_line=print)


def test_the_address_that_is_printed_holds_the_token():
    assert Address("::1", 80, None).url == "http://[::1]:80/"
    assert Address("0.0.0.0", 80, "a&b").url == "http://0.0.0.0:80/?token=a%26b"
