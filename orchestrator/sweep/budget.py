"""What is left of a sweep's budget, and whether it pays for what a launch does next."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from orchestrator.plan.model import Deployment
from orchestrator.spec.experiment import Budget
from orchestrator.spec.load import format_duration
from orchestrator.sweep.admission import Spending
from orchestrator.sweep.state import SweepState, cost_of

NOTHING = Spending()


class SweepBudget:
    """The budget of a sweep, of which launches set parts aside before they use them. Thread-safe.

    ``limits``: the budget in the experiment file, None if it has none. ``now_s``: reads the sweep's
    clock; wall time counts from now on.
    """

    def __init__(
        self, limits: Budget | None, state: SweepState, now_s: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._state = state
        self._now_s = now_s
        self._began_s = now_s()
        self._lock = threading.Lock()

    @property
    def is_limited(self) -> bool:
        """Whether the experiment file has a budget."""
        return self._limits is not None

    def left(self) -> Spending:
        """GPU time and money that may still be used."""
        return left_of(self._limits, self._state.spent(self._now_s()))

    def over(
        self,
        deployment: Deployment,
        next_s: float,
        others: Spending = NOTHING,
        spent: Spending | None = None,
    ) -> str | None:
        """Says which part of the budget is used up, or would be if a deployment ran for ``next_s``
        seconds and overran them by as much as the worst attempt did; None if the budget suffices.

        ``others``: what other launches are expected to use until what they do now ends. ``spent``:
        what has been used until now; None means that it is added up here.
        """
        if self._limits is None:
            return None
        now_s = self._now_s()
        if spent is None:
            spent = self._state.spent(now_s)
        wall_s = now_s - self._began_s
        over = used_up(self._limits, spent, wall_s)
        if over is not None:
            return f"{over} is used up"
        ahead_s = next_s + self._state.overrun_s
        then_spent = spent + others + cost_of(deployment, ahead_s)
        over = used_up(self._limits, then_spent, wall_s + ahead_s)
        if over is not None:
            return f"{over} would be exceeded by the next point"
        return None

    def admit(self, deployment: Deployment, next_s: float) -> str | None:
        """Ask for the part of the budget that a deployment needs to run for ``next_s`` seconds, and
        set it aside. Returns None, or why it is refused.

        The reason is that of ``over``; what other launches do now counts up to its estimated end.
        The seconds begin now, or once the deployment's launch holds its devices.
        """
        if self._limits is None:
            return None
        # of two launches that ask at once, the second sees what the first was granted
        with self._lock:
            now_s = self._now_s()
            others = self._state.aside_for_others(now_s, deployment.id)
            over = self.over(deployment, next_s, others)
            if over is None:
                self._state.set_aside(deployment, next_s + self._state.overrun_s, now_s)
            return over


def used_up(limits: Budget, spent: Spending, wall_s: float) -> str | None:
    """Which part of the budget is used up, in words; None if none is."""
    if limits.wall is not None and wall_s >= limits.wall:
        return f"the budget of {format_duration(limits.wall)} wall time"
    if limits.gpu_hours is not None and spent.gpu_s / 3600 >= limits.gpu_hours:
        return f"the budget of {limits.gpu_hours:g} GPU hours"
    if limits.usd is not None and spent.usd >= limits.usd:
        return f"the budget of {limits.usd:g} USD"
    return None


def left_of(limits: Budget | None, spent: Spending) -> Spending:
    """GPU time and money that may still be used; infinite where the budget sets no limit."""
    gpu_s = math.inf
    usd = math.inf
    if limits is not None and limits.gpu_hours is not None:
        gpu_s = 3600 * limits.gpu_hours - spent.gpu_s
    if limits is not None and limits.usd is not None:
        usd = limits.usd - spent.usd
    return Spending(gpu_s, usd)
