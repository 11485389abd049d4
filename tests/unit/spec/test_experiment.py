"""The whole file: what it means, and that all of its problems are said at once, with line and
nearest name.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.combinations import FIELDS
from orchestrator.spec.document import problems_without_file
from orchestrator.spec.experiment import Experiment, ExperimentFile, parse_experiment
from orchestrator.spec.load import Level
from orchestrator.spec.settings import EngineSettings
from tests.unit.spec.files import GOOD, parsed, problem, problems, problems_in

BROKEN = """\
version: 1
nam: typo
name: llama
model: {id: org/model, revison: abc}
hardware:
  h100: {accelerator: H100-80GB, gpus_per_node: eight}
deployments:
  engine: vllm
  hardware: h10
  max_model_length: 8192
  enforce_eager: sometimes
  vary:
    - grid:
        tensor_parallel_size: [2, "4",
                               8, 0]
    - zip: {quantization: [null, fp8], kv_cache_dtype: [auto]}
    - cases:
        - {max_num_seqs: 128}
        - {max_num_seq: 512}
  exclude:
    - gpu > 16
workloads:
  - {name: chat, input_tokens: {lognormal: {mean: 150}}, output_tokens: 200}
  - {name: chat, kind: conversations, input_tokens: 0, output_tokens: 200, turn: 4}
load:
  levels: {request_rate: [1, -2]}
  duration: 60
  warmup: 10 parsecs
slos:
  interactive: {ttft: 500ms, tpot: 50, attainment: 1.5}
