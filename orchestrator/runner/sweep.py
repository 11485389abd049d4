"""The sweep: what is left to measure, admitted launch by launch, retried by class, resumed by running again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.analysis.overhead import overhead_share
from orchestrator.cluster.base import Clients, Cluster
from orchestrator.errors import EngineFailure, Failure, FailureClass, InputError, PlacementError
from orchestrator.plan.model import Deployment, Measurement, Plan
from orchestrator.results.ids import new_ulid
from orchestrator.results.store import Store
from orchestrator.runner.admission import Nodes, Running, Waiting, choose, fit
from orchestrator.runner.clients import ClientDesk
from orchestrator.runner.cores import CoreBook
from orchestrator.runner.events import Event, Journal, Listener, Phase
from orchestrator.runner.hosts import HostBook
from orchestrator.runner.launch import NO_ROOM, Interrupted, Launch, Record, Replicas, Site, need_of
from orchestrator.runner.left_out import check_same, on_this_cluster
from orchestrator.runner.measure import EngineDied, Measurer, Span
from orchestrator.runner.rows import commit_launch, commit_point
from orchestrator.spec.units import format_duration

# How often a failure of each class is tried again (docs/architecture.md, "Failures").
RETRIES = {
    FailureClass.BAD_CONFIG: 0,
    FailureClass.ENGINE_CRASH: 1,
    FailureClass.INFRA: 3,
    FailureClass.TIMEOUT: 1,
    FailureClass.CLIENT_BOUND: 0,
}
START_ESTIMATE_S = 60.0
MOST_LAUNCHES = 64  # threads of the driver; each mostly waits


@dataclass
class Todo:
    """What is left of one deployment, and how often each thing failed."""

    deployment: Deployment
    open: list[Measurement]
    # ("start" or a measurement id, class) -> failures so far
    retries: dict[tuple[str, FailureClass], int] = field(default_factory=dict)
    start_estimate_s: float = START_ESTIMATE_S
    shun: frozenset[str] = frozenset()  # nodes where the infrastructure failed it
    had_room: bool = False  # the cluster could hold it once: what is missing now may come back

    def again(self, key: str, failure: Failure) -> bool:
        """Count a failure; True when its class allows another try. Each class counts apart.

        A cluster that never had room for it is not asked again.
        """
        count = (key, failure.failure_class)
        self.retries[count] = self.retries.get(count, 0) + 1
        return self.retries[count] <= RETRIES[failure.failure_class] and (failure.kind != NO_ROOM or self.had_room)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """How a sweep ended."""

    measured: int
    skipped: int  # had an ok commit already
    failed: int
    left_out: int  # budget
    wall_s: float
    overhead: float  # share of wall_s that was neither engine start-up nor warm-up nor measurement
    interrupted: bool = False
    hosts: tuple[dict[str, Any], ...] = ()  # what the client hosts can do: rows of selfchecks


class Sweep:
    """Runs a plan on a cluster into a store. One thread admits; each launch has its own."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        store: Store,
        listener: Listener | None = None,
        placement_timeout_s: float = 900.0,
    ) -> None:
        self._plan, self._cluster, self._store = plan, cluster, store
        self._journal = Journal(listener)
        self._stop = threading.Event()
        hosts = HostBook(store, self._journal)
        self._site = Site(cluster, store, self._journal, CoreBook(), hosts, self._stop, placement_timeout_s)
        self._desk = ClientDesk(cluster, hosts, self._journal, self._where_all, plan.clients or 1)
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._nodes: dict[str, Nodes] = {}  # deployment id -> where its launch sits; () while nobody knows
        self._held: dict[str, tuple[float, float]] = {}  # deployment id -> (since, devices); GPUs only
        self._measured = self._failed = self._left_out = 0
        self._gpu_seconds = self._usd = 0.0
        self._began_s = time.monotonic()

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet."""
        began_ns = time.time_ns()
        done = self._store.done()
        todos, skipped = self._todos(done)
        self._store.write_plan(self._plan.to_json())
        total = sum(len(todo.open) for todo in todos)
        self._tell(
            "sweep", f"{total} measurements to do, {skipped} already done", data={"total": total, "skipped": skipped}
        )
        for text in self._cluster.check_nodes() if total else ():
            self._tell("node_silent", text)
        interrupted = False
        try:
            self._admit(todos)
        except KeyboardInterrupt:
            interrupted = True
        wall_s = (time.time_ns() - began_ns) / 1e9
        spans = [(span.start_ns, span.end_ns) for span in self._spans]
        overhead = overhead_share(spans, (began_ns, time.time_ns()))
        hosts = tuple(self._site.hosts.rows())
        return SweepReport(self._measured, skipped, self._failed, self._left_out, wall_s, overhead, interrupted, hosts)

    def _todos(self, done: set[str]) -> tuple[list[Todo], int]:
        todos, skipped = [], 0
        machines = self._cluster.machines()
        deployments = on_this_cluster(self._plan.runnable(), machines)
        check_same(self._store, deployments)
        for deployment in deployments:
            every = self._plan.measurements(deployment.id)
            rest = [one for one in every if one.measurement_id not in done]
            skipped += len(every) - len(rest)
            if rest:
                room = fit(need_of(deployment, False), machines, ()) is not None
                todos.append(Todo(deployment, rest, had_room=room))
        return todos, skipped

    def _admit(self, todos: Sequence[Todo]) -> None:
        """Start what fits, in order, until nothing is left or the budget is used up."""
        queue = {todo.deployment.id: todo for todo in todos}
        running: dict[Future[None], tuple[Todo, Running]] = {}
        with ThreadPoolExecutor(MOST_LAUNCHES, thread_name_prefix="launch") as pool:
            try:
                while queue or running:
                    if queue and (over := self._over_budget()):
                        self._tell("budget", f"{over}; {len(queue)} deployments are left out")
                        self._left_out += sum(len(todo.open) for todo in queue.values())
                        queue.clear()
                    while (pick := self._pick(queue, [self._where(*one) for one in running.values()])) is not None:
                        todo, nodes = pick
                        del queue[todo.deployment.id]
                        self._nodes[todo.deployment.id] = nodes or ()
                        need = need_of(todo.deployment, self._plan.isolation == "exclusive_node")
                        entry = Running(need, nodes or (), time.monotonic() + self._estimate_s(todo))
                        running[pool.submit(self._launch, todo, nodes)] = (todo, entry)
                    if not running:
                        time.sleep(0.2)  # machines are coming or going
                    ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                    for future in ended:
                        todo, _ = running.pop(future)
                        self._nodes.pop(todo.deployment.id, None)
                        future.result()
                        if todo.open:
                            queue[todo.deployment.id] = todo
            except BaseException:
                self._stop.set()  # every launch stops its engine and its point; the pool waits for them
                raise

    def _where(self, todo: Todo, entry: Running) -> Running:
        """A running launch with the nodes it really sits on: Ray chose those that were not there on admission."""
        return replace(entry, nodes=self._nodes.get(todo.deployment.id) or entry.nodes)

    def _pick(self, queue: dict[str, Todo], running: list[Running]) -> tuple[Todo, Nodes | None] | None:
        placing = any(launch.need.bundles and not launch.nodes for launch in running)
        if not queue or placing or len(running) >= MOST_LAUNCHES:
            return None  # nobody is admitted beside a launch of which nobody knows yet where it will sit
        exclusive = self._plan.isolation == "exclusive_node"
        waiting = [
            Waiting(
                key,
                need_of(todo.deployment, exclusive),
                self._estimate_s(todo),
                last=todo.deployment.status == "risky",
                shun=todo.shun,
            )
            for key, todo in queue.items()
        ]
        machines = self._cluster.machines()
        if (found := choose(waiting, machines, running, time.monotonic())) is not None:
            todo = queue[found[0].key]
            todo.had_room = True
            return todo, found[1]
        # What could never fit the nodes of now may fit those an autoscaler adds: ask Ray, one at a time, with a limit.
        if not running:
            for job in waiting:
                if job.need.bundles and fit(job.need, machines, ()) is None:
                    return queue[job.key], None
        return None

    def _estimate_s(self, todo: Todo) -> float:
        points = [self._plan.point(one.point_id) for one in todo.open]
        return todo.start_estimate_s + sum(point.warmup_s + (point.duration_s or 60.0) + 2.0 for point in points)

    def _over_budget(self) -> str | None:
        """Which part of the budget is used up, launches under way included; None while none is."""
        budget, now = self._plan.budget, time.monotonic()
        if budget is None:
            return None
        with self._lock:
            held = {key: now - since for key, (since, _) in self._held.items()}
            seconds = self._gpu_seconds + sum(held[key] * gpus for key, (_, gpus) in self._held.items())
            usd = self._usd + sum(held_s * self._usd_per_s(key) for key, held_s in held.items())
        if budget.wall is not None and now - self._began_s >= budget.wall:
            return f"the budget of {format_duration(budget.wall)} wall time is used up"
        if budget.gpu_hours is not None and seconds / 3600 >= budget.gpu_hours:
            return f"the budget of {budget.gpu_hours:g} GPU hours is used up"
        if budget.usd is not None and usd >= budget.usd:
            return f"the budget of {budget.usd:g} USD is used up"
        return None

    def _usd_per_s(self, deployment_id: str) -> float:
        deployment = self._plan.deployment(deployment_id)
        return (deployment.hardware.usd_per_gpu_hour or 0.0) * deployment.devices / 3600

    def _launch(self, todo: Todo, nodes: Nodes | None) -> None:
        """One launch of a deployment: as many of its measurements as its engine survives. Failures become rows."""
        deployment, launch_id = todo.deployment, new_ulid()
        self._tell("launch", f"{deployment.label}: launch {launch_id}", deployment.label, launch_id)
        # Where its engines will sit is known unless Ray has to find a place: the check then begins before they have it.
        checks = [self._desk.begin_check(deployment.id)] if nodes else []

        def on_placed(found: Nodes) -> None:
            self._placed(deployment, found)
            if not checks:
                checks.append(self._desk.begin_check(deployment.id))

        launch = Launch(self._site, deployment, nodes, launch_id, on_placed)
        try:
            with launch as replicas:
                if any(check.is_alive() for check in checks):
                    self._journal.tell(Phase(deployment.label, "self-check"))
                for check in checks:
                    check.join()  # before anything is measured
                self._measure_all(todo, launch, replicas)
        except EngineFailure as error:
            self._start_failed(todo, error.failure, launch_id)
        except InputError:
            raise  # wrong for every launch alike
        except (Interrupted, KeyboardInterrupt):
            return
        except PlacementError as error:  # engines have their place by now
            launch.record.failure = Failure(
                FailureClass.INFRA, "no_client", f"The cluster gave no load client: {error}."
            )
            self._start_failed(todo, launch.record.failure, launch_id)
        except Exception as error:
            text = f"The launch failed in this program: {type(error).__name__}: {error}."
            launch.record.failure = Failure(FailureClass.INFRA, "internal", text)
            self._start_failed(todo, launch.record.failure, launch_id)
        finally:
            for check in checks:
                check.join()
            failure = launch.record.failure
            if failure is not None and failure.failure_class is FailureClass.INFRA:
                todo.shun |= set(itertools.chain(*(self._where_all().get(deployment.id) or nodes or ())))
            self._account(deployment, launch.record)
            commit_launch(self._store, self._plan, deployment, launch.record.row(), self._journal.take())
            self._journal.tell(Phase(deployment.label, "ended"))

    def _placed(self, deployment: Deployment, nodes: Nodes) -> None:
        with self._lock:
            self._nodes[deployment.id] = nodes
            if not deployment.hardware.is_cpu:
                self._held[deployment.id] = (time.monotonic(), deployment.devices)

    def _measure_all(self, todo: Todo, launch: Launch, replicas: Replicas) -> None:
        deployment = todo.deployment
        todo.start_estimate_s = (launch.record.placed_s or 0.0) + (launch.record.ready_s or 0.0)
        clients = self._desk.borrow(deployment.id)

        def renew(old: Clients, count: int) -> Clients:
            old.release()
            return self._desk.borrow(deployment.id, count)

        measurer = Measurer(self._site, self._plan, deployment, replicas, launch.record.launch_id, clients, renew)
        try:
            self._measure_each(todo, launch, measurer)
        finally:
            measurer.clients.release()
            with self._lock:
                self._spans += measurer.spans

    def _measure_each(self, todo: Todo, launch: Launch, measurer: Measurer) -> None:
        try:
            measurer.smoke(self._plan.point(todo.open[0].point_id))
        except EngineDied as error:
            launch.record.failure = error.failure
            raise EngineFailure(error.failure) from error
        for measurement in list(todo.open):
            if self._stop.is_set():
                raise Interrupted
            if over := self._over_budget():
                self._tell("budget", f"{over}; {len(todo.open)} measurements are left out", todo.deployment.label)
                self._left_out += len(todo.open)
                todo.open.clear()
                return
            try:
                failure = measurer.measure(self._plan.point(measurement.point_id), measurement)
            except EngineDied as error:
                launch.record.failure = error.failure
                if not todo.again(measurement.measurement_id, error.failure):
                    self._close(todo, measurement, error.failure)
                return
            self._close(todo, measurement, failure)

    def _start_failed(self, todo: Todo, failure: Failure, launch_id: str) -> None:
        """The engine did not come to serve: again if its class says so, else every open measurement is a failed row."""
        again = todo.again("start", failure)
        self._tell("retry" if again else "gave_up", failure.sentence, todo.deployment.label, launch_id)
        if again:
            return
        for measurement in list(todo.open):
            point = self._plan.point(measurement.point_id)
            commit_point(
                self._store,
                self._plan,
                todo.deployment,
                point,
                measurement,
                attempt_id=new_ulid(),
                launch_id=launch_id,
                failure=failure,
            )
            self._close(todo, measurement, failure)

    def _close(self, todo: Todo, measurement: Measurement, failure: Failure | None) -> None:
        todo.open.remove(measurement)
        with self._lock:
            if failure is None:
                self._measured += 1
            else:
                self._failed += 1
        text = failure.sentence if failure else "measured"
        kind = "failed" if failure else "measured"
        self._journal.tell(Event(kind, text, todo.deployment.label, measurement_id=measurement.measurement_id))

    def _where_all(self) -> dict[str, Nodes]:
        with self._lock:
            return dict(self._nodes)

    def _account(self, deployment: Deployment, record: Record) -> None:
        """What the launch cost, and when its engine was starting."""
        ready_s = record.ready_s
        if record.began_ns is not None:
            end_ns = record.began_ns + int(ready_s * 1e9) if ready_s is not None else record.stop_began_ns
            with self._lock:
                self._spans.append(Span(record.began_ns, end_ns or time.time_ns()))
        with self._lock:
            self._held.pop(deployment.id, None)
            if not deployment.hardware.is_cpu:
                self._gpu_seconds += (record.held_s or 0.0) * deployment.devices
                self._usd += (record.held_s or 0.0) * self._usd_per_s(deployment.id)

    def _tell(
        self, kind: str, text: str, deployment: str = "", launch_id: str = "", data: dict[str, object] | None = None
    ) -> None:
        self._journal.tell(Event(kind, text, deployment, launch_id, data=data or {}))
