"""One launch from its admission to its end: start its engines, measure point by point, commit, and
stop. Failures become rows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Protocol

from orchestrator.analysis.broken_output import broken_output
from orchestrator.base.errors import (
    EngineFailure,
    Failure,
    FailureClass,
    FailureKind,
    InputError,
    Occupied,
    PlacementError,
)
from orchestrator.base.redaction import mask_secrets
from orchestrator.base.text import counted
from orchestrator.capacity.claim import claim_document
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import LoadPoint, Reply
from orchestrator.plan.model import Plan, Point
from orchestrator.results.events import Event
from orchestrator.results.ids import new_ulid
from orchestrator.results.phases import LaunchState, Phase, PhaseName
from orchestrator.results.records import AnswerRow, AttemptData, Committed, LaunchRow
from orchestrator.results.validity import SPOILT
from orchestrator.sweep.admission import Nodes
from orchestrator.sweep.attempt import OF_THE_POINT, Attempt, Loaded
from orchestrator.sweep.commit import AttemptRecord, commit_attempt
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.deployment_work import (
    DeploymentWork,
    NextMeasurement,
    expected_s,
)
from orchestrator.sweep.engine_start import EngineStart, SweepStopped
from orchestrator.sweep.launch_dialects import LaunchDialects
from orchestrator.sweep.launch_notes import LaunchNotes
from orchestrator.sweep.launch_state import Announced, LaunchEvent
from orchestrator.sweep.measure import Measurer, UserStop
from orchestrator.sweep.outlook import Outlook
from orchestrator.sweep.start_request import LaunchHooks, StartRequest
from orchestrator.sweep.state import MeasurementCounts, SweepState
from orchestrator.sweep.tries import start_key
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

TRIAL_LIMIT_S = 60.0  # seconds that an endpoint's trial request may take; a point may wait longer


class EndReason(Enum):
    """Why a launch ends."""

    NOTHING_LEFT = auto()  # its deployment is measured, as far as is known now
    NEXT_START = auto()  # the next measurement belongs to another start of the engines
    NOT_NEEDED = auto()  # the answer to the sweep does not depend on its deployment any more
    GIVES_WAY = auto()  # others are to be probed first, or may use up the budget
    OVER_BUDGET = auto()
    STOPPED = auto()  # by the user
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """How a launch ended. ``failure``: given if it failed."""

    reason: EndReason
    failure: Failure | None = None


class LaunchLifecycle:
    """One launch of a deployment: it makes as many of the deployment's measurements as its engines
    survive.

    ``work``: what is left to measure of the deployment. ``outlook``: answers what the launch asks
    about the other launches.
    """

    def __init__(
        self, context: SweepContext, work: DeploymentWork, nodes: Nodes, outlook: Outlook
    ) -> None:
        self._context = context
        self._work = work
        self._outlook = outlook
        self._deployment = work.deployment
        self._launch_record = context.state.launch(work.deployment)
        self._notes = LaunchNotes(context, work.deployment)
        hooks = LaunchHooks(
            on_hosts=self._announce_launch,
            on_wait=self._announce_occupied,
            is_better_off_elsewhere=partial(outlook.is_better_off_elsewhere, work.deployment),
        )
        self._engine_start = EngineStart(
            StartRequest(context, work.deployment, nodes, self._notes, hooks)
        )
        self._dialects = LaunchDialects(work.deployment.settings, self._notes)
        # which start of the deployment this is; its measurements belong to that start
        self._start_index = work.start
        self._nodes = tuple(itertools.chain(*nodes))
        self._full_nodes: set[str] = set()  # nodes whose disk its clients filled
        # what ended the launch, if that was counted against a measurement
        self._counted_failure: Failure | None = None
        # by path of an API: whether the tokens of its replies must be counted
        self._count_text: dict[str, bool] = {}

    def run(self) -> None:
        """Run the launch until it has ended or is in the queue again. Raises InputError for an
        error that would stop every launch.
        """
        if self._launch_record.announced is Announced.NOTHING:
            self._announce_launch()
        failure: Failure | None = None
        occupied: Occupied | None = None
        try:
            failure = self._start_and_measure().failure
        except Occupied as error:
            occupied = error
        except PlacementError as error:  # of a client: the engines are placed by now
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
                if self._context.stop.is_set() and occupied is None:
                    self._notes.commit_first(failure)
            finally:
                self._engine_start.stop()
        if occupied is not None:
            self._queue_again(occupied)
        else:
            self._end(failure)

    def _queue_again(self, occupied: Occupied) -> None:
        """Go back to the queue, without a row, because others kept one of its hosts."""
        self._advance(LaunchEvent.REQUEUED)
        text = str(occupied)
        self._context.tell(Phase(self._deployment.label, PhaseName.QUEUED, says=text))
        if not self._context.stop.is_set():
            self._announce_queued(text)

    def _end(self, failure: Failure | None) -> None:
        """Count what ended the launch, and commit its row."""
        is_given_up = False
        if failure is not None:
            self._announce_launch()
            self._context.breakers.failed(failure, self._nodes)
            if failure.failure_class is FailureClass.INFRA:
                self._work.avoid |= set(self._nodes)
            if failure is not self._counted_failure:
                is_given_up = not self._count_failed_start(failure)
        try:
            if failure is not None and is_given_up:
                give_up(self._context, self._outlook, self._work, failure, self._notes.row)
        finally:
            self._notes.commit(failure)
            self._advance(LaunchEvent.STOPPED)
            self._context.tell(Phase(self._deployment.label, PhaseName.ENDED))

    def _advance(self, event: LaunchEvent) -> None:
        self._context.state.advance(self._deployment, event)

    def _announce_launch(self) -> None:
        """Announce the launch, and announce it again when it has the hosts for which it waited."""
        if self._launch_record.announced is Announced.LAUNCH:
            return
        self._launch_record.announced = Announced.LAUNCH
        self._work.follow_race()
        launch_id = self._notes.launch_id
        left = self._work.left
        nodes = ", ".join(node[:8] for node in self._nodes)  # of an id of 56 digits
        where = f" on {nodes}" if nodes else ""
        text = f"launch {launch_id}{where}, {counted(left, 'measurement')} to do"
        data = {"nodes": list(self._nodes), "left": left, **self._launch_record.admission.data()}
        self._context.tell(Event("launch", text, self._deployment.label, launch_id, data=data))

    def _announce_occupied(self, held: str) -> None:
        """Announce, once for each wait, that the launch stands in line. ``held``: who holds one of
        its hosts, or gets it first.
        """
        if self._launch_record.announced in (Announced.OCCUPIED, Announced.QUEUED):
            return
        self._launch_record.announced = Announced.OCCUPIED
        self._tell("occupied", f"it waits: {held}", state=LaunchState.OCCUPIED)

    def _announce_queued(self, held: str) -> None:
        """Announce, once for each wait, that the launch is in the queue again. ``held``: who kept
        one of its hosts.
        """
        if self._launch_record.announced is Announced.QUEUED:
            return
        self._launch_record.announced = Announced.QUEUED
        self._tell("occupied", f"it waits in the queue again: {held}", state=LaunchState.QUEUED)

    def _start_and_measure(self) -> LaunchEnd:
        """Start the engines and measure. Raises Occupied when the launch should be queued again."""
        try:
            replicas = self._engine_start.start()
        except SweepStopped:
            return LaunchEnd(EndReason.STOPPED)
        except EngineFailure as error:
            return LaunchEnd(EndReason.FAILED, error.failure)
        self._advance(LaunchEvent.SERVING)
        row = self._notes.row
        start_s = (row.placed_s or 0.0) + (row.ready_s or 0.0)
        self._context.state.start_times.add(self._deployment, start_s)
        measurer = Measurer(
            replicas,
            self._context.borrow_clients(self._deployment.id),
            self._context.clock,
            UserStop(self._context.stop.is_set),
            self._notes.announcer,
            taken_back=partial(self._context.taken_back, self._nodes),
        )
        try:
            return self._measure_all(measurer)
        finally:
            measurer.clients.release()

    def _measure_all(self, measurer: Measurer) -> LaunchEnd:
        """Measure point after point until the launch is over."""
        while True:
            self._work.follow_race()
            following = self._work.next
            if self._context.stop.is_set():
                return LaunchEnd(EndReason.STOPPED)
            if following is None:
                return LaunchEnd(EndReason.NOTHING_LEFT)
            if following.measurement.start != self._start_index:
                return LaunchEnd(EndReason.NEXT_START)
            reason = self._reason_to_leave(following)
            if reason is not None:
                return LaunchEnd(reason)
            failure = self._context.taken_back(self._nodes, math.inf)
            if failure is not None:  # begin no point on a draining node
                return LaunchEnd(EndReason.FAILED, failure)
            if self._context.taken_back(measurer.clients.nodes, math.inf):
                self._exchange_clients(measurer, len(measurer.clients.addresses))
            self._advance(LaunchEvent.LOAD_BEGAN)
            failure = self._try_api(measurer, following)
            if failure is not None:
                return LaunchEnd(EndReason.FAILED, failure)
            attempt = self._measure_next(measurer, following)
            if attempt.interrupted:
                return LaunchEnd(EndReason.STOPPED)
            if attempt.launch_over:
                self._counted_failure = attempt.failure
                return LaunchEnd(EndReason.FAILED, attempt.failure)
            self._advance(LaunchEvent.LOAD_ENDED)

    def _reason_to_leave(self, following: NextMeasurement) -> EndReason | None:
        """Why the launch must leave its nodes instead of measuring this; None: it may go on. It
        tells the user why.
        """
        if not self._context.answer.needs(self._deployment.id):
            return EndReason.NOT_NEEDED  # the sweep tells the user
        if self._outlook.should_yield(self._work):
            self._work.yield_to_others()
            self._tell(
                "gives_way",
                "it ends so that others are probed first; it goes on unless they hold more",
            )
            return EndReason.GIVES_WAY
        next_s = expected_s(following.point)
        if self._context.budget.admit(self._deployment, next_s) is None:
            return None
        over = self._context.budget.over(self._deployment, next_s)
        if over is not None:
            leave_out(self._context, self._work, over)
            return EndReason.OVER_BUDGET
        self._tell(
            "gives_way",
            "it ends: others may use up the budget; it goes on if they leave enough",
        )
        return EndReason.GIVES_WAY

    def _try_api(self, measurer: Measurer, following: NextMeasurement) -> Failure | None:
        """Before the first point of an API: find out how it is asked, and ask the fixed prompts.

        Returns why the launch is over, if its engines answer nothing.
        """
        api = following.point.workload.api
        timeout_s = min(following.point.load.request_timeout_s, TRIAL_LIMIT_S)
        failure = self._dialects.try_endpoint(measurer.replicas.targets, api, timeout_s)
        if failure is not None:
            return failure
        if self._dialects.dialect(api).path in self._count_text:
            return None
        return self._ask_fixed_prompts(measurer, self._load_point(measurer, following))

    def _measure_next(self, measurer: Measurer, following: NextMeasurement) -> Attempt:
        """Make one attempt and commit it."""
        point = following.point
        load = self._load_point(measurer, following)
        began_s = self._context.clock.now_s()
        attempt = measurer.measure(load, self._can_double(measurer, point), self._work.watch)
        if attempt.interrupted:
            return attempt
        self._context.tell(Phase(self._deployment.label, PhaseName.STORE, level_words(load)))
        measurement = replace(following.measurement, seed=load.seed)
        record = AttemptRecord(
            self._deployment, point, measurement, attempt, load.attempt_id, self._notes.row
        )
        committed = commit_attempt(self._context.store, record)
        took_s = self._context.clock.now_s() - began_s
        self._context.state.took(expected_s(point), took_s)
        self._settle(attempt, committed, measurer)
        return attempt

    def _ask_fixed_prompts(self, measurer: Measurer, load: LoadPoint) -> Failure | None:
        """Ask the fixed prompts before the first point of an API; once more with other clients if
        a client was lost. The answers through the launch's first API are stored and judged.

        Returns why the launch is over, if it is.
        """
        path = load.dialect.path
        is_first = not self._count_text
        emulated = self._notes.row.emulated
        answers = measurer.first_answers(load)
        if answers is None:
            self._exchange_clients(measurer, len(measurer.clients.addresses))
            answers = measurer.first_answers(load)
        # the API reports neither usage nor token ids: keep its replies and count their tokens
        self._count_text[path] = answers is not None and _counts_chunks(answers)
        failure = answers.failure if answers is not None else None
        if failure is not None and (is_first or failure.kind not in OF_THE_POINT):
            return failure
        if not is_first or emulated:  # an emulator's answers are made up
            return None
        transport = measurer.replicas.kv_transport()
        if transport is not None:
            self._notes.note_transport(transport)
        rows: list[AnswerRow] = []
        if answers is not None:
            rows = self._answer_rows(answers.replies, load)
        self._notes.answers = rows
        measurer.findings.broken = [broken_output_text(broken) for broken in broken_output(rows)]
        measurer.findings.notes = () if rows else (NOT_KNOWN,)
        return None

    def _answer_rows(self, replies: Sequence[Reply], load: LoadPoint) -> list[AnswerRow]:
        """The rows of table ``answers`` for these replies to the fixed prompts."""
        row = self._notes.row
        secrets: list[str] = []
        for target in load.targets:
            secrets += target.secrets
        return [
            AnswerRow(
                launch_id=row.launch_id,
                deployment_id=row.deployment_id,
                prompt_index=reply.request_index,
                api=load.dialect.path,
                replica=reply.replica,
                prompt=reply.prompt,
                text=mask_secrets(reply.text, secrets),  # a server may repeat its key
                token_ids=reply.token_ids,
                logprobs=reply.logprobs,
            )
            for reply in replies
        ]

    def _load_point(self, measurer: Measurer, following: NextMeasurement) -> LoadPoint:
        """The next measurement's point as clients load it."""
        point = following.point
        settings = self._deployment.settings
        attempt_id = new_ulid()
        dialect = self._dialects.dialect(point.workload.api)
        if dialect.path in measurer.findings.unsalted:
            dialect = dialect.unsalted()
        else:
            dialect = dialect.salted(attempt_id)
        measurement_id = following.measurement.measurement_id
        return LoadPoint(
            targets=measurer.replicas.targets,
            dialect=dialect,
            count_text=self._count_text.get(dialect.path, False),
            **point.load_rules(),
            seed=following.measurement.tried(self._work.tries.of(measurement_id)).seed,
            # each client looks for the tokenizer on its own node
            tokenizer=settings.tokenizer or settings.model,
            id_range=ids_within(measurer.replicas.vocab_size),
            cache_block_tokens=ENGINES[settings.engine].cache_block_tokens(
                settings, self._deployment.hardware
            ),
            measurement_id=measurement_id,
            attempt_id=attempt_id,
        )

    def _can_double(self, measurer: Measurer, point: Point) -> bool:
        """Whether the cluster has twice as many clients, and each of them would have something to
        send.
        """
        clients = 2 * len(measurer.clients.addresses)
        have_work = point.level.control == "request_rate" or clients <= point.level.value
        return have_work and clients <= self._context.cluster.most_clients()

    def _settle(self, attempt: Attempt, committed: Committed, measurer: Measurer) -> None:
        """Close the measurement or let it be tried again, and replace or double the clients if they
        failed it.
        """
        failure = attempt.failure
        key = committed.measurement_id
        clients = len(measurer.clients.addresses)
        if attempt.loaded is not None:
            self._context.state.add_span(attempt.loaded.span)
        if failure is None:
            self._context.breakers.measured(self._nodes)
        if failure is None or not self._work.tries.count(key, failure):
            close(self._context, self._outlook, self._work, committed, failure)
            self._context.tell_standing(self._work, committed)
        else:
            self._tell("retry", f"{failure.kind}: {failure.sentence}", key)
        if failure is not None and failure.kind is FailureKind.CLIENT_LOST:
            self._exchange_clients(measurer, clients)
        elif failure is not None and failure.kind is FailureKind.CLIENT_BOUND:
            self._exchange_clients(measurer, 2 * clients)

    def _exchange_clients(self, measurer: Measurer, count: int) -> None:
        """Release the clients, and borrow ``count`` others."""
        # a client that ends frees its disk, and the next client on that node would fill it again
        self._full_nodes |= measurer.clients.nodes_without_room
        measurer.clients.release()
        measurer.clients = self._context.borrow_clients(
            self._deployment.id, count, self._full_nodes
        )

    def _count_failed_start(self, failure: Failure) -> bool:
        """Count a failure of the launch and tell the user of it. Returns whether the engines are
        started again.
        """
        is_tried_again = self._work.tries.count(start_key(self._start_index), failure)
        self._tell("retry" if is_tried_again else "gave_up", failure.sentence)
        return is_tried_again

    def _tell(self, kind: str, text: str, measurement_id: str = "", **data: str) -> None:
        launch_id = self._notes.launch_id
        label = self._deployment.label
        self._context.tell(Event(kind, text, label, launch_id, measurement_id, data))


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
    """Commit as failed every open measurement of a deployment whose engines cannot be started; of
    a search, commit only the measurement that it asks for. If rows cannot be stored, whatever the
    reason, leave the measurements out.

    The caller has told the user why the engines cannot be started. ``launch``: the row of the
    deployment's last launch.
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
            context.tell_standing(work, committed)
        work.drop()
    except Exception as error:
        work.follow_race()
        context.state.count(MeasurementCounts(without_row=work.left))
        why = f"rows that say why cannot be stored ({error})"
        _drop_open(context, work, Event("row_lost", why, work.deployment.label))


class Ledger(Protocol):
    """Where the outcome of a measurement is noted: the context of a sweep, or a simulation."""

    @property
    def plan(self) -> Plan: ...
    @property
    def state(self) -> SweepState: ...
    def tell(self, item: Event | Phase) -> None: ...


def leave_out(context: Ledger, work: DeploymentWork, over: str) -> None:
    """Leave the open measurements of a deployment out of this sweep, without rows, because the
    budget is used up: a later sweep may make them. ``over``: says which part of the budget.
    """
    work.follow_race()
    context.state.count(MeasurementCounts(over_budget=work.left))
    _drop_open(context, work, Event("budget", over, work.deployment.label))


def _drop_open(context: Ledger, work: DeploymentWork, event: Event) -> None:
    """Drop the open measurements of a deployment. ``event``: the reason; their number is added."""
    text = f"{event.text}; left out: {counted(work.left, 'measurement')}"
    context.tell(replace(event, text=text))
    work.drop()


def close(
    context: Ledger,
    outlook: Outlook,
    work: DeploymentWork,
    committed: Committed,
    failure: Failure | None,
    given_up: bool = False,
) -> None:
    """Close the deployment's next measurement with this attempt, and report it. ``given_up``: see
    ``DeploymentWork.close``; the user has been told why, so the live view need not show it.
    """
    following = work.next
    assert following is not None
    point = following.point
    work.close(committed, given_up)
    label = work.deployment.label
    measurement_id = committed.measurement_id
    data: dict[str, object] = {"left_s": round(outlook.left_s()), "left": work.left}
    if failure is None:
        counts = MeasurementCounts(measured=1)
        if isinstance(committed, AttemptData) and committed.point.validity in SPOILT:
            counts.spoilt[committed.point.validity] += 1
        context.state.count(counts)
        kind = "measured"
        outcome = measured_words(committed, context.plan.slos)
    else:
        context.state.count(MeasurementCounts(failed=1))
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
