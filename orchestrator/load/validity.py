"""Was a point honestly measured? The verdict and its evidence.

``invalid``: what was measured is not what was asked (lengths, lost clients, nothing answered).
``client_bound``: the client was too slow, the figures are its own; repeat with more clients.
``engine_bound_backlog``: the engine fell behind for the whole window; latencies depend on how long one looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.point import ClientStats, LoadPoint
from orchestrator.results.outcomes import ErrorClass, Status

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SEND_LAG_MS = 10.0  # an order under the tightest TTFT limits in use
BUSY_CPU_SHARE = 0.7
MAX_COALESCED_SHARE = 0.2  # of content events, when the client is busy as well
MIN_ACHIEVED = 0.98
MAX_LENGTH_ERROR = 0.01
MIN_GROWTH = 0.05  # of the arrivals of a quarter window, in each quarter
MAX_TEMPLATE_TOKENS = 64  # a chat template or a BOS token, for each message of a prompt

# What spoils a point when its evidence is over the limit: figure, limit, sentence.
Limits = tuple[tuple[str, float, str], ...]
INVALID: Limits = (
    ("lost_requests", 0, "{0:.0f} requests were lost with their client process"),
    (
        "count_mismatch_share",
        0.01,
        "in {0:.1%} of requests the engine's token count is not the number of tokens streamed",
    ),
)
CLIENT_BOUND: Limits = (
    ("client_errors", 0, "{0:.0f} requests found no socket on the client's machine"),
    ("send_lag_p99_ms", MAX_SEND_LAG_MS, "p99 of sent - due is {0:.1f} ms (limit {1:g})"),
    # as much may be added to any time stamp
    ("loop_lag_p99_ms", 10.0, "p99 of the client's loop lag is {0:.1f} ms (limit {1:g})"),
    # above it queues build up in the client
    ("client_cpu_share", 0.9, "a client used {0:.0%} of its core (limit {1:.0%})"),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``validity``: valid | client_bound | engine_bound_backlog | invalid. ``reasons``: plain sentences."""

    validity: str
    reasons: list[str]
    evidence: dict[str, float]


def judge(requests: pa.Table, stats: Sequence[ClientStats], point: LoadPoint) -> Verdict:
    """The verdict on one point from its rows (all clients') and what the clients know of themselves."""
    rows = _Rows(requests, point)
    evidence = _evidence(rows, stats)
    notes: list[str] = []  # what a reader must know although it spoils nothing
    found = {
        "invalid": _invalid(rows, evidence),
        "client_bound": _client_bound(evidence),
        "engine_bound_backlog": _backlog(rows, evidence, point),
    }
    if point.max_in_flight is not None and evidence["capped_share"] > 0:
        share = evidence["capped_share"]
        notes.append(f"{share:.1%} of requests waited for a place: max_in_flight is {point.max_in_flight}, as asked")
    if evidence["input_length_error"] > MAX_LENGTH_ERROR:
        error = evidence["input_length_error"]
        said = f"prompts were off by {error:.1%} from the length asked for, by the engine's count"
        if point.dialect.prompt_token_ids:
            found["invalid"].append(said)
        else:
            notes.append(said + "; they were sent as text")
    validity = next((name for name, reasons in found.items() if reasons), "valid")
    return Verdict(validity, [*chain(*found.values()), *notes], evidence)


class _Rows:
    """Columns of the measured phase as arrays; null becomes NaN."""

    def __init__(self, table: pa.Table, point: LoadPoint) -> None:
        measured = np.array(table.column("phase").to_pylist(), dtype=object) == "measure"
        self._table = table
        self._measured = measured
        self.scheduled_s = self.column("scheduled_ns") / 1e9
        self.sent_s = self.column("sent_ns") / 1e9
        self.done_s = self.column("done_ns") / 1e9
        self.status = np.array(table.column("status").to_pylist(), dtype=object)[measured]
        self.error_class = np.array(table.column("error_class").to_pylist(), dtype=object)[measured]
        # the time in which requests are due, which is not the window of throughput: that has the answers too
        self.due_from_s = point.warmup_s
        last = float(self.scheduled_s.max()) if len(self) else point.warmup_s
        self.due_until_s = last if point.duration_s is None else point.warmup_s + point.duration_s

    def __len__(self) -> int:
        return int(np.count_nonzero(self._measured))

    def column(self, name: str) -> Floats:
        values = self._table.column(name).to_numpy(zero_copy_only=False)
        return np.array(values[self._measured], dtype=np.float64)


