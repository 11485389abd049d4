"""A sweep finds what is left to measure, starts launches as nodes allow, and ends when nothing is
left.

Running the same experiment again continues it. The package's docstring names the sweep's other
files.
"""

import math
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.analysis.points import compute_ahead
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.base.text import counted
from orchestrator.cluster.base import Growth, Machine, NodeType
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.plan.model import Deployment
from orchestrator.plan.order import QueueClass, queue_priority
from orchestrator.results.events import Event
from orchestrator.results.phases import SWEEP, Phase, PhaseName, SweepStep
from orchestrator.results.records import Committed
from orchestrator.results.store import best_ok
from orchestrator.sweep.admission import (
    Nodes,
    Queue,
    Reservation,
    Waiting,
    choose,
    fit,
    held,
    nodes_to_ask_for,
    worth_adding,
)
from orchestrator.sweep.commit import how_it_ended, launch_row
from orchestrator.sweep.competition import choose_next, not_started, race_of, shortlist_of
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.default_hardware import check_same, on_this_cluster
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage
from orchestrator.sweep.earlier_attempts import (
    SpoiltAttempts,
    died_at,
    failed_by_configuration,
    spoilt_of,
)
from orchestrator.sweep.engine_start import store_launch
from orchestrator.sweep.launch_lifecycle import LaunchLifecycle, give_up, leave_out
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.resource_request import ResourceRequest, resources_of
from orchestrator.sweep.state import (
    LeftUnmeasured,
    MeasurementCounts,
    SweepReport,
    cost_of,
)
from orchestrator.sweep.words import decided_words

MOST_LAUNCHES = 64  # threads of the driver; each mostly waits
LOOK_S = 1.0  # how often nodes and budget are checked while nothing else happens
QUEUE_S = 10.0  # how often the whole queue is looked at: 1,000 deployments take milliseconds
# the queue is ordered again when start times differ from the estimates by this share
START_TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class AdmissionInputs:
    """The facts that decide which launches start. As long as they stay the same, no other launch
    can start.

    ``usable``: the machines that do not rest after failures. ``free``: those usable machines whose
    hosts may be tried now. ``may_grow``, ``types``: whether nodes may be added, and of which types.
    ``may_start``: neither the storage nor a pause keeps launches from starting.
    """

    machines: Sequence[Machine]
    usable: Sequence[Machine]
    free: Sequence[Machine]
    may_grow: bool
    types: Sequence[NodeType]
    may_start: bool


@dataclass(frozen=True, slots=True)
class EndedLaunch:
    """A launch whose thread is over, and what the thread raised."""

    work: DeploymentWork
    raised: BaseException | None = None


@dataclass(frozen=True, slots=True)
class AdmittedLaunch:
    """A launch that was taken from the queue, and the nodes that it gets."""

    work: DeploymentWork
    nodes: Nodes


