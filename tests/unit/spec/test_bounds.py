"""What a file may ask for at the most, refused before anything is built of it; and values that mean
nothing.
"""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.plan.make import make_plan
from orchestrator.spec.document import MOST_PROBLEMS, parse_document
from orchestrator.spec.experiment import examined, parse_experiment
from orchestrator.spec.load import MOST_REQUESTS, MOST_STEPS, parse_duration
from tests.unit.spec.files import GOOD, parsed, problem, problems, problems_in

DEVICES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def load(**keys: Any) -> dict[str, Any]:
    return {"levels": {"request_rate": [1]}, **keys}


def peak_of(**changes: Any) -> tuple[str, float]:
    """The only problem of a file, and the most memory that finding it took."""
    tracemalloc.start()
    try:
        return problem(**changes), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_huge_grid_is_refused_before_it_takes_memory() -> None:
    axes = {
        name: list(range(1, 1001))
        for name in ("max_num_seqs", "max_model_len", "max_num_batched_tokens")
    }
    text, peak = peak_of(deployments={"engine": "vllm", "vary": [{"grid": axes}]})
    assert text == "makes 1,000,000,000 combinations; at most 100,000 are allowed"
    assert peak < 20e6


def test_several_deployments_share_the_number_of_combinations() -> None:
    each: list[dict[str, Any]] = [
        {"engine": "vllm", "vary": [{"grid": {"max_num_seqs": list(range(start, start + 60_000))}}]}
        for start in (1, 100_001)
    ]
    assert problem(deployments=each) == "makes 60,000 combinations; at most 100,000 are allowed"


def bomb(letter: str, depth: int = 5) -> dict[str, str]:
    """Lists of 300 lists of 300 lists …"""
    names = ["1", *(f"{letter}{at}" for at in range(depth))]
    return {name: f"[{','.join([inner] * 300)}]" for inner, name in itertools.pairwise(names)}


@pytest.mark.parametrize(
    "derive",
    [
        bomb("a"),
        bomb("a") | bomb("b") | {"c": "a4 == b4"},
        bomb("a") | {"c": "1 + a4"},
        bomb("a") | {"c": "-a4"},
    ],
)
def test_lists_that_hold_one_another_are_bounded_as_they_are_made(derive: dict[str, str]) -> None:
    reported = problems(deployments={"engine": "vllm", "derive": derive})
    assert {entry.message.rpartition(": ")[2] for entry in reported[:1]} == {
        "it has more than 1,000 elements"
    }


def test_a_derived_value_is_bounded() -> None:
    many = {
        "engine": "vllm",
        "env": {f"A{index}": "b" for index in range(1000)},
        "derive": {"c": "env"},
    }
    assert "it has more than 1,000 elements" in problem(deployments=many)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            load(levels={"request_rate": [1e300]}),
            "1e+300 requests/s for 60 s are 6e+301 requests; a point may have",
        ),
        (
            load(levels={"request_rate": [2, 50_000]}, duration="100s", warmup="1s"),
            "50000 requests/s for 101 s are",
        ),
        (load(arrivals={"process": "ramp", "to": 1e6}), "500000 requests/s for 60 s are 3e+07"),
        (
            load(arrivals={"process": "steps", "steps": [[1e6, "1s"], [0, "9s"]]}),
            "100000 requests/s for 60 s are 6e",
        ),
        (
            load(arrivals={"process": "steps", "steps": [[1, "1us"]]}),
            "these steps would be repeated 6e+07 times",
        ),
        (
            load(arrivals={"process": "steps", "steps": [[0, "1s"]]}),
            "nothing is due in any of these steps",
        ),
        (load(arrivals={"process": "steps", "steps": [[1, "0s"]]}), "must be above 0"),
        (
            load(levels={"request_rate": [1e-9]}, requests=5),
            "5 requests at 1e-09 requests/s take longer than 1e+09 s",
        ),
        (load(requests=MOST_REQUESTS + 1), f"at most {MOST_REQUESTS}"),
        (load(levels={"concurrency": [100_001]}), "at most 100000"),
        (load(max_in_flight=100_001), "at most 100000"),
        (
            load(arrivals={"process": "gamma", "burstiness": 1e-300}),
            "at least 0.001",
        ),
    ],
)
def test_more_requests_than_a_client_holds_are_refused_with_their_number(
    changes: dict[str, Any], message: str
) -> None:
    assert message in problem(load=changes)


