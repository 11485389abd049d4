"""One measurement on running replicas: attempts until it is honestly measured, every attempt a commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from orchestrator.cluster.base import ClientLost, ClientRun, Clients, Cluster
from orchestrator.engines import ENGINES
from orchestrator.errors import Failure, FailureClass, InputError
from orchestrator.load.lost import lost_requests
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.load.validity import Verdict, judge
from orchestrator.plan.model import Deployment, Measurement, Plan, Point
from orchestrator.results.ids import new_ulid
from orchestrator.results.store import Store
from orchestrator.runner.events import Event, Journal, Phase
from orchestrator.runner.launch import Replicas
from orchestrator.runner.rows import commit_point

START_LEAD_S = 0.25  # from the ready barrier to the common start: longer than a call takes to arrive anywhere
SETTLE_S = 30.0  # for clients to report after an abort
CLIENT_LOSSES = 3  # attempts lost with a client before the point is given up


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a sweep that was warm-up or measurement, unix ns."""

    start_ns: int
    end_ns: int


class EngineDied(Exception):
    """The engine ended under load; its attempt is committed."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.sentence)


class Interrupted(Exception):
    """The user asked to stop; nothing of this attempt is committed."""


class Measurer:
    """Runs measurements of one deployment on its replicas."""

    def __init__(
        self,
        plan: Plan,
        deployment: Deployment,
        replicas: Replicas,
        cluster: Cluster,
        store: Store,
        journal: Journal,
        launch_id: str,
        clients: Clients,
        renew: Callable[[Clients, int], Clients],
        stop: threading.Event,
    ) -> None:
        self._plan, self._deployment, self._replicas = plan, deployment, replicas
        self._cluster, self._store, self._journal = cluster, store, journal
        self._launch_id, self._renew, self._stop = launch_id, renew, stop
        self.clients = clients
        self.spans: list[Span] = []

    def load_point(self, point: Point, seed: int) -> LoadPoint:
        """The clients' view of a point."""
        settings = self._deployment.settings
        dialects = ENGINES[settings.engine]().dialects(settings)
        return LoadPoint(
            targets=self._replicas.targets,
            dialect=dialects[point.workload.api],
            workload=point.workload,
            level=point.level,
            arrivals=point.arrivals,
            warmup_s=point.warmup_s,
            duration_s=point.duration_s,
            requests=point.requests,
            seed=seed,
            max_in_flight=point.max_in_flight,
            request_timeout_s=point.request_timeout_s,
            drain_timeout_s=point.drain_timeout_s,
            tokenizer=settings.tokenizer or settings.model,
        )

    def smoke(self, point: Point) -> None:
        """One request before the first point: an engine that dies at its first request says so here.

        Its prompt is of another seed, so it warms nothing that is measured. Raises EngineDied.
        """
        probe = replace(self.load_point(point, seed=1), requests=1, duration_s=None, warmup_s=0.0)
        probe = replace(probe, level=point.level.model_copy(update={"control": "concurrency", "value": 1.0}))
        self._phase("first request")
        try:
            self.clients.prepare(probe, self._replicas.cores)
            run = self.clients.start(0.0, write=False)
            self._wait(run, point, probe, time.time_ns())
        except ClientLost as error:
            self._replace_clients(error)
        except InputError:
            return  # each point says so itself

    def measure(self, point: Point, measurement: Measurement) -> Failure | None:
        """Measure until the verdict stands. None when it was committed ok; else why not. Raises EngineDied."""
        lost, crowd = 0, len(self.clients.addresses)
        while True:
            try:
                verdict, failure = self._attempt(point, measurement, crowd)
            except InputError as error:
                failure = Failure(FailureClass.BAD_CONFIG, "bad_point", f"The point cannot be run: {error}.")
                self._commit_bare(point, measurement, failure)
                return failure
            except ClientLost as error:
                lost += 1
                self._tell("client_lost", f"{error}; attempt {lost} of {CLIENT_LOSSES}", measurement)
                self._replace_clients(error)
                if lost < CLIENT_LOSSES:
                    continue
                return _failure(error, None)
            if verdict.validity == "client_bound" and self._can_double(crowd):
                crowd *= 2
                self._tell("retry", f"client_bound: repeated with {crowd} clients", measurement)
                self.clients = self._renew(self.clients, crowd)
                continue
            return failure

    def _can_double(self, crowd: int) -> bool:
        return crowd * 2 <= self._cluster.most_clients()

    def _attempt(self, point: Point, measurement: Measurement, crowd: int) -> tuple[Verdict, Failure | None]:
        """One try, committed whatever came of it. Raises EngineDied, ClientLost after the commit."""
        load = self.load_point(point, measurement.seed)
        load = replace(load, measurement_id=measurement.measurement_id, attempt_id=new_ulid())
        self._replicas.between_points()
        self.clients.prepare(load, self._replicas.cores)
        started_unix_ns = time.time_ns() + int(START_LEAD_S * 1e9)
        run = self.clients.start(START_LEAD_S)
        ended: EngineDied | ClientLost | None = None
        try:
            self._wait(run, point, load, started_unix_ns)
        except (EngineDied, ClientLost) as error:
            run.abort()
            run.settle(SETTLE_S)
            ended = error
        finally:
            self.spans.append(Span(started_unix_ns, time.time_ns()))
        reports = run.reports()
        stats = [report.stats for report in reports.values()]
        parts = [part for report in reports.values() for part in report.parts]
        tables = [report.requests for report in reports.values()]
        for index in set(range(len(self.clients.addresses))) - set(reports):
            rows = lost_requests(load, index, len(self.clients.addresses), "the client process was lost")
            tables.append(rows)
            keys = {"measurement_id": load.measurement_id, "attempt_id": load.attempt_id}
            parts.append(self._store.write_part("requests", rows, writer=f"client{index}-lost", **keys))
        requests = pa.concat_tables(tables)
        verdict = judge(requests, stats, load)
        failure = _failure(ended, requests)
        if failure is None and verdict.validity == "client_bound" and self._can_double(crowd):
            sentence = "; ".join(verdict.reasons) or "the client was the limit"
            failure = Failure(FailureClass.CLIENT_BOUND, "client_bound", sentence)
        self._phase("commit", detail=_level(point))
        commit_point(
            self._store,
            self._plan,
            self._deployment,
            point,
            measurement,
            attempt_id=load.attempt_id,
            launch_id=self._launch_id,
            parts=parts,
            stats=stats,
            verdict=verdict,
            failure=failure,
            requests=requests.num_rows,
            started_unix_ns=started_unix_ns,
        )
        if ended is not None:
            raise ended
        return verdict, failure

    def _wait(self, run: ClientRun, point: Point, load: LoadPoint, started_unix_ns: int) -> None:
        """Until every client reported; watches the engine, the clock and the user meanwhile."""
        length_s = load.warmup_s + load.duration_s if load.duration_s else 0.0
        limit_s = (
            (length_s or load.request_timeout_s * max(1, load.requests or 1)) + load.drain_timeout_s + 2 * SETTLE_S
        )
        aborted = False
        while not run.wait(1.0):
            elapsed_s = (time.time_ns() - started_unix_ns) / 1e9
            name = "warm-up" if elapsed_s < load.warmup_s else "measure"
            self._phase(name, detail=_level(point), elapsed_s=elapsed_s, total_s=length_s, progress=run.progress())
            if self._stop.is_set():
                run.abort()
                raise Interrupted
            if (failure := self._replicas.failure()) is not None:
                self._tell_died(failure)
                raise EngineDied(failure)
            if elapsed_s > limit_s and not aborted:
                run.abort()
                aborted = True
            if elapsed_s > limit_s + SETTLE_S:
                raise ClientLost(range(len(self.clients.addresses)))
        if (failure := self._replicas.failure()) is not None:  # it may have died with the last request
            self._tell_died(failure)
            raise EngineDied(failure)

    def _commit_bare(self, point: Point, measurement: Measurement, failure: Failure) -> None:
        """An attempt that could not even begin: a row without requests."""
        commit_point(
            self._store,
            self._plan,
            self._deployment,
            point,
            measurement,
            attempt_id=new_ulid(),
            launch_id=self._launch_id,
            failure=failure,
        )

    def _replace_clients(self, error: ClientLost) -> None:
        self.clients = self._renew(self.clients, len(self.clients.addresses))

    def _phase(
        self,
        name: str,
        detail: str = "",
        elapsed_s: float = 0.0,
        total_s: float = 0.0,
        progress: Progress | None = None,
    ) -> None:
        self._journal.tell(Phase(self._deployment.label, name, detail, elapsed_s, total_s, progress))

    def _tell(self, kind: str, text: str, measurement: Measurement | None = None) -> None:
        key = measurement.measurement_id if measurement else ""
        self._journal.tell(Event(kind, text, self._deployment.label, self._launch_id, key))

    def _tell_died(self, failure: Failure) -> None:
        self._tell("engine_died", failure.sentence)


def _level(point: Point) -> str:
    unit = "req/s" if point.level.control == "request_rate" else "in flight"
    return f"{point.workload.name} {point.level.value:g} {unit}"


def _failure(ended: EngineDied | ClientLost | None, requests: pa.Table | None) -> Failure | None:
    """Why an attempt failed: what ended it, else a point without one good request, which answers nothing."""
    if isinstance(ended, EngineDied):
        return ended.failure
    if isinstance(ended, ClientLost) or requests is None:
        return Failure(FailureClass.INFRA, "client_lost", f"A load client was lost during the point: {ended}.")
    statuses = requests.column("status").to_pylist()
    if "ok" in statuses:
        return None
    errors = [text for text in requests.column("error").to_pylist() if text]
    classes = [name for name in requests.column("error_class").to_pylist() if name]
    commonest = max(set(classes), key=classes.count) if classes else "no request was sent"
    refused = commonest.startswith("http_4") and commonest != "http_429"
    kind = FailureClass.BAD_CONFIG if refused else FailureClass.ENGINE_CRASH
    example = f": {errors[0][:200]}" if errors else ""
    return Failure(kind, "no_request_ok", f"None of {len(statuses)} requests succeeded ({commonest}){example}.")
