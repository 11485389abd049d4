"""What is left to measure of one deployment, by its search strategies and earlier commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from orchestrator.base.errors import InputError
from orchestrator.capacity.race import KNOWN_WITHIN, Race, precision_reached
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.strategy import ProbeWatch, Strategy
from orchestrator.plan.model import Deployment, Measurement, Plan, PlannedLoad, Point
from orchestrator.plan.order import QueueClass
from orchestrator.results.records import AttemptData, Committed
from orchestrator.spec.load import Control, Level
from orchestrator.sweep.followed_race import FollowedRace
from orchestrator.sweep.start_times import StartEstimate, StartTimes
from orchestrator.sweep.tries import Tries

if TYPE_CHECKING:
    from orchestrator.capacity.claim import Claim

OVERHEAD_S = 2.0  # seconds that a point takes beside its load: barrier, verdict, commit


class WorkStage(StrEnum):
    """How far the work on one deployment is."""

    NEW = "new"  # nothing was measured yet
    BEGUN = "begun"
    YIELDED = "yielded"  # begun, and it has let others be probed first
    DONE = "done"  # nothing is left, as far as is known now
    DOMINATED = "dominated"  # nothing is left, because others hold more load than it can


@dataclass(frozen=True, slots=True)
class EarlierOutcomes:
    """What earlier sweeps left of a deployment's measurements.

    ``done``: ids of the measurements that it needs and that were committed. Of those, ``skipped``
    succeeded, and ``refused`` failed and are not tried again.
    """

    done: frozenset[str]
    skipped: int
    refused: int


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


@dataclass(frozen=True, slots=True)
class _OpenWork:
    """What is left of a deployment, as far as is known now.

    ``proposal``: what is measured next. ``measurements``: all that are left, the next one included.
    ``load_s``: expected seconds of all of them, without starts of the engines. ``later_starts``:
    how many starts they take after the next start.
    """

    proposal: _Proposal | None = None
    measurements: Sequence[NextMeasurement] = ()
    load_s: float = 0.0
    later_starts: int = 0

    @property
    def next(self) -> NextMeasurement | None:
        return self.proposal.measurement if self.proposal is not None else None

    @property
    def start(self) -> int:
        return self.next.measurement.start if self.next is not None else -1


NOTHING_OPEN = _OpenWork()


class _PlannedMeasurements:
    """The measurements of one deployment as the plan has them. Each is made once: their ids are
    hashes, and each is needed again and again.
    """

    def __init__(self, plan: Plan, deployment_id: str) -> None:
        self._plan = plan
        self._deployment_id = deployment_id
        self.at = cache(self._measurement)
        self._point_at = cache(self._point)

    def _point(self, search: _WorkloadSearch, level: Level) -> Point:
        return self._plan.point(self._deployment_id, search.load, level)

    def _measurement(
        self, search: _WorkloadSearch, level: Level, repeat: int, start: int | None
    ) -> NextMeasurement:
        """Make the measurement of one repeat. ``start``: which start of the deployment it belongs
        to; None if the search's strategy does not decide on starts.
        """
        point = self._point_at(search, level)
        return NextMeasurement(point, self._plan.measurement(point, repeat, start))


class DeploymentWork:
    """The open measurements of one deployment, and what is known of how they went.

    ``committed``: measurement id -> its outcome in earlier sweeps. ``start_times``: those of the
    sweep; None: none is known.
    ``race``: what the searches of other deployments found. Each ``follow_race`` may change what
    this deployment still needs, or end its searches. ``spoilt_tries``: see ``Tries``.
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
        self.tries = Tries(spoilt_tries)
        self._slos = plan.slos
        self._committed = committed
        self._start_estimate = StartEstimate.of(deployment, start_times or StartTimes())
        self._followed = FollowedRace(race)
        # ``_precision_reached`` when it last let others be probed first; None: it never did
        self._precision_at_yield: int | None = None
        self._searches = [
            _WorkloadSearch(load, plan.strategy(load, deployment.id, race))
            for load in plan.loads_of(deployment.id)
        ]
        self._planned = _PlannedMeasurements(plan, deployment.id)
        self._open = NOTHING_OPEN
        self.earlier = self._follow_commits()
        self._go_on()

    def _follow_commits(self) -> EarlierOutcomes:
        """Tell the searches what is committed already. Returns that."""
        earlier: list[Committed] = []
        for search in self._searches:
            earlier += self._tell_all(search)
        for planned in self._ahead():  # without the repeats that were just told
            attempt = self._committed.get(planned.measurement.measurement_id)
            if attempt is not None:
                earlier.append(attempt)
        done = frozenset(attempt.measurement_id for attempt in earlier)
        skipped = sum(attempt.status == "ok" for attempt in earlier)
        return EarlierOutcomes(done, skipped, refused=len(earlier) - skipped)

    # --- queries: none of them changes anything

    @property
    def next(self) -> NextMeasurement | None:
        """What to measure next: of all that the strategies ask for, the lowest start, then the
        lowest repeat. It stays the same until it is closed or the race is followed.
        """
        return self._open.next

    @property
    def start(self) -> int:
        """Which start of the deployment the next measurement belongs to; -1 if nothing is left."""
        return self._open.start

    @property
    def left(self) -> int:
        """How many measurements are left, as far as is known now."""
        return len(self._open.measurements)

    @property
    def open(self) -> frozenset[str]:
        """The ids of the measurements that are left, as far as is known now."""
        return frozenset(planned.measurement.measurement_id for planned in self._open.measurements)

    @property
    def watch(self) -> ProbeWatch | None:
        """What the next measurement must find out, after which it may end early; None if it is not
        a probe.
        """
        proposal = self._open.proposal
        capacity = proposal.search.capacity if proposal is not None else None
        if capacity is None:
            return None
        return ProbeWatch(self._slos, capacity.before, capacity.size)

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
            planned.point.level
            for planned in self._open.measurements
            if planned.point.workload.name == workload
        )

    @property
    def stage(self) -> WorkStage:
        """How far the work on the deployment is."""
        if not self.left:
            return WorkStage.DOMINATED if self._is_dominated() else WorkStage.DONE
        if not self.has_begun:
            return WorkStage.NEW
        return WorkStage.BEGUN if self._precision_at_yield is None else WorkStage.YIELDED

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
        """Whether its searches know enough to let others be probed first. It yields once, and again
        each time that its capacities are known more precisely.
        """
        if not self.races:
            return False
        last = self._precision_at_yield
        if last is not None and self._precision_reached <= last:
            return False
        return all(search.can_wait for search in self._searches)

    @property
    def _precision_reached(self) -> int:
        """The least ``precision_reached`` of all the capacities that it is searched for."""
        claims: list[Claim] = []
        for search in self._searches:
            if search.capacity is not None:
                claims += search.capacity.claims().values()
        return min(map(precision_reached, claims), default=len(KNOWN_WITHIN))

    @property
    def races(self) -> bool:
        """Whether others may beat it."""
        return self._race is not None and not self._race.full_grid

    @property
    def _race(self) -> Race | None:
        return self._followed.race

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
        return self._start_estimate.seconds

    def estimate_s(self) -> float:
        """Seconds the next launch will take, start included, as far as is known now."""
        left = self._open  # read once: other threads may change it
        load_s = 0.0
        for planned in left.measurements:
            if planned.measurement.start == left.start:
                load_s += expected_s(planned.point)
        return self.start_estimate_s + load_s

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
        left = self._open
        start_s = (left.later_starts + extra_starts) * self.start_estimate_s
        return start_s + left.load_s * slowness

    # --- commands

    def follow_race(self) -> None:
        """Look at what others hold by now, because what is next and what is left may depend on
        that.
        """
        if self._followed.has_moved and self._look_at_race():
            self._go_on()

    def yield_to_others(self) -> None:
        """Its launch ends so that others are probed first."""
        self._precision_at_yield = self._precision_reached

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
        proposal = self._open.proposal
        assert proposal is not None
        search = proposal.search
        following = proposal.measurement
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
        self._open = NOTHING_OPEN

    def _look_at_race(self) -> bool:
        """Let every search look at the race. Returns whether any of them saw something new."""
        self._followed.look()
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
        proposal = min(proposals, key=lambda proposal: proposal.measurement.turn, default=None)
        self._open = self._open_work(proposal)

    def _open_work(self, proposal: _Proposal | None) -> _OpenWork:
        """What is left once the searches have asked for what they want next."""
        measurements = [
            planned
            for planned in self._ahead()
            if planned.measurement.measurement_id not in self._committed
        ]
        if proposal is not None and not measurements:
            raise InputError(
                f"the search {proposal.search.load.search!r} asks for a level that its `ahead` "
                "does not name"
            )
        starts = {planned.measurement.start for planned in measurements}
        if proposal is not None:
            starts.discard(proposal.measurement.measurement.start)
        load_s = sum(expected_s(planned.point) for planned in measurements)
        return _OpenWork(proposal, measurements, load_s, len(starts))

    def _next_of(self, search: _WorkloadSearch) -> NextMeasurement | None:
        """The first measurement that one strategy asks for and that is not committed; None once it
        asks for nothing more.
        """
        while True:
            level = search.strategy.ask()
            if level is None:
                return None
            repeat = next(search.repeats_of(level))
            following = self._planned.at(search, level, repeat, search.start)
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
                ahead.append(self._planned.at(search, level, repeat, search.start))
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
            planned = self._planned.at(search, level, point.repeat, start)
            # an attempt with another id belongs to another search
            if planned.measurement.measurement_id == attempt.measurement_id:
                search.tell(level, point.repeat, attempt)
                attempts.append(attempt)
        return attempts


def expected_s(point: Point) -> float:
    """Expected seconds of one attempt, from barrier to commit."""
    return point.load.estimated_s(point.level) + OVERHEAD_S
