"""Parameter counts against published ones: config values written by hand from each model's
repository on the hub.

The published figure is the number of elements of its safetensors files, as the hub shows it, or the
authors' own.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs

Json = dict[str, Any]


def config(
    kind: str,
    hidden: int,
    layers: int,
    heads: int,
    kv: int,
    intermediate: int,
    vocab: int,
    **more: Any,
) -> Json:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "intermediate_size": intermediate, "vocab_size": vocab, **more,
    }  # fmt: skip


UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}
MLA = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    **UNTIED,
}

LOCAL = ["sliding_attention"] * 5 + ["full_attention"]
GEMMA_4 = {
    "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, **TIED,
}  # fmt: skip
GPT_OSS = {"head_dim": 64, "num_experts_per_tok": 4, **UNTIED}

GRANITE_4 = {
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_d_head": 64, **TIED,
}  # fmt: skip
FALCON_H1 = {
    "mamba_d_state": 256, "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_d_head": 128, "mamba_rms_norm": False, **UNTIED,
}  # fmt: skip
JAMBA = {
    "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
    "num_experts": 16, "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, **UNTIED,
}  # fmt: skip


def granite_layers(layers: int, *attention: int) -> list[str]:
    return ["attention" if layer in attention else "mamba" for layer in range(layers)]


PUBLISHED: dict[str, tuple[Json, int]] = {
    "granite-4.0-h-small": (
        config(
            "granitemoehybrid", 4096, 40, 32, 8, 768, 100352, num_local_experts=72, num_experts_per_tok=10,
            shared_intermediate_size=1536, mamba_n_heads=128, layer_types=granite_layers(40, 5, 15, 25, 35),
            **GRANITE_4,
        ),
        32_207_337_984,
    ),
    "Falcon-H1-34B": (
        config(
            "falcon_h1", 5120, 72, 20, 4, 21504, 261120, head_dim=128, mamba_d_ssm=4096, mamba_n_heads=32, **FALCON_H1
        ),
        33_642_221_312,
    ),
    "AI21-Jamba-1.5-Mini": (
        config("jamba", 4096, 32, 32, 8, 14336, 65536, mamba_dt_rank=256, **JAMBA), 51_570_323_328,
    ),
    "AI21-Jamba-1.5-Large": (
        config("jamba", 8192, 72, 64, 8, 24576, 65536, mamba_dt_rank=512, **JAMBA), 398_555_145_696,
    ),
    "Kimi-Linear-48B-A3B": (
        config(
            "kimi_linear", 2304, 27, 32, 32, 9216, 163840, head_dim=72, num_experts=256, num_experts_per_token=8,
            num_shared_experts=1, moe_intermediate_size=1024, first_k_dense_replace=1, moe_layer_freq=1,
            linear_attn_config={
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32,
                "kda_layers": [at for at in range(1, 27) if at % 4], "short_conv_kernel_size": 4,
            },
            **MLA,
        ),
        49_122_681_728,
    ),
    "Hunyuan-A13B": (
        config(
            "hunyuan_v1_moe", 4096, 32, 32, 8, 3072, 128167, head_dim=128, num_experts=64, moe_topk=[8] * 32,
            moe_intermediate_size=[3072] * 32, num_shared_expert=[1] * 32, **TIED,
        ),
        80_393_183_232,
    ),
    "Llama-3.1-8B": (config("llama", 4096, 32, 32, 8, 14336, 128256, **UNTIED), 8_030_261_248),
    "Llama-3.1-70B": (config("llama", 8192, 80, 64, 8, 28672, 128256, **UNTIED), 70_553_706_496),
    "Llama-3.1-405B": (config("llama", 16384, 126, 128, 8, 53248, 128256, **UNTIED), 405_853_388_800),
    "Llama-3.2-1B": (config("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, **TIED), 1_235_814_400),
    "TinyLlama-1.1B": (config("llama", 2048, 22, 32, 4, 5632, 32000, **UNTIED), 1_100_048_384),
    "Mistral-7B-v0.1": (config("mistral", 4096, 32, 32, 8, 14336, 32000, **UNTIED), 7_241_732_096),
    "Mistral-7B-v0.3": (config("mistral", 4096, 32, 32, 8, 14336, 32768, **UNTIED), 7_248_023_552),
    "Mistral-Nemo-12B": (config("mistral", 5120, 40, 32, 8, 14336, 131072, head_dim=128, **UNTIED), 12_247_782_400),
    "Mixtral-8x7B": (
        config("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2, **UNTIED),
        46_702_792_704,
    ),
    "Mixtral-8x22B": (
        config("mixtral", 6144, 56, 48, 8, 16384, 32768, num_local_experts=8, num_experts_per_tok=2, **UNTIED),
        140_630_071_296,
    ),
    "Qwen2.5-0.5B": (config("qwen2", 896, 24, 14, 2, 4864, 151936, **TIED), 494_032_768),
    "Qwen2.5-7B": (config("qwen2", 3584, 28, 28, 4, 18944, 152064, **UNTIED), 7_615_616_512),
    "Qwen2.5-72B": (config("qwen2", 8192, 80, 64, 8, 29568, 152064, **UNTIED), 72_706_203_648),
    "Qwen3-0.6B": (config("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128, **TIED), 596_049_920),
    "Qwen3-8B": (config("qwen3", 4096, 36, 32, 8, 12288, 151936, head_dim=128, **UNTIED), 8_190_735_360),
    "Qwen3-30B-A3B": (
        config(
            "qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[], **UNTIED,
        ),
        30_532_122_624,
    ),
    "Qwen3-235B-A22B": (
        config(
            "qwen3_moe", 4096, 94, 64, 4, 12288, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=1536, decoder_sparse_step=1, **UNTIED,
        ),
        235_093_634_560,
    ),
    "Qwen1.5-MoE-A2.7B": (
        config(
            "qwen2_moe", 2048, 24, 16, 16, 5632, 151936, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1, **UNTIED,
        ),
        14_315_784_192,
    ),
    "Gemma-2b": (config("gemma", 2048, 18, 8, 1, 16384, 256000, head_dim=256), 2_506_172_416),
    "Gemma-2-2b": (config("gemma2", 2304, 26, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
    "Gemma-2-9b": (config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256), 9_241_705_984),
    "Gemma-3-1b": (config("gemma3_text", 1152, 26, 4, 1, 6912, 262144, head_dim=256), 999_885_952),
    "Phi-2": (config("phi", 2560, 32, 32, 32, 10240, 51200, **UNTIED), 2_779_683_840),
    "Phi-3-mini": (config("phi3", 3072, 32, 32, 32, 8192, 32064, **UNTIED), 3_821_079_552),
    "Phi-4": (config("phi3", 5120, 40, 40, 10, 17920, 100352, **UNTIED), 14_659_507_200),
    "gpt-oss-20b": (
        config("gpt_oss", 2880, 24, 64, 8, 2880, 201088, num_local_experts=32, **GPT_OSS),
        20_914_757_184,
    ),
    "gpt-oss-120b": (
        config("gpt_oss", 2880, 36, 64, 8, 2880, 201088, num_local_experts=128, **GPT_OSS),
        116_829_156_672,
    ),
    "DeepSeek-V2-Lite": (
        config(
            "deepseek_v2", 2048, 27, 16, 16, 10944, 102400, n_routed_experts=64, num_experts_per_tok=6,
            n_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=1, q_lora_rank=None, **MLA,
        ),
        15_706_484_224,
    ),
    "DeepSeek-V3": (  # the main model, without the layer for multi-token prediction
        config(
            "deepseek_v3", 7168, 61, 128, 128, 18432, 129280, n_routed_experts=256, num_experts_per_tok=8,
            n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3, moe_layer_freq=1, q_lora_rank=1536,
            num_nextn_predict_layers=1, **MLA,
        ),
        671_026_419_200,
    ),
    "Gemma-4-31B": (
        config(
            "gemma4_text", 5376, 60, 32, 16, 21504, 262144, num_global_key_value_heads=4, layer_types=10 * LOCAL,
            **GEMMA_4,
        ),
        30_697_345_280,
    ),
    "Gemma-4-26B-A4B": (
        config(
            "gemma4_text", 2816, 30, 16, 8, 2112, 262144, num_global_key_value_heads=2, layer_types=5 * LOCAL,
            enable_moe_block=True, num_experts=128, moe_intermediate_size=704, top_k_experts=8, **GEMMA_4,
        ),
        25_233_141_760,
    ),
    "Ministral-3-8B": (config("ministral3", 4096, 34, 32, 8, 14336, 131072, head_dim=128, **UNTIED), 8_489_553_920),
    "SmolLM3-3B": (config("smollm3", 2048, 36, 16, 4, 11008, 128256, **TIED), 3_075_098_624),
    "Olmo-3-7B": (config("olmo3", 4096, 32, 32, 32, 11008, 100278, **UNTIED), 7_298_011_136),
    "GLM-4.7-Flash": (  # the main model, without the layer for multi-token prediction
        config(
            "glm4_moe_lite", 2048, 47, 20, 20, 10240, 154880, n_routed_experts=64, n_shared_experts=1,
            num_experts_per_tok=4, moe_intermediate_size=1536, mlp_layer_types=["dense", *["sparse"] * 46],
            kv_lora_rank=512, q_lora_rank=768, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, **UNTIED,
        ),
        29_943_393_920,
    ),
    "Hy3-preview": (
        config(
            "hy_v3", 4096, 80, 64, 8, 13312, 120832, head_dim=128, num_experts=192, num_experts_per_tok=8,
            num_shared_experts=1, moe_intermediate_size=1536, mlp_layer_types=["dense", *["sparse"] * 79], **UNTIED,
        ),
        295_033_543_488,
    ),
    "Solar-Open-100B": (
        config(
            "solar_open", 4096, 48, 64, 8, 10240, 196608, head_dim=128, n_routed_experts=128, n_shared_experts=1,
            num_experts_per_tok=8, moe_intermediate_size=1280, **UNTIED,
        ),
        102_651_799_552,
    ),
    "ERNIE-4.5-21B-A3B": (
        config(
            "ernie4_5_moe", 2560, 28, 20, 4, 12288, 103424, moe_num_experts=64, moe_k=6, moe_num_shared_experts=2,
            moe_intermediate_size=1536, moe_layer_start_index=1, **TIED,
        ),
        21_825_437_888,
    ),
    "Nemotron-H, as transformers 5 writes it": (
        {
            "model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "vocab_size": 131072,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "ssm_state_size": 128, "mamba_num_heads": 128,
            "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "n_routed_experts": 8, "n_shared_experts": 1,
            "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
            **UNTIED,
        },
        1_968_355_720,
    ),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        124_439_808,
    ),
    "OPT-125m": (
        {
            "model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "ffn_dim": 3072, "vocab_size": 50272, "max_position_embeddings": 2048,
        },
        125_239_296,
    ),
    "Pythia-1.4b": (config("gpt_neox", 2048, 24, 16, 16, 8192, 50304, **UNTIED), 1_414_647_808),
    "StarCoder2-3b": (config("starcoder2", 3072, 30, 24, 2, 12288, 49152, use_bias=True), 3_030_371_328),
}  # fmt: skip


def facts(name: str) -> ModelFacts:
    result = facts_from_config(name, PUBLISHED[name][0])
    assert result is not None
    return result


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_as_many_as_published(name: str) -> None:
    assert facts(name).parameters.total == PUBLISHED[name][1]
    assert facts(name).all_parameters_counted


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Mixtral-8x7B", 12.75),  # "13B active parameters", embedding left out
        ("Qwen3-30B-A3B", 3.03),  # "3.3B activated", with the embedding
        ("Qwen3-235B-A22B", 21.6),
        ("DeepSeek-V3", 36.6),  # "37B activated"
        ("gpt-oss-120b", 5.13),  # model card: 5.13B
        ("gpt-oss-20b", 3.61),
    ],
)
def test_a_token_passes_through_the_published_active_parameters(name: str, billions: float) -> None:
    assert facts(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_well_known_models_of_the_catalogue_are_the_published_ones() -> None:
    pairs = {
        "meta-llama/Llama-3.1-405B-Instruct": "Llama-3.1-405B",
        "Qwen/Qwen2.5-72B-Instruct": "Qwen2.5-72B",
        "Qwen/Qwen3-235B-A22B": "Qwen3-235B-A22B",
        "mistralai/Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
        "google/gemma-2-9b-it": "Gemma-2-9b",
        "microsoft/phi-4": "Phi-4",
        "openai/gpt-oss-120b": "gpt-oss-120b",
        "deepseek-ai/DeepSeek-V3": "DeepSeek-V3",
        "deepseek-ai/DeepSeek-V2-Lite-Chat": "DeepSeek-V2-Lite",
    }
    for known, name in pairs.items():
        found = facts_from_config(known, known_configs()[known])
        assert found is not None
        assert found.parameters == facts(name).parameters


def test_every_well_known_model_can_be_read() -> None:
    for name, entry in known_configs().items():
        found = facts_from_config(name, entry)
        assert found is not None, name
        assert found.all_parameters_counted, name


def test_an_unknown_architecture_is_counted_as_a_llama_and_says_so() -> None:
    found = facts_from_config("x", config("brand_new", 4096, 32, 32, 8, 14336, 128256, **UNTIED))
    assert found is not None
    assert not found.all_parameters_counted
    assert found.parameters.total == PUBLISHED["Llama-3.1-8B"][1]
