"""How long the engines of a sweep took to start, and how that compares with what was estimated."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Deployment


@dataclass(frozen=True, slots=True)
class _Starts:
    """Seconds of all starts of one engine together: what they took, and what was estimated."""

    took_s: float
    estimated_s: float

    @property
    def factor(self) -> float:
        return self.took_s / self.estimated_s if self.estimated_s else 1.0


class StartTimes:
    """The starts of a sweep's deployments. Shared by the threads of launches. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_s: dict[str, float] = {}  # deployment id -> seconds of its last start
        self._of_engine: dict[str, _Starts] = {}

    def add(self, deployment: Deployment, took_s: float) -> None:
        """Note how many seconds a start of the deployment took."""
        engine = deployment.settings.engine
        with self._lock:
            earlier = self._of_engine.get(engine, _Starts(0.0, 0.0))
            self._of_engine[engine] = _Starts(
                earlier.took_s + took_s, earlier.estimated_s + estimated_start_s(deployment)
            )
            self._last_s[deployment.id] = took_s

    def expected_s(self, deployment: Deployment, estimated_s: float) -> float:
        """Seconds that the next start of the deployment will take.

        They are as many as the last time. Before its first start, they are the estimate, scaled by
        how long other starts of the same engine took. ``estimated_s``: ``estimated_start_s`` of the
        deployment, which need not be computed at each call.
        """
        with self._lock:
            last_s = self._last_s.get(deployment.id)
            if last_s is not None:
                return last_s
            starts = self._of_engine.get(deployment.settings.engine)
        return estimated_s if starts is None else estimated_s * starts.factor

    def factors(self) -> dict[str, float]:
        """Each engine that was started, with the actual divided by the estimated time of its
        starts.
        """
        with self._lock:
            return {engine: starts.factor for engine, starts in self._of_engine.items()}


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """How long the next start of one deployment will take. ``planned_s``: by the plan."""

    deployment: Deployment
    times: StartTimes
    planned_s: float

    @classmethod
    def of(cls, deployment: Deployment, times: StartTimes) -> StartEstimate:
        return cls(deployment, times, estimated_start_s(deployment))

    @property
    def seconds(self) -> float:
        return self.times.expected_s(self.deployment, self.planned_s)
