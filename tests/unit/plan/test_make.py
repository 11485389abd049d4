"""Experiment to plan: what is planned, what is not and why, points and measurements."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import ProblemsError
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.document import parse_document
from orchestrator.spec.experiment import examined
from orchestrator.workloads.content import ENGLISH
from tests.unit.plan.conftest import verdict
from tests.unit.plan.files import experiment, grid, measurements, planned, statuses
from tests.unit.spec.files import GOOD

H100 = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 2.0}}

pytestmark = pytest.mark.usefixtures("judged")


def only_problem(**changes: Any) -> tuple[int | None, str, str | None]:
    with pytest.raises(ProblemsError) as caught:
        planned(**changes)
    (found,) = caught.value.problems
    return found.line, found.message, found.hint


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


def test_two_names_make_no_two_workloads() -> None:
    workloads = [
        {"name": name, "input_tokens": 10, "output_tokens": 5} for name in ("short", "other")
    ]
    assert only_problem(workloads=workloads)[1] == "'other' asks for the same as 'short'"


def test_an_infinite_rate_needs_a_number_of_requests_and_goes_through_a_plan() -> None:
    plan = planned(load={"levels": {"request_rate": [2, "inf"]}, "requests": 50})
    again = Plan.from_json(plan.to_json())
    assert [point.level.value for point in again.points] == [2.0, float("inf")]
    assert [one.measurement_id for one in measurements(again)] == [
        one.measurement_id for one in measurements(plan)
    ]
    assert plan.points[1].load.estimated_s(plan.points[1].level) == 0.0
    assert (
        "all requests are due at once"
        in only_problem(load={"levels": {"request_rate": ["inf"]}})[1]
    )


def test_a_point_holds_all_that_the_load_says() -> None:
    load = {
        "levels": {"concurrency": [4]}, "requests": 50, "warmup": "2s", "max_in_flight": 3, "request_timeout": "9s",
        "drain_timeout": "8s",
    }  # fmt: skip
    (point,) = planned(load=load).points
    assert (point.load.requests, point.load.duration_s, point.load.warmup_s) == (50, None, 2.0)
    limits = point.load.max_in_flight, point.load.request_timeout_s, point.load.drain_timeout_s
    assert limits == (3, 9.0, 8.0)


def test_a_search_that_nobody_knows_is_a_problem_with_its_line_and_the_nearest_name() -> None:
    with pytest.raises(
        ProblemsError, match=r"x.yaml:\d+: unknown search 'level' \(did you mean 'levels'"
    ) as error:
        planned(load={"levels": {"concurrency": [4]}, "search": "level"})
    assert len(error.value.problems) == 1


def test_without_duration_or_requests_a_point_lasts_a_minute() -> None:
    assert {point.load.duration_s for point in planned().points} == {60.0}


def test_measurements_go_through_all_points_once_before_any_again() -> None:
    plan = planned(repeats=3)
    found = measurements(plan)
    assert [one.repeat for one in found] == [0, 0, 1, 1, 2, 2]
    assert [one.point_id for one in found] == [point.point_id for point in plan.points] * 3
    assert len({one.measurement_id for one in found}) == 6


def test_an_excluded_deployment_says_by_which_rule_and_has_no_points() -> None:
    plan = planned(
        deployments={**grid(tensor_parallel_size=[1, 2]), "exclude": ["tensor_parallel_size > 1"]}
    )
    assert statuses(plan) == {"vllm tp=1": "planned", "vllm tp=2": "excluded"}
    assert plan.deployments[1].reasons == ("by the rule: tensor_parallel_size > 1",)
    assert plan.points_of(plan.deployments[1].id) == []
    assert plan.runnable() == [plan.deployments[0]]


def test_what_the_engine_has_no_place_for_is_impossible() -> None:
    plan = planned(deployments=grid(max_input_len=[None, 100]))
    assert [one.status for one in plan.deployments] == ["planned", "impossible"]
    assert "max_input_len" in plan.deployments[1].reasons[0]


@pytest.mark.parametrize(
    ("settings", "nodes", "reason"),
    [
        (
            {"tensor_parallel_size": 16},
            None,
            "needs 16 GPUs on one node; a node of 'h100' has 8 (nnodes: 2 would spread it)",
        ),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 1, "needs 2 nodes; the cluster has 1"),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 2, None),
        ({"tensor_parallel_size": 8}, None, None),
        ({"tensor_parallel_size": 4, "nnodes": 3}, None, "3"),
    ],
)
def test_what_no_node_holds_is_impossible(
    settings: dict[str, Any], nodes: int | None, reason: str | None
) -> None:
    deployments = {"engine": "vllm", "hardware": "h100", **settings}
    (one,) = planned(hardware=H100, deployments=deployments, cluster_nodes=nodes).deployments
    assert one.status == ("impossible" if reason else "planned")
    if reason:
        assert reason in one.reasons[0]


def test_a_replica_larger_than_a_node_is_spread_by_itself_and_the_plan_says_so() -> None:
    sizes = {
        "engine": "vllm",
        "hardware": "h100",
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
    }
    (made,) = planned(hardware=H100, deployments=sizes).deployments
    assert (made.status, made.settings.nnodes) == ("planned", 2)
    assert "spread over 2 nodes automatically: a node has 8 devices" in made.reasons
    (asked,) = planned(hardware=H100, deployments=sizes | {"nnodes": 2}).deployments
    assert (asked.id, asked.reasons) == (made.id, ())
    (refused,) = planned(hardware=H100, deployments=sizes | {"nnodes": 1}).deployments
    assert refused.status == "impossible"


def test_predictions_are_of_the_command_that_runs(judged: Callable[..., None]) -> None:
    seen: list[tuple[int, int, int | None]] = []

    def look(settings: Any) -> Any:
        seen.append(
            (settings.max_num_seqs, settings.max_num_batched_tokens, settings.kv_cache_memory_bytes)
        )
        return verdict("fits")

    judged(look)
    cpu = {"engine": "vllm", "hardware": "cpu"}
    space = {**cpu, "env": {"VLLM_CPU_KVCACHE_SPACE": "2"}}
    plan = planned(
        hardware=H100,
        deployments=[{"engine": "vllm", "hardware": "h100", "max_num_seqs": 7}, cpu, space],
    )
    assert seen == [(7, 8192, None), (128, 2048, 1 << 30), (128, 2048, None)]
    assert [one.settings.max_num_batched_tokens for one in plan.deployments] == [None] * 3


def test_feasibility_decides_and_is_kept(judged: Callable[..., None]) -> None:
    judged(
        lambda settings: {
            1: verdict("impossible", "does not fit"),
            2: verdict("risky", "tight", kv_tokens=100),
            4: verdict("fits", kv_tokens=9000),
        }[settings.tensor_parallel_size]
    )
    plan = planned(deployments=grid(tensor_parallel_size=[1, 2, 4]))
    assert [(one.status, one.reasons, one.predicted) for one in plan.deployments] == [
        ("impossible", ("does not fit",), None),
        ("risky", ("tight",), {"kv_tokens": 100}),
        ("planned", (), {"kv_tokens": 9000}),
    ]
    assert [one.label for one in plan.runnable()] == ["vllm tp=4", "vllm tp=2"]


def test_a_workload_longer_than_the_model_is_not_measured() -> None:
    workloads = [
        {"name": "fits", "input_tokens": 100, "output_tokens": 20},
        {"name": "long", "input_tokens": 4000, "output_tokens": 97},
    ]
    plan = planned(deployments={"engine": "vllm", "max_model_len": 4096}, workloads=workloads)
    (one,) = plan.deployments
    assert one.status == "planned"
    assert one.reasons == (
        "workload 'long' needs at least 4,097 tokens a request, max_model_len is 4,096",
    )
    assert {point.workload.name for point in plan.points} == {"fits"}


def test_the_length_predicted_from_the_model_counts_where_none_is_given(
    judged: Callable[..., None],
) -> None:
    judged(lambda settings: verdict("fits", max_model_len=settings.max_model_len or 119))
    assert (
        planned(deployments=grid(max_model_len=[None, 120])).deployments[0].status == "impossible"
    )
    assert planned(deployments=grid(max_model_len=[None, 120])).deployments[1].status == "planned"


def test_when_no_workload_fits_the_deployment_is_impossible() -> None:
    workloads = [
        {
            "name": "talk",
            "kind": "conversations",
            "turns": 10,
            "input_tokens": 100,
            "output_tokens": 100,
        }
    ]
    plan = planned(deployments=grid(max_model_len=[1999, 2000]), workloads=workloads)
    assert [one.status for one in plan.deployments] == ["impossible", "planned"]


def test_when_some_requests_are_too_long_the_deployment_is_risky() -> None:
    workloads = [
        {
            "name": "mixed",
            "input_tokens": {"uniform": {"min": 10, "max": 5000}},
            "output_tokens": 100,
        }
    ]
    plan = planned(deployments={"engine": "vllm", "max_model_len": 4096}, workloads=workloads)
    assert plan.deployments[0].status == "risky"
    assert "up to 5,100 tokens" in plan.deployments[0].reasons[0]
    assert len(plan.points) == 2


def test_an_api_that_the_engine_has_not_is_impossible() -> None:
    workloads = [{"name": "chat", "input_tokens": 10, "output_tokens": 5, "api": "tgi"}]
    vllm, tgi = planned(
        workloads=workloads, deployments=[{"engine": "vllm"}, {"engine": "tgi"}]
    ).deployments
    assert (vllm.status, tgi.status) == ("impossible", "planned")
    assert vllm.reasons == ("workload 'chat' needs the API 'tgi'; vllm has chat, completions",)


def test_an_api_that_no_deployment_has_is_a_problem_with_the_nearest_name() -> None:
    workloads = [{"name": "chat", "input_tokens": 10, "output_tokens": 5, "api": "chatt"}]
    assert only_problem(workloads=workloads)[1:] == (
        "no deployment has the API 'chatt'",
        "did you mean 'chat'?",
    )


@pytest.mark.parametrize("api", ["completions", "chat", "tgi", "native"])
def test_a_server_that_already_runs_may_have_any_api(api: str) -> None:
    endpoint = {"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    workloads = [{"name": "w", "input_tokens": 10, "output_tokens": 5, "api": api}]
    assert planned(deployments=endpoint, workloads=workloads).deployments[0].status == "planned"


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


def test_planning_lets_go_of_what_it_has_planned() -> None:
    """Settings as the file has them are as large as the plan: 100,000 are 200 MB."""
    axes = grid(hardware=["h100"], tensor_parallel_size=[4, 8], pipeline_parallel_size=[1, 2])
    some = experiment(hardware=H100, deployments=axes)
    written = [weakref.ref(one.settings) for one in some.combinations]
    plan = make_plan(some)
    assert [one.settings.nnodes for one in plan.deployments] == [1, 1, 1, 2]
    assert some.combinations == []
    # the last was spread over nodes
    assert [one() is not None for one in written] == [True, True, True, False]


def test_equal_deployments_are_merged_with_a_note() -> None:
    plan = planned(deployments=grid(tensor_parallel_size=[2, 2, 1]))
    assert [one.label for one in plan.deployments] == ["vllm tp=2", "vllm tp=1"]
    assert plan.notes == ("1 combinations are equal to another one and are measured once",)


def test_of_equal_deployments_the_one_that_is_not_excluded_counts() -> None:
    first = {**grid(tensor_parallel_size=[1, 2]), "exclude": ["tensor_parallel_size == 2"]}
    plan = planned(deployments=[first, {"engine": "vllm", "tensor_parallel_size": 2}])
    assert [one.status for one in plan.deployments] == ["planned", "planned"]


def test_an_endpoint_needs_no_hardware_and_is_not_judged(judged: Callable[..., None]) -> None:
    judged(lambda settings: verdict("impossible", "would not fit"))
    plan = planned(
        deployments={"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    )
    (one,) = plan.deployments
    assert (one.status, one.hardware.name, one.devices) == ("planned", "none", 0)


def test_a_launched_engine_without_hardware_takes_any() -> None:
    assert planned().deployments[0].hardware.name == "any"


def test_cpu_is_built_in() -> None:
    (one,) = planned(
        deployments={"engine": "vllm", "hardware": "cpu", "tensor_parallel_size": 2}
    ).deployments
    assert one.hardware.is_cpu
    assert one.devices == 2


def test_names_that_nothing_answers_to_are_problems_with_their_line() -> None:
    assert only_problem(deployments={"engine": "vlm"}) == (
        1,
        "unknown engine 'vlm'",
        "did you mean 'vllm'?",
    )
    line, message, hint = only_problem(deployments={"engine": "endpoint", "served_model_name": "m"})
    assert (message, hint) == (
        "engine 'endpoint' needs the 'url' it runs at",
        "write url: http://host:port",
    )
    workload = {"name": "a", "kind": "randon", "input_tokens": 1, "output_tokens": 1}
    assert only_problem(workloads=[workload])[1:] == (
        "unknown workload kind 'randon'",
        "did you mean 'random'?",
    )
    load = {"levels": {"request_rate": [1]}, "arrivals": "poison"}
    assert "did you mean 'poisson'?" in only_problem(load=load)[1]


def test_arrivals_that_lack_a_field_are_a_problem() -> None:
    assert "'to'" in only_problem(load={"levels": {"request_rate": [1]}, "arrivals": "ramp"})[1]


def test_a_trace_is_found_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "arrivals.txt").write_text("0.0\n0.5\n1.25\n")
    load = {"arrivals": {"process": "trace", "trace": "arrivals.txt"}}
    (point,) = planned(tmp_path / "x.yaml", load=load).points
    assert point.load.arrivals.trace == str(tmp_path / "arrivals.txt")


@pytest.mark.parametrize(
    ("load", "turns", "rate"),
    [
        ({}, 1, 2 / 1.25),
        ({}, 3, 3 * 2 / 1.25),
        ({"levels": {"request_rate": [1.6]}}, 1, 1.6),
        ({"levels": {"request_rate": [1.59]}, "requests": 3}, 1, 1.59),
        ({"requests": 2}, 1, 2.0),
        ({"duration": "1s"}, 1, 2.0),
    ],
)
def test_the_level_of_a_trace_is_the_mean_rate_of_what_is_sent(
    load: dict[str, Any], turns: int, rate: float, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("0.0\n0.5\n1.25\n")
    load = {**load, "arrivals": {"process": "trace", "trace": "t.txt"}}
    workload = {"name": "w", "input_tokens": 1, "output_tokens": 1}
    if turns > 1:
        workload |= {"kind": "conversations", "turns": turns}
    (point,) = planned(tmp_path / "x.yaml", load=load, workloads=[workload]).points
    assert point.level.control == "request_rate"
    assert point.level.value == pytest.approx(rate)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (
            {"levels": {"request_rate": [5]}},
            "recorded arrivals have one rate, their own: 'chat' gets 1.6 requests/s on average",
        ),
        ({"search": "curve"}, "search 'curve' cannot change the rate of recorded arrivals"),
        (
            {"levels": {"concurrency": [1, 2], "request_rate": [1.6]}},
            "recorded arrivals are not used where requests are kept in flight",
        ),
        (
            {"levels": {"concurrency": [1, 2]}},
            "'arrivals' is for request_rate, and here all levels are concurrency",
        ),
    ],
)
def test_a_level_that_a_trace_does_not_have_is_refused(
    load: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_text("0.0\n0.5\n1.25\n")
    load |= {"arrivals": {"process": "trace", "trace": str(tmp_path / "t.txt")}}
    assert only_problem(load=load)[1] == message


@pytest.mark.parametrize(
    "load",
    [
        {"levels": {"concurrency": [1]}},
        {"levels": {"concurrency_per_gpu": [1]}},
        {"search": "capacity", "control": "concurrency"},
    ],
)
def test_arrivals_are_refused_where_no_level_has_a_rate(load: dict[str, Any]) -> None:
    slos = {"x": {"ttft": "1s", "attainment": 0.9}}
    assert only_problem(load={**load, "arrivals": "constant"}, slos=slos)[1] == (
        "'arrivals' is for request_rate, and here all levels are concurrency"
    )


RECORDED = {"name": "w", "kind": "file", "prompts": "p.jsonl", "output_tokens": "file"}


@pytest.mark.parametrize(
    ("deployment", "model"),
    [
        ({"engine": "endpoint", "url": "http://h:1"}, "acme/none"),
        ({"engine": "llama_cpp"}, "acme/none:Q4_K_M"),
    ],
)
def test_recorded_answers_without_a_tokenizer_to_count_them_are_refused(
    deployment: dict[str, Any], model: str, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    parts: dict[str, Any] = {
        "deployments": deployment,
        "model": model,
        "workloads": [RECORDED | {"prompts": str(tmp_path / "p.jsonl")}],
    }
    line, message, hint = only_problem(**parts)
    assert f"and there is none of {model} here" in message
    assert hint == "give 'tokenizer': a folder with tokenizer.json, or that file"
    (tmp_path / "tokenizer.json").write_text("{}")
    planned(**parts | {"model": {"id": model, "tokenizer": str(tmp_path)}})


MOONCAKE = "".join(
    f'{{"timestamp": {27 * at}, "input_length": 700, "output_length": 5, "hash_ids": [0, {at}]}}\n'
    for at in range(1, 5)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MOONCAKE, "looks like Mooncake's, whose times are milliseconds: give 'speed_up' 1000"),
        ("0\n90000\n180000\n", "would last 50.0 h for 3 requests; are its times milliseconds?"),
    ],
)
def test_milliseconds_are_not_taken_for_seconds(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    arrivals = {"process": "trace", "trace": str(tmp_path / "t.jsonl")}
    assert said in only_problem(load={"arrivals": arrivals})[1]
    for speed_up in (1, 1000):
        planned(load={"arrivals": {**arrivals, "speed_up": speed_up}, "requests": 3})


def test_prompts_that_cannot_be_read_are_a_problem_with_its_place() -> None:
    workload = {"name": "a", "kind": "file", "prompts": "nowhere.txt", "output_tokens": 1}
    assert "nowhere.txt' cannot be read: No such file" in only_problem(workloads=[workload])[1]
    unset = workload | {"prompts": "${NO_SUCH_FOLDER_AT_ALL}/p"}
    assert "NO_SUCH_FOLDER_AT_ALL" in only_problem(workloads=[unset])[1]


def test_a_variable_that_is_not_set_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    found = only_problem(model={"id": "${NO_SUCH_FOLDER}/model"})
    assert found[1] == "environment variable 'NO_SUCH_FOLDER' is not set"


def test_a_plan_carries_what_the_sweep_needs_of_the_experiment() -> None:
    plan: Plan = planned(
        slos={"fast": {"ttft": "1s"}},
        budget={"wall": "2h"},
        isolation="shared",
        seed=7,
        clients=3,
        repeats=2,
    )
    assert plan.name == "small"
    assert [slo.name for slo in plan.slos] == ["fast"]
    assert plan.budget is not None
    assert plan.budget.wall == 7200.0
    assert (plan.isolation, plan.seed, plan.clients, plan.repeats) == ("shared", 7, 3, 2)


def test_a_model_folder_without_a_tokenizer_is_found_before_an_engine_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "m").mkdir()
    (one,) = planned(tmp_path / "x.yaml", model="./m").deployments
    assert one.status == "impossible"
    assert one.reasons == (
        (
            f"{tmp_path}/m has no tokenizer.json, and prompts are made with it; give the setting "
            "'tokenizer'"
        ),
    )
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    assert planned(tmp_path / "x.yaml", model="./m").deployments[0].status == "planned"
    (elsewhere,) = planned(tmp_path / "x.yaml", model="/only/on/the/nodes").deployments
    assert elsewhere.status == "planned"
    assert elsewhere.reasons[0].startswith("/only/on/the/nodes is not on this machine")


def test_requests_have_their_own_timeout_to_end_after_the_last_arrival() -> None:
    load = {"levels": {"concurrency": [4]}, "request_timeout": "9s"}
    assert planned(load=load).points[0].load.drain_timeout_s == 9.0
    assert planned(load=load | {"drain_timeout": "2s"}).points[0].load.drain_timeout_s == 2.0


def test_a_reader_is_a_limit_on_time_per_token_of_the_tokenizer_that_makes_the_most_of_a_word(
    tmp_path: Path,
) -> None:
    for name, pattern in (("words", "[^ ]+"), ("letters", "[^ ]")):
        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(
            Regex(f"{pattern}|[ ]+"), "removed", invert=True
        )
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
    slos = {"reading": {"reader": "silent", "ttft_p95": "1s"}}
    both = [
        {"engine": "vllm", "model": "m", "tokenizer": f"./{name}"} for name in ("words", "letters")
    ]
    few, many = (
        planned(tmp_path / "x.yaml", deployments=some, slos=slos) for some in (both[:1], both)
    )
    words = len(ENGLISH.split())
    tokens = [60 / 238 / plan.slos[0].tpot for plan in (few, many) if plan.slos[0].tpot]
    assert tokens == pytest.approx(
        [len(re.findall("[^ ]+|[ ]+", ENGLISH)) / words, len(ENGLISH) / words], rel=0.1
    )
    assert "238 words per minute" in many.notes[-1] and str(tmp_path / "letters") in many.notes[-1]
    unknown = planned(slos=slos)
    assert unknown.slos[0].tpot == pytest.approx(60 / 238 * 3 / 4)
    assert Plan.from_json(many.to_json()).slos == many.slos
