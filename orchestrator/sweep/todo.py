"""What is left to measure of one deployment: its search strategies, earlier commits, and how often
things failed; and which deployments race and are started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.errors import OF_THE_MACHINE, Failure, FailureClass, FailureKind, InputError
from orchestrator.capacity.outcomes import targets
from orchestrator.capacity.proposing import Shortlist
from orchestrator.capacity.race import Entrant, Race
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.strategy import Strategy, Watch
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Deployment, Measurement, Plan, PlannedLoad, Point
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.store import best_ok
from orchestrator.spec.load import Control, Level, Per

if TYPE_CHECKING:
    from orchestrator.capacity.claim import Claim
    from orchestrator.results.store import Store

OVERHEAD_S = 2.0  # of a point: barrier, verdict, commit
# key under which failures of a start are counted; for a measurement its id is the key
START = "start {}"
NOT_COUNTED = frozenset({FailureKind.CLIENT_BOUND, FailureKind.PREEMPTED})


@dataclass(eq=False)
class _Search:
    """One workload's strategy, and the repeats of each level that it was told of."""

    load: PlannedLoad
    strategy: Strategy
    told: set[tuple[Level, int]] = field(default_factory=set)

    @property
    def finds(self) -> Capacity | None:
        """The strategy, if it searches for capacities."""
        return self.strategy if isinstance(self.strategy, Capacity) else None

    def tell(self, level: Level, repeat: int, attempt: Committed) -> None:
        self.told.add((level, repeat))
        self.strategy.tell(level, attempt)

    @property
    def start(self) -> int | None:
        """Which start of the deployment its next measurement belongs to; None if the strategy does
        not say.
        """
        return self.finds.start if self.finds is not None else None

    def repeats_of(self, level: Level) -> Iterator[int]:
        """The repeats that it was not told of, in order."""
        return (repeat for repeat in count() if (level, repeat) not in self.told)


