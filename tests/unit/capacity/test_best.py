"""The answer: which deployment, how sure, and why the others are not it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.analysis.knee import knees
from orchestrator.analysis.output_agreement import Agreement, AgreementNote
from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.analysis.slo import format_limits, format_slo, parse_slo
from orchestrator.base.errors import ProblemsError
from orchestrator.capacity.answers import Group, MissingLevel, SearchRules
from orchestrator.capacity.best import ComparisonRules, best, group_of
from orchestrator.report.answer_table import winner_text
from orchestrator.report.as_json import answer_json, point_json
from orchestrator.report.documents.answer import answer_document
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import json_text
from orchestrator.report.point_table import PointSection, PointView, points_text
from orchestrator.report.words import exclusion_text, note_texts
from orchestrator.report.written_form import TextForm
from orchestrator.spec.load import Level, Objective, Per
from tests.unit.capacity.stored_levels import SLO, StoredLevels
from tests.unit.results.builders import (
    commit_measurement,
    events,
    failed_request,
    gpu_readings,
    request,
)

NOISE = {"validity": "broken_output", "validity_reasons": ["all answers are empty"]}
UNJUDGED: list[dict[str, Any]] = [
    {"validity": "client_bound"},
    {"status": "failed", "reason": "node lost", "failure_class": "infra"},
]


class Sweep(StoredLevels):
    """Stored levels, and the answer that they give."""

    def comparisons(
        self, per: Per | None = "gpu", slo: str | None = None, missing: Sequence[MissingLevel] = ()
    ) -> list[dict[str, Any]]:
        limits = parse_slo(slo) if slo else SLO
        comparisons = best(load_points(self.store, limits), limits, ComparisonRules(per), missing)
        return json.loads(json_text(answer_json(answer_document(comparisons))))["comparisons"]  # type: ignore[no-any-return]

    def best(
        self, per: Per | None = "gpu", slo: str | None = None, missing: Sequence[MissingLevel] = ()
    ) -> dict[str, Any]:
        (comparison,) = self.comparisons(per, slo, missing)
        return comparison | {"winner": (comparison["ranking"] or [None])[0]}

    def points(self) -> list[StoredPoint]:
        return load_points(self.store, SLO)


def lines_of(documents: list[PointDocument], profile: bool = False) -> list[str]:
    """The tables of ``orchestrator results`` on a wide terminal."""
    form = TextForm("--columns", 300)
    return list(points_text(PointSection(documents), form, PointView(profile)))


def missing(deployment: str, level: float) -> MissingLevel:
    group = Group("exp", "chat", "m", "h100", emulated=False)
    return MissingLevel(
        group, deployment, f"label-{deployment}", "m", Level(control="request_rate", value=level)
    )


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_the_highest_level_that_holds_the_limits_decides(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((5, 1.0), (10, 0.95), (20, 0.5)):
        sweep.level("d0", level, good)
    answer = sweep.best()
    winner = answer["winner"]
    assert (winner["deployment"], winner["control"], winner["level"]) == (
        "label-d0",
        "request_rate",
        10,
    )
    assert winner["value"] == pytest.approx(100, rel=0.02)
    assert winner["attainment"] == 0.95
    assert winner["settings"]["engine"] == "vllm"
    assert not winner["censored"]
    assert answer["unit"] == "output tokens/s per GPU"
    names = ("experiment", "workload", "model", "hardware", "slo", "per")
    assert [answer[name] for name in names] == [
        "exp",
        "chat",
        "m",
        "h100",
        "ttft<=500ms,attainment>=0.9",
        "gpu",
    ]


def test_per_gpu_dollar_and_deployment_may_differ(sweep: Sweep) -> None:
    sweep.deployment("big", devices=4, usd_per_hour=3.6)
    sweep.deployment("small", devices=1, usd_per_hour=7.2)
    sweep.level("big", 20)
    sweep.level("small", 10)
    answer_per = {objective: sweep.best(objective) for objective in get_args(Objective)}
    assert {
        objective: answer["winner"]["deployment"] for objective, answer in answer_per.items()
    } == {
        "gpu": "label-small",
        "usd": "label-big",
        "deployment": "label-big",
    }
    assert [deployment["value"] for deployment in answer_per["gpu"]["ranking"]] == pytest.approx(
        [100, 50], rel=0.02
    )
    assert answer_per["usd"]["winner"]["value"] == pytest.approx(200 * 3600 / 3.6, rel=0.02)
    assert answer_per["usd"]["unit"] == "output tokens/USD"


def test_per_joule_the_energy_of_each_point_decides_on_whatever_hardware(sweep: Sweep) -> None:
    # 200 tokens/s with 800 W, 100 tokens/s with 200 W: 0.25 and 0.5 tokens/J
    sweep.deployment("fast")
    sweep.deployment("frugal", hardware="l4", accelerator="L4")
    sweep.level("fast", 20, telemetry=gpu_readings(800, 21))
    sweep.level("frugal", 10, telemetry=gpu_readings(200, 21))
    answer = sweep.best("joule")
    assert [deployment["deployment"] for deployment in answer["ranking"]] == [
        "label-frugal",
        "label-fast",
    ]
    values = [deployment["value"] for deployment in answer["ranking"]]
    assert values == pytest.approx([0.5, 0.25], rel=0.02)
    assert answer["unit"] == "output tokens/J"
    assert answer["hardware"] == "h100, l4"
    (point,) = [each for each in sweep.points() if each.deployment.label == "label-frugal"]
    assert point.energy is not None
    assert point.energy.j_per_output_token == pytest.approx(2, rel=0.02)


def test_per_joule_a_deployment_of_unknown_energy_is_not_ranked(sweep: Sweep) -> None:
    sweep.deployment("read")
    sweep.deployment("unread")
    sweep.level("read", 10, telemetry=gpu_readings(200, 21))
    sweep.level("unread", 20)
    answer = sweep.best("joule")
    assert [deployment["deployment"] for deployment in answer["ranking"]] == ["label-read"]
    (left_out,) = answer["left_out"]
    assert left_out["deployment"] == "label-unread"
    assert left_out["reason"].startswith("the energy of its tokens is not known")
    assert not answer["certain"]


def test_a_winner_ahead_by_more_than_starts_differ_is_certain(sweep: Sweep) -> None:
    for name, levels in (("d0", (19.5, 20.5)), ("d1", (10.0, 10.5))):
        sweep.deployment(name)
        sweep.starts(name, levels)
        sweep.level(name, 40, good=0.5)  # both capacities were reached
    answer = sweep.best()
    assert [deployment["deployment"] for deployment in answer["ranking"]] == [
        "label-d0",
        "label-d1",
    ]
    assert [deployment["starts"] for deployment in answer["ranking"]] == [2, 2]
    assert (answer["certain"], answer["decide"]) == (True, [])
    assert answer["why"] == "certain: it is ahead of every other by more than starts differ"


def test_deployments_that_spread_alike_make_a_smaller_lead_certain(sweep: Sweep) -> None:
    def add(name: str, levels: tuple[float, float]) -> None:
        sweep.deployment(name)
        sweep.starts(name, levels)
        sweep.level(name, 40, good=0.5)

    add("d0", (20.0, 20.5))
    add("d1", (18.5, 19.0))
    assert "label-d1 is behind by less than starts differ" in sweep.best()["why"]
    add("d2", (17.5, 18.0))
    answer = sweep.best()
    assert answer["certain"]
    assert answer["why"].endswith("more than starts differ (1.9%, over 3 deployments)")


def test_with_one_start_nothing_is_certain_however_far_ahead(sweep: Sweep) -> None:
    for name, level in (("d0", 20), ("d1", 2)):
        sweep.deployment(name)
        sweep.level(name, level)
        sweep.level(name, 40, good=0.5)
    answer = sweep.best()
    assert answer["why"] == "not certain: one start: spread unknown"
    assert answer["decide"] == ["start label-d0, label-d1 at least twice (starts: 2)"]


def test_a_second_start_without_a_valid_repeat_asks_for_repeats(
    sweep: Sweep,
) -> None:
    sweep.settled("d0", 20)
    sweep.deployment("d1")
    sweep.level("d1", 10, point_id="d1-starts", start=0, repeat=0)
    sweep.level("d1", 10, point_id="d1-starts", start=1, repeat=1, validity="disturbed")
    sweep.level("d1", 40, good=0.5)
    answer = sweep.best()
    assert "one start: spread unknown" in answer["why"]
    assert "one start alone of label-d1 is valid" in answer["why"]
    assert answer["decide"] == ["measure label-d1 with more repeats"]


def test_starts_that_differ_as_much_as_the_leaders_ask_for_more_starts(
    sweep: Sweep,
) -> None:
    for name, levels in (("d0", (18.0, 21.0)), ("d1", (17.0, 20.0))):
        sweep.deployment(name)
        sweep.starts(name, levels)
        sweep.level(name, 40, good=0.5)
    answer = sweep.best()
    assert answer["winner"]["deployment"] == "label-d0"
    assert not answer["certain"]
    assert "label-d1 is behind by less than starts differ" in answer["why"]
    assert any("starts" in text and "label-d1 at" in text for text in answer["decide"])


def test_a_capacity_that_was_not_reached_never_wins_certainly(sweep: Sweep) -> None:
    for name, levels in (("d0", (19.5, 20.5)), ("d1", (10.0, 10.5))):
        sweep.deployment(name)
        sweep.starts(name, levels)
    sweep.level("d1", 40, good=0.5)
    answer = sweep.best()
    assert [deployment["censored"] for deployment in answer["ranking"]] == [True, False]
    assert answer["why"] == "not certain: the capacity of label-d0 was not reached"
    assert answer["decide"] == ["measure label-d0 at higher levels than 19.5 req/s"]


def test_a_winner_whose_attainment_may_be_below_the_target_is_not_certain(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.starts("d0", (5, 5), good=0.91)
    sweep.level("d0", 40, good=0.5)
    answer = sweep.best()
    assert answer["winner"]["attainment_interval"][0] < 0.9
    assert answer["why"] == "not certain: the winner's attainment could be below the target"
    assert any("not certain to be at least 0.9" in note for note in answer["winner"]["notes"])


def test_an_answer_without_one_of_the_deployments_is_not_certain(
    sweep: Sweep,
) -> None:
    sweep.settled("d0", 20)
    assert sweep.best()["why"] == "certain: the only deployment that holds the limits"
    answer = sweep.best(missing=[missing("d1", 5), missing("d1", 10)])
    assert answer["why"] == "not certain: label-d1 is not measured yet"
    assert answer["decide"] == ["run the experiment again: it goes on with label-d1"]


def test_a_missing_level_is_in_doubt_where_it_could_hold(sweep: Sweep) -> None:
    sweep.settled("d0", 20)
    assert sweep.best(missing=[missing("d0", 10), missing("d0", 60)])["certain"]
    assert sweep.best(missing=[missing("d0", 30)])["decide"] == [
        (
            "run the experiment again: it measures label-d0 at 30 req/s as far as that was spoilt, "
            "failed or is missing"
        )
    ]


def test_where_nothing_is_measured_yet_the_answer_says_so(sweep: Sweep) -> None:
    answer = sweep.best(missing=[missing("d0", 10)])
    assert (answer["workload"], answer["model"], answer["hardware"], answer["ranking"]) == (
        "chat",
        "m",
        "h100",
        [],
    )
    assert answer["why"] == "nothing that the plan asks for here is measured yet"


@pytest.mark.parametrize("unjudged", UNJUDGED)
def test_a_level_above_that_nobody_judged_leaves_the_capacity_open(
    unjudged: dict[str, Any], sweep: Sweep
) -> None:
    sweep.deployment("d0")
    sweep.starts("d0", (20, 20))
    sweep.level("d0", 40, **unjudged)
    answer = sweep.best()
    assert answer["winner"]["censored"]
    assert (
        answer["why"] == "not certain: levels of label-d0 that could hold have no valid measurement"
    )
    assert answer["decide"] == [
        (
            "run the experiment again: it measures label-d0 at 40 req/s as far as that was spoilt, "
            "failed or is missing"
        )
    ]


@pytest.mark.parametrize("unjudged", UNJUDGED)
def test_a_rival_that_nobody_judged_did_not_lose(unjudged: dict[str, Any], sweep: Sweep) -> None:
    sweep.settled("d0", 10)
    sweep.deployment("d1")
    sweep.level("d1", 20, **unjudged)
    answer = sweep.best()
    assert answer["winner"]["deployment"] == "label-d0"
    assert (
        answer["why"] == "not certain: levels of label-d1 that could hold have no valid measurement"
    )


def test_what_no_node_had_room_for_waits_for_nodes_and_not_for_another_run(sweep: Sweep) -> None:
    sweep.settled("d0", 10)
    sweep.deployment("d1")
    failure = {"failure_class": "infra", "failure_kind": "no_room"}
    sweep.level("d1", 20, status="failed", reason="no GPU here", **failure)
    (remedy,) = sweep.best()["decide"]
    assert remedy.startswith("add nodes with room for label-d1")


@pytest.mark.parametrize("failure_class", ["engine_crash", "timeout", "bad_config"])
def test_a_rival_that_the_engine_failed_lost(failure_class: str, sweep: Sweep) -> None:
    sweep.settled("d0", 10)
    sweep.deployment("d1")
    sweep.level("d1", 20, status="failed", reason="it died", failure_class=failure_class)
    assert sweep.best()["why"] == "certain: the only deployment that holds the limits"


def test_a_rival_that_may_hold_a_higher_level_is_a_doubt(sweep: Sweep) -> None:
    sweep.settled("d0", 10)
    sweep.settled("d1", 5)
    assert sweep.best()["certain"]
    sweep.level("d1", 20, good=0.89)
    answer = sweep.best()
    assert answer["why"] == "not certain: label-d1 could hold more"
    assert answer["decide"] == ["measure label-d1 at 20 req/s again: more repeats, or longer"]


def test_repeats_in_which_the_engine_fell_behind_count(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.starts("d0", (20, 20))
    for start in (2, 3):
        again: dict[str, Any] = {"point_id": "d0-starts", "start": start, "repeat": start}
        sweep.level("d0", 20, good=0.1, validity="engine_bound_backlog", **again)
    answer = sweep.best()
    assert answer["ranking"] == []
    assert "attainment is at most 0.550 (at 20 req/s)" in answer["left_out"][0]["reason"]


@pytest.mark.parametrize("failure_class", ["engine_crash", "timeout", "bad_config"])
def test_a_level_at_which_the_engine_failed_once_does_not_hold(
    failure_class: str, sweep: Sweep
) -> None:
    sweep.deployment("d0")
    sweep.starts("d0", (20, 20))
    failed: dict[str, Any] = {
        "status": "failed",
        "reason": "it died",
        "failure_class": failure_class,
    }
    sweep.level("d0", 20, point_id="d0-starts", start=2, repeat=2, **failed)
    answer = sweep.best()
    assert answer["ranking"] == []
    assert answer["left_out"][0]["reason"] == "1 of 3 repeats failed: it died"


@pytest.mark.parametrize("unjudged", UNJUDGED)
def test_a_winner_with_repeats_that_do_not_count_is_not_certain(
    unjudged: dict[str, Any], sweep: Sweep
) -> None:
    sweep.settled("d0", 20)
    sweep.level("d0", 20, point_id="d0-starts", start=2, repeat=2, **unjudged)
    answer = sweep.best()
    assert answer["winner"]["repeats"] == 2
    assert answer["why"] == "not certain: repeats of label-d0 failed or are not valid"


def test_nobody_is_told_to_start_an_endpoint_again(sweep: Sweep) -> None:
    sweep.deployment("d0", engine="endpoint", devices=0)
    sweep.level("d0", 5)
    sweep.level("d0", 40, good=0.5)
    answer = sweep.best(None)
    assert (answer["per"], answer["unit"]) == ("deployment", "output tokens/s")
    assert (answer["why"], answer["decide"]) == ("not certain: one start: spread unknown", [])


def test_where_many_requests_fail_good_latencies_of_the_others_do_not_win(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, failed=0.2)
    answer = sweep.best()
    assert answer["ranking"] == []
    assert answer["left_out"][0]["reason"].endswith("20 of 100 requests failed there")
    (point,) = load_points(sweep.store)
    assert point.validity == "failing"
    winner = sweep.best(slo="ttft<=500ms,attainment>=0.75")["winner"]
    assert "failing: 20 of 100 requests failed" in winner["notes"]


def test_open_requests_of_a_backlog_do_not_make_other_repeats_failing(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5)
    sweep.level("d0", 5, repeat=1, failed=0.4, validity="engine_bound_backlog")
    (point,) = load_points(sweep.store)
    assert (len(point.used_repeats), point.figures.requests.failed) == (2, 40)
    assert point.validity == "valid"


def test_checkpoints_of_one_model_are_ranked_together_and_another_size_is_not(sweep: Sweep) -> None:
    """By the number of parameters, quantized or not, as answers are compared."""
    for name, model, parameters in (
        ("d0", "org/m", 8),
        ("d1", "lab/m-int8", 8),
        ("d2", "lab/m-awq", 8),
        ("d3", "org/m-big", 70),
    ):
        method = {"checkpoint_quantization": name} if "lab" in model else {}
        predicted = json.dumps({"parameters": parameters} | method)
        sweep.deployment(name, model=model, predicted_json=predicted)
        sweep.level(name, 10)
    shown = {
        comparison["model"]: [each["deployment"] for each in comparison["ranking"]]
        for comparison in sweep.comparisons()
    }
    assert shown == {
        "org/m and 2 more checkpoints of it": ["label-d0", "label-d1", "label-d2"],
        "org/m-big": ["label-d3"],
    }
    titles = [
        line
        for line in lines_of([point_document(point) for point in load_points(sweep.store, SLO)])
        if "chat of exp" in line
    ]
    assert ["org/m and 2 more checkpoints of it on h100" in line for line in titles].count(
        True
    ) == 1
    assert len(titles) == 2


def test_different_hardware_shares_a_ranking_only_per_dollar(
    sweep: Sweep,
) -> None:
    for name, hardware, model in (
        ("d0", "h100", "m"),
        ("d1", "l40s", "m"),
        ("d2", "h100", "other"),
    ):
        sweep.deployment(name, hardware=hardware, model=model)
        sweep.level(name, 5)
    shown = [
        (comparison["model"], comparison["hardware"], len(comparison["ranking"]))
        for comparison in sweep.comparisons()
    ]
    assert shown == [("m", "h100", 1), ("m", "l40s", 1), ("other", "h100", 1)]
    assert [
        (comparison["model"], len(comparison["ranking"])) for comparison in sweep.comparisons("usd")
    ] == [
        ("m", 2),
        ("other", 1),
    ]


def test_a_comparison_names_the_groups_that_its_points_are_shown_in(sweep: Sweep) -> None:
    for name, hardware in (("d0", "h100"), ("d1", "l40s")):
        sweep.deployment(name, hardware=hardware)
        sweep.level(name, 5)
    points = load_points(sweep.store, SLO)
    (comparison,) = best(points, SLO, ComparisonRules("usd"))
    assert comparison.groups == tuple(map(group_of, points))
    alone = best(points, SLO, ComparisonRules("gpu"))
    assert [each.groups for each in alone] == [(group_of(point),) for point in points]


@pytest.mark.parametrize(
    "validity", ["client_bound", "invalid", "engine_bound_backlog", "unmeasured"]
)
def test_a_point_that_is_not_valid_never_wins_and_says_why(sweep: Sweep, validity: str) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5)
    sweep.level("d0", 10, validity=validity, validity_reasons=["the client was at 99 % CPU"])
    answer = sweep.best()
    assert answer["winner"]["level"] == 5
    (left,) = answer["left_out"]
    assert (left["level"], left["deployment"]) == (10, "label-d0")
    assert left["reason"] == f"not a valid measurement: {validity} (the client was at 99 % CPU)"


@pytest.mark.parametrize(
    ("repeats", "reasons_shown"),
    [
        (
            (["96% were cached"], ["95% were cached", "the client was late"]),
            "96% were cached; the client was late",
        ),
        ((["half came 0.5 s late"], ["half came 3 s late"]), "half came 0.5 s late"),
        (([f"replica {replica}: {replica}2 answers are empty" for replica in (1, 10)],) * 2, None),
        (
            (["replica 1: all empty"], ["replica 10: all empty"]),
            "replica 1: all empty; replica 10: all empty",
        ),
        ((["1 of 2 cached", "2 of 3 cached"], ["1 of 3 cached"]), "1 of 2 cached; 2 of 3 cached"),
    ],
)
def test_a_reason_of_several_repeats_has_the_figures_of_the_first(
    sweep: Sweep, repeats: tuple[list[str], ...], reasons_shown: str | None
) -> None:
    sweep.deployment("d0")
    for repeat, reasons in enumerate(repeats):
        given: dict[str, Any] = {"point_id": "d0-repeats", "repeat": repeat}
        sweep.level("d0", 5, validity="invalid", validity_reasons=reasons, **given)
    (left,) = sweep.best()["left_out"]
    assert (
        left["reason"]
        == f"not a valid measurement: invalid ({reasons_shown or '; '.join(repeats[0])})"
    )


def test_a_failed_point_never_wins_and_gives_its_sentence(sweep: Sweep) -> None:
    sweep.deployment("d0")
    row = {
        "deployment_id": "d0",
        "status": "failed",
        "reason": "The engine ran out of memory.",
        "failure_class": "bad_config",
    }
    commit_measurement(sweep.store, "m0", [failed_request(0)], **row)
    answer = sweep.best()
    assert answer["ranking"] == []
    assert answer["why"] == "no point has a valid measurement: 1 failed"
    assert [left["reason"] for left in answer["left_out"]] == [
        "failed: The engine ran out of memory."
    ]


def test_a_deployment_that_holds_nowhere_is_left_out_with_its_binding_limit(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, good=0.5)
    sweep.level("d0", 10, good=0.25)
    answer = sweep.best()
    (left,) = answer["left_out"]
    sentence = "no level holds the limits: attainment is at most 0.500 (at 5 req/s), not 0.9"
    assert left["reason"] == f"{sentence}; ttft p90 there: 900 ms, limit 500ms"
    assert answer["decide"] == ["measure below 5 req/s"]


@pytest.mark.parametrize(
    "limits", ["ttft<=500ms,attainment>=0.95", "ttft<=500ms,itl_p99<=1s,attainment>=0.95"]
)
def test_where_no_limit_binds_alone_shares_and_failures_are_said(limits: str, sweep: Sweep) -> None:
    sweep.deployment("d0")
    gaps = events({index: [20] * 9 for index in range(100) if index % 25 != 24})
    # 2 late, 4 failed: the p95 of the others is good
    sweep.level("d0", 5, good=0.97, failed=0.04, token_events=gaps)
    reason = sweep.best(slo=limits)["left_out"][0]["reason"]
    assert reason.endswith(
        "not 0.95; ttft<=500ms was met by 0.940 there; 4 of 100 requests failed there"
    )


def test_a_limit_on_the_gaps_of_each_request_binds_by_its_share(sweep: Sweep) -> None:
    sweep.deployment("d0")
    gaps = events({index: [900 if index % 10 == 0 else 20, *[20] * 8] for index in range(100)})
    sweep.level("d0", 5, token_events=gaps)
    reason = sweep.best(slo="itl_p99<=100ms,attainment>=0.95")["left_out"][0]["reason"]
    assert reason.endswith("not 0.95; itl_p99<=100ms was met by 0.900 there")


@pytest.mark.parametrize("per", ["gpu", "usd"])
def test_an_endpoint_is_compared_as_a_deployment_alone(per: Per, sweep: Sweep) -> None:
    sweep.deployment("endpoint", engine="endpoint", devices=0, usd_per_hour=0.0)
    sweep.level("endpoint", 5)
    assert "--per deployment" in sweep.best(per)["left_out"][0]["reason"]
    assert sweep.best("deployment")["winner"]["deployment"] == "label-endpoint"


def test_an_endpoint_with_known_gpus_is_compared_per_gpu(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0", engine="endpoint", devices=16)
    sweep.level("d0", 32)
    sweep.level("d0", 64, good=0.5)
    answer = sweep.best(None)
    assert (answer["per"], answer["winner"]["value"]) == (
        "gpu",
        pytest.approx(32 * 10 / 16, rel=0.05),
    )
    assert answer["decide"] == []


@pytest.mark.parametrize("price", [None, 0.0])
def test_where_no_price_is_known_that_is_the_reason(price: float | None, sweep: Sweep) -> None:
    sweep.settled("d0", 5)
    sweep.deployment("d1", usd_per_hour=price)
    sweep.level("d1", 5)
    sweep.level("d1", 40, good=0.5)
    ranked = sweep.best("usd")
    assert "label-d1 cannot be compared with the others" in ranked["why"]
    assert "price is not known" in ranked["left_out"][-1]["reason"]


def test_where_nothing_can_be_ranked_nobody_is_told_to_measure(sweep: Sweep) -> None:
    sweep.deployment("d0", usd_per_hour=None)
    sweep.level("d0", 5)
    sweep.level("d0", 40, good=0.5)
    answer = sweep.best("usd")
    assert answer["why"].startswith(
        "what holds ttft<=500ms,attainment>=0.9 cannot be ranked: its price is not known"
    )
    assert answer["decide"] == []


def test_nothing_is_below_one_request_in_flight(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 1, good=0.0, control="concurrency")
    assert sweep.best()["decide"] == []


def test_an_invalid_point_within_the_limits_asks_for_no_lower_level(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, validity="client_bound")
    assert sweep.best()["decide"] == [
        (
            "run the experiment again: it measures label-d0 at 5 req/s as far as that was spoilt, "
            "failed or is missing"
        )
    ]


def test_the_top_of_what_was_measured_and_a_dip_below_are_noted(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((2, 1.0), (5, 0.5), (10, 1.0)):
        sweep.level("d0", level, good)
    notes = " ".join(sweep.best()["winner"]["notes"])
    assert "capacity may be higher" in notes
    assert "not monotonic" in notes


def test_each_workload_has_its_own_answer(sweep: Sweep) -> None:
    for name, chat, code in (("d0", 20, 5), ("d1", 10, 10)):
        sweep.deployment(name)
        sweep.level(name, chat)
        sweep.level(name, code, workload="code")
    winners = {
        comparison["workload"]: comparison["ranking"][0]["deployment"]
        for comparison in sweep.comparisons()
    }
    assert winners == {"chat": "label-d0", "code": "label-d1"}


def test_a_limit_nobody_thought_of_when_measuring_changes_the_answer(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5)
    sweep.level("d0", 10, good=0.5)
    assert sweep.best(slo="ttft<=500ms,attainment>=0.9")["winner"]["level"] == 5
    assert sweep.best(slo="ttft<=1s,attainment>=0.9")["winner"]["level"] == 10


def test_an_emulators_answer_is_marked(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, emulated=True)
    answer = sweep.best()
    assert answer["emulated"]
    assert answer["winner"]["emulated"]


def test_what_an_emulator_answered_is_never_ranked_with_the_rest(sweep: Sweep) -> None:
    for name, level in (("d0", 20), ("d1", 10)):
        sweep.deployment(name)
        sweep.level(name, level, emulated=name == "d0")
    shown = [
        (comparison["emulated"], [rank["deployment"] for rank in comparison["ranking"]])
        for comparison in sweep.comparisons()
    ]
    assert shown == [(False, ["label-d1"]), (True, ["label-d0"])]


def test_what_was_simulated_is_marked_and_never_ranked_with_the_rest(sweep: Sweep) -> None:
    for name, level in (("d0", 20), ("d1", 10)):
        sweep.deployment(name)
        sweep.level(name, level, simulated=name == "d0")
    measured, simulated = sweep.comparisons()
    assert [each["deployment"] for each in measured["ranking"]] == ["label-d1"]
    assert [each["deployment"] for each in simulated["ranking"]] == ["label-d0"]
    assert [each["simulated"] for each in (measured, simulated)] == [False, True]
    assert [each["ranking"][0]["simulated"] for each in (measured, simulated)] == [False, True]


def test_a_simulation_is_never_certain_and_names_those_within_the_error_of_its_model(
    sweep: Sweep,
) -> None:
    within = {
        "error": {
            "ttft": 0.4,
            "tpot": 0.1,
            "source": "s",
            "within": {"ttft": 2.0, "tpot": 1.25},
            "counted": False,
        }
    }
    for name, level in (("d0", 20), ("d1", 16), ("d2", 2)):
        sweep.deployment(name, predicted_json=json.dumps(within))
        sweep.level(name, level, simulated=True)
    answer = sweep.best()
    assert not answer["certain"]
    value = answer["winner"]["value"]
    # at a rate that is kept up with nothing more can come out than was sent
    assert answer["winner"]["interval"] == [value / 1.25, value]
    assert answer["why"].startswith(
        "not certain: simulated: label-d1 may hold as much as label-d0, within the model's error"
    )
    assert answer["decide"][0] == "measure these 2"  # without a plan, no shortlist of it
    assert "start" not in " ".join(answer["decide"])  # a model does the same at each start


def error_within(tpot: float) -> str:
    """The prediction of a deployment whose model is off by at most this factor."""
    within = {"ttft": tpot, "tpot": tpot}
    error = {"ttft": 0.1, "tpot": 0.1, "source": "s", "within": within, "counted": False}
    return json.dumps({"error": error})


def test_of_equal_deployments_the_surer_stands_first_and_the_headline_says_tie(
    sweep: Sweep,
) -> None:
    for name, tpot in (("d0", 2.0), ("d1", 1.1), ("d2", 1.5)):
        sweep.deployment(name, predicted_json=error_within(tpot))
        sweep.level(name, 8 if name == "d2" else 16, simulated=True)
    points = load_points(sweep.store, SLO)
    (document,) = answer_document(best(points, SLO)).comparisons
    assert [ranked.deployment.label for ranked in document.ranking] == [
        "label-d1",
        "label-d0",
        "label-d2",
    ]
    assert winner_text(document).endswith(", a tie with 1 more")


def test_a_simulation_without_higher_loads_is_bound_by_what_is_predicted_to_hold(
    sweep: Sweep,
) -> None:
    capacity = {
        "control": "request_rate",
        "level": 20,
        "output_throughput": 200,
        "output_throughput_per_gpu": 200,
        "interval_per_gpu": [100, 300],
        "usd_per_million_tokens": None,
    }
    prediction = json.loads(error_within(1.5))
    prediction |= {"levels": [], "capacity": {"fast": {"chat": capacity}}}
    sweep.deployment("d0", predicted_json=json.dumps(prediction))
    sweep.level("d0", 8, simulated=True)
    lower, value = sweep.best()["winner"]["interval"]
    assert lower == value  # 200 / 1.5 is more than what was sent
    sweep.level("d0", 12, simulated=True, validity="engine_bound_backlog")
    lower, _ = sweep.best()["winner"]["interval"]
    assert lower == pytest.approx(120 / 1.5, rel=0.02)  # the engine was seen to give no more


def test_repeats_are_pooled_and_the_bad_ones_left_out(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, repeat=0, point_id="p")
    sweep.level("d0", 5, repeat=1, point_id="p", good=0.9)
    sweep.level("d0", 5, repeat=2, point_id="p", validity="client_bound")
    winner = sweep.best()["winner"]
    assert winner["attainment"] == pytest.approx(0.95)
    assert winner["repeats"] == 2
    assert any("1 of 3 repeats are left out" in note for note in winner["notes"])


def test_a_point_lists_its_repeats_and_what_was_merged(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, repeat=1, point_id="p", good=0.5)
    sweep.level("d0", 5, repeat=0, point_id="p")
    sweep.level(
        "d0",
        5,
        repeat=2,
        point_id="p",
        status="failed",
        reason="it died",
        failure_class="engine_crash",
    )
    (point,) = load_points(sweep.store, SLO)
    document = json.loads(json_text(point_json(point_document(point, [SLO]))))
    assert document["merged"] == {"of": 3, "used": 2, "failed": 1}
    assert (document["status"], document["reason"]) == ("ok", "it died")
    assert [repeat["repeat"] for repeat in document["repeats"]] == [0, 1, 2]
    assert document["requests"] == {"scheduled": 200, "ok": 200, "failed": 0}
    assert document["slo"]["attainment"]["estimate"] == 0.75
    assert [
        repeat["slo"]["attainment"] and repeat["slo"]["attainment"]["estimate"]
        for repeat in document["repeats"]
    ] == [
        1,
        0.5,
        None,
    ]
    assert document["slo"]["goodput"] == pytest.approx(0.75 * 5)
    assert document["slo"]["by_limit"] == {"ttft": 0.75}


def test_a_measurement_is_its_winning_attempt_or_its_last_failed_one(sweep: Sweep) -> None:
    sweep.deployment("d0")
    failed = {"status": "failed", "reason": "first", "deployment_id": "d0"}
    commit_measurement(sweep.store, "x", attempt_id="a0", created_unix_ns=1, point_id="x", **failed)
    commit_measurement(
        sweep.store,
        "x",
        attempt_id="a1",
        created_unix_ns=2,
        point_id="x",
        **failed | {"reason": "last"},
    )
    (point,) = load_points(sweep.store)
    assert (point.head.reason, point.repeats[0].attempts, point.used_repeats) == ("last", 2, ())
    commit_measurement(
        sweep.store,
        "x",
        [request(0)],
        attempt_id="a2",
        created_unix_ns=3,
        point_id="x",
        deployment_id="d0",
    )
    (point,) = load_points(sweep.store)
    assert (point.head.attempt_id, point.repeats[0].attempts) == ("a2", 3)


def test_points_of_a_deployment_nobody_described_are_still_listed(sweep: Sweep) -> None:
    sweep.level("ghost", 5)
    (point,) = load_points(sweep.store)
    assert point_json(point_document(point))["label"] == "ghost"
    assert point_json(point_document(point))["settings"] == {}


def test_what_had_no_steady_part_is_not_certain(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.starts("d0", (20, 20), steady=False)
    sweep.level("d0", 40, good=0.5)
    answer = sweep.best()
    assert (answer["certain"], answer["why"]) == (
        False,
        "not certain: no part of label-d0 at 20 req/s was steady",
    )
    assert answer["decide"] == ["measure label-d0 at 20 req/s longer"]


def test_a_level_never_wins_of_which_one_repeat_is_no_output(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 10)
    for repeat, given in enumerate(({}, NOISE)):
        sweep.level("d0", 20, repeat=repeat, **given)
    answer = sweep.best()
    assert (answer["winner"]["level"], answer["winner"]["censored"]) == (10, False)
    assert (
        answer["left_out"][0]["reason"]
        == "not a valid measurement: broken_output (all answers are empty)"
    )


def test_what_answers_with_noise_is_not_helped_by_another_load(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((5, 0.5), (10, 1.0)):
        sweep.level("d0", level, good, **NOISE)
    mend = "change label-d0: no load makes output of such answers (docs/explained/validity.md#broken_output)"
    for answer in (sweep.best(), searched(sweep)):
        assert answer["why"] == "no point has a valid measurement: 2 broken_output"
        assert answer["decide"] == [mend]
        assert "broken_output (all answers are empty)" in answer["left_out"][0]["reason"]
    sweep.deployment("d1")
    sweep.level("d1", 20, good=0.5)
    assert sweep.best()["decide"] == ["measure below 20 req/s", mend]
    sweep.level("d0", 2, good=0.5)
    assert sweep.best()["decide"] == ["measure below 2 req/s"]


def test_what_comes_in_bursts_is_not_helped_by_another_load(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level in (5, 10):
        sweep.level("d0", level, 0.0, validity="stream_buffered")
    mend = (
        "take away what gathers the events of label-d0: whatever the load, they do not show "
        "its TPOT and ITL"
    )
    assert sweep.best()["why"] == "no point has a valid measurement: 2 stream_buffered"
    assert sweep.best()["decide"] == [mend]
    sweep.level("d0", 2, good=0.5)
    assert sweep.best()["decide"] == ["measure below 2 req/s"]


def test_what_something_else_disturbed_does_not_ask_for_a_lower_level(sweep: Sweep) -> None:
    sweep.deployment("d0")
    sweep.level("d0", 5, good=0.5, validity="disturbed")
    assert sweep.best()["why"] == "no point has a valid measurement: 1 disturbed"
    assert not [text for text in sweep.best()["decide"] if "below" in text]
    sweep.level("d0", 10, good=0.5)
    assert "measure below 10 req/s" in sweep.best()["decide"]


def test_limits_on_percentiles_hold_where_each_of_them_does(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, good in ((5, 1.0), (10, 0.95), (20, 0.85)):
        sweep.level("d0", level, good)  # the others take 900 ms
    strict, loose = "ttft_p90<=500ms,e2e_p99<=800ms", "ttft_p90<=500ms,e2e_p99<=1s"
    assert [sweep.best(slo=slo)["winner"]["level"] for slo in (strict, loose)] == [5, 10]
    assert sweep.best(slo=loose)["winner"]["attainment"] == pytest.approx(0.95), (
        "of the first of them"
    )
    sweep.deployment("d1")
    sweep.level("d1", 10, 0.95)
    left_out = [excluded["reason"] for excluded in sweep.best(slo=strict)["left_out"]]
    assert left_out == [
        "no level holds the limits: the share within e2e_p99 is at most 0.950 (at 10 req/s), not "
        "0.99; "
        "e2e p99 there: 900 ms, limit 800ms"
    ]
    joint = parse_slo(strict + ",ttft<=500ms,attainment>=0.9")
    judged = point_json(point_document(load_points(sweep.store, joint)[1], (joint,)))["slo"]
    assert [(test["name"], test["target"], test["met"]) for test in judged["tests"]] == [  # type: ignore[index]
        ("attainment", 0.9, True), ("ttft_p90", 0.9, True), ("e2e_p99", 0.99, False),
    ]  # fmt: skip
    assert (judged["met"], judged["attainment"].estimate) == (False, pytest.approx(0.95))  # type: ignore[index]


def test_a_curve_has_its_knee_and_a_profile_both_phases(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0")
    for level, served in ((1, 1.0), (2, 1.0), (4, 1.0), (8, 0.5), (16, 0.25)):
        sweep.level("d0", level, failed=1 - served)
    points = load_points(sweep.store)
    marked = knees(points)
    documents = [point_document(point, knees=marked) for point in points]
    assert [document.point.head.level for document in documents if document.is_knee] == [4]
    (row,) = [line for line in lines_of(documents) if "knee" in line]
    assert "knee" in row
    profile = "\n".join(lines_of(documents, profile=True))
    assert all(title in profile for title in ("prefill", "decode", "all input", "all output"))
    assert "attainment" not in profile


def searched(
    sweep: Sweep, slo: str | None = None, per: Per = "gpu", precision: float = 0.15
) -> dict[str, Any]:
    limits = parse_slo(slo) if slo else SLO
    comparisons = best(
        load_points(sweep.store, limits),
        limits,
        ComparisonRules(per, {"chat": SearchRules(precision)}),
    )
    (comparison,) = json.loads(json_text(answer_json(answer_document(comparisons))))["comparisons"]
    return comparison  # type: ignore[no-any-return]


def test_a_search_is_answered_by_its_claim_bounds_and_status(sweep: Sweep) -> None:
    for name, top in (("d0", 20), ("d1", 30)):
        sweep.deployment(name, devices=2)
        for level, good in (*[(top, 1.0)] * 6, (top * 1.05, 0.5), (top / 2, 1.0)):
            sweep.level(name, level, good, repeat=sweep.count)
    answer = searched(sweep)
    assert [
        (deployment["deployment"], deployment["level"]) for deployment in answer["ranking"]
    ] == [
        ("label-d1", 30),
        ("label-d0", 20),
    ]
    capacity = answer["ranking"][0]["capacity"]
    assert (capacity["claim"], capacity["low"], capacity["high"]) == (30, 30, 31.5)
    assert capacity["status"] == "converged"
    assert answer["ranking"][0]["value"] == pytest.approx(150, rel=0.02)
    assert answer["why"] == "not certain: one start: spread unknown"
    sweep.level("d1", 60, 1.0)
    assert searched(sweep)["ranking"][0]["capacity"]["status"] == "non_monotonic"


def test_searches_are_ranked_by_expectations_near_their_claims(
    sweep: Sweep,
) -> None:
    bounds = {
        "d0": (20, 21.5, 0.1),
        "d1": (20, 22, 0.8),
        "d2": (19.5, 30, 0.8),
        "d3": (18, 18.5, 0.8),
        "d4": (15, 90, 0.8),
    }
    for name, (top, high, good) in bounds.items():
        sweep.deployment(name)
        for level, share in (*[(top, 1.0)] * 6, (high, good)):
            sweep.level(name, level, share, repeat=sweep.count)
    ranking = searched(sweep)["ranking"]
    assert [(deployment["deployment"], deployment["level"]) for deployment in ranking] == [
        ("label-d1", 20), ("label-d2", 19.5), ("label-d0", 20), ("label-d3", 18), ("label-d4", 15),
    ]  # fmt: skip


def test_a_winner_with_a_lower_claim_says_why_it_is_first(
    sweep: Sweep,
) -> None:
    for name, top, high, good in (("d0", 20.5, 21, 0.1), ("d1", 20, 22, 0.8)):
        sweep.deployment(name)
        for level, share in (*[(top, 1.0)] * 6, (high, good)):
            sweep.level(name, level, share, repeat=sweep.count)
    answer = searched(sweep)
    assert [deployment["level"] for deployment in answer["ranking"]] == [20, 20.5]
    assert (
        "more is claimed of label-d0, but the probes of label-d1 expect it to hold more"
        in answer["why"]
    )
    assert "search label-d1, label-d0 on, with a smaller precision" in answer["decide"]


def test_a_search_is_answered_at_its_own_precision(
    sweep: Sweep,
) -> None:
    """What was shown once leads while the search is not over, and then what is claimed."""
    for name, levels in (
        ("d0", [(20, 1.0)] * 6 + [(22, 1.0)] * 2 + [(22.9, 0.5)]),
        ("d1", [(10, 1.0)] * 12 + [(21, 0.5)]),
    ):
        sweep.deployment(name)
        for level, good in levels:
            sweep.level(name, level, good, repeat=sweep.count)
    for precision, statuses in ((0.05, ["budget", "outraced"]), (0.15, ["converged", "budget"])):
        ranking = searched(sweep, precision=precision)["ranking"]
        assert [
            (deployment["level"], deployment["capacity"]["status"]) for deployment in ranking
        ] == list(zip((20, 10), statuses, strict=True))


def test_an_unsettled_search_tells_its_bounds_and_is_no_answer(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0")
    for repeat in range(2):
        sweep.level("d0", 20, repeat=repeat)
    answer = searched(sweep)
    assert answer["ranking"] == []
    assert answer["left_out"][0]["reason"] == (
        "no load was shown to hold the limits: at least 20 req/s (budget)"
    ), answer["left_out"]
    assert "search label-d0 on, with more budget" in answer["decide"]
    sweep.level("d0", 40, 0.5)
    for repeat in range(2, 6):
        sweep.level("d0", 20, repeat=repeat)
    (ranked,) = searched(sweep)["ranking"]
    capacity = ranked["capacity"]
    assert (capacity["claim"], capacity["low"], capacity["high"]) == (20, 20, 40)
    assert capacity["status"] == "budget"
    assert (
        "capacities are not settled: label-d0 between 20 and 40 req/s (budget)"
        in searched(sweep)["why"]
    )


def test_an_estimate_is_ranked_below_claims_however_high_it_is(sweep: Sweep) -> None:
    sweep.deployment("claimed")
    for repeat in range(6):
        sweep.level("claimed", 20, repeat=repeat)
    sweep.deployment("estimated")
    for level, good in ((28, 0.95), (33, 0.82)):
        sweep.level("estimated", level, good)
    answer = searched(sweep)
    claim, estimate = answer["ranking"]
    assert (claim["deployment"], claim["estimated"]) == ("label-claimed", False)
    assert (estimate["deployment"], estimate["estimated"]) == ("label-estimated", True)
    assert answer["left_out"] == []
    assert not answer["certain"]
    assert "label-estimated between 28 and 33 req/s (budget)" in answer["why"]


def test_the_value_of_an_estimate_is_what_its_load_would_give(sweep: Sweep) -> None:
    sweep.deployment("d0", devices=2)
    for level, good in ((18, 0.95), (22, 0.82)):
        sweep.level("d0", level, good)
    answer = searched(sweep)
    (ranked,) = answer["ranking"]
    assert answer["decide"] == ["search label-d0 on, with more budget"]
    capacity = ranked["capacity"]
    assert capacity["claim"] is None
    assert ranked["level"] == 18  # the probe that its figures are of
    # ten tokens a request, two GPUs
    assert ranked["value"] == pytest.approx(5 * capacity["estimate"], rel=0.01)
    assert ranked["value.lower"] <= 5 * capacity["estimate.lower"]
    assert ranked["value.upper"] >= 5 * capacity["estimate.upper"]


def test_where_a_search_holds_nothing_its_lowest_level_says_why(sweep: Sweep) -> None:
    sweep.deployment("d0")
    for level, repeat in ((4, 0), (4, 1), (2, 0), (2, 1), (1, 0)):  # of 1 req/s 20 requests are due
        sweep.level("d0", level, 0.2, repeat=repeat)
    answer = searched(sweep)
    (left_out,) = answer["left_out"]
    assert "(nothing_holds); attainment is only 0.200 (at 1 req/s), not 0.9" in left_out["reason"]
    assert "ttft p90 there: 900 ms, limit 500ms" in left_out["reason"]
    change = "the limit ttft<=500ms: 90% of requests took up to 900ms at 1 req/s"
    (decide,) = answer["decide"]  # no lower level
    assert decide == (
        f"other limits: label-d0 holds these at no load; change first {change} (label-d0)"
    )
    (deployment,) = answer["changes"]
    assert (deployment["deployment"], deployment["status"]) == ("label-d0", "nothing_holds")
    assert deployment["change_first"] == change
    assert (deployment["change"]["limit"], deployment["change"]["value_s"]) == (
        "ttft",
        pytest.approx(0.9),
    )


def test_one_start_of_an_outraced_deployment_is_no_doubt(sweep: Sweep) -> None:
    for name, top, failed in (("d0", 36, 37.8), ("d1", 20, 30)):
        sweep.deployment(name)
        for repeat in range(8):
            sweep.level(
                name,
                top,
                repeat=repeat,
                start=repeat // 4 if name == "d0" else 0,
                steady=name == "d0",
            )
        sweep.level(name, failed, 0.5, start=0)
    answer = searched(sweep)
    assert [deployment["capacity"]["status"] for deployment in answer["ranking"]] == [
        "converged",
        "outraced",
    ]
    assert answer["ranking"][1]["capacity"]["claim"] == 20
    assert (answer["certain"], answer["decide"]) == (True, []), answer["why"]


def two_starts(sweep: Sweep, name: str, top: float, high: float, **given: Any) -> None:
    """A search that claims ``top``, measured on both starts, and was shown to fail at ``high``."""
    sweep.deployment(name, **given)
    for repeat in range(8):
        sweep.level(name, top, repeat=repeat, start=repeat // 4)
    sweep.level(name, high, 0.5, start=0)


@pytest.mark.parametrize(
    ("bounds", "gpus", "excess", "decide"),
    [
        (
            (19.4, 20.3),
            1,
            "1.5% more than is claimed of label-d0",
            "search label-d0, label-d1 on, with a smaller",
        ),
        (
            (38.8, 40.6),
            2,
            "1.5% more than is claimed of label-d0",
            "search label-d0, label-d1 on, with a smaller",
        ),
        ((19.4, 19.9), 1, None, None),
        ((38.8, 39.8), 2, None, None),
    ],
)
def test_searched_rates_are_told_apart_by_their_bounds(
    bounds: tuple[float, float], gpus: int, excess: str | None, decide: str | None, sweep: Sweep
) -> None:
    two_starts(sweep, "d0", 20, 20.8)
    two_starts(sweep, "d1", *bounds, devices=gpus)
    answer = searched(sweep)
    assert [deployment["deployment"] for deployment in answer["ranking"]] == [
        "label-d0",
        "label-d1",
    ]
    assert {
        (deployment["starts"], deployment["capacity"]["status"]) for deployment in answer["ranking"]
    } == {(2, "converged")}
    assert answer["certain"] is (excess is None), answer["why"]
    if excess is None or decide is None:
        assert (
            answer["why"]
            == "certain: every other was shown to fail at what is claimed of the first, or below"
        )
        assert answer["decide"] == []
    else:
        assert answer["why"] == f"not certain: bounds overlap: label-d1 could hold up to {excess}"
        (text,) = answer["decide"]
        assert text.startswith(decide)


def test_bounds_that_are_as_narrow_as_levels_lie_ask_for_no_search(sweep: Sweep) -> None:
    for name in ("d0", "d1"):
        two_starts(sweep, name, 20, 20.29)
    answer = searched(sweep)
    assert answer["why"].endswith("of label-d0, and no search tells more: levels are 1.5% apart")
    assert (answer["certain"], answer["decide"]) == (False, [])


def test_an_outraced_deployment_without_a_claim_may_hold_less(
    sweep: Sweep,
) -> None:
    two_starts(sweep, "d0", 36, 37.8)
    sweep.deployment("d1")
    sweep.level("d1", 30, 0.5)
    answer = searched(sweep)
    assert len(answer["ranking"]) == 1
    assert (
        answer["why"]
        == "certain: every other was shown to fail at what is claimed of the first, or below"
    )


def test_a_failed_probe_tells_nothing_of_other_limits(
    sweep: Sweep,
) -> None:
    sweep.deployment("d0")
    for repeat in range(6):
        sweep.level("d0", 20, repeat=repeat)
    sweep.level("d0", 40, 0.2, ended_early="fails", ended_for=f"e2e<=5s; {format_slo(SLO)}")
    assert searched(sweep)["ranking"][0]["capacity"]["high"] == 40
    assert searched(sweep, "ttft<=2s,attainment>=0.9")["ranking"][0]["capacity"]["high"] is None
    assert sweep.best()["ranking"][0]["capacity"] is None, "a list of levels claims nothing"


def agreeing(sweep: Sweep, shares: dict[str, float | None]) -> list[StoredPoint]:
    """One point of each deployment, the higher the load the lower in the alphabet."""
    for at, name in enumerate(shares):
        sweep.deployment(name)
        sweep.level(name, 4 + at)
    return [
        replace(point, agreement=Agreement(share, 256, "tokens", "label-ref"))
        if (share := shares[point.head.deployment_id]) is not None
        else replace(
            point, agreement=Agreement(reference="label-ref", note=AgreementNote.IS_REFERENCE)
        )
        for point in load_points(sweep.store, SLO)
    ]


def test_a_limit_on_agreement_excludes_a_deployment_that_disagrees(
    sweep: Sweep,
) -> None:
    points = agreeing(sweep, {"ref": None, "good": 0.95, "noise": 0.0})
    (free,) = best(points, SLO)
    assert free.ranking[0].point.deployment.label == "label-noise"
    (limited,) = best(points, parse_slo("ttft<=500ms,attainment>=0.9,agreement>=90%"))
    names = [ranked.point.deployment.label for ranked in limited.ranking]
    assert names == ["label-good", "label-ref"], "the reference agrees with itself"
    (out,) = [
        excluded for excluded in limited.excluded if excluded.deployment.label == "label-noise"
    ]
    assert exclusion_text(out) == "its agreement with label-ref is 0.000 (n=256 tokens), not 0.9"


def test_an_agreement_near_chance_is_noted_where_others_of_the_model_agree(sweep: Sweep) -> None:
    points = agreeing(sweep, {"ref": None, "good": 0.62, "noise": 0.09})
    (comparison,) = best(points, SLO)
    noted = {ranked.label: note_texts(ranked) for ranked in comparison.ranking}
    assert any("hardly any of its answers equals" in note for note in noted["label-noise"])
    assert not any("hardly any" in note for note in (*noted["label-good"], *noted["label-ref"]))
    alone = [point for point in points if point.head.deployment_id != "good"]
    (comparison,) = best(alone, SLO)
    assert not any("hardly" in note for ranked in comparison.ranking for note in note_texts(ranked))


def test_an_agreement_that_is_not_known_is_not_enough(sweep: Sweep) -> None:
    sweep.settled("a", 8)
    (comparison,) = best(load_points(sweep.store, SLO), parse_slo("ttft<=500ms,agreement>=0.9"))
    assert not comparison.ranking
    assert "its agreement is not known" in exclusion_text(comparison.excluded[-1])


def test_a_limit_on_agreement_is_written_as_it_is_read() -> None:
    text = "ttft<=500ms,attainment>=0.95,agreement>=0.9"
    assert format_slo(parse_slo(text)) == text
    assert format_limits(parse_slo(text)) == "ttft<=500ms,attainment>=0.95"
    with pytest.raises(ProblemsError, match="write agreement>=0.9"):
        parse_slo("ttft<=1s,agreement<=0.9")
