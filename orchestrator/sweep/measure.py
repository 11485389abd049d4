"""Makes one attempt at a load point on running replicas: loads them once, watches, and judges what
came of it. It needs no sweep, plan or store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.base.clock import Clock, UnixSpan
from orchestrator.base.errors import Failure, FailureKind, InputError
from orchestrator.cluster.base import ClientLost, ClientReport
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.load.rows import lost_requests
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.phases import PhaseName, RequestProgress
from orchestrator.sweep.adapter_trial import failed_adapter_trials
from orchestrator.sweep.announcer import Announcer
from orchestrator.sweep.attempt import Attempt, Loaded, judged, nothing_ok, was_redirected
from orchestrator.sweep.early_end import EarlyEnd, EarlyStop
from orchestrator.sweep.endpoint_use import figures_of_endpoint
from orchestrator.sweep.fixed_prompts import fixed_prompts
from orchestrator.sweep.replicas import Replicas
from orchestrator.sweep.words import adapter_words, level_words

if TYPE_CHECKING:
    from orchestrator.capacity.strategy import ProbeWatch
    from orchestrator.cluster.clients import BorrowedClients, ClientRun
    from orchestrator.results.row_writer import RowFile
    from orchestrator.telemetry.engine_metrics import Sample
    from orchestrator.telemetry.node_sampler import NodeTelemetry

# seconds from the ready barrier to the common start: longer than a call takes to reach any client
START_LEAD_S = 0.25
COMMIT_S = 10.0  # seconds reserved for storing a point's rows before a node is taken back
SETTLE_S = 30.0  # seconds that clients get to report after an abort
IDLE_LIMIT_S = 60.0  # seconds that an engine gets to drop aborted requests
# An engine has stalled when no open request has got a byte for STALL_SHARE of request_timeout, but
# at least for LEAST_STALL_S seconds.
STALL_SHARE = 0.5
LEAST_STALL_S = 120.0
DEATH_LOOKS = 6  # one per second; vLLM's watchdog takes 5 s to notice that its core died
# how requests fail while an engine dies
DYING = frozenset(
    {
        *(ErrorClass.CONNECT, ErrorClass.RESET, ErrorClass.HTTP_5XX),
        *(ErrorClass.STREAM_ERROR, ErrorClass.TRUNCATED, ErrorClass.NO_END),
    }
)
# how servers refuse a field: some only notice it while they answer
REFUSALS = frozenset({ErrorClass.HTTP_4XX, ErrorClass.HTTP_5XX, ErrorClass.STREAM_ERROR})


@dataclass(frozen=True, slots=True)
class PointSnapshot:
    """What a running point has come to at one moment. ``elapsed_s``: seconds since its start."""

    progress: Progress
    elapsed_s: float


class Ending(Enum):
    """How a point is ended before the end that was planned."""

    NOW = auto()  # it is over: clients that have not reported are not waited for
    ABORT = auto()  # clients abort what is open; it is over once they have reported
    SHORTEN = auto()  # no request is due from an instant on; it is over once clients have reported


@dataclass(frozen=True, slots=True)
class End:
    """How and why a point is ended: because of a failure, because the user or too many errors
    interrupt it, because clients are late, or because it is a probe that knows enough (``early``).
    """

    failure: Failure | None = None
    interrupted: bool = False
    how: Ending = Ending.NOW
    early: EarlyStop | None = None


# Called about once a second while a point runs. It returns how the point should be ended, or None;
# ``Measurer._watch`` alone acts on that.
Watcher = Callable[[PointSnapshot], End | None]


@dataclass(slots=True)
class PromptFindings:
    """What the fixed prompts have shown of the engines of a launch.

    ``broken``: why their output makes no sense. ``notes``: sentences that are added to the reasons
    of every verdict. ``unsalted``: paths of the APIs that refuse a cache_salt. ``adapter_notes``:
    by path of an API and adapters, sentences on these adapters.
    """

    broken: Sequence[str] = ()
    notes: Sequence[str] = ()
    unsalted: set[str] = field(default_factory=set)
    adapter_notes: dict[tuple[str, tuple[str, ...]], Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserStop:
    """How the user stops measuring. ``is_asked`` says whether they have done so. ``keeps_points``:
    what the running point has measured until then is kept; otherwise it is measured again later.
    """

    is_asked: Callable[[], bool] = lambda: False
    keeps_points: bool = False


@dataclass
class Measurer:
    """Measures load points on these replicas with these clients, which may be exchanged between two
    points.

    ``lead_s``: seconds before the common start of the clients. ``findings``: what the fixed prompts
    have shown so far. ``taken_back`` returns a failure if the replicas' nodes will be gone within
    so many seconds.
    """

    replicas: Replicas
    clients: BorrowedClients
    clock: Clock = field(default_factory=Clock)
    user_stop: UserStop = UserStop()
    announcer: Announcer = field(default_factory=Announcer)
    lead_s: float = START_LEAD_S
    findings: PromptFindings = field(default_factory=PromptFindings)
    taken_back: Callable[[float], Failure | None] = lambda needs_s: None

    def measure(
        self, point: LoadPoint, more_clients: bool = False, watch: ProbeWatch | None = None
    ) -> Attempt:
        """Make one attempt; nothing is committed. ``more_clients``: see ``judged``. ``watch``: not
        None if the point is a probe, which ends as soon as the SLOs of ``watch`` are decided.
        """
        early_end = EarlyEnd(point, watch) if watch is not None else None
        try:
            notes = self._notes_on_adapters(point)
            loaded = self.load_once(replace(point, watched=watch is not None), early_end=early_end)
        except InputError as error:
            sentence = f"The point cannot be run: {error}."
            return Attempt(failure=Failure(FailureKind.BAD_POINT, sentence))
        except ClientLost as error:
            return Attempt(failure=_client_lost(error))
        attempt = judged(point, loaded, more_clients, self.findings.broken)
        reasons = [*attempt.verdict.reasons, *self.findings.notes, *notes]
        return replace(attempt, verdict=replace(attempt.verdict, reasons=reasons))

    def _notes_on_adapters(self, point: LoadPoint) -> Sequence[str]:
        """What the first fixed prompts tell of the point's adapters. They are asked once for each
        workload of a launch. Raises what ``load_once`` raises.
        """
        names = point.workload.adapter_names()
        if not names:
            return ()
        adapter_notes = self.findings.adapter_notes
        key = (point.dialect.path, names)
        if key not in adapter_notes:
            self.announcer.phase(PhaseName.ANSWERS)
            trials = failed_adapter_trials(partial(self.load_once, lead_s=0.0, store=False), point)
            adapter_notes[key] = [adapter_words(trial) for trial in trials]
        return adapter_notes[key]

    def first_answers(self, point: LoadPoint) -> Loaded | None:
        """Send the fixed prompts, all at once, before the first point of an API. Nothing is stored.

        The result has the answers in ``replies``, and a ``failure`` if an engine died at
        its first requests or an endpoint only redirects them. It is None if a client was lost, or
        if the point cannot be run, because the first point will then fail in the same way.
        """
        self.announcer.phase(PhaseName.ANSWERS)
        try:
            loaded = self._load_accepted_prompts(point)
        except (InputError, ClientLost):
            return None
        failure = loaded.failure
        if failure is None and was_redirected(loaded.requests):
            failure = nothing_ok(loaded.requests)
        if failure is not None and failure.kind is FailureKind.CLIENT_LOST:
            return None
        return replace(loaded, failure=failure)

    def _load_accepted_prompts(self, point: LoadPoint) -> Loaded:
        """Send the fixed prompts in ever plainer requests until the API does not refuse all of
        them: with logprobs, without logprobs, and then the same two again without a cache_salt.
        Notes an API that takes no cache_salt. Raises what ``load_once`` raises.
        """
        salting = (True, False) if point.dialect.cache_salt else (True,)
        for is_salted, logprobs in itertools.product(salting, (True, False)):
            variant = point
            if not is_salted:
                variant = replace(point, dialect=point.dialect.unsalted())
            loaded = self.load_once(fixed_prompts(variant, logprobs), lead_s=0.0, store=False)
            classes = set(loaded.requests["error_class"].to_pylist())
            is_refused = loaded.failure is None and bool(classes) and classes <= REFUSALS
            if not is_refused:
                if not is_salted:
                    self.findings.unsalted.add(point.dialect.path)
                return loaded
        return loaded

    def load_once(
        self,
        point: LoadPoint,
        lead_s: float | None = None,
        store: bool = True,
        early_end: EarlyEnd | None = None,
    ) -> Loaded:
        """Load the replicas once, with all clients starting at one instant, and watch until the
        end. Raises InputError for a point that cannot be run, ClientLost when a client is lost
        before the start.

        ``lead_s``: seconds until the start, by default the measurer's. ``store``: clients store
        their rows. ``early_end``: given for a probe, which it may end.
        """
        cache = self.replicas.fresh_cache(point.dialect)
        # preparing takes a minute where prompts are many and long
        self.announcer.phase(PhaseName.WRITE_REQUESTS, level_words(point))
        if self.clients.prepare(point, self.user_stop.is_asked) is None:
            now_ns = self.clock.unix_ns()
            return _nothing_loaded(UnixSpan(now_ns, now_ns))
        if lead_s is None:
            lead_s = self.lead_s
        self.replicas.begin_metrics(self.clients.processes, self.clock.unix_ns)
        started_unix_ns = self.clock.unix_ns() + int(lead_s * 1e9)
        started_s = self.clock.now_s() + lead_s
        run = self.clients.start(lead_s, store)
        end = self._watch(run, point, started_s, early_end)
        longest_s = _length_s(point, early_end) or math.inf
        took_s = min(self.clock.now_s() - started_s, longest_s)
        # not read from the wall clock, which may have been set meanwhile
        span = UnixSpan(started_unix_ns, started_unix_ns + int(took_s * 1e9))
        if end is not None:
            run.abort(rows=not end.interrupted)  # requests that the user cut short have not failed
            if end.interrupted and not self.user_stop.keeps_points:
                return _nothing_loaded(span)
            run.settle(SETTLE_S)
        early_stop = early_end.end if early_end is not None else None
        loaded = self._collect(run, point, span, end or End(), early_stop)
        return replace(loaded, cache=cache)

    def _collect(
        self,
        run: ClientRun,
        point: LoadPoint,
        span: UnixSpan,
        end: End,
        early: EarlyStop | None,
    ) -> Loaded:
        """Collect what a run has left behind, once all clients have reported or were given up.

        ``end``: why it was ended, without reasons if it ran to its end.
        """
        from orchestrator.results.lazy_rows import LazyRows

        reports = run.reports()
        if early is not None and early.outcome == "fails":
            self._await_idle()
        gave_up = any(report.stats.gave_up for report in reports.values())
        interrupted = end.interrupted or gave_up
        lost = self._rows_of_lost(point, reports)
        parts = [report.requests for report in reports.values()]
        requests = LazyRows.of("requests", [*parts, *lost.values()])
        failure = end.failure
        may_be_dead = self.replicas.launched and failure is None and not interrupted
        if may_be_dead and DYING & set(requests["error_class"].unique().to_pylist()):
            failure = self._died_after()
        telemetry = self.replicas.end_telemetry()
        self._tell_lost_gpus(telemetry)
        samples: Mapping[int, Sequence[Sample]] = self.replicas.end_metrics()
        metrics_note = None
        if not self.replicas.launched and any(samples.values()):
            left_out = sum(report.stats.left_out for report in reports.values())
            own = figures_of_endpoint(samples[0], requests, left_out)
            samples = {0: own.samples}
            metrics_note = own.note
        return Loaded(
            span=span,
            requests=requests,
            reports=reports,
            lost=lost,
            samples=samples,
            metrics_note=metrics_note,
            failure=failure,
            early=early,
            interrupted=interrupted,
            hosts=self.replicas.end_hosts(self.clients.processes),
            telemetry=telemetry,
        )

    def _tell_lost_gpus(self, telemetry: Sequence[NodeTelemetry]) -> None:
        for node in telemetry:
            for gpu in node.lost_gpus:
                text = f"{gpu.gpu_uuid} of {node.host} does not answer any more: {gpu.reason}"
                data = {"host": node.host, "gpu_uuid": gpu.gpu_uuid}
                self.announcer.event("gpu_lost", text, data)

    def _await_idle(self) -> None:
        """Wait until the engine has dropped requests that were aborted, so that they do not disturb
        the next point.
        """
        until_s = self.clock.now_s() + IDLE_LIMIT_S
        while self.replicas.have_work() and self.clock.now_s() < until_s:
            if self.user_stop.is_asked():
                return
            self.clock.sleep(0.5)

    def _rows_of_lost(
        self, point: LoadPoint, reports: Mapping[int, ClientReport]
    ) -> dict[int, RowFile]:
        """Rows for the scheduled requests of clients that did not report, by client."""
        count = len(self.clients.addresses)
        point = replace(point, tokenizer=None)
        return {
            index: lost_requests(point, index, count, "the client process was lost")
            for index in sorted(set(range(count)) - set(reports))
        }

    def _watch(
        self, run: ClientRun, point: LoadPoint, started_s: float, early_end: EarlyEnd | None
    ) -> End | None:
        """Watch a point until every client has reported or something ends it now. Returns why it
        was ended; None if all clients have reported.
        """
        watchers = self._watchers(run, point, early_end)
        while True:
            try:
                all_reported = run.wait(0.5 if early_end else 1.0)
            except ClientLost as error:
                return End(_client_lost(error))
            if not all_reported and self.user_stop.is_asked():
                return End(interrupted=True)
            failure = self.replicas.failure()  # an engine may have died with the last request
            if failure is not None:
                return End(self._died(failure))
            if all_reported:
                return None
            snapshot = PointSnapshot(run.progress(), self.clock.now_s() - started_s)
            self._show_load(point, early_end, snapshot)
            for watcher in watchers:
                end = watcher(snapshot)
                if end is None:
                    continue
                if end.how is Ending.NOW:
                    return end
                _ask_clients_to_end(run, end)

    def _watchers(
        self, run: ClientRun, point: LoadPoint, early_end: EarlyEnd | None
    ) -> list[Watcher]:
        """The watchers of a point, in the order in which they are called."""
        watchers: list[Watcher] = [partial(self._look_for_lost_nodes, point, early_end)]
        if early_end is not None:
            watchers.append(partial(self._look_for_verdict, run, point, early_end))
        if point.max_errors:
            watchers.append(partial(look_for_errors, point.max_errors))
        if self.replicas.launched:
            watchers.append(partial(self._look_for_stall, point))
        watchers.append(LateClients(point, len(self.clients.addresses)))
        return watchers

    def _look_for_lost_nodes(
        self, point: LoadPoint, early_end: EarlyEnd | None, snapshot: PointSnapshot
    ) -> End | None:
        """End the point if its nodes are taken back before it is over and its rows are stored."""
        needs_s = max(0.0, _length_s(point, early_end) - snapshot.elapsed_s) + COMMIT_S
        failure = self.taken_back(needs_s)
        return End(self._died(failure, "preempted")) if failure is not None else None

    def _look_for_verdict(
        self, run: ClientRun, point: LoadPoint, early_end: EarlyEnd, snapshot: PointSnapshot
    ) -> End | None:
        """Shorten a probe once it knows enough, unless it is about to end anyway."""
        length_s = _length_s(point, early_end)
        if length_s and snapshot.elapsed_s + self.lead_s >= length_s:
            return None
        early = early_end.look(run, snapshot.progress, snapshot.elapsed_s)
        return End(how=Ending.SHORTEN, early=early) if early is not None else None

    def _look_for_stall(self, point: LoadPoint, snapshot: PointSnapshot) -> End | None:
        """End the point if an engine makes no progress."""
        failure = _stalled(snapshot.progress, point)
        return End(self._died(failure)) if failure is not None else None

    def _died_after(self) -> Failure | None:
        """Why the engine died, if it did. Its server may outlive it by seconds and answer 5xx, so
        its state is looked at for DEATH_LOOKS seconds.
        """
        for _ in range(DEATH_LOOKS):
            failure = self.replicas.failure()
            if failure is not None:
                return self._died(failure)
            if self.user_stop.is_asked():
                break
            self.clock.sleep(1.0)
        return None

    def _died(self, failure: Failure, kind: str = "engine_died") -> Failure:
        """Tell of a failure that ends the launch, and return it. ``kind``: of the event."""
        self.announcer.event(kind, failure.sentence)
        return failure

    def _show_load(
        self, point: LoadPoint, early_end: EarlyEnd | None, snapshot: PointSnapshot
    ) -> None:
        progress = snapshot.progress
        counts = RequestProgress(
            progress.done, progress.in_flight, progress.failed, point.requests or 0
        )
        length_s = _length_s(point, early_end)
        name = PhaseName.MEASURE
        if snapshot.elapsed_s < (point.warmup_s or 0.0):
            name = PhaseName.WARM_UP
        if 0 < length_s <= snapshot.elapsed_s:
            name = PhaseName.WAIT_FOR_ANSWERS
            length_s = 0.0
        elif early_end is not None and early_end.end is None:
            length_s = 0.0  # a probe ends long before its limit, when its verdict is known
        self.announcer.phase(name, level_words(point), snapshot.elapsed_s, length_s, counts)


@dataclass(slots=True)
class LateClients:
    """A watcher of clients that do not report in time: they have to abort, and SETTLE_S seconds
    later they are given up.
    """

    point: LoadPoint
    clients: int
    has_aborted: bool = False

    @property
    def limit_s(self) -> float:
        """When all clients should have reported, in seconds since the point's start."""
        point = self.point
        length_s = point.ends_s or point.request_timeout_s * max(1, point.requests or 1)
        return length_s + point.drain_s + 2 * SETTLE_S

    def __call__(self, snapshot: PointSnapshot) -> End | None:
        late_s = snapshot.elapsed_s - self.limit_s
        if late_s > SETTLE_S:
            return End(_client_lost(ClientLost(range(self.clients))))
        if late_s > 0.0 and not self.has_aborted:
            self.has_aborted = True
            return End(how=Ending.ABORT)
        return None


