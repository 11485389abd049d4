"""What deployments are predicted to hold: its shape, what is not predicted and why, the order, the
known error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from orchestrator.base.errors import ProblemsError
from orchestrator.catalog.accelerators import find
from orchestrator.emulator.profile import typical
from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.order import FRONT, predicted_share, queue_priority
from orchestrator.plan.predictions import DEFAULT_SLO, with_predictions
from orchestrator.predict import predictor
from orchestrator.predict.predictor import LADDER, Error
from orchestrator.report.predictions import predictions_text
from tests.unit.emulator.test_tables import Kernels
from tests.unit.plan.files import planned

CHANGES: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8}},
    "deployments": {"engine": "vllm", "hardware": "h100", "max_model_len": 8192,
                    "vary": [{"grid": {"tensor_parallel_size": [1, 2, 4]}}]},
    "workloads": [{"name": "chat", "input_tokens": 600, "output_tokens": {"uniform": {"min": 50, "max": 450}}}],
    "load": {"levels": {"request_rate": [1, 4, 4000]}},
    "slos": {"fast": {"ttft": "500ms", "tpot": "20ms"}, "slow": {"ttft": "2s", "tpot": "100ms"}},
}  # fmt: skip


def foretold(file: Path | str = "x.yaml", **changes: Any) -> Plan:
    return with_predictions(planned(file, **{**CHANGES, **changes}))


def deployments(**changes: Any) -> dict[str, Any]:
    return {**CHANGES["deployments"], **changes}


def capacity(one: Deployment, slo: str = "fast", workload: str = "chat") -> dict[str, Any]:
    found: dict[str, Any] = foretells(one)["capacity"][slo][workload]
    return found


def foretells(one: Deployment) -> dict[str, Any]:
    assert one.predicted is not None
    return one.predicted


def why_not(plan: Plan) -> set[str]:
    return {(one.predicted or {}).get("not_predicted", "") for one in plan.deployments}


def test_levels_capacity_and_error_stand_beside_the_predicted_memory() -> None:
    plan = foretold()
    for one in plan.deployments:
        assert one.predicted is not None and one.predicted["weight_bytes"] > 0
        low, high, beyond = foretells(one)["levels"]
        assert set(low) == {
            "workload",
            "control",
            "level",
            "ttft_ms",
            "tpot_ms",
            "output_throughput",
        }
        assert (low["workload"], low["control"], low["level"]) == ("chat", "request_rate", 1.0)
        assert (
            low["output_throughput"] == pytest.approx(250, rel=0.05)
            and low["tpot_ms"] <= high["tpot_ms"]
        )
        # it cannot keep up
        assert beyond["ttft_ms"] is None and beyond["output_throughput"] < 4000 * 250
        fast, slow = capacity(one), capacity(one, "slow")
        assert 0 < fast["level"] <= slow["level"]
        assert fast["output_throughput"] == pytest.approx(fast["level"] * 250, rel=0.05)
        assert fast["output_throughput_per_gpu"] == pytest.approx(
            fast["output_throughput"] / one.devices
        )
        least, most = fast["interval_per_gpu"]
        assert least < fast["output_throughput_per_gpu"] < most
        assert one.predicted["error"]["source"]
    assert Plan.from_json(plan.to_json()) == plan


def test_deployments_that_differ_in_the_longest_request_alone_are_predicted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Mock(wraps=predictor.Rank)
    monkeypatch.setattr(predictor, "Rank", made)
    lengths = {
        "vary": [{"grid": {"max_model_len": [4096, 8192, 16384], "max_num_seqs": [64, 128]}}]
    }
    plan = foretold(deployments=deployments(**lengths))
    assert made.call_count == 2
    capacities = {one.settings.max_num_seqs: capacity(one) for one in plan.deployments}
    assert all(capacity(one) == capacities[one.settings.max_num_seqs] for one in plan.deployments)


def test_a_price_makes_dollars_of_it_and_none_makes_none() -> None:
    free, priced = (
        foretold(),
        foretold(
            hardware={
                "h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0}
            }
        ),
    )
    assert {capacity(one)["usd_per_million_tokens"] for one in free.deployments} == {None}
    for one in priced.deployments:
        found = capacity(one)
        assert found["usd_per_million_tokens"] == pytest.approx(
            3.0 / 3600 / found["output_throughput_per_gpu"] * 1e6
        )


def test_a_closed_loop_and_a_search_are_predicted_in_their_own_unit() -> None:
    (one, *_) = foretold(load={"levels": {"concurrency": [1, 8]}}).deployments
    found = capacity(one)
    assert found["control"] == "concurrency" and found["level"] == int(found["level"]) > 8
    assert [row["level"] for row in foretells(one)["levels"]] == [1, 8]


def test_twice_the_replicas_hold_twice_as_much() -> None:
    one, two = foretold(deployments=deployments(vary=[{"grid": {"replicas": [1, 2]}}])).deployments
    assert capacity(two)["level"] == pytest.approx(2 * capacity(one)["level"], rel=1e-6)
    assert capacity(two)["output_throughput_per_gpu"] == pytest.approx(
        capacity(one)["output_throughput_per_gpu"]
    )


def test_a_shared_prefix_is_computed_once_where_prefixes_are_cached() -> None:
    shared = [{**CHANGES["workloads"][0], "shared_prefix_tokens": 3000}]
    vary = [{"grid": {"enable_prefix_caching": [True, False]}}]
    cached, plain = foretold(workloads=shared, deployments=deployments(vary=vary)).deployments
    assert capacity(cached)["level"] > 1.5 * capacity(plain)["level"]


def test_limits_on_percentiles_and_on_prompt_tokens_are_held_against_too() -> None:
    limits = {
        "joint": {"ttft": "60ms"},
        "share": {"ttft_p50": "60ms"},
        "token": {"normalized_ttft": "100us"},
    }
    (one, *_) = foretold(slos=limits).deployments
    joint, share, token = (capacity(one, name)["level"] for name in limits)
    assert share > joint > 0  # half of the requests, where 95 % must be
    assert token == pytest.approx(joint, rel=0.05)  # all prompts have 600 tokens


def test_limits_that_nothing_meets_are_a_capacity_of_none_at_all() -> None:
    plan = foretold(slos={"never": {"ttft": "1us"}})
    assert {capacity(one, "never")["level"] for one in plan.deployments} == {0.0}
    assert "none holds" in "\n".join(predictions_text(plan))
    assert set(predicted_share(plan).values()) == {0.0}


def test_a_file_without_limits_is_held_against_stated_ones_and_says_so() -> None:
    plan = foretold(slos={})
    assert all(capacity(one, DEFAULT_SLO.name)["level"] > 0 for one in plan.deployments)
    assert "default limits (MLPerf interactive)" in "\n".join(predictions_text(plan))
    assert (
        plan.deployments[0].first_guess("chat", "default")
        == capacity(plan.deployments[0], "default")["level"]
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"deployments": {"engine": "endpoint", "url": "http://127.0.0.1:1"}}, "it runs already"),
        ({"model": "nobody/knows-this"}, "nothing is known of nobody/knows-this"),
        ({"deployments": deployments(extra_args={"-dcp": 2})}, "the model has no term for -dcp"),
        (
            {"hardware": {"h100": {"accelerator": "Abacus 9000"}}},
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
def test_what_the_model_knows_nothing_of_is_not_predicted_and_says_why(
    changes: dict[str, Any], reason: str
) -> None:
    plan = foretold(**changes)
    (found,) = why_not(plan)
    assert reason in found
    assert predicted_share(plan) == {}
    assert f"not predicted: {found}" in "\n".join(predictions_text(plan))


@pytest.mark.parametrize(
    ("model", "lacking"),
    [
        ("deepseek-ai/DeepSeek-V3.2", "sparse attention"),
        ("Qwen/Qwen3-Next-80B-A3B-Thinking", "layers without attention"),
    ],
)
def test_models_with_parts_that_the_formulas_have_no_term_for_are_not_predicted(
    tmp_path: Path, model: str, lacking: str
) -> None:
    published = json.loads(
        Path(__file__).with_name("published_models.json").read_text(encoding="utf-8")
    )[model]
    (tmp_path / "config.json").write_text(json.dumps(published["config"]))
    (tmp_path / "tokenizer.json").write_text("{}")
    plan = foretold(model=str(tmp_path)).allowing()
    (found,) = why_not(with_predictions(plan))
    assert f"no term for {lacking}" in found


def test_prompts_of_unknown_length_are_not_predicted(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("How long is this?\n")
    workload = {
        "name": "texts",
        "kind": "file",
        "prompts": str(tmp_path / "prompts.txt"),
        "output_tokens": 9,
    }
    assert why_not(foretold(workloads=[workload])) == {
        "it is not known how many tokens the prompts of 'texts' have"
    }


def test_the_front_of_every_limit_promises_most_and_the_unknown_the_median() -> None:
    vary = [
        {
            "cases": [{"tensor_parallel_size": size} for size in (1, 2, 4)]
            + [{"cpu_offload_gb": 1.0}]
        }
    ]
    plan = foretold(deployments=deployments(vary=vary))
    shares = predicted_share(plan)
    for slo in ("fast", "slow"):
        known = [one for one in plan.deployments if "capacity" in (one.predicted or {})]
        best = max(known, key=lambda one: capacity(one, slo)["output_throughput_per_gpu"])
        assert shares[best.id] == 1.0
    (unknown,) = [one for one in plan.deployments if "not_predicted" in (one.predicted or {})]
    assert sorted(shares[one.id] for one in known)[1] == shares[unknown.id]
    assert all(0 < share <= 1 for share in shares.values())


def test_where_all_is_measured_the_front_comes_first_and_the_rest_by_length_alone() -> None:
    """In the order of their predictions all would take up to a quarter longer."""
    vary = [{"cases": [{"tensor_parallel_size": size} for size in (1, 2, 4)]}]
    plan = foretold(deployments=deployments(vary=vary))
    shares = predicted_share(plan)
    assert {share >= FRONT for share in shares.values()} == {True, False}
    assert queue_priority(plan) == {name: float(share >= FRONT) for name, share in shares.items()}
    assert (
        queue_priority(foretold(deployments=deployments(vary=vary), budget={"gpu_hours": 1}))
        == shares
    )
    assert (
        queue_priority(foretold(deployments=deployments(vary=vary), predictions={"order": False}))
        == {}
    )


def test_checkpoints_of_one_model_have_one_front_per_gpu_unless_dollars_are_asked_for() -> None:
    hardware = {
        "h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0},
        "h200": {"accelerator": "H200-141GB", "gpus_per_node": 8, "usd_per_gpu_hour": 300.0},
    }
    vary = [{"grid": {"hardware": ["h100", "h200"], "tensor_parallel_size": [1, 4]}}]

    def shares(objective: str) -> list[float]:
        load = {
            "search": "capacity",
            "control": "request_rate",
            **({"objective": objective} if objective else {}),
        }
        plan = foretold(hardware=hardware, deployments=deployments(vary=vary), load=load)
        settings = {
            one.id: one.settings.model_copy(update={"model": f"copy/{one.id}"})
            for one in plan.deployments
        }
        copies = [one.model_copy(update={"settings": settings[one.id]}) for one in plan.deployments]
        return sorted(predicted_share(plan.with_deployments(copies)).values())

    assert [one == 1.0 for one in shares("")] == [False, False, True, True]  # of each hardware one
    assert [one == 1.0 for one in shares("usd")] == [False, False, False, True]


def test_an_emulator_is_predicted_by_its_own_profile(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text(
        yaml.safe_dump({"accelerator": "H100-80GB", "constants": {"step_overhead_s": 0.03}})
    )
    plan = foretold(
        deployments=deployments(engine="emulator", vary=[{"cases": [{}, {"profile": str(slow)}]}])
    )
    fast, late = (foretells(one)["levels"][0]["tpot_ms"] for one in plan.deployments)
    assert late == pytest.approx(fast + 29.5, rel=0.05)
    assert foretells(plan.deployments[0])["error"]["source"] == "emulators on this machine"


def test_a_fitted_profile_is_used_on_its_accelerator_with_its_own_error(tmp_path: Path) -> None:
    fitted = {"error": {"ttft_p50": 0.2, "tpot_p50": 0.05}, "held_out_error": None}
    mine = {"accelerator": "H100-80GB", "constants": {"step_overhead_s": 0.01}, "fitted": fitted}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    plan = foretold(tmp_path / "x.yaml", predictions={"profile": "./mine.yaml"})
    assert plan.predictions.profile == str(tmp_path / "mine.yaml")
    assert (
        foretells(plan.deployments[0])["error"].items()
        >= {"ttft": 0.2, "tpot": 0.05, "source": "the profile's own fit"}.items()
    )
    with pytest.raises(ProblemsError, match=r"x.yaml:\d+.*no.yaml"):
        planned(tmp_path / "x.yaml", **CHANGES, predictions={"profile": "./no.yaml"})


def test_tables_of_kernels_predict_where_they_have_rows_and_the_formula_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(config: str, system: str, backend: str, words: tuple[tuple[str, Any], ...]) -> Any:
        return "no row for TP=4" if ("tp_size", 4) in words else Kernels(most=10**6)

    formula = foretold()
    monkeypatch.setattr("orchestrator.emulator.tables._compiled", compiled)
    monkeypatch.setattr("orchestrator.plan.checks.find_spec", lambda name: name)
    plan = foretold(predictions={"tables": True})
    for one, by_formula in zip(plan.deployments, formula.deployments, strict=True):
        if one.settings.tensor_parallel_size == 4:
            assert foretells(one) == foretells(by_formula) | {"no_row": "no row for TP=4"}
        else:
            assert foretells(one)["levels"] != foretells(by_formula)["levels"]
            assert "tables of kernels" in foretells(one)["error"]["source"]
    text = "\n".join(predictions_text(plan))
    assert "predicted by the formula, no tables: no row for TP=4" in text


def test_tables_that_are_not_installed_are_a_problem_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.plan.checks.find_spec", lambda name: None)
    with pytest.raises(ProblemsError, match=r"llm-serving-orchestrator\[tables\]"):
        foretold(predictions={"tables": True})


def test_an_architecture_that_nothing_was_fitted_on_says_whose_constants_it_takes() -> None:
    names = {"h100": "H100-80GB", "b200": "B200-180GB", "a100": "A100-80GB"}
    hardware = {
        name: {"accelerator": accelerator, "gpus_per_node": 8}
        for name, accelerator in names.items()
    }
    vary = [{"grid": {"hardware": list(names)}}]
    h100, b200, a100 = foretold(hardware=hardware, deployments=deployments(vary=vary)).deployments
    fitted, inherited = foretells(h100)["error"], foretells(b200)["error"]
    assert (
        "blackwell" in inherited["source"] and "constants fitted on hopper" in inherited["source"]
    )
    assert "hopper" in fitted["source"] and "constants" not in fitted["source"]
    assert inherited["tpot"] > fitted["tpot"] and inherited["ttft"] > fitted["ttft"]
    assert "the model was never compared with vllm on A100-80GB" in foretells(a100)["not_predicted"]


def test_nine_in_ten_lie_within_the_factor_where_half_lie_within_the_median() -> None:
    """Of a normal distribution of logarithms: 0.674 deviations hold half of it, 1.645 hold 90 %."""
    ttft, tpot = Error(0.5, 0.1, "").factors
    assert tpot == pytest.approx(1.1 ** (1.645 / 0.674)) and ttft == pytest.approx(
        1.5 ** (1.645 / 0.674)
    )
    assert Error(0.5, 0.1, "", (7.0, 1.2)).factors == (7.0, 1.2)  # somebody counted


def test_nine_in_ten_published_points_lie_within_the_stated_factors() -> None:
    """They have fatter tails than a normal distribution of their median has."""
    found = foretells(foretold().deployments[0])["error"]
    h100 = find("H100-80GB")
    assert h100 and (stated := typical("vllm", h100).error)
    assert found["within"] == {"ttft": stated["ttft_within"], "tpot": stated["tpot_within"]}
    assert found["within"]["tpot"] > (1 + stated["tpot"]) ** (1.645 / 0.674)


def test_levels_of_a_search_are_a_ladder_up_to_all_it_can_do() -> None:
    plan = planned(**CHANGES)
    bare = plan.model_copy(
        update={"loads": tuple(one.model_copy(update={"levels": ()}) for one in plan.loads)}
    )
    rows = foretells(with_predictions(bare).deployments[0])["levels"]
    assert [row["level"] / rows[-1]["level"] for row in rows] == pytest.approx(list(LADDER))
    assert rows[0]["tpot_ms"] < rows[-2]["tpot_ms"]
