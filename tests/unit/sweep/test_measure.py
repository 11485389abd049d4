"""One try at a load point, without a sweep, a plan or a store: what comes back, and what ends it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind, InputError
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.load.point import LoadPoint, Progress, Target, TargetSilence
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Level, Slo
from orchestrator.sweep.announcer import Announcer
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.measure import (
    COMMIT_S,
    SETTLE_S,
    End,
    Ending,
    LateClients,
    Measurer,
    PointSnapshot,
    UserStop,
    look_for_errors,
)
from orchestrator.sweep.replicas import Replicas
from orchestrator.telemetry.engine_metrics import Sample
from tests.unit.sweep.simulation import (
    FakeAgent,
    FakeRun,
    Placed,
    World,
    plan_of,
    reply,
    steps,
    world_of,
)

TARGET = Target("http://127.0.0.1:1", "m")


def load_point(**given: Any) -> LoadPoint:
    dialect = Dialect("openai_completions", "/v1/completions", True)
    (point,) = plan_of().points
    level = Level(control="concurrency", value=8)
    times = {"targets": (TARGET,), "duration_s": 60.0, "warmup_s": 10.0}
    return LoadPoint(dialect=dialect, workload=point.workload, level=level, **times | given)


def measurer(world: World, **given: Any) -> Measurer:
    replicas = Replicas([Placed(world, "L", [FakeAgent(world, "a")])], (TARGET,))  # type: ignore[list-item]
    return Measurer(
        replicas,
        world.clients(2, {}),
        world.clock,
        announcer=Announcer(world.events.append),
        **given,
    )  # type: ignore[arg-type]


def measured(*script: Any, **given: Any) -> tuple[Attempt, World]:
    world = world_of(fails={"load": list(script)})
    return measurer(world).measure(load_point(**given)), world


def test_what_was_measured_comes_back_with_its_verdict() -> None:
    attempt, world = measured()
    loaded = attempt.loaded
    assert loaded is not None
    assert (attempt.failure, attempt.verdict.validity, attempt.interrupted) == (
        None,
        "valid",
        False,
    )
    assert (loaded.requests.num_rows, len(loaded.stats)) == (2, 2)
    assert (list(loaded.reports), list(loaded.lost)) == ([0, 1], [])
    assert loaded.samples[0][0].values == {"running": 2.0}
    assert world.clock.now_s() == pytest.approx(70.0)


def test_the_span_of_a_point_ends_before_the_drain() -> None:
    attempt, _ = measured()
    assert attempt.loaded is not None
    start_ns, end_ns = attempt.loaded.span
    assert end_ns - start_ns <= 70 * 10**9


def test_an_endpoint_has_no_agents_and_is_measured_all_the_same() -> None:
    world = world_of()
    attempt = Measurer(Replicas((), (TARGET,)), world.clients(1, {}), world.clock).measure(
        load_point()
    )  # type: ignore[arg-type]
    assert (attempt.failure, attempt.verdict.validity) == (None, "valid")


@pytest.mark.parametrize(
    ("watch", "total_s"), [(None, 70.0), (ProbeWatch((Slo(name="fast", ttft=0.2),)), 0.0)]
)
def test_the_length_of_a_probe_is_not_shown_as_it_is_not_known(
    watch: ProbeWatch | None, total_s: float
) -> None:
    world = world_of()
    measurer(world).measure(load_point(), watch=watch)
    phases = [event for event in world.events if isinstance(event, Phase)]
    assert {phase.total_s for phase in phases if phase.name is PhaseName.MEASURE} == {total_s}


def test_slow_clients_are_a_failure_only_where_more_could_help() -> None:
    attempt, _ = measured("slow")
    assert (attempt.failure, attempt.verdict.validity) == (None, "client_bound")
    world = world_of(fails={"load": ["slow"]})
    again = measurer(world).measure(load_point(), more_clients=True)
    assert again.failure is not None
    assert (again.failure.kind, again.launch_over) == (FailureKind.CLIENT_BOUND, False)
    assert "sent - due" in again.failure.sentence


@pytest.mark.parametrize(
    ("outcome", "kind", "over"),
    [
        (Failure(FailureKind.DIED, "It died."), FailureKind.DIED, True),
        ("dying", FailureKind.ENGINE_DEAD, True),
        ("broken", FailureKind.NO_REQUEST_OK, True),
        ("refused", FailureKind.REQUESTS_REFUSED, False),
        ("redirected", FailureKind.REQUESTS_REFUSED, False),
        ("lost", FailureKind.CLIENT_LOST, False),
    ],
)
def test_a_failure_says_whether_the_launch_is_over(
    outcome: Any, kind: FailureKind, over: bool
) -> None:
    attempt, _ = measured(outcome)
    assert attempt.failure is not None
    assert (attempt.failure.kind, attempt.launch_over) == (kind, over)
    assert attempt.verdict.validity != "valid"
    assert attempt.loaded is not None, "what was measured until then is kept"


def test_requests_of_a_lost_client_come_back_as_rows() -> None:
    attempt, _ = measured("lost", requests=4, duration_s=None)
    assert attempt.loaded is not None
    found = attempt.loaded.requests
    assert sorted(zip(found["request_index"].to_pylist(), found["status"].to_pylist(), strict=True)) == [
        (0, "lost"), (1, "ok"), (2, "lost"),
    ]  # fmt: skip
    assert (list(attempt.loaded.reports), list(attempt.loaded.lost)) == ([1], [0])


def test_a_point_that_cannot_be_run_says_why() -> None:
    world = world_of(fails={"prepare": [InputError("no tokenizer at /models/x")]})
    attempt = measurer(world).measure(load_point())
    assert attempt.failure is not None
    assert (attempt.failure.kind, attempt.loaded) == (FailureKind.BAD_POINT, None)
    assert "no tokenizer" in attempt.failure.sentence


def test_while_clients_write_long_requests_that_is_what_is_shown() -> None:
    world = world_of(fails={"prepare": [InputError("no tokenizer at /models/x")]})
    measurer(world).measure(load_point())
    assert world.events == [Phase("", PhaseName.WRITE_REQUESTS, "w 8 in flight")]


def test_the_user_ends_it_and_nobody_waits_for_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    monkeypatch.setattr(FakeRun, "settle", lambda run, limit_s: world.clock.sleep(limit_s))
    attempt = measurer(world, user_stop=UserStop(lambda: world.clock.now_s() > 30)).measure(
        load_point()
    )
    assert attempt.interrupted
    assert attempt.loaded is not None
    assert attempt.loaded.requests.num_rows == 0
    assert world.clock.now_s() < 33


def test_rows_of_an_interrupted_point_come_back_where_they_are_kept() -> None:
    world, point = world_of(), load_point()
    attempt = measurer(world, user_stop=UserStop(lambda: world.clock.now_s() > 30, True)).measure(
        point
    )
    assert attempt.interrupted
    assert attempt.loaded is not None
    assert attempt.loaded.requests.num_rows == 2
    assert attempt.loaded.cut(point).duration_s == pytest.approx(20, abs=2)  # after 10 s of warm-up
    assert attempt.verdict.validity == "interrupted"
    said, took_s = attempt.verdict.reasons[0], float(attempt.verdict.reasons[0].split()[2])
    assert said == f"interrupted after {took_s:.1f} s of 70 s: these are its figures until then"
    assert took_s == pytest.approx(30, abs=2)
    for stops_at in (0, 1):  # while clients prepare, in the warm-up
        world = world_of()

        def is_stopped(world=world, stops_at=stops_at) -> bool:
            return world.clock.now_s() >= stops_at

        early = measurer(world, user_stop=UserStop(is_stopped, keeps_points=True)).measure(point)
        assert early.interrupted
        assert early.loaded is not None
        assert (early.loaded.requests.num_rows, early.loaded.cut(point).duration_s) == (0, 0.0)


@pytest.mark.parametrize(
    ("timeout_s", "silent_s", "found"),
    [(600.0, 299.0, False), (600.0, 300.0, True), (30.0, 119.0, False)],
)
def test_a_replica_that_lives_and_says_nothing_ends_the_launch(
    timeout_s: float, silent_s: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    silences = (TargetSilence(0, 4, silent_s),)
    monkeypatch.setattr(FakeRun, "progress", lambda run: Progress(silences=silences))
    attempt, world = measured(request_timeout_s=timeout_s)
    assert attempt.launch_over is found
    assert attempt.loaded is not None
    assert attempt.loaded.requests.num_rows == 2, "its rows are kept"
    if attempt.failure is not None:
        assert attempt.failure.kind is FailureKind.ENGINE_STALLED
        assert "not a byte came from replica 0 for 300 s" in attempt.failure.sentence
    endpoint = Measurer(Replicas((), (TARGET,)), world.clients(1, {}), world.clock)  # type: ignore[arg-type]
    assert endpoint.measure(load_point()).failure is None, "nobody can start it again"


def test_clients_that_never_report_are_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(run: FakeRun, wait_s: float) -> bool:
        run.world.clock.sleep(wait_s)
        return False

    monkeypatch.setattr(FakeRun, "wait", silent)
    attempt, world = measured(drain_timeout_s=20.0)
    assert attempt.failure is not None
    assert attempt.failure.kind is FailureKind.CLIENT_LOST
    assert world.clock.now_s() == pytest.approx(70 + 20 + 3 * SETTLE_S, abs=3)


def test_nobody_who_wants_to_stop_waits_to_see_whether_the_engine_died() -> None:
    """The engine would be looked at for six seconds more, and dies in the third of them."""
    world = world_of(fails={"load": ["dying"]})
    attempt = measurer(world, user_stop=UserStop(lambda: world.clock.now_s() >= 70)).measure(
        load_point()
    )
    assert attempt.failure is not None
    assert (attempt.failure.kind, attempt.interrupted) == (FailureKind.NO_REQUEST_OK, False)
    assert world.clock.now_s() == pytest.approx(70.0)


def test_first_answers_tell_whether_the_engine_lives() -> None:
    world = world_of(replies=[(reply(0),)])
    loaded = measurer(world).first_answers(load_point(seed=7, tokenizer="a"))
    assert loaded is not None
    assert (loaded.failure, loaded.replies) == (None, [reply(0)])
    assert measurer(world).first_answers(load_point(seed=8)) is not None
    assert world.firsts[0] == world.firsts[1]
    assert (
        world.firsts[0].requests,
        world.firsts[0].level.value,
        world.firsts[0].dialect.logprobs,
    ) == (32, 32, True)
    died = world_of(fails={"first": [Failure(FailureKind.DIED, "It died.")]})
    assert (found := measurer(died).first_answers(load_point())) is not None
    assert found.failure is not None
    assert measurer(world_of(fails={"first": ["lost"]})).first_answers(load_point()) is None
    assert steps(world)["load"] == 0


def test_who_refuses_log_probabilities_is_asked_without() -> None:
    world = world_of(fails={"first": ["refused", None]})
    assert measurer(world).first_answers(load_point()) is not None
    assert [one.dialect.logprobs for one in world.firsts] == [True, False]


@pytest.mark.parametrize(
    ("answers", "asked", "salts"),
    [
        ([None], [(True, True)], True),
        (["refused", None], [(True, True), (True, False)], True),
        (["refused", "refused", None], [(True, True), (True, False), (False, True)], False),
        (["broken", "broken", None], [(True, True), (True, False), (False, True)], False),
        (["refused"] * 4, [(True, True), (True, False), (False, True), (False, False)], True),
    ],
)
def test_who_refuses_a_cache_salt_is_asked_without(
    answers: list[Any], asked: list[tuple[bool, bool]], salts: bool
) -> None:
    world = world_of(fails={"first": answers})
    with_salt = Dialect("openai_chat", "/", cache_salt=True).salted("mine")
    assert (made := measurer(world)).first_answers(
        replace(load_point(), dialect=with_salt)
    ) is not None
    assert [
        ("cache_salt" in one.dialect.extra_body, one.dialect.logprobs) for one in world.firsts
    ] == asked
    assert made.findings.unsalted == (set() if salts else {"/"}), (
        "where all is refused, it is not the salt"
    )


def test_who_watches_hears_every_phase_and_the_death() -> None:
    attempt, world = measured(Failure(FailureKind.DIED, "It died."))
    assert attempt.failure is not None
    assert [item.kind for item in world.events if isinstance(item, Event)] == ["engine_died"]
    _, well = measured()
    names = [item.name for item in well.events if isinstance(item, Phase)]
    assert list(dict.fromkeys(names)) == ["write requests", "warm-up", "measure"]


def test_late_clients_are_told_to_abort_and_given_up_later() -> None:
    watcher = LateClients(load_point(drain_timeout_s=20.0), clients=2)
    assert watcher.limit_s == 70.0 + 20.0 + 2 * SETTLE_S
    abort = End(how=Ending.ABORT)
    for late_s, expected in ((-1.0, None), (0.0, None), (1.0, abort), (SETTLE_S, None)):
        assert watcher(PointSnapshot(Progress(), watcher.limit_s + late_s)) == expected
    end = watcher(PointSnapshot(Progress(), watcher.limit_s + SETTLE_S + 1.0))
    assert end is not None
    assert end.failure is not None
    assert end.failure.kind is FailureKind.CLIENT_LOST


@pytest.mark.parametrize(("failed", "ends"), [(2, False), (3, True), (4, True)])
def test_so_many_errors_of_all_clients_interrupt_a_point(failed: int, ends: bool) -> None:
    end = look_for_errors(3, PointSnapshot(Progress(failed=failed), 1.0))
    assert end == (End(interrupted=True) if ends else None)


def test_a_node_that_goes_before_its_rows_are_stored_ends_the_point() -> None:
    asked: list[float] = []
    failure = Failure(FailureKind.PREEMPTED, "It drains.")

    def taken_back(needs_s: float) -> Failure | None:
        asked.append(needs_s)
        return failure if needs_s > 50.0 else None

    made = measurer(world_of(), taken_back=taken_back)
    watcher = made._look_for_lost_nodes
    assert watcher(load_point(), None, PointSnapshot(Progress(), 10.0)) == End(failure)
    assert watcher(load_point(), None, PointSnapshot(Progress(), 30.0)) is None
    assert watcher(load_point(), None, PointSnapshot(Progress(), 99.0)) is None
    assert asked == [60.0 + COMMIT_S, 40.0 + COMMIT_S, COMMIT_S]


def test_figures_of_an_endpoint_that_others_use_are_left_out_with_a_reason() -> None:
    def sample(tokens: float) -> Sample:
        counters = {"spec_draft_tokens_total": tokens, "spec_accepted_tokens_total": tokens / 2}
        return Sample(1, {"running": 1.0, "generation_tokens_total": tokens, **counters})

    pages = [sample(10.0), sample(9e6)]
    metrics: Any = SimpleNamespace(begin=lambda: None, end=lambda: pages)
    world = world_of()
    replicas = Replicas((), (TARGET,), endpoint_metrics=metrics)
    clients: Any = world.clients(1, {})
    attempt = Measurer(replicas, clients, world.clock).measure(load_point())
    assert attempt.loaded is not None
    assert attempt.loaded.samples[0][1].values == {"running": 1.0}
    assert "spec_accepted_share" not in attempt.verdict.evidence
    assert any("other clients used the endpoint" in reason for reason in attempt.verdict.reasons)
