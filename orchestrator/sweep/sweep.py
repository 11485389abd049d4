"""A sweep finds what is left to measure, starts launches as nodes allow, and ends when nothing is
left.

Running the same experiment again continues it. The package's docstring names the sweep's other
files.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from orchestrator.analysis.points import compute_ahead
from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.base.text import counted
from orchestrator.cluster.base import Growth, Machine, NodeType
from orchestrator.results.events import Event
from orchestrator.results.phases import SWEEP, Phase, PhaseName, SweepStep
from orchestrator.sweep.admission import (
    Nodes,
    Queue,
    Reservation,
    choose,
    held,
    nodes_to_ask_for,
    worth_adding,
)
from orchestrator.sweep.commit import how_it_ended, launch_row
from orchestrator.sweep.competition import choose_next, not_started, race_of
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage
from orchestrator.sweep.followed_race import FollowedRace
from orchestrator.sweep.launch_lifecycle import LaunchLifecycle, give_up, leave_out
from orchestrator.sweep.launch_notes import store_launch
from orchestrator.sweep.launch_queue import LaunchQueue
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.left_to_measure import left_to_measure
from orchestrator.sweep.node_shortage import NodeShortage, WaitForNodes
from orchestrator.sweep.resource_request import ResourceRequest
from orchestrator.sweep.roster import Place, Roster
from orchestrator.sweep.state import (
    LeftUnmeasured,
    SweepReport,
    cost_of,
)
from orchestrator.sweep.sweep_outlook import QUEUE_S, SweepOutlook
from orchestrator.sweep.words import decided_words

MOST_LAUNCHES = 64  # threads of the driver; each mostly waits
LOOK_S = 1.0  # how often nodes and budget are checked while nothing else happens


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


class EndedLaunches:
    """Launches whose threads are over, until the sweep takes them. Threads of launches add to it.

    ``changed``: set when a launch was added.
    """

    def __init__(self) -> None:
        self._launches: list[EndedLaunch] = []
        self.changed = threading.Event()

    def add(self, launch: EndedLaunch) -> None:
        self._launches.append(launch)
        self.changed.set()

    def take(self) -> EndedLaunch | None:
        """The launch that ended first, or None."""
        return self._launches.pop(0) if self._launches else None


@dataclass(slots=True)
class LastAdmission:
    """What the sweep looked at when it last chose launches. ``inputs``: None: choose again.

    ``is_blocked_by_budget``: the running launches may leave too little of the budget for the next
    launch. ``budget_checked_s``: when the whole queue was last checked against the budget.
    """

    inputs: AdmissionInputs | None = None
    is_blocked_by_budget: bool = False
    budget_checked_s: float = -math.inf

    def remember(self, inputs: AdmissionInputs) -> None:
        """Remember these inputs, so that launches are chosen again only once others apply."""
        if self.is_blocked_by_budget:
            self.is_blocked_by_budget = False
            self.inputs = None  # the budget may allow the next launch soon
        else:
            self.inputs = inputs

    def forget(self) -> None:
        """Something has changed: choose launches again."""
        self.inputs = None


@dataclass(frozen=True, slots=True)
class AdmittedLaunch:
    """A launch that was taken from the queue, and the nodes that it gets."""

    work: DeploymentWork
    nodes: Nodes


class Sweep:
    """Runs a plan on a cluster and commits into a store. One thread admits launches; each launch
    has its own thread.

    Where each deployment is, the roster says (``Place``); in which state its launch is, the launch's
    record (``LaunchState``); and how far the work on it is, ``WorkStage``.
    """

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._race = FollowedRace(race_of(context.plan), seen_version=0)
        self._roster = Roster()
        self._queue = LaunchQueue(
            context.plan, self._roster, self._race.race, context.state.start_times
        )
        self._outlook = SweepOutlook(context, self._roster, self._queue)
        self._shortage = NodeShortage(context)
        self._last_admission = LastAdmission()
        self._ended = EndedLaunches()

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet. Raises ResultsError when the storage has
        refused for too long, and what a launch raised.
        """
        context = self._context
        began_ns = context.clock.unix_ns()
        began_s = context.clock.now_s()
        self._show(SweepStep.READ_RESULTS)
        self._fill_queue()
        self._show(SweepStep.STORE_PLAN)
        context.store.write_plan(context.plan.to_json())
        total = self._queue.left_to_start()
        skipped = context.state.counts.skipped
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
        left = self._queue.left_to_start()
        counts = context.state.counts
        if counts.measured and not left:
            self._show(SweepStep.JOIN_REPEATS)
            compute_ahead(context.store)
            self._show(SweepStep.ENDED)
        wall_s = context.clock.now_s() - began_s
        overhead = context.state.overhead_share(UnixSpan(began_ns, began_ns + int(wall_s * 1e9)))
        return SweepReport(counts, wall_s, overhead, left, self._left_unmeasured())

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

    def _fill_queue(self) -> None:
        """Queue every deployment that this cluster may run and that has measurements without an ok
        commit.
        """
        left = left_to_measure(self._context, self._race.race)
        for work in left.works:
            self._roster.put(work, Place.QUEUED if work.left else Place.IDLE)
        self._queue.shortlist.chosen |= left.started
        self._order()

    # --- the loop

    def _admit_all(self) -> None:
        """Start launches in the order of the queue, as nodes allow, until nothing is left, the
        budget is used up or the user stops the sweep. Raises what a launch raised, and ResultsError
        when the storage has refused for too long.
        """
        stop = self._context.stop
        try:
            while (self._roster.has_work or self._race.has_moved) and not stop.is_set():
                self._ended.changed.clear()
                self._take_ended()
                self._follow_race()
                self._follow_answer()
                self._keep_to_budget()
                self._admit()
                if self._roster.has_work:
                    self._wait_for_change()
            if stop.is_set():
                self._context.tell(
                    Event("stopping", "stopping: engines are ended, what is complete is kept")
                )
            self._tell_decided()
            # raises where rows are missing because the storage was given up
            self._context.may_start()
        finally:
            if self._roster.launched:
                stop.set()  # an early end: let every launch stop its point and its engine
            while self._roster.launched:
                self._context.clock.wait(self._ended.changed, LOOK_S)
                self._ended.changed.clear()
                self._take_ended(raising=False)
            self._context.cluster.desire([])

    def _wait_for_change(self) -> None:
        """Wait until a launch ends, for LOOK_S at most."""
        since_ns = self._context.clock.unix_ns()
        self._context.clock.wait(self._ended.changed, LOOK_S)
        if not self._roster.launched:
            # the sweep waits for nodes, for hosts of others, or for a pause to end: no overhead
            self._context.state.add_span(UnixSpan(since_ns, self._context.clock.unix_ns()))

    def _follow_race(self) -> None:
        """Take deployments out of the queue that are beaten by now, and put back idle deployments
        that no longer are.
        """
        is_behind = False
        has_moved_work = False
        while self._race.has_moved and not self._context.stop.is_set():
            is_behind = True
            self._race.look()
            finished = self._finished_in_queue()
            reopened = self._reopened_idle()
            for work in reopened:
                self._roster.put(work, Place.QUEUED)
            for work in finished:
                self._roster.put(work, Place.IDLE)
            has_moved_work = has_moved_work or bool(finished or reopened)
            for work in finished:
                self._withdraw_launch(work)
                if work.stage is WorkStage.DOMINATED:
                    text = "it is not measured further: others hold more"
                    label = work.deployment.label
                    self._context.tell(Event("outraced", text, label, data={"left": work.left}))
        if not is_behind:
            return
        queued = self._roster.queued.values()
        if has_moved_work or any(work.races and work.has_begun for work in queued):
            self._order()  # the order depends on how much load each deployment may still hold

    def _finished_in_queue(self) -> list[DeploymentWork]:
        """Queued deployments that were begun and have nothing left."""
        finished: list[DeploymentWork] = []
        for work in self._roster.queued.values():
            work.follow_race()
            if work.has_begun and work.stage in (WorkStage.DONE, WorkStage.DOMINATED):
                finished.append(work)
        return finished

    def _reopened_idle(self) -> list[DeploymentWork]:
        """Idle deployments that have something left again."""
        reopened: list[DeploymentWork] = []
        for deployment_id, work in self._roster.idle.items():
            work.follow_race()
            if work.left and self._context.answer.needs(deployment_id):
                reopened.append(work)
        return reopened

    def _follow_answer(self) -> None:
        """Take deployments out of the queue that need not be measured further, and put back those
        that have to be measured after all.
        """
        answer = self._context.answer
        if answer.within is None:
            return
        not_needed = [work for key, work in self._roster.queued.items() if not answer.needs(key)]
        needed = [
            work for key, work in self._roster.idle.items() if work.left and answer.needs(key)
        ]
        if not (not_needed or needed):
            return
        for work in needed:
            self._roster.put(work, Place.QUEUED)
        for work in not_needed:
            self._roster.put(work, Place.IDLE)
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
        left = [work.left for work in self._roster.idle.values() if work.left]
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
        self._context.state.withdraw(work.deployment)
        self._context.tell(Phase(work.deployment.label, PhaseName.REFUSED))

    def _keep_to_budget(self) -> None:
        """Drop queued deployments if the budget no longer pays for their next measurement and the
        start that it needs.

        The queue is checked when a launch has ended, and every QUEUE_S. That is enough, because the
        budget is also checked before each launch and each point.
        """
        if not self._context.budget.is_limited:
            return
        now_s = self._context.clock.now_s()
        last = self._last_admission
        if last.inputs is not None and now_s < last.budget_checked_s + QUEUE_S:
            return
        last.budget_checked_s = now_s
        spent = self._context.state.spent(now_s)
        queued_before = len(self._roster.queued)
        for work in list(self._roster.queued.values()):
            work.follow_race()
            over = self._context.budget.over(work.deployment, work.first_s(), spent=spent)
            if over is not None:
                leave_out(self._context, work, over)
                self._refuse(work)
        if len(self._roster.queued) < queued_before:
            self._order()

    def _refuse(self, work: DeploymentWork) -> None:
        """Take a deployment out of the queue: it gets no launch in this sweep."""
        self._roster.put(work, Place.DROPPED)
        self._context.state.advance(work.deployment, LaunchEvent.REFUSED)
        self._context.tell(Phase(work.deployment.label, PhaseName.REFUSED))

    # --- admission

    def _admit(self) -> None:
        """Start what fits the present nodes, ask for nodes worth adding, and give up what no node
        will hold.

        The first two are done only when something has changed: otherwise nothing more can start.
        """
        context = self._context
        machines = context.cluster.machines()
        growth = context.cluster.growth()
        if not (machines or growth.may_grow) and context.cluster.are_all_taken_back():
            self._stop_without_nodes()
            return
        usable = context.breakers.usable(machines)
        if self._queue.starts_are_off():
            self._order()
        free = self._context.state.that_may_be_tried(usable, self._context.clock.now_s())
        inputs = AdmissionInputs(
            machines, usable, free, growth.may_grow, growth.types, context.may_start()
        )
        if inputs != self._last_admission.inputs:
            may_start = self._start_and_ask(machines, free, growth)
            self._last_admission.remember(replace(inputs, may_start=may_start))
            self._shortage.update(self._queue.requests(), growth, machines)
            for resources in self._shortage.asked_for:
                ambiguous = resources.ambiguous_types(growth.types)
                if ambiguous is not None:
                    self._shortage.tell_autoscaler(f"{ambiguous.problem}; {ambiguous.remedy}")
        if self._shortage.asked_for or self._shortage.exists:
            self._shortage.tell_autoscaler(growth.why_no_nodes())
        if self._shortage.exists:
            self._give_up_without_room(machines, growth)

    def _stop_without_nodes(self) -> None:
        """All nodes are being taken back: stop the sweep once the running launches have ended.
        Queued deployments are left for a later sweep, not given up.
        """
        if self._roster.queued and not self._roster.launched:
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
        ahead = max(1, len(machines)) if growth.may_grow else 1
        try:
            may_start = self._context.may_start()
            while may_start:
                launch = self._admit_next(free, ahead)
                if launch is None:
                    break
                admitted.append(launch)
                may_start = self._context.may_start()
            asked_for = self._desire(machines, free, growth) if growth.may_grow else set()
            self._shortage.asked_for = asked_for
            # started last: by now the request for nodes counts the nodes of these launches as taken
            while admitted:
                self._start(admitted[0])
                del admitted[0]
        except BaseException:
            # the launches that were not started have no thread that would report their end
            for launch in admitted:
                self._ended.add(EndedLaunch(launch.work))
            raise
        return may_start

    def _order(self) -> None:
        """Order the queue anew."""
        self._queue.order()
        self._last_admission.forget()

    def _fill_shortlist(self, ahead: int) -> None:
        """If not all deployments are started: put deployments on the shortlist until ``ahead`` of
        them that are new wait in the queue. Once the shortlist is full, the other deployments are
        dropped.
        """
        shortlist = self._queue.shortlist
        roster = self._roster
        others = shortlist.others(roster.queued)
        if not others:
            return
        wanted = ahead - self._queue.waiting_new()
        for _ in range(min(wanted, shortlist.left, len(others))):
            chosen = choose_next(shortlist, roster.queued, {*roster.queued, *roster.launched})
            others.remove(chosen)
            self._queue.add(roster.queued[chosen])
        if others and not shortlist.left:
            for deployment_id in others:
                work = roster.queued[deployment_id]
                self._refuse(work)
                work.drop()
                self._context.answer.leave_out(deployment_id)
            self._context.tell(not_started(len(others)))

    def _admit_next(self, machines: list[Machine], ahead: int) -> AdmittedLaunch | None:
        """Take the next launch from the queue and reserve its nodes; None if no launch can start.
        ``ahead``: see ``_fill_shortlist``.
        """
        self._fill_shortlist(ahead)
        reservations = self._context.state.reservations()
        now_s = self._context.clock.now_s()
        if len(reservations) >= MOST_LAUNCHES:
            return None
        pick = choose(
            self._queue.jobs, machines, reservations, now_s, self._context.settings.most_nodes
        )
        if pick is None:
            return None
        work = self._roster.queued[pick.job.key]
        work.follow_race()
        over = self._context.budget.admit(work.deployment, work.first_s())
        self._last_admission.is_blocked_by_budget = over is not None
        if over is not None:
            return None
        job = pick.job
        self._queue.jobs.remove(job)
        self._roster.put(work, Place.LAUNCHED)
        self._shortage.note_placed(job.resources)
        self._context.breakers.admitted(job.key)
        head = self._roster.queued.get(pick.overtaken)
        overtaken = head.deployment if head is not None else None
        reservation = Reservation(job.resources, pick.nodes, now_s + job.estimate_s)
        self._context.state.admitted(work.deployment, reservation, work.avoid, overtaken)
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
        reservations = self._context.state.reservations()
        now_s = self._context.clock.now_s()
        left = context.budget.left()
        for key, work in self._roster.launched.items():
            rest_s = max(0.0, self._context.state.reservation_of(key).end_s - now_s)
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
        for deployment_id in self._context.state.waiting():
            work = self._roster.launched.get(deployment_id)
            if work is not None:
                in_line.append(self._queue.waiting(work))
        return Queue([*self._queue.jobs, *in_line]) if in_line else self._queue.jobs

    def _start(self, launch: AdmittedLaunch) -> None:
        """Run a launch in a thread of its own."""
        work = launch.work

        def run() -> None:
            raised: BaseException | None = None
            try:
                LaunchLifecycle(self._context, work, launch.nodes, self._outlook).run()
            except BaseException as error:
                raised = error
            self._ended.add(EndedLaunch(work, raised))

        self._context.clock.spawn(run, f"launch-{work.deployment.label}")

    def _take_ended(self, raising: bool = True) -> None:
        """Free the nodes of launches whose threads are over, and queue their deployments again if
        they have something left to measure. If ``raising``, raises what a thread raised.
        """
        while (ended := self._ended.take()) is not None:
            work = ended.work
            if work.deployment.id not in self._roster.launched:
                continue  # listed twice: an interrupt came while ``_start_and_ask`` started it
            self._roster.put(work, Place.IDLE)
            is_queued_again = self._context.state.free_nodes(work.deployment)
            self._context.breakers.ended(work.deployment.id)
            self._last_admission.forget()
            work.follow_race()
            if work.left:
                self._roster.put(work, Place.QUEUED)
                self._queue.add(work)
            elif is_queued_again:
                self._withdraw_launch(work)
            if ended.raised is not None and raising:
                raise ended.raised

    # --- what no node can hold

    def _give_up_without_room(self, machines: list[Machine], growth: Growth) -> None:
        """Give up deployments that have waited for nodes long enough."""
        waits = self._shortage.waits(machines, growth)
        self._show_wait(waits[0], growth)  # the live view shows only the first wait
        for wait in waits:
            if wait.is_over:
                text = _no_room(wait.resources, machines, wait.reason)
                failure = Failure(FailureKind.NO_ROOM, text)
                if not self._give_up_all(wait.resources, failure):
                    return

    def _show_wait(self, wait: WaitForNodes, growth: Growth) -> None:
        """Show under the first launch with this request that it waits for nodes."""
        resources = wait.resources
        coming = ", ".join(
            f"{number} x {node_type} being set up" for node_type, number in growth.coming.items()
        )
        detail = f"{resources}; {coming}" if coming else str(resources)
        first = self._queue.jobs_for(resources)[0]
        label = self._roster.queued[first.key].deployment.label
        self._context.tell(
            Phase(label, PhaseName.WAIT_FOR_NODES, detail, wait.waited_s, wait.limit_s)
        )

    def _give_up_all(self, resources: ResourceRequest, failure: Failure) -> bool:
        """Give up all deployments with this request. Returns false if the storage refuses
        meanwhile: then those that are left are given up later.
        """
        for job in self._queue.jobs_for(resources):
            if not self._context.may_start():  # raises once the storage has refused for too long
                return False
            work = self._roster.queued[job.key]
            self._queue.jobs.remove(job)
            self._refuse(work)
            self._give_up(work, failure)
        self._shortage.give_up(resources)
        return True

    def _give_up(self, work: DeploymentWork, failure: Failure) -> None:
        """Commit a launch that was refused, and every measurement of its deployment, as failed."""
        context = self._context
        deployment = work.deployment
        self._last_admission.forget()
        row = launch_row(deployment, context.store.experiment, self._context.clock.unix_ns())
        label = deployment.label
        data = {"left": work.left}
        context.tell(Event("gave_up", failure.sentence, label, row.launch_id, data=data))
        try:
            give_up(context, self._outlook, work, failure, row)
        finally:
            store_launch(context, deployment, replace(row, **how_it_ended(failure)))


def _no_room(resources: ResourceRequest, machines: Sequence[Machine], why: str) -> str:
    """The sentence that says why a deployment is given up. ``why``: its last part."""
    has_gpus = any(machine.gpus for machine in machines)
    reason = ""
    if resources.gpus_on_a_node > 0 and machines and not has_gpus:
        reason = "no node has a GPU, so "
    nodes = counted(len(machines), "node")
    return f"No room: {reason}the cluster's {nodes} cannot hold {resources}, and {why}."
