"""Experiment to plan: what is planned, what is not and why, points and measurements."""

from __future__ import annotations

import json
import os
import weakref
from typing import Any

import pytest

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.plan.make import load_plan, make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.document import parse_document
from orchestrator.spec.experiment import examined
from orchestrator.spec.load import PRESETS
from tests.unit.plan.files import (
    H100,
    experiment,
    grid,
    measurements,
    only_problem,
    planned,
)
from tests.unit.spec.files import GOOD

pytestmark = pytest.mark.usefixtures("judged")


def test_every_deployment_gets_every_workload_at_every_level() -> None:
    workloads = [
        {"name": name, "input_tokens": 10, "output_tokens": len(name)}
        for name in ("short", "others")
    ]
    plan = planned(
        deployments=grid(tensor_parallel_size=[1, 2]),
        workloads=workloads,
        load={"levels": {"request_rate": [1, 2, 4]}},
    )
    assert len(plan.points) == 2 * 2 * 3
    first = plan.points_of(plan.deployments[0].id)
    assert [(point.workload.name, point.level.value) for point in first] == [
        ("short", 1.0), ("short", 2.0), ("short", 4.0), ("others", 1.0), ("others", 2.0), ("others", 4.0),
    ]  # fmt: skip
    assert len({point.point_id for point in plan.points}) == 12


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_experiment_and_a_frozen_plan_may_come_through_a_pipe(is_frozen: bool) -> None:
    plan = planned()
    text = plan.to_json() if is_frozen else json.dumps(GOOD)
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as pipe:
        pipe.write(text)
    with open(read_end, "rb"):
        assert load_plan(f"/dev/fd/{read_end}").deployments == plan.deployments


def test_an_infinite_rate_needs_a_number_of_requests() -> None:
    plan = planned(load={"levels": {"request_rate": [2, "inf"]}, "requests": 50})
    again = Plan.from_json(plan.to_json())
    assert [point.level.value for point in again.points] == [2.0, float("inf")]
    assert [measurement.measurement_id for measurement in measurements(again)] == [
        measurement.measurement_id for measurement in measurements(plan)
    ]
    assert plan.points[1].load.estimated_s(plan.points[1].level) == 0.0
    problem = only_problem(load={"levels": {"request_rate": ["inf"]}})
    assert "all requests are due at once" in problem.message


def test_measurements_go_through_all_points_once_before_any_again() -> None:
    plan = planned(repeats=3)
    found = measurements(plan)
    assert [one.repeat for one in found] == [0, 0, 1, 1, 2, 2]
    assert [one.point_id for one in found] == [point.point_id for point in plan.points] * 3
    assert len({one.measurement_id for one in found}) == 6


def test_a_problem_of_the_file_hides_no_name_that_nothing_answers_to() -> None:
    """Unknown keys, engines, arrivals and search at once, in deployments with other problems too,
    of a file on disk.
    """
    content = {
        **GOOD,
        "repeat": 2,
        "deployments": [
            {"engine": "vlm", "max_model_length": 3, "max_num_seqs": "many"},
            {"engine": "vllm", "router": {"engine": "vllm_ruter", "env": 3}},
        ],
        "load": {**GOOD["load"], "arrivals": "poison", "search": "level"},
    }
    with pytest.raises(ProblemsError) as caught:
        make_plan(examined(parse_document(json.dumps(content), "x.yaml")))
    messages = [problem.message.split(";")[0] for problem in caught.value.problems]
    assert sorted(messages) == [
        "'env' must be a mapping (name: value), not 3",
        "'max_num_seqs' must be a whole number, not 'many'",
        "unknown arrival process 'poison'",
        "unknown engine 'vlm'",
        "unknown key 'max_model_length'",
        "unknown key 'repeat'",
        "unknown router 'vllm_ruter'",
        "unknown search 'level'",
    ]


def test_planning_frees_combinations_as_it_goes() -> None:
    """Settings as the file has them are as large as the plan: 100,000 are 200 MB."""
    axes = grid(hardware=["h100"], tensor_parallel_size=[4, 8], pipeline_parallel_size=[1, 2])
    some = experiment(hardware=H100, deployments=axes)
    written = [weakref.ref(combination.settings) for combination in some.combinations]
    plan = make_plan(some)
    assert [deployment.settings.nnodes for deployment in plan.deployments] == [1, 1, 1, 2]
    assert some.combinations == []
    # the last was spread over nodes
    assert [one() is not None for one in written] == [True, True, True, False]


