"""One try at a point: what it left behind, how it ended, and what that says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from orchestrator.analysis.engine_side import engine_side
from orchestrator.analysis.metrics import steady_window
from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.base.text import counted
from orchestrator.cluster.base import ClientReport
from orchestrator.load.point import ClientStats, HostLoad, LoadPoint, Reply
from orchestrator.load.validity import PointVerdict, Surroundings, judge
from orchestrator.results.outcomes import CacheState, ErrorClass, RequestStatus
from orchestrator.sweep.early_end import EarlyStop
from orchestrator.sweep.sample_rows import engine_metrics
from orchestrator.telemetry.gpu_condition import gpu_conditions

if TYPE_CHECKING:
    from orchestrator.results.lazy_rows import Rows
    from orchestrator.results.row_writer import RowFile
    from orchestrator.telemetry.engine_metrics import Sample
    from orchestrator.telemetry.node_sampler import NodeTelemetry

UNMEASURED = PointVerdict("unmeasured", [], {})
# Failures of the point alone. After any other failure the launch is over: its engine is gone or
# does not answer.
OF_THE_POINT = frozenset(
    {
        FailureKind.BAD_POINT,
        FailureKind.REQUESTS_REFUSED,
        FailureKind.CLIENT_LOST,
        FailureKind.CLIENT_BOUND,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading the replicas once left behind.

    ``requests``: every scheduled request, those of lost clients included; if the user ended the
    point, only those that were over by then. ``span``: the start and end of warm-up and
    window together, without draining. ``reports``: by client. ``lost``: by client, the rows made up
    for clients that were lost, not stored yet. ``samples``: /metrics by replica, of an endpoint
    without what is not of this load; ``metrics_note`` then says why. ``failure``: what ended the
    point early. ``early``: when and why the point ended if it is a probe
    that knew enough. ``interrupted``: the user, or too many errors, ended the point. ``cache``:
    state of the prefix caches before the load. ``hosts``: load of others on the engines' hosts.
    ``telemetry``: what agents sampled of GPUs and hosts.
    """

    span: UnixSpan
    requests: Rows
    reports: Mapping[int, ClientReport] = field(default_factory=dict)
    lost: Mapping[int, RowFile] = field(default_factory=dict)
    samples: Mapping[int, Sequence[Sample]] = field(default_factory=dict)
    metrics_note: str | None = None
    failure: Failure | None = None
    early: EarlyStop | None = None
    interrupted: bool = False
    cache: CacheState = "unknown"
    hosts: Sequence[HostLoad] = ()
    telemetry: Sequence[NodeTelemetry] = ()

    def cut(self, point: LoadPoint) -> LoadPoint:
        """The point with the duration that it really had."""
        return replace(point, duration_s=self.lasted_s(point.warmup_s, point.duration_s))

    def lasted_s(self, warmup_s: float | None, duration_s: float | None) -> float | None:
        """The point's real duration: shorter than ``duration_s`` if a probe that knew enough, the
        user or too many errors ended it early.
        """
        if duration_s is None or not (self.interrupted or self.early):
            return duration_s
        return max(0.0, self.span.length_s - (warmup_s or 0.0))

    @property
    def stats(self) -> list[ClientStats]:
        """The statistics of the clients that reported."""
        return [report.stats for report in self.reports.values()]

    @property
    def replies(self) -> list[Reply]:
        """The replies in order of request_index, if the point keeps them."""
        replies = itertools.chain.from_iterable(report.replies for report in self.reports.values())
        return sorted(replies, key=lambda reply: reply.request_index)

    @property
    def token_events(self) -> Rows | None:
        """The token gaps, in the order in which stored gaps are read; None if some of them are only
        in the store.
        """
        from orchestrator.results.lazy_rows import LazyRows

        parts = []
        for report in self.reports.values():
            if report.token_events is None:
                return None
            parts.append(report.token_events)
        return LazyRows.of("token_events", parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The outcome of one try at a point. ``loaded`` is None if it could not even begin; ``failure``
    then says why.
    """

    verdict: PointVerdict = UNMEASURED
    failure: Failure | None = None
    loaded: Loaded | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the user or too many errors ended it, so that it did not measure all that it was
        to measure.
        """
        return self.loaded is not None and self.loaded.interrupted

    @property
    def launch_over(self) -> bool:
        """Whether nothing more can be measured on these replicas."""
        return self.failure is not None and self.failure.kind not in OF_THE_POINT


def judged(
    point: LoadPoint, loaded: Loaded, more_clients: bool = False, broken: Sequence[str] = ()
) -> Attempt:
    """Judge one try. A point that its clients slowed down fails only if more clients could do
    better.

    ``more_clients``: there are more clients for a retry. ``broken``: why the engine's output makes
    no sense.
    """
    cut = loaded.cut(point)
    window = steady_window(cut.warmup_s, cut.duration_s, loaded.requests)
    readings = engine_metrics(loaded.samples, measurement_id="", attempt_id="")
    surroundings = Surroundings(
        loaded.hosts, gpu_conditions(loaded.telemetry), engine_side(readings)
    )
    verdict = judge(
        loaded.requests,
        loaded.stats,
        cut,
        window.start_ns,
        broken,
        surroundings,
        loaded.interrupted,
    )
    if loaded.metrics_note is not None:
        verdict = replace(verdict, reasons=[*verdict.reasons, loaded.metrics_note])
    if loaded.interrupted:
        reasons = [_interrupted(point, loaded), *verdict.reasons]
        verdict = replace(verdict, validity="interrupted", reasons=reasons)
    if loaded.early:
        verdict = replace(verdict, reasons=[loaded.early.sentence, *verdict.reasons])
    failure = loaded.failure or nothing_ok(loaded.requests)
    if failure is None and verdict.validity == "client_bound" and more_clients:
        sentence = "; ".join(verdict.reasons) or "the client was the limit"
        failure = Failure(FailureKind.CLIENT_BOUND, sentence)
    if failure is not None and verdict.validity == "valid":
        # what was measured is sound, but it is not the whole point
        verdict = replace(verdict, validity=UNMEASURED.validity)
    return Attempt(verdict=verdict, failure=failure, loaded=loaded)


def _interrupted(point: LoadPoint, loaded: Loaded) -> str:
    """How far the point came, as a sentence."""
    text = f"interrupted after {loaded.span.length_s:.1f} s"
    if point.ends_s is not None:
        text = f"{text} of {point.ends_s:g} s"
    text = f"{text}: these are its figures until then"
    left_out = sum(stats.left_out for stats in loaded.stats)
    if left_out:
        text = f"{text}; left out: {counted(left_out, 'request')} in flight then"
    return text


def nothing_ok(requests: Rows) -> Failure | None:
    """A failure with the commonest error, if no request succeeded; None otherwise, and for a probe
    that was ended because it failed its limits.
    """
    statuses = set(requests["status"].unique().to_pylist())
    if RequestStatus.OK in statuses or statuses == {RequestStatus.ABORTED}:
        return None
    commonest = "no request was sent"
    class_counts = requests["error_class"].drop_null().value_counts().to_pylist()
    if class_counts:
        commonest = max(class_counts, key=lambda entry: entry["counts"])["values"]
    if commonest == ErrorClass.ABORTED:  # a probe that failed its limits
        return None
    is_refused = commonest == ErrorClass.HTTP_4XX or was_redirected(requests)
    kind = FailureKind.REQUESTS_REFUSED if is_refused else FailureKind.NO_REQUEST_OK
    text = f"None of {len(requests)} requests succeeded ({commonest})"
    for error in requests["error"].drop_null().slice(0, 1).to_pylist():
        text = f"{text}: {error[:200]}"
    return Failure(kind, f"{text}.")


def was_redirected(requests: Rows) -> bool:
    """Whether every request was redirected: the user's URL is wrong, and no other request will fare
    better.
    """
    statuses = requests["http_status"].unique().to_pylist()
    return bool(statuses) and all(300 <= (status or 0) < 400 for status in statuses)