def test_the_most_that_is_allowed_is_allowed() -> None:
    assert parsed(
        load=load(levels={"request_rate": [MOST_REQUESTS / 50]}, duration="50s")
    ).combinations
    steps = {"process": "steps", "steps": [[1, f"{60 / MOST_STEPS}s"]]}
    assert parsed(load=load(arrivals=steps)).combinations
    bursts = {"process": "steps", "steps": [[0.1, "1h"], [50, "1s"]]}  # 11.4 requests/s on average
    assert parsed(
        load=load(levels={"request_rate": [100]}, arrivals=bursts, duration="24h")
    ).combinations


def test_more_measurements_than_a_store_takes_are_refused_with_their_product() -> None:
    vary = [{"grid": {"max_num_seqs": list(range(1, 1001))}}]
    changes = {"repeats": 100, "deployments": {"engine": "vllm", "vary": vary}}
    experiment = parsed(**changes, load={"levels": {"concurrency": list(range(1, 12))}})
    with pytest.raises(
        ProblemsError,
        match=r"1,000 deployments x 11 levels x 100 repeats are 1,100,000 measurements",
    ):
        make_plan(experiment)
    assert make_plan(
        parsed(**changes, load={"levels": {"concurrency": list(range(1, 11))}})
    ).deployments


@pytest.mark.parametrize("name", [*DEVICES, "nnodes", "replicas"])
def test_a_footprint_has_a_limit(name: str) -> None:
    assert "at most 4096" in problem(deployments={"engine": "vllm", name: 10**12})


def test_a_footprint_is_judged_as_a_whole() -> None:
    plan = make_plan(parsed(deployments={"engine": "vllm", **dict.fromkeys(DEVICES, 4096)}))
    assert any(
        "needs 68,719,476,736 GPUs for all replicas" in reason
        for reason in plan.deployments[0].reasons
    )


