"""Step times from tables of measured kernels: how steps are put together, what the tables have no
row for.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import model_facts
from orchestrator.catalog.quantization import quantization_from_config
from orchestrator.emulator import step_tables
from orchestrator.emulator.model import Replica, replica
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.step_costs import Chunk
from orchestrator.emulator.step_tables import NoRow, Tables
from orchestrator.predict.simulate import run_closed
from orchestrator.spec.settings import EngineSettings

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HOST = Constants(
    tables=True, step_overhead_s=1e-3, sequence_overhead_s=1e-5, prefill_layer_overhead_s=0.0, request_overhead_s=0.02,
    jitter=0.0,
)  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


class Kernels:
    """As an EngineHandle answers, in milliseconds: products 5 + 0.01 a token, attention 1e-5 a pair
    of tokens, 1e-4 a token of context; a batch of more than ``most`` is in no row.
    """

    def __init__(self, most: int = 64) -> None:
        self.most = most

    def decode_step_latency(self, sequences: int, length: int, _: int) -> float:
        return self.mixed_step_breakdown(0, sequences, length, 1, 0)[0]

    def mixed_step_breakdown(
        self, prompt: int, decodes: int, length: int, _: int, cached: int
    ) -> tuple[float, ...]:
        if decodes > self.most:
            raise RuntimeError("no bracket\nfor this batch")
        new = length - cached if prompt else 0  # of one prompt, as it is asked for here
        parts = (
            5 + 0.01 * (new + decodes),
            1e-5 * new * (cached + new / 2),
            1e-4 * decodes * length,
        )
        return sum(parts), *parts


def a_replica(
    constants: Constants = HOST,
    device: str = "H100",
    stored: dict[str, Any] | None = None,
    **changes: Any,
) -> Replica:
    """A replica of Llama-3.1-8B in vLLM. ``stored``: the quantization_config of its checkpoint."""
    settings = EngineSettings(**{"engine": "vllm", "model": MODEL} | changes)
    facts, accelerator = model_facts(MODEL), find(device)
    assert facts and accelerator
    facts = replace(facts, quantization=quantization_from_config(stored))
    return replica(settings, facts, accelerator, constants)


@pytest.fixture
def in_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_tables, "_compiled", lambda *_: Kernels())


def test_a_step_is_its_kernels_and_its_host(in_the_tables: None) -> None:
    steps = a_replica().costs
    assert isinstance(steps, Tables)
    first, growth = steps.decode(8, 8 * 1000, 0.0)
    assert first == pytest.approx(1e-3 + 8e-5 + (5 + 0.08 + 0.8) / 1e3)
    assert growth == pytest.approx(8e-4 / 1e3)  # every sequence is one token longer
    assert steps.decode(8, 8 * 1001, 0.0).step_s == pytest.approx(first + growth)
    assert steps.mixed(8, 8 * 1000, 0.0, []) == first
    prompts = [Chunk(0, 512), Chunk(1024, 256)]  # one whole, one chunk after 1,024 tokens
    attention_ms = 1e-5 * (512 * 256 + 256 * (1024 + 128)) + 0.8
    expected = 1e-3 + 10e-5 + (5 + 0.01 * (8 + 768) + attention_ms) / 1e3
    assert steps.mixed(8, 8 * 1000, 0.0, prompts) == pytest.approx(expected)


def test_requests_are_simulated_with_the_tables_steps(in_the_tables: None) -> None:
    prompts, outputs = np.full(4, 1000), np.full(4, 101)
    trace, outcome = run_closed(a_replica(), prompts, outputs, 1)
    assert (outcome.first_token_s - trace.arrival_s) == pytest.approx(
        0.02 + 1e-3 + 1e-5 + 0.02, rel=1e-3
    )
    tpot = (outcome.last_token_s - outcome.first_token_s) / 100
    assert tpot == pytest.approx(1e-3 + 1e-5 + (5.01 + 0.105) / 1e3, rel=1e-3)


def test_constants_that_are_not_given_are_those_fitted_on_the_tables(in_the_tables: None) -> None:
    typical = a_replica(Constants(tables=True)).costs
    assert isinstance(typical, Tables) and typical.step_s > 0
    assert a_replica(Constants()).costs != typical


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "MI300X"}, "no device MI300X"),
        ({"pipeline_parallel_size": 2}, "without pipeline stages"),
        ({"enforce_eager": True}, "with CUDA graphs"),
        ({"quantization": "bitsandbytes"}, "no quantization bitsandbytes"),
        (
            {"quantization": "quark_mxfp4", "engine": "sglang", "stored": FP8},
            "no quantization quark_mxfp4 of fp8",
        ),
        ({"dtype": "float32"}, "no dtype float32"),
        ({"kv_cache_dtype": "int8"}, "no KV cache in int8"),
        ({"kv_cache_dtype": "mxfp8", "engine": "sglang"}, "no KV cache in mxfp8"),
        ({"stored": FP8 | {"kv_cache_quant_algo": "nvfp4"}}, "no KV cache in nvfp4"),
    ],
)
def test_a_missing_row_of_the_tables_is_named(
    in_the_tables: None, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(NoRow, match=why):
        a_replica(**changes)


@pytest.mark.parametrize(
    ("changes", "cache", "products"),
    [
        ({}, "bfloat16", None),
        ({"kv_cache_dtype": "bf16", "engine": "sglang"}, "bfloat16", None),
        ({"kv_cache_dtype": "fp8_e4m3", "quantization": "fp8"}, "fp8", "fp8"),
        ({"stored": FP8 | {"kv_cache_quant_algo": "FP8"}}, "fp8", None),
        (
            {"stored": FP8 | {"kv_cache_quant_algo": "FP8"}, "kv_cache_dtype": "bfloat16"},
            "bfloat16",
            None,
        ),
        ({"stored": FP8, "quantization": "fp8"}, "bfloat16", None),
    ],
)
def test_kernels_follow_the_kv_cache_and_quantization_while_loading(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], cache: str, products: str | None
) -> None:
    precisions: list[dict[str, Any]] = []

    def compiled(config: str, system: str, backend: str, words: tuple[tuple[str, Any], ...]) -> Any:
        precisions.append(dict(words))
        return Kernels()

    monkeypatch.setattr(step_tables, "_compiled", compiled)
    a_replica(**changes)
    assert [
        (options["kvcache_quant_mode"], options.get("gemm_quant_mode")) for options in precisions
    ] == [(cache, products)]


def test_without_the_package_the_tables_have_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", None)
    step_tables._compiled.cache_clear()
    with pytest.raises(NoRow, match=r"not installed: pip install 'aiconfigurator-core=="):
        a_replica()
    step_tables._compiled.cache_clear()


def test_a_shape_beyond_the_tables_is_an_error_of_one_line(in_the_tables: None) -> None:
    with pytest.raises(NoRow, match=r"^RuntimeError: no bracket$"):
        a_replica().costs.decode(65, 65, 0.0)


class TestInstalled:
    """With the package itself: ``pip install aiconfigurator-core==0.12.0``."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("aiconfigurator_core", reason="the extra [tables] is not installed")

    @pytest.mark.filterwarnings("default")
    def test_a_decode_step_of_llama_8b_is_within_a_tenth_of_the_formula(
        self,
    ) -> None:
        by_tables, by_formula = a_replica().costs, a_replica(Constants()).costs
        for sequences in (1, 32):
            steps = [
                costs.decode(sequences, sequences * 1024, 0.0).step_s
                for costs in (by_tables, by_formula)
            ]
            assert steps[0] == pytest.approx(steps[1], rel=0.1)

    @pytest.mark.filterwarnings("default")
    def test_a_model_without_a_row_is_named_as_one(self) -> None:
        facts, device = model_facts("google/gemma-2-9b-it"), find("H100")
        assert facts and device
        settings = EngineSettings(engine="vllm", model="google/gemma-2-9b-it")
        with pytest.raises(NoRow, match="Gemma2"):
            replica(settings, facts, device, HOST)