budget: {usd: lots}
repeats: 0
isolation: exclusive
"""


def test_every_problem_is_reported_at_once_with_its_line() -> None:
    assert problems_in(BROKEN) == [
        (2, "unknown key 'nam'"),
        (4, "unknown key 'revison'"),
        (6, "'gpus_per_node' must be a whole number, not 'eight'"),
        (9, "unknown hardware 'h10'"),
        (10, "unknown key 'max_model_length'"),
        (11, "'enforce_eager' must be true or false, not 'sometimes'"),
        (14, "'tensor_parallel_size' must be a whole number, not '4'"),
        (15, "'tensor_parallel_size' must be at least 1, not 0"),
        (
            16,
            "the lists of 'zip' must be of equal length: quantization has 2, kv_cache_dtype has 1",
        ),
        (19, "unknown key 'max_num_seq'"),
        (21, "in 'gpu > 16': unknown field 'gpu': it is neither a setting nor derived"),
        (23, "'sigma' is missing"),
        (24, "'input_tokens' must be at least 1, not 0"),
        (24, "unknown key 'turn'"),
        (26, "'request_rate' must be above 0, not -2"),
        (27, "'duration': 60 is not a duration with its unit, like 500ms, 60s or 2h"),
        (28, "'warmup': '10 parsecs' is not a duration with its unit, like 500ms, 60s or 2h"),
        (30, "'tpot': 50 is not a duration with its unit, like 500ms, 60s or 2h"),
        (30, "'attainment' must be at most 1, not 1.5"),
        (31, "'usd' must be a number, not 'lots'"),
        (32, "'repeats' must be at least 1, not 0"),
        (33, "'isolation' must be 'exclusive_node' or 'shared', not 'exclusive'"),
    ]


def test_the_nearest_name_is_the_hint() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(BROKEN, "x.yaml")
    hints = {reported.message: reported.hint for reported in caught.value.problems}
    assert hints["unknown key 'nam'"] == "did you mean 'name'?"
    assert hints["unknown key 'revison'"] == "did you mean 'revision'?"
    assert hints["unknown hardware 'h10'"] == "did you mean 'h100'?"
    assert hints["unknown key 'max_model_length'"] == "did you mean 'max_model_len'?"
    assert hints["unknown key 'turn'"] == "did you mean 'turns'?"


def test_a_problem_reads_as_file_line_message_hint() -> None:
    (reported,) = problems(repeat=3)
    assert str(reported) == "x.yaml:1: unknown key 'repeat' (did you mean 'repeats'?)"


def test_defaults_are_those_of_the_documentation() -> None:
    spec = parsed().spec
    assert (spec.repeats, spec.seed, spec.clients, spec.isolation) == (1, 0, None, "exclusive_node")
    assert (spec.load.warmup_s, spec.load.request_timeout_s, spec.load.drain_timeout_s) == (
        None,
        600.0,
        None,
    )
    assert spec.load.arrivals.process == "poisson"


def test_levels_are_rates_and_then_concurrencies() -> None:
    load = parsed(load={"levels": {"concurrency": [8, 1], "request_rate": [0.5]}}).spec.load
    assert load.points() == [
        Level(control="request_rate", value=0.5),
        Level(control="concurrency", value=8),
        Level(control="concurrency", value=1),
    ]


def test_slos_and_hardware_carry_the_name_of_their_key() -> None:
    experiment = parsed(
        slos={"fast": {"ttft": "500ms"}}, hardware={"big": {"accelerator": "H100-80GB"}}
    )
    assert experiment.spec.slos["fast"].name == "fast"
    assert experiment.spec.slos["fast"].ttft == 0.5
    assert [
        (name, hardware_class.accelerator) for name, hardware_class in experiment.hardware.items()
    ] == [
        ("cpu", "cpu"),
        ("big", "H100-80GB"),
    ]


def test_a_model_may_be_given_by_its_name_alone() -> None:
    assert parsed(model="org/short").combinations[0].settings.model == "org/short"


def test_an_endpoint_needs_no_model_of_its_own() -> None:
    endpoint = {"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    assert parsed(model=None, deployments=endpoint).combinations[0].settings.model == "m"


def test_sizes_may_carry_units() -> None:
    deployments = {"engine": "vllm", "vary": [{"grid": {"kv_cache_memory_bytes": ["2GiB", 1024]}}]}
    sizes = [
        combination.settings.kv_cache_memory_bytes
        for combination in parsed(deployments=deployments).combinations
    ]
    assert sizes == [2 * 2**30, 1024]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "'version' must be 1, not 2"),
        ({"version": None}, "'version' is missing"),
        ({"name": "a/b"}, "'name'"),
        ({"name": 5}, "'name' must be text, not 5 (put it in quotes)"),
        (
            {"model": None},
            "no model is given (write model: {id: <hub name or folder>} at the top of the file)",
        ),
        ({"model": {}}, "'id' is missing"),
        ({"deployments": None}, "'deployments' must be a mapping with at least 'engine'"),
        ({"deployments": []}, "'deployments' must be a mapping with at least 'engine'"),
        ({"deployments": {}}, "'deployments' must be a mapping with at least 'engine'"),
        ({"deployments": {"max_num_seqs": 4}}, "'engine' is missing"),
        (
            {"deployments": {"engine": "vllm", "engine_version": True}},
            "'engine_version' must be text, not true",
        ),
        (
            {"deployments": {"engine": "vllm", "env": {"A": 1}}},
            "'A' must be text, not 1 (put it in quotes)",
        ),
        (
            {"deployments": {"engine": "vllm", "tensor_parallel_size": True}},
            "must be a whole number, not true",
        ),
        (
            {"deployments": {"engine": "vllm", "extra_args": {"--x": [{}]}}},
            "'--x' has a value of the wrong type",
        ),
        (
            {"deployments": {"engine": "vllm", "kv_cache_memory_bytes": "2 bags"}},
            "'kv_cache_memory_bytes': could not interpret byte unit: bags",
        ),
        (
            {
                "deployments": {
                    "engine": "vllm",
                    "speculative": {"metod": "ngram", "num_speculative_tokens": 2},
                }
            },
            "did you mean 'method'?",
        ),
        (
            {"workloads": []},
            "'workloads' is empty",
        ),
        ({"workloads": {}}, "'workloads' must be a list, not a mapping"),
        ({"workloads": GOOD["workloads"] * 2}, "two workloads are named 'chat'"),
        (
            {
                "workloads": [
                    {**GOOD["workloads"][0], "input_tokens": {"uniform": {"min": 9, "max": 3}}}
                ]
            },
            "max (3) is below min (9)",
        ),
        ({"load": None}, "'load' is missing"),
        ({"load": {}}, "'load' needs levels (give levels: {request_rate: [1, 2, 4]}"),
        ({"load": {"levels": {}}}, "'levels' is empty (give request_rate"),
        (
            {"load": {"levels": {"concurrency": []}}},
            "'concurrency' is empty",
        ),
        (
            {"load": {"levels": {"concurrency": [1.5]}}},
            "'concurrency' must be a whole number, not 1.5",
        ),
        (
            {"load": {"levels": {"concurrency": [4, 1, 4]}}},
            "concurrency 4 is given twice (use repeats",
        ),
        ({"load": {"levels": {"rate": [1]}}}, "unknown key 'rate'"),
        (
            {"load": {**GOOD["load"], "duration": "60s", "requests": 5}},
            "'duration' and 'requests' exclude each other",
        ),
        ({"load": {**GOOD["load"], "duration": 60.0}}, "60.0 is not a duration with its unit"),
        ({"load": {**GOOD["load"], "duration": "0s"}}, "'duration' must be above 0"),
        (
            {"load": {**GOOD["load"], "control": "request_rate"}},
            "'control: request_rate' does not agree with 'levels'",
        ),
        (
            {"slos": {"a": {}}},
            (
                "'a' has no limit (give at least one of ttft, tpot, e2e, itl_p99, normalized_ttft, "
                "reader)"
            ),
        ),
        ({"slos": {"a": {"ttft_p95": "5"}}}, "'ttft_p95': '5' is not a duration"),
        ({"slos": {"a": {"ttft_q95": "5s"}}}, "unknown key 'ttft_q95' (did you mean 'ttft_p95'?)"),
        ({"slos": {"a": {"ttft_p0": "5s"}}}, "unknown key 'ttft_p0'"),
        (
            {"slos": {"a": {"reader": "fast"}}},
            "'reader' must be 'silent', 'subvocal' or 'visual', not 'fast'",
        ),
        (
            {"slos": {"a": {"reader": "visual", "tpot": "9ms"}}},
            "'reader: visual' is a limit on tpot",
        ),
        (
            {"slos": {"a": {"ttft_p95": "5s", "attainment": 0.9}}},
            "'attainment' belongs to limits that each request",
        ),
        (
            {"slos": {"a": {"ttft": "1s", "name": "b"}}},
            "unknown key 'name' (its name is 'a' already)",
        ),
        ({"slos": {"a": {"tft": "1s", "e2e": "2s"}}}, "unknown key 'tft' (did you mean 'ttft'?)"),
        ({"hardware": {"a": {"gpu": 8}}}, "unknown key 'gpu'"),
        ({"hardware": ["a"]}, "'hardware' must be a mapping"),
        ({"seed": -1}, "'seed' must be at least 0, not -1"),
        ({"clients": 0}, "'clients' must be at least 1, not 0"),
        ({"max_clients": 0}, "'max_clients' must be at least 1, not 0"),
        ({"placement_timeout": 900}, "'placement_timeout': 900 is not a duration"),
        ({"storage_timeout": "0s"}, "'storage_timeout' must be above 0, not '0s'"),
        (
            {"load": {"levels": {"request_rate": [1]}, "first_level": 2}},
            "'first_level' is for searches (leave it out)",
        ),
        (
            {"load": {"search": "capacity", "control": "concurrency", "first_level": 1.5}},
            "'first_level': requests in flight are a whole number of at most 100,000, not 1.5",
        ),
        ({"budget": {"wall": 12}}, "'wall': 12 is not a duration"),
    ],
)
def test_each_mistake_is_one_problem(changes: dict[str, Any], message: str) -> None:
    content = {
        name: value
        for name, value in {**GOOD, **changes}.items()
        if not (name in changes and value is None)
    }
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps(content), "x.yaml")
    assert [message in str(reported) for reported in caught.value.problems] == [True], caught.value


def test_a_wrong_base_value_is_reported_once_for_the_whole_grid() -> None:
    vary = [{"grid": {"tensor_parallel_size": list(range(1, 101))}}]
    assert (
        problem(deployments={"engine": "vllm", "max_num_seqs": 0, "vary": vary})
        == "'max_num_seqs' must be at least 1, not 0"
    )


@pytest.mark.parametrize("text", ["- 1\n", "just text\n", "5\n"])
def test_a_file_that_is_no_mapping_is_one_problem(text: str) -> None:
    assert problems_in(text) == [(1, "an experiment must be a mapping (name: value)")]


def test_json_is_an_experiment_too() -> None:
    assert parse_experiment(json.dumps(GOOD, indent=2), "x.json").spec.name == "small"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab1s", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "engine",
                    "vary",
                    "grid",
                    "zip",
                    "cases",
                    "id",
                    "name",
                    "derive",
                    "exclude",
                    "nnodes",
                    "env",
                    "levels",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*ExperimentFile.model_fields, "x"]), JSON, max_size=4))
def test_any_mapping_is_an_experiment_or_problems(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ProblemsError):
        parse_experiment(json.dumps({**GOOD, **changes}), "x.yaml")


@given(st.dictionaries(st.sampled_from([*FIELDS, "vary", "derive", "exclude"]), JSON, max_size=4))
def test_any_deployment_is_combinations_or_problems(changes: dict[str, Any]) -> None:
    with contextlib.suppress(ProblemsError):
        parsed(deployments={"engine": "vllm", **changes})


@given(st.integers(0, len(BROKEN)), st.integers(0, 40), st.text(max_size=5))
def test_a_file_damaged_anywhere_is_an_experiment_or_problems(
    start: int, length: int, put: str
) -> None:
    with contextlib.suppress(ProblemsError):
        parse_experiment(BROKEN[:start] + put + BROKEN[start + length :], "x.yaml")


def test_every_start_has_a_repeat_of_its_own() -> None:
    assert parsed(repeats=3, starts=3).spec.starts == 3
    text = problem(repeats=2, starts=3)
    assert "3 starts share 2 repeats of each point" in text
    assert "give repeats: 3 or more" in text


def test_words_for_containers_are_a_list_in_a_file() -> None:
    image = {
        "engine": "vllm",
        "image": "i",
        "container_args": ["--ulimit", "memlock=-1"],
        "hardware": "h",
    }
    hardware = {"h": {"accelerator": "H100-80GB", "container_args": ["--device", "/dev/gdrdrv"]}}
    made = parsed(deployments=image, hardware=hardware)
    assert made.combinations[0].settings.container_args == ("--ulimit", "memlock=-1")
    with pytest.raises(ProblemsError, match="looks like a secret"):
        parsed(
            deployments=image | {"container_args": ["-e", "MY_TOKEN=abcdef123456"]},
            hardware=hardware,
        )


def test_an_experiment_may_be_made_of_records() -> None:
    settings = EngineSettings(engine="endpoint", url="http://h", model="m")
    experiment = Experiment.of_records(
        {"version": 1, "name": "x"}, settings, problems_without_file()
    )
    (combination,) = experiment.combinations
    assert combination.settings == settings
    assert combination.place("url") == ("deployments", "url")
    assert [engine.name for engine in experiment.engines] == ["endpoint"]
    assert experiment.spec.name == "x"
    assert experiment.folder == Path.cwd()


def test_records_that_were_refused_raise_their_problems() -> None:
    refused = problems_without_file()
    refused.add(("deployments", "url"), "the url is wrong")
    experiment = Experiment.of_records({"version": 1, "name": "x"}, None, refused)
    assert experiment.combinations == []
    with pytest.raises(ProblemsError, match="the url is wrong"):
        _ = experiment.spec


def test_records_are_checked_for_secrets_like_a_file() -> None:
    settings = EngineSettings(engine="endpoint", url="http://h", model="hf_" + "a1B2" * 9)
    with pytest.raises(ProblemsError, match="'model' looks like a secret"):
        _ = Experiment.of_records({}, settings, problems_without_file()).spec