def _evidence(rows: _Rows, stats: Sequence[ClientStats]) -> dict[str, float]:
    """The figures behind the verdict; of several clients the worst."""
    due_s = max(rows.due_until_s - rows.due_from_s, 1e-9)
    sent = int(np.count_nonzero(rows.sent_s <= rows.due_until_s + MAX_SEND_LAG_MS / 1e3))
    chunks, coalesced = rows.column("chunks").sum(), rows.column("coalesced_chunks").sum()
    lag_ms = (rows.sent_s - rows.scheduled_s) * 1e3
    own_lag_ms = max((s.send_lag_p99_ms for s in stats), default=0.0)
    return {
        "offered_rate": len(rows) / due_s,
        "achieved_rate": sent / due_s,
        "achieved_over_offered": sent / len(rows) if len(rows) else 0.0,
        "ok_share": float(np.mean(rows.status == Status.OK)) if len(rows) else 0.0,
        "lost_requests": float(np.count_nonzero(rows.status == Status.LOST)),
        "client_errors": float(np.count_nonzero(rows.error_class == ErrorClass.CLIENT)),
        "sent_minus_scheduled_p99_ms": float(np.nanquantile(lag_ms, 0.99)) if sent else 0.0,
        "send_lag_p99_ms": own_lag_ms,
        "capped_share": float(np.mean(~(lag_ms <= own_lag_ms + MAX_SEND_LAG_MS))) if len(rows) else 0.0,
        "loop_lag_p99_ms": max((s.loop_lag_p99_ms for s in stats), default=0.0),
        "loop_lag_max_ms": max((s.loop_lag_max_ms for s in stats), default=0.0),
        "client_cpu_share": max((s.cpu_s / s.wall_s for s in stats if s.wall_s > 0), default=0.0),
        "sockets_opened": float(sum(s.sockets_opened for s in stats)),
        "sockets_max": float(sum(s.sockets_max for s in stats)),
        "in_flight_max": float(sum(s.in_flight_max for s in stats)),
        "coalesced_share": float(coalesced / chunks) if chunks else 0.0,
        "start_error_max_ms": max((s.start_error_ms for s in stats), default=0.0),
        "count_mismatch_share": _count_mismatch(rows),
        "input_length_error": _input_error(rows),
    }


def _count_mismatch(rows: _Rows) -> float:
    """Share of ok requests whose usage and whose own exact count of the stream disagree."""
    counted, said = rows.column("output_tokens_counted"), rows.column("output_tokens")
    exact = np.isin(rows._table.column("token_count_source").to_pylist(), ["token_ids", "continuous_usage", "native"])
    both = exact[rows._measured] & (rows.status == Status.OK) & ~np.isnan(counted) & ~np.isnan(said)
    return float(np.mean(counted[both] != said[both])) if both.any() else 0.0


def _input_error(rows: _Rows) -> float:
    """Relative error of prompt lengths, after what a chat template or a BOS token adds to every prompt of its turn."""
    asked, seen = rows.column("input_tokens_asked"), rows.column("input_tokens")
    turns = np.nan_to_num(rows.column("turn"))
    known = ~np.isnan(seen) & (asked > 0)
    if not known.any():
        return 0.0
    off = np.full(len(seen), np.nan)
    for turn in np.unique(turns[known]):
        here = known & (turns == turn)
        added = np.clip(np.min(seen[here] - asked[here]), 0, MAX_TEMPLATE_TOKENS * (turn + 1))
        off[here] = np.abs(seen[here] - added - asked[here])
    return float(np.nanmean(off) / asked[known].mean())


def _over(limits: Limits, evidence: dict[str, float]) -> list[str]:
    return [said.format(evidence[name], limit) for name, limit, said in limits if evidence[name] > limit]


def _invalid(rows: _Rows, evidence: dict[str, float]) -> list[str]:
    if not len(rows):
        return ["no request was scheduled in the measured window"]
    failed = ["not one request succeeded"] if evidence["ok_share"] == 0.0 else []
    return _over(INVALID, evidence) + failed


def _client_bound(evidence: dict[str, float]) -> list[str]:
    shared = evidence["coalesced_share"]
    if evidence["client_cpu_share"] <= BUSY_CPU_SHARE or shared <= MAX_COALESCED_SHARE:
        return _over(CLIENT_BOUND, evidence)
    said = f"{shared:.0%} of events shared a read with another while the client was busy"
    return [*_over(CLIENT_BOUND, evidence), said]


def _backlog(rows: _Rows, evidence: dict[str, float], point: LoadPoint) -> list[str]:
    """Open loop: do requests come in faster than they are answered, all through the window?"""
    if point.level.control != "request_rate" or len(rows) < 8:
        return []
    reasons = []
    if evidence["achieved_over_offered"] < MIN_ACHIEVED and point.max_in_flight is None:
        reasons.append(f"only {evidence['achieved_over_offered']:.1%} of requests could be sent in their time")
    edges = np.linspace(rows.due_from_s, rows.due_until_s, 33)
    open_now = np.searchsorted(np.sort(rows.scheduled_s), edges) - np.searchsorted(np.sort(rows.done_s), edges)
    quarters = open_now[1:].reshape(4, 8).mean(axis=1)
    growth = np.diff(quarters)[1:]  # the first quarter also fills the pipe
    arrivals = len(rows) / 4
    evidence["open_requests_first_quarter"] = float(quarters[0])
    evidence["open_requests_last_quarter"] = float(quarters[3])
    if bool((growth > MIN_GROWTH * arrivals).all()) and float(growth.sum()) > 2 * np.sqrt(max(quarters[1], 1.0)):
        reasons.append(
            f"open requests grew from {quarters[1]:.0f} to {quarters[3]:.0f} within the window: "
            "the engine does not keep up with this rate"
        )
    return reasons
