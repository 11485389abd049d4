"""Control calls: whatever a server does, there is an answer, soon and not too large."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from orchestrator.base import http as http_control
from orchestrator.base.http import HttpResponse, ask


@contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server for one client: its base URL, and what the client sent."""
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.settimeout(10)
                sent.append(client.recv(65536))
                while sent[0].startswith(b"POST") and not sent[0].endswith(b"{}"):
                    sent[0] += client.recv(65536)
                talk(client)

        thread = threading.Thread(target=run, daemon=True)  # nobody may ever connect
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", sent
        thread.join()


def saying(text: bytes) -> Callable[[socket.socket], None]:
    return lambda client: client.sendall(text)


def test_a_post_sends_path_key_and_body_and_returns_the_response() -> None:
    with serving(saying(b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\n\r\n[]")) as (url, sent):
        answer = ask(f"{url}/base/v1?x=1", "POST", "k3y")
    assert answer == HttpResponse(418, b"[]")
    assert answer.json() == []
    assert sent[0].startswith(b"POST /base/v1?x=1 HTTP/1.1\r\n")
    assert b"Authorization: Bearer k3y\r\n" in sent[0] and sent[0].endswith(b"\r\n\r\n{}")


def test_without_a_key_none_is_sent() -> None:
    with serving(saying(b"HTTP/1.1 200 OK\r\n\r\nall of it")) as (url, sent):
        assert ask(url) == HttpResponse(200, b"all of it")
    assert sent[0].startswith(b"GET / HTTP/1.1\r\n") and b"Authorization" not in sent[0]


def test_a_header_that_is_given_replaces_ours_however_it_is_written() -> None:
    with serving(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (url, sent):
        ask(
            url,
            api_key="k3y",
            more_headers=[("authorization", "Basic x"), ("AUTHORIZATION", "Basic y")],
        )
    assert sent[0].lower().count(b"authorization") == 1 and b"AUTHORIZATION: Basic y\r\n" in sent[0]


def test_a_redirect_is_an_answer_like_any_other() -> None:
    with serving(
        saying(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")
    ) as (
        url,
        _,
    ):
        assert (answer := ask(url)) == HttpResponse(302, location="http://127.0.0.1:9/")
    assert answer.outcome == "HTTP 302: it is at http://127.0.0.1:9/ (give that URL)"
    assert answer.is_redirect and not HttpResponse(200, location="/v1/models").is_redirect


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as (url, _):
        assert ask(url).status == 200


def test_nobody_there_is_an_answer_that_says_why() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answer = ask(f"http://127.0.0.1:{closed.getsockname()[1]}/health")
    assert (answer.status, answer.body, answer.json()) == (0, b"", None)
    assert "refused" in answer.error


@pytest.mark.parametrize(
    "text", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_what_is_no_whole_answer_is_nobody(text: bytes) -> None:
    with serving(saying(text)) as (url, _):
        answer = ask(url)
    assert answer.status == 0 and answer.error


def test_an_answer_that_is_too_large_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_control, "LIMIT_BYTES", 1000)
    with serving(saying(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000)) as (url, _):
        assert "more than 1000 bytes" in ask(url).error


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"]
)
def test_a_server_that_answers_byte_by_byte_is_cut_off_in_time(start: bytes) -> None:
    done = threading.Event()

    def drip(client: socket.socket) -> None:
        client.sendall(start)
        while not done.wait(0.02):
            client.sendall(b"x")

    with serving(drip) as (url, _):
        began = time.monotonic()
        answer = ask(url, limit_s=0.3)
        took_s = time.monotonic() - began
        done.set()
    assert answer.status == 0 and answer.error
    assert took_s < 5


def test_a_url_that_is_none_is_nobody() -> None:
    assert ask("http://127.0.0.1:99999999/").status == 0


@pytest.mark.parametrize("url", ["http://[::1", "http://host:no", "nothing"])
def test_what_is_no_url_is_an_answer_too(url: str) -> None:
    answer = ask(url)
    assert answer.status == 0 and answer.error


def test_a_handshake_that_hangs_is_over_in_time() -> None:
    """Bytes keep coming, of a record that is well-formed: each one would start a socket's own
    timeout anew.
    """

    def drip(client: socket.socket) -> None:
        client.sendall(b"\x16\x03\x01\x40\x00")  # a handshake record of 16384 bytes follows
        for _ in range(200):
            client.sendall(b"\x16")
            time.sleep(0.05)

    with serving(drip) as (url, _):
        began = time.monotonic()
        answer = ask(url.replace("http:", "https:"), limit_s=0.4)
        assert time.monotonic() - began < 5
    assert (answer.status, answer.error) == (0, "the TLS handshake failed: it took too long")


def test_all_addresses_of_a_name_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:  # nobody else gets in
            one.setblocking(False)
            one.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 5
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        began = time.monotonic()
        assert ask("http://many.example/", limit_s=0.5).status == 0
        assert time.monotonic() - began < 5
        for one in waiting:
            one.close()


def test_name_servers_that_do_not_answer_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def silent(*_: object, **__: object) -> list[object]:
        answered.wait(30.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    began = time.monotonic()
    answer = ask("http://silent.example/", limit_s=0.2)
    assert time.monotonic() - began < 5
    answered.set()
    assert answer.error == "no name server told the address of 'silent.example' in time"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (
            rb'{"version": "0.32.\ud800", "\udfff": ["\ud83d\ude00"]}',
            {"version": "0.32.?", "?": ["\U0001f600"]},
        ),
        (b'"\xed\xa0\x80"', "?"),
        (b"[" * 200_000, None),
        (b'{"version": 0.32.1}', None),
    ],
)
def test_what_it_says_can_be_stored_whatever_it_is(body: bytes, value: object) -> None:
    assert HttpResponse(200, body).json() == value
