"""A sweep: finds what is left to measure, starts launches as nodes allow, and ends when nothing is
left.

Running the same experiment again resumes it. The sweep's other files: see the package's docstring.
"""

import math
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.analysis.points import complete
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.cluster.base import Growth, Machine, NodeType
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.plan.model import Deployment
from orchestrator.plan.order import QueueClass, queue_priority
from orchestrator.results.events import SWEEP, Event, Phase, PhaseName, SweepStep
from orchestrator.results.records import Committed
from orchestrator.results.store import best_ok
from orchestrator.spec.load import counted
from orchestrator.sweep.admission import (
    Nodes,
    Queue,
    Running,
    Waiting,
    asked_for,
    choose,
    fit,
    held,
    worth_adding,
)
from orchestrator.sweep.competition import race_of, shortlist_of
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.default_hardware import check_same, on_this_cluster
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage
from orchestrator.sweep.earlier_attempts import SpoiltAttempts, died_at, refused, spoilt_of
from orchestrator.sweep.engine_start import EngineStart
from orchestrator.sweep.launch_lifecycle import LaunchLifecycle, give_up, leave_out
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.resource_request import ResourceRequest, resources_of
from orchestrator.sweep.state import SweepReport, cost_of, left_of

MOST_LAUNCHES = 64  # threads of the driver; each mostly waits
LOOK_S = 1.0  # how often nodes and budget are checked while nothing else happens
QUEUE_S = 10.0  # how often all that waits is looked at: 1,000 deployments take milliseconds
OFF = 0.1  # the queue is ordered again when start times differ from the estimates by this share


@dataclass(frozen=True, slots=True)
class AdmissionInputs:
    """What decides which launches start. As long as it stays the same, nothing more can start.

    ``usable``: the machines that do not rest after failures. ``free``: those of them whose hosts
    may be tried now. ``may_start``: neither the storage nor a pause keeps launches from starting.
    """

    machines: Sequence[Machine]
    usable: Sequence[Machine]
    free: Sequence[Machine]
    may_grow: bool
    types: Sequence[NodeType]
    may_start: bool


