"""Rows of one client: collected as tuples and flat arrays, made into Arrow tables at the end.

A finished token costs 4 bytes here (its gap), 6 where chunks hold several tokens; a request about 1 kB.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator.load.digest import Digest, spread
from orchestrator.load.exchange import Exchange
from orchestrator.load.outcome import Outcome
from orchestrator.load.point import LoadPoint
from orchestrator.load.schedule import Entry
from orchestrator.load.tokens import load_tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

AT_ONCE = 1_000  # replies tokenized together: encodings take about 100 bytes a token until they are counted


class Rows:
    """One row per scheduled request. ``start_ns``: the point's start on this client's clock."""

    def __init__(self, point: LoadPoint, client: int, start_ns: int, sessions: bool) -> None:
        self._point = point
        self._client = client
        self._start_ns = start_ns
        self._sessions = sessions
        self._rows: list[tuple[Any, ...]] = []
        self._events: list[tuple[int, array[int], array[int] | None]] = []
        self._texts: dict[int, tuple[str, int]] = {}  # request_index: reply of uncounted tokens, its chunks

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, exchange: Exchange, digest: Digest, phase: str) -> None:
        """The row of a request that was sent, or tried to be."""
        parsed, outcome = digest.parsed, digest.outcome
        self._rows.append(
            (
                *self._key(exchange.entry, exchange.target, phase),
                self._since(exchange.sent_ns),
                self._since(digest.first_byte_ns),
                self._since(digest.first_token_ns),
                self._since(digest.last_token_ns),
                exchange.ended_ns - self._start_ns,
                exchange.prompt_tokens,
                parsed.input_tokens,
                exchange.output_tokens,
                digest.output_tokens,
                digest.counted,
                digest.source,
                parsed.cached_tokens,
                digest.chunks,
                digest.coalesced_chunks,
                digest.itl_kind,
                parsed.finish_reason,
                outcome.status,
                outcome.error_class,
                outcome.error,
                digest.http_status,
            )
        )
        if self._point.count_text and digest.source == "chunks":
            self._texts[exchange.entry.index] = "".join(parsed.texts or ()), digest.chunks
        if digest.gaps_us is not None:
            self._events.append((exchange.entry.index, digest.gaps_us, digest.tokens_per_chunk))

    def add_unsent(
        self, entry: Entry, target: int, phase: str, done_ns: int, lengths: tuple[int, int], outcome: Outcome
    ) -> None:
        """The row of a request that was never sent. ``done_ns`` counts from the start, ``lengths`` are those asked."""
        times = (None, None, None, None, done_ns)
        counts = (lengths[0], None, lengths[1], None, None, None, None, 0, 0, None, None)
        end = (outcome.status, outcome.error_class, outcome.error, None)
        self._rows.append((*self._key(entry, target, phase), *times, *counts, *end))

    def recount(self, tokenizer: str) -> bool:
        """Count the replies that came without counts with the model's tokenizer. False: there are none."""
        found = {index: (text, chunks) for index, (text, chunks) in self._texts.items() if text}
        if not found:
            return False
        encode = load_tokenizer(tokenizer).encode_batch_fast
        counts: dict[int, int] = {}
        indices = list(found)
        for begin in range(0, len(indices), AT_ONCE):
            some = indices[begin : begin + AT_ONCE]
            codes = encode([found[index][0] for index in some], add_special_tokens=False)
            counts |= {index: len(code.ids) for index, code in zip(some, codes, strict=True)}
        per_chunk = {index: spread(count, found[index][1]) for index, count in counts.items()}
        self._rows = [self._recounted(row, counts, per_chunk) if row[0] in counts else row for row in self._rows]
        self._events = [(index, gaps, per_chunk.get(index, own)) for index, gaps, own in self._events]
        return True

    @staticmethod
    def _recounted(
        row: tuple[Any, ...], counts: dict[int, int], per_chunk: dict[int, array[int] | None]
    ) -> tuple[Any, ...]:
        kind = "token" if per_chunk[row[0]] is None else "chunk"
        changed: dict[str, Any] = {"output_tokens": counts[row[0]], "output_tokens_counted": counts[row[0]]}
        changed |= {"token_count_source": "tokenizer", "itl_kind": kind}
        from orchestrator.results.schemas import REQUESTS

        named = dict(zip(REQUESTS.names[2:], row, strict=True))
        return tuple((named | changed).values())

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """``requests`` and ``token_events`` in the schemas of results/schemas.py, ordered by request_index."""
        return self._requests(), self._token_events()

    def _key(self, entry: Entry, target: int, phase: str) -> tuple[Any, ...]:
        session, turn = (entry.session, entry.turn) if self._sessions else (None, None)
        replica = self._point.targets[target].replica
        return (entry.index, self._client, replica, phase, session, turn, entry.due_ns)

    def _since(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self._start_ns

    def _requests(self) -> pa.Table:
        import pyarrow as pa

        from orchestrator.results.schemas import REQUESTS

        self._rows.sort(key=lambda row: int(row[0]))
        values: list[Any] = list(zip(*self._rows, strict=True)) or [()] * (len(REQUESTS) - 2)
        fields = list(REQUESTS)
        arrays = [pa.array(column, field.type) for column, field in zip(values, fields[2:], strict=True)]
        return pa.Table.from_arrays([*self._ids(len(self._rows)), *arrays], schema=REQUESTS)

    def _token_events(self) -> pa.Table:
        import pyarrow as pa

        from orchestrator.results.schemas import TOKEN_EVENTS

        self._events.sort(key=lambda event: event[0])
        index = pa.array([event[0] for event in self._events], pa.int32())
        gaps = _lists([event[1] for event in self._events], TOKEN_EVENTS.field("gaps_us").type)
        tokens = _lists([event[2] for event in self._events], TOKEN_EVENTS.field("tokens_per_chunk").type)
        return pa.Table.from_arrays([*self._ids(len(self._events)), index, gaps, tokens], schema=TOKEN_EVENTS)

    def _ids(self, rows: int) -> list[pa.Array]:
        import pyarrow as pa

        ids = (self._point.measurement_id, self._point.attempt_id)
        return [pa.repeat(pa.scalar(value, pa.string()), rows) for value in ids]


def _lists(parts: Sequence[array[int] | None], kind: pa.DataType) -> pa.Array:
    """A list column out of one array per row; None makes a null."""
    import pyarrow as pa

    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else len(part) for part in parts], out=offsets[1:])
    raw = b"".join([part for part in parts if part is not None])
    values = pa.array(np.frombuffer(raw, kind.value_type.to_pandas_dtype()))
    mask = pa.array(np.array([part is None for part in parts], dtype=np.bool_))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=mask)
