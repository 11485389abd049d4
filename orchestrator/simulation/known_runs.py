"""Runs of the step model that are known already.

Many deployments of a grid differ only in limits that a load never reaches: a run of one of them is
the run of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.base.arrays import Floats, Ints
from orchestrator.emulator.model import RankLimits, Replica
from orchestrator.emulator.step_costs import StepTimes
from orchestrator.load.point import LoadPoint
from orchestrator.predict.simulate import RequestTimes
from orchestrator.spec.load import Level

MOST_REQUESTS = 2_000_000  # whose times are kept; they take about 100 MB


@dataclass(frozen=True, slots=True)
class DrawnLoad:
    """When the requests of a point are due, and how long they are."""

    due_ns: Ints
    due_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    parts: Sequence[str] | None  # of the mix that each request is of; None: it is no mix


@dataclass(frozen=True, slots=True)
class KnownRun:
    """The requests of a point, and when they were served."""

    load: DrawnLoad
    times: RequestTimes

    @property
    def requests(self) -> int:
        return len(self.load.due_ns)

    def is_same_under(self, limits: RankLimits) -> bool:
        """Whether ranks with these limits would serve all requests at the same times."""
        return self.times.same_under is not None and self.times.same_under.hold(limits)


@dataclass(frozen=True, slots=True)
class RunKey:
    """What a run depends on beside the limits of a rank."""

    costs: StepTimes
    request_overhead_s: float
    token_interval_s: float
    jitter: float
    replicas: int
    workload: str
    level: Level
    seed: int

    @classmethod
    def of(cls, rank: Replica, replicas: int, point: LoadPoint) -> RunKey:
        """Ranks with drafts have runs of another kind, and no key."""
        assert rank.drafts is None
        return cls(
            costs=rank.costs,
            request_overhead_s=rank.request_overhead_s,
            token_interval_s=rank.token_interval_s,
            jitter=rank.jitter,
            replicas=replicas,
            workload=point.workload.name,
            level=point.level,
            seed=point.seed,
        )


class KnownRuns:
    """The runs of the points of one sweep. When there are too many, no more are kept: deployments
    have their points in the same order, so the oldest ones are needed first.
    """

    def __init__(self, most_requests: int = MOST_REQUESTS) -> None:
        self._most_requests = most_requests
        self._runs: dict[RunKey, list[KnownRun]] = {}
        self._requests = 0

    def find(self, key: RunKey, limits: RankLimits) -> KnownRun | None:
        """The run of ranks with these limits, if it is known."""
        for run in self._runs.get(key, ()):
            if run.is_same_under(limits):
                return run
        return None

    def add(self, key: RunKey, run: KnownRun) -> None:
        is_known = run.times.same_under is not None  # else nobody knows what it depends on
        if is_known and self._requests + run.requests <= self._most_requests:
            self._runs.setdefault(key, []).append(run)
            self._requests += run.requests