def test_names_that_nothing_answers_to_are_problems_with_their_line() -> None:
    engine = only_problem(deployments={"engine": "vlm"})
    assert engine == Problem("unknown engine 'vlm'", "x.yaml", 1, "did you mean 'vllm'?")
    url = only_problem(deployments={"engine": "endpoint", "served_model_name": "m"})
    assert url.message == "engine 'endpoint' needs the 'url' it runs at"
    assert url.hint == "write url: http://host:port"
    workload = {"name": "a", "kind": "randon", "input_tokens": 1, "output_tokens": 1}
    kind = only_problem(workloads=[workload])
    assert kind.message == "unknown workload kind 'randon'"
    assert kind.hint == "did you mean 'random'?"
    load = {"levels": {"request_rate": [1]}, "arrivals": "poison"}
    assert "did you mean 'poisson'?" in only_problem(load=load).message


def test_a_plan_carries_what_the_sweep_needs_of_the_experiment() -> None:
    plan: Plan = planned(
        slos={"fast": {"ttft": "1s"}},
        budget={"wall": "2h"},
        isolation="shared",
        seed=7,
        clients=3,
        max_clients=8,
        placement_timeout="1h",
        storage_timeout="90s",
        repeats=2,
    )
    assert plan.name == "small"
    assert [slo.name for slo in plan.slos] == ["fast"]
    assert plan.budget is not None
    assert plan.budget.wall == 7200.0
    assert (plan.isolation, plan.seed, plan.clients, plan.repeats) == ("shared", 7, 3, 2)
    assert (plan.max_clients, plan.placement_timeout, plan.storage_timeout) == (8, 3600.0, 90.0)
    assert Plan.from_json(plan.to_json()) == plan


def office(rag_weight: float) -> list[dict[str, Any]]:
    """Workloads of chats with some retrieval among them."""
    lengths = {"input_tokens": 10, "output_tokens": 10}
    weights = [{"weight": 1, "workload": "chat"}, {"weight": rag_weight, "workload": "rag"}]
    return [
        {"name": "chat", **lengths},
        {"name": "rag", **lengths},
        {"name": "office", "kind": "mix", "parts": weights},
    ]


LIMITS_OF_PARTS = {"both": {"parts": {"chat": {"ttft": "1s"}, "rag": {"ttft": "2s"}}}}


@pytest.mark.parametrize(
    ("control", "probe"),
    [
        ("request_rate", "a probe of 5 min at 16 requests/s has about 96 requests of it"),
        ("concurrency", "a probe sees one of them in 50 requests"),
    ],
)
def test_a_search_with_limits_on_a_rare_part_says_how_few_of_its_requests_it_gets(
    control: str, probe: str
) -> None:
    load = {"search": "capacity", "control": control, "duration": "5m"}
    plan = planned(workloads=office(rag_weight=1 / 49), load=load, slos=LIMITS_OF_PARTS)
    (note,) = [note for note in plan.notes if "has limits" in note]
    assert note.startswith(f"'office': part 'rag' has limits and is 2.0% of requests: {probe}, ")


def test_frequent_parts_and_levels_need_no_such_note() -> None:
    search = {"search": "capacity", "control": "request_rate"}
    levels = {"levels": {"request_rate": [4]}}
    frequent = planned(workloads=office(rag_weight=1), load=search, slos=LIMITS_OF_PARTS)
    at_levels = planned(workloads=office(rag_weight=1 / 49), load=levels, slos=LIMITS_OF_PARTS)
    assert not any("has limits" in note for note in frequent.notes + at_levels.notes)


def test_the_source_of_the_numbers_of_a_preset_is_noted() -> None:
    docs = {"name": "docs", "preset": "rag", "output_tokens": 300}
    talk = {"name": "talk", "preset": "chat", "api": "completions"}
    parts = [{"workload": "docs"}, {"workload": "talk"}]
    both = {"name": "both", "kind": "mix", "parts": parts}
    (of_docs, of_talk) = [
        note
        for note in planned(workloads=[docs, talk, both]).notes
        if "its numbers are from" in note
    ]
    source = PRESETS["rag"].source
    assert of_docs == (
        f"'docs': its numbers are from {source}; not from there, but the file's own: output_tokens"
    )
    assert of_talk == f"'talk': its numbers are from {PRESETS['chat'].source}"
    assert not any("its numbers are from" in note for note in planned().notes)


@pytest.mark.parametrize(
    ("levels", "notes"), [({"request_rate": [4]}, 1), ({"concurrency": [4]}, 0)]
)
def test_sessions_that_begin_anywhere_are_noted_where_that_has_no_effect(
    levels: dict[str, Any], notes: int
) -> None:
    talk = {"kind": "conversations", "turns": 3, "start": "anywhere"}
    workload = {"name": "talk", "input_tokens": 10, "output_tokens": 10, **talk}
    plan = planned(workloads=[workload], load={"levels": levels})
    assert sum("start: anywhere of 'talk' has no effect" in note for note in plan.notes) == notes


def test_random_prompts_are_noted_where_deployments_have_drafts() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
    plan = planned(deployments=grid(speculative=[None, drafts]))
    assert sum("random text says nothing of drafts" in note for note in plan.notes) == 1
    assert not any("drafts" in note for note in planned().notes)
