"""Sums up what engines report of themselves during an attempt (``engine_metrics``)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orchestrator.analysis.counters import CounterFell, TimeWindow, readings
from orchestrator.base.arrays import Floats, Ints
from orchestrator.results.records import EngineSide


def engine_side(samples: pa.Table, window: TimeWindow | None = None) -> EngineSide | None:
    """Figures of one attempt's ``engine_metrics``; None without samples.

    They are taken over all replicas, warm-up included; only the estimates of work per second are
    those of ``window``, and None without one. A gauge gives its highest reading, a counter its
    growth from the first reading to the last. Both are None where a replica does not report the
    metric (a part of the sum would be taken for the whole) or a counter fell (the engine was
    restarted); the mean of a gauge is that of the replicas which report it.

    Where replicas have roles, a request passes through two of them: prompts and prefixes are
    counted at prefill, output and TTFT at decode. TTFT at decode begins when the router passes the
    request on.
    """
    if not samples.num_rows:
        return None
    reported = _Readings(samples, _replicas(samples))
    return EngineSide(
        running_max=reported.highest("running"),
        waiting_max=reported.highest("waiting"),
        kv_usage_max=reported.highest("kv_usage"),
        preemptions=reported.growth("preemptions_total"),
        prompt_tokens=reported.growth("prompt_tokens_total", without_role="decode"),
        generation_tokens=reported.growth("generation_tokens_total", without_role="prefill"),
        queue_time_mean_ms=_ratio(
            reported.growth("queue_time_s_sum"), reported.growth("queue_time_count"), 1e3
        ),
        ttft_mean_ms=_ratio(
            reported.growth("ttft_s_sum", without_role="prefill"),
            reported.growth("ttft_count", without_role="prefill"),
            1e3,
        ),
        prefix_hit_share=_ratio(
            reported.growth("prefix_hit_tokens_total", without_role="decode"),
            reported.growth("prefix_query_tokens_total", without_role="decode"),
        ),
        spec_accepted_share=_accepted_share(reported),
        spec_accepted_length=_accepted_length(reported),
        estimated_flops_s=reported.rate(window, "estimated_flops_per_gpu_total"),
        estimated_bytes_s=reported.rate(
            window, "estimated_read_bytes_per_gpu_total", "estimated_write_bytes_per_gpu_total"
        ),
    )


def _accepted_share(reported: "_Readings") -> float | None:
    """The share of drafted tokens that were accepted: by counters, else the mean of what the engines
    said.
    """
    accepted = reported.growth("spec_accepted_tokens_total")
    share = _ratio(accepted, reported.growth("spec_draft_tokens_total"))
    return reported.mean("spec_accept_share") if share is None else share


def _accepted_length(reported: "_Readings") -> float | None:
    """Tokens of a step in which tokens were drafted: those that were accepted, and the one that the
    model adds. By counters, else the mean of what the engines said.
    """
    accepted = reported.growth("spec_accepted_tokens_total")
    accepted_of_step = _ratio(accepted, reported.growth("spec_drafts_total"))
    if accepted_of_step is None:
        return reported.mean("spec_accept_length")
    return 1 + accepted_of_step


@dataclass(frozen=True, slots=True)
class _Replica:
    """One replica. ``rows``: where its readings are, oldest first."""

    role: str | None
    rows: Ints


def _replicas(samples: pa.Table) -> list[_Replica]:
    replica_of_row: npt.NDArray[np.int64] = samples["replica"].to_numpy()
    roles = samples["role"].to_pylist()
    in_order = np.argsort(samples["unix_ns"].to_numpy(), kind="stable")
    replicas = []
    for replica in np.unique(replica_of_row):
        rows = in_order[replica_of_row[in_order] == replica]
        replicas.append(_Replica(roles[rows[0]], rows))
    return replicas


@dataclass(frozen=True, slots=True)
class _Readings:
    samples: pa.Table
    replicas: Sequence[_Replica]

    def highest(self, metric: str) -> float | None:
        """The highest reading of a gauge on any replica."""
        highest = []
        for values in self._of_each_replica(metric):
            highest.append(values.max() if values.size else np.nan)
        return _finite(np.max(highest))

    def mean(self, metric: str) -> float | None:
        """The mean of all readings of a gauge."""
        values = np.concatenate(self._of_each_replica(metric))
        return _finite(float(values.mean())) if values.size else None

    def growth(self, metric: str, without_role: str = "") -> float | None:
        """The growth of a counter over all replicas, except those with this role."""
        total = 0.0
        for values in self._of_each_replica(metric, without_role):
            if values.size < 2 or values[-1] < values[0]:
                return None
            total += values[-1] - values[0]
        return _finite(total)

    def rate(self, window: TimeWindow | None, *metrics: str) -> float | None:
        """The growth per second of the sum of counters in a window, the mean over replicas."""
        if window is None:
            return None
        rates = []
        for replica in self.replicas:
            total = np.zeros(replica.rows.size)
            for metric in metrics:
                column = np.asarray(self.samples[metric].to_numpy(), dtype=np.float64)
                total += column[replica.rows]
            try:
                rates.append(readings(self._at_s(replica), total).rate(window))
            except CounterFell:
                return None
        return _finite(float(np.mean(rates)))

    def _at_s(self, replica: _Replica) -> Floats:
        """When a replica was read, in seconds of the driver's clock."""
        unix_ns = np.asarray(self.samples["unix_ns"].to_numpy(), dtype=np.float64)
        offset_ns = np.asarray(self.samples["clock_offset_ns"].to_numpy(), dtype=np.float64)
        at_s: Floats = (unix_ns - np.nan_to_num(offset_ns))[replica.rows] / 1e9
        return at_s

    def _of_each_replica(self, metric: str, without_role: str = "") -> list[Floats]:
        """The known readings of each replica without this role, oldest first."""
        column = np.asarray(self.samples[metric].to_numpy(), dtype=np.float64)
        of_replicas: list[Floats] = []
        for replica in self.replicas:
            if replica.role != without_role:
                values = column[replica.rows]
                of_replicas.append(values[~np.isnan(values)])
        return of_replicas


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ratio(numerator: float | None, denominator: float | None, scale: float = 1.0) -> float | None:
    if numerator is None or not denominator:
        return None
    return scale * numerator / denominator
