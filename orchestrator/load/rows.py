"""Rows of one client, one per scheduled request. Some thousand records at a time become Arrow
tables and go to disk (results/row_writer.py), so that memory is bounded however many there are.

The rows of a client that died are made by another process from the schedule, which says what that
client had to do.
"""

from __future__ import annotations

import pickle
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.base.redaction import redact
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint
from orchestrator.load.request_record import EndedRequest, RequestRecord, TokenGaps
from orchestrator.load.requests import Assignment
from orchestrator.load.schedule import PlannedRequest, RequestQueue
from orchestrator.results.outcomes import ErrorClass, TokenCounts
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS
from orchestrator.results.temporary_files import disk_errors, nameless_file, path_of
from orchestrator.workloads.content import load_tokenizer

# to disk; in memory a row takes about 1 kB, a gap 4 bytes (6 where chunks hold several tokens)
ROWS_AT_ONCE = 5_000
GAPS_AT_ONCE = 250_000
MOST_SHOWN = 500  # characters of an error
REPLIES_AT_ONCE = 1_000  # tokenized together; an encoding takes about 100 bytes per token
POINT_IDS = ("measurement_id", "attempt_id")  # columns that are the same in all rows of a point


@dataclass(frozen=True, slots=True)
class UncountedReply:
    """A reply that came without token counts, to be counted after the run."""

    record: RequestRecord
    text: str


class RowCollector:
    """Collects rows. ``start_ns``: the point's start on this client's clock. To be closed with
    ``close``.
    """

    def __init__(self, assignment: Assignment, start_ns: int) -> None:
        self._assignment = assignment
        self._start_ns = start_ns
        self._records: list[RequestRecord] = []
        self._gaps: list[TokenGaps] = []
        self._gaps_held = 0
        self._unreported: deque[EndedRequest] | None = None
        if assignment.point.watched:
            self._unreported = deque()
        self._tokenizer = assignment.point.tokenizer if assignment.point.count_text else None
        # pickled UncountedReply, one after the other
        self._replies = nameless_file() if self._tokenizer else None
        self._replies_end = 0
        self._writer = RowWriter("requests", "token_events")
        secrets = [target.secrets for target in assignment.point.targets]
        self._shown = lru_cache(64)(
            lambda error, target: redact(error, secrets[target])[:MOST_SHOWN]
        )

    @property
    def full(self) -> bool:
        """Whether there is enough to flush."""
        return len(self._records) >= ROWS_AT_ONCE or self._gaps_held >= GAPS_AT_ONCE

    def add(self, request: InFlight) -> None:
        """Adds a request that was sent (or could not be) and whose response was read."""
        record = request.record
        if record.error is not None:
            record.error = self._shown(record.error, request.target)
        texts = request.parsed.texts
        is_uncounted = record.token_count_source == TokenCounts.CHUNKS and any(texts or ())
        if self._replies is None or not is_uncounted:
            self._add(record)
            return
        self._report(record)
        self._keep(UncountedReply(record, "".join(texts or ())))

    def _add(self, record: RequestRecord) -> None:
        self._report(record)
        gaps = record.gaps
        record.gaps = None  # they go to disk earlier than rows
        self._records.append(record)
        if gaps is not None:
            self._gaps.append(gaps)
            self._gaps_held += len(gaps.gaps_us)

    def _report(self, record: RequestRecord) -> None:
        if self._unreported is not None:
            self._unreported.append(EndedRequest(record, record.gaps))

    def _keep(self, reply: UncountedReply) -> None:
        assert self._replies is not None
        with disk_errors():
            self._replies.write(pickle.dumps(reply))
            self._replies_end = self._replies.tell()

    def unreported(self) -> tuple[EndedRequest, ...]:
        """What a watched point added since the last call. From any thread.

        Where text is counted after the run, these rows count chunks.
        """
        assert self._unreported is not None
        return tuple(self._unreported.popleft() for _ in range(len(self._unreported)))

    def add_unsent(
        self, planned: PlannedRequest, done_ns: int, error_class: ErrorClass, error: str
    ) -> None:
        """Adds a request that was never sent. ``done_ns``: since the start."""
        record = self._assignment.unsent_record(planned, done_ns)
        record.fail(error_class, error)
        record.error = self._shown(error, 0)
        self._records.append(record)

    def recount(self) -> None:
        """Counts the replies that came without token counts with the model's tokenizer, and adds
        their rows.
        """
        if self._replies is None:
            return
        assert self._tokenizer is not None
        encode = load_tokenizer(self._tokenizer).encode_batch_fast
        with open(path_of(self._replies), "rb") as replies:
            while replies.tell() < self._replies_end:
                batch: list[UncountedReply] = []
                while len(batch) < REPLIES_AT_ONCE and replies.tell() < self._replies_end:
                    batch.append(pickle.load(replies))  # noqa: S301  this process wrote it
                self._count(encode, batch)

    def _count(self, encode: Callable[..., Any], replies: Sequence[UncountedReply]) -> None:
        encodings = encode([reply.text for reply in replies], add_special_tokens=False)
        for reply, encoding in zip(replies, encodings, strict=True):
            reply.record.set_tokenizer_count(len(encoding.ids))
            self._add(reply.record)
        self.flush_full()

    def flush_full(self) -> None:
        """A whole ``flush``, if there is enough to flush."""
        deque(self.flush() if self.full else (), maxlen=0)

    def flush(self, everything: bool = False) -> Iterator[None]:
        """Writes what is here to disk, in steps. Raises ResultsError where there is no room.

        Rows wait until there are ROWS_AT_ONCE, even where their gaps are many: small parts cost
        readers room and time.
        """
        gaps = self._gaps
        self._gaps = []
        self._gaps_held = 0
        self._writer.write("token_events", _token_events(self._assignment.point, gaps))
        if not everything and len(self._records) < ROWS_AT_ONCE:
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
        deque(self.flush(everything=True), maxlen=0)
        return self._writer.finish()

    def close(self) -> None:
        self._writer.close()
        if self._replies is not None:
            self._replies.close()


