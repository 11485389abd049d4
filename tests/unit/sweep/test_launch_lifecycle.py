"""One launch on a simulated cluster: its steps in order whatever fails, its tries, its starts and
the answers of its engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.base.errors import (
    Failure,
    FailureClass,
    InputError,
    Occupied,
    PlacementError,
)
from orchestrator.capacity.best import best
from orchestrator.capacity.doubts import Remedy
from orchestrator.cluster.base import (
    ClientLost,
    HostLost,
)
from orchestrator.node.readiness import Ready
from orchestrator.plan.make import make_plan
from orchestrator.report.words import exclusion_text
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.records import AnswerRow
from orchestrator.results.runs import RunRecord
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep import engine_start
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.sweep import Sweep
from tests.unit.sweep.simulation import (
    EXPERIMENT,
    FakeAgent,
    Placed,
    node,
    outcomes,
    plan_of,
    reply,
    steps,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    DIED,
    NEVER,
    OOM,
    PORT,
    TWO,
    event_texts,
    launches,
    points,
)

# What a launch does, whatever fails: (step, what it does instead, the steps of the first launch,
# rows of its points)
ORDER = [
    (
        "",
        None,
        "place lease start ready clients prepare first prepare load stop release",
        [("ok", None)],
    ),
    ("place", PlacementError("no"), "place", [("ok", None)]),
    ("lease", PlacementError("no"), "place lease stop release", [("ok", None)]),
    ("start", HostLost("gone"), "place lease start stop release", [("ok", None)]),
    ("ready", OOM, "place lease start ready stop release", [("failed", "bad_config")]),
    ("ready", DIED, "place lease start ready stop release", [("ok", None)]),
    ("ready", HostLost("gone"), "place lease start ready stop release", [("ok", None)]),
    (
        "clients",
        PlacementError("no"),
        "place lease start ready clients stop release",
        [("ok", None)],
    ),
    ("first", DIED, "place lease start ready clients prepare first stop release", [("ok", None)]),
    (
        "first",
        "lost",
        (
            "place lease start ready clients prepare first clients prepare first prepare load stop "
            "release"
        ),
        [("ok", None)],
    ),
    (
        "load",
        DIED,
        "place lease start ready clients prepare first prepare load stop release",
        [("failed", "engine_crash"), ("ok", None)],
    ),
    (
        "load",
        "lost",
        (
            "place lease start ready clients prepare first prepare load clients prepare load stop "
            "release"
        ),
        [("failed", "infra"), ("ok", None)],
    ),
    (
        "stop",
        HostLost("gone"),
        "place lease start ready clients prepare first prepare load stop release",
        [("ok", None)],
    ),
]


@pytest.mark.parametrize(
    ("step", "instead", "order", "rows"), ORDER, ids=lambda value: str(value)[:24]
)
def test_a_launch_does_its_steps_in_order_and_always_stops_and_releases(
    step: str, instead: Any, order: str, rows: list[tuple[str, str | None]], store: Store
) -> None:
    world = world_of(fails={step: [instead]} if step else {})
    sweep(world, plan_of(), store)
    first = order.split()
    assert world.log[: len(first)] == first
    assert outcomes(store) == rows
    assert world.held == {}
    assert steps(world)["place"] == steps(world)["release"] + (step == "place")


@pytest.mark.parametrize(("failure", "tries"), [(OOM, 1), (DIED, 2), (NEVER, 2), (PORT, 4)])
def test_a_start_is_tried_as_often_as_its_failure_class_allows(
    failure: Failure, tries: int, store: Store
) -> None:
    world = world_of(fails={"ready": [failure] * 9})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert steps(world)["ready"] == tries == failure.failure_class.retries + 1
    assert outcomes(store) == [("failed", str(failure.failure_class))] * 2
    assert (report.counts.measured, report.counts.failed) == (0, 2)
    assert [row.failure_kind for row in launches(store)] == [str(failure.kind)] * tries


def test_deaths_under_load_count_for_their_measurement_and_the_others_are_measured(
    store: Store,
) -> None:
    world = world_of(fails={"load": [DIED, None, DIED]})
    report = sweep(world, plan_of(levels="1, 2, 4"), store)
    # the first dies, is measured on the second launch; the second dies there and is measured on the
    # third
    assert outcomes(store) == [
        ("failed", "engine_crash"),
        ("ok", None),
        ("failed", "engine_crash"),
        ("ok", None),
        ("ok", None),
    ]
    assert report.counts.measured == 3
    assert report.counts.failed == 0
    assert len(launches(store)) == 3


def test_a_measurement_that_kills_the_engine_twice_is_given_up(
    store: Store,
) -> None:
    world = world_of(fails={"load": [DIED, DIED]})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("failed", "engine_crash")] * 2 + [("ok", None)]
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    assert {row.log_tail for row in points(store) if row.status == "failed"} == {"last words"}


def test_an_engine_found_dead_seconds_after_its_last_error_fails_the_point(store: Store) -> None:
    sweep(world_of(fails={"load": ["dying"]}), plan_of(), store)
    assert outcomes(store) == [("failed", "engine_crash"), ("ok", None)]
    assert {row.reason for row in points(store)} == {"It died late.", None}


def test_refused_requests_fail_the_point_once(store: Store) -> None:
    world = world_of(fails={"load": ["refused"]})
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("failed", "bad_config"), ("ok", None)]
    assert (report.counts.failed, len(launches(store))) == (1, 1)


def test_an_engine_that_answers_nothing_gets_another_launch(store: Store) -> None:
    sweep(world_of(fails={"load": ["broken"]}), plan_of(), store)
    assert outcomes(store) == [("failed", "engine_crash"), ("ok", None)]
    assert [row.status for row in launches(store)] == ["failed", "ok"]


def test_a_client_bound_point_is_repeated_with_twice_as_many_clients(
    store: Store,
) -> None:
    world = world_of(fails={"load": ["slow", "slow", "slow"]}, client_limit=4)
    sweep(world, plan_of(), store)
    assert world.client_counts == [1, 2, 4]
    assert outcomes(store) == [("failed", "client_bound")] * 2 + [("ok", None)]
    assert [row.validity for row in points(store) if row.status == "ok"] == ["client_bound"]


def test_no_more_clients_are_asked_for_than_there_are_requests_in_flight(store: Store) -> None:
    world = world_of(fails={"load": ["slow", "slow"]}, client_limit=64)
    sweep(world, plan_of(levels="2"), store)
    assert world.client_counts == [1, 2]


def test_a_repeated_attempt_sends_other_prompts_and_its_row_has_their_seed(store: Store) -> None:
    world = world_of(fails={"load": ["slow"]})
    sweep(world, plan_of(), store)
    seeds = [load.seed for load in world.loads]
    assert len(set(seeds)) == 2
    assert sorted(row.seed for row in points(store)) == sorted(seeds)


def test_a_measurement_that_loses_its_client_again_and_again_is_given_up(store: Store) -> None:
    world = world_of(fails={"load": ["lost"] * 9})
    report = sweep(world, plan_of(), store)
    tries = FailureClass.INFRA.retries + 1
    assert outcomes(store) == [("failed", "infra")] * tries
    assert (report.counts.failed, len(launches(store))) == (1, 1)


def test_the_requests_of_a_lost_client_are_rows(store: Store) -> None:
    sweep(world_of(fails={"load": ["lost"]}), plan_of(), store)
    rows = store.read("requests", include_failed=True)
    assert "lost" in rows.column("status").to_pylist()
    assert sum(row.requests_scheduled for row in points(store)) == rows.num_rows


@pytest.mark.parametrize(
    "error", [InputError("no tokenizer at /models/x"), ClientLost([0], "killed")]
)
def test_what_cannot_even_begin_is_a_row_that_says_why(error: Exception, store: Store) -> None:
    # the first is for the one request before the points
    world = world_of(fails={"prepare": [None, error]})
    sweep(world, plan_of(), store)
    row = min(points(store), key=lambda row: row.attempt_id)
    assert row.status == "failed"
    assert str(error) in str(row.reason)


def test_an_internal_error_in_one_launch_does_not_end_the_sweep(store: Store) -> None:
    world = world_of(fails={"start": [ValueError("a bug")]})
    report = sweep(world, plan_of(), store)
    assert report.counts.measured == 1
    assert (launches(store)[0].failure_kind, launches(store)[0].failure_class) == (
        "internal",
        "infra",
    )


def test_infrastructure_is_tried_again_on_another_node_where_one_is_free(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"ready": [PORT]})
    sweep(world, plan_of(), store)
    places = [row.placement_json for row in launches(store)]
    assert len(places) == 2
    assert '"node_id": "a"' in str(places[0])
    assert '"node_id": "b"' in str(places[1])


REPEATED = "repeats: 4\nstarts: 2"


def starts(store: Store) -> list[tuple[int, int | None]]:
    """Repeat and start of every ok measurement, in the order in which they were measured."""
    rows = [row for row in points(store) if row.status == "ok"]
    return [(row.repeat, row.start) for row in sorted(rows, key=lambda row: row.started_unix_ns)]


def test_starts_share_the_repeats_of_every_point(store: Store) -> None:
    report = sweep(world_of(), plan_of(levels="1, 2", more=REPEATED), store)
    assert (report.counts.measured, len(launches(store))) == (8, 2)
    assert starts(store) == [(0, 0)] * 2 + [(1, 0)] * 2 + [(2, 1)] * 2 + [(3, 1)] * 2
    of = {row.start: row.launch_id for row in points(store)}
    assert all(of[row.start] == row.launch_id for row in points(store))
    assert len(set(of.values())) == 2


def test_a_launch_that_is_retried_is_no_other_start(store: Store) -> None:
    sweep(
        world_of(fails={"load": [None, DIED], "ready": [None, None, PORT]}),
        plan_of(more=REPEATED),
        store,
    )
    assert [row.status for row in launches(store)] == ["failed", "ok", "failed", "ok"]
    assert starts(store) == [(0, 0), (1, 0), (2, 1), (3, 1)]


@pytest.mark.parametrize("when_s", [100.0, 200.0, 300.0])
def test_a_sweep_that_goes_on_keeps_what_belongs_to_which_start(
    when_s: float, store: Store
) -> None:
    plan = plan_of(more=REPEATED)
    assert sweep(world_of(), plan, store, interrupt_s=when_s).interrupted
    sweep(world_of(), plan, store)
    assert sorted(starts(store)) == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_each_start_that_fails_counts_for_itself(store: Store) -> None:
    world = world_of(fails={"ready": [DIED, None, DIED]})
    assert sweep(world, plan_of(more="repeats: 2\nstarts: 2"), store).counts.measured == 2


@pytest.mark.parametrize(("keeps", "state"), [(False, "emptied"), (True, "unknown")])
def test_a_row_says_whether_the_prefix_cache_was_emptied_before_it(
    keeps: bool, state: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "salted", lambda self, salt: self)  # an API without salts
    sweep(world_of(keeps_cache=keeps), plan_of(), store)
    assert [row.cache_state for row in points(store)] == [state]


def test_clients_know_how_many_tokens_a_speculative_step_may_make(store: Store) -> None:
    world = world_of()
    sweep(world, plan_of("{speculative: {method: ngram, num_speculative_tokens: 3}}"), store)
    assert [load.dialect.tokens_per_step for load in world.loads] == [4]


def test_every_attempt_has_a_salt_of_its_own(store: Store) -> None:
    world = world_of()
    sweep(world, plan_of(levels="1, 2"), store)
    assert [row.cache_state for row in points(store)] == ["salted", "salted"]
    assert [load.dialect.extra_body["cache_salt"] for load in world.loads] == [
        load.attempt_id for load in world.loads
    ]
    assert len({load.attempt_id for load in world.loads}) == 2


@pytest.mark.parametrize(
    ("owner", "refuses", "state"),
    [
        ("vllm", False, "salted"),
        ("vllm", True, "unknown"),
        ("llamacpp", False, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_an_endpoint_gets_a_salt_where_its_owner_takes_one(
    owner: str | None, refuses: bool, state: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"proofs": "name"} | ({"owned_by": owner} if owner else {})
    monkeypatch.setattr(engine_start, "wait_ready", lambda *given: Ready(said, "1.0"))
    world = world_of(fails={"first": ["refused", "refused", None]} if refuses else {})
    sweep(
        world,
        plan_of("{engine: endpoint, url: 'http://h:1', hardware: null}", levels="1, 2"),
        store,
    )
    assert [row.cache_state for row in points(store)] == [state] * 2
    salts = [load.dialect.extra_body.get("cache_salt") for load in world.loads]
    assert salts == [load.attempt_id if state == "salted" else None for load in world.loads]


@pytest.mark.parametrize(
    ("says", "salted", "counted"),
    [
        ([None, "refused", "refused", None], [True, False], [False, False]),
        ([None, "redirected"], [True, True], [False, False]),
        ([None, "uncounted"], [True, True], [False, True]),
    ],
)
def test_every_api_of_a_server_says_for_itself_what_it_takes(
    says: list[Any], salted: list[bool], counted: list[bool], store: Store
) -> None:
    chat = ", {name: chat, api: chat, input_tokens: 4, output_tokens: 2}]"
    text = EXPERIMENT.format(cases="{}", levels="1, 2").replace(
        "output_tokens: 2}]", "output_tokens: 2}" + chat
    )
    world, prompts = world_of(fails={"first": [*says]}), len(says)
    sweep(world, make_plan(parse_experiment(text, "x.yaml")), store)
    asked = {load.dialect.path: load for load in world.loads}
    assert [path.split("/")[-2] for path in asked] == ["v1", "chat"]
    assert ["cache_salt" in load.dialect.extra_body for load in asked.values()] == salted
    assert [load.count_text for load in asked.values()] == counted
    assert (len(world.loads), len(world.firsts)) == (4, prompts)
    assert {row.validity for row in points(store)} == {"valid"}


def test_an_endpoint_that_redirects_every_request_is_not_loaded_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "wait_ready", lambda *given: Ready({"proofs": "name"}, "1.0"))
    world = world_of(fails={"first": ["redirected"]})
    sweep(
        world,
        plan_of("{engine: endpoint, url: 'http://h:1', hardware: null}", levels="1, 2"),
        store,
    )
    assert outcomes(store) == [("failed", "bad_config")] * 2
    assert [row.failure_kind for row in points(store)] == ["requests_refused"] * 2
    assert str(points(store)[0].reason).endswith("it is at /there.")
    assert (len(world.firsts), world.loads) == (1, [])


def test_what_a_node_refuses_costs_its_own_launch_and_not_the_sweep(store: Store) -> None:
    world = world_of(fails={"start": [InputError("unknown engine 'theirs'"), None]})
    report = sweep(world, plan_of(TWO), store)
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    assert {row.failure_kind for row in launches(store)} == {"bad_config", None}


@pytest.mark.parametrize("what", ["stop", "release"])
def test_a_launch_that_cannot_be_stopped_cleanly_is_committed(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(self: object) -> None:
        raise OSError("the GPU is lost")

    monkeypatch.setattr(FakeAgent if what == "stop" else Placed, what, broken)
    world = world_of([node("a"), node("b")])
    report = sweep(world, plan_of(TWO), store)
    assert (report.counts.measured, report.counts.failed) == (2, 0)
    assert len(launches(store)) == 2
    assert any("GPU is lost" in event.text for event in world.events if isinstance(event, Event))


def test_a_wait_for_others_leaves_an_event_and_no_row(store: Store) -> None:
    others = Occupied("host a is held by launch x of user 7")
    world = world_of(fails={"lease": [others] * 9 + [None]})
    report = sweep(world, plan_of(), store)
    assert outcomes(store) == [("ok", None)]
    assert (report.counts.measured, report.counts.failed) == (1, 0)
    assert [row.status for row in launches(store)] == ["ok"]
    assert [steps(world)[name] for name in ("place", "queue", "lease", "release")] == [1, 1, 10, 1]
    assert 85 < world.clock.now_s() < 100, "it asks every second, by the agents that it has"
    assert report.overhead < 0.2, "the waiting is not its own"
    told = store.read("events").to_pylist()
    assert [one["text"] for one in told if one["kind"] == "occupied"] == [f"it waits: {others}"]


def test_a_launch_that_queues_again_says_so_in_events_and_status(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"lease": [Occupied("x holds it"), None]})
    record = RunRecord(run_id="r")
    doing: list[str] = []

    def listen(item: Event | Phase) -> None:
        record.note(item)
        doing.extend(deployment.doing for deployment in record.deployments.values())

    plan = plan_of()
    Sweep(SweepContext(plan, world, store, listen, clock=world.clock)).run()
    assert "queued" in doing
    events = [row for row in store.read("events").to_pylist() if row["kind"] == "occupied"]
    assert [row["text"] for row in events] == [
        "it waits: x holds it",
        "it waits in the queue again: x holds it",
    ]
    states = [json.loads(row["data_json"])["state"] for row in events]
    assert states == ["occupied", "queued"]


def test_a_host_that_others_hold_keeps_no_other_host_waiting(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"lease": [Occupied("held"), None]})
    sweep(world, plan_of(), store)
    assert outcomes(store) == [("ok", None)]
    assert world.clock.now_s() < 100
    assert json.loads(launches(store)[0].placement_json or "")[0]["node_id"] == "b"


def test_a_sweep_that_is_stopped_while_it_waits_for_others_leaves_nothing(store: Store) -> None:
    world = world_of(fails={"lease": [Occupied("held")] * 999})
    assert sweep(world, plan_of(), store, interrupt_s=100.0).interrupted
    assert launches(store) == []
    assert outcomes(store) == []
    assert world.held == {}


def test_fixed_prompts_are_asked_once_and_answers_stored_with_the_launch(
    store: Store,
) -> None:
    world, plan = world_of(replies=[(reply(0, 5, 6), reply(1, 7, 8))]), plan_of(levels="1, 2")
    sweep(world, plan, store)
    assert [step for step in world.log if step in ("first", "load")] == ["first", "load", "load"]
    (launch,), rows = (
        launches(store),
        rows_of(store.read("answers", include_failed=True), AnswerRow),
    )
    assert [(row.launch_id, row.prompt, row.token_ids) for row in rows] == [
        (launch.launch_id, "prompt 0", (5, 6)),
        (launch.launch_id, "prompt 1", (7, 8)),
    ]
    assert {row.validity for row in points(store)} == {"valid"}
    assert store.read("requests").num_rows == sum(
        one.requests_scheduled for one in points(store)
    ), "they are no rows"
    sweep(world, plan, store)
    assert steps(world)["first"] == 1, "where nothing is left to measure nobody is asked"


NAN = float("nan")
NO_OUTPUT = [
    ([reply(at, 0, 0, logprob=NAN if at < 2 else -1.0) for at in range(8)], "in 2 of 8 answers"),
    (
        [reply(at, *[0] * 8) for at in range(8)],
        "all 64 tokens of 8 answers to different prompts are the same (id 0)",
    ),
    ([reply(at) for at in range(8)], "all 8 answers to fixed prompts are empty"),
    (
        [
            reply(at, *([3] * 8 if at % 2 else range(at, at + 8)), replica=at % 2)
            for at in range(16)
        ],
        "replica 1: all 64",
    ),
]


@pytest.mark.parametrize(("replies", "said"), NO_OUTPUT)
def test_what_a_broken_engine_serves_is_measured_and_never_valid(
    replies: Any, said: str, store: Store
) -> None:
    world = world_of(replies=[tuple(replies)])
    report = sweep(world, plan_of(), store)
    assert any(
        "8 in flight: broken_output" in item.text
        for item in world.events
        if isinstance(item, Event)
    )
    (row,) = points(store)
    assert row.status == "ok"
    assert row.validity == "broken_output"
    assert report.counts.measured == 1
    assert said in row.validity_reasons[0]
    (comparison,) = best(load_points(store), parse_slo("ttft<=1h,attainment>=0.5"))
    assert not comparison.ranking
    assert "broken_output" in exclusion_text(comparison.excluded[0])
    remedies = [doubt.remedy for doubt in comparison.doubts]
    assert remedies == [Remedy.REPAIR], "measuring it again decides nothing"


@pytest.mark.parametrize(
    "case", ["{engine: emulator, profile: h100-80gb}", "{tensor_parallel_size: 1}"]
)
def test_who_makes_answers_up_or_gives_none_is_not_called_broken(case: str, store: Store) -> None:
    emulated = "emulator" in case
    lost = {"first": ["lost", "lost"]}
    sweep(
        world_of(replies=[tuple(NO_OUTPUT[1][0])] if emulated else [], fails=lost),
        plan_of(case),
        store,
    )
    assert [row.validity for row in points(store)] == ["valid"]
    assert [
        any("fixed prompts" in text for text in row.validity_reasons) for row in points(store)
    ] == [not emulated]
    assert store.read("answers", include_failed=True).num_rows == 0


def test_a_launch_names_its_node_by_the_digits_that_tell_nodes_apart(store: Store) -> None:
    world = world_of([node("0bb24947" + "0" * 48)])
    sweep(world, plan_of(), store)
    texts = event_texts(world, "launch")
    assert texts
    assert all(" on 0bb24947, " in text for text in texts)
