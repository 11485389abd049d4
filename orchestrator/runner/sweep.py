"""The sweep: what is left to measure, admitted launch by launch, retried by class, resumed by running again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from orchestrator.analysis.overhead import overhead_share
from orchestrator.cluster.base import Clients, Cluster
from orchestrator.engines import ENGINES
from orchestrator.errors import EngineFailure, Failure, FailureClass
from orchestrator.plan.make import ANY
from orchestrator.plan.model import Deployment, Measurement, Plan
from orchestrator.results.ids import new_ulid
from orchestrator.results.store import Store
from orchestrator.runner.admission import Nodes, Running, Waiting, choose, fit
from orchestrator.runner.events import Event, Journal, Listener, Phase
from orchestrator.runner.launch import Launch, need_of
from orchestrator.runner.measure import EngineDied, Interrupted, Measurer, Span
from orchestrator.runner.rows import commit_launch, commit_point

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
    retries: dict[str, int] = field(default_factory=dict)  # "start" or a measurement id -> failures so far
    start_estimate_s: float = START_ESTIMATE_S

    def again(self, key: str, failure: Failure) -> bool:
        """Count a failure; True when its class allows another try."""
        self.retries[key] = self.retries.get(key, 0) + 1
        return self.retries[key] <= RETRIES[failure.failure_class]


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
        self._placement_timeout_s = placement_timeout_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._measured = self._failed = self._left_out = 0
        self._gpu_hours = self._usd = 0.0

    def run(self) -> SweepReport:
        """Measure everything that has no ok commit yet."""
        began_ns = time.time_ns()
        done = self._store.done()
        self._store.write_plan(self._plan.to_json())
        todos, skipped = self._todos(done)
        total = sum(len(todo.open) for todo in todos)
        self._tell(
            "sweep", f"{total} measurements to do, {skipped} already done", data={"total": total, "skipped": skipped}
        )
        interrupted = False
        try:
            self._admit(todos, began_ns)
        except KeyboardInterrupt:
            interrupted = True
        wall_s = (time.time_ns() - began_ns) / 1e9
        spans = [(span.start_ns, span.end_ns) for span in self._spans]
        overhead = overhead_share(spans, (began_ns, time.time_ns()))
        return SweepReport(self._measured, skipped, self._failed, self._left_out, wall_s, overhead, interrupted)

    def _todos(self, done: set[str]) -> tuple[list[Todo], int]:
        todos, skipped = [], 0
        for deployment in self._plan.runnable():
            every = self._plan.measurements(deployment.id)
            rest = [one for one in every if one.measurement_id not in done]
            skipped += len(every) - len(rest)
            if rest:
                todos.append(Todo(self._on_this_cluster(deployment), rest))
        return todos, skipped

    def _on_this_cluster(self, deployment: Deployment) -> Deployment:
        """``hardware`` left out means what the cluster has: GPUs where there are any, else CPU cores."""
        hardware, engine = deployment.hardware, ENGINES[deployment.settings.engine]
        if hardware.accelerator != ANY.accelerator or not engine.launches:
            return deployment
        gpus = any(machine.gpus for machine in self._cluster.machines())
        if gpus and not engine.emulated:
            return deployment
        return deployment.model_copy(update={"hardware": hardware.model_copy(update={"accelerator": "cpu"})})

    def _admit(self, todos: Sequence[Todo], began_ns: int) -> None:
        """Start what fits, in order, until nothing is left or the budget is used up."""
        queue = {todo.deployment.id: todo for todo in todos}
        running: dict[Future[bool], tuple[Todo, Running]] = {}
        with ThreadPoolExecutor(MOST_LAUNCHES, thread_name_prefix="launch") as pool:
            try:
                while queue or running:
                    over = self._over_budget(began_ns)
                    if over and queue:
                        self._tell("budget", f"{over}; {len(queue)} deployments are left out")
                        self._left_out = sum(len(todo.open) for todo in queue.values())
                        queue.clear()
                    while (pick := self._pick(queue, [one for _, one in running.values()])) is not None:
                        todo, nodes = pick
                        del queue[todo.deployment.id]
                        need = need_of(todo.deployment, self._plan.isolation == "exclusive_node")
                        entry = Running(need, nodes or (), time.monotonic() + self._estimate_s(todo))
                        running[pool.submit(self._launch, todo, nodes)] = (todo, entry)
                    if not running:
                        time.sleep(0.2)  # machines are coming or going
                    ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                    for future in ended:
                        todo, _ = running.pop(future)
                        future.result()
                        if todo.open:
                            queue[todo.deployment.id] = todo
            except BaseException:
                self._stop.set()  # every launch stops its engine and its point; the pool waits for them
                raise

    def _pick(self, queue: dict[str, Todo], running: list[Running]) -> tuple[Todo, Nodes | None] | None:
        if not queue or len(running) >= MOST_LAUNCHES:
            return None
        exclusive = self._plan.isolation == "exclusive_node"
        waiting = [
            Waiting(key, need_of(todo.deployment, exclusive), self._estimate_s(todo), todo.deployment.status == "risky")
            for key, todo in queue.items()
        ]
        machines = self._cluster.machines()
        if (found := choose(waiting, machines, running, time.monotonic())) is not None:
            return queue[found[0].key], found[1]
        # What could never fit the nodes of now may fit those an autoscaler adds: ask Ray, one at a time, with a limit.
        if not running:
            for job in waiting:
                if job.need.bundles and fit(job.need, machines, ()) is None:
                    return queue[job.key], None
        return None

    def _estimate_s(self, todo: Todo) -> float:
        points = [self._plan.point(one.point_id) for one in todo.open]
        return todo.start_estimate_s + sum(point.warmup_s + (point.duration_s or 60.0) + 2.0 for point in points)

    def _over_budget(self, began_ns: int) -> str | None:
        budget = self._plan.budget
        if budget is None:
            return None
        hours = (time.time_ns() - began_ns) / 3.6e12
        if budget.wall is not None and hours * 3600 >= budget.wall:
            return f"the budget of {budget.wall:g} s wall time is used up"
        if budget.gpu_hours is not None and self._gpu_hours >= budget.gpu_hours:
            return f"the budget of {budget.gpu_hours:g} GPU hours is used up"
        if budget.usd is not None and self._usd >= budget.usd:
            return f"the budget of {budget.usd:g} USD is used up"
        return None

    def _launch(self, todo: Todo, nodes: Nodes | None) -> bool:
        """One launch of a deployment: as many of its measurements as its engine survives."""
        deployment, launch_id = todo.deployment, new_ulid()
        self._tell("launch", f"{deployment.label}: launch {launch_id}", deployment.label, launch_id)
        clients = self._cluster.clients(self._first_clients(), self._avoid(nodes))
        launch = Launch(
            self._cluster,
            self._store,
            deployment,
            nodes,
            launch_id,
            self._journal,
            placement_timeout_s=self._placement_timeout_s,
            client_addresses=clients.addresses,
            stop=self._stop,
        )
        began_ns = time.time_ns()
        measurer: Measurer | None = None
        try:
            with launch as replicas:
                self._add_span(Span(began_ns, time.time_ns()))
                todo.start_estimate_s = (time.time_ns() - began_ns) / 1e9
                measurer = Measurer(
                    self._plan,
                    deployment,
                    replicas,
                    self._cluster,
                    self._store,
                    self._journal,
                    launch_id,
                    clients,
                    self._renewer(nodes),
                    self._stop,
                )
                self._measure_all(todo, measurer, launch)
        except EngineFailure as error:
            self._add_span(Span(began_ns, time.time_ns()))
            self._start_failed(todo, error.failure, launch_id)
        except (Interrupted, KeyboardInterrupt):
            return False
        finally:
            (measurer.clients if measurer else clients).release()
            for span in measurer.spans if measurer else ():
                self._add_span(span)
            self._account(deployment, launch.record.held_s or 0.0)
            commit_launch(self._store, self._plan, deployment, launch.record.row(), self._journal.take())
            self._journal.tell(Phase(deployment.label, "ended"))
        return True

    def _measure_all(self, todo: Todo, measurer: Measurer, launch: Launch) -> None:
        try:
            measurer.smoke(self._plan.point(todo.open[0].point_id))
        except EngineDied as error:
            launch.record.failure = error.failure
            raise EngineFailure(error.failure) from error
        for measurement in list(todo.open):
            point = self._plan.point(measurement.point_id)
            if self._stop.is_set():
                raise Interrupted
            try:
                failure = measurer.measure(point, measurement)
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

    def _first_clients(self) -> int:
        return min(self._plan.clients or 1, self._cluster.most_clients())

    def _avoid(self, nodes: Nodes | None) -> frozenset[str]:
        return frozenset(node for replica in nodes or () for node in replica)

    def _renewer(self, nodes: Nodes | None) -> Callable[[Clients, int], Clients]:
        def renew(old: Clients, count: int) -> Clients:
            old.release()
            return self._cluster.clients(count, self._avoid(nodes))

        return renew

    def _add_span(self, span: Span) -> None:
        with self._lock:
            self._spans.append(span)

    def _account(self, deployment: Deployment, held_s: float) -> None:
        if not ENGINES[deployment.settings.engine].launches:
            return
        hours = held_s / 3600 * deployment.settings.world_size * deployment.settings.replicas
        with self._lock:
            self._gpu_hours += hours
            self._usd += hours * (deployment.hardware.usd_per_gpu_hour or 0.0)

    def _tell(
        self, kind: str, text: str, deployment: str = "", launch_id: str = "", data: dict[str, object] | None = None
    ) -> None:
        self._journal.tell(Event(kind, text, deployment, launch_id, data=data or {}))
