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
from orchestrator.load.point import ClientResult, LoadPoint, TargetSilence
from orchestrator.load.requests import Assignment, RequestWriter
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.rows import ROWS_AT_ONCE, RowCollector
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.address import parse_url
from orchestrator.spec.load import Lengths
from orchestrator.workloads.drawn import ConversationsWorkload
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
    """Those of a million requests would be made for half a minute, and thrown away."""
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
def client_loop(load_point: LoadPoint, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[ClientLoop]:
    """A loop that has no sockets and does not run."""
    assignment = Assignment.of(load_point, 0, 1)
    writer = RequestWriter(assignment, [parse_url(load_point.targets[0].url)])
    made = ClientLoop(assignment, writer, [])
    made._rows = RowCollector(assignment, rows_at_once)
    dialect = load_point.dialect
    made._reader = ResponseReader(WIRES[dialect.wire], dialect, None, 0)
    with closing(made._rows), closing(made._poller):
        yield made


def test_progress_looks_for_silences_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes over all open requests, and the loop waits meanwhile."""
    looks = [[TargetSilence(0, 1, 5.0)]]
    with client_loop(point()) as made:
        monkeypatch.setattr(made._silence_tracker, "silences", lambda *_: looks.pop())
        assert [made.progress().silences for _ in range(3)] == [(TargetSilence(0, 1, 5.0),)] * 3


def test_a_run_may_end_while_another_thread_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread asks; the run may end after any look at it."""
    looks: list[ClientLoop | None] = []
    monkeypatch.setattr(
        LoadClient, "_loop", property(lambda _: looks.pop(), lambda *_: None), raising=False
    )
    client = LoadClient()
    with client_loop(point()) as made:
        looks[:] = [None, made]
        assert client.so_far() is None  # it has not begun
        looks[:] = [None, made]
        client.finish(0, drain=True)
    assert looks == [None]


def test_rows_of_conversations_are_flushed_although_bytes_are_waiting() -> None:
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=1,
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=4),
    )
    crowded = []
    with client_loop(point(workload=talk), rows_at_once=2) as made:
        for index in range(2):
            made._read_now(made._writer.take(PlannedRequest(index, index, 0, 0)))
            crowded.append(made._crowded)
        assert crowded == [False, True]
        while made._read_step():
            pass
        assert (made._crowded, made._rows.full) == (False, False)
        assert [part.rows for part in made._rows.parts()] == [2, 0]