class Todo:
    """The open measurements of one deployment. ``committed``: measurement id -> its outcome in
    earlier sweeps.

    Of those that it needs (``done``, their ids), ``skipped`` are measured, and ``refused`` failed and
    are not tried again. ``starts``:
    see ``SweepState``. ``race``: what other deployments' searches found, which may change or end
    this one's. ``spoilt_tries``: how many attempts at a measurement earlier sweeps saw spoilt.
    """

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment,
        committed: Mapping[str, Committed],
        starts: Mapping[str, float] = MappingProxyType({}),
        race: Race | None = None,
        spoilt_tries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.deployment = deployment
        self.avoid: frozenset[str] = frozenset()  # nodes whose infrastructure failed it
        self.waited = False  # it gave way to deployments that it races against
        self.why: dict[str, object] = {}  # of its last admission
        self._overtaken = False
        self._plan, self._committed, self._starts, self._race = plan, committed, starts, race
        loads = plan.loads_of(deployment.id)
        self._searches = [_Search(load, plan.strategy(load, deployment.id, race)) for load in loads]
        self._failures: Counter[tuple[str, FailureClass | FailureKind]] = Counter()
        self._spoilt_tries = spoilt_tries
        self._next: tuple[_Search, Point, Measurement] | None = None
        self._left: list[tuple[Point, Measurement]] = []
        self._seen = -1  # version of the race
        self._estimated_start_s = estimated_start_s(deployment)
        self._of = cache(self._measurement_of)  # ids are hashes, and each is needed again and again
        self._point = cache(lambda search, level: plan.point(deployment.id, search.load, level))
        known = [one for search in self._searches for one in self._tell_all(search)]
        known += [
            committed[one.measurement_id]
            for _, one in self._ahead()
            if one.measurement_id in committed
        ]
        self.done = frozenset(one.measurement_id for one in known)
        self.skipped = sum(one.status == "ok" for one in known)
        self.refused = len(known) - self.skipped
        self._go_on()

    def admit(self, ahead: Todo | None) -> None:
        """Note why it was admitted. ``ahead``: the one that it overtakes and does not delay."""
        self.why = {"why": "backfill" if ahead else "reserved" if self._overtaken else "first"}
        self.why |= {"ahead": ahead.deployment.label} if ahead else {}
        self.why |= {"avoided": sorted(self.avoid)} if self.avoid else {}
        self._overtaken = False
        if ahead:
            ahead._overtaken = True

    def next(self) -> tuple[Point, Measurement] | None:
        """What to measure next: of all that the strategies ask for, the lowest start, then the
        lowest repeat.
        """
        self._look()
        return self.asked

    @property
    def asked(self) -> tuple[Point, Measurement] | None:
        """What ``next`` returned last. It stays the same, whatever others find, until it is closed."""
        return self._next[1:] if self._next is not None else None

    def hurry(self, left_s: float) -> None:
        """So many seconds are left for its searches."""
        for one in self._searches:
            if one.finds is not None:
                one.finds.hurry(left_s)
        self._go_on()

    def close(self, attempt: Committed, given_up: bool = False) -> None:
        """Tell the outcome of the measurement that ``next`` returned. ``given_up``: nothing more
        comes of it here; a search for a capacity is over.
        """
        assert self._next is not None
        search, point, measurement = self._next
        search.tell(point.level, measurement.repeat, attempt)
        if given_up and search.finds is not None:
            self._tell_race(search, over=True)
            self._searches.remove(search)
        self._sees_another()
        self._go_on()

    def drop(self) -> None:
        """Measure nothing more of this deployment."""
        for search in self._searches:
            self._tell_race(search, over=True)
        self._searches, self._next, self._left = [], None, []

    @property
    def watch(self) -> Watch | None:
        """If the next measurement is a probe: what it must find out, after which it may end early."""
        strategy = self._next[0].finds if self._next is not None else None
        if strategy is None:
            return None
        return Watch(self._plan.slos, strategy.before, strategy.expected)

    def claims(self, workload: str) -> Mapping[str, Claim]:
        """SLO name -> what is known of its capacity under a workload; empty if its strategy does
        not search for one.
        """
        found = (one.finds for one in self._searches if one.load.workload.name == workload)
        return next((one.claims() for one in found if one is not None), {})

    @property
    def start(self) -> int:
        """Which start of the deployment the next measurement belongs to; -1 if nothing is left."""
        found = self._next  # read once: other threads may change it
        return found[2].start if found is not None else -1

    @property
    def left(self) -> int:
        """How many measurements are left, as far as is known now."""
        self._look()
        return len(self._left)

    @property
    def open(self) -> frozenset[str]:
        """The ids of the measurements that are left, as far as is known now."""
        return frozenset(measurement.measurement_id for _, measurement in self._left)

    @property
    def begun(self) -> bool:
        """Whether anything has been measured."""
        return any(search.told for search in self._searches)

    @property
    def may_wait(self) -> bool:
        """Whether its searches know enough to let others be probed first. It waits only once."""
        known = all(one.finds is not None and one.finds.may_wait for one in self._searches)
        return self.races and not self.waited and known

    @property
    def outraced(self) -> bool:
        """Whether it is beaten: others hold more load than it can."""
        found = [one.finds.claims() for one in self._searches if one.finds is not None]
        return any(claim.status == "outraced" for claims in found for claim in claims.values())

    @property
    def races(self) -> bool:
        """Whether others may beat it."""
        return self._race is not None and not self._race.full_grid

    @property
    def standing(self) -> float:
        """How much it may still hold, compared with others: see ``Race``."""
        return self._race.standing(self.deployment.id) if self._race is not None else 0.0

    @property
    def start_estimate_s(self) -> float:
        """Seconds its engine takes to start: as the last time, or the estimate scaled by the
        engine's other starts.
        """
        by_engine = self._starts.get(self.deployment.settings.engine, 1.0) * self._estimated_start_s
        return self._starts.get(self.deployment.id, by_engine)

    def estimate_s(self) -> float:
        """Seconds the next launch will take, start included, as far as is known now."""
        return self.start_estimate_s + sum(
            expected_s(point) for point, one in self._left if one.start == self.start
        )

    def first_s(self) -> float:
        """Seconds the next launch will take up to the end of its first measurement; 0 if nothing is
        left.
        """
        found = self.next()
        return self.start_estimate_s + expected_s(found[0]) if found is not None else 0.0

    def rest_s(self, slowness: float = 1.0, more_starts: int = 0) -> float:
        """Seconds for all that is left, the next launch's start not included. ``slowness``: see
        ``SweepState``.
        """
        starts = self._later_starts + more_starts
        return (starts and starts * self.start_estimate_s) + self._load_s * slowness

    def again(self, key: str, failure: Failure) -> bool:
        """Count a failure under ``key``; whether its class allows another try. Each class is
        counted separately.

        There is no limit for preemptions, nor for points that the clients slowed down: those fail
        only as long as the cluster has more clients (measure.py: ``judged``).
        """
        if failure.kind in NOT_COUNTED:
            self._failures[key, failure.kind] += 1
            return True
        self._failures[key, failure.failure_class] += 1
        return self._failures[key, failure.failure_class] <= failure.failure_class.retries

    def tries(self, key: str) -> int:
        """How often it has failed or was spoilt, for whatever reason: each try sends other
        prompts.
        """
        failures = sum(number for (name, _), number in self._failures.items() if name == key)
        return failures + self._spoilt_tries.get(key, 0)

    def _look(self) -> None:
        """Follow the race: what is next may depend on what others hold."""
        if self._race is not None and self._race.version != self._seen and self._sees_another():
            self._go_on()

    def _sees_another(self) -> bool:
        """Let every search look at the race; whether any of them saw something new."""
        if self._race is not None:
            self._seen = self._race.version  # read first: what changes meanwhile is seen next time
        seen = [one.finds.look() for one in self._searches if one.finds is not None]
        return any(seen)

    def _go_on(self) -> None:
        """Tell the strategies what is committed already until each asks for something new; list
        what will follow.
        """
        asked: list[tuple[_Search, Point, Measurement]] = []
        for search in self._searches:
            while (level := search.strategy.ask()) is not None:
                point, measurement = self._of(
                    search, level, next(search.repeats_of(level)), search.start
                )
                if (known := self._committed.get(measurement.measurement_id)) is None:
                    asked.append((search, point, measurement))
                    break
                search.tell(level, measurement.repeat, known)
            self._tell_race(search)
        self._next = min(asked, key=lambda one: (one[2].start, one[2].repeat), default=None)
        self._left = [one for one in self._ahead() if one[1].measurement_id not in self._committed]
        if self._next is not None and not self._left:
            raise InputError(
                f"the search {self._next[0].load.search!r} asks for a level that its `ahead` does not name"
            )
        self._load_s = sum(expected_s(point) for point, _ in self._left)
        self._later_starts = len({one.start for _, one in self._left} - {self.start})

    def _tell_race(self, search: _Search, over: bool = False) -> None:
        """Tell the race what one search knows now."""
        if self._race is None or search.finds is None:
            return
        asking, reaches = search.finds.asking(), search.finds.reaches()
        for slo, claim in search.finds.claims().items():
            reach, asks = (0.0, False) if over else (reaches[slo], slo in asking)
            self._race.tell(self.deployment.id, search.load.workload.name, slo, claim, reach, asks)

    def _ahead(self) -> list[tuple[Point, Measurement]]:
        """Everything that the strategies will ask for, as far as they know."""
        found = []
        for search in self._searches:
            levels = search.strategy.ahead()
            repeats = {level: search.repeats_of(level) for level in levels}
            found += [
                self._of(search, level, next(repeats[level]), search.start) for level in levels
            ]
        return found

    def _tell_all(self, search: _Search) -> list[Committed]:
        """Tell a search that decides by figures everything that is committed of it, oldest first;
        returns that.

        Asking it what it wants would not find all: its first level may follow from predictions that
        have changed.
        """
        told = list[Committed]()
        if not search.strategy.needs_figures:
            return told
        mine = (one for one in self._committed.values() if one.deployment_id == self.deployment.id)
        for known in sorted(mine, key=lambda one: one.created_unix_ns):
            if isinstance(known, AttemptData):
                point = known.point
                level = Level(control=cast("Control", point.control), value=point.level)
                _, measurement = self._of(search, level, point.repeat, point.start)
                # else it belongs to another search
                if measurement.measurement_id == known.measurement_id:
                    search.tell(level, point.repeat, known)
                    told.append(known)
        return told

    def _measurement_of(
        self, search: _Search, level: Level, repeat: int, start: int | None
    ) -> tuple[Point, Measurement]:
        """``start``: used only if the search's strategy decides on starts."""
        point = self._point(search, level)
        return point, self._plan.measurement(
            point, repeat, start if search.start is not None else None
        )


