"""What is left to measure of one deployment: its search strategies, earlier commits, and how often
things failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from orchestrator.base.errors import Failure, FailureClass, FailureKind, InputError
from orchestrator.capacity.race import Race, is_well_known
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.strategy import ProbeWatch, Strategy
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Deployment, Measurement, Plan, PlannedLoad, Point
from orchestrator.plan.order import QueueClass
from orchestrator.results.records import AttemptData, Committed
from orchestrator.spec.load import Control, Level
from orchestrator.sweep.start_times import StartTimes

if TYPE_CHECKING:
    from orchestrator.capacity.claim import Claim

OVERHEAD_S = 2.0  # seconds that a point takes beside its load: barrier, verdict, commit
# Failures of these kinds never forbid another try.
UNLIMITED = frozenset({FailureKind.CLIENT_BOUND, FailureKind.PREEMPTED})


class WorkStage(StrEnum):
    """How far the work on one deployment is."""

    NEW = "new"  # nothing was measured yet
    BEGUN = "begun"
    YIELDED = "yielded"  # begun, and it has let others be probed first
    DONE = "done"  # nothing is left, as far as is known now
    DOMINATED = "dominated"  # nothing is left, because others hold more load than it can


@dataclass(frozen=True, slots=True)
class NextMeasurement:
    """One measurement that is open, and the point that it measures."""

    point: Point
    measurement: Measurement

    @property
    def turn(self) -> tuple[int, int]:
        """Sort key among the measurements that several strategies ask for: the smallest is made
        first.
        """
        return self.measurement.start, self.measurement.repeat


@dataclass(eq=False)
class _WorkloadSearch:
    """One workload's strategy, and the repeats of each level that it was told of."""

    load: PlannedLoad
    strategy: Strategy
    told_repeats: set[tuple[Level, int]] = field(default_factory=set)  # with their levels

    @property
    def capacity(self) -> Capacity | None:
        """The strategy, if it searches for a capacity."""
        return self.strategy if isinstance(self.strategy, Capacity) else None

    def tell(self, level: Level, repeat: int, attempt: Committed) -> None:
        self.told_repeats.add((level, repeat))
        self.strategy.tell(level, attempt)

    @property
    def start(self) -> int | None:
        """Which start of the deployment its next measurement belongs to; None if the strategy does
        not say.
        """
        return self.capacity.start if self.capacity is not None else None

    @property
    def can_wait(self) -> bool:
        """Whether it searches for a capacity and knows enough to let others be probed first."""
        return self.capacity is not None and self.capacity.may_wait

    def repeats_of(self, level: Level) -> Iterator[int]:
        """The repeats of a level that it was not told of, in order, without end."""
        return (repeat for repeat in count() if (level, repeat) not in self.told_repeats)


@dataclass(frozen=True, slots=True)
class _Proposal:
    """The measurement that one search asks for next."""

    search: _WorkloadSearch
    measurement: NextMeasurement


