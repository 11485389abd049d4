"""What a client does that needs no server: leaves rows of a run that is ended before it began,
tells how far it is.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from orchestrator.load.client import ClientLoop, LoadClient
from orchestrator.load.point import ClientResult, LoadPoint, TargetSilence
from orchestrator.load.requests import Assignment, RequestWriter, parse_url
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.rows import RowCollector
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.sockets import Connection, Poller, resolve
from orchestrator.load.transport import Transport
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.load import Lengths
from orchestrator.workloads.drawn import ConversationsWorkload
from tests.in_flight import sent_request
from tests.unit.load.test_schedule import point


def ended(rows: bool) -> tuple[ClientResult, LoadClient]:
    client = LoadClient(priority="normal")
    client.prepare(point(requests=500, duration_s=None))
    client.abort(rows)
    return client.run(time.monotonic_ns() + 60_000_000_000), client


def test_what_was_to_come_is_aborted_where_rows_are_wanted() -> None:
    result, client = ended(rows=True)
    assert result.requests["status"].to_pylist() == ["aborted"] * 500
    assert client.progress().failed == 500


def test_who_has_enough_waits_for_no_row_of_what_was_to_come() -> None:
    """Of a million requests these would be made for half a minute, and thrown away."""
    result, client = ended(rows=False)
    assert (result.requests.num_rows, result.token_events.num_rows) == (0, 0)
    assert client.progress().failed == 0


def test_who_prepares_again_and_again_holds_no_more_files() -> None:
    client = LoadClient(priority="normal")
    client.prepare(point(requests=1, duration_s=None))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client.prepare(point(requests=1, duration_s=None))
    assert len(os.listdir("/proc/self/fd")) == before
    client.abort()
    client.run(time.monotonic_ns())


@contextmanager
def client_loop(given: LoadPoint) -> Iterator[ClientLoop]:
    assignment = Assignment.of(given, 0, 1)
    made = ClientLoop(assignment, RequestWriter(assignment, [parse_url(given.targets[0].url)]), [])
    made._rows = RowCollector(assignment, 0)
    dialect = given.dialect
    made._reader = ResponseReader(WIRES[dialect.wire], dialect, None, 0)
    with closing(made._rows), closing(made._poller):
        yield made


def test_progress_looks_for_silences_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes over all that is open, and the loop waits meanwhile."""
    found = [[TargetSilence(0, 1, 5.0)]]
    with client_loop(point()) as made:
        monkeypatch.setattr(made._silence_tracker, "silences", lambda *_: found.pop())
        assert [made.progress().silences for _ in range(3)] == [(TargetSilence(0, 1, 5.0),)] * 3


def test_a_run_that_ends_while_it_is_asked_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_request_is_ended_without_a_look_at_all_others() -> None:
    """Of 10,000 that time out together, each would be looked for among all, and the loop would stop
    for seconds.
    """

    class Unlisted(dict[int, Connection]):
        def values(self) -> Any:
            raise AssertionError("all connections were looked at")

    with socket.create_server(("127.0.0.1", 0)) as server, closing(Poller()) as poller:
        origin = parse_url(f"http://127.0.0.1:{server.getsockname()[1]}")
        transport = Transport(poller, [resolve(origin)])
        transport._connections = Unlisted()
        flights = [sent_request(index=index) for index in range(3)]
        for flight in flights:
            transport.start(flight)
        transport.cancel(flights[1], ErrorClass.TIMEOUT, "too late")
        transport.cancel(flights[1], ErrorClass.TIMEOUT, "again")
        assert transport.ended == [flights[1]]
        transport._connections = dict(transport._connections)
        transport.close()


def test_rows_of_conversations_are_flushed_although_bytes_are_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.load.rows.ROWS_AT_ONCE", 2)
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=1,
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=4),
    )
    crowded = []
    with client_loop(point(workload=talk)) as made:
        for index in range(2):
            made._read_now(made._writer.take(PlannedRequest(index, index, 0, 0)))
            crowded.append(made._crowded)
        assert crowded == [False, True]
        while made._read_step():
            pass
        assert (made._crowded, made._rows.full) == (False, False)
        assert [part.rows for part in made._rows.parts()] == [2, 0]
