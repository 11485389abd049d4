"""Makes rows of ``requests`` for simulated requests, in the order of their index.

The rows assume that an engine reports how many tokens an answer has, and that each token comes by
itself, or with the others of a step that accepts drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.load.point import LoadPoint
from orchestrator.load.request_record import RequestRecord
from orchestrator.results.outcomes import ErrorClass, RequestStatus, TokenCounts
from orchestrator.results.schemas import REQUESTS
from orchestrator.simulation.requests import RequestEnd, VirtualRequest
from orchestrator.workloads.segments import has_slices

_ERRORS = {
    RequestEnd.REFUSED: ErrorClass.HTTP_4XX,
    RequestEnd.QUEUE_FULL: ErrorClass.HTTP_5XX,
    RequestEnd.TIMEOUT: ErrorClass.TIMEOUT,
    RequestEnd.NOT_DRAINED: ErrorClass.TIMEOUT,
    RequestEnd.NEVER_SENT: ErrorClass.TIMEOUT,
    RequestEnd.ABORTED: ErrorClass.ABORTED,
}
_HTTP_STATUS = {RequestEnd.OK: 200, RequestEnd.REFUSED: 400, RequestEnd.QUEUE_FULL: 503}
FINISH_REASON = "length"


@dataclass(frozen=True, slots=True)
class RequestOutcomes:
    """What became of the requests of a point; every array has one entry for each request.

    Times are seconds since the point's start; NaN if a request did not get that far. ``ends``: values of
    RequestEnd. ``refusals``: position in the arrays -> what the engine said. ``turns``: None if
    requests are not turns of conversations. ``parts``: of a mix; None for each request of another
    workload, or for all of them at once.
    """

    indices: Ints
    replicas: Ints
    sessions: Ints
    turns: Ints | None
    due_ns: Ints
    sent_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    done_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    expected_cached_tokens: Ints
    ends: Ints
    refusals: dict[int, str]
    parts: Sequence[str | None] | None = None
    chunks: Ints | None = None  # None: each token came by itself

    @classmethod
    def of(cls, requests: Sequence[VirtualRequest], are_conversations: bool) -> RequestOutcomes:
        """The outcomes of these requests, sorted by index."""
        ordered = sorted(requests, key=lambda request: request.planned.index)
        refusals = {
            place: request.refusal for place, request in enumerate(ordered) if request.refusal
        }
        turns = [request.planned.turn for request in ordered]
        has_chunks = any(request.chunks is not None for request in ordered)
        chunks = [request.chunks or 0 for request in ordered]
        return cls(
            indices=_ints([request.planned.index for request in ordered]),
            replicas=_ints([request.replica for request in ordered]),
            sessions=_ints([request.planned.session for request in ordered]),
            turns=_ints(turns) if are_conversations else None,
            due_ns=_ints([request.planned.due_ns for request in ordered]),
            sent_s=np.array([request.sent_s for request in ordered], np.float64),
            first_token_s=np.array([request.first_token_s for request in ordered], np.float64),
            last_token_s=np.array([request.last_token_s for request in ordered], np.float64),
            done_s=np.array([request.done_s for request in ordered], np.float64),
            input_tokens=_ints([request.input_tokens for request in ordered]),
            output_tokens=_ints([request.output_tokens for request in ordered]),
            cached_tokens=_ints([request.cached_tokens for request in ordered]),
            expected_cached_tokens=_ints([request.expected_cached_tokens for request in ordered]),
            ends=_ints([int(request.end) for request in ordered]),
            refusals=refusals,
            parts=[request.part for request in ordered],
            chunks=_ints(chunks) if has_chunks else None,
        )

    def table(self, point: LoadPoint, reports_cached: bool, has_gaps: bool = False) -> pa.Table:
        """Rows of ``requests``.

        ``reports_cached``: the engine has a prefix cache, and says how many tokens it found there.
        ``has_gaps``: gaps between tokens are stored beside the rows.
        """
        rows = len(self.indices)
        is_ok = self.ends == RequestEnd.OK
        answers = pa.array(self.output_tokens, pa.int32(), mask=~is_ok)
        chunks = self.output_tokens if self.chunks is None else self.chunks
        first_ns = _nanoseconds(self.first_token_s)
        warmup_ns = round((point.warmup_s or 0.0) * 1e9)
        columns: dict[str, pa.Array] = {
            "measurement_id": _repeated(point.measurement_id, rows),
            "attempt_id": _repeated(point.attempt_id, rows),
            "request_index": pa.array(self.indices, pa.int32()),
            "client": pa.array(np.zeros(rows, np.int16)),
            "replica": pa.array(self.replicas, pa.int16()),
            "phase": _either("warmup", "measure", self.due_ns < warmup_ns),
            "scheduled_ns": pa.array(self.due_ns),
            "sent_ns": _nanoseconds(self.sent_s),
            "first_byte_ns": first_ns,
            "first_token_ns": first_ns,
            "last_token_ns": _nanoseconds(self.last_token_s),
            "done_ns": _nanoseconds(self.done_s),
            "input_tokens_asked": pa.array(self.input_tokens, pa.int32()),
            "input_tokens": pa.array(self.input_tokens, pa.int32(), mask=~is_ok),
            "output_tokens_asked": pa.array(self.output_tokens, pa.int32()),
            "output_tokens": answers,
            "output_tokens_counted": answers,
            "token_count_source": _repeated(TokenCounts.USAGE, rows, ~is_ok),
            "chunks": pa.array(np.where(is_ok, chunks, 0), pa.int32()),
            "coalesced_chunks": pa.array(np.zeros(rows, np.int32)),
            "finish_reason": _repeated(FINISH_REASON, rows, ~is_ok),
        }
        if reports_cached:
            columns["cached_tokens"] = pa.array(self.cached_tokens, pa.int32(), mask=~is_ok)
        if reports_cached and not has_slices(point.workload):
            expected = self.expected_cached_tokens
            columns["expected_cached_tokens"] = pa.array(expected, pa.int32(), mask=~is_ok)
        if has_gaps:
            itl_kind = "token" if self.chunks is None else "chunk"
            columns["itl_kind"] = _repeated(itl_kind, rows, ~is_ok)
        if self.turns is not None:
            columns["session"] = pa.array(self.sessions, pa.int32())
            columns["turn"] = pa.array(self.turns, pa.int16())
        if self.parts is not None:
            columns["part"] = pa.array(self.parts, pa.string())
        columns |= self._ends(point, is_ok)
        arrays = []
        for field in REQUESTS:
            column = columns.get(field.name)
            arrays.append(pa.nulls(rows, field.type) if column is None else column)
        return pa.Table.from_arrays(arrays, schema=REQUESTS)

    def _ends(self, point: LoadPoint, is_ok: Bools) -> dict[str, pa.Array]:
        """The columns that say how requests ended."""
        if is_ok.all():
            return {
                "status": _repeated(RequestStatus.OK, len(is_ok)),
                "http_status": pa.array(np.full(len(is_ok), 200, np.int16)),
            }
        statuses: list[str] = []
        classes: list[str | None] = []
        errors: list[str | None] = []
        codes: list[int | None] = []
        for place, value in enumerate(self.ends.tolist()):
            end = RequestEnd(value)
            error_class = _ERRORS.get(end)
            statuses.append(RequestStatus.OK if error_class is None else error_class.status)
            classes.append(error_class)
            errors.append(self.refusals.get(place) or _words(end, point))
            codes.append(_HTTP_STATUS.get(end))
        return {
            "status": pa.array(statuses, pa.string()),
            "error_class": pa.array(classes, pa.string()),
            "error": pa.array(errors, pa.string()),
            "http_status": pa.array(codes, pa.int16()),
        }


def record_of(request: VirtualRequest, point: LoadPoint) -> RequestRecord:
    """A request that has ended, as a client reports it while a probe runs."""
    planned = request.planned
    is_ok = request.end is RequestEnd.OK
    warmup_ns = round((point.warmup_s or 0.0) * 1e9)
    chunks = request.output_tokens if request.chunks is None else request.chunks
    record = RequestRecord(
        request_index=planned.index,
        client=0,
        replica=request.replica,
        phase="warmup" if planned.due_ns < warmup_ns else "measure",
        session=None,
        turn=None,
        part=request.part,
        scheduled_ns=planned.due_ns,
        sent_ns=_whole_ns(request.sent_s),
        first_token_ns=_whole_ns(request.first_token_s),
        last_token_ns=_whole_ns(request.last_token_s),
        done_ns=_whole_ns(request.done_s) or 0,
        input_tokens_asked=request.input_tokens,
        input_tokens=request.input_tokens,
        output_tokens_asked=request.output_tokens,
        output_tokens=request.output_tokens if is_ok else None,
        token_count_source=TokenCounts.USAGE if is_ok else None,
        chunks=chunks if is_ok else 0,
    )
    if request.gaps is not None:
        record.itl_kind = "token" if request.chunks is None else "chunk"
    error_class = _ERRORS.get(request.end)
    if error_class is not None:
        record.fail(error_class, request.refusal or _words(request.end, point) or "")
    return record


def _words(end: RequestEnd, point: LoadPoint) -> str | None:
    """Why a request failed, in the words of a client; None for one that is ok."""
    match end:
        case RequestEnd.TIMEOUT:
            return f"no end within {point.request_timeout_s:g} s"
        case RequestEnd.NOT_DRAINED:
            return f"still open {point.drain_s:g} s after the last was due (time to drain)"
        case RequestEnd.NEVER_SENT:
            return "never sent: max_in_flight requests were in flight until the end"
        case RequestEnd.ABORTED:
            return "the run was aborted"
    return None


def _ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def _whole_ns(seconds: float) -> int | None:
    return None if np.isnan(seconds) else round(seconds * 1e9)


def _nanoseconds(seconds: Floats) -> pa.Array:
    """Times in whole nanoseconds; null where the seconds are NaN."""
    is_missing = np.isnan(seconds)
    whole = np.round(np.where(is_missing, 0.0, seconds) * 1e9).astype(np.int64)
    return pa.array(whole, mask=is_missing if is_missing.any() else None)


def _repeated(text: str, rows: int, is_null: Bools | None = None) -> pa.Array:
    """The same text in all rows except those that are null."""
    if is_null is None or not is_null.any():
        return pa.repeat(pa.scalar(str(text), pa.string()), rows)
    return pa.array(np.full(rows, str(text), dtype=object), pa.string(), mask=is_null)


def _either(text: str, other: str, chosen: Bools) -> pa.Array:
    """One text where it is chosen, and the other elsewhere."""
    if not chosen.any():
        return _repeated(other, len(chosen))
    return pa.array(np.where(chosen, text, other).astype(object), pa.string())
