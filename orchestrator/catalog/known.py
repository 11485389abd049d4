"""Well-known models by name, so that planning and the emulator work without a network: the fields of their config.json.

A config.json at hand always wins. Source: each model's repository on the Hugging Face hub.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def _config(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    *,
    kind: str = "llama",
    positions: int = 131072,
    tied: bool = False,
    **more: Any,
) -> Json:
    return {
        "model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": positions, "tie_word_embeddings": tied, "dtype": "bfloat16", **more,
    }  # fmt: skip


_QWEN3_MOE: Json = {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "decoder_sparse_step": 1,
}
_GPT_OSS: Json = {
    "model_type": "gpt_oss", "head_dim": 64, "sliding_window": 128, "attention_bias": True, "num_experts_per_tok": 4,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
_MLA: Json = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 163840,
}  # fmt: skip

CONFIGS: dict[str, Json] = {
    "meta-llama/Llama-3.2-1B-Instruct": _config(2048, 16, 32, 8, 8192, 128256, head_dim=64, tied=True),
    "meta-llama/Llama-3.2-3B-Instruct": _config(3072, 28, 24, 8, 8192, 128256, tied=True),
    "meta-llama/Llama-3.1-8B-Instruct": _config(4096, 32, 32, 8, 14336, 128256),
    "meta-llama/Llama-3.1-70B-Instruct": _config(8192, 80, 64, 8, 28672, 128256),
    "meta-llama/Llama-3.3-70B-Instruct": _config(8192, 80, 64, 8, 28672, 128256),
    "meta-llama/Llama-3.1-405B-Instruct": _config(16384, 126, 128, 8, 53248, 128256),
    "mistralai/Mistral-7B-Instruct-v0.3": _config(
        4096, 32, 32, 8, 14336, 32768, kind="mistral", positions=32768
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _config(
        4096, 32, 32, 8, 14336, 32000, kind="mixtral", positions=32768, num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": _config(
        896, 24, 14, 2, 4864, 151936, kind="qwen2", positions=32768, tied=True
    ),
    "Qwen/Qwen2.5-7B-Instruct": _config(3584, 28, 28, 4, 18944, 152064, kind="qwen2", positions=32768),
    "Qwen/Qwen2.5-32B-Instruct": _config(5120, 64, 40, 8, 27648, 152064, kind="qwen2", positions=32768),
    "Qwen/Qwen2.5-72B-Instruct": _config(8192, 80, 64, 8, 29568, 152064, kind="qwen2", positions=32768),
    "Qwen/Qwen3-8B": _config(4096, 36, 32, 8, 12288, 151936, kind="qwen3", head_dim=128, positions=40960),
    "Qwen/Qwen3-32B": _config(5120, 64, 64, 8, 25600, 151936, kind="qwen3", head_dim=128, positions=40960),
    "Qwen/Qwen3-30B-A3B": _config(
        2048, 48, 32, 4, 6144, 151936, **_QWEN3_MOE, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
    ),
    "Qwen/Qwen3-235B-A22B": _config(
        4096, 94, 64, 4, 12288, 151936, **_QWEN3_MOE, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536
    ),
    "google/gemma-2-9b-it": _config(
        3584, 42, 16, 8, 14336, 256000, kind="gemma2", head_dim=256, sliding_window=4096, positions=8192,
        tied=True,
    ),
    "google/gemma-2-27b-it": _config(
        4608, 46, 32, 16, 36864, 256000, kind="gemma2", head_dim=128, sliding_window=4096, positions=8192,
        tied=True,
    ),
    "google/gemma-3-1b-it": _config(
        1152, 26, 4, 1, 6912, 262144, kind="gemma3_text", head_dim=256, sliding_window=512, sliding_window_pattern=6,
        positions=32768, tied=True,
    ),
    "microsoft/phi-4": _config(5120, 40, 40, 10, 17920, 100352, kind="phi3", positions=16384),
    "openai/gpt-oss-20b": _config(2880, 24, 64, 8, 2880, 201088, **_GPT_OSS, num_local_experts=32),
    "openai/gpt-oss-120b": _config(2880, 36, 64, 8, 2880, 201088, **_GPT_OSS, num_local_experts=128),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": _config(
        2048, 27, 16, 16, 10944, 102400, **_MLA, kind="deepseek_v2", n_routed_experts=64, num_experts_per_tok=6,
        n_shared_experts=2, moe_intermediate_size=1408, first_k_dense_replace=1,
    ),
    "deepseek-ai/DeepSeek-V3": _config(
        7168, 61, 128, 128, 18432, 129280, **_MLA, kind="deepseek_v3", q_lora_rank=1536, n_routed_experts=256,
        num_experts_per_tok=8, n_shared_experts=1, moe_intermediate_size=2048, first_k_dense_replace=3,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
}  # fmt: skip


def known_config(model: str) -> Json | None:
    """The config of a well-known model by its hub id, or by a short name such as ``Llama-3.1-8B``."""
    if model in CONFIGS:
        return CONFIGS[model]
    wanted = _short(model)
    return next((config for name, config in CONFIGS.items() if _short(name) == wanted), None)


def _short(name: str) -> str:
    base = name.rpartition("/")[2].lower()
    for suffix in ("-instruct", "-chat", "-it", "-instruct-v0.1", "-instruct-v0.3", "-v0.1", "-v0.3"):
        base = base.removesuffix(suffix)
    return base.removeprefix("meta-").removesuffix("-instruct")