def tables(point: LoadPoint, ended: Sequence[EndedRequest]) -> tuple[pa.Table, pa.Table]:
    """``requests`` and ``token_events`` of what a client reported while it ran."""
    columns = list(_columns(point, [request.record for request in ended]))
    requests = pa.Table.from_arrays(columns, schema=REQUESTS)
    gaps = [request.gaps for request in ended if request.gaps is not None]
    return requests, _token_events(point, gaps)


def _columns(point: LoadPoint, records: Sequence[RequestRecord]) -> Iterator[pa.Array]:
    """The columns of ``requests``, in the order of its schema."""
    for field in REQUESTS:
        if field.name in POINT_IDS:
            yield _repeated(getattr(point, field.name), len(records))
        else:
            values = list(map(attrgetter(field.name), records))
            yield pa.array(values, field.type)


def _token_events(point: LoadPoint, gaps: Sequence[TokenGaps]) -> pa.Table:
    columns = {
        "measurement_id": _repeated(point.measurement_id, len(gaps)),
        "attempt_id": _repeated(point.attempt_id, len(gaps)),
        "request_index": pa.array([request.request_index for request in gaps], pa.int32()),
        "gaps_us": _lists(
            [request.gaps_us for request in gaps], TOKEN_EVENTS.field("gaps_us").type
        ),
        "tokens_per_chunk": _lists(
            [request.tokens_per_chunk for request in gaps],
            TOKEN_EVENTS.field("tokens_per_chunk").type,
        ),
    }
    return pa.table(columns, schema=TOKEN_EVENTS)


def _repeated(text: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def _lists(parts: Sequence[array[int] | None], kind: pa.DataType) -> pa.Array:
    """A list column from one array per row; None makes a null."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else len(part) for part in parts], out=offsets[1:])
    raw = b"".join([part for part in parts if part is not None])
    values = pa.array(np.frombuffer(raw, kind.value_type.to_pandas_dtype()))
    mask = pa.array(np.array([part is None for part in parts], dtype=np.bool_))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)


def lost_requests(point: LoadPoint, index: int, count: int, why: str) -> RowFile:
    """The ``requests`` rows of client ``index`` of ``count``, which died: all have status ``lost``.

    A closed loop by time has no fixed number of requests: it gets one session per slot of the
    client.
    """
    mine = Assignment.of(point, index, count)
    with closing(RowCollector(mine, 0)) as rows:
        for planned in RequestQueue(mine.schedule, 0.0).rest(0):
            rows.add_unsent(planned, planned.due_ns, ErrorClass.LOST, why)
            rows.flush_full()
        return rows.parts()[0]