def expected_s(point: Point) -> float:
    """Expected seconds of one attempt, from barrier to commit."""
    return point.load.estimated_s(point.level) + OVERHEAD_S


def race_of(plan: Plan) -> Race | None:
    """The race among the deployments that ``best`` would compare, by the objective in the file;
    None if the plan searches for no capacity. With concurrency levels nobody is beaten: more in
    flight is not more throughput.
    """
    load = next((one for one in plan.loads if one.searches), None)
    if load is None:
        return None
    per: Per = load.objective or "gpu"
    entrants = {}
    for group, some in plan.groups(per).items():
        # else per deployment, like ``best``
        counted = load.objective or all(one.devices for one in some)
        for one in some:
            if divisor := one.divisor(per if counted else "deployment"):
                settings = {"hardware": one.hardware.name, **one.settings.model_dump()}
                entrants[one.id] = Entrant(group, divisor, settings)
    return Race(entrants, not load.races)


def shortlist_of(plan: Plan, race: Race | None, promise: Mapping[str, float]) -> Shortlist:
    """What chooses the deployments that are started: all, unless the plan searches for capacities
    and says otherwise. ``promise``: see ``plan/order.py``.
    """
    load = next((one for one in plan.loads if one.max_deployments or one.proposer), None)
    if race is None or load is None:
        return Shortlist(Race({}), {}, None)
    goals = {slo.name: shares[0] for slo, shares in zip(plan.slos, targets(plan.slos), strict=True)}
    return Shortlist(race, goals, plan.most_started, promise, load.proposer, plan.seed)