@pytest.mark.parametrize("number", ["1e999", "-1e400"])
def test_a_number_that_is_not_finite_is_refused_with_its_line(number: str) -> None:
    reported = problems_in(f"a: 1\nb: [{number}]\n")
    assert [message for line, message in reported if line == 2] == [
        f"{number} is too large a number"
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("repeats: 1e999", "1e999 is too large a number"),
        ("budget: {usd: -1e999}", "-1e999 is too large a number"),
        ("repeats: !int 3", "the tag '!int' is not allowed"),
        ('budget: "a\\0b"', "text holds control characters or halves of characters"),
        ("name: small", "key 'name' is given twice, on line 2 and on line 3"),
    ],
)
def test_an_unreadable_value_hides_no_other_problem_and_makes_none(line: str, message: str) -> None:
    rest = [
        json.dumps({name: GOOD[name]})[1:-1]
        for name in ("model", "deployments", "workloads", "load")
    ]
    file = "\n".join(["version: 1", "name: small", line, "sed: 3", *rest, "slos: {a: {ttft: 1x}}"])
    reported = problems_in(file)
    assert reported[0] == (3, message)
    assert [where for where, _ in reported[1:]] == [4, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"deployments": {"engine": "vllm", "quantization": "~root"}},
            "'quantization' cannot be '~root'",
        ),
        (
            {"deployments": {"engine": "vllm", "dtype": "float16; ls"}},
            "'dtype' cannot be 'float16; ls'",
        ),
        ({"hardware": {"a": {"accelerator": "-5s"}}}, "'accelerator' cannot be '-5s'"),
        (
            {"hardware": {"a": {"accelerator": "H100-80GB", "usd_per_gpu_hour": -1}}},
            "at least 0",
        ),
        ({"model": {"id": "two\nlines"}}, "'id': must be one line"),
        ({"model": {"id": "a/" + "é" * 128}}, "at most 255 bytes"),
        (
            {"deployments": {"engine": "vllm", "vary": [{"grid": None}]}},
            "must be one of grid, zip or cases",
        ),
        ({"workloads": [{**GOOD["workloads"][0], "name": "a\tb"}]}, "'name' cannot be 'a\\tb'"),
        ({"workloads": [{**GOOD["workloads"][0], "name": "n" * 101}]}, "'name' cannot be"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in problem(**changes)


@pytest.mark.parametrize("text", ["1e-9ns", "0.5ns", "1e-7s"])
@pytest.mark.parametrize("key", ["duration", "warmup", "request_timeout"])
def test_a_duration_that_no_clock_measures_is_refused(key: str, text: str) -> None:
    message = problem(load=load(**{key: text}))
    assert (
        message == f"{key!r}: {text!r} is shorter than 1e-06 s, the shortest duration that is not 0"
    )


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", ["1" * 900_000 + "!", "1" + " " * 900_000 + "!", " " * 900_000, "." * 900_000]
)
def test_a_duration_as_long_as_the_file_is_read_once(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


KEYS = [
    "sk_live_" + "a" * 24,
    "a1b2c3d4e5f60718293a4b5c",
    "4f" * 20,
    "zz99-" + "q7" * 10,
    "x y",
    "",
    "A" * 256,
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("at", ["api_key_env", "env", "prefill"])
def test_a_key_in_place_of_its_variable_is_refused_and_hidden(at: str, key: str) -> None:
    engines: dict[str, dict[str, Any]] = {
        "api_key_env": {"engine": "endpoint", "url": "http://h:1", "api_key_env": key},
        "env": {"engine": "vllm", "env": {key: "1"}},
        "prefill": {
            "engine": "vllm",
            "roles": {"prefill": {"env": {key: "1"}}, "decode": {}},
            "router": {"engine": "vllm_router"},
        },
    }
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps(GOOD | {"deployments": engines[at]}, indent=1), "x.yaml")
    assert all(
        "environment variable" in entry.message or "secret" in entry.message
        for entry in caught.value.problems
    )
    assert (len(key) < 4) or key not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["MY_KEY", "HF_HUB_OFFLINE", "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "my_key_2", "_"]
)
def test_the_name_of_a_variable_is_taken(name: str) -> None:
    assert parsed(deployments={"engine": "vllm", "env": {name: "1"}}).combinations
    assert parsed(
        deployments={"engine": "endpoint", "url": "http://h:1", "api_key_env": name}
    ).combinations


@pytest.mark.parametrize(
    "value", ["spot ", "!spot", "in(spot,ondemand)", "-spot", "s" * 64, "spöt", "spot\n"]
)
def test_a_label_that_no_node_can_have_is_refused_with_its_line(value: str) -> None:
    """An autoscaler would read an operator in it, and add nodes that the sweep never uses."""
    hardware = f"h: {{accelerator: H100-80GB, labels: {{\n  market: {json.dumps(value)}}}}}"
    rest = [json.dumps({name: each})[1:-1] for name, each in GOOD.items()]
    (reported,) = problems_in(f"hardware: {{{hardware}}}\n" + "\n".join(rest))
    allowed = "write up to 63 letters, digits, '-', '_' and '.'"
    assert reported == (2, f"'market': no node has a label like {value!r}: {allowed}")


@pytest.mark.parametrize(
    "key", ["mar ket", "", "!market", "ray.io/", "/market", "a_b!/market", f"{'a.' * 127}b/market"]
)
def test_a_label_whose_key_no_node_can_have_is_refused(key: str) -> None:
    assert "no node has a label" in problem(
        hardware={"h": {"accelerator": "H100-80GB", "labels": {key: "spot"}}}
    )


@pytest.mark.parametrize(
    "label",
    [
        ("market", "spot"),
        ("market", ""),
        ("ray.io/accelerator-type", "A100"),
        ("a.b-c/d_e", "9.x_y-Z"),
    ],
)
def test_a_label_that_a_node_can_have_is_taken(label: tuple[str, str]) -> None:
    assert parsed(
        hardware={"h": {"accelerator": "H100-80GB", "labels": dict([label])}}
    ).combinations


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "a\u202eb", "a\x9bb", "a\rb"])
@pytest.mark.parametrize("at", ["model", "key"])
def test_control_characters_are_refused_wherever_they_stand(text: str, at: str) -> None:
    changes: dict[str, Any] = {"model": text} if at == "model" else {"slos": {text: {"ttft": "1s"}}}
    (reported,) = problems(**changes)
    assert reported.message == "text holds control characters or halves of characters"
    assert reported.line == 1


def test_thirty_thousand_unknown_keys_give_a_bounded_answer() -> None:
    content = GOOD | {f"key{index}": 1 for index in range(30_000)}
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps(content), "x.yaml")
    assert len(caught.value.problems) == MOST_PROBLEMS + 1
    assert len(str(caught.value)) < 50_000


@pytest.mark.parametrize("at", range(50, 62))
def test_a_secret_is_never_shown_in_part_where_a_value_is_cut(at: int) -> None:
    content = GOOD | {"seed": "x" * (at - 20) + " hf_planted0123456789abcdefghij"}
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(json.dumps(content), "x.yaml")
    assert "hf_" not in str(caught.value)


def test_many_levels_are_compared_in_linear_time() -> None:
    rates = [index / 1000 for index in range(1, 20_001)]
    document = parse_document(
        json.dumps(GOOD | {"load": {"levels": {"request_rate": rates}}}), "x.yaml"
    )
    began = time.process_time()
    assert examined(document).parts["load"].levels.request_rate == rates
    assert time.process_time() - began < 2