def _ask_clients_to_end(run: ClientRun, end: End) -> None:
    """Ask the clients of a run to end it and to report."""
    if end.how is Ending.ABORT:
        run.abort()
    elif end.early is not None:
        run.finish(end.early.at_s, drain=end.early.drain)


def _nothing_loaded(span: UnixSpan) -> Loaded:
    """What is left of a point that the user ended before there were rows, or whose rows are not
    kept.
    """
    from orchestrator.results.schemas import REQUESTS

    return Loaded(span=span, requests=REQUESTS.empty_table(), interrupted=True)


def _length_s(point: LoadPoint, early_end: EarlyEnd | None) -> float:
    """Seconds that a point lasts, as far as is known by now; 0 if a number of requests ends it."""
    if early_end is not None and early_end.end is not None:
        return early_end.end.at_s
    return point.ends_s or 0.0


def look_for_errors(max_errors: int, snapshot: PointSnapshot) -> End | None:
    """End the point once ``max_errors`` requests of all clients together have failed."""
    return End(interrupted=True) if snapshot.progress.failed >= max_errors else None


def _stalled(progress: Progress, point: LoadPoint) -> Failure | None:
    """A failure if an engine lives but makes no progress: its open requests have got nothing for
    longer than any prefill takes.
    """
    limit_s = max(LEAST_STALL_S, STALL_SHARE * point.request_timeout_s)
    silent = progress.silent(limit_s)
    if not silent:
        return None
    replicas = ", ".join(str(point.targets[target].replica) for target in silent)
    return Failure(
        FailureKind.ENGINE_STALLED,
        f"The engine runs but makes no progress: not a byte came from replica {replicas} for "
        f"{limit_s:g} s, with requests open there all the time.",
    )


def _client_lost(error: ClientLost) -> Failure:
    return Failure(FailureKind.CLIENT_LOST, f"A load client was lost during the point: {error}.")
