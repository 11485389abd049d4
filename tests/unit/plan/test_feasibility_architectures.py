"""Verdicts on models that an engine lacks, on hybrids, and on figures that are lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.memory import GIB, kv_bytes_per_sequence, weights
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs
from orchestrator.engines import architectures
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.feasibility import Feasibility, assess
from orchestrator.plan.placement import placement_problems
from orchestrator.spec.settings import EngineSettings, Hardware
from scripts import record_architectures
from tests.unit.catalog import test_parameters

LLAMA = known_configs()["meta-llama/Llama-3.1-8B-Instruct"]
SPARSE = known_configs()["deepseek-ai/DeepSeek-V3"] | {
    "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
PLACES = Path(__file__).resolve().parents[3] / ".engines"


def facts(config: dict[str, Any], **changes: Any) -> ModelFacts:
    found = facts_from_config("m", config | changes)
    assert found is not None
    return found


def judge(
    model: ModelFacts, engine: str = "vllm", accelerator: str = "H100-80GB", **given: Any
) -> Feasibility:
    hardware = Hardware(name="x", accelerator=accelerator, gpus_per_node=8)
    values = {"engine": engine, "model": "m", "max_model_len": 4096} | given
    return assess(EngineSettings.model_validate(values), model, hardware)


@pytest.mark.parametrize(
    ("engine", "architecture", "kind", "sentence"),
    [
        ("tgi", "Qwen3_5ForConditionalGeneration", "qwen3_5",
         "TGI 3.3.7 has no code for qwen3_5 of its own; transformers' code may run it"),
        ("tensorrt_llm", "Gemma3nForConditionalGeneration", "llama",
         "TensorRT-LLM 1.2 to 1.4.0rc1 has no code for Gemma3nForConditionalGeneration"),
        ("sglang", "BrandNewForCausalLM", "llama",
         ("SGLang 0.5.23 has no code for BrandNewForCausalLM of its own; transformers' code may "
         "run it")),
    ],
)  # fmt: skip
def test_a_model_that_an_engine_has_no_code_for_is_a_risk(
    engine: str, architecture: str, kind: str, sentence: str
) -> None:
    verdict = judge(facts(LLAMA, architectures=[architecture], model_type=kind), engine)
    assert verdict.status == "risky"
    assert sentence in verdict.reasons


@pytest.mark.parametrize(
    "engine", ["vllm", "sglang", "tgi", "tensorrt_llm", "lmdeploy", "lightllm"]
)
def test_every_engine_has_code_for_llama(engine: str) -> None:
    verdict = judge(facts(LLAMA, architectures=["LlamaForCausalLM"]), engine)
    assert (verdict.status, verdict.reasons) == ("fits", ())


def test_a_config_without_architectures_is_not_held_against_lists_of_them() -> None:
    assert judge(facts(LLAMA)).reasons == ()
    named = facts(LLAMA, architectures=["BrandNewForCausalLM"])
    assert judge(named, extra_args={"--model-impl": "transformers"}).reasons == ()


def test_lmdeploy_says_when_its_other_backend_runs_the_model() -> None:
    model = facts(LLAMA, architectures=["Glm4MoeForCausalLM"])
    sentence = "turbomind has no Glm4MoeForCausalLM: LMDeploy runs its pytorch backend instead"
    assert judge(model, "lmdeploy").remarks == (sentence,)
    chosen = judge(model, "lmdeploy", extra_args={"--backend": "pytorch"})
    assert (chosen.status, chosen.reasons) == ("fits", ())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_lists_of_architectures_equal_those_of_the_installed_engine(engine: str) -> None:
    recorded = architectures.support(engine)
    found = list(PLACES.glob(f"{engine}/lib/python*/site-packages/{engine}/__init__.py"))
    if not found:
        pytest.skip(f"no environment with {engine}: make engines")
    folders = PLACES.glob(f"{engine}/lib/python*/site-packages/{engine}*-[0-9]*.dist-info")
    versions = [folder.name for folder in folders]
    assert recorded is not None
    releases = re.findall(r"[\d.]+", recorded.version)
    if not any(f"-{release}" in name for name in versions for release in releases):
        pytest.skip(f"{versions} is another release than {recorded.version}")
    _, read = record_architectures.READERS[engine]
    assert read(found[0].parent) - recorded.names == set()


@pytest.mark.parametrize("accelerator", ["A100-80GB", "L40S", "RTX 4090"])
def test_attention_with_an_indexer_needs_hopper_in_vllm(accelerator: str) -> None:
    sentence = r"sparse attention \(index_n_heads\) needs compute capability 9, .* has 8\.\d"
    for stored in ({}, {"quant_method": "awq", "bits": 4, "group_size": 128}):
        model = facts(SPARSE, quantization_config=stored)
        verdict = judge(model, accelerator=accelerator, tensor_parallel_size=8)
        assert verdict.status == "impossible"
        assert any(re.fullmatch(sentence, reason) for reason in verdict.reasons)


def test_attention_with_an_indexer_is_no_reason_elsewhere() -> None:
    for engine, accelerator in (("vllm", "H200"), ("vllm", "MI300X"), ("sglang", "A100-80GB")):
        verdict = judge(facts(SPARSE), engine, accelerator, tensor_parallel_size=8)
        assert not any("index_n_heads" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sglang_computes_quantized_checkpoints_in_16_bits_alone(dtype: str) -> None:
    int8 = {"quant_method": "compressed-tensors", "config_groups": {"g": {
        "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    }}}  # fmt: skip
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    for stored in (int8, awq):
        model = facts(LLAMA, quantization_config=stored)
        verdict = judge(model, "sglang", dtype=dtype)
        assert (verdict.status == "impossible") is (dtype == "float32")
    assert judge(facts(LLAMA), "sglang", dtype=dtype).status == "fits"


@pytest.mark.parametrize(
    ("engine", "extra_args", "devices"),
    [
        ("vllm", {"--prefill-context-parallel-size": 2}, 8),
        ("vllm", {"-pcp": "2"}, 8),
        ("vllm", {"--prefill-context-parallel-size=2": True}, 8),
        ("vllm", {"--decode-context-parallel-size": 2}, 4),
        ("vllm", {"--prefill-context-parallel-size": "many"}, 4),
        ("tensorrt_llm", {"context_parallel_size": 2}, 8),
        ("sglang", {"--attn-cp-size": 2}, 4),
    ],
)
def test_context_parallelism_multiplies_the_gpus_where_the_engine_says_so(
    engine: str, extra_args: dict[str, Any], devices: int
) -> None:
    settings = EngineSettings(
        engine=engine, model="m", tensor_parallel_size=4, extra_args=extra_args
    )
    assert settings.world_size == settings.devices == devices
    hardware = Hardware(name="x", accelerator="H100-80GB", gpus_per_node=4)
    assert bool(placement_problems(settings, hardware)) is (devices > 4)
    if devices > 4:
        verdict = judge(facts(LLAMA), engine, tensor_parallel_size=4, extra_args=extra_args)
        assert verdict.starts[""].weight_bytes is None


def test_figures_that_are_lists_give_no_number() -> None:
    """ERNIE-4.5-VL-28B has experts for text and for images; it was taken for 3.35 billion."""
    ernie = {
        "model_type": "ernie4_5_moe_vl", "hidden_size": 2560, "num_hidden_layers": 28, "num_attention_heads": 20,
        "num_key_value_heads": 4, "intermediate_size": 12288, "vocab_size": 103424, "moe_num_experts": [64, 64],
        "moe_intermediate_size": [1536, 512], "moe_k": 6, "max_position_embeddings": 131072,
    }  # fmt: skip
    verdict = judge(facts(ernie), accelerator="L4")
    assert verdict.starts[""].weight_bytes is None
    assert verdict.starts[""].parameters is None
    assert "nothing is known of its weights" in verdict.remarks[0]
    files = facts_from_config("m", ernie, checkpoint_bytes=58_000_000_000)
    assert files is not None
    assert judge(files, accelerator="L4").status == "impossible"


def test_a_figure_that_is_the_same_for_every_layer_is_one_figure() -> None:
    listed = facts(LLAMA, intermediate_size=[14336] * 32)
    assert listed.parameters == facts(LLAMA).parameters
    assert not facts(LLAMA, intermediate_size=[14336] * 31 + [7168]).has_parameter_count


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text", "mimo"])
def test_qwen2_under_another_name_is_qwen2(kind: str) -> None:
    """Qwen2.5-VL-72B has 147 GB in 16 bits: half of that is no risk but impossible."""
    config = known_configs()["Qwen/Qwen2.5-72B-Instruct"]
    model = facts({"model_type": "w", "text_config": config | {"model_type": kind}})
    assert model.parameters == facts(config).parameters
    assert judge(model).status == "impossible"


HYBRIDS = ("granite-4.0-h-small", "Falcon-H1-34B", "AI21-Jamba-1.5-Mini", "Kimi-Linear-48B-A3B")


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_of_attention_and_mamba_have_weights_kv_cache_and_state(name: str) -> None:
    model = test_parameters.facts(name)
    assert model.language_model_counted and model.all_parameters_counted
    assert weights(model).total == pytest.approx(2 * model.parameters.total)
    settings = EngineSettings(engine="vllm", model="m")
    short, long = (
        kv_bytes_per_sequence(model, settings, tokens, 2048, 16) for tokens in (16, 16 + 1600)
    )
    attention = {"granite-4.0-h-small": 4, "Falcon-H1-34B": 72, "AI21-Jamba-1.5-Mini": 4}
    if name in attention:
        shape = model.shape
        per_token = 2 * 2 * shape.num_key_value_heads * shape.head_dim * attention[name]
    else:
        per_token = 2 * (512 + 64) * 7  # latents in seven layers
    assert long - short == 1600 * per_token
    assert short - 16 * per_token == 2 * model.shape.state_elements > 0


def test_a_state_has_the_numbers_of_the_published_figures() -> None:
    """Of granite-4.0-h-small 36 layers: 128 heads of 64 with 128 states, and three steps of a
    convolution over 8192 + 2 * 128 channels.
    """
    shape = test_parameters.facts("granite-4.0-h-small").shape
    assert shape.state_elements == 36 * (128 * 64 * 128 + 3 * (8192 + 256))


def test_jamba_large_on_eight_h100_is_impossible_without_its_files() -> None:
    verdict = judge(test_parameters.facts("AI21-Jamba-1.5-Large"), tensor_parallel_size=8)
    assert verdict.status == "impossible"
    assert verdict.starts[""].weight_bytes / GIB == pytest.approx(797e9 / 8 / GIB, rel=0.01)


def test_every_engine_in_the_lists_is_one_that_is_launched() -> None:
    for name in record_architectures.READERS:
        assert ENGINES[name].launches
        assert architectures.support(name) is not None


@pytest.mark.parametrize(
    "experts",
    [
        {"moe_num_experts": [64, 64], "moe_intermediate_size": [1536, 512]},
        {"ffn_config": {"moe_num_experts": 16, "moe_top_k": 4}},
        {"experts_by_another_name": 8},
    ],
)
def test_experts_that_no_formula_finds_are_not_denied(experts: dict[str, Any]) -> None:
    model = facts(LLAMA, model_type="exotic", **experts)
    verdict = judge(model, enable_expert_parallel=True, tensor_parallel_size=2)
    assert verdict.status == "risky"


@pytest.mark.parametrize(
    "key",
    [
        {"attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 4},
        {"layer_group_size": 8},
        {"lru_width": 4096},
        {"ffn_config": {"moe_num_experts": 16}},
    ],
)
def test_no_kv_cache_is_predicted_of_layers_that_have_none(key: dict[str, Any]) -> None:
    verdict = judge(facts(LLAMA, model_type="exotic", **key))
    assert verdict.starts[""].kv_cache_tokens is None
    assert verdict.starts[""].weight_bytes is None
