"""Rows of one client, one per scheduled request. Some thousand records at a time become Arrow
tables and go to disk (results/row_writer.py), so that memory is bounded however many there are.

The rows of a client that died are made by another process from the schedule, which says what that
client had to do.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np
import pyarrow as pa

from orchestrator.base.redaction import redact
from orchestrator.load.held_replies import HeldReplies
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint
from orchestrator.load.request_queue import RequestQueue
from orchestrator.load.request_record import EndedRequest, RequestRecord, TokenGaps
from orchestrator.load.requests import Assignment
from orchestrator.load.schedule import PlannedRequest
from orchestrator.results.outcomes import ErrorClass, RequestStatus, TokenCounts
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS

# to disk; in memory a row takes about 1 kB, a gap 4 bytes (6 where chunks hold several tokens)
ROWS_AT_ONCE = 5_000
GAPS_AT_ONCE = 250_000
MOST_SHOWN = 500  # characters of an error
POINT_IDS = ("measurement_id", "attempt_id")  # columns that are the same in all rows of a point


class RowCollector:
    """Collects the rows of one client and writes them to disk. To be closed with ``close``.

    ``rows_at_once``, ``gaps_at_once``: how many wait in memory before they are written.
    """

    def __init__(
        self,
        assignment: Assignment,
        rows_at_once: int = ROWS_AT_ONCE,
        gaps_at_once: int = GAPS_AT_ONCE,
    ) -> None:
        self._assignment = assignment
        self._rows_at_once = rows_at_once
        self._gaps_at_once = gaps_at_once
        self._records: list[RequestRecord] = []
        self._gaps: list[TokenGaps] = []
        self._waiting_gaps = 0  # between tokens; an item of ``_gaps`` holds those of one request
        self._unreported: deque[EndedRequest] | None = None
        point = assignment.point
        if point.watched:
            self._unreported = deque()
        self._counts_text = point.count_text and point.tokenizer is not None
        self._held: HeldReplies | None = None  # made with the first reply that is held back
        self._writer = RowWriter("requests", "token_events")
        secrets = [target.secrets for target in point.targets]
        self._error_text = lru_cache(64)(partial(_without_secrets, secrets))

    @property
    def full(self) -> bool:
        """Whether there is enough to flush."""
        return len(self._records) >= self._rows_at_once or self._waiting_gaps >= self._gaps_at_once

    def add(self, request: InFlight) -> None:
        """Adds a request that was sent (or could not be) and whose response was read. Raises
        ResultsError where its text must be kept on a full disk.
        """
        record = request.record
        gaps = request.gaps
        if record.error is not None:
            record.error = self._error_text(record.error, request.target)
        if self._unreported is not None:
            self._unreported.append(EndedRequest(record, gaps))
        texts = request.parsed.texts or []
        is_uncounted = record.token_count_source == TokenCounts.CHUNKS and any(texts)
        text = "".join(texts) if self._counts_text and is_uncounted else None
        constraint = request.constraint if record.status is RequestStatus.OK else None
        if text is None and constraint is None:
            self._add(record, gaps)
            return
        if self._held is None:
            self._held = HeldReplies(self._assignment.point.tokenizer)
        ended = EndedRequest(record, gaps)
        if constraint is not None:
            answer = "".join(request.parsed.answer_texts)
            self._held.keep_constrained(ended, text, answer, constraint)
        else:
            self._held.keep(ended, text)

    def _add(self, record: RequestRecord, gaps: TokenGaps | None) -> None:
        self._records.append(record)
        if gaps is not None:
            self._gaps.append(gaps)
            self._waiting_gaps += len(gaps.gaps_us)

    def unreported(self) -> tuple[EndedRequest, ...]:
        """What was added to a watched point since the last call. From any thread.

        Where text is counted after the run, these rows count chunks; answers are not checked yet.
        """
        assert self._unreported is not None
        return tuple(self._unreported.popleft() for _ in range(len(self._unreported)))

    def add_unsent(
        self, planned: PlannedRequest, done_ns: int, error_class: ErrorClass, error: str
    ) -> None:
        """Adds a request that was never sent. ``done_ns``: since the point's start."""
        record = self._assignment.unsent_record(planned, done_ns)
        record.fail(error_class, error)
        record.error = self._error_text(error, self._assignment.target(planned.session))
        self._records.append(record)

    def settle(self) -> None:
        """Counts the replies that came without token counts with the model's tokenizer, checks the
        answers of constrained requests, and adds their rows.
        """
        if self._held is None:
            return
        for settled in self._held.settled():
            for ended in settled:
                self._add(ended.record, ended.gaps)
            self.flush_full()

    def flush_full(self) -> None:
        """A whole ``flush``, if there is enough to flush."""
        if self.full:
            _run(self.flush())

    def flush(self, everything: bool = False) -> Iterator[None]:
        """Writes what is here to disk, in steps. Raises ResultsError where there is no room.

        Rows wait until there are ``rows_at_once``, even where their gaps are many: small parts cost
        readers room and time.
        """
        gaps = self._gaps
        self._gaps = []
        self._waiting_gaps = 0
        self._writer.write("token_events", token_events_of(self._assignment.point, gaps))
        if not everything and len(self._records) < self._rows_at_once:
            return
        records = self._records
        self._records = []
        columns: list[pa.Array] = []
        for column in _columns(self._assignment.point, records):
            columns.append(column)
            yield
        self._writer.write("requests", pa.Table.from_arrays(columns, schema=REQUESTS))

    def parts(self) -> list[RowFile]:
        """``requests`` and ``token_events``, complete. Raises ResultsError where there is no room
        for them.
        """
        _run(self.flush(everything=True))
        return self._writer.finish()

    def close(self) -> None:
        self._writer.close()
        if self._held is not None:
            self._held.close()


