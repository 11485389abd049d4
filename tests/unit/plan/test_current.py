"""What is compared: the points that the plan asks for now, under the limits that the file names."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.analysis.output_agreement import MADE_UP
from orchestrator.analysis.prediction import Prediction
from orchestrator.capacity.best import Comparison, Shortlisted
from orchestrator.cli.main import cli
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import LeftOut, PredictedShortlist
from orchestrator.report.words import remedy_texts, verdict_text
from orchestrator.results.records import AnswerRow
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.stored_sweeps import (
    EXPERIMENT,
    SEARCH,
    VALUES,
    invoke,
    planned,
    store_attempt,
    store_sweep,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def levels(store: Store) -> tuple[list[float], list[float]]:
    points = StoredExperiment(store).points()
    return [one.head.level for one in points.current], [one.head.level for one in points.superseded]


def test_a_workload_that_left_the_file_neither_wins_nor_is_shown(
    store: Store,
) -> None:
    # ten requests a second: 640 tokens/s with 64 tokens each, 80 with the 8 that are asked for now
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
    done = invoke(
        "best", store.uri, "--format", "json", "--slo", "interactive", "--per", "deployment"
    )
    (comparison,) = json.loads(done.stdout)["comparisons"]
    assert [one["value"] < 100 for one in comparison["ranking"]] == [True, True]
    assert (
        "superseded: 2 points of earlier versions of its file or of the program (results"
        in done.stderr
    )
    shown = json.loads(invoke("results", store.uri, "--format", "json").stdout)
    assert [one["current"] for one in shown] == [True, True]
    every = invoke("results", store.uri, "--all")
    assert every.stdout.count("superseded: ") == 1
    assert '"output_tokens":{"fixed":64}' in every.stdout
    both = json.loads(invoke("results", store.uri, "--all", "--format", "json").stdout)
    assert [one["current"] for one in both] == [True, True, False, False]


def test_a_superseded_point_is_not_compared_with_todays_prediction(store: Store) -> None:
    level = {"workload": "chat", "control": "concurrency", "level": 2, "ttft_ms": 1, "tpot_ms": 1}
    predicted = {
        "levels": [level | {"output_throughput": 1e6}],
        "error": {
            "ttft": 0.1,
            "tpot": 0.1,
            "source": "a test",
            "within": {"ttft": 1.1, "tpot": 1.1},
            "counted": False,
        },
    }
    for tokens in (64, 8):
        plan = planned(tokens=tokens)
        deployments = tuple(
            deployment.model_copy(update={"predicted": Prediction.from_document(predicted)})
            for deployment in plan.deployments
        )
        store_sweep(store, plan.model_copy(update={"deployments": deployments}), tokens)
    both = json.loads(invoke("results", store.uri, "--all", "--format", "json").stdout)
    found = [(one["current"], one["worse_than_predicted"]) for one in both]
    assert found == [(True, True), (True, True), (False, None), (False, None)]


@pytest.mark.parametrize("change", [{"duration": "20s"}, {"model": "other"}, {"levels": [4]}])
def test_points_of_changed_settings_are_superseded(store: Store, change: dict[str, Any]) -> None:
    store_sweep(store, planned())
    assert levels(store) == ([2, 2], [])
    store_sweep(store, planned(**change))
    assert [len(one) for one in levels(store)] == [2, 2]
    store_sweep(store, planned())  # and back: nothing is measured again
    assert levels(store)[0] == [2, 2]


def test_a_renamed_workload_keeps_its_measurements(
    store: Store,
) -> None:
    store_sweep(store, planned(levels=[2]))
    store_sweep(store, planned(levels=[2, 4], workload="talk"))  # the rows of level 2 say chat
    found = StoredExperiment(store).points()
    assert [(one.head.workload, one.head.level) for one in found.current] == [
        ("talk", 2),
        ("talk", 4),
    ] * 2
    assert not found.superseded
    done = invoke(
        "best", store.uri, "--format", "json", "--slo", "interactive", "--per", "deployment"
    )
    assert [one["workload"] for one in json.loads(done.stdout)["comparisons"]] == ["talk"]


def supersede_all_and_count_tables(store: Store) -> int:
    store_sweep(store, planned(tokens=64), tokens=64)
    return int(invoke("results", store.uri, "--all").stdout.count("superseded: "))


def test_superseded_points_share_a_table_only_where_they_were_loaded_the_same(store: Store) -> None:
    for timeout in ("60s", "70s"):
        store_sweep(store, planned(timeout=timeout))
    assert supersede_all_and_count_tables(store) == 2


@pytest.mark.parametrize(
    "other", [{"arrivals": "constant"}, {"window_start_ns": 10**9, "window_end_ns": 11 * 10**9}]
)
def test_rows_without_load_json_are_grouped_by_arrivals_and_window(
    store: Store, other: dict[str, Any]
) -> None:
    store_sweep(store, planned(timeout="60s"), load_json=None)
    store_sweep(store, planned(timeout="70s"), load_json=None)
    store_sweep(store, planned(timeout="80s"), load_json=None, **other)
    assert supersede_all_and_count_tables(store) == 2


def test_without_a_measured_point_of_the_plan_the_answer_says_so(store: Store) -> None:
    store_sweep(store, planned())
    assert "is measured yet" not in invoke("best", store.uri).stderr
    store.write_plan(planned(tokens=64).to_json())
    done = invoke("best", store.uri, status=3)
    assert "exp: nothing that its plan asks for is measured yet" in done.stderr


def test_best_names_the_experiments_whose_files_name_no_limits(store: Store) -> None:
    store_sweep(store, planned())
    store_sweep(
        Store.open(store.uri, "other"), planned(name="other").model_copy(update={"slos": ()})
    )
    said = "other is left out: its file names no"
    assert f"{said} limits: give --slo" in invoke("best", store.uri).stderr
    assert f"{said} tight" in invoke("best", store.uri, "--slo", "tight").stderr
    assert said not in invoke("best", store.uri, "--slo", "ttft<=1s").stderr


def test_results_hold_every_point_against_all_limits_of_the_file(store: Store) -> None:
    store_sweep(store, planned())
    first, *_ = json.loads(invoke("results", store.uri, "--format", "json").stdout)
    shares = {name: one["attainment"]["estimate"] for name, one in first["slos"].items()}
    assert shares == {"interactive": 1.0, "tight": 0.0}
    assert (first["slo"], first["repeats"][0]["slos"]) == (
        first["slos"]["interactive"],
        first["slos"],
    )
    shown = invoke("results", store.uri).stdout
    assert "interactive (ttft<=150ms,attainment>=0.9)" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith(" emulator seqs=8 ")]
    assert row.split()[-4:] == ["1.000", "✓", "0.000", "✗"]
    (one, *_) = json.loads(
        invoke("results", store.uri, "--slo", "tight", "--format", "json").stdout
    )
    assert one["slos"].keys() == {"tight"}


DAMAGED_PLANS = [
    b'{"plan_format": 1, "slos": 5}',
    b'{"name": "\xff"}',
    b"\xff",
    b"[" * 100_000,
    b"5",
    b"",
]


@pytest.mark.parametrize("content", DAMAGED_PLANS, ids=lambda content: repr(content[:40]))
def test_a_damaged_plan_ends_no_command(store: Store, tmp_path: Path, content: bytes) -> None:
    store_sweep(store, planned())
    (tmp_path / "exp" / "plan.json").write_bytes(content)
    assert "emulator" in invoke("results", store.uri).stdout
    assert (
        "emulator" in invoke("best", store.uri, "--slo", "ttft<=1s", "--per", "deployment").stdout
    )
    assert "0 damaged" in invoke("verify", store.uri).stdout
    invoke("logs", store.uri)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1")])
def test_figures_whose_requests_were_lost_after_they_were_computed_say_so(
    store: Store, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store_sweep(store, planned())
    before = CliRunner().invoke(cli, ["results", store.uri], standalone_mode=False)
    assert before.return_value == 0
    lost = sorted((tmp_path / "exp" / "data" / "requests").rglob("*.parquet"))[0]
    damage(lost)
    for command in (
        ["results", store.uri],
        ["best", store.uri, "--slo", "ttft<=1s", "--per", "deployment"],
    ):
        done = CliRunner().invoke(cli, command, standalone_mode=False)
        assert done.return_value == 3
        assert lost.name in done.stderr
        assert "computed earlier" in done.stderr
        if command[0] == "results":
            assert done.stdout == before.stdout
    assert Store.open(store.uri, "exp").winners().keys() < {
        one.measurement_id for one in store.commits()
    }


def test_a_level_that_was_added_leaves_the_others_current(store: Store) -> None:
    store_sweep(store, planned())
    store_sweep(store, planned(levels=[2, 4]))
    assert levels(store) == ([2, 4, 2, 4], [])


def test_experiments_of_one_root_never_share_a_table(store: Store) -> None:
    store_sweep(store, planned())
    other = Store.open(store.uri, "other")
    store_sweep(other, planned(name="other", tokens=64), tokens=64)
    found = json.loads(invoke("best", store.uri, "--per", "deployment", "--format", "json").stdout)[
        "comparisons"
    ]
    assert [(one["experiment"], one["slo_name"], len(one["ranking"])) for one in found] == [
        ("exp", "interactive", 2),
        ("exp", "tight", 0),
        ("other", "interactive", 2),
        ("other", "tight", 0),
    ]
    text = invoke("results", store.uri).stdout
    assert "chat of exp: some-org/m on cpu\n" in text
    assert "chat of other: some-org/m on cpu" in text
    assert "chat of other" not in invoke("results", store.uri, "--experiment", "exp").stdout


def test_a_plan_of_another_version_counts_if_its_ids_occur(
    store: Store,
) -> None:
    store_sweep(store, planned())
    old = planned(tokens=64).to_json().replace('"program_version": "', '"program_version": "0.')
    store.write_plan(old)
    assert levels(store) == ([], [2, 2]), "it asks for 64 tokens, whichever version wrote that"
    assert [slo.name for slo in StoredExperiment(store).slos] == ["interactive", "tight"]
    done = invoke("best", store.uri, "--slo", "tight", status=3)  # all is superseded
    assert "version 0.0.1.0 wrote its plan.json" in done.stderr
    store.write_plan(re.sub(r'"id": "\w+"', '"id": "x"', old))  # a version that made other ids
    assert levels(store) == ([2, 2], [])
    assert (
        "this version cannot read its plan.json"
        in invoke("best", store.uri, "--slo", "tight").stderr
    )


def test_labels_and_prices_are_those_of_the_plan(store: Store) -> None:
    store_sweep(store, planned())
    store.write_plan(store.plan().replace('"label": "emulator seqs=8"', '"label": "renamed"'))  # type: ignore[union-attr]
    found = {one.deployment.label for one in StoredExperiment(store).points().current}
    assert found == {"renamed", "emulator seqs=16"}


def test_notes_on_valid_points_are_marked_in_the_table(
    store: Store,
) -> None:
    store_sweep(store, planned(), validity_reasons=["12.0% of prompt tokens came from the cache"])
    shown = invoke("results", store.uri).stdout
    assert shown.count("valid [1]") == 2
    assert "[1] 12.0% of prompt tokens came from the cache" in shown


def test_answers_of_launches_are_not_looked_for_where_all_is_emulated(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_sweep(store, planned(), emulated=True)
    monkeypatch.delattr("orchestrator.plan.current.agreements")
    assert {one.agreement for one in StoredExperiment(store).points().current} == {MADE_UP}


def test_agreement_stands_beside_the_speed_with_its_n_and_its_reference(store: Store) -> None:
    plan = planned()
    store_sweep(store, plan)
    assert "agree" not in invoke("results", store.uri).stdout
    for deployment, ids in zip(plan.deployments, ((1, 2, 3, 4), (1, 2, 9, 4)), strict=True):
        launch = launch_row(deployment, plan.name, 1)
        answer = AnswerRow(
            launch_id=launch.launch_id,
            deployment_id=deployment.id,
            prompt_index=0,
            replica=0,
            api="/v1/completions",
            prompt="a",
            text="b",
            token_ids=ids,
        )
        commit_launch(store, deployment, launch, answers=[answer])
    (comparison, *_) = json.loads(invoke("best", store.uri, "--format", "json").stdout)[
        "comparisons"
    ]
    for rows in (
        json.loads(invoke("results", store.uri, "--format", "json").stdout),
        comparison["ranking"],
    ):
        found = {one["agreement_n"]: (one["agreement"], one["agreement_note"]) for one in rows}
        assert found == {0: (None, "it is the reference"), 4: (0.5, None)}
        assert {one["agreement_reference"] for one in rows} == {plan.deployments[0].label}
    for command in ("results", "best"):
        shown = invoke(command, store.uri).stdout
        assert all(
            part in shown
            for part in ("ref.", "0.500", "n=4", f"of {plan.deployments[0].label}, fixed prompts")
        )


def test_capacities_that_were_searched_stand_in_results_and_best_for_any_limits(
    store: Store,
) -> None:
    plan = make_plan(
        parse_experiment(EXPERIMENT.format(**VALUES).replace("levels: {concurrency: [2]}", SEARCH))
    )
    store.write_plan(plan.to_json())
    deployment, load = plan.deployments[0].id, plan.loads[0]
    for level, ttft_ms, times in ((8, 100, 24), (9, 300, 3)):
        point = plan.point(deployment, load, Level(control="concurrency", value=level))
        for repeat in range(times):
            store_attempt(store, plan, point, repeat, ttft_ms, tokens=8)
    shown = CliRunner().invoke(cli, ["results", store.uri]).output
    interactive, tight = shown.split("capacity for chat of exp under ")[1:]
    # what holds, its bounds, the estimate with its interval, the safe load, how the search ended
    shown_cells = interactive.split("seqs=8")[1].split()
    assert shown_cells[:8] == ["8", "in", "flight", "8-9", "8", "7-8", "8", "cliff"]
    assert tight.split("seqs=8")[1].split()[:4] == ["-", "0-8", "budget", "-"]
    answer = json.loads(
        CliRunner()
        .invoke(cli, ["best", store.uri, "--slo", "interactive", "--format", "json"])
        .output
    )
    assert answer["comparisons"][0]["ranking"][0]["capacity"] == {
        "claim": 8,
        "low": 8,
        "high": 9,
        "status": "cliff",
        "estimate": 8,
        "estimate.lower": 7,
        "estimate.upper": 8,
        "safe": 8,
    }
    listed = json.loads(CliRunner().invoke(cli, ["results", store.uri, "--format", "json"]).output)
    listed = {one["slo"]["name"]: one for one in listed if one["row"] == "capacity"}
    known = [
        listed["interactive"][name]
        for name in ("claim", "low", "high", "status", "claim_per_gpu", "claim_per_usd")
    ]
    assert known == [8, 8, 9, "cliff", 8, None]
    assert [(one["level"], one["verdict"]) for one in listed["tight"]["levels"]] == [
        (8, "fails"),
        (9, "fails"),
    ]
    lines = CliRunner().invoke(cli, ["results", store.uri, "--format", "csv"]).output.splitlines()
    assert sum(line.startswith("capacity,") for line in lines) == len(listed) == 2
    other = ["best", store.uri, "--slo", "ttft_p90<=400ms", "--format", "json"]
    found = json.loads(CliRunner().invoke(cli, other).output)["comparisons"][0]
    assert found["ranking"][0]["capacity"]["claim"] == 8, (
        "9 holds these limits, but its 300 requests are too few to show that and to confirm it"
    )
    assert found["ranking"][0]["capacity"]["high"] is None
    assert not found["certain"]


def first_answer(store: Store) -> list[Comparison]:
    """The rankings under the first SLO of the file."""
    experiment = StoredExperiment(store)
    slo = experiment.slos[0]
    return experiment.comparisons(experiment.points(slo), slo)


def test_the_advice_to_run_again_is_a_command_for_spoilt_points(store: Store) -> None:
    store_sweep(store, planned(), validity="disturbed")
    (comparison, *_) = first_answer(store)
    command = shlex.join(
        ["orchestrator", "run", f"{store.uri}/exp/plan.json", "--results", store.uri]
    )
    assert any(text.endswith(command) for text in remedy_texts(comparison))
    for attempt_id in ("b", "c"):
        for point in planned().points:
            store_attempt(store, planned(), point, validity="disturbed", attempt_id=attempt_id)
    (comparison, *_) = first_answer(store)
    assert any(text.endswith(f"{command} --again 3") for text in remedy_texts(comparison))


def test_commands_name_a_folder_with_a_quote_as_a_shell_reads_it(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "bob's runs"), "exp")
    experiment = StoredExperiment(store)
    plan = f"{store.uri}/exp/plan.json"
    command = ["orchestrator", "run", plan, "--results", store.uri, "--again", "3"]
    assert shlex.split(experiment.run_command(3)) == command
    simulating = ["orchestrator", "simulate", plan, "--results", store.uri]
    assert shlex.split(experiment.run_command(3, simulated=True)) == simulating


def test_at_other_prices_a_ranking_is_not_the_plans(store: Store) -> None:
    plan = planned()
    loads = tuple(load.model_copy(update={"objective": "usd"}) for load in plan.loads)
    store_sweep(store, plan.model_copy(update={"loads": loads}))
    (comparison, *_) = first_answer(store)
    assert comparison.per == "usd"
    assert StoredExperiment(store).is_of_plan(comparison)
    assert not StoredExperiment(store, {"cpu": 2.0}).is_of_plan(comparison)


def test_what_a_shortlist_left_out_is_counted_and_what_was_measured_of_it_stays(
    tmp_path: Path,
) -> None:
    plan = planned()
    first, second = plan.deployments
    record = PredictedShortlist(
        size=1, source="plan --predict", considered="", of=2, listed=1, candidates=2
    )
    without_second = plan.with_deployments(
        [first, second.model_copy(update={"left_out": LeftOut(why="no_room")})]
    ).model_copy(update={"shortlist": record})
    store = Store.open(str(tmp_path), plan.name)
    store_sweep(store, without_second)
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos[:1])
    (comparison,) = experiment.comparisons(points, experiment.slos[0])
    assert comparison.shortlisted == Shortlisted(1, 2)
    assert verdict_text(comparison).startswith("not certain among 1 of 2: ")

    store_sweep(store, plan)
    store.write_plan(without_second.to_json())
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos[:1])
    (comparison,) = experiment.comparisons(points, experiment.slos[0])
    assert len(comparison.ranking) == 2
    assert comparison.shortlisted is None
