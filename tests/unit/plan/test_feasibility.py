"""Every rule of feasibility, with the sentence it gives and the neighbouring case it lets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs
from orchestrator.plan.feasibility import Feasibility, assess
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
T4 = Hardware(name="t4", accelerator="T4-16GB")
A100 = Hardware(name="a100", accelerator="A100-80GB")
CPU = Hardware(name="cpu")
LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
QWEN_MOE = "Qwen/Qwen3-30B-A3B"
MIXTRAL, DEEPSEEK, GPT_OSS = (
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-120b",
)
FP8_MOE = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def facts(name: str = LLAMA_8B, **changes: Any) -> ModelFacts:
    found = facts_from_config(name, known_configs()[name] | changes)
    assert found is not None
    return found


def judge(
    model: ModelFacts | str = LLAMA_8B, hardware: Hardware = H100, **settings: Any
) -> Feasibility:
    known = facts(model) if isinstance(model, str) else model
    values = {"engine": "vllm", "model": "m", "max_model_len": 4096} | settings
    return assess(EngineSettings(**values), known, hardware)


def test_a_common_deployment_fits_and_says_what_to_expect() -> None:
    verdict = judge()
    assert (verdict.status, verdict.reasons) == ("fits", ())
    assert verdict.starts[""].weight_bytes == pytest.approx(16.06e9, rel=0.001)
    assert verdict.starts[""].kv_cache_tokens == pytest.approx(450_000, rel=0.05)
    assert verdict.starts[""].max_concurrency == pytest.approx(110, rel=0.05)
    assert (verdict.starts[""].max_num_batched_tokens, verdict.starts[""].max_num_seqs) == (
        8192,
        1024,
    )


IMPOSSIBLE: list[tuple[str, dict[str, Any], str]] = [
    (
        LLAMA_8B,
        {"tensor_parallel_size": 3},
        "32 attention heads cannot be divided by tensor_parallel_size=3",
    ),
    (LLAMA_8B, {"pipeline_parallel_size": 33}, "more than the model's 32 layers"),
    (LLAMA_8B, {"max_model_len": 131073}, "more than the model's 131072 positions"),
    (
        LLAMA_8B,
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048},
        "without chunked prefill",
    ),
    (LLAMA_8B, {"enable_expert_parallel": True}, "no experts"),
    (LLAMA_8B, {"quantization": "awq"}, "needs a checkpoint made for it"),
    (
        DEEPSEEK,
        {"quantization": "gptq", "tensor_parallel_size": 8},
        "with fp8, quantization=gptq does not match",
    ),
    (LLAMA_8B, {"kv_cache_tokens": 4000}, "cannot hold one sequence of max_model_len=4096"),
    # vLLM keeps a block
    (LLAMA_8B, {"kv_cache_tokens": 4096}, "cannot hold one sequence of max_model_len=4096"),
    (
        LLAMA_8B,
        {"kv_cache_memory_bytes": 2**29 - 1},
        "needs 0.5 GiB of KV cache, there are 0.5 GiB",
    ),
    (LLAMA_8B, {"kv_cache_memory_bytes": 70 * 2**30}, "more than the 64."),
    (LLAMA_70B, {}, "of weights on each rank do not fit"),
    (LLAMA_8B, {"max_input_len": 4096, "engine": "tgi"}, "leaves no room for output"),
    (
        LLAMA_8B,
        {"pipeline_parallel_size": 2, "env": {"VLLM_PP_LAYER_PARTITION": "20,13"}},
        "numbers that add up to 32",
    ),
]


@pytest.mark.parametrize(("model", "changes", "words"), IMPOSSIBLE)
def test_impossible_deployments_have_a_reason(
    model: str, changes: dict[str, Any], words: str
) -> None:
    verdict = judge(model, **changes)
    assert verdict.status == "impossible"
    assert any(words in reason for reason in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (LLAMA_8B, {"tensor_parallel_size": 8}),
        (GPT_OSS, {"quantization": "nvfp4_per_token"}),  # the checkpoint's mxfp4 wins
        (LLAMA_8B, {"tensor_parallel_size": 16, "nnodes": 2}),  # 8 KV heads repeated over 16 ranks
        (LLAMA_8B, {"pipeline_parallel_size": 5}),
        (LLAMA_8B, {"max_model_len": 131072}),
        (LLAMA_8B, {"max_num_batched_tokens": 128}),  # max_num_seqs then follows
        (LLAMA_8B, {"enable_chunked_prefill": False}),
        (LLAMA_8B, {"quantization": "fp8"}),
        (LLAMA_8B, {"kv_cache_memory_bytes": 2**29}),
        (LLAMA_8B, {"kv_cache_memory_bytes": 60 * 2**30}),
        (LLAMA_8B, {"pipeline_parallel_size": 2, "env": {"VLLM_PP_LAYER_PARTITION": "20,12"}}),
        (LLAMA_70B, {"tensor_parallel_size": 2}),
        (MIXTRAL, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
        (DEEPSEEK, {"tensor_parallel_size": 16, "nnodes": 2, "quantization": "fp8"}),
        (GPT_OSS, {"quantization": "gpt_oss_mxfp4"}),
        (GPT_OSS, {}),
    ],
)
def test_its_neighbours_fit(model: str, changes: dict[str, Any]) -> None:
    assert judge(model, **changes).status == "fits", judge(model, **changes).reasons


def test_several_reasons_come_at_once_the_worst_first() -> None:
    verdict = judge(LLAMA_8B, tensor_parallel_size=3, quantization="awq", hardware=CPU)
    assert len(verdict.reasons) >= 2
    assert verdict.remarks == ("memory is not judged on cpu",)


def test_on_cpu_shapes_are_judged_and_memory_is_not() -> None:
    assert judge(LLAMA_70B, CPU).status == "fits"
    assert judge(LLAMA_70B, CPU).remarks == ("memory is not judged on cpu",)
    assert judge(LLAMA_70B, CPU, tensor_parallel_size=3).status == "impossible"


def test_on_cpu_the_cache_is_known_when_its_size_is_given() -> None:
    assert judge(LLAMA_8B, CPU).starts[""].kv_cache_tokens is None
    given = judge(LLAMA_8B, CPU, env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert given.starts[""].kv_cache_tokens == 4 * 2**30 // 131072


def test_a_model_nothing_is_known_of_fits_and_says_so() -> None:
    settings = EngineSettings(engine="vllm", model="who/knows", tensor_parallel_size=3)
    verdict = assess(settings, None, H100)
    assert (verdict.status, verdict.starts) == ("fits", {})
    (remark,) = verdict.remarks
    assert remark.startswith(
        "nothing is known of who/knows (no config.json at hand): its weights, KV cache"
    )


def test_an_unknown_accelerator_without_memory_is_named_with_neighbours() -> None:
    verdict = judge(LLAMA_70B, Hardware(name="x", accelerator="H100-81GB"))
    assert verdict.status == "fits"
    assert "H100-80GB" in verdict.remarks[0]
    assert (
        judge(LLAMA_70B, Hardware(name="x", accelerator="H100-81GB", memory_gb=80)).status
        == "impossible"
    )


def test_the_users_own_memory_wins_over_the_catalogue() -> None:
    small = Hardware(name="x", accelerator="H100-80GB", memory_gb=16)
    assert judge(LLAMA_8B).status == "fits"
    assert judge(LLAMA_8B, small).status == "impossible"


def test_tight_memory_is_risky() -> None:
    verdict = judge(LLAMA_70B, quantization="fp8_per_tensor", max_model_len=8192)
    assert verdict.status == "risky"
    assert "may not hold max_model_len=8192" in verdict.reasons[0]


def test_weights_that_leave_little_room_are_risky_not_impossible() -> None:
    llama = facts(LLAMA_70B, num_hidden_layers=84)
    verdict = judge(llama, tensor_parallel_size=2, max_model_len=2048)
    assert verdict.status == "risky"
    assert "leave less than 5 % and 2 GiB of 73.3 GiB" in verdict.reasons[0]
    assert verdict.starts[""].kv_cache_tokens > 2048


def test_memory_of_an_unknown_architecture_is_never_a_reason_for_impossible() -> None:
    unknown = facts(LLAMA_70B, model_type="brand_new")
    verdict = judge(unknown)
    assert verdict.status == "risky"
    assert any("no formula for brand_new" in remark for remark in verdict.remarks)


def test_offloaded_weights_need_no_room() -> None:
    assert judge(LLAMA_70B, cpu_offload_gb=80).status != "impossible"


@pytest.mark.parametrize(
    ("engine", "tensor", "status"),
    [
        ("vllm", 16, "fits"),
        ("sglang", 16, "fits"),
        ("lmdeploy", 16, "fits"),
        ("tgi", 16, "impossible"),
        ("tgi", 8, "fits"),
    ],
)
def test_kv_heads_are_repeated_by_all_engines_but_tgi(
    engine: str, tensor: int, status: str
) -> None:
    big = Hardware(name="big", accelerator="H100-80GB", gpus_per_node=16)
    assert judge(LLAMA_8B, big, engine=engine, tensor_parallel_size=tensor).status == status


def test_kv_heads_that_neither_divide_nor_repeat_cannot_be_loaded() -> None:
    odd = facts(LLAMA_8B, num_attention_heads=24, num_key_value_heads=3, head_dim=128)
    assert judge(odd, tensor_parallel_size=3).status == "impossible"  # 14336 / 3
    assert "3 KV heads can neither" in judge(odd, tensor_parallel_size=2).reasons[0]
    assert (
        judge(facts(DEEPSEEK, quantization_config=None), CPU, tensor_parallel_size=128).status
        == "fits"
    )  # a latent has no heads


@pytest.mark.parametrize(
    ("engine", "status"),
    [("vllm", "impossible"), ("sglang", "impossible"), ("tgi", "risky"), ("llama_cpp", "risky")],
)
def test_more_tokens_than_positions_is_refused_by_some_engines_only(
    engine: str, status: str
) -> None:
    assert judge(facts(LLAMA_8B, max_position_embeddings=2048), engine=engine).status == status


def test_a_slot_of_llama_cpp_holds_no_more_than_the_models_positions() -> None:
    verdict = judge(
        facts(LLAMA_8B, max_position_embeddings=2048), engine="llama_cpp", kv_cache_dtype="q8_0"
    )
    assert verdict.starts[""].max_model_len == 2048
    assert verdict.starts[""].kv_bytes_per_token == 2 * 32 * 8 * 128 * 34 / 32
    assert "max_model_len=4096 is more than the model's 2048 positions" in verdict.reasons


@pytest.mark.parametrize(
    "given",
    [
        {"--override-kv": "llama.context_length=int:8192"},
        {"--override-kv": ["a=int:1", "llama.context_length=int:8192"]},
    ],
)
def test_positions_given_to_llama_cpp_count(given: dict[str, Any]) -> None:
    verdict = judge(
        facts(LLAMA_8B, max_position_embeddings=2048), engine="llama_cpp", extra_args=given
    )
    assert (verdict.starts[""].max_model_len, verdict.status) == (4096, "fits")


@pytest.mark.parametrize(
    ("given", "judged"),
    [
        ({"--n-cpu-moe": 4}, False),
        ({"-cmoe": True}, False),
        ({"-ot": ["a=CPU", "b=CPU"]}, False),
        ({"--no_kv_offload": True}, False),
        ({"--n-cpu-moe": 0}, True),
        ({"--cpu-moe": False}, True),
        ({"--mlock": True}, True),
    ],
)
def test_memory_that_llama_cpp_leaves_to_the_host_is_not_judged(
    given: dict[str, Any], judged: bool
) -> None:
    verdict = judge(LLAMA_70B, engine="llama_cpp", extra_args=given)
    assert verdict.status == ("impossible" if judged else "fits")
    assert (
        any(f"memory is not judged with {next(iter(given))}" in one for one in verdict.remarks)
        is not judged
    )
    assert judge(LLAMA_70B, extra_args=given).status == "impossible", "another engine"


@pytest.mark.parametrize(
    ("engine", "given"),
    [
        ("tensorrt_llm", {"enable_attention_dp": True}),
        ("vllm", {"--offload-group-size": 8}),
        ("vllm", {"--offload-num-in-group": 6}),
        ("vllm", {"--decode-context-parallel-size": 8}),
        ("vllm", {"-dcp": 8}),
        ("vllm", {"--quantization-config": '{"linear":"fp8_per_tensor"}'}),
        ("sglang", {"--offload-group-size": 8}),
        ("sglang", {"--offload-num-in-group": 4}),
        ("sglang", {"--dcp-size": 8}),
        ("sglang", {"--decode-context-parallel-size": 8}),
    ],
)
def test_memory_that_extra_args_lay_out_otherwise_is_not_judged(
    engine: str, given: dict[str, Any]
) -> None:
    verdict = judge(LLAMA_70B, engine=engine, extra_args=given)
    assert verdict.status == "fits"
    assert f"memory is not judged with {next(iter(given))}" in verdict.remarks
    unknown = ("weight_bytes", "kv_bytes_per_token", "kv_cache_memory_bytes", "kv_cache_tokens")
    assert [getattr(verdict.starts[""], name) for name in unknown] == [None] * 4, "nor predicted"
    assert judge(LLAMA_70B, engine=engine).status == "impossible"


@pytest.mark.parametrize(
    ("engine", "given"),
    [("sglang", {"--attn-dp-size": 8}), ("tensorrt_llm", {"enable_attention_dp": True})],
)
@pytest.mark.parametrize("heads", [(28, 4), (24, 3)])
def test_ranks_that_each_have_all_of_attention_do_not_divide_its_heads(
    engine: str, given: dict[str, Any], heads: tuple[int, int]
) -> None:
    model = facts(
        LLAMA_8B, num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=128
    )
    assert judge(model, engine=engine, tensor_parallel_size=8, extra_args=given).status == "fits"
    assert judge(model, engine=engine, tensor_parallel_size=8).status == "impossible"


L4 = Hardware(name="l4", accelerator="L4")
LONG = {"max_model_len": 131072}


@pytest.mark.parametrize(
    ("engine", "given", "status"),
    [
        # Llama-3.1-8B leaves 3 to 7 GiB of an L4, and its 131,072 positions are 16 GiB of KV cache.
        ("vllm", {}, "impossible"),
        ("vllm", LONG, "impossible"),
        ("lightllm", LONG, "impossible"),  # basemodel.py: _check_mem_size
        ("lmdeploy", {}, "risky"),  # it serves as much as fits
        ("lmdeploy", LONG, "risky"),
        ("tensorrt_llm", {}, "risky"),  # "maxSequenceLen … too large …: reduced"
        ("tensorrt_llm", LONG, "risky"),
        ("tensorrt_llm", LONG | {"kv_cache_tokens": 8192}, "risky"),
        ("transformers", {}, "risky"),  # it has no length of its own
        ("tgi", {}, "risky"),  # "Maximum total tokens defaulted to …"
        ("tgi", LONG, "impossible"),  # backends/v3/src/lib.rs: NotEnoughMemory
    ],
)
def test_a_length_beyond_memory_is_impossible_in_some_engines_only(
    engine: str, given: dict[str, Any], status: str
) -> None:
    verdict = judge(LLAMA_8B, L4, **{"engine": engine, "max_model_len": None} | given)
    assert verdict.status == status, verdict.reasons
    assert any("max_model_len=131072" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("engine", "status"), [("llama_cpp", "risky"), ("lightllm", "risky"), ("tensorrt_llm", "fits")]
)
def test_a_cache_of_fixed_size_must_fit(engine: str, status: str) -> None:
    rtx = Hardware(name="rtx", accelerator="RTX 4090")
    assert judge(LLAMA_8B, rtx, engine=engine, kv_cache_tokens=32 * 8192).status == status
    assert judge(LLAMA_8B, rtx, engine=engine, kv_cache_tokens=8 * 4096).status == "fits"


@pytest.mark.parametrize(
    ("engine", "given", "length", "status"),
    [
        ("vllm", {}, 4096, "fits"),  # config/model.py: _get_and_verify_max_len
        ("vllm", {"max_model_len": 65536}, 65536, "impossible"),  # 24 GiB of KV cache
        ("sglang", {}, 131072, "risky"),
    ],
)
def test_vllm_serves_no_more_of_longrope_than_it_extends_unless_asked(
    engine: str, given: dict[str, Any], length: int, status: str
) -> None:
    """As microsoft/Phi-3.5-mini-instruct has it."""
    rope = {"type": "longrope", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    phi = {
        "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 32064, "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096, "rope_scaling": rope,
    }  # fmt: skip
    known = facts_from_config("microsoft/Phi-3.5-mini-instruct", phi)
    assert known is not None and known.max_model_len == 131072
    verdict = judge(known, L4, **{"engine": engine, "max_model_len": None} | given)
    assert (verdict.starts[""].max_model_len, verdict.status) == (length, status), verdict.reasons


def test_the_engines_own_variable_for_longer_contexts_is_respected() -> None:
    allowed = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert judge(facts(LLAMA_8B, max_position_embeddings=2048), env=allowed).status == "risky"


@pytest.mark.parametrize(
    ("engine", "tensor", "expert", "status"),
    [
        ("sglang", 4, False, "fits"),
        ("sglang", 8, False, "impossible"),
        ("sglang", 8, True, "fits"),
        # blocks of 64: 0.32 has kernels for them, earlier releases refuse
        ("vllm", 8, False, "risky"),
        ("vllm", 64, False, "impossible"),  # 24 on each: no whole block of 32
    ],
)
def test_the_classic_failure_of_fp8_blocks_over_narrow_experts_is_found(
    engine: str, tensor: int, expert: bool, status: str
) -> None:
    """moe_intermediate_size 1536 over 8 ranks is 192, no multiple of 128: use 4 ranks or expert
    parallelism.
    """
    qwen = facts("Qwen/Qwen3-235B-A22B", quantization_config=FP8_MOE)
    big = Hardware(name="b300", accelerator="B300-288GB")
    given = {
        "engine": engine,
        "tensor_parallel_size": tensor,
        "enable_expert_parallel": expert or None,
    }
    assert judge(qwen, big, **given).status == status


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


def compressed(bits: int, kind: str, strategy: str, activations: bool) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": kind,
        "strategy": strategy,
        "group_size": 128 if strategy == "group" else None,
    }
    groups = {
        "group_0": {
            "weights": weights,
            "input_activations": {"num_bits": 8} if activations else None,
        }
    }
    return {"quant_method": "compressed-tensors", "config_groups": groups}


INT8, PACKED4 = (
    compressed(8, "int", "channel", activations=True),
    compressed(4, "int", "group", activations=False),
)
CHANNEL_FP8 = compressed(8, "float", "channel", activations=True)


@pytest.mark.parametrize(
    ("changes", "engine", "status"),
    [
        ({"intermediate_size": 14400}, "vllm", "impossible"),  # 56.25 groups on each rank
        ({"intermediate_size": 14400}, "sglang", "risky"),  # not tried
        # o_proj's inputs: 7.5 groups
        ({"num_attention_heads": 24, "head_dim": 80}, "vllm", "impossible"),
        # K and V: outputs
        ({"num_key_value_heads": 2, "head_dim": 64, "num_attention_heads": 64}, "vllm", "fits"),
        ({}, "vllm", "fits"),
    ],
)
@pytest.mark.parametrize("grouped", [GPTQ, AWQ, PACKED4], ids=["gptq", "awq", "packed"])
def test_groups_may_not_be_cut_by_two_ranks(
    grouped: dict[str, Any], changes: dict[str, Any], engine: str, status: str
) -> None:
    """GPTQ and AWQ then answer token 0 for ever, packed weights are refused: groups run along a
    layer's inputs.
    """
    model = facts(LLAMA_8B, **changes, quantization_config=grouped)
    assert judge(model, tensor_parallel_size=2, engine=engine).status == status


@pytest.mark.parametrize(
    ("grouped", "model", "changes", "hardware", "status"),
    [
        (GPTQ, QWEN_MOE, {}, H100, "risky"),  # 96 wide on each rank: three groups of 32
        (AWQ, QWEN_MOE, {}, H100, "risky"),
        (GPTQ | {"quant_method": "auto-round"}, QWEN_MOE, {}, H100, "risky"),
        (GPTQ, QWEN_MOE, {"moe_intermediate_size": 1024}, H100, "fits"),
        (GPTQ, QWEN_MOE, {"moe_intermediate_size": 800}, H100, "impossible"),  # 100 wide
        # a linear layer's groups are not halved
        (GPTQ, QWEN_MOE, {"head_dim": 80}, H100, "impossible"),
        # nor those of its dense layer
        (GPTQ, "deepseek-ai/DeepSeek-V2-Lite-Chat", {}, H100, "impossible"),
        (PACKED4, QWEN_MOE, {}, H100, "impossible"),
        (GPTQ, QWEN_MOE, {}, CPU, "impossible"),
    ],
)
def test_vllm_halves_the_groups_of_experts_in_some_checkpoints(
    grouped: dict[str, Any], model: str, changes: dict[str, Any], hardware: Hardware, status: str
) -> None:
    known = facts(model, **changes, quantization_config=grouped)
    assert judge(known, hardware, tensor_parallel_size=8).status == status


@pytest.mark.parametrize(
    ("stored", "changes", "status"),
    [
        # each as vLLM 0.32 was seen to do on a CPU with AVX512: serve, refuse or answer noise; with
        # AVX2 alone 4-bit weights fail while it serves
        (None, {"dtype": "float32"}, "fits"),
        (INT8, {"dtype": "float32"}, "fits"),
        (compressed(8, "int", "tensor", True), {}, "fits"),
        (GPTQ, {}, "risky"),
        (AWQ, {"dtype": "float16"}, "risky"),
        (PACKED4, {}, "risky"),
        (compressed(8, "float", "channel", True), {"dtype": "float32"}, "fits"),
        (None, {"quantization": "fp8_per_channel"}, "fits"),
        (None, {"quantization": "fp8"}, "risky"),
        (None, {"quantization": "fp8_per_tensor"}, "risky"),
        (None, {"quantization": "fp8_per_block"}, "risky"),
        (None, {"quantization": "humming"}, "risky"),
        (None, {"quantization": "torchao"}, "risky"),
        ({"quant_method": "fp8"}, {}, "risky"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {}, "risky"),
        (compressed(8, "float", "channel", False), {}, "impossible"),
        (GPTQ | {"bits": 8}, {}, "impossible"),
        (compressed(8, "int", "group", False), {}, "impossible"),
        (None, {"quantization": "mxfp8"}, "impossible"),
        (None, {"quantization": "mxfp4"}, "impossible"),
        (PACKED4, {"dtype": "float32"}, "impossible"),
        (AWQ, {"quantization": "awq"}, "risky"),
        (AWQ, {"quantization": "awq_marlin"}, "impossible"),
        (AWQ, {"quantization": "moe_wna16"}, "impossible"),
        (AWQ, {"quantization": "inc"}, "impossible"),
        (GPTQ, {"quantization": "gptq_marlin"}, "risky"),
        (GPTQ, {"quantization": "inc"}, "impossible"),
        (INT8, {"quantization": "mxfp8"}, "impossible"),
        (INT8, {"quantization": "moe_wna16"}, "impossible"),
        ({"quant_method": "fp8"}, {"quantization": "marlin"}, "impossible"),
        (GPTQ, {"quantization": "marlin"}, "risky"),
        (None, {"quantization": "int8_per_channel_weight_only", "dtype": "float32"}, "impossible"),
        (None, {"kv_cache_dtype": "fp8_e5m2"}, "fits"),
        (AWQ, {"kv_cache_dtype": "fp8"}, "risky"),
        (None, {"kv_cache_dtype": "turboquant_k8v4"}, "risky"),
        (None, {"kv_cache_dtype": "int8_per_token_head"}, "impossible"),
        (None, {"kv_cache_dtype": "nvfp4"}, "impossible"),
        (INT8 | {"kv_cache_scheme": {"num_bits": 4, "type": "float"}}, {}, "impossible"),
    ],
)
def test_what_vllm_computes_on_a_cpu(
    stored: dict[str, Any] | None, changes: dict[str, Any], status: str
) -> None:
    assert judge(facts(LLAMA_8B, quantization_config=stored), CPU, **changes).status == status


@pytest.mark.parametrize(
    ("stored", "status"),
    [
        (GPTQ, "impossible"),
        (AWQ, "impossible"),
        ({"quant_method": "fp8"}, "impossible"),
        (INT8, "fits"),
        (None, "fits"),
    ],
)
def test_float32_is_refused_beside_most_methods_on_every_device(
    stored: dict[str, Any] | None, status: str
) -> None:
    for hardware in (H100, CPU):
        assert (
            judge(facts(LLAMA_8B, quantization_config=stored), hardware, dtype="float32").status
            == status
        )


def test_a_checkpoint_brings_its_own_kv_type_along() -> None:
    def tokens(stored: dict[str, Any], **changes: Any) -> float:
        model = facts(LLAMA_8B, quantization_config=stored)
        return float(
            judge(model, CPU, kv_cache_memory_bytes=1 << 30, **changes).starts[""].kv_cache_tokens
        )

    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
    modelopt = {
        "quant_method": "modelopt",
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    }
    assert (
        tokens(INT8 | scheme)
        == tokens(modelopt)
        == tokens(INT8, kv_cache_dtype="fp8")
        == 2 * tokens(INT8)
    )
    assert tokens(INT8 | scheme, kv_cache_dtype="bfloat16") == tokens(INT8)


@pytest.mark.parametrize(
    ("hardware", "changes", "status"),
    [
        (T4, {"dtype": "bfloat16"}, "impossible"),
        (T4, {"dtype": "float16"}, "fits"),
        (T4, {"quantization": "mxfp4"}, "impossible"),
        (A100, {"quantization": "fp8_per_tensor"}, "risky"),
        (A100, {"kv_cache_dtype": "fp8"}, "risky"),
        (H100, {"quantization": "fp8_per_tensor"}, "fits"),
        (H100, {"quantization": "nvfp4_per_token"}, "impossible"),
        (A100, {"engine": "sglang", "quantization": "w8a8_fp8"}, "impossible"),
    ],
)
def test_the_devices_capability_is_checked(
    hardware: Hardware, changes: dict[str, Any], status: str
) -> None:
    assert judge(facts("meta-llama/Llama-3.2-1B-Instruct"), hardware, **changes).status == status


NVFP4, FP8 = ({"quant_method": "modelopt", "quant_algo": name} for name in ("NVFP4", "FP8"))


@pytest.mark.parametrize(
    ("engine", "stored", "accelerator", "status"),
    [
        # vLLM 0.32 takes CUTLASS for INT8, which has none for Blackwell (its issue 54311); nor has
        # SGLang's
        ("vllm", INT8, "B200", "risky"),
        ("vllm", INT8, "RTX 5090", "risky"),
        ("vllm", INT8, "H100", "fits"),
        ("vllm", CHANNEL_FP8, "B200", "fits"),
        ("vllm", PACKED4, "B200", "fits"),
        ("sglang", INT8, "B200", "risky"),
        ("sglang", INT8, "L40S", "fits"),
        # TensorRT-LLM 1.2, docs/source/features/quantization.md: Hardware Support Matrix
        ("tensorrt_llm", NVFP4, "B200", "fits"),
        ("tensorrt_llm", NVFP4, "RTX 5090", "fits"),
        ("tensorrt_llm", NVFP4, "H100", "risky"),
        ("tensorrt_llm", FP8, "H100", "fits"),
        ("tensorrt_llm", FP8, "L40S", "fits"),
        ("tensorrt_llm", FP8, "A100", "impossible"),
        ("tensorrt_llm", CHANNEL_FP8, "H100", "risky"),  # read since 2026
        ("vllm", NVFP4, "H100", "fits"),  # as weights only
    ],
)
def test_kernels_that_may_be_missing_for_a_device_are_a_risk(
    engine: str, stored: dict[str, Any], accelerator: str, status: str
) -> None:
    verdict = judge(
        facts(quantization_config=stored),
        Hardware(name="x", accelerator=accelerator),
        engine=engine,
    )
    assert verdict.status == status, verdict.reasons


def test_indivisible_experts_are_a_risk_in_some_engines_only() -> None:
    three = {"data_parallel_size": 3, "enable_expert_parallel": True, "tensor_parallel_size": 1}
    assert judge(MIXTRAL, CPU, **three).status == "fits"
    assert judge(MIXTRAL, CPU, **three, engine="sglang").status == "risky"


def test_data_parallel_ranks_of_vllm_span_nodes_if_the_model_has_experts() -> None:
    spans: dict[str, Any] = {"tensor_parallel_size": 16, "data_parallel_size": 2, "nnodes": 4}
    verdict = judge(LLAMA_70B, **spans)
    assert verdict.status == "impossible" and "would meet at one address" in verdict.reasons[0]
    assert "one address" not in "".join(judge(DEEPSEEK, **spans).reasons)
    assert judge(LLAMA_70B, **spans | {"nnodes": 2, "tensor_parallel_size": 8}).status == "fits", (
        "whole ranks on a node"
    )


def test_a_draft_model_must_speak_the_same_vocabulary() -> None:
    speculative = Speculative(method="draft_model", num_speculative_tokens=3, model="draft")
    settings = EngineSettings(
        engine="vllm",
        model="m",
        speculative=speculative,
        tensor_parallel_size=4,
        max_model_len=4096,
    )
    assert (
        assess(
            settings, facts(LLAMA_70B), H100, draft=facts("meta-llama/Llama-3.2-1B-Instruct")
        ).status
        == "fits"
    )
    wrong = assess(settings, facts(LLAMA_70B), H100, draft=facts("Qwen/Qwen2.5-0.5B-Instruct"))
    assert "vocabulary has 151936 tokens, the model's 128256" in wrong.reasons[0]
    assert "14 heads cannot be divided by 4" in wrong.reasons[1]


@pytest.mark.parametrize(("tokens", "status"), [(128, "fits"), (-128, "fits"), (129, "impossible")])
def test_a_draft_of_llama_cpp_may_have_a_slightly_different_vocabulary(
    tokens: int, status: str
) -> None:
    speculative = Speculative(method="draft_model", num_speculative_tokens=3, model="draft")
    given = {"tensor_parallel_size": 4, "max_model_len": 4096, "max_num_seqs": 8}
    settings = EngineSettings(engine="llama_cpp", model="m", speculative=speculative, **given)
    draft = facts("Qwen/Qwen2.5-0.5B-Instruct", vocab_size=128256 + tokens)
    assert assess(settings, facts(LLAMA_70B), H100, draft=draft).status == status


@given(
    tensor=st.integers(1, 16),
    pipeline=st.integers(1, 40),
    length=st.integers(16, 200_000),
    utilization=st.floats(0.1, 1),
    name=st.sampled_from(sorted(known_configs())),
)
def test_more_memory_never_makes_a_deployment_less_feasible(
    tensor: int, pipeline: int, length: int, utilization: float, name: str
) -> None:
    order = ["impossible", "risky", "fits"]
    sizes = (24.0, 48.0, 80.0, 192.0, 1000.0)
    verdicts = [
        judge(
            facts(name),
            Hardware(name="x", accelerator="H100-80GB", memory_gb=size),
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            max_model_len=length,
            gpu_memory_utilization=utilization,
            max_num_batched_tokens=2048,
            max_num_seqs=256,
        )
        for size in sizes
    ]
    ranks = [order.index(verdict.status) for verdict in verdicts]
    assert ranks == sorted(ranks)


@given(st.sampled_from(sorted(known_configs())), st.integers(1, 8), st.integers(1, 8))
def test_ranks_share_the_weights_and_never_hold_less_than_their_part(
    name: str, tensor: int, pipeline: int
) -> None:
    whole = judge(facts(name), CPU).starts[""].weight_bytes
    part = (
        judge(facts(name), CPU, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
        .starts[""]
        .weight_bytes
    )
    assert isinstance(whole, int)
    assert isinstance(part, int)
    assert whole / tensor / pipeline * 0.999 <= part <= whole + 1


def test_the_checkpoints_size_wins_over_the_formula_where_it_is_quantized() -> None:
    plain = judge(facts(DEEPSEEK), CPU).starts[""].weight_bytes
    sized = (
        judge(replace(facts(DEEPSEEK), draft_layers=0, checkpoint_bytes=700_000_000_000), CPU)
        .starts[""]
        .weight_bytes
    )
    assert plain == pytest.approx(673e9, rel=0.01)
    assert sized == pytest.approx(700e9, rel=0.001)


@pytest.mark.parametrize(
    ("engine", "method", "needed"),
    [
        ("vllm", "awq", True),
        ("vllm", "fp8", False),
        ("vllm", "fp8_per_tensor", False),
        ("vllm", "modelopt_fp4", True),
        ("sglang", "modelopt_fp8", True),
        ("sglang", "modelopt_fp4", False),
        ("sglang", "fp8", False),
        ("sglang", "w8a8_int8", True),
        ("tgi", "exl2", True),
        ("tgi", "eetq", False),
        ("lmdeploy", "fp8", True),
        ("lmdeploy", "mxfp4", True),
        ("lmdeploy", "hf", False),
        ("lightllm", "fp8w8a8", False),
        ("transformers", "bnb-4bit", False),
    ],
)
def test_a_method_needs_its_checkpoint_or_quantizes_while_it_loads(
    engine: str, method: str, needed: bool
) -> None:
    reasons = judge(LLAMA_8B, engine=engine, quantization=method).reasons
    assert any("needs a checkpoint made for it" in reason for reason in reasons) is needed


@pytest.mark.parametrize(
    ("stored", "asked", "status"),
    [
        # SGLang 0.5.23 configs/model_config.py: _verify_quantization
        (AWQ, "w8a8_int8", "impossible"),
        (FP8_MOE, "w8a8_int8", "impossible"),
        (FP8_MOE, "w8a8_fp8", "impossible"),
        (INT8, "w8a8_int8", "fits"),
        (CHANNEL_FP8, "w8a8_fp8", "fits"),
        ({"quant_method": "w8a8_int8"}, "w8a8_int8", "fits"),
        ({"quant_method": "w8a8_int8"}, "awq", "impossible"),
        # it allows these, and its parameters are of another type than the file's
        (PACKED4, "w8a8_int8", "risky"),
        (CHANNEL_FP8, "w8a8_int8", "risky"),
    ],
)
def test_sglangs_kernels_of_8_bits_take_compressed_tensors_alone(
    stored: dict[str, Any], asked: str, status: str
) -> None:
    assert (
        judge(facts(quantization_config=stored), engine="sglang", quantization=asked).status
        == status
    )


@pytest.mark.parametrize(
    ("model", "stored", "status", "words"),
    [
        (QWEN_MOE, None, "fits", ""),
        (QWEN_MOE, FP8_MOE, "fits", ""),
        (QWEN_MOE, AWQ, "impossible", "quantized with awq"),
        (LLAMA_8B, None, "risky", "for experts, the model has none"),
        (LLAMA_8B, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fits", ""),
    ],
)
def test_sglang_makes_nvfp4_of_experts_while_they_load(
    model: str, stored: dict[str, Any] | None, status: str, words: str
) -> None:
    verdict = judge(
        facts(model, quantization_config=stored), engine="sglang", quantization="modelopt_fp4"
    )
    assert verdict.status == status, verdict.reasons
    assert words in "".join(verdict.reasons)


def test_quantization_methods_that_an_engine_lacks_are_named() -> None:
    fbgemm, torchao = ({"quant_method": name} for name in ("fbgemm_fp8", "torchao"))
    assert judge(facts(quantization_config=fbgemm)).status == "impossible"
    allowed = {"--allow-deprecated-quantization": True}
    assert judge(facts(quantization_config=fbgemm), extra_args=allowed).status == "fits"
    assert judge(facts(quantization_config=torchao)).status == "fits"
    for engine, stored in (
        ("sglang", torchao),
        ("sglang", fbgemm),
        ("vllm", {"quant_method": "bitsandbytes"}),
    ):
        verdict = judge(facts(quantization_config=stored), engine=engine)
        assert verdict.status == "risky", verdict.reasons
        assert "is not part of this engine" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("model", "bytes_per_parameter", "status"),
    [
        (LLAMA_8B, None, "impossible"),  # well known, and in 16 bits
        (LLAMA_8B, 2, "impossible"),
        (LLAMA_8B, 1.1, "risky"),
        ("acme/R1-Channel-INT8", 2, "impossible"),
        # published ones say nothing of their integers in config.json
        ("acme/R1-Channel-INT8", 1.03, "risky"),
        ("acme/R1-Channel-INT8", None, "risky"),
    ],
)
def test_unnamed_integer_weights_are_known_by_the_checkpoints_size(
    model: str, bytes_per_parameter: float | None, status: str
) -> None:
    known = replace(facts(LLAMA_8B), model=model)
    if bytes_per_parameter:
        known = replace(known, checkpoint_bytes=int(bytes_per_parameter * known.parameters.total))
    verdict = judge(known, engine="sglang", quantization="w8a8_int8")
    assert verdict.status == status
    assert any(
        "quantization w8a8_int8 needs a checkpoint made for it" in reason
        for reason in verdict.reasons
    )
    assert verdict.starts[""].weight_bytes == pytest.approx(9.1e9, rel=0.03), (
        "never 2 bytes a weight"
    )


def test_vllm_allocates_the_tokens_that_are_given() -> None:
    found = judge(LLAMA_8B, H100, kv_cache_tokens=10_000_000)
    assert found.status == "risky"
    assert any("kv_cache_tokens=10000000 needs" in reason for reason in found.reasons)