def _run(steps: Iterator[None]) -> None:
    """Runs all steps of a generator at once."""
    deque(steps, maxlen=0)


def _without_secrets(secrets: Sequence[list[str]], error: str, target: int) -> str:
    """An error as rows show it: without the secrets of its target, and cut."""
    return redact(error, secrets[target])[:MOST_SHOWN]


# -- Arrow tables


def tables(point: LoadPoint, ended: Sequence[EndedRequest]) -> tuple[pa.Table, pa.Table]:
    """``requests`` and ``token_events`` of what a client reported while it ran."""
    columns = list(_columns(point, [request.record for request in ended]))
    requests = pa.Table.from_arrays(columns, schema=REQUESTS)
    gaps = [request.gaps for request in ended if request.gaps is not None]
    return requests, token_events_of(point, gaps)


def _columns(point: LoadPoint, records: Sequence[RequestRecord]) -> Iterator[pa.Array]:
    """The columns of ``requests``, in the order of its schema."""
    for field in REQUESTS:
        if field.name in POINT_IDS:
            yield _repeated(getattr(point, field.name), len(records))
        else:
            values = list(map(attrgetter(field.name), records))
            yield pa.array(values, field.type)


def token_events_of(point: LoadPoint, gaps: Sequence[TokenGaps]) -> pa.Table:
    """Rows of ``token_events``."""
    indices = [request.request_index for request in gaps]
    gaps_us = [request.gaps_us for request in gaps]
    tokens_per_chunk = [request.tokens_per_chunk for request in gaps]
    columns = {
        "measurement_id": _repeated(point.measurement_id, len(gaps)),
        "attempt_id": _repeated(point.attempt_id, len(gaps)),
        "request_index": pa.array(indices, pa.int32()),
        "gaps_us": _lists(gaps_us, TOKEN_EVENTS.field("gaps_us").type),
        "tokens_per_chunk": _lists(tokens_per_chunk, TOKEN_EVENTS.field("tokens_per_chunk").type),
    }
    return pa.table(columns, schema=TOKEN_EVENTS)


def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _lists(arrays: Sequence[array[int] | None], list_type: pa.DataType) -> pa.Array:
    """A list column from one array per row, without a copy of each number; None makes a null."""
    is_null = np.array([values is None for values in arrays], dtype=np.bool_)
    lists = [values for values in arrays if values is not None]
    lengths = np.zeros(len(arrays), np.int64)
    lengths[~is_null] = [len(values) for values in lists]
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    numbers = np.frombuffer(b"".join(lists), list_type.value_type.to_pandas_dtype())
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(numbers), type=list_type, mask=pa.array(is_null)
    )


# -- clients that died


def lost_requests(point: LoadPoint, index: int, count: int, why: str) -> RowFile:
    """The ``requests`` rows of client ``index`` of ``count``, which died: all have status ``lost``.

    A closed loop by time has no fixed number of requests: it gets one session per slot of the
    client.
    """
    assignment = Assignment.of(point, index, count)
    queue = RequestQueue(assignment.schedule)
    with closing(RowCollector(assignment)) as rows:
        for planned in queue.rest(now_ns=0):
            rows.add_unsent(planned, planned.due_ns, ErrorClass.LOST, why)
            rows.flush_full()
        requests, _ = rows.parts()  # there are no token events
        return requests
