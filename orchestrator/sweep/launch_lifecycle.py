"""One launch from start to end: place, start, measure point by point, commit, stop, release.
Failures become rows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestrator.analysis.broken_output import broken_output
from orchestrator.base.errors import (
    Failure,
    FailureClass,
    FailureKind,
    InputError,
    Occupied,
    PlacementError,
)
from orchestrator.base.redaction import mask_secrets
from orchestrator.capacity.claim import claim_document
from orchestrator.load.point import LoadPoint, Reply
from orchestrator.plan.model import Point
from orchestrator.results.events import Event, Phase, PhaseName
from orchestrator.results.ids import new_ulid
from orchestrator.results.records import AnswerRow, AttemptData, Committed, LaunchRow
from orchestrator.results.validity import SPOILT
from orchestrator.spec.load import counted
from orchestrator.sweep.admission import Nodes
from orchestrator.sweep.commit import AttemptRecord, commit_attempt
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.deployment_work import START, DeploymentWork, NextMeasurement, expected_s
from orchestrator.sweep.engine_start import EngineStart, LaunchHooks
from orchestrator.sweep.launch_state import Announced, LaunchEvent
from orchestrator.sweep.measure import OF_THE_POINT, Attempt, Loaded, Measurer
from orchestrator.sweep.outlook import Outlook
from orchestrator.sweep.words import (
    broken_output_text,
    claim_words,
    level_words,
    measured_words,
)
from orchestrator.workloads.content import ids_within

NOT_KNOWN = (
    "whether the engine's output makes sense is not known: none of the fixed prompts was answered"
)

TRIAL_LIMIT_S = 60.0  # for an endpoint's trial request; a point may wait longer


class LaunchLifecycle:
    """One launch of a deployment; it makes as many of its measurements as the engine survives.

    ``outlook``: what it asks about the other launches.
    """

    def __init__(
        self, context: SweepContext, work: DeploymentWork, nodes: Nodes, outlook: Outlook
    ) -> None:
        self._context = context
        self._work = work
        self._outlook = outlook
        self._deployment = work.deployment
        self._record = context.state.launch(work.deployment)
        hooks = LaunchHooks(
            on_hosts=self._announce_launch,
            on_wait=self._announce_wait,
            is_better_off_elsewhere=partial(outlook.is_better_off_elsewhere, work.deployment),
        )
        self._launch = EngineStart(context, work.deployment, nodes, hooks)
        self._start = work.start
        self._nodes = tuple(itertools.chain(*nodes))
        self._full: set[str] = set()  # nodes whose disk its clients filled
        # what ended it, if that was counted against a measurement
        self._counted: Failure | None = None
        # by path of an API: whether the tokens of its replies must be counted
        self._count_text: dict[str, bool] = {}

    def run(self) -> None:
        """Run it to its end. Raises InputError for an error that would stop every launch."""
        if self._record.announced is Announced.NOTHING:
            self._announce_launch()
        failure: Failure | None = None
        is_occupied = False
        try:
            failure = self._start_and_measure()
        except Occupied as error:
            is_occupied = True
            self._announce_wait(str(error))
        except PlacementError as error:  # the engines are placed by now, so it is about clients
            text = f"The cluster could not start a load client: {error}."
            failure = Failure(FailureKind.NO_CLIENT, text)
        except InputError:
            raise
        except Exception as error:
            text = f"The launch failed in this program: {type(error).__name__}: {error}."
            failure = Failure(FailureKind.INTERNAL, text)
        finally:
            self._advance(LaunchEvent.STOP_BEGAN)
            try:
                if self._context.stop.is_set() and not is_occupied:
                    self._launch.commit_first(failure)
            finally:
                self._launch.stop()
        if is_occupied:
            self._context.tell(Phase(self._deployment.label, PhaseName.ENDED))
            self._advance(LaunchEvent.REQUEUED)
        else:
            self._end(failure)

    def _end(self, failure: Failure | None) -> None:
        """Count what ended it, and commit it."""
        is_given_up = False
        if failure is not None:
            self._announce_launch()
            self._context.breakers.failed(failure, self._nodes)
            if failure.failure_class is FailureClass.INFRA:
                self._work.avoid |= set(self._nodes)
            if failure is not self._counted:
                is_given_up = not self._count_failed_start(failure)
        try:
            if failure is not None and is_given_up:
                give_up(self._context, self._outlook, self._work, failure, self._launch.row)
        finally:
            self._launch.commit(failure)
            self._context.tell(Phase(self._deployment.label, PhaseName.ENDED))
            self._advance(LaunchEvent.STOPPED)

    def _advance(self, event: LaunchEvent) -> None:
        self._context.state.advance(self._deployment, event)

    def _announce_launch(self) -> None:
        """Announce the launch; again when it has the hosts for which it waited."""
        if self._record.announced is Announced.LAUNCH:
            return
        self._record.announced = Announced.LAUNCH
        self._work.follow_race()
        launch_id = self._launch.row.launch_id
        left = self._work.left
        where = f" on {', '.join(self._nodes)}" if self._nodes else ""
        text = f"launch {launch_id}{where}, {counted(left, 'measurement')} to do"
        data = {"nodes": list(self._nodes), "left": left, **self._record.admission.data()}
        self._context.tell(Event("launch", text, self._deployment.label, launch_id, data=data))

    def _announce_wait(self, text: str) -> None:
        """Announce who is in its way; once for each wait."""
        if self._record.announced is Announced.WAIT:
            return
        self._record.announced = Announced.WAIT
        self._tell("occupied", f"it waits: {text}")

    def _start_and_measure(self) -> Failure | None:
        """Start it and measure. Why it ended early; None when all is measured, or the user or the
        budget ended it.
        """
        started = self._launch.start()
        if started is None or isinstance(started, Failure):
            return started
        self._advance(LaunchEvent.SERVING)
        row = self._launch.row
        start_s = (row.placed_s or 0.0) + (row.ready_s or 0.0)
        self._context.state.started(self._deployment, start_s)
        measurer = Measurer(
            started,
            self._context.borrow_clients(self._deployment.id),
            self._context.clock,
            self._context.stop.is_set,
            self._context.tell,
            self._deployment.label,
            row.launch_id,
            taken_back=partial(self._context.taken_back, self._nodes),
        )
        try:
            return self._measure_all(measurer)
        finally:
            measurer.clients.release()

    def _measure_all(self, measurer: Measurer) -> Failure | None:
        """Measure point after point until nothing is left for this start or the engine is gone; why
        it is gone.
        """
        while True:
            self._work.follow_race()
            following = self._work.next
            if following is None or self._context.stop.is_set():
                return None
            if following.measurement.start != self._start:
                return None  # the next measurement belongs to another start
            if self._must_leave_nodes(following):
                return None
            failure = self._context.taken_back(self._nodes, math.inf)
            if failure is not None:
                return failure  # begin no point on a draining node
            if self._context.taken_back(measurer.clients.nodes, math.inf):
                self._exchange_clients(measurer, len(measurer.clients.addresses))
            self._advance(LaunchEvent.LOAD_BEGAN)
            attempt = self._measure(measurer, following)
            if isinstance(attempt, Failure):
                return attempt
            if attempt.interrupted:
                return None
            if attempt.launch_over:
                self._counted = attempt.failure
                return attempt.failure
            self._advance(LaunchEvent.LOAD_ENDED)

    def _must_leave_nodes(self, following: NextMeasurement) -> bool:
        """Whether the launch ends for others, or because of the budget; that is told."""
        if self._outlook.should_yield(self._work):
            self._work.yield_to_others()
            self._tell(
                "gives_way",
                "it ends so that others are probed first; it goes on unless they hold more",
            )
            return True
        next_s = expected_s(following.point)
        if self._context.admit(self._deployment, next_s) is None:
            return False
        over = self._context.over_budget(self._deployment, next_s)
        if over is not None:
            leave_out(self._context, self._work, over)
        else:
            self._tell(
                "gives_way",
                "it ends: others may use up the budget; it goes on if they leave enough",
            )
        return True

    def _measure(self, measurer: Measurer, following: NextMeasurement) -> Attempt | Failure:
        """Make one attempt and commit it. Returns why the launch is over instead, if the engine
        answers nothing before the point.
        """
        point = following.point
        timeout_s = min(point.load.request_timeout_s, TRIAL_LIMIT_S)
        failure = self._launch.try_endpoint(measurer.replicas, point.workload.api, timeout_s)
        if failure is not None:
            return failure
        load = self._load_point(measurer, following)
        if load.dialect.path not in self._count_text:
            failure = self._first_answers(measurer, load)
            if failure is not None:
                return failure
            load = self._load_point(measurer, following)  # as the answers say
        began_s = self._context.clock.now_s()
        attempt = measurer.measure(load, self._can_double(measurer, point), self._work.watch)
        if attempt.interrupted:
            return attempt
        self._context.tell(Phase(self._deployment.label, PhaseName.STORE, level_words(load)))
        measurement = replace(following.measurement, seed=load.seed)
        record = AttemptRecord(
            self._deployment, point, measurement, attempt, load.attempt_id, self._launch.row
        )
        committed = commit_attempt(self._context.store, record)
        took_s = self._context.clock.now_s() - began_s
        self._context.state.took(expected_s(point), took_s)
        self._after(attempt, committed, measurer)
        return attempt

    def _first_answers(self, measurer: Measurer, asked: LoadPoint) -> Failure | None:
        """Ask the fixed prompts before an API's first point, once more with other clients if one
        was lost. Why the launch is over, if it is. The answers that count are those through the
        first API.
        """
        path = asked.dialect.path
        is_first = not self._count_text
        emulated = self._launch.row.emulated
        answers = measurer.first_answers(asked)
        if answers is None:
            self._exchange_clients(measurer, len(measurer.clients.addresses))
            answers = measurer.first_answers(asked)
        # the API reports neither usage nor token ids: keep its replies and count their tokens
        self._count_text[path] = answers is not None and _counts_chunks(answers)
        ended = answers.ended if answers is not None else None
        if ended is not None and (is_first or ended.kind not in OF_THE_POINT):
            return ended
        if not is_first or emulated:  # an emulator's answers are made up
            return None
        transport = measurer.replicas.kv_transport()
        if transport is not None:
            self._launch.note_transport(transport)
        self._launch.answers = self._answers(answers.replies, asked) if answers is not None else []
        measurer.broken = [
            broken_output_text(broken) for broken in broken_output(self._launch.answers)
        ]
        measurer.notes = () if self._launch.answers else (NOT_KNOWN,)
        return None

    def _answers(self, replies: Sequence[Reply], asked: LoadPoint) -> list[AnswerRow]:
        row = self._launch.row
        secrets = [secret for target in asked.targets for secret in target.secrets]
        return [
            AnswerRow(
                launch_id=row.launch_id,
                deployment_id=row.deployment_id,
                prompt_index=reply.request_index,
                api=asked.dialect.path,
                replica=reply.replica,
                prompt=reply.prompt,
                text=mask_secrets(reply.text, secrets),  # a server may repeat its key
                token_ids=reply.token_ids,
                logprobs=reply.logprobs,
            )
            for reply in replies
        ]

    def _load_point(self, measurer: Measurer, following: NextMeasurement) -> LoadPoint:
        """The point as clients load it."""
        point = following.point
        settings = self._deployment.settings
        attempt_id = new_ulid()
        dialect = self._launch.dialect(point.workload.api)
        if dialect.path in measurer.unsalted:
            dialect = dialect.unsalted()
        else:
            dialect = dialect.salted(attempt_id)
        measurement_id = following.measurement.measurement_id
        return LoadPoint(
            targets=measurer.replicas.targets,
            dialect=dialect,
            count_text=self._count_text.get(dialect.path, False),
            **point.load_rules(),
            seed=following.measurement.tried(self._work.tries(measurement_id)).seed,
            # each client looks it up on its own node
            tokenizer=settings.tokenizer or settings.model,
            vocabulary=ids_within(measurer.replicas.vocab_size),
            measurement_id=measurement_id,
            attempt_id=attempt_id,
        )

    def _can_double(self, measurer: Measurer, point: Point) -> bool:
        """Whether the cluster has twice as many clients, and each of them would have something to
        send.
        """
        crowd = 2 * len(measurer.clients.addresses)
        useful = point.level.control == "request_rate" or crowd <= point.level.value
        return useful and crowd <= self._context.cluster.most_clients()

    def _after(self, attempt: Attempt, committed: Committed, measurer: Measurer) -> None:
        """Close the measurement or let it be tried again, and replace or double the clients if they
        failed it.
        """
        failure = attempt.failure
        key = committed.measurement_id
        crowd = len(measurer.clients.addresses)
        if attempt.loaded is not None:
            self._context.state.add_span(attempt.loaded.span_unix_ns)
        if failure is None:
            self._context.breakers.measured(self._nodes)
        if failure is None or not self._work.count_failure(key, failure):
            close(self._context, self._outlook, self._work, committed, failure)
        else:
            self._tell("retry", f"{failure.kind}: {failure.sentence}", key)
        if failure is not None and failure.kind is FailureKind.CLIENT_LOST:
            self._exchange_clients(measurer, crowd)
        elif failure is not None and failure.kind is FailureKind.CLIENT_BOUND:
            self._exchange_clients(measurer, 2 * crowd)

    def _exchange_clients(self, measurer: Measurer, count: int) -> None:
        # a client that ends frees its disk, and the next one there would fill it again
        self._full |= measurer.clients.full
        measurer.clients.release()
        measurer.clients = self._context.borrow_clients(self._deployment.id, count, self._full)

    def _count_failed_start(self, failure: Failure) -> bool:
        """Count and tell a failure of the launch. Returns whether the engine is started again."""
        is_tried_again = self._work.count_failure(START.format(self._start), failure)
        self._tell("retry" if is_tried_again else "gave_up", failure.sentence)
        return is_tried_again

    def _tell(self, kind: str, text: str, measurement_id: str = "") -> None:
        launch_id = self._launch.row.launch_id
        self._context.tell(Event(kind, text, self._deployment.label, launch_id, measurement_id))


def _counts_chunks(answers: Loaded) -> bool:
    """Whether some reply reported neither its usage nor token ids."""
    return "chunks" in answers.requests["token_count_source"].to_pylist()


def give_up(
    context: SweepContext,
    outlook: Outlook,
    work: DeploymentWork,
    failure: Failure,
    launch: LaunchRow | None = None,
) -> None:
    """Commit every open measurement of a deployment whose engine cannot be started, which was told,
    as failed; of a search only the one it asks for. If that cannot be stored, whatever the reason,
    leave them out.
    """
    try:
        work.follow_race()
        for _ in range(work.left):
            following = work.next
            if following is None:
                break
            attempt = Attempt(failure=failure)
            record = AttemptRecord(
                work.deployment, following.point, following.measurement, attempt, launch=launch
            )
            committed = commit_attempt(context.store, record)
            close(context, outlook, work, committed, failure, given_up=True)
        work.drop()
    except Exception as error:
        leave_out(context, work, f"rows that say why cannot be stored ({error})", "row_lost")


def leave_out(context: SweepContext, work: DeploymentWork, why: str, kind: str = "budget") -> None:
    """Leave the open measurements of a deployment out of this sweep, without rows: a later sweep
    may make them.
    """
    work.follow_race()
    text = f"{why}; left out: {counted(work.left, 'measurement')}"
    context.tell(Event(kind, text, work.deployment.label))
    context.state.count(left_out=work.left)
    work.drop()


def close(
    context: SweepContext,
    outlook: Outlook,
    work: DeploymentWork,
    committed: Committed,
    failure: Failure | None,
    given_up: bool = False,
) -> None:
    """Close the measurement that was asked for with this attempt, and report it. ``given_up``: see
    ``DeploymentWork.close``; why was told.
    """
    following = work.next
    assert following is not None
    point = following.point
    work.close(committed, given_up)
    label = work.deployment.label
    measurement_id = committed.measurement_id
    data: dict[str, object] = {"left_s": round(outlook.left_s()), "left": work.left}
    if failure is None:
        is_spoilt = isinstance(committed, AttemptData) and committed.point.validity in SPOILT
        context.state.count(measured=1, spoilt=is_spoilt)
        kind = "measured"
        outcome = measured_words(committed, context.plan.slos)
    else:
        context.state.count(failed=1)
        kind = "failed"
        outcome = failure.sentence
    if given_up:
        data["told"] = True
    text = f"{kind} {level_words(point)}: {outcome}".removesuffix(": ")
    context.tell(Event(kind, text, label, measurement_id=measurement_id, data=data))
    claims = work.claims(point.workload.name)
    if claims:
        text = f"{point.workload.name}: {claim_words(point.level.control, claims)}"
        documents = {name: claim_document(claim) for name, claim in claims.items()}
        context.tell(Event("search", text, label, measurement_id=measurement_id, data=documents))