class Sweep:
    """Runs a plan on a cluster and commits into a store. One thread admits launches; each launch
    has its own thread.

    Every deployment is in one of three places: in the queue, launched, or idle. Idle means that
    nothing of it has to be measured: nothing is left, or others are better by what is known now.
    """

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._clock = context.clock
        self._state = context.state
        # by deployment id
        self._queued: dict[str, DeploymentWork] = {}
        self._launched: dict[str, DeploymentWork] = {}
        self._idle: dict[str, DeploymentWork] = {}
        # filled by the launches' threads, emptied by ``_take_ended``
        self._ended: list[EndedLaunch] = []
        self._changed = threading.Event()  # set when a launch's thread is over
        # the queued deployments that are on the shortlist, as admission sees them
        self._queue = Queue()
        self._priority = queue_priority(context.plan)
        # by engine: what its start times were multiplied by when the queue was ordered
        self._start_factors_of_order: dict[str, float] = {}
        self._last_admission_inputs: AdmissionInputs | None = None  # None: decide again
        # whether the running launches may leave too little of the budget for the next launch
        self._blocked_by_budget = False
        self._budget_checked_s = -math.inf
        # requests that some nodes could hold once: a lost node may come back
        self._once_placeable: set[ResourceRequest] = set()
        # requests that no nodes can hold, and since when
        self._unplaceable_since: dict[ResourceRequest, float] = {}
        # requests for which the autoscaler was asked for nodes, at the last admission
        self._asked_for: set[ResourceRequest] = set()
        # what the autoscaler said, without the numbers in it
        self._autoscaler_messages: set[str] = set()
        self._race = race_of(context.plan)
        self._followed_version = 0  # the version of the race that was looked at last
        self._shortlist = shortlist_of(context.plan, self._race, self._priority)
        self._queued_rest_s = CachedFor(self._estimate_queued, QUEUE_S, self._clock.now_s)

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet. Raises ResultsError when the storage has
        refused for too long, and what a launch raised.
        """
        context = self._context
        began_ns = self._clock.unix_ns()
        began_s = self._clock.now_s()
        self._show(SweepStep.READ_RESULTS)
        self._fill_queue()
        self._show(SweepStep.STORE_PLAN)
        context.store.write_plan(context.plan.to_json())
        total = self._left_to_start()
        skipped = self._state.counts.skipped
        text = f"{counted(total, 'measurement')} to do, {skipped} already done"
        context.tell(Event("sweep", text, data={"total": total, "skipped": skipped}))
        self._tell_standings()
        context.cluster.watch(self._tell_silence, context.stop)
        self._show(SweepStep.CHECK_NODES)
        if total:
            for silence in context.cluster.check_nodes():
                context.tell(Event("node_silent", silence))
        self._show(SweepStep.ENDED)
        with context.patient():
            self._admit_all()
        left = self._left_to_start()
        if self._state.counts.measured and not left:
            self._show(SweepStep.JOIN_REPEATS)
            compute_ahead(context.store)
            self._show(SweepStep.ENDED)
        wall_s = self._clock.now_s() - began_s
        overhead = self._state.overhead_share((began_ns, began_ns + int(wall_s * 1e9)))
        return SweepReport(self._state.counts, wall_s, overhead, left, self._left_unmeasured())

    # --- what a launch asks about the others: see ``Outlook``

    def left_s(self) -> float:
        """Estimated seconds until all is measured, with as many launches in parallel as now; at
        least the seconds of the longest deployment.
        """
        slowness = self._state.slowness
        launched_s = [work.rest_s(slowness) for work in list(self._launched.values())]
        queued_s = self._queued_rest_s() if self._queued else []
        in_parallel_s = sum(launched_s + queued_s) / max(1, len(launched_s))
        return max([in_parallel_s, *launched_s, *queued_s])

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that its nodes go to deployments of its race that wait for
        them: those that were not probed yet, and those that may hold more load.
        """
        if not work.can_yield:
            return False
        go_first = [
            other
            for other in list(self._queued.values())
            if not other.has_begun or other.standing > work.standing
        ]
        if not go_first:
            return False
        machines = self._context.breakers.usable(self._context.cluster.machines())
        others = self._state.reservations(excluding=work.deployment.id)
        most_nodes = self._context.settings.most_nodes
        for resources in {self._resources(other) for other in go_first}:
            if fit(resources, machines, others, most_nodes=most_nodes) is not None:
                return True
        return False

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again, because other nodes are free
        for it, or because the nodes that it keeps idle meanwhile would do for queued deployments.
        """
        context = self._context
        others = self._state.reservations(excluding=deployment.id)
        reservation = self._state.reservation_of(deployment.id)
        usable = context.breakers.usable(context.cluster.machines())
        machines = self._state.rested(usable, self._clock.now_s())
        if (
            fit(reservation.resources, machines, others, most_nodes=context.settings.most_nodes)
            is not None
        ):
            return True
        own = held([reservation])
        kept_idle = [machine for machine in machines if machine.node_id in own]
        if not kept_idle:
            return False
        for resources in {self._resources(work) for work in list(self._queued.values())}:
            if fit(resources, kept_idle, others) is not None:
                return True
        return False

    # --- what is to do

    def _show(self, step: SweepStep) -> None:
        self._context.tell(Phase(SWEEP, step))

    def _tell_standings(self) -> None:
        """Tell what earlier sweeps showed."""
        for lead in self._context.answer.leads():
            if lead.leader is not None:
                self._context.tell(self._context.answer.event(lead))

    def _tell_silence(self, text: str) -> None:
        self._context.tell(Event("cluster_silent", text))

    def _to_start(self) -> list[DeploymentWork]:
        """The queued deployments that will be started, as far as is known now."""
        return self._shortlist.expected(dict(self._queued))

    def _left_to_start(self) -> int:
        """How many measurements are left of the deployments that will be started."""
        left = 0
        for work in self._to_start():
            work.follow_race()
            left += work.left
        return left

    def _estimate_queued(self) -> list[float]:
        """Estimated seconds for each queued deployment that will be started."""
        return [work.rest_s(self._state.slowness, extra_starts=1) for work in self._to_start()]

    def _fill_queue(self) -> None:
        """Queue every deployment that this cluster may run and that has measurements without an ok
        commit.
        """
        plan = self._context.plan
        store = self._context.store
        deployments = on_this_cluster(plan.runnable(), self._context.cluster.machines())
        commits = store.commits(checked=True)
        spoilt = spoilt_of(store, commits, self._context.settings.most_again)
        ok = best_ok(commits, spoilt.verdicts)
        check_same(store, deployments, ok.values())
        committed = self._settled(commits, ok, spoilt)
        start_times = self._state.start_times
        works = [
            DeploymentWork(
                plan, deployment, committed, start_times, self._race, spoilt.spoilt_counts
            )
            for deployment in deployments
        ]
        for work in works:  # after all exist: each sees what others hold
            work.follow_race()
        self._context.answer.enter(works, store)
        for work in works:
            self._state.count(
                MeasurementCounts(skipped=work.earlier.skipped, refused=work.earlier.refused)
            )
            if work.earlier.refused:
                self._tell_refused(work)
            if work.left:
                self._queued[work.deployment.id] = work
            else:
                self._idle[work.deployment.id] = work
        self._tell_spoilt(spoilt, works)
        planned = {deployment.id for deployment in deployments}
        self._shortlist.chosen |= {commit.deployment_id for commit in commits} & planned
        self._order()

    def _settled(
        self, commits: Sequence[Committed], ok: dict[str, Committed], spoilt: SpoiltAttempts
    ) -> dict[str, Committed]:
        """The measurements that are not made again: by measurement id, the attempt that counts.

        ``ok``: the best attempt at each measurement that succeeded.
        """
        plan = self._context.plan
        store = self._context.store
        settled = {key: attempt for key, attempt in ok.items() if key not in spoilt.open}
        if not self._context.settings.retry_failed:
            failed = failed_by_configuration(store, commits)
            if any(load.searches for load in plan.loads):
                failed |= died_at(store, commits)
            settled = failed | settled
        if plan.needs_figures:
            with_figures = attempt_data(store, settled.values())
            settled = {attempt.measurement_id: attempt for attempt in with_figures}
        return settled

    def _tell_refused(self, work: DeploymentWork) -> None:
        text = f"{counted(work.earlier.refused, 'measurement')} failed before and would fail again"
        text = f"{text}; --retry-failed tries them again"
        self._context.tell(Event("refused", text, work.deployment.label))

    def _tell_spoilt(self, spoilt: SpoiltAttempts, works: Collection[DeploymentWork]) -> None:
        """Tell which spoilt measurements are made again, and which were tried often enough."""
        left: set[str] = set()
        done: set[str] = set()
        for work in works:
            left |= work.open
            done |= work.earlier.done
        again = [attempt for key, attempt in spoilt.open.items() if key in left]
        kept = [attempt for key, attempt in spoilt.kept.items() if key in done]
        self._state.count(MeasurementCounts(kept=len(kept)))
        if again:
            text = f"{counted(len(again), 'measurement')} open again: {spoilt.words(again)}"
            self._context.tell(Event("open_again", text))
        if kept:
            text = f"{counted(len(kept), 'measurement')} kept as they are: {spoilt.words(kept)}"
            text = f"{text}; --again {self._context.settings.most_again + 1} tries once more"
            self._context.tell(Event("kept", text))

    # --- the loop

    def _admit_all(self) -> None:
        """Start launches in the order of the queue, as nodes allow, until nothing is left, the
        budget is used up or the user stops the sweep. Raises what a launch raised, and ResultsError
        when the storage has refused for too long.
        """
        stop = self._context.stop
        try:
            while (self._queued or self._launched or self._race_moved()) and not stop.is_set():
                self._changed.clear()
                self._take_ended()
                self._follow_race()
                self._follow_answer()
                self._keep_to_budget()
                self._admit()
                if self._queued or self._launched:
                    self._wait_for_change()
            if stop.is_set():
                self._context.tell(
                    Event("stopping", "stopping: engines are ended, what is complete is kept")
                )
            self._tell_decided()
            # raises where rows are missing because the storage was given up
            self._context.may_start()
        finally:
            if self._launched:  # an early end: let every launch stop its point and its engine
                stop.set()
            while self._launched:
                self._clock.wait(self._changed, LOOK_S)
                self._changed.clear()
                self._take_ended(raising=False)
            self._context.cluster.desire([])

    def _wait_for_change(self) -> None:
        """Wait until a launch ends, for LOOK_S at most."""
        since_ns = self._clock.unix_ns()
        self._clock.wait(self._changed, LOOK_S)
        if not self._launched:
            # the sweep waits for nodes, for hosts of others, or for a pause to end: no overhead
            self._state.add_span((since_ns, self._clock.unix_ns()))

    def _follow_race(self) -> None:
        """Take deployments out of the queue that are beaten by now, and put back idle deployments
        that no longer are.
        """
        version_before = self._followed_version
        has_moved_work = False
        while self._race is not None and self._race_moved() and not self._context.stop.is_set():
            self._followed_version = self._race.version
            finished = self._finished_in_queue()
            reopened = self._reopened_idle()
            self._queued = _without(self._queued, finished) | reopened
            self._idle = _without(self._idle, reopened) | finished
            has_moved_work = has_moved_work or bool(finished or reopened)
            for work in finished.values():
                self._withdraw_launch(work)
                if work.stage is WorkStage.DOMINATED:
                    text = "it is not measured further: others hold more"
                    label = work.deployment.label
                    self._context.tell(Event("outraced", text, label, data={"left": work.left}))
        if self._followed_version == version_before:
            return
        if has_moved_work or any(work.races and work.has_begun for work in self._queued.values()):
            self._order()  # the order depends on how much load each deployment may still hold

    def _finished_in_queue(self) -> dict[str, DeploymentWork]:
        """Queued deployments, by id, that were begun and have nothing left."""
        finished: dict[str, DeploymentWork] = {}
        for deployment_id, work in self._queued.items():
            work.follow_race()
            if work.has_begun and work.stage in (WorkStage.DONE, WorkStage.DOMINATED):
                finished[deployment_id] = work
        return finished

    def _reopened_idle(self) -> dict[str, DeploymentWork]:
        """Idle deployments, by id, that have something left again."""
        reopened: dict[str, DeploymentWork] = {}
        for deployment_id, work in self._idle.items():
            work.follow_race()
            if work.left and self._context.answer.needs(deployment_id):
                reopened[deployment_id] = work
        return reopened

    def _follow_answer(self) -> None:
        """Take deployments out of the queue that need not be measured further, and put back those
        that have to be measured after all.
        """
        answer = self._context.answer
        if answer.within is None:
            return
        not_needed = {key: work for key, work in self._queued.items() if not answer.needs(key)}
        needed = {key: work for key, work in self._idle.items() if work.left and answer.needs(key)}
        if not (not_needed or needed):
            return
        self._queued = _without(self._queued, not_needed) | needed
        self._idle = _without(self._idle, needed) | not_needed
        for work in not_needed.values():
            self._withdraw_launch(work)
            if answer.is_decided:  # the user is told once, at the end
                continue
            share = f"{100 * answer.within:g} %"
            text = f"it is not measured further: it cannot be best by more than {share}"
            self._context.tell(Event("set_aside", text, work.deployment.label))
        self._order()

    def _left_unmeasured(self) -> LeftUnmeasured | None:
        """What was not measured because it can no longer be best."""
        answer = self._context.answer
        left = [work.left for work in self._idle.values() if work.left]
        if answer.within is None or not left or self._context.stop.is_set():
            return None
        return LeftUnmeasured(len(left), sum(left), answer.is_decided)

    def _tell_decided(self) -> None:
        """Tell what was not measured because it can no longer be best."""
        early = self._left_unmeasured()
        within = self._context.answer.within
        if early is None or within is None:
            return
        data = {"within": within, **asdict(early)}
        text = decided_words(early, within)
        self._context.tell(Event("decided", text, data=data))

    def _withdraw_launch(self, work: DeploymentWork) -> None:
        """Withdraw the queued launch of a deployment that need not be measured further."""
        self._state.withdraw(work.deployment)
        self._context.tell(Phase(work.deployment.label, PhaseName.REFUSED))

    def _race_moved(self) -> bool:
        """Whether searches have found something since the queue last followed the race."""
        return self._race is not None and self._followed_version != self._race.version

    def _keep_to_budget(self) -> None:
        """Drop queued deployments if the budget no longer pays for their next measurement and the
        start that it needs.

        The queue is checked when a launch has ended, and every QUEUE_S. That is enough, because the
        budget is also checked before each launch and each point.
        """
        if not self._context.budget.is_limited:
            return
        now_s = self._clock.now_s()
        is_checked = now_s < self._budget_checked_s + QUEUE_S
        if self._last_admission_inputs is not None and is_checked:
            return
        self._budget_checked_s = now_s
        spent = self._state.spent(now_s)
        queued_before = len(self._queued)
        for deployment_id, work in list(self._queued.items()):
            work.follow_race()
            over = self._context.budget.over(work.deployment, work.first_s(), spent=spent)
            if over is not None:
                leave_out(self._context, work, over)
                self._refuse(deployment_id)
        if len(self._queued) < queued_before:
            self._order()

    def _refuse(self, deployment_id: str) -> DeploymentWork:
        """Take a deployment out of the queue: it gets no launch in this sweep."""
        work = self._queued.pop(deployment_id)
        self._state.advance(work.deployment, LaunchEvent.REFUSED)
        self._context.tell(Phase(work.deployment.label, PhaseName.REFUSED))
        return work

    # --- admission

    def _admit(self) -> None:
        """Start what fits the present nodes, ask for nodes worth adding, and give up what no node
        will hold.

        The first two are done only when something has changed: otherwise nothing more can start.
        """
        context = self._context
        machines = context.cluster.machines()
        growth = context.cluster.growth()
        if not (machines or growth.may) and context.cluster.are_all_taken_back():
            self._stop_without_nodes()
            return
        usable = context.breakers.usable(machines)
        if self._starts_are_off():
            self._order()
        free = self._state.rested(usable, self._clock.now_s())
        inputs = AdmissionInputs(
            machines, usable, free, growth.may, growth.types, context.may_start()
        )
        if inputs != self._last_admission_inputs:
            may_start = self._start_and_ask(machines, free, growth)
            self._remember(replace(inputs, may_start=may_start))
            self._look_for_unplaceable(growth, machines)
            for resources in self._asked_for:
                ambiguous = resources.ambiguous_types(growth.types)
                if ambiguous is not None:
                    self._tell_autoscaler(f"{ambiguous.problem}; {ambiguous.remedy}")
        if self._asked_for or self._unplaceable_since:
            self._tell_autoscaler(growth.why_no_nodes())
        if self._unplaceable_since:
            self._give_up_without_room(machines, growth)

    def _remember(self, inputs: AdmissionInputs) -> None:
        """Remember these inputs, so that launches are chosen again only once others apply."""
        if self._blocked_by_budget:
            self._blocked_by_budget = False
            self._last_admission_inputs = None  # the budget may allow the next launch soon
        else:
            self._last_admission_inputs = inputs

    def _stop_without_nodes(self) -> None:
        """All nodes are being taken back: stop the sweep once the running launches have ended.
        Queued deployments are left for a later sweep, not given up.
        """
        if self._queued and not self._launched:
            self._context.tell(
                Event("taken_back", "all nodes are being taken back: run it on others to continue")
            )
            self._context.stop.set()

    def _start_and_ask(self, machines: list[Machine], free: list[Machine], growth: Growth) -> bool:
        """Start what fits, and ask for nodes worth adding. Returns whether launches may still
        start. ``free``: see ``AdmissionInputs``.
        """
        admitted: list[AdmittedLaunch] = []
        # how many new deployments the queue should hold: nodes may be asked for each of them
        ahead = max(1, len(machines)) if growth.may else 1
        try:
            may_start = self._context.may_start()
            while may_start:
                launch = self._admit_next(free, ahead)
                if launch is None:
                    break
                admitted.append(launch)
                may_start = self._context.may_start()
            self._asked_for = self._desire(machines, free, growth) if growth.may else set()
            # started last: by now the request for nodes counts the nodes of these launches as taken
            while admitted:
                self._start(admitted[0])
                del admitted[0]
        except BaseException:
            # the launches that were not started have no thread that would report their end
            self._ended += [EndedLaunch(launch.work) for launch in admitted]
            raise
        return may_start

    def _order(self) -> None:
        """Order the queue anew, by what is known now of priorities and of how long starts take."""
        self._start_factors_of_order = self._state.start_times.factors()
        self._queue = Queue(
            self._waiting(work) for key, work in self._queued.items() if self._shortlist.has(key)
        )
        self._last_admission_inputs = None

    def _starts_are_off(self) -> bool:
        """Whether the start times of some engine now differ by more than START_TOLERANCE from those
        that the queue was ordered by.
        """
        for engine, factor in self._state.start_times.factors().items():
            ordered_by = self._start_factors_of_order.get(engine, 1.0)
            if abs(factor - ordered_by) > START_TOLERANCE * ordered_by:
                return True
        return False

    def _resources(self, work: DeploymentWork) -> ResourceRequest:
        return resources_of(work.deployment, self._context.plan.isolation == "exclusive_node")

    def _waiting(self, work: DeploymentWork) -> Waiting:
        """A queued deployment as admission sees it."""
        estimate_s = work.estimate_s()
        queue_class = work.queue_class
        priority = self._priority.get(work.deployment.id, 0.0)
        if queue_class is QueueClass.CONTINUED:
            priority = work.standing
        return Waiting(
            work.deployment.id,
            self._resources(work),
            estimate_s,
            queue_class=queue_class,
            avoid=work.avoid,
            cost=cost_of(work.deployment, estimate_s),
            priority=priority,
        )

    def _fill_shortlist(self, ahead: int) -> None:
        """If not all deployments are started: put deployments on the shortlist until ``ahead`` of
        them that are new wait in the queue. Once the shortlist is full, the other deployments are
        dropped.
        """
        shortlist = self._shortlist
        others = shortlist.others(self._queued)
        if not others:
            return
        waiting = 0
        for deployment_id, work in self._queued.items():
            if shortlist.has(deployment_id) and not work.has_begun:
                waiting += 1
        for _ in range(min(ahead - waiting, shortlist.left, len(others))):
            chosen = choose_next(shortlist, self._queued, {*self._queued, *self._launched})
            others.remove(chosen)
            self._queue.add(self._waiting(self._queued[chosen]))
        if others and not shortlist.left:
            for deployment_id in others:
                self._refuse(deployment_id).drop()
                self._context.answer.leave_out(deployment_id)
            self._context.tell(not_started(len(others)))

    def _admit_next(self, machines: list[Machine], ahead: int) -> AdmittedLaunch | None:
        """Take the next launch from the queue and reserve its nodes; None if no launch can start.
        ``ahead``: see ``_fill_shortlist``.
        """
        self._fill_shortlist(ahead)
        reservations = self._state.reservations()
        now_s = self._clock.now_s()
        if len(reservations) >= MOST_LAUNCHES:
            return None
        pick = choose(self._queue, machines, reservations, now_s, self._context.settings.most_nodes)
        if pick is None:
            return None
        work = self._queued[pick.job.key]
        work.follow_race()
        over = self._context.budget.admit(work.deployment, work.first_s())
        self._blocked_by_budget = over is not None
        if self._blocked_by_budget:
            return None
        job = pick.job
        self._queue.remove(job)
        del self._queued[job.key]
        self._launched[job.key] = work
        self._once_placeable.add(job.resources)
        self._context.breakers.admitted(job.key)
        head = self._queued.get(pick.overtaken)
        overtaken = head.deployment if head is not None else None
        reservation = Reservation(job.resources, pick.nodes, now_s + job.estimate_s)
        self._state.admitted(work.deployment, reservation, work.avoid, overtaken)
        return AdmittedLaunch(work, pick.nodes)

    def _desire(
        self, machines: list[Machine], free: list[Machine], growth: Growth
    ) -> set[ResourceRequest]:
        """Ask the cluster for the nodes worth adding, within the budget; returns the requests that
        they are for. While the sweep pauses none are asked for, because it is unknown whether
        anything will run on them.

        Nodes that rest, or that others hold, count as taken: otherwise the cluster would take them
        for the nodes that it is asked for.
        """
        context = self._context
        reservations = self._state.reservations()
        now_s = self._clock.now_s()
        left = context.budget.left()
        for key, work in self._launched.items():
            rest_s = max(0.0, self._state.reservation_of(key).end_s - now_s)
            left -= cost_of(work.deployment, rest_s)
        queue = Queue() if context.breakers.paused() else self._waiting_anywhere()
        jobs = worth_adding(
            queue,
            free,
            reservations,
            left,
            context.settings.most_nodes,
            most_launches=MOST_LAUNCHES - len(reservations),
            types=growth.types,
        )
        free_ids = {machine.node_id for machine in free}
        not_free = {machine.node_id for machine in machines} - free_ids
        wanted = nodes_to_ask_for(jobs, machines, growth.types, context.settings.most_nodes)
        context.cluster.desire(wanted.footprints, held(reservations) | not_free)
        return wanted.requests

    def _waiting_anywhere(self) -> Queue:
        """The queue and, because new nodes would do for them, too, the launches that wait for hosts
        of others.
        """
        in_line = []
        for deployment_id in self._state.waiting():
            work = self._launched.get(deployment_id)
            if work is not None:
                in_line.append(self._waiting(work))
        return Queue([*self._queue, *in_line]) if in_line else self._queue

    def _start(self, launch: AdmittedLaunch) -> None:
        """Run a launch in a thread of its own."""
        work = launch.work

        def run() -> None:
            raised: BaseException | None = None
            try:
                LaunchLifecycle(self._context, work, launch.nodes, self).run()
            except BaseException as error:
                raised = error
            self._ended.append(EndedLaunch(work, raised))
            self._changed.set()

        self._clock.spawn(run, f"launch-{work.deployment.label}")

    def _take_ended(self, raising: bool = True) -> None:
        """Free the nodes of launches whose threads are over, and queue their deployments again if
        they have something left to measure. If ``raising``, raises what a thread raised.
        """
        while self._ended:
            ended = self._ended.pop(0)
            work = ended.work
            if self._launched.pop(work.deployment.id, None) is None:
                continue  # listed twice: an interrupt came while ``_start_and_ask`` started it
            is_queued_again = self._state.free_nodes(work.deployment)
            self._context.breakers.ended(work.deployment.id)
            self._last_admission_inputs = None
            work.follow_race()
            if work.left:
                self._queued[work.deployment.id] = work
                self._queue.add(self._waiting(work))
            else:
                self._idle[work.deployment.id] = work
                if is_queued_again:
                    self._withdraw_launch(work)
            if ended.raised is not None and raising:
                raise ended.raised

    # --- what no node can hold

    def _look_for_unplaceable(self, growth: Growth, machines: list[Machine]) -> None:
        """Note which requests the present nodes could not hold even if nothing ran there, once
        other nodes were asked for or none can come.
        """
        now_s = self._clock.now_s()
        before = self._unplaceable_since
        self._unplaceable_since = {}
        for resources in self._queued_resources():
            if self._could_hold(resources, machines):
                self._once_placeable.add(resources)
            elif self._is_unplaceable(resources, growth, machines, before):
                self._unplaceable_since[resources] = before.get(resources, now_s)

    def _queued_resources(self) -> list[ResourceRequest]:
        """The requests of the queued launches, each once, in the order of admission."""
        return list(dict.fromkeys(kind[0].resources for kind in self._queue.kinds()))

    def _could_hold(self, resources: ResourceRequest, machines: list[Machine]) -> bool:
        """Whether the machines could hold the request if nothing ran there."""
        if not resources.replicas:
            return True
        return (
            fit(resources, machines, (), most_nodes=self._context.settings.most_nodes) is not None
        )

    def _is_unplaceable(
        self,
        resources: ResourceRequest,
        growth: Growth,
        machines: list[Machine],
        before: Collection[ResourceRequest],
    ) -> bool:
        """Whether a request that the machines cannot hold counts as unplaceable: nodes for it were
        asked for, or none can come. ``before``: the requests that were unplaceable the last time.
        """
        if not growth.may or resources in self._asked_for:
            return True
        # during a pause no nodes are asked for; the wait begins anew after it
        if resources in before and not self._context.breakers.paused():
            return True
        most_nodes = self._context.settings.most_nodes
        return resources.least_nodes(machines, growth.types, most_nodes) > most_nodes

    def _give_up_without_room(self, machines: list[Machine], growth: Growth) -> None:
        """Give up deployments that have waited for nodes long enough."""
        context = self._context
        now_s = self._clock.now_s()
        is_shown = False
        for resources, since_s in list(self._unplaceable_since.items()):
            was_placeable = resources in self._once_placeable
            limit = resources.patience(
                machines,
                growth,
                was_placeable,
                context.settings.most_nodes,
                context.settings.placement_timeout_s,
            )
            waited_s = now_s - since_s
            if not is_shown:  # the live view shows only the first wait
                is_shown = True
                self._show_wait(resources, growth, waited_s, limit.seconds)
            if waited_s >= limit.seconds:
                text = _no_room(resources, machines, limit.reason)
                failure = Failure(FailureKind.NO_ROOM, text)
                if not self._give_up_all(resources, failure):
                    return

    def _show_wait(
        self, resources: ResourceRequest, growth: Growth, waited_s: float, limit_s: float
    ) -> None:
        """Show under the first launch with this request that it waits for nodes."""
        coming = ", ".join(
            f"{number} x {node_type} being set up" for node_type, number in growth.coming.items()
        )
        detail = f"{resources}; {coming}" if coming else str(resources)
        label = self._queued[self._jobs_for(resources)[0].key].deployment.label
        self._context.tell(Phase(label, PhaseName.WAIT_FOR_NODES, detail, waited_s, limit_s))

    def _jobs_for(self, resources: ResourceRequest) -> list[Waiting]:
        """The queued launches with this request."""
        jobs: list[Waiting] = []
        for kind in self._queue.kinds():
            if kind[0].resources == resources:
                jobs += kind
        return jobs

    def _give_up_all(self, resources: ResourceRequest, failure: Failure) -> bool:
        """Give up all deployments with this request. Returns false if the storage refuses
        meanwhile: then those that are left are given up later.
        """
        since_s = self._unplaceable_since.pop(resources)
        for job in self._jobs_for(resources):
            if not self._context.may_start():  # raises once the storage has refused for too long
                self._unplaceable_since[resources] = since_s
                return False
            self._queue.remove(job)
            self._give_up(self._refuse(job.key), failure)
        return True

    def _give_up(self, work: DeploymentWork, failure: Failure) -> None:
        """Commit a launch that was refused, and every measurement of its deployment, as failed."""
        context = self._context
        deployment = work.deployment
        self._last_admission_inputs = None
        row = launch_row(deployment, context.store.experiment, self._clock.unix_ns())
        label = deployment.label
        data = {"left": work.left}
        context.tell(Event("gave_up", failure.sentence, label, row.launch_id, data=data))
        try:
            give_up(context, self, work, failure, row)
        finally:
            store_launch(context, deployment, replace(row, **how_it_ended(failure)))

    def _tell_autoscaler(self, text: str) -> None:
        """Tell what the autoscaler says, unless the text is empty or only its numbers are new."""
        without_numbers = re.sub(r"\d+ x ", "", text)
        if not text or without_numbers in self._autoscaler_messages:
            return
        self._autoscaler_messages.add(without_numbers)
        self._context.tell(Event("autoscaler", text))


def _without(works: dict[str, DeploymentWork], ids: Collection[str]) -> dict[str, DeploymentWork]:
    """These deployments without those whose ids are given."""
    return {key: work for key, work in works.items() if key not in ids}


def _no_room(resources: ResourceRequest, machines: Sequence[Machine], why: str) -> str:
    """The sentence that says why a deployment is given up. ``why``: its last part."""
    has_gpus = any(machine.gpus for machine in machines)
    reason = ""
    if resources.gpus_on_a_node > 0 and machines and not has_gpus:
        reason = "no node has a GPU, so "
    nodes = counted(len(machines), "node")
    return f"No room: {reason}the cluster's {nodes} cannot hold {resources}, and {why}."