@dataclass(frozen=True, slots=True)
class Spoilt:
    """The measurements of which every ok attempt was spoilt, by id, with the attempt that counts.

    ``open``: they are measured again. ``kept``: they were, as often as is allowed, and stay.
    ``tries``: spoilt attempts by measurement id. ``verdicts``: of each spoilt attempt, by its ids.
    """

    open: dict[str, Committed]
    kept: dict[str, Committed]
    tries: Mapping[str, int]
    verdicts: Mapping[tuple[str, str], str]

    def words(self, attempts: Iterable[Committed]) -> str:
        """How many of these have which verdict: ``3 disturbed, 1 client_bound``."""
        verdicts = Counter(self.verdicts[one.ids] for one in attempts)
        return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


def spoilt_of(store: Store, commits: Sequence[Committed], most_again: int) -> Spoilt:
    """What something beside the engine spoilt, of all ``commits``. ``most_again``: how often a
    measurement is measured again for that.
    """
    verdicts = store.spoilt(commits)
    tries = Counter(measurement_id for measurement_id, _ in verdicts)
    found = Spoilt({}, {}, tries, verdicts)
    for name, attempt in best_ok(commits, verdicts).items():
        if attempt.ids not in verdicts:
            continue
        if tries[name] <= most_again:
            found.open[name] = attempt
        else:
            found.kept[name] = attempt
    return found


def refused(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements whose last attempt (``commits`` come oldest first) failed by a fault of the
    experiment file.
    """
    last = {one.measurement_id: one for one in commits}
    wrong = [one for one in last.values() if one.failure_class == FailureClass.BAD_CONFIG]
    of_the_file = (
        one for one in attempt_data(store, wrong) if one.point.failure_kind not in OF_THE_MACHINE
    )
    return {one.measurement_id: one for one in of_the_file}


def died_at(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements at which the engine died under load as often as it is tried: to a search,
    that is an answer.
    """
    tries, last = Counter[str](), dict[str, Committed]()
    for one in attempt_data(
        store, [one for one in commits if one.failure_class == FailureClass.ENGINE_CRASH]
    ):
        if one.point.clients:
            tries[one.measurement_id] += 1
            last[one.measurement_id] = one
    return {
        name: one for name, one in last.items() if tries[name] > FailureClass.ENGINE_CRASH.retries
    }
