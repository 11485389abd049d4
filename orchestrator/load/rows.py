"""Rows of one client, one per scheduled request: collected as tuples and flat arrays, made into Arrow tables.

A finished token costs 4 bytes here (its gap), 6 where chunks hold several tokens; a request about 1 kB. The rows of a
client that died are made elsewhere, from the schedule: it says what that client had to do.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.load.point import LoadPoint
from orchestrator.load.requests import Assignment, Request
from orchestrator.load.response import InFlight
from orchestrator.load.schedule import Entry, RequestQueue
from orchestrator.load.workloads.content import load_tokenizer
from orchestrator.results.outcomes import ErrorClass

if TYPE_CHECKING:
    import pyarrow as pa

Gaps = tuple[int, "array[int]", "array[int] | None"]  # request_index, gaps_us, tokens_per_chunk

AT_ONCE = 1_000  # replies tokenized together: encodings take about 100 bytes a token until they are counted


class Rows:
    """``start_ns``: the point's start on this client's clock."""

    def __init__(self, assignment: Assignment, start_ns: int) -> None:
        self._assignment = assignment
        self._start_ns = start_ns
        self._rows: list[tuple[Any, ...]] = []
        self._gaps: list[Gaps] = []
        self._uncounted: list[InFlight] = []  # replies that came without counts and shall be counted
        self._count_text = assignment.point.count_text

    def add(self, flight: InFlight) -> None:
        """The row of a request that was sent, or tried to be, and whose response was read."""
        if self._count_text and flight.response.source == "chunks" and any(flight.response.parsed.texts or ()):
            self._uncounted.append(flight)
            return
        self._rows.append(self._row(flight))
        self._gaps += _gaps_of(flight)

    def _row(self, flight: InFlight) -> tuple[Any, ...]:
        response, request = flight.response, flight.request
        return (
            *self._key(flight.entry),
            self._since(flight.sent_ns),
            self._since(flight.first_byte_ns),
            self._since(response.first_token_ns),
            self._since(response.last_token_ns),
            flight.ended_ns - self._start_ns,
            request.prompt_tokens,
            response.parsed.input_tokens,
            request.output_tokens,
            response.output_tokens,
            response.hidden_tokens,
            response.counted,
            response.source,
            response.parsed.cached_tokens,
            response.chunks,
            response.coalesced_chunks,
            response.itl_kind,
            response.parsed.finish_reason,
            response.status,
            response.error_class,
            response.error,
            response.http_status,
        )

    def add_unsent(self, entry: Entry, done_ns: int, error_class: ErrorClass, error: str) -> None:
        """The row of a request that was never sent. ``done_ns`` counts from the start."""
        kind, turn = self._assignment.kind, (entry.session, entry.turn)
        asked = Request(0, b"", "", kind.input_tokens(*turn), kind.output_tokens(*turn))
        flight = InFlight(entry, asked, ended_ns=self._start_ns + done_ns)
        flight.response.fail(error_class, error)
        self._rows.append(self._row(flight))

    def recount(self, tokenizer: str) -> bool:
        """Counts the replies that came without counts with the model's tokenizer. False: there are none."""
        if not self._uncounted:
            return False
        encode = load_tokenizer(tokenizer).encode_batch_fast
        for begin in range(0, len(self._uncounted), AT_ONCE):
            some = self._uncounted[begin : begin + AT_ONCE]
            texts = ["".join(flight.response.parsed.texts or ()) for flight in some]
            for flight, code in zip(some, encode(texts, add_special_tokens=False), strict=True):
                flight.response.recount(len(code.ids))
        return True

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """``requests`` and ``token_events`` in the schemas of results/schemas.py, ordered by request_index."""
        rows = sorted([*self._rows, *map(self._row, self._uncounted)], key=lambda row: int(row[0]))
        gaps = self._gaps + [gaps for flight in self._uncounted for gaps in _gaps_of(flight)]
        return self._requests(rows), self._token_events(sorted(gaps, key=lambda one: one[0]))

    def _key(self, entry: Entry) -> tuple[Any, ...]:
        mine = self._assignment
        session, turn = (entry.session, entry.turn) if mine.kind.sessions else (None, None)
        replica = mine.point.targets[mine.target(entry.session)].replica
        return (entry.index, mine.client, replica, mine.schedule.phase(entry.due_ns), session, turn, entry.due_ns)

    def _since(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self._start_ns

    def _requests(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        import pyarrow as pa

        from orchestrator.results.schemas import REQUESTS

        values: list[Any] = list(zip(*rows, strict=True)) or [()] * (len(REQUESTS) - 2)
        fields = list(REQUESTS)
        arrays = [pa.array(column, field.type) for column, field in zip(values, fields[2:], strict=True)]
        return pa.Table.from_arrays([*self._ids(len(rows)), *arrays], schema=REQUESTS)

    def _token_events(self, gaps: list[Gaps]) -> pa.Table:
        import pyarrow as pa

        from orchestrator.results.schemas import TOKEN_EVENTS

        index = pa.array([request_index for request_index, _, _ in gaps], pa.int32())
        gaps_us = _lists([one for _, one, _ in gaps], TOKEN_EVENTS.field("gaps_us").type)
        tokens = _lists([one for _, _, one in gaps], TOKEN_EVENTS.field("tokens_per_chunk").type)
        return pa.Table.from_arrays([*self._ids(len(gaps)), index, gaps_us, tokens], schema=TOKEN_EVENTS)

    def _ids(self, rows: int) -> list[pa.Array]:
        import pyarrow as pa

        ids = (self._assignment.point.measurement_id, self._assignment.point.attempt_id)
        return [pa.repeat(pa.scalar(value, pa.string()), rows) for value in ids]


def _gaps_of(flight: InFlight) -> list[Gaps]:
    """One, or none where there was no content."""
    response = flight.response
    return [] if response.gaps_us is None else [(flight.entry.index, response.gaps_us, response.tokens_per_chunk)]


def _lists(parts: Sequence[array[int] | None], kind: pa.DataType) -> pa.Array:
    """A list column out of one array per row; None makes a null."""
    import pyarrow as pa

    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else len(part) for part in parts], out=offsets[1:])
    raw = b"".join([part for part in parts if part is not None])
    values = pa.array(np.frombuffer(raw, kind.value_type.to_pandas_dtype()))
    mask = pa.array(np.array([part is None for part in parts], dtype=np.bool_))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)


def leave_pandas_out() -> None:
    """For processes of our own only: pyarrow imports pandas, where it is installed, with the first array it makes, and
    those 0.35 s of CPU would be counted as the client's."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    """An import hook that knows no pandas. (None in sys.modules would do for Python, but pyarrow's compiled imports
    take it for the module.)"""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is left out of this process")


def lost_requests(point: LoadPoint, index: int, count: int, why: str) -> pa.Table:
    """The ``requests`` rows of client ``index`` of ``count`` that died, all with status ``lost``.

    A closed loop by time has no fixed number of requests: then one session for each that the client kept in flight.
    """
    mine = Assignment.of(point, index, count)
    rows = Rows(mine, 0)
    for entry in RequestQueue(mine.schedule, 0.0).rest(0):
        rows.add_unsent(entry, entry.due_ns, ErrorClass.LOST, why)
    return rows.tables()[0]
