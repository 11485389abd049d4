"""One launch from start to end: place, start, measure point by point, commit, stop, release.
Failures become rows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from orchestrator.analysis.output_agreement import broken
from orchestrator.base.errors import (
    Failure,
    FailureClass,
    FailureKind,
    InputError,
    Occupied,
    PlacementError,
)
from orchestrator.base.redaction import mask_secrets
from orchestrator.capacity.strategy import claim_document
from orchestrator.load.point import LoadPoint, Reply
from orchestrator.plan.model import Measurement, Point
from orchestrator.results.events import Event, Phase, PhaseName
from orchestrator.results.ids import new_ulid
from orchestrator.results.records import AnswerRow, AttemptData, Committed, LaunchRow
from orchestrator.results.validity import SPOILT
from orchestrator.spec.load import counted
from orchestrator.sweep.admission import Nodes
from orchestrator.sweep.commit import AttemptRecord, commit_attempt
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.launch import Launch
from orchestrator.sweep.launch_state import Announced, LaunchEvent
from orchestrator.sweep.measure import OF_THE_POINT, Attempt, Measurer
from orchestrator.sweep.todo import START, Todo, expected_s
from orchestrator.sweep.words import claim_words, level_words, measured_words
from orchestrator.workloads.content import ids_within

NOT_KNOWN = (
    "whether the engine's output makes sense is not known: none of the fixed prompts was answered"
)

TRIAL_LIMIT_S = 60.0  # for an endpoint's trial request; a point may wait longer


class LaunchRun:
    """One launch of a deployment; it makes as many of its measurements as the engine survives."""

    def __init__(self, context: SweepContext, todo: Todo, nodes: Nodes) -> None:
        self._context, self._todo, self._nodes = context, todo, nodes
        self._deployment = todo.deployment
        self._launch = Launch(context, todo.deployment, nodes, self._tell_launch, self._tell_wait)
        self._record = context.state.launch(todo.deployment)
        self._start = todo.start
        self._on = tuple(itertools.chain(*nodes))
        self._full = set[str]()  # nodes whose disk its clients filled
        # what ended it, if that was counted against a measurement
        self._counted: Failure | None = None
        # by path of an API: whether the tokens of its replies must be counted
        self._count_text: dict[str, bool] = {}

    def run(self) -> None:
        """Run it to its end. Raises InputError for an error that would stop every launch."""
        if self._record.announced is Announced.NOTHING:
            self._tell_launch()
        failure: Failure | None = None
        occupied = False
        try:
            failure = self._work()
        except Occupied as error:
            occupied = True
            self._tell_wait(str(error))
        except PlacementError as error:  # the engines are placed by now, so it is about clients
            failure = Failure(
                FailureKind.NO_CLIENT, f"The cluster could not start a load client: {error}."
            )
        except InputError:
            raise
        except Exception as error:
            text = f"The launch failed in this program: {type(error).__name__}: {error}."
            failure = Failure(FailureKind.INTERNAL, text)
        finally:
            self._advance(LaunchEvent.STOP_BEGAN)
            try:
                if self._context.stop.is_set() and not occupied:
                    self._launch.commit_first(failure)
            finally:
                self._launch.stop()
        if occupied:  # it goes back to the queue as if it had never been tried
            self._context.tell(Phase(self._deployment.label, PhaseName.ENDED))
            self._advance(LaunchEvent.REQUEUED)
            return
        if failure is not None:
            self._tell_launch()
            self._context.breakers.failed(failure, self._on)
            if failure.failure_class is FailureClass.INFRA:
                self._todo.avoid |= set(self._on)
        over = failure is not None and failure is not self._counted and not self._again(failure)
        try:
            if failure is not None and over:
                give_up(self._context, self._todo, failure, self._launch.row)
        finally:
            self._launch.commit(failure)
            self._context.tell(Phase(self._deployment.label, PhaseName.ENDED))
            self._advance(LaunchEvent.STOPPED)

    def _advance(self, event: LaunchEvent) -> None:
        self._context.state.advance(self._deployment, event)

    def _tell_launch(self) -> None:
        """Announce the launch; again when it has the hosts for which it waited."""
        if self._record.announced is Announced.LAUNCH:
            return
        self._record.announced = Announced.LAUNCH
        nodes, launch_id = list(self._on), self._launch.row.launch_id
        where = f" on {', '.join(nodes)}" if nodes else ""
        text = f"launch {launch_id}{where}, {counted(self._todo.left, 'measurement')} to do"
        data = {"nodes": nodes, "left": self._todo.left, **self._todo.why}
        self._context.tell(Event("launch", text, self._deployment.label, launch_id, data=data))

    def _tell_wait(self, text: str) -> None:
        """Announce who is in its way; once for each wait."""
        if self._record.announced is Announced.WAIT:
            return
        self._record.announced = Announced.WAIT
        self._tell("occupied", f"it waits: {text}")

    def _work(self) -> Failure | None:
        """Start it and measure. Why it ended early; None when all is measured, or the user or the
        budget ended it.
        """
        started = self._launch.start()
        if started is None or isinstance(started, Failure):
            return started
        self._advance(LaunchEvent.SERVING)
        row = self._launch.row
        self._context.state.started(self._deployment, (row.placed_s or 0.0) + (row.ready_s or 0.0))
        measurer = Measurer(
            started,
            self._context.borrow_clients(self._deployment.id),
            self._context.clock,
            self._context.stop.is_set,
            self._context.tell,
            self._deployment.label,
            row.launch_id,
            taken_back=partial(self._context.taken_back, self._on),
        )
        try:
            return self._measure_all(measurer)
        finally:
            measurer.clients.release()

    def _measure_all(self, measurer: Measurer) -> Failure | None:
        """Measure point after point until nothing is left for this start or the engine is gone; why
        it is gone.
        """
        while (found := self._todo.next()) is not None and not self._context.stop.is_set():
            if self._todo.start != self._start:
                return None  # the next measurement belongs to another start
            if self._context.gives_way(self._todo):
                self._tell(
                    "gives_way",
                    "it ends so that others are probed first; it goes on unless they hold more",
                )
                return None
            next_s = expected_s(found[0])
            if self._context.admit(self._deployment, next_s) is not None:
                if over := self._context.over_budget(self._deployment, next_s):
                    left_out(self._context, self._todo, over)
                else:
                    self._tell(
                        "gives_way",
                        "it ends: others may use up the budget; it goes on if they leave enough",
                    )
                return None
            if (failure := self._context.taken_back(self._on, math.inf)) is not None:
                return failure  # begin no point on a draining node
            if self._context.taken_back(measurer.clients.nodes, math.inf):
                self._exchange_clients(measurer, len(measurer.clients.addresses))
            point, measurement = found
            self._advance(LaunchEvent.LOAD_BEGAN)
            failure = self._launch.try_endpoint(
                measurer.replicas,
                point.workload.api,
                min(point.load.request_timeout_s, TRIAL_LIMIT_S),
            )
            if failure is not None:
                return failure
            load = self._load_point(measurer, point, measurement)
            if load.dialect.path not in self._count_text:
                if (ended := self._first_answers(measurer, load)) is not None:
                    return ended
                load = self._load_point(measurer, point, measurement)  # as the answers say
            began_s = self._context.clock.now_s()
            attempt = measurer.measure(load, self._can_double(measurer, point), self._todo.watch)
            if attempt.interrupted:
                return None
            self._context.tell(Phase(self._deployment.label, PhaseName.STORE, level_words(load)))
            done = replace(measurement, seed=load.seed)
            record = AttemptRecord(
                self._deployment, point, done, attempt, load.attempt_id, self._launch.row
            )
            committed = commit_attempt(self._context.store, record)
            self._context.state.took(expected_s(point), self._context.clock.now_s() - began_s)
            self._after(attempt, committed, measurer)
            if attempt.launch_over:
                self._counted = attempt.failure
                return attempt.failure
            self._advance(LaunchEvent.LOAD_ENDED)
        return None

    def _first_answers(self, measurer: Measurer, asked: LoadPoint) -> Failure | None:
        """Ask the fixed prompts before an API's first point, once more with other clients if one
        was lost. Why the launch is over, if it is. The answers that count are those through the
        first API.
        """
        path, is_first, emulated = (
            asked.dialect.path,
            not self._count_text,
            self._launch.row.emulated,
        )
        if (first := measurer.first_answers(asked)) is None:
            self._exchange_clients(measurer, len(measurer.clients.addresses))
            first = measurer.first_answers(asked)
        # the API reports neither usage nor token ids: keep its replies and count their tokens
        self._count_text[path] = (
            first is not None and "chunks" in first.requests["token_count_source"].to_pylist()
        )
        if (
            first is not None
            and first.ended is not None
            and (is_first or first.ended.kind not in OF_THE_POINT)
        ):
            return first.ended
        if (
            is_first
            and not emulated
            and (transport := measurer.replicas.kv_transport()) is not None
        ):
            self._launch.heard_transport(transport)
        if is_first and not emulated:  # an emulator's answers are made up
            self._launch.answers = self._answers(first.replies, asked) if first is not None else []
            measurer.broken = broken(self._launch.answers)
            measurer.notes = () if self._launch.answers else (NOT_KNOWN,)
        return None

    def _answers(self, replies: Sequence[Reply], asked: LoadPoint) -> list[AnswerRow]:
        row, secrets = self._launch.row, [secret for one in asked.targets for secret in one.secrets]
        return [
            AnswerRow(
                launch_id=row.launch_id,
                deployment_id=row.deployment_id,
                prompt_index=one.request_index,
                api=asked.dialect.path,
                replica=one.replica,
                prompt=one.prompt,
                text=mask_secrets(one.text, secrets),  # a server may repeat its key
                token_ids=one.token_ids,
                logprobs=one.logprobs,
            )
            for one in replies
        ]

    def _load_point(self, measurer: Measurer, point: Point, measurement: Measurement) -> LoadPoint:
        """The point as clients load it."""
        settings, replicas, attempt_id = self._deployment.settings, measurer.replicas, new_ulid()
        dialect = self._launch.dialect(point.workload.api)
        return LoadPoint(
            targets=replicas.targets,
            dialect=dialect.unsalted()
            if dialect.path in measurer.unsalted
            else dialect.salted(attempt_id),
            count_text=self._count_text.get(dialect.path, False),
            **point.load_rules(),
            seed=measurement.tried(self._todo.tries(measurement.measurement_id)).seed,
            # each client looks it up on its own node
            tokenizer=settings.tokenizer or settings.model,
            vocabulary=ids_within(replicas.vocab_size),
            measurement_id=measurement.measurement_id,
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
        failure, key, crowd = (
            attempt.failure,
            committed.measurement_id,
            len(measurer.clients.addresses),
        )
        if attempt.loaded is not None:
            self._context.state.add_span(attempt.loaded.span_unix_ns)
        if failure is None:
            self._context.breakers.measured(self._on)
        if failure is None or not self._todo.again(key, failure):
            close(self._context, self._todo, committed, failure)
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

    def _again(self, failure: Failure) -> bool:
        """Whether the engine is started again after this failure."""
        again = self._todo.again(START.format(self._start), failure)
        self._tell("retry" if again else "gave_up", failure.sentence)
        return again

    def _tell(self, kind: str, text: str, measurement_id: str = "") -> None:
        launch_id = self._launch.row.launch_id
        self._context.tell(Event(kind, text, self._deployment.label, launch_id, measurement_id))


def give_up(
    context: SweepContext, todo: Todo, failure: Failure, launch: LaunchRow | None = None
) -> None:
    """Commit every open measurement of a deployment whose engine cannot be started, which was told,
    as failed; of a search only the one it asks for. If that cannot be stored, whatever the reason,
    leave them out.
    """
    try:
        for _ in range(todo.left):
            found = todo.next()
            if found is None:
                break
            point, measurement = found
            record = AttemptRecord(
                todo.deployment, point, measurement, Attempt(failure=failure), launch=launch
            )
            close(context, todo, commit_attempt(context.store, record), failure, given_up=True)
        todo.drop()
    except Exception as error:
        left_out(context, todo, f"rows that say why cannot be stored ({error})", "row_lost")


def left_out(context: SweepContext, todo: Todo, why: str, kind: str = "budget") -> None:
    """Leave the open measurements of a deployment out of this sweep, without rows: a later sweep
    may make them.
    """
    text = f"{why}; left out: {counted(todo.left, 'measurement')}"
    context.tell(Event(kind, text, todo.deployment.label))
    context.state.count(left_out=todo.left)
    todo.drop()


def close(
    context: SweepContext,
    todo: Todo,
    committed: Committed,
    failure: Failure | None,
    given_up: bool = False,
) -> None:
    """Close the measurement that was asked for with this attempt, and report it. ``given_up``: see
    ``Todo.close``; why was told."""
    found = todo.asked
    assert found is not None
    todo.close(committed, given_up)
    spoilt = isinstance(committed, AttemptData) and committed.point.validity in SPOILT
    context.state.count(
        measured=failure is None, failed=failure is not None, spoilt=failure is None and spoilt
    )
    kind = "measured" if failure is None else "failed"
    said = measured_words(committed, context.plan.slos) if failure is None else failure.sentence
    text = f"{kind} {level_words(found[0])}: {said}".removesuffix(": ")
    point, label = found[0], todo.deployment.label
    data = {"left_s": round(context.left_s()), "left": todo.left} | (
        {"told": True} if given_up else {}
    )
    context.tell(Event(kind, text, label, measurement_id=committed.measurement_id, data=data))
    if claims := todo.claims(point.workload.name):
        text = f"{point.workload.name}: {claim_words(point.level.control, claims)}"
        known = {name: claim_document(one) for name, one in claims.items()}
        context.tell(
            Event("search", text, label, measurement_id=committed.measurement_id, data=known)
        )
