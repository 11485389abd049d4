"""Rows of one client, one per scheduled request. Each is a tuple at first; some thousand at a time
become Arrow tables and go to disk (results/row_writer.py), so that memory is bounded however many there
are.

The rows of a client that died are made by another process from the schedule, which says what that
client had to do.
"""

from __future__ import annotations

import pickle
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.base.redaction import redact
from orchestrator.load.point import LoadPoint
from orchestrator.load.requests import Assignment, Request
from orchestrator.load.response import InFlight
from orchestrator.load.schedule import Entry, RequestQueue
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS
from orchestrator.results.temporary_files import disk_errors, nameless_file, path_of
from orchestrator.workloads.content import load_tokenizer

Gaps = tuple[int, "array[int]", "array[int] | None"]  # request_index, gaps_us, tokens_per_chunk
Ended = tuple[tuple[Any, ...], Gaps | None]  # a row of requests without its ids, and its gaps

# to disk; in memory a row takes about 1 kB, a gap 4 bytes (6 where chunks hold several tokens)
ROWS_AT_ONCE = 5_000
GAPS_AT_ONCE = 250_000
MOST_SHOWN = 500  # characters of an error
REPLIES_AT_ONCE = 1_000  # tokenized together; an encoding takes about 100 bytes per token


class Rows:
    """Collects rows. ``start_ns``: the point's start on this client's clock. To be closed with
    ``close``.
    """

    def __init__(self, assignment: Assignment, start_ns: int) -> None:
        self._assignment = assignment
        self._start_ns = start_ns
        self._rows: list[tuple[Any, ...]] = []
        self._gaps: list[Gaps] = []
        self._gaps_held = 0
        self._untold: deque[Ended] | None = deque() if assignment.point.watched else None
        self._tokenizer = assignment.point.tokenizer if assignment.point.count_text else None
        # pickled requests whose reply had no counts
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
        return len(self._rows) >= ROWS_AT_ONCE or self._gaps_held >= GAPS_AT_ONCE

    def add(self, flight: InFlight) -> None:
        """Adds a request that was sent (or could not be) and whose response was read."""
        response = flight.response
        if self._untold is not None:
            gaps = response.gaps_us
            told = None if gaps is None else (flight.entry.index, gaps, response.tokens_per_chunk)
            self._untold.append((self._row(flight), told))
        if (
            self._replies is not None
            and response.source == "chunks"
            and any(response.parsed.texts or ())
        ):
            self._keep(
                replace(flight, request=replace(flight.request, wire_bytes=b"", prompt=None))
            )
            return
        self._rows.append(self._row(flight))
        if response.gaps_us is not None:  # there was content
            self._gaps.append((flight.entry.index, response.gaps_us, response.tokens_per_chunk))
            self._gaps_held += len(response.gaps_us)

    def _keep(self, light: InFlight) -> None:
        assert self._replies is not None
        with disk_errors():
            self._replies.write(pickle.dumps(light))
            self._replies_end = self._replies.tell()

    def untold(self) -> tuple[Ended, ...]:
        """What a watched point added since the last call. From any thread.

        Where text is counted after the run, these rows count chunks.
        """
        assert self._untold is not None
        return tuple(self._untold.popleft() for _ in range(len(self._untold)))

    def _row(self, flight: InFlight) -> tuple[Any, ...]:
        response, request = flight.response, flight.request
        return (
            *self._key(flight.entry),
            self._since(flight.sent_ns),
            self._since(flight.first_byte_ns),
            self._since(response.first_token_ns),
            self._since(response.first_answer_ns),
            self._since(response.last_token_ns),
            flight.ended_ns - self._start_ns,
            request.prompt_tokens,
            response.parsed.input_tokens,
            request.output_tokens,
            response.output_tokens,
            response.hidden_tokens,
            response.first_chunk_tokens,
            response.counted,
            response.source,
            response.parsed.cached_tokens,
            response.chunks,
            response.coalesced_chunks,
            response.itl_kind,
            response.parsed.finish_reason,
            response.status,
            response.error_class,
            response.error and self._shown(response.error, request.target),
            response.http_status,
        )

    def add_unsent(self, entry: Entry, done_ns: int, error_class: ErrorClass, error: str) -> None:
        """Adds a request that was never sent. ``done_ns``: since the start."""
        kind, turn = self._assignment.kind, (entry.session, entry.turn)
        asked = Request(0, b"", "", kind.input_tokens(*turn), kind.output_tokens(*turn))
        flight = InFlight(entry, asked, ended_ns=self._start_ns + done_ns)
        flight.response.fail(error_class, error)
        self._rows.append(self._row(flight))

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
                some: list[InFlight] = []
                while len(some) < REPLIES_AT_ONCE and replies.tell() < self._replies_end:
                    some.append(pickle.load(replies))  # noqa: S301  this process wrote it
                self._count(encode, some)

    def _count(self, encode: Callable[..., Any], some: Sequence[InFlight]) -> None:
        texts = ["".join(flight.response.parsed.texts or ()) for flight in some]
        for flight, code in zip(some, encode(texts, add_special_tokens=False), strict=True):
            flight.response.recount(len(code.ids))
            self.add(flight)
        self.flush_full()

    def flush_full(self) -> None:
        """A whole ``flush``, if there is enough to flush."""
        deque(self.flush() if self.full else (), maxlen=0)

    def flush(self, everything: bool = False) -> Iterator[None]:
        """Writes what is here to disk, in steps. Raises ResultsError where there is no room.

        Rows wait until there are ROWS_AT_ONCE, even where their gaps are many: small parts cost
        readers room and time.
        """
        gaps, self._gaps, self._gaps_held = self._gaps, [], 0
        self._writer.write("token_events", _token_events(self._assignment.point, gaps))
        if not everything and len(self._rows) < ROWS_AT_ONCE:
            return
        rows, self._rows = self._rows, []
        columns = _ids(self._assignment.point, len(rows))
        for column in _columns(rows):
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

    def _key(self, entry: Entry) -> tuple[Any, ...]:
        mine = self._assignment
        session, turn = (entry.session, entry.turn) if mine.kind.sessions else (None, None)
        replica = mine.point.targets[mine.target(entry.session)].replica
        return (
            entry.index,
            mine.client,
            replica,
            mine.schedule.phase(entry.due_ns),
            session,
            turn,
            entry.due_ns,
        )

    def _since(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self._start_ns


def tables(point: LoadPoint, ended: Sequence[Ended]) -> tuple[pa.Table, pa.Table]:
    """``requests`` and ``token_events`` of what a client reported while it ran."""
    columns = [*_ids(point, len(ended)), *_columns([row for row, _ in ended])]
    requests = pa.Table.from_arrays(columns, schema=REQUESTS)
    return requests, _token_events(point, [gaps for _, gaps in ended if gaps is not None])


def _token_events(point: LoadPoint, gaps: Sequence[Gaps]) -> pa.Table:
    index = pa.array([request_index for request_index, _, _ in gaps], pa.int32())
    gaps_us = _lists([one for _, one, _ in gaps], TOKEN_EVENTS.field("gaps_us").type)
    tokens = _lists([one for _, _, one in gaps], TOKEN_EVENTS.field("tokens_per_chunk").type)
    return pa.Table.from_arrays(
        [*_ids(point, len(gaps)), index, gaps_us, tokens], schema=TOKEN_EVENTS
    )


def _ids(point: LoadPoint, rows: int) -> list[pa.Array]:
    return [
        pa.repeat(pa.scalar(value, pa.string()), rows)
        for value in (point.measurement_id, point.attempt_id)
    ]


def _columns(rows: Sequence[tuple[Any, ...]]) -> Iterator[pa.Array]:
    """The columns of ``requests`` after its ids."""
    for at, field in enumerate(list(REQUESTS)[2:]):
        yield pa.array([row[at] for row in rows], field.type)


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
    with closing(Rows(mine, 0)) as rows:
        for entry in RequestQueue(mine.schedule, 0.0).rest(0):
            rows.add_unsent(entry, entry.due_ns, ErrorClass.LOST, why)
            rows.flush_full()
        return rows.parts()[0]
