"""What a client reads in its pauses: in which order, and when rows cannot wait for a pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from orchestrator.load import response_backlog
from orchestrator.load.in_flight import InFlight
from orchestrator.load.requests import Assignment, RequestWriter
from orchestrator.load.response.reader import ResponseReader
from orchestrator.load.response_backlog import ResponseBacklog
from orchestrator.load.rows import ROWS_AT_ONCE, RowCollector
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.address import parse_url
from tests.unit.load.test_schedule import point


class CountsAlways:
    """Says of every open request that it can be counted, and remembers what was counted."""

    def __init__(self) -> None:
        self.counted: list[InFlight] = []

    def can_count(self, request: InFlight) -> bool:
        return True

    def count(self, request: InFlight) -> None:
        self.counted.append(request)

    def count_rest(self, request: InFlight) -> Iterator[None]:
        return iter(())


class Case(NamedTuple):
    """A backlog, and what it works with."""

    backlog: ResponseBacklog
    rows: RowCollector
    counter: CountsAlways
    open_requests: dict[InFlight, None]
    request: Callable[[int], InFlight]
    read: list[InFlight]


@contextmanager
def case(rows_at_once: int = ROWS_AT_ONCE) -> Iterator[Case]:
    load_point = point()
    assignment = Assignment.of(load_point, 0, 1)
    writer = RequestWriter(assignment, [parse_url(load_point.targets[0].url)])
    counter = CountsAlways()
    reader = ResponseReader(WIRES[load_point.dialect.wire], load_point.dialect, counter, 0)
    rows = RowCollector(assignment, rows_at_once)
    open_requests: dict[InFlight, None] = {}
    read: list[InFlight] = []
    backlog = ResponseBacklog(reader, rows, counter, open_requests, read.append)

    def request(index: int) -> InFlight:
        return writer.take(PlannedRequest(index, index, 0, 0))

    try:
        yield Case(backlog, rows, counter, open_requests, request, read)
    finally:
        rows.close()


def test_finished_responses_are_read_in_the_order_in_which_they_ended() -> None:
    with case() as setup:
        requests = [setup.request(index) for index in range(3)]
        for request in requests:
            setup.backlog.add(request)
        assert setup.backlog.finished() == requests
        setup.backlog.read_all()
        assert setup.read == requests
        assert not setup.backlog.has_work


def test_a_running_stream_is_counted_only_when_no_response_is_finished() -> None:
    with case() as setup:
        running, finished = setup.request(0), setup.request(1)
        setup.open_requests[running] = None
        setup.backlog.find_countable()
        setup.backlog.add(finished)
        assert setup.backlog.step()
        assert (setup.read, setup.counter.counted) == ([finished], [])
        assert setup.backlog.step()
        assert setup.counter.counted == [running]
        assert not setup.backlog.step()


def test_a_stream_that_has_ended_meanwhile_is_not_counted() -> None:
    with case() as setup:
        setup.open_requests[setup.request(0)] = None
        setup.backlog.find_countable()
        setup.open_requests.clear()
        assert not setup.backlog.step()
        assert setup.counter.counted == []


def test_it_is_too_large_until_enough_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_backlog, "MOST_UNREAD_BYTES", response_backlog.REQUEST_BYTES)
    with case() as setup:
        setup.backlog.add(setup.request(0))
        assert not setup.backlog.is_too_large
        setup.backlog.add(setup.request(1))
        assert setup.backlog.is_too_large
        setup.backlog.read_all()
        assert not setup.backlog.is_too_large


def test_rows_of_conversations_are_flushed_although_bytes_are_waiting() -> None:
    with case(rows_at_once=2) as setup:
        must_flush = []
        for index in range(2):
            setup.backlog.read_now(setup.request(index))
            must_flush.append(setup.backlog.must_flush)
        assert must_flush == [False, True]
        setup.backlog.read_all()
        assert not setup.backlog.must_flush
        assert not setup.rows.full
        assert [part.rows for part in setup.rows.parts()] == [2, 0]