@dataclass(frozen=True, slots=True)
class EndedLaunch:
    """A launch whose thread is over, and what that raised."""

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
    """

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._clock = context.clock
        self._state = context.state
        # by deployment id: what waits for a launch, what has one, and what has nothing to measure
        # as long as others hold more
        self._queued: dict[str, DeploymentWork] = {}
        self._launched: dict[str, DeploymentWork] = {}
        self._idle: dict[str, DeploymentWork] = {}
        self._ended: list[EndedLaunch] = []
        self._changed = threading.Event()
        self._queue = Queue()  # the queued deployments as admission sees them
        self._priority = queue_priority(context.plan)
        self._ordered_by_starts: dict[str, float] = {}  # start times when the queue was ordered
        self._last_admission_inputs: AdmissionInputs | None = None  # None: decide again
        self._blocked_by_budget = False  # the running launches may leave too little for the next
        self._budget_checked_s = -math.inf
        # what some nodes could hold once: a lost node may come back
        self._once_placeable: set[ResourceRequest] = set()
        # what no nodes can hold, and since when
        self._unplaceable_since: dict[ResourceRequest, float] = {}
        self._asked_for: set[ResourceRequest] = set()  # of the autoscaler, at the last admission
        self._announced: set[str] = set()  # what the autoscaler said, without its numbers
        self._race = race_of(context.plan)
        self._followed_version = 0  # of the race
        self._shortlist = shortlist_of(context.plan, self._race, self._priority)
        self._queued_rest_s = CachedFor(self._estimate_queued, QUEUE_S, self._clock.now_s)

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet."""
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
        context.cluster.watch(self._tell_silence, context.stop)
        self._show(SweepStep.CHECK_NODES)
        for text in context.cluster.check_nodes() if total else ():
            context.tell(Event("node_silent", text))
        self._show(SweepStep.ENDED)
        with context.patient():
            self._admit_all()
        left = self._left_to_start()
        if self._state.counts.measured and not left:
            self._show(SweepStep.JOIN_REPEATS)
            complete(context.store)
            self._show(SweepStep.ENDED)
        wall_s = self._clock.now_s() - began_s
        overhead = self._state.overhead_share((began_ns, began_ns + int(wall_s * 1e9)))
        return SweepReport(self._state.counts, wall_s, overhead, left)

    # --- what a launch asks about the others: see ``Outlook``

    def left_s(self) -> float:
        """Estimated time until all is measured: with as many launches in parallel as now, and at
        least the longest.
        """
        slowness = self._state.slowness
        launched = [work.rest_s(slowness) for work in list(self._launched.values())]
        queued = self._queued_rest_s() if self._queued else []
        return max([sum(launched + queued) / max(1, len(launched)), *launched, *queued])

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that its nodes go to deployments of its race that wait for
        them: those that were not probed yet, and those that may hold more.
        """
        if not work.can_yield:
            return False
        first = [
            other
            for other in list(self._queued.values())
            if not other.has_begun or other.standing > work.standing
        ]
        if not first:
            return False
        machines = self._context.breakers.usable(self._context.cluster.machines())
        others = self._state.running(but=work.deployment.id)
        most_nodes = self._context.most_nodes
        for resources in {self._resources(other) for other in first}:
            if fit(resources, machines, others, most_nodes=most_nodes) is not None:
                return True
        return False

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again, because other nodes are free
        for it, or because those that it holds meanwhile would do for deployments that wait.
        """
        context = self._context
        others = self._state.running(but=deployment.id)
        launch = self._state.running_launch(deployment.id)
        usable = context.breakers.usable(context.cluster.machines())
        machines = self._state.rested(usable, self._clock.now_s())
        if fit(launch.resources, machines, others, most_nodes=context.most_nodes) is not None:
            return True
        own = held([launch])
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

    def _tell_silence(self, text: str) -> None:
        self._context.tell(Event("cluster_silent", text))

    def _to_start(self) -> list[DeploymentWork]:
        """The queued deployments, as far as they will be started."""
        return self._shortlist.expected(dict(self._queued))

    def _left_to_start(self) -> int:
        """How many measurements are left of the deployments that will be started."""
        left = 0
        for work in self._to_start():
            work.follow_race()
            left += work.left
        return left

    def _estimate_queued(self) -> list[float]:
        """Estimated seconds for each deployment that will be started."""
        return [work.rest_s(self._state.slowness, more_starts=1) for work in self._to_start()]

    def _fill_queue(self) -> None:
        """Queue every deployment that this cluster may run and that has measurements without an ok
        commit.
        """
        plan = self._context.plan
        store = self._context.store
        deployments = on_this_cluster(plan.runnable(), self._context.cluster.machines())
        commits = store.commits(checked=True)
        spoilt = spoilt_of(store, commits, self._context.most_again)
        ok = best_ok(commits, spoilt.verdicts)
        check_same(store, deployments, ok.values())
        committed = self._settled(commits, ok, spoilt)
        works = [
            DeploymentWork(plan, one, committed, self._state.starts, self._race, spoilt.tries)
            for one in deployments
        ]
        for work in works:  # after all exist: each sees what others hold
            work.follow_race()
            self._state.count(skipped=work.skipped, refused=work.refused)
            if work.refused:
                self._tell_refused(work)
            place = self._queued if work.left else self._idle
            place[work.deployment.id] = work
        self._tell_spoilt(spoilt, works)
        planned = {deployment.id for deployment in deployments}
        self._shortlist.chosen |= {commit.deployment_id for commit in commits} & planned
        self._order()

    def _settled(
        self, commits: Sequence[Committed], ok: dict[str, Committed], spoilt: SpoiltAttempts
    ) -> dict[str, Committed]:
        """The measurements that are not made again, by id, with the attempt that counts."""
        plan = self._context.plan
        store = self._context.store
        settled = {name: attempt for name, attempt in ok.items() if name not in spoilt.open}
        if not self._context.retry_failed:
            failed = refused(store, commits)
            if any(load.searches for load in plan.loads):
                failed |= died_at(store, commits)
            settled = failed | settled
        if plan.needs_figures:
            with_figures = attempt_data(store, settled.values())
            settled = {attempt.measurement_id: attempt for attempt in with_figures}
        return settled

    def _tell_refused(self, work: DeploymentWork) -> None:
        text = f"{counted(work.refused, 'measurement')} failed before and would fail again"
        text = f"{text}; --retry-failed tries them again"
        self._context.tell(Event("refused", text, work.deployment.label))

    def _tell_spoilt(self, spoilt: SpoiltAttempts, works: Collection[DeploymentWork]) -> None:
        """Say what is measured again because it was spoilt, and what no longer is."""
        left: set[str] = set()
        done: set[str] = set()
        for work in works:
            left |= work.open
            done |= work.done
        again = [attempt for name, attempt in spoilt.open.items() if name in left]
        kept = [attempt for name, attempt in spoilt.kept.items() if name in done]
        self._state.count(kept=len(kept))
        if again:
            text = f"{counted(len(again), 'measurement')} open again: {spoilt.words(again)}"
            self._context.tell(Event("open_again", text))
        if kept:
            text = f"{counted(len(kept), 'measurement')} kept as they are: {spoilt.words(kept)}"
            text = f"{text}; --again {self._context.most_again + 1} tries once more"
            self._context.tell(Event("kept", text))

    # --- the loop

    def _admit_all(self) -> None:
        """Start what fits, in order, until nothing is left, the budget is used up or the user stops
        the sweep.
        """
        stop = self._context.stop
        try:
            while (self._queued or self._launched or self._race_moved()) and not stop.is_set():
                self._changed.clear()
                self._take_ended()
                self._follow_race()
                self._keep_to_budget()
                self._admit()
                if self._queued or self._launched:
                    self._wait_for_change()
            if stop.is_set():
                self._context.tell(
                    Event("stopping", "stopping: engines are ended, what is complete is kept")
                )
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
        if not self._launched:  # for nodes, for hosts of others, or for a pause to end
            self._state.add_span((since_ns, self._clock.unix_ns()))

    def _follow_race(self) -> None:
        """Take deployments that are beaten by now out of the queue, and put back those that no
        longer are.
        """
        version_before = self._followed_version
        changed = False
        while self._race is not None and self._race_moved() and not self._context.stop.is_set():
            self._followed_version = self._race.version
            over = self._over_in_queue()
            back = self._back_from_idle()
            self._queued = _without(self._queued, over) | back
            self._idle = _without(self._idle, back) | over
            changed = changed or bool(over or back)
            for work in over.values():
                if work.stage is WorkStage.DOMINATED:
                    text = "it is not measured further: others hold more"
                    self._context.tell(Event("outraced", text, work.deployment.label))
        if self._followed_version == version_before:
            return
        if changed or any(work.races and work.has_begun for work in self._queued.values()):
            self._order()  # by how much each may still hold

    def _over_in_queue(self) -> dict[str, DeploymentWork]:
        """Queued deployments, by id, that were begun and have nothing left."""
        over: dict[str, DeploymentWork] = {}
        for name, work in self._queued.items():
            work.follow_race()
            if work.has_begun and work.stage in (WorkStage.DONE, WorkStage.DOMINATED):
                over[name] = work
        return over

    def _back_from_idle(self) -> dict[str, DeploymentWork]:
        """Idle deployments, by id, that have something left again."""
        back: dict[str, DeploymentWork] = {}
        for name, work in self._idle.items():
            work.follow_race()
            if work.left:
                back[name] = work
        return back

    def _race_moved(self) -> bool:
        """Whether searches have found something since the queue last followed the race."""
        return self._race is not None and self._followed_version != self._race.version

    def _keep_to_budget(self) -> None:
        """Drop deployments whose next measurement, with the start it needs, the budget no longer
        pays for. Looked at when a launch ended, and every QUEUE_S: before each launch and point the
        budget is asked anyway.
        """
        if self._context.plan.budget is None:
            return
        now_s = self._clock.now_s()
        is_checked = now_s < self._budget_checked_s + QUEUE_S
        if self._last_admission_inputs is not None and is_checked:
            return
        self._budget_checked_s = now_s
        spent = self._state.spent(now_s)
        queued_before = len(self._queued)
        for name, work in list(self._queued.items()):
            work.follow_race()
            over = self._context.over_budget(work.deployment, work.first_s(), spent=spent)
            if over is not None:
                leave_out(self._context, work, over)
                self._refuse(name)
        if len(self._queued) < queued_before:
            self._order()

    def _refuse(self, deployment_id: str) -> DeploymentWork:
        """Take a deployment out of the queue: it gets no launch in this sweep."""
        work = self._queued.pop(deployment_id)
        self._state.advance(work.deployment, LaunchEvent.REFUSED)
        return work

    # --- admission

    def _admit(self) -> None:
        """Start what fits the nodes of now, ask for nodes worth adding, give up what no node will
        hold.

        As long as nothing changed nothing more can start, and only the last of these three is
        looked at.
        """
        context = self._context
        machines = context.cluster.machines()
        growth = context.cluster.growth()
        if not (machines or growth.may) and context.node_events.are_all_taken_back():
            self._wait_for_the_end()
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
                self._tell_autoscaler(resources.ambiguous_types(growth.types))
        if self._asked_for or self._unplaceable_since:
            self._tell_autoscaler(str(growth))
        if self._unplaceable_since:
            self._give_up_without_room(machines, growth)

    def _remember(self, inputs: AdmissionInputs) -> None:
        """Decide again only when something else than ``inputs`` is the case."""
        if self._blocked_by_budget:
            self._blocked_by_budget = False
            self._last_admission_inputs = None  # the budget may allow the next launch soon
        else:
            self._last_admission_inputs = inputs

    def _wait_for_the_end(self) -> None:
        """All nodes are being taken back: end the sweep in order once what runs has ended, and give
        up nothing.
        """
        if self._queued and not self._launched:
            self._context.tell(
                Event("taken_back", "all nodes are being taken back: run it on others to continue")
            )
            self._context.stop.set()

    def _start_and_ask(self, machines: list[Machine], free: list[Machine], growth: Growth) -> bool:
        """Start what fits, and ask for nodes worth adding. Returns whether launches may still
        start.
        """
        admitted: list[AdmittedLaunch] = []
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
            while admitted:  # after the request for nodes has moved off those that were picked
                self._start(admitted[0])
                del admitted[0]
        except BaseException:
            # no thread of theirs will report the end
            self._ended += [EndedLaunch(launch.work) for launch in admitted]
            raise
        return may_start

    def _order(self) -> None:
        """Order the queue by what is known now of how long starts take."""
        self._ordered_by_starts = dict(self._state.starts)
        self._queue = Queue(
            self._waiting(work) for name, work in self._queued.items() if self._shortlist.has(name)
        )
        self._last_admission_inputs = None

    def _starts_are_off(self) -> bool:
        """Whether some engine's starts now take longer or shorter than when the queue was ordered."""
        for engine, factor in self._state.start_factors():
            ordered_by = self._ordered_by_starts.get(engine, 1.0)
            if abs(factor - ordered_by) > OFF * ordered_by:
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

    def _choose(self, ahead: int) -> None:
        """Choose deployments until ``ahead`` of those that were never probed wait, where not all
        are started.
        """
        shortlist = self._shortlist
        others = shortlist.others(self._queued)
        if not others:
            return
        new = [work for name, work in self._queued.items() if shortlist.has(name)]
        waiting = sum(not work.has_begun for work in new)
        for _ in range(min(ahead - waiting, shortlist.left, len(others))):
            fitting = [name for name in others if self._queued[name].deployment.status != "risky"]
            name = shortlist.choose(fitting or others, {*self._queued, *self._launched})
            others.remove(name)
            self._queue.add(self._waiting(self._queued[name]))
        if others and not shortlist.left:
            for name in others:
                self._refuse(name).drop()
            number = counted(len(others), "deployment")
            text = f"not started: {number}, since max_deployments allows no more"
            self._context.tell(Event("not_started", text, data={"deployments": len(others)}))

    def _admit_next(self, machines: list[Machine], ahead: int) -> AdmittedLaunch | None:
        """Take the next launch from the queue, choose its nodes and count it as running; None if
        none can start.
        """
        self._choose(ahead)
        running = self._state.running()
        now_s = self._clock.now_s()
        if len(running) >= MOST_LAUNCHES:
            return None
        pick = choose(self._queue, machines, running, now_s, self._context.most_nodes)
        if pick is None:
            return None
        work = self._queued[pick.job.key]
        work.follow_race()
        over = self._context.admit(work.deployment, work.first_s())
        self._blocked_by_budget = over is not None
        if self._blocked_by_budget:
            return None
        job = pick.job
        self._queue.remove(job)
        del self._queued[job.key]
        self._launched[job.key] = work
        self._once_placeable.add(job.resources)
        self._context.breakers.admitted(job.key)
        head = self._queued.get(pick.ahead)
        overtaken = head.deployment if head is not None else None
        running_launch = Running(job.resources, pick.nodes, now_s + job.estimate_s)
        self._state.admitted(work.deployment, running_launch, work.avoid, overtaken)
        return AdmittedLaunch(work, pick.nodes)

    def _desire(
        self, machines: list[Machine], free: list[Machine], growth: Growth
    ) -> set[ResourceRequest]:
        """Ask the cluster for the nodes worth adding, within the budget; returns for what they are.
        Nodes that rest, or that others hold, are none of them: the cluster would think that it has
        what is asked for.

        Asks for none while the sweep pauses, because it is unknown whether anything will run on
        them.
        """
        context = self._context
        running = self._state.running()
        now_s = self._clock.now_s()
        left = left_of(context.plan.budget, self._state.spent(now_s))
        for key, work in self._launched.items():
            rest_s = max(0.0, self._state.running_launch(key).end_s - now_s)
            left -= cost_of(work.deployment, rest_s)
        queue = Queue() if context.breakers.paused() else self._waiting_anywhere()
        launches = MOST_LAUNCHES - len(running)
        jobs = worth_adding(queue, free, running, left, context.most_nodes, launches, growth.types)
        unusable = {machine.node_id for machine in machines} - {one.node_id for one in free}
        wanted, asked = asked_for(jobs, machines, growth.types, context.most_nodes)
        context.cluster.desire(wanted, held(running) | unusable)
        return asked

    def _waiting_anywhere(self) -> Queue:
        """The queue, and what waits for hosts of others: new nodes would do for that, too."""
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
        """Free the nodes of launches that are over, and queue again what is left of them. Raises
        what they raised.
        """
        while self._ended:
            ended = self._ended.pop(0)
            work = ended.work
            if self._launched.pop(work.deployment.id, None) is None:
                continue  # listed twice after an interrupt
            self._state.ended(work.deployment)
            self._context.breakers.ended(work.deployment.id)
            self._last_admission_inputs = None
            work.follow_race()
            if work.left:
                self._queued[work.deployment.id] = work
                self._queue.add(self._waiting(work))
            else:
                self._idle[work.deployment.id] = work
            if ended.raised is not None and raising:
                raise ended.raised

    # --- what no node can hold

    def _look_for_unplaceable(self, growth: Growth, machines: list[Machine]) -> None:
        """Note what no nodes could hold even if nothing ran, once nodes were asked for or none can
        come.
        """
        now_s = self._clock.now_s()
        before = self._unplaceable_since
        self._unplaceable_since = {}
        for resources in self._queued_resources():
            if self._could_hold(resources, machines):
                self._once_placeable.add(resources)
            elif self._has_waited(resources, growth, machines, before):
                self._unplaceable_since[resources] = before.get(resources, now_s)

    def _queued_resources(self) -> list[ResourceRequest]:
        """What the queued launches take, each once, in the order of admission."""
        return list(dict.fromkeys(kind[0].resources for kind in self._queue.kinds()))

    def _could_hold(self, resources: ResourceRequest, machines: list[Machine]) -> bool:
        """Whether the machines could hold it if nothing ran there."""
        if not resources.replicas:
            return True
        return fit(resources, machines, (), most_nodes=self._context.most_nodes) is not None

    def _has_waited(
        self,
        resources: ResourceRequest,
        growth: Growth,
        machines: list[Machine],
        before: Collection[ResourceRequest],
    ) -> bool:
        """Whether nodes were asked for in vain, or none can come."""
        if not growth.may or resources in self._asked_for:
            return True
        # after a pause nodes are asked for again
        if resources in before and not self._context.breakers.paused():
            return True
        most_nodes = self._context.most_nodes
        return resources.least_nodes(machines, growth.types, most_nodes) > most_nodes

    def _give_up_without_room(self, machines: list[Machine], growth: Growth) -> None:
        """Give up deployments that have waited for nodes long enough."""
        context = self._context
        now_s = self._clock.now_s()
        limits = (context.most_nodes, context.placement_timeout_s)
        is_first = True
        for resources, since_s in list(self._unplaceable_since.items()):
            was_placeable = resources in self._once_placeable
            limit_s, why = resources.patience(machines, growth, was_placeable, *limits)
            waited_s = now_s - since_s
            if is_first:  # one is enough for the live view
                is_first = False
                self._show_wait(resources, growth, waited_s, limit_s)
            if waited_s >= limit_s:
                failure = Failure(FailureKind.NO_ROOM, _no_room(resources, machines, why))
                if not self._give_up_all(resources, failure):
                    return

    def _show_wait(
        self, resources: ResourceRequest, growth: Growth, waited_s: float, limit_s: float
    ) -> None:
        coming = ", ".join(f"{n} x {kind} being set up" for kind, n in growth.coming.items())
        says = f"{resources}; {coming}" if coming else str(resources)
        label = self._queued[self._jobs_for(resources)[0].key].deployment.label
        self._context.tell(Phase(label, PhaseName.WAIT_FOR_NODES, says, waited_s, limit_s))

    def _jobs_for(self, resources: ResourceRequest) -> list[Waiting]:
        """The queued launches that take just that."""
        kinds = [kind for kind in self._queue.kinds() if kind[0].resources == resources]
        return [job for kind in kinds for job in kind]

    def _give_up_all(self, resources: ResourceRequest, failure: Failure) -> bool:
        """Give up all deployments that take just that. Returns false if the storage refuses
        meanwhile: then the rest is given up later.
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
        """Commit a launch that never got nodes, and every measurement of it, as failed."""
        self._last_admission_inputs = None
        label = work.deployment.label
        launch = EngineStart(self._context, work.deployment, ())
        self._context.tell(Event("gave_up", failure.sentence, label, launch.row.launch_id))
        try:
            give_up(self._context, self, work, failure, launch.row)
        finally:
            launch.commit(failure)
            self._context.tell(Phase(label, PhaseName.ENDED))

    def _tell_autoscaler(self, text: str) -> None:
        """Tell what the autoscaler says, unless it is empty or only its numbers are new."""
        without_numbers = re.sub(r"\d+ x ", "", text)
        if not text or without_numbers in self._announced:
            return
        self._announced.add(without_numbers)
        self._context.tell(Event("autoscaler", text))


def _without(works: dict[str, DeploymentWork], names: Collection[str]) -> dict[str, DeploymentWork]:
    """The others of these deployments."""
    return {name: work for name, work in works.items() if name not in names}


def _no_room(resources: ResourceRequest, machines: Sequence[Machine], why: str) -> str:
    """Why a deployment is given up, as a sentence."""
    has_gpus = any(machine.gpus for machine in machines)
    first = ""
    if resources.gpus > 0 and machines and not has_gpus:
        first = "no node has a GPU, so "
    nodes = counted(len(machines), "node")
    return f"No room: {first}the cluster's {nodes} cannot hold {resources}, and {why}."
