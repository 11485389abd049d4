"""What deployments are predicted to hold, what is not predicted and why, and the known error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.base.errors import ProblemsError
from orchestrator.catalog.accelerators import find
from orchestrator.emulator.profile import typical
from orchestrator.plan.order import predicted_share
from orchestrator.plan.predictions import with_predictions
from orchestrator.predict import predictor
from orchestrator.predict.predictor import LADDER, ErrorEstimate
from orchestrator.report.predictions import predictions_text
from orchestrator.spec.assumptions import Assumptions
from tests.unit.catalog.test_drafts import EAGLE3
from tests.unit.emulator.test_step_tables import Kernels
from tests.unit.plan.files import planned
from tests.unit.plan.predicted import (
    EXPERIMENT,
    capacity,
    deployments,
    predicted_plan,
    prediction_of,
    reasons_not_predicted,
)

PUBLISHED_MODELS = Path(__file__).parents[1] / "plan" / "published_models.json"


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_deployments_that_differ_in_the_longest_request_alone_are_predicted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Mock(wraps=predictor.Rank)
    monkeypatch.setattr(predictor, "Rank", made)
    lengths = {
        "vary": [{"grid": {"max_model_len": [4096, 8192, 16384], "max_num_seqs": [64, 128]}}]
    }
    plan = predicted_plan(deployments=deployments(**lengths))
    assert made.call_count == 2
    capacities = {
        deployment.settings.max_num_seqs: capacity(deployment) for deployment in plan.deployments
    }
    assert all(
        capacity(deployment) == capacities[deployment.settings.max_num_seqs]
        for deployment in plan.deployments
    )


def test_a_price_makes_dollars_of_it_and_none_makes_none() -> None:
    free, priced = (
        predicted_plan(),
        predicted_plan(
            hardware={
                "h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0}
            }
        ),
    )
    assert {capacity(deployment)["usd_per_million_tokens"] for deployment in free.deployments} == {
        None
    }
    for one in priced.deployments:
        found = capacity(one)
        assert found["usd_per_million_tokens"] == pytest.approx(
            3.0 / 3600 / found["output_throughput_per_gpu"] * 1e6
        )


def test_a_closed_loop_and_a_search_are_predicted_in_their_own_unit() -> None:
    (one, *_) = predicted_plan(load={"levels": {"concurrency": [1, 8]}}).deployments
    found = capacity(one)
    assert found["control"] == "concurrency" and found["level"] == int(found["level"]) > 8
    assert [row["level"] for row in prediction_of(one)["levels"]] == [1, 8]


def test_twice_the_replicas_hold_twice_as_much() -> None:
    one, two = predicted_plan(
        deployments=deployments(vary=[{"grid": {"replicas": [1, 2]}}])
    ).deployments
    assert capacity(two)["level"] == pytest.approx(2 * capacity(one)["level"], rel=1e-6)
    assert capacity(two)["output_throughput_per_gpu"] == pytest.approx(
        capacity(one)["output_throughput_per_gpu"]
    )


def test_a_shared_prefix_is_computed_once_where_prefixes_are_cached() -> None:
    shared = [{**EXPERIMENT["workloads"][0], "shared_prefix_tokens": 3000}]
    vary = [{"grid": {"enable_prefix_caching": [True, False]}}]
    cached, plain = predicted_plan(workloads=shared, deployments=deployments(vary=vary)).deployments
    assert capacity(cached)["level"] > 1.5 * capacity(plain)["level"]


def test_limits_on_percentiles_and_on_prompt_tokens_are_held_against_too() -> None:
    limits = {
        "joint": {"ttft": "60ms"},
        "share": {"ttft_p50": "60ms"},
        "token": {"normalized_ttft": "100us"},
    }
    (one, *_) = predicted_plan(slos=limits).deployments
    joint, share, token = (capacity(one, name)["level"] for name in limits)
    assert share > joint > 0  # half of the requests, where 95 % must be
    assert token == pytest.approx(joint, rel=0.05)  # all prompts have 600 tokens


def test_limits_that_nothing_meets_are_a_capacity_of_none_at_all() -> None:
    plan = predicted_plan(slos={"never": {"ttft": "1us"}})
    assert {capacity(deployment, "never")["level"] for deployment in plan.deployments} == {0.0}
    assert "none holds" in "\n".join(predictions_text(plan))
    assert set(predicted_share(plan).values()) == {0.0}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"deployments": {"engine": "endpoint", "url": "http://127.0.0.1:1"}}, "it runs already"),
        ({"model": "nobody/knows-this"}, "nothing is known of nobody/knows-this"),
        ({"deployments": deployments(extra_args={"-dcp": 2})}, "the model has no term for -dcp"),
        (
            {"hardware": {"h100": {"accelerator": "Abacus 9000", "memory_gb": 80}}},
            "the catalogue has no accelerator 'Abacus 9000'",
        ),
        ({"deployments": {"engine": "vllm", "hardware": "cpu"}}, "no figures of this CPU"),
        (
            {"deployments": deployments(engine="tgi", vary=[])},
            "the model was never compared with tgi on H100-80GB",
        ),
        (
            {
                "deployments": deployments(
                    speculative={"method": "ngram", "num_speculative_tokens": 3}
                )
            },
            "speculative",
        ),
        (
            {"load": {"levels": {"request_rate": [1]}, "arrivals": {"process": "ramp", "to": 5}}},
            "ramp arrivals",
        ),
    ],
)
def test_unpredictable_deployments_have_a_reason(changes: dict[str, Any], reason: str) -> None:
    plan = predicted_plan(**changes)
    (found,) = reasons_not_predicted(plan)
    assert reason in found
    assert predicted_share(plan) == {}
    assert f"not predicted: {found}" in "\n".join(predictions_text(plan))


def test_the_error_of_a_model_is_known_where_only_a_load_is_not_predicted() -> None:
    ramp = {"levels": {"request_rate": [1]}, "arrivals": {"process": "ramp", "to": 5}}
    steady = predicted_plan(load={"levels": {"request_rate": [1]}})
    plan = predicted_plan(load=ramp)
    errors = [deployment.predicted.error for deployment in plan.deployments]
    assert errors == [deployment.predicted.error for deployment in steady.deployments]
    assert "median error of predictions" not in "\n".join(predictions_text(plan))


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "sparse attention"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "layers without attention"),
    ],
)
def test_models_with_parts_beyond_the_formulas_are_not_predicted(
    tmp_path: Path, model: str, lacking: str
) -> None:
    published = json.loads(PUBLISHED_MODELS.read_text(encoding="utf-8"))[model]
    (tmp_path / "config.json").write_text(json.dumps(published["config"]))
    (tmp_path / "tokenizer.json").write_text("{}")
    plan = predicted_plan(model=str(tmp_path)).allowing()
    (found,) = reasons_not_predicted(with_predictions(plan))
    assert f"no term for {lacking}" in found


def test_prompts_of_unknown_length_are_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("How long is this?\n")
    workload = {
        "name": "texts",
        "kind": "file",
        "prompts": str(tmp_path / "prompts.txt"),
        "output_tokens": 9,
    }
    assert reasons_not_predicted(predicted_plan(workloads=[workload])) == {
        "it is not known how many tokens the prompts of 'texts' have"
    }


@pytest.mark.parametrize(
    ("option", "unknown"),
    [
        ({"constrain": {"choice": ["yes", "no"]}}, "how long constrained answers are"),
        ({"adapters": {"names": ["sql"]}}, "what LoRA adapters cost"),
        ({"images": {"sizes": ["64x64"]}}, "how many tokens images have"),
    ],
)
def test_what_only_an_engine_knows_is_not_predicted(option: dict[str, Any], unknown: str) -> None:
    workload = {"name": "w", "api": "chat", "input_tokens": 64, "output_tokens": 16, **option}
    served = deployments(lora_modules={"sql": "acme/sql"})
    reasons = reasons_not_predicted(predicted_plan(workloads=[workload], deployments=served))
    assert reasons == {f"only the engine knows {unknown} ('w')"}


def test_an_emulator_is_predicted_by_its_own_profile(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text(
        yaml.safe_dump({"accelerator": "H100-80GB", "constants": {"step_overhead_s": 0.03}})
    )
    plan = predicted_plan(
        deployments=deployments(engine="emulator", vary=[{"cases": [{}, {"profile": str(slow)}]}])
    )
    fast, late = (
        prediction_of(deployment)["levels"][0]["tpot_ms"] for deployment in plan.deployments
    )
    assert late == pytest.approx(fast + 29.5, rel=0.05)
    assert prediction_of(plan.deployments[0])["error"]["source"] == "emulators on this machine"


def test_a_fitted_profile_is_used_on_its_accelerator_with_its_own_error(tmp_path: Path) -> None:
    fitted = {"error": {"ttft_p50": 0.2, "tpot_p50": 0.05}, "held_out_error": None}
    mine = {"accelerator": "H100-80GB", "constants": {"step_overhead_s": 0.01}, "fitted": fitted}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    plan = predicted_plan(tmp_path / "x.yaml", predictions={"profile": "./mine.yaml"})
    assert plan.predictions.profile == str(tmp_path / "mine.yaml")
    assert (
        prediction_of(plan.deployments[0])["error"].items()
        >= {"ttft": 0.2, "tpot": 0.05, "source": "the profile's own fit"}.items()
    )
    with pytest.raises(ProblemsError, match=r"x.yaml:\d+.*no.yaml"):
        planned(tmp_path / "x.yaml", **EXPERIMENT, predictions={"profile": "./no.yaml"})


def test_a_profile_is_used_whatever_the_accelerator_costs(tmp_path: Path) -> None:
    error = {"ttft_p50": 0.2, "tpot_p50": 0.05}
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"accelerator": "H100-80GB", "fitted": {"error": error}})
    )
    priced = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 1.23}}
    plan = predicted_plan(
        tmp_path / "x.yaml", predictions={"profile": "./mine.yaml"}, hardware=priced
    )
    assert prediction_of(plan.deployments[0])["error"]["source"] == "the profile's own fit"


def test_a_profile_that_was_fitted_on_another_engine_is_not_used(tmp_path: Path) -> None:
    error = {"ttft_p50": 0.2, "tpot_p50": 0.05}
    mine = {"accelerator": "H100-80GB", "fitted": {"engine": "sglang", "error": error}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    plan = predicted_plan(tmp_path / "x.yaml", predictions={"profile": "./mine.yaml"})
    assert "published points of vllm" in prediction_of(plan.deployments[0])["error"]["source"]


def test_tables_of_kernels_predict_where_they_have_rows_and_the_formula_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(config: str, system: str, backend: str, words: tuple[tuple[str, Any], ...]) -> Any:
        return "no row for TP=4" if ("tp_size", 4) in words else Kernels(most=10**6)

    formula = predicted_plan()
    monkeypatch.setattr("orchestrator.emulator.step_tables._compiled", compiled)
    monkeypatch.setattr("orchestrator.plan.checks.find_spec", lambda name: name)
    plan = predicted_plan(predictions={"tables": True})
    for one, by_formula in zip(plan.deployments, formula.deployments, strict=True):
        if one.settings.tensor_parallel_size == 4:
            assert prediction_of(one) == prediction_of(by_formula) | {"no_row": "no row for TP=4"}
        else:
            assert prediction_of(one)["levels"] != prediction_of(by_formula)["levels"]
            assert "tables of kernels" in prediction_of(one)["error"]["source"]
    text = "\n".join(predictions_text(plan))
    assert "predicted by the formula, no tables: no row for TP=4" in text


def test_an_architecture_that_nothing_was_fitted_on_says_whose_constants_it_takes() -> None:
    names = {"h100": "H100-80GB", "b200": "B200-180GB", "a100": "A100-80GB"}
    hardware = {
        name: {"accelerator": accelerator, "gpus_per_node": 8}
        for name, accelerator in names.items()
    }
    vary = [{"grid": {"hardware": list(names)}}]
    h100, b200, a100 = predicted_plan(
        hardware=hardware, deployments=deployments(vary=vary)
    ).deployments
    fitted, inherited = prediction_of(h100)["error"], prediction_of(b200)["error"]
    assert (
        "blackwell" in inherited["source"] and "constants fitted on hopper" in inherited["source"]
    )
    assert "hopper" in fitted["source"] and "constants" not in fitted["source"]
    assert inherited["tpot"] > fitted["tpot"] and inherited["ttft"] > fitted["ttft"]
    assert prediction_of(a100)["not_predicted"] == (
        "the model was never compared with vllm on A100-80GB, only on hopper and blackwell GPUs: "
        "fit a profile (orchestrator predict fit) and name it (predictions: {profile: FILE})"
    )


def test_factors_follow_from_medians_of_a_normal_distribution() -> None:
    """Of normally distributed logarithms, 0.674 deviations hold half, and 1.645 hold 90 %."""
    factors = ErrorEstimate(0.5, 0.1, "").factors
    assert factors.ttft == pytest.approx(1.5 ** (1.645 / 0.674))
    assert factors.tpot == pytest.approx(1.1 ** (1.645 / 0.674))
    counted = ErrorFactors(7.0, 1.2)
    assert ErrorEstimate(0.5, 0.1, "", counted).factors == counted


def test_factors_of_published_points_are_wider_than_normal() -> None:
    """Their errors have fatter tails than a normal distribution of the same median."""
    found = prediction_of(predicted_plan().deployments[0])["error"]
    h100 = find("H100-80GB")
    assert h100 and (stated := typical("vllm", h100).error)
    assert found["within"] == {"ttft": stated["ttft_within"], "tpot": stated["tpot_within"]}
    assert found["within"]["tpot"] > (1 + stated["tpot"]) ** (1.645 / 0.674)


def test_without_levels_a_ladder_up_to_the_highest_load_is_predicted() -> None:
    plan = planned(**EXPERIMENT)
    bare = plan.model_copy(
        update={"loads": tuple(load.model_copy(update={"levels": ()}) for load in plan.loads)}
    )
    rows = prediction_of(with_predictions(bare).deployments[0])["levels"]
    assert [row["level"] / rows[-1]["level"] for row in rows] == pytest.approx(list(LADDER))
    assert rows[0]["tpot_ms"] < rows[-2]["tpot_ms"]


@pytest.mark.parametrize(
    ("method", "model", "reason"),
    [
        ("eagle3", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "no config.json at hand"),
        ("mtp", None, "meta-llama/Llama-3.1-8B-Instruct has no layers for drafts"),
        (
            "dflash",
            "meta-llama/Llama-3.2-1B-Instruct",
            "the model has no term for drafts by dflash",
        ),
        ("draft_model", "acme/none", "nothing is known of the draft model acme/none"),
        ("draft_model", "meta-llama/Llama-3.2-1B-Instruct", None),
        ("ngram", None, None),
    ],
)
def test_drafts_are_simulated_where_their_acceptance_is_assumed_and_their_cost_known(
    method: str, model: str | None, reason: str | None
) -> None:
    speculative = {"method": method, "num_speculative_tokens": 3, "model": model}
    plan = planned(**EXPERIMENT | {"deployments": deployments(speculative=speculative)})
    assuming = with_predictions(plan.assuming(Assumptions(drafts_accepted=0.5)))
    (found,) = reasons_not_predicted(assuming)
    assert (reason or "only a simulation has a term for speculative decoding") in found
    predictions = [prediction_of(deployment) for deployment in assuming.deployments]
    sources = {predicted.get("error", {}).get("source", "") for predicted in predictions}
    is_simulated = {source.endswith("with drafts: twice their error") for source in sources}
    assert is_simulated == {reason is None}
    assert {str(predicted["assumed"]) for predicted in predictions} == {"{'drafts_accepted': 0.5}"}


@pytest.mark.parametrize(
    ("engine", "spec", "reason"),
    [
        ("vllm", {"method": "eagle3"}, None),
        ("vllm", {}, None),  # vLLM finds it out by the architecture
        ("sglang", {"method": "eagle3", "eagle_topk": 4, "num_draft_tokens": 8}, "trees of drafts"),
    ],
)
def test_a_head_is_simulated_where_it_drafts_a_chain(
    engine: str, spec: dict[str, Any], reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3))
    speculative = {"num_speculative_tokens": 3, "model": str(tmp_path), **spec}
    changed = deployments(engine=engine, speculative=speculative, vary=[])
    plan = planned(**EXPERIMENT | {"deployments": changed})
    assuming = with_predictions(plan.assuming(Assumptions(drafts_accepted=0.5)))
    (found,) = reasons_not_predicted(assuming)
    assert (reason or "only a simulation has a term for speculative decoding") in found