class DeploymentWork:
    """The open measurements of one deployment, and what is known of how they went.

    ``committed``: measurement id -> its outcome in earlier sweeps. ``start_times``: those of the
    sweep; None: none is known.
    ``race``: what the searches of other deployments found. Each ``follow_race`` may change what
    this deployment still needs, or end its searches. ``spoilt_tries``: measurement id -> how many
    of its attempts were spoilt in earlier sweeps.

    ``done``: ids of the measurements that it needs and that were committed before. Of those,
    ``skipped`` succeeded, and ``refused`` failed and are not tried again.
    """

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment,
        committed: Mapping[str, Committed],
        start_times: StartTimes | None = None,
        race: Race | None = None,
        spoilt_tries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.deployment = deployment
        self.avoid: frozenset[str] = frozenset()  # nodes whose infrastructure failed it
        self._plan = plan
        self._committed = committed
        self._start_times = start_times or StartTimes()
        self._race = race
        self._followed_version = -1  # the version of the race that was looked at last
        # whether it let others be probed first before, and after, its capacities were well known
        self._yielded_before_known = False
        self._yielded_after_known = False
        self._searches = [
            _WorkloadSearch(load, plan.strategy(load, deployment.id, race))
            for load in plan.loads_of(deployment.id)
        ]
        self._failures: Counter[tuple[str, FailureClass | FailureKind]] = Counter()
        self._spoilt_tries = spoilt_tries
        self._next: _Proposal | None = None
        self._open: list[NextMeasurement] = []
        self._estimated_start_s = estimated_start_s(deployment)
        self._open_load_s = 0.0  # expected seconds of all open measurements, without starts
        self._later_starts = 0  # starts that the open measurements take after the next start
        # ids are hashes, and each is needed again and again
        self._measurement_at = cache(self._make_measurement)
        self._point_at = cache(self._make_point)
        earlier: list[Committed] = []
        for search in self._searches:
            earlier += self._tell_all(search)
        for planned in self._ahead():  # without the repeats that were just told
            attempt = committed.get(planned.measurement.measurement_id)
            if attempt is not None:
                earlier.append(attempt)
        self.done = frozenset(attempt.measurement_id for attempt in earlier)
        self.skipped = sum(attempt.status == "ok" for attempt in earlier)
        self.refused = len(earlier) - self.skipped
        self._go_on()

    # --- queries: none of them changes anything

    @property
    def next(self) -> NextMeasurement | None:
        """What to measure next: of all that the strategies ask for, the lowest start, then the
        lowest repeat. It stays the same until it is closed or the race is followed.
        """
        return self._next.measurement if self._next is not None else None

    @property
    def start(self) -> int:
        """Which start of the deployment the next measurement belongs to; -1 if nothing is left."""
        following = self.next  # read once: other threads may change it
        return following.measurement.start if following is not None else -1

    @property
    def left(self) -> int:
        """How many measurements are left, as far as is known now."""
        return len(self._open)

    @property
    def open(self) -> frozenset[str]:
        """The ids of the measurements that are left, as far as is known now."""
        return frozenset(following.measurement.measurement_id for following in self._open)

    @property
    def watch(self) -> ProbeWatch | None:
        """What the next measurement must find out, after which it may end early; None if it is not
        a probe.
        """
        capacity = self._next.search.capacity if self._next is not None else None
        if capacity is None:
            return None
        return ProbeWatch(self._plan.slos, capacity.before, capacity.size)

    def claims(self, workload: str) -> Mapping[str, Claim]:
        """SLO name -> what is known of its capacity under a workload; empty if its strategy does
        not search for one.
        """
        capacity = self.capacity_of(workload)
        return capacity.claims() if capacity is not None else {}

    def capacity_of(self, workload: str) -> Capacity | None:
        """The search for its capacity under a workload; None if the workload has another strategy,
        or if the search was given up.
        """
        for search in self._searches:
            if search.load.workload.name == workload:
                return search.capacity
        return None

    def open_levels(self, workload: str) -> frozenset[Level]:
        """The levels of a workload with measurements that are left, as far as is known now."""
        return frozenset(
            planned.point.level for planned in self._open if planned.point.workload.name == workload
        )

    @property
    def stage(self) -> WorkStage:
        """How far the work on the deployment is."""
        if not self._open:
            return WorkStage.DOMINATED if self._is_dominated() else WorkStage.DONE
        if not self.has_begun:
            return WorkStage.NEW
        has_yielded = self._yielded_before_known or self._yielded_after_known
        return WorkStage.YIELDED if has_yielded else WorkStage.BEGUN

    @property
    def has_begun(self) -> bool:
        """Whether anything has been measured."""
        return any(search.told_repeats for search in self._searches)

    def _is_dominated(self) -> bool:
        """Whether others hold more load than it can."""
        for search in self._searches:
            if search.capacity is None:
                continue
            if any(claim.status == "outraced" for claim in search.capacity.claims().values()):
                return True
        return False

    @property
    def can_yield(self) -> bool:
        """Whether its searches know enough to let others be probed first. It yields at most once
        before its capacities are well known, and at most once after that.
        """
        if not self.races:
            return False
        if self._is_well_known:
            has_yielded = self._yielded_after_known
        else:
            has_yielded = self._yielded_before_known
        if has_yielded:
            return False
        return all(search.can_wait for search in self._searches)

    @property
    def _is_well_known(self) -> bool:
        """Whether all the capacities that it is searched for are well known."""
        for search in self._searches:
            if search.capacity is None:
                continue
            if not all(is_well_known(claim) for claim in search.capacity.claims().values()):
                return False
        return True

    @property
    def races(self) -> bool:
        """Whether others may beat it."""
        return self._race is not None and not self._race.full_grid

    @property
    def standing(self) -> float:
        """How much load it may still hold, compared with others: see ``Race.priority``."""
        return self._race.priority(self.deployment.id) if self._race is not None else 0.0

    @property
    def queue_class(self) -> QueueClass:
        """The class of its launches, by which the queue decides which launches go first."""
        if self.races and self.has_begun:
            return QueueClass.CONTINUED
        if self.deployment.status == "risky":
            return QueueClass.RISKY
        return QueueClass.NORMAL

    @property
    def start_estimate_s(self) -> float:
        """Seconds that its engine takes to start: see ``StartTimes.expected_s``."""
        return self._start_times.expected_s(self.deployment, self._estimated_start_s)

    def estimate_s(self) -> float:
        """Seconds the next launch will take, start included, as far as is known now."""
        start = self.start
        of_next_start = [planned for planned in self._open if planned.measurement.start == start]
        return self.start_estimate_s + sum(expected_s(planned.point) for planned in of_next_start)

    def first_s(self) -> float:
        """Seconds the next launch will take up to the end of its first measurement; 0 if nothing is
        left.
        """
        following = self.next
        if following is None:
            return 0.0
        return self.start_estimate_s + expected_s(following.point)

    def rest_s(self, slowness: float = 1.0, extra_starts: int = 0) -> float:
        """Seconds for all that is left, without the start of the next launch. ``slowness``: see
        ``SweepState``. ``extra_starts``: how many starts to assume in addition to those that follow the next launch.
        """
        starts = self._later_starts + extra_starts
        start_s = starts * self.start_estimate_s
        return start_s + self._open_load_s * slowness

    def tries(self, key: str) -> int:
        """How often the measurement with this id has failed or been spoilt, for whatever reason.
        Each try sends other prompts.
        """
        failures = sum(number for (name, _), number in self._failures.items() if name == key)
        return failures + self._spoilt_tries.get(key, 0)

    # --- commands

    def follow_race(self) -> None:
        """Look at what others hold by now, because what is next and what is left may depend on
        that.
        """
        if self._race is None or self._race.version == self._followed_version:
            return
        if self._look_at_race():
            self._go_on()

    def yield_to_others(self) -> None:
        """Its launch ends so that others are probed first."""
        if self._is_well_known:
            self._yielded_after_known = True
        else:
            self._yielded_before_known = True

    def hurry(self, left_s: float) -> None:
        """Tell its searches how many seconds are left for them."""
        for search in self._searches:
            if search.capacity is not None:
                search.capacity.hurry(left_s)
        self._go_on()

    def close(self, attempt: Committed, given_up: bool = False) -> None:
        """Tell the strategy that asked for the next measurement how it ended. ``given_up``: the
        engines cannot be started, which ends a search for a capacity.
        """
        assert self._next is not None
        search = self._next.search
        following = self._next.measurement
        search.tell(following.point.level, following.measurement.repeat, attempt)
        if given_up and search.capacity is not None:
            self._tell_race(search, over=True)
            self._searches.remove(search)
        self._look_at_race()
        self._go_on()

    def drop(self) -> None:
        """Measure nothing more of this deployment."""
        for search in self._searches:
            self._tell_race(search, over=True)
        self._searches = []
        self._next = None
        self._open = []

    def count_failure(self, key: str, failure: Failure) -> bool:
        """Count a failure under ``key``. Returns whether its class allows another try; each class
        is counted separately.

        There is no limit for preemptions, nor for points that the clients slowed down: those fail
        only as long as the cluster has more clients (measure.py: ``judged``).
        """
        if failure.kind in UNLIMITED:
            self._failures[key, failure.kind] += 1
            return True
        self._failures[key, failure.failure_class] += 1
        return self._failures[key, failure.failure_class] <= failure.failure_class.retries

    def _look_at_race(self) -> bool:
        """Let every search look at the race. Returns whether any of them saw something new."""
        if self._race is not None:
            # read first: what changes meanwhile is seen next time
            self._followed_version = self._race.version
        saw_news = False
        for search in self._searches:
            if search.capacity is not None and search.capacity.look():
                saw_news = True
        return saw_news

    def _go_on(self) -> None:
        """Tell the strategies what is committed already until each asks for something new, and list
        what will follow. Raises InputError if a strategy asks for a level that its ``ahead`` omits.
        """
        proposals: list[_Proposal] = []
        for search in self._searches:
            following = self._next_of(search)
            if following is not None:
                proposals.append(_Proposal(search, following))
            self._tell_race(search)
        self._next = min(proposals, key=lambda proposal: proposal.measurement.turn, default=None)
        self._open = [
            planned
            for planned in self._ahead()
            if planned.measurement.measurement_id not in self._committed
        ]
        if self._next is not None and not self._open:
            raise InputError(
                f"the search {self._next.search.load.search!r} asks for a level that its `ahead` "
                "does not name"
            )
        self._open_load_s = sum(expected_s(planned.point) for planned in self._open)
        self._later_starts = len(
            {planned.measurement.start for planned in self._open} - {self.start}
        )

    def _next_of(self, search: _WorkloadSearch) -> NextMeasurement | None:
        """The first measurement that one strategy asks for and that is not committed; None once it
        asks for nothing more.
        """
        while True:
            level = search.strategy.ask()
            if level is None:
                return None
            repeat = next(search.repeats_of(level))
            following = self._measurement_at(search, level, repeat, search.start)
            attempt = self._committed.get(following.measurement.measurement_id)
            if attempt is None:
                return following
            search.tell(level, following.measurement.repeat, attempt)

    def _tell_race(self, search: _WorkloadSearch, over: bool = False) -> None:
        """Tell the race what one search knows now. ``over``: the search asks for nothing more.
        ``Race.tell`` says what ``reach`` and ``asks`` are.
        """
        if self._race is None or search.capacity is None:
            return
        asking = search.capacity.asking()
        reaches = search.capacity.reaches()
        workload = search.load.workload.name
        for slo, claim in search.capacity.claims().items():
            reach = 0.0 if over else reaches[slo]
            asks = slo in asking and not over
            self._race.tell(self.deployment.id, workload, slo, claim, reach, asks)

    def _ahead(self) -> list[NextMeasurement]:
        """The measurements that the strategies will ask for, as far as they know."""
        ahead: list[NextMeasurement] = []
        for search in self._searches:
            levels = search.strategy.ahead()
            repeats = {level: search.repeats_of(level) for level in levels}
            for level in levels:
                repeat = next(repeats[level])
                ahead.append(self._measurement_at(search, level, repeat, search.start))
        return ahead

    def _tell_all(self, search: _WorkloadSearch) -> list[Committed]:
        """If a search decides by figures, tell it everything that is committed for it, oldest
        first. Returns what it was told.

        Asking the search what it wants would not find everything: its first level may follow from
        predictions that have changed.
        """
        attempts: list[Committed] = []
        if not search.strategy.needs_figures:
            return attempts
        own: list[AttemptData] = []
        for attempt in self._committed.values():
            if isinstance(attempt, AttemptData) and attempt.deployment_id == self.deployment.id:
                own.append(attempt)
        # not by ``age``, which orders attempts at the same measurement only
        for attempt in sorted(own, key=lambda attempt: attempt.created_unix_ns):
            point = attempt.point
            level = Level(control=cast("Control", point.control), value=point.level)
            start = point.start if search.start is not None else None
            planned = self._measurement_at(search, level, point.repeat, start)
            # an attempt with another id belongs to another search
            if planned.measurement.measurement_id == attempt.measurement_id:
                search.tell(level, point.repeat, attempt)
                attempts.append(attempt)
        return attempts

    def _make_point(self, search: _WorkloadSearch, level: Level) -> Point:
        return self._plan.point(self.deployment.id, search.load, level)

    def _make_measurement(
        self, search: _WorkloadSearch, level: Level, repeat: int, start: int | None
    ) -> NextMeasurement:
        """Make the measurement of one repeat. ``start``: which start of the deployment it belongs
        to; None if the search's strategy does not decide on starts.
        """
        point = self._point_at(search, level)
        return NextMeasurement(point, self._plan.measurement(point, repeat, start))


def start_key(start: int) -> str:
    """The key under which failures of a start of the engine are counted. Those of a measurement are
    counted under its id.
    """
    return f"start {start}"


def expected_s(point: Point) -> float:
    """Expected seconds of one attempt, from barrier to commit."""
    return point.load.estimated_s(point.level) + OVERHEAD_S
