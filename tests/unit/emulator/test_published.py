"""The shipped constants against published measurements of configurations that they were not fitted
on.

A sample of aiconfigurator-core 0.12.0, systems/silicon_sample.csv (NVIDIA, Apache-2.0; its source:
public benchmark runs of 2026-04-06): vLLM in closed loop. benchmarks/emulator/published.py scores
all of it, and says what is assumed.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import facts_from_config, known_config
from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants, typical
from orchestrator.predict.simulate import run_closed
from orchestrator.spec.settings import EngineSettings

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "emulator"
FP8 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
LLAMA, GPT_OSS = "meta-llama/Llama-3.1-70B-Instruct", "openai/gpt-oss-120b"
# Device, model, TP, input and output tokens, in flight; mean TTFT and TPOT in milliseconds.
MEASURED: tuple[tuple[str, str, int, int, int, float, float], ...] = (
    ("H100", LLAMA, 4, 1024, 4, 80.5, 11.78),
    ("H100", LLAMA, 4, 1024, 64, 256.4, 19.51),
    ("H100", LLAMA, 4, 8192, 16, 731.5, 21.06),
    ("H100", LLAMA, 8, 1024, 4, 70.4, 9.11),
    ("H100", LLAMA, 8, 1024, 64, 184.8, 15.45),
    ("H100", LLAMA, 8, 8192, 16, 482.9, 15.85),
    ("H200", LLAMA, 1, 1024, 16, 315.8, 24.72),
    ("H200", LLAMA, 4, 8192, 4, 468.6, 11.27),
    ("H200", LLAMA, 8, 1024, 16, 109.3, 9.71),
    ("H200", LLAMA, 8, 8192, 64, 1141.1, 29.17),
    ("H100", GPT_OSS, 2, 1024, 16, 90.7, 8.18),
    ("H100", GPT_OSS, 2, 8192, 4, 264.7, 5.60),
    ("H200", GPT_OSS, 2, 1024, 4, 63.8, 4.80),
    ("H200", GPT_OSS, 2, 1024, 64, 177.9, 14.42),
    ("H200", GPT_OSS, 2, 8192, 16, 430.8, 10.28),
)  # fmt: skip


def predicted(
    device: str, model: str, tensor: int, prompt: int, in_flight: int
) -> tuple[float, float]:
    """Milliseconds of mean TTFT and TPOT, 1,024 tokens asked."""
    config: dict[str, Any] | None = known_config(model)
    accelerator, rng = find(device), np.random.default_rng(0)
    assert config and accelerator
    facts = facts_from_config(model, config | (FP8 if model == LLAMA else {}))
    assert facts
    prompts, outputs = (
        rng.integers(round(0.8 * most), most + 1, 10 * in_flight) for most in (prompt, 1024)
    )
    settings = EngineSettings(engine="vllm", model=model, tensor_parallel_size=tensor)
    # means are stated without it
    engine = replica(settings, facts, accelerator, Constants(jitter=0.0))
    trace, outcome = run_closed(engine, prompts, outputs, in_flight)
    tpot = (outcome.last_token_s - outcome.first_token_s) / (outputs - 1)
    return 1e3 * float((outcome.first_token_s - trace.arrival_s).mean()), 1e3 * float(tpot.mean())


def test_recorded_points_that_no_constant_saw_are_predicted_within_the_stated_error() -> None:
    device = find("H100")
    assert device
    stated = typical("vllm", device).error
    assert stated
    off = np.array([np.array(predicted(*row[:5])) / row[5:] - 1 for row in MEASURED])
    ttft, tpot = np.median(np.abs(off), axis=0)
    assert ttft <= stated["ttft"] + 0.05
    assert tpot <= stated["tpot"]


def multiples_of_the_median(
    engine: Literal["vllm", "sglang"],
    model: str,
    tensor: int,
    lengths: tuple[int, int],
    in_flight: int,
    requests: int,
) -> list[NDArray[np.float64]]:
    """TTFT and TPOT of requests to an H200, by the constants that are shipped."""
    config, device, rng = known_config(model), find("H200"), np.random.default_rng(0)
    assert config and device
    facts = facts_from_config(model, config)
    assert facts
    prompts, outputs = (rng.integers(round(0.8 * most), most + 1, requests) for most in lengths)
    settings = EngineSettings(engine=engine, model=model, tensor_parallel_size=tensor)
    trace, outcome = run_closed(
        replica(settings, facts, device, Constants()), prompts, outputs, in_flight
    )
    latencies = (
        outcome.first_token_s - trace.arrival_s,
        (outcome.last_token_s - outcome.first_token_s) / (outputs - 1),
    )
    return [latency / np.median(latency) for latency in latencies]


@pytest.mark.parametrize(
    ("in_flight", "requests", "ttft", "tpot"), [(4, 400, 1.085, 1.028), (64, 2560, 1.746, 1.033)]
)
def test_the_p90_of_published_vllm_runs_is_as_far_above_the_median(
    in_flight: int, requests: int, ttft: float, tpot: float
) -> None:
    """gpt-oss-120b on one H200, vLLM 0.22 (benchmarks/emulator/tails.csv, "H200 sweep 2026-06",
    8,000 + 1,000).
    """
    multiples = multiples_of_the_median("vllm", GPT_OSS, 1, (8000, 1000), in_flight, requests)
    assert [np.quantile(multiple, 0.9) for multiple in multiples] == [
        pytest.approx(ttft, rel=0.1),
        pytest.approx(tpot, rel=0.01),
    ]


@pytest.mark.parametrize(("in_flight", "ttft", "tpot"), [(4, 1.205, 1.020), (16, 1.912, 1.038)])
def test_published_p90s_of_sglang_are_p90s_of_the_simulation(
    in_flight: int, ttft: float, tpot: float
) -> None:
    """DeepSeek-R1 on eight H200, SGLang 0.5.12 (benchmarks/emulator/tails.csv, "InferenceX
    2026-05", 8,192 + 1,024). A tenth of the requests waits in the first wave, so p90 is at an edge:
    a share of requests says more than a ratio.
    """
    multiples = multiples_of_the_median(
        "sglang", "deepseek-ai/DeepSeek-V3", 8, (8192, 1024), in_flight, 10 * in_flight
    )
    assert (multiples[0] <= ttft).mean() == pytest.approx(0.9, abs=0.05)
    assert np.quantile(multiples[1], 0.9) == pytest.approx(tpot, rel=0.015)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_steps_vary_as_published_gaps_between_tokens_do(engine: str) -> None:
    """The median over configurations of gaps with one request in flight, in whole percents,
    whatever times a step.
    """
    lines = (BENCHMARKS / "steps.csv").read_text(encoding="utf-8").splitlines()
    spread: dict[tuple[str, str], list[float]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        if row["engine"] == engine:
            above = math.log(float(row["gap_p99"]) / float(row["gap"])) / NormalDist().inv_cdf(0.99)
            spread.setdefault((row["model"], row["device"]), []).append(
                above * math.sqrt(int(row["tokens"]))
            )
    device = find("H100")
    assert device
    shown = round(median(median(gaps) for gaps in spread.values()), 2)
    assert {typical(engine, device, tables).constants["jitter"] for tables in (False, True)} == {
        shown
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_shipped_constants_were_not_fitted_on_the_points_that_score_them(
    engine: str,
) -> None:
    device = find("H100")
    assert device
    folds = json.loads((BENCHMARKS / "folds.json").read_text(encoding="utf-8"))
    shipped = {
        name: value for name, value in typical(engine, device).constants.items() if name != "jitter"
    }
    assert shipped == folds[f"formula {engine} 0"]["constants"]
    assert not set(folds[f"formula {engine} 0"]["saw"]) & set(folds[f"formula {engine} 1"]["saw"])
    scored = {
        "vllm Meta-Llama-3.1-70B TP1 fp8",
        "vllm Meta-Llama-3.1-70B TP4 fp8",
        "vllm Meta-Llama-3.1-70B TP8 fp8",
    }
    assert not (scored | {"vllm gpt-oss-120b TP2 fp4"}) & set(folds["formula vllm 0"]["saw"])
