"""A sweep: finds what is left to measure, starts launches as nodes allow, and ends when nothing is
left.

Running the same experiment again resumes it. The runner's other files: see the package's docstring.
"""

import math
import re
import threading
from collections.abc import Collection

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.analysis.points import complete
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.cluster.base import Growth, Machine
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.plan.model import Deployment
from orchestrator.plan.order import BEGUN, RISKY, promises
from orchestrator.results.events import SWEEP, Event, Phase, PhaseName, SweepStep
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
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.default_hardware import check_same, on_this_cluster
from orchestrator.sweep.launch import Launch
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.need import Need, need_of
from orchestrator.sweep.run_launch import LaunchRun, give_up, left_out
from orchestrator.sweep.state import SweepReport, cost_of, left_of
from orchestrator.sweep.todo import (
    Spoilt,
    Todo,
    died_at,
    race_of,
    refused,
    shortlist_of,
    spoilt_of,
)

MOST_LAUNCHES = 64  # threads of the driver; each mostly waits
LOOK_S = 1.0  # how often nodes and budget are checked while nothing else happens
QUEUE_S = 10.0  # how often all that waits is looked at: 1,000 deployments take milliseconds
OFF = 0.1  # the queue is ordered again when start times differ from the estimates by this share


class Sweep:
    """Runs a plan on a cluster and commits into a store. One thread admits launches; each launch
    has its own thread.
    """

    def __init__(self, context: SweepContext) -> None:
        self._context, self._clock, self._state = context, context.clock, context.state
        # deployment id -> its open measurements, for deployments that wait
        self._queue: dict[str, Todo] = {}
        self._waiting = Queue()  # the same deployments as admission sees them
        self._promise = promises(context.plan)
        self._starts: dict[str, float] = {}  # start times by which the queue was ordered
        self._seen: object = None  # the nodes when admission was last decided; None: decide again
        self._budget_s = -math.inf  # when it was last asked what waits
        # whether the next launch has to wait for how much of the budget the running ones leave
        self._short = False
        # needs that some nodes could hold once: a lost node may come back
        self._roomy: set[Need] = set()
        self._homeless: dict[Need, float] = {}  # need that no nodes can hold -> since when
        # for which nodes were asked for when admission was last decided
        self._asked: set[Need] = set()
        self._told: set[str] = set()
        self._launched: dict[str, Todo] = {}
        # launches that are over, and what they raised
        self._ended: list[tuple[Todo, BaseException | None]] = []
        self._changed = threading.Event()
        self._race, self._raced = race_of(context.plan), 0
        self._shortlist = shortlist_of(context.plan, self._race, self._promise)
        # deployments with nothing to measure as long as others hold more
        self._idle: dict[str, Todo] = {}
        waiting = lambda: [one.rest_s(self._state.slowness, 1) for one in self._to_start()]  # noqa: E731
        self._waiting_s = CachedFor(waiting, QUEUE_S, self._clock.now_s)
        context.left_s, context.gives_way = self._left_s, self._gives_way
        context.better_off = self._better_off

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet."""
        context, began_ns, began_s = self._context, self._clock.unix_ns(), self._clock.now_s()
        self._doing(SweepStep.READ_RESULTS)
        self._fill_queue()
        self._doing(SweepStep.STORE_PLAN)
        context.store.write_plan(context.plan.to_json())
        counts = self._state.counts
        total, skipped = sum(todo.left for todo in self._to_start()), counts.skipped
        text = f"{counted(total, 'measurement')} to do, {skipped} already done"
        context.tell(Event("sweep", text, data={"total": total, "skipped": skipped}))
        context.cluster.watch(
            lambda text: context.tell(Event("cluster_silent", text)), context.stop
        )
        self._doing(SweepStep.CHECK_NODES)
        for text in context.cluster.check_nodes() if total else ():
            context.tell(Event("node_silent", text))
        self._doing(SweepStep.ENDED)
        with context.patient():
            self._admit_all()
        left = sum(todo.left for todo in self._to_start())
        if counts.measured and not left:
            self._doing(SweepStep.JOIN_REPEATS)
            complete(context.store)
            self._doing(SweepStep.ENDED)
        wall_s = self._clock.now_s() - began_s
        overhead = self._state.overhead_share((began_ns, began_ns + int(wall_s * 1e9)))
        return SweepReport(counts, wall_s, overhead, left)

    def _doing(self, step: SweepStep) -> None:
        self._context.tell(Phase(SWEEP, step))

    def _to_start(self) -> list[Todo]:
        """The deployments that wait, as far as they will be started."""
        return self._shortlist.expected(dict(self._queue))

    def _left_s(self) -> float:
        """Estimated time until all is measured: with as many launches in parallel as now, and at
        least the longest.
        """
        launched = [todo.rest_s(self._state.slowness) for todo in list(self._launched.values())]
        waiting = self._waiting_s() if self._queue else []
        return max([sum(launched + waiting) / max(1, len(launched)), *launched, *waiting])

    def _fill_queue(self) -> None:
        """Queue every deployment that this cluster may run and that has measurements without an ok
        commit.
        """
        plan, store = self._context.plan, self._context.store
        deployments = on_this_cluster(plan.runnable(), self._context.cluster.machines())
        commits = store.commits(checked=True)
        spoilt = spoilt_of(store, commits, self._context.most_again)
        committed = best_ok(commits, spoilt.verdicts)
        check_same(store, deployments, committed.values())
        committed = {name: one for name, one in committed.items() if name not in spoilt.open}
        if not self._context.retry_failed:
            searched = any(load.searches for load in plan.loads)
            committed = (
                refused(store, commits) | (died_at(store, commits) if searched else {}) | committed
            )
        if plan.needs_figures:
            committed = {one.measurement_id: one for one in attempt_data(store, committed.values())}
        todos = [
            Todo(plan, one, committed, self._state.starts, self._race, spoilt.tries)
            for one in deployments
        ]
        # after all exist: each sees what others hold
        for deployment, todo in zip(deployments, todos, strict=True):
            self._state.count(skipped=todo.skipped, refused=todo.refused)
            if todo.refused:
                text = f"{counted(todo.refused, 'measurement')} failed before and would fail again"
                self._context.tell(
                    Event("refused", f"{text}; --retry-failed tries them again", deployment.label)
                )
            (self._queue if todo.left else self._idle)[deployment.id] = todo
        self._tell_spoilt(spoilt, todos)
        self._shortlist.chosen |= {one.deployment_id for one in commits} & {
            one.id for one in deployments
        }
        self._order()

    def _tell_spoilt(self, spoilt: Spoilt, todos: Collection[Todo]) -> None:
        """Say what is measured again because it was spoilt, and what no longer is."""
        most = self._context.most_again
        left = frozenset[str]().union(*(todo.open for todo in todos))
        done = frozenset[str]().union(*(todo.done for todo in todos))
        again = [attempt for name, attempt in spoilt.open.items() if name in left]
        kept = [attempt for name, attempt in spoilt.kept.items() if name in done]
        self._state.count(kept=len(kept))
        if again:
            text = f"{counted(len(again), 'measurement')} open again: {spoilt.words(again)}"
            self._context.tell(Event("open_again", text))
        if kept:
            text = f"{counted(len(kept), 'measurement')} kept as they are: {spoilt.words(kept)}"
            text = f"{text}; --again {most + 1} tries once more"
            self._context.tell(Event("kept", text))

    def _admit_all(self) -> None:
        """Start what fits, in order, until nothing is left, the budget is used up or the user stops
        the sweep.
        """
        stop = self._context.stop
        try:
            while (self._queue or self._launched or self._race_moved()) and not stop.is_set():
                self._changed.clear()
                self._take_ended()
                self._follow_race()
                self._keep_to_budget()
                self._admit()
                if self._queue or self._launched:
                    waits_since_ns = self._clock.unix_ns()
                    self._clock.wait(self._changed, LOOK_S)
                    if not self._launched:  # for nodes, for hosts of others, or for a pause to end
                        self._state.add_span((waits_since_ns, self._clock.unix_ns()))
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

    def _follow_race(self) -> None:
        """Take deployments that are beaten by now out of the queue, and put back those that no
        longer are.
        """
        before, changed = self._raced, False
        while self._race_moved() and not self._context.stop.is_set():
            assert self._race is not None
            self._raced = self._race.version
            idle = {
                name: todo for name, todo in self._queue.items() if todo.begun and not todo.left
            }
            back = {name: todo for name, todo in self._idle.items() if todo.left}
            self._queue = {
                name: todo for name, todo in self._queue.items() if name not in idle
            } | back
            self._idle = {
                name: todo for name, todo in self._idle.items() if name not in back
            } | idle
            changed |= bool(idle or back)
            for todo in (one for one in idle.values() if one.outraced):
                text = "it is not measured further: others hold more"
                self._context.tell(Event("outraced", text, todo.deployment.label))
        if self._raced != before and (
            changed or any(one.races and one.begun for one in self._queue.values())
        ):
            self._order()  # by how much each may still hold

    def _race_moved(self) -> bool:
        """Whether searches have found something since the queue last followed the race."""
        return self._race is not None and self._raced != self._race.version

    def _gives_way(self, todo: Todo) -> bool:
        """Whether a launch should end so that its nodes go to deployments of its race that wait for
        them: those that were not probed yet, and those that may hold more.
        """
        if todo.may_wait:
            first = [
                one
                for one in list(self._queue.values())
                if not one.begun or one.standing > todo.standing
            ]
            needs = {self._need(one) for one in first}
            machines = (
                self._context.breakers.usable(self._context.cluster.machines()) if needs else []
            )
            rest, most = self._state.running(but=todo.deployment.id), self._context.most_nodes
            todo.waited = any(
                fit(need, machines, rest, most_nodes=most) is not None for need in needs
            )
            return todo.waited
        return False

    def _better_off(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again, because other nodes are free
        for it, or because those that it holds meanwhile would do for deployments that wait.
        """
        context, name = self._context, deployment.id
        running = self._state.running(but=name)
        launch = self._state.running_launch(name)
        machines = self._state.rested(
            context.breakers.usable(context.cluster.machines()), self._clock.now_s()
        )
        if fit(launch.need, machines, running, most_nodes=context.most_nodes) is not None:
            return True
        own = held([launch])
        kept_idle = [machine for machine in machines if machine.node_id in own]
        if not kept_idle:
            return False
        needs = {self._need(todo) for todo in list(self._queue.values())}
        return any(fit(need, kept_idle, running) is not None for need in needs)

    def _keep_to_budget(self) -> None:
        """Drop deployments whose next measurement, with the start it needs, the budget no longer
        pays for. Looked at when a launch ended, and every QUEUE_S: before each launch and point the
        budget is asked anyway.
        """
        before, now_s = len(self._queue), self._clock.now_s()
        if self._context.plan.budget is None or (
            self._seen is not None and now_s < self._budget_s + QUEUE_S
        ):
            return
        spent, self._budget_s = self._state.spent(now_s), now_s
        for name, todo in list(self._queue.items()):
            if over := self._context.over_budget(todo.deployment, todo.first_s(), spent=spent):
                left_out(self._context, todo, over)
                self._state.advance(todo.deployment, LaunchEvent.REFUSED)
                del self._queue[name]
        if len(self._queue) < before:
            self._order()

    def _admit(self) -> None:
        """Start what fits the nodes of now, ask for nodes worth adding, give up what no node will
        hold.

        As long as nothing changed nothing more can start, and only the last of these three is
        looked at.
        """
        machines, growth = self._context.cluster.machines(), self._context.cluster.growth()
        if not (machines or growth.may) and self._context.watched.taken_back():
            self._wait_for_the_end()
            return
        usable = self._context.breakers.usable(machines)
        if self._starts_are_off():
            self._order()
        free = self._state.rested(usable, self._clock.now_s())
        facts = machines, usable, free, growth.may, growth.types
        if (*facts, self._context.may_start()) != self._seen:
            could_start = self._start_and_ask(machines, free, growth)
            self._seen, self._short = None if self._short else (*facts, could_start), False
            self._look_for_homeless(growth, machines)
            self._tell_once(*(need.unclear(growth.types) for need in self._asked))
        if self._asked or self._homeless:
            self._tell_once(str(growth))
        if self._homeless:
            self._give_up_without_room(machines, growth)

    def _wait_for_the_end(self) -> None:
        """All nodes are being taken back: end the sweep in order once what runs has ended, and give
        up nothing.
        """
        if self._queue and not self._launched:
            self._context.tell(
                Event("taken_back", "all nodes are being taken back: run it on others to continue")
            )
            self._context.stop.set()

    def _start_and_ask(self, machines: list[Machine], free: list[Machine], growth: Growth) -> bool:
        """Start what fits, and ask for nodes worth adding. Returns whether launches may still
        start.
        """
        picks, ahead = list[tuple[Todo, Nodes]](), max(1, len(machines)) if growth.may else 1
        try:
            while (may_start := self._context.may_start()) and (
                pick := self._pick(free, ahead)
            ) is not None:
                picks.append(pick)
            self._asked = self._desire(machines, free, growth) if growth.may else set()
            while picks:  # after the request for nodes has moved off those that were picked
                self._start(*picks[0])
                del picks[0]
        except BaseException:
            # no thread of theirs will report the end
            self._ended += [(todo, None) for todo, _ in picks]
            raise
        return may_start

    def _order(self) -> None:
        """Order the queue by what is known now of how long starts take."""
        self._starts = dict(self._state.starts)
        self._waiting = Queue(
            self._wait(todo) for name, todo in self._queue.items() if self._shortlist.has(name)
        )
        self._seen = None

    def _starts_are_off(self) -> bool:
        """Whether some engine's starts now take longer or shorter than when the queue was ordered."""
        before = (
            (factor, self._starts.get(name, 1.0)) for name, factor in self._state.start_factors()
        )
        return any(abs(factor - known) > OFF * known for factor, known in before)

    def _need(self, todo: Todo) -> Need:
        return need_of(todo.deployment, self._context.plan.isolation == "exclusive_node")

    def _wait(self, todo: Todo) -> Waiting:
        estimate_s = todo.estimate_s()
        return Waiting(
            todo.deployment.id,
            self._need(todo),
            estimate_s,
            late=BEGUN
            if todo.races and todo.begun
            else RISKY * (todo.deployment.status == "risky"),
            avoid=todo.avoid,
            cost=cost_of(todo.deployment, estimate_s),
            promise=todo.standing
            if todo.races and todo.begun
            else self._promise.get(todo.deployment.id, 0.0),
        )

    def _choose(self, ahead: int) -> None:
        """Choose deployments until ``ahead`` of those that were never probed wait, where not all
        are started.
        """
        shortlist, queue, others = self._shortlist, self._queue, self._shortlist.others(self._queue)
        waiting = (
            sum(not todo.begun for name, todo in queue.items() if shortlist.has(name))
            if others
            else 0
        )
        for _ in range(min(ahead - waiting, shortlist.left, len(others))):
            first = [name for name in others if queue[name].deployment.status != "risky"]
            others.remove(name := shortlist.choose(first or others, {*queue, *self._launched}))
            self._waiting.add(self._wait(queue[name]))
        if others and not shortlist.left:
            for name in others:
                todo = queue.pop(name)
                todo.drop()
                self._state.advance(todo.deployment, LaunchEvent.REFUSED)
            text = f"not started: {counted(len(others), 'deployment')}, since max_deployments allows no more"
            self._context.tell(Event("not_started", text, data={"deployments": len(others)}))

    def _pick(self, machines: list[Machine], ahead: int) -> tuple[Todo, Nodes] | None:
        """The next launch and its nodes, taken from the queue and counted as running."""
        self._choose(ahead)
        running, now_s, most = self._state.running(), self._clock.now_s(), self._context.most_nodes
        if (
            len(running) >= MOST_LAUNCHES
            or (found := choose(self._waiting, machines, running, now_s, most)) is None
        ):
            return None
        job, nodes, passed = found
        todo = self._queue[job.key]
        self._short = self._context.admit(todo.deployment, todo.first_s()) is not None
        if self._short:
            return None
        self._waiting.remove(job)
        self._launched[job.key] = self._queue.pop(job.key)
        todo.admit(self._queue.get(passed))
        self._roomy.add(job.need)
        self._context.breakers.admitted(job.key)
        running_launch = Running(job.need, nodes, now_s + job.estimate_s)
        self._state.admitted(todo.deployment, running_launch)
        return todo, nodes

    def _desire(self, machines: list[Machine], free: list[Machine], growth: Growth) -> set[Need]:
        """Ask the cluster for the nodes worth adding, within the budget; returns the needs they are
        for. Nodes that rest, or that others hold, are none of them: the cluster would think that it
        has what is asked for.

        Asks for none while the sweep pauses, because nobody knows whether anything will run on
        them.
        """
        context, running, now_s = self._context, self._state.running(), self._clock.now_s()
        left = left_of(context.plan.budget, self._state.spent(now_s))
        for key, todo in self._launched.items():
            left -= cost_of(
                todo.deployment, max(0.0, self._state.running_launch(key).end_s - now_s)
            )
        queue = Queue() if context.breakers.paused() else self._waiting_anywhere()
        most_nodes, launches = context.most_nodes, MOST_LAUNCHES - len(running)
        jobs = worth_adding(queue, free, running, left, most_nodes, launches, growth.types)
        taken = held(running) | {one.node_id for one in machines} - {one.node_id for one in free}
        wanted, asked = asked_for(jobs, machines, growth.types, most_nodes)
        context.cluster.desire(wanted, taken)
        return asked

    def _waiting_anywhere(self) -> Queue:
        """The queue, and what waits for hosts of others: new nodes would do for that, too."""
        in_line = [
            todo for name in self._state.waiting() if (todo := self._launched.get(name)) is not None
        ]
        if not in_line:
            return self._waiting
        return Queue([*self._waiting, *(self._wait(todo) for todo in in_line)])

    def _start(self, todo: Todo, nodes: Nodes) -> None:
        def run() -> None:
            raised: BaseException | None = None
            try:
                LaunchRun(self._context, todo, nodes).run()
            except BaseException as error:
                raised = error
            self._ended.append((todo, raised))
            self._changed.set()

        self._clock.spawn(run, f"launch-{todo.deployment.label}")

    def _take_ended(self, raising: bool = True) -> None:
        """Free the nodes of launches that are over, and queue again what is left of them. Raises
        what they raised.
        """
        while self._ended:
            todo, raised = self._ended.pop(0)
            if self._launched.pop(todo.deployment.id, None) is None:
                continue  # listed twice after an interrupt
            self._state.ended(todo.deployment)
            self._context.breakers.ended(todo.deployment.id)
            self._seen = None
            if todo.left:
                self._queue[todo.deployment.id] = todo
                self._waiting.add(self._wait(todo))
            else:
                self._idle[todo.deployment.id] = todo
            if raised is not None and raising:
                raise raised

    def _look_for_homeless(self, growth: Growth, machines: list[Machine]) -> None:
        """Note the needs that no nodes could hold even if nothing ran, once nodes were asked for or
        none can come.
        """
        now_s, most, types = self._clock.now_s(), self._context.most_nodes, growth.types
        homeless, before = dict[Need, float](), self._homeless
        # after a pause nodes are asked for again
        waits = before.keys() if not self._context.breakers.paused() else ()
        for need in {kind[0].need: None for kind in self._waiting.kinds()}:
            if not need.replicas or fit(need, machines, (), most_nodes=most) is not None:
                self._roomy.add(need)
            elif (
                not growth.may
                or need in self._asked
                or need in waits
                or need.least_nodes(machines, types, most) > most
            ):
                homeless[need] = before.get(need, now_s)
        self._homeless = homeless

    def _give_up_without_room(self, machines: list[Machine], growth: Growth) -> None:
        """Give up deployments that have waited for nodes long enough."""
        context, now_s = self._context, self._clock.now_s()
        for index, (need, since_s) in enumerate(list(self._homeless.items())):
            what, limits = str(need), (context.most_nodes, context.placement_timeout_s)
            limit_s, why = need.patience(machines, growth, need in self._roomy, *limits)
            jobs = [job for kind in self._waiting.kinds() if kind[0].need == need for job in kind]
            if not index:  # one is enough for the live view
                set_up = ", ".join(
                    f"{number} x {kind} being set up" for kind, number in growth.coming.items()
                )
                says = f"{what}; {set_up}" if set_up else what
                label = self._queue[jobs[0].key].deployment.label
                context.tell(Phase(label, PhaseName.WAIT_FOR_NODES, says, now_s - since_s, limit_s))
            if now_s - since_s >= limit_s:
                del self._homeless[need]
                has_gpus = any(machine.gpus for machine in machines)
                no_gpu = need.gpus > 0 and len(machines) > 0 and not has_gpus
                first = "no node has a GPU, so " if no_gpu else ""
                nodes = counted(len(machines), "node")
                text = f"No room: {first}the cluster's {nodes} cannot hold {what}, and {why}."
                for job in jobs:
                    if not context.may_start():  # raises once the storage has refused for too long
                        self._homeless[need] = since_s
                        return
                    self._waiting.remove(job)
                    self._no_room(self._queue[job.key], Failure(FailureKind.NO_ROOM, text))

    def _tell_once(self, *texts: str) -> None:
        for text in filter(None, texts):
            # a text whose numbers alone grew is not news
            if (words := re.sub(r"\d+ x ", "", text)) not in self._told:
                self._told.add(words)
                self._context.tell(Event("autoscaler", text))

    def _no_room(self, todo: Todo, failure: Failure) -> None:
        """Commit a launch that never got nodes, and every measurement of it, as failed."""
        del self._queue[todo.deployment.id]
        self._state.advance(todo.deployment, LaunchEvent.REFUSED)
        self._seen = None
        launch = Launch(self._context, todo.deployment, ())
        self._context.tell(
            Event("gave_up", failure.sentence, todo.deployment.label, launch.row.launch_id)
        )
        try:
            give_up(self._context, todo, failure, launch.row)
        finally:
            launch.commit(failure)
            self._context.tell(Phase(todo.deployment.label, PhaseName.ENDED))
