"""One measurement on running replicas: attempts until it is honestly measured, every attempt a commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from orchestrator.cluster.base import ClientLost, ClientReport, ClientRun, Clients
from orchestrator.engines import ENGINES
from orchestrator.errors import Failure, FailureClass, InputError, ResultsError
from orchestrator.load.lost import lost_requests
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.load.validity import judge
from orchestrator.plan.model import Deployment, Measurement, Plan, Point
from orchestrator.results.ids import new_ulid
from orchestrator.results.store import FilePart
from orchestrator.runner.events import Event, Phase
from orchestrator.runner.hosts import held_against
from orchestrator.runner.launch import Interrupted, Replicas, Site
from orchestrator.runner.rows import commit_point, write_engine_metrics

START_LEAD_S = 0.25  # from the ready barrier to the common start: longer than a call takes to arrive anywhere
SETTLE_S = 30.0  # for clients to report after an abort
DEATH_LOOKS = 6  # seconds; vLLM's watchdog needs 5 to see that its core died
RETRY_SEED_STEP = 1_000_003
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


class Measurer:
    """Runs measurements of one deployment on its replicas. ``renew`` swaps the clients for that many others."""

    def __init__(
        self,
        site: Site,
        plan: Plan,
        deployment: Deployment,
        replicas: Replicas,
        launch_id: str,
        clients: Clients,
        renew: Callable[[Clients, int], Clients],
    ) -> None:
        self._site, self._plan, self._deployment, self._replicas = site, plan, deployment, replicas
        self._launch_id, self._renew = launch_id, renew
        self.clients = clients
        self.spans: list[Span] = []
        self._count_text = False

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
            tokenizer=settings.tokenizer or settings.model,  # each client looks for it on its own node
            count_text=self._count_text,
        )

    def smoke(self, point: Point) -> None:
        """One request before the first point: an engine that dies at its first request says so here.

        Its prompt is of another seed, so it warms nothing that is measured. Raises EngineDied.
        """
        probe = replace(self.load_point(point, seed=1), requests=1, duration_s=None, warmup_s=0.0)
        probe = replace(probe, level=point.level.model_copy(update={"control": "concurrency", "value": 1.0}))
        self._phase("first request")
        try:
            self.clients.prepare(probe, self._site.cores.taken())
            run = self.clients.start(0.0, write=False)
        except InputError:
            return  # each point says so itself
        except ClientLost:
            self._replace_clients()
            return
        try:
            self._wait(run, point, probe, time.time_ns())
            requests, _ = self._collect(probe, run.reports())
            sources = requests["token_count_source"].to_pylist()
            self._count_text = "chunks" in sources  # neither usage nor token ids came
            if _engine_errors(requests) and (gone := self._died_after()) is not None:
                raise EngineDied(gone)
        except ClientLost:
            self._replace_clients()
        except EngineDied:
            run.abort()
            run.settle(SETTLE_S)
            raise

    def measure(self, point: Point, measurement: Measurement) -> Failure | None:
        """Measure until the verdict stands. None when it was committed ok; else why not. Raises EngineDied."""
        tries = lost = 0
        while True:
            try:
                failure = self._attempt(point, measurement, tries)
            except InputError as error:
                failure = Failure(FailureClass.BAD_CONFIG, "bad_point", f"The point cannot be run: {error}.")
                self._commit_bare(point, measurement, failure)
                return failure
            except ClientLost as error:
                lost += 1
                self._tell("client_lost", f"{error}; attempt {lost} of {CLIENT_LOSSES}", measurement)
                self._replace_clients()
                if lost == CLIENT_LOSSES:
                    return _lost(error)
                failure = None
            else:
                if failure is None or failure.failure_class is not FailureClass.CLIENT_BOUND:
                    return failure
                crowd = 2 * len(self.clients.addresses)
                self._tell("retry", f"client_bound: repeated with {crowd} clients", measurement)
                self.clients = self._renew(self.clients, crowd)
            tries += 1

    def _can_double(self, point: Point) -> bool:
        """Twice the clients are there, and each of them would have something to send."""
        crowd = 2 * len(self.clients.addresses)
        useful = point.level.control == "request_rate" or crowd <= point.level.value
        return useful and crowd <= self._site.cluster.most_clients()

    def _attempt(self, point: Point, measurement: Measurement, tries: int) -> Failure | None:
        """One try, committed whatever came of it. Raises EngineDied, ClientLost after the commit."""
        # A repeated attempt sends other prompts: an engine's prefix cache would answer the same ones from memory.
        seed = measurement.seed + RETRY_SEED_STEP * tries
        load = replace(self.load_point(point, seed), measurement_id=measurement.measurement_id, attempt_id=new_ulid())
        self._replicas.between_points()
        try:
            self.clients.prepare(load, self._site.cores.taken())
        except ClientLost as error:
            self._commit_bare(point, measurement, _lost(error))
            raise
        self._replicas.begin_metrics()
        started_unix_ns = time.time_ns() + int(START_LEAD_S * 1e9)
        run = self.clients.start(START_LEAD_S)
        ended: EngineDied | ClientLost | None = None
        try:
            self._wait(run, point, load, started_unix_ns)
        except (EngineDied, ClientLost) as error:
            run.abort()
            run.settle(SETTLE_S)
            ended = error
        ended_ns = time.time_ns()
        window_s = point.warmup_s + point.duration_s if point.duration_s else None
        window_end_ns = started_unix_ns + int(window_s * 1e9) if window_s else ended_ns
        self.spans.append(Span(started_unix_ns, min(ended_ns, window_end_ns)))
        reports = run.reports()
        requests, parts = self._collect(load, reports)
        parts += self._engine_metrics(load)
        stats = [report.stats for report in reports.values()]
        verdict = judge(requests, stats, load)
        verdict = held_against(verdict, requests, stats, self.clients.addresses, self._site.hosts.by_address())
        if ended is None and _engine_errors(requests) and (gone := self._died_after()) is not None:
            ended = EngineDied(gone)
        failure = _failure(ended, requests)
        if failure is None and verdict.validity == "client_bound" and self._can_double(point):
            sentence = "; ".join(verdict.reasons) or "the client was the limit"
            failure = Failure(FailureClass.CLIENT_BOUND, "client_bound", sentence)
        self._phase("commit", detail=_level(point))
        commit_point(
            self._site.store,
            self._plan,
            self._deployment,
            point,
            measurement.model_copy(update={"seed": seed}),
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
        if failure is not None and failure.failure_class is FailureClass.ENGINE_CRASH:
            raise EngineDied(failure)  # it lives, but answers nothing: another launch may
        return failure

    def _collect(self, load: LoadPoint, reports: dict[int, ClientReport]) -> tuple[pa.Table, list[FilePart]]:
        """Rows of all clients: of the lost ones as their schedule says."""
        parts = [part for report in reports.values() for part in report.parts]
        tables = [report.requests for report in reports.values()]
        count = len(self.clients.addresses)
        for index in set(range(count)) - set(reports):
            rows = lost_requests(replace(load, tokenizer=None), index, count, "the client process was lost")
            keys = {"measurement_id": load.measurement_id, "attempt_id": load.attempt_id}
            parts.append(self._site.store.write_part("requests", rows, writer=f"client{index}-lost", **keys))
            tables.append(rows)
        return pa.concat_tables(tables), parts

    def _engine_metrics(self, load: LoadPoint) -> list[FilePart]:
        """What the engines said of themselves; that it cannot be stored does not cost the measurement."""
        keys = {"measurement_id": load.measurement_id, "attempt_id": load.attempt_id}
        try:
            return write_engine_metrics(self._site.store, self._replicas.end_metrics(), **keys)
        except ResultsError as error:
            self._tell("no_engine_metrics", str(error))
            return []

    def _died_after(self) -> Failure | None:
        """A server may outlive its engine for seconds and answer 5xx: look again before errors are believed."""
        for _ in range(DEATH_LOOKS):
            if (failure := self._replicas.failure()) is not None:
                self._tell_died(failure)
                return failure
            time.sleep(1.0)
        return None

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
            if self._site.stop.is_set():
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
            self._site.store,
            self._plan,
            self._deployment,
            point,
            measurement,
            attempt_id=new_ulid(),
            launch_id=self._launch_id,
            failure=failure,
        )

    def _replace_clients(self) -> None:
        self.clients = self._renew(self.clients, len(self.clients.addresses))

    def _phase(
        self,
        name: str,
        detail: str = "",
        elapsed_s: float = 0.0,
        total_s: float = 0.0,
        progress: Progress | None = None,
    ) -> None:
        self._site.journal.tell(Phase(self._deployment.label, name, detail, elapsed_s, total_s, progress))

    def _tell(self, kind: str, text: str, measurement: Measurement | None = None) -> None:
        key = measurement.measurement_id if measurement else ""
        self._site.journal.tell(Event(kind, text, self._deployment.label, self._launch_id, key))

    def _tell_died(self, failure: Failure) -> None:
        self._tell("engine_died", failure.sentence)


def _level(point: Point) -> str:
    unit = "req/s" if point.level.control == "request_rate" else "in flight"
    return f"{point.workload.name} {point.level.value:g} {unit}"


def _engine_errors(requests: pa.Table) -> bool:
    """Whether some request failed the way they do when an engine is dying."""
    dying = {"connect", "reset", "http_5xx", "stream_error", "truncated", "no_end"}
    return bool(dying & set(requests["error_class"].to_pylist()))


def _lost(error: ClientLost) -> Failure:
    return Failure(FailureClass.INFRA, "client_lost", f"A load client was lost during the point: {error}.")


def _failure(ended: EngineDied | ClientLost | None, requests: pa.Table) -> Failure | None:
    """Why an attempt failed: what ended it, else a point without one good request, which answers nothing."""
    if isinstance(ended, EngineDied):
        return ended.failure
    if isinstance(ended, ClientLost):
        return _lost(ended)
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
