"""What a client does that needs no server: leaves rows of a run that is ended before it began,
tells how far it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from orchestrator.load.client import ClientLoop, LoadClient
from orchestrator.load.point import ClientResult, LoadPoint
from orchestrator.load.requests import Assignment, RequestWriter
from orchestrator.spec.address import parse_url
from tests.unit.load.test_schedule import point


def aborted(rows: bool) -> tuple[ClientResult, LoadClient]:
    client = LoadClient(priority="normal")
    client.prepare(point(requests=500, duration_s=None))
    client.abort(rows)
    return client.run(time.monotonic_ns() + 60_000_000_000), client


def test_an_aborted_run_has_a_row_for_every_unsent_request() -> None:
    result, client = aborted(rows=True)
    assert result.requests["status"].to_pylist() == ["aborted"] * 500
    assert client.progress().failed == 500


def test_an_aborted_run_makes_no_rows_of_unsent_requests_if_none_are_wanted() -> None:
    """Rows of a million requests would take half a minute to make, and be thrown away."""
    result, client = aborted(rows=False)
    assert (result.requests.num_rows, result.token_events.num_rows) == (0, 0)
    assert client.progress().failed == 0


def test_preparing_again_and_again_opens_no_more_files() -> None:
    client = LoadClient(priority="normal")
    client.prepare(point(requests=1, duration_s=None))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client.prepare(point(requests=1, duration_s=None))
    assert len(os.listdir("/proc/self/fd")) == before
    client.abort()
    client.run(time.monotonic_ns())


@contextmanager
def client_loop(load_point: LoadPoint) -> Iterator[ClientLoop]:
    """A loop that has no sockets and does not run."""
    assignment = Assignment.of(load_point, 0, 1)
    writer = RequestWriter(assignment, [parse_url(load_point.targets[0].url)])
    loop = ClientLoop(assignment, writer, [])
    with closing(loop._poller):
        yield loop


def test_a_run_may_end_while_another_thread_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks; the run may end after any look at it."""
    looks: list[ClientLoop | None] = []
    monkeypatch.setattr(
        LoadClient, "_loop", property(lambda _: looks.pop(), lambda *_: None), raising=False
    )
    client = LoadClient()
    with client_loop(point()) as loop:
        looks[:] = [None, loop]
        assert client.so_far() is None  # it has not begun
        looks[:] = [None, loop]
        client.finish(0, drain=True)
    assert looks == [None]
