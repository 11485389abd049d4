"""Parameters of a transformer: how many by part, from the figures of its config.json, and in how many bits each.

One formula, and a table of what each architecture family adds to it (biases, extra norms, sinks); checked against
published counts in tests/unit/catalog. Quantization: vLLM 0.32 ``quantization/__init__.py`` and each config's
``get_min_capability``; SGLang 0.5.23 ``server_args.py``; TGI 3.3.7 README; TensorRT-LLM 1.2 and LMDeploy 0.18
documentation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]
LARGEST = 10**9  # of the figures of a config.json


# A value of a kind that nobody expects counts as not given: configs are written by many programs.
def mapping(config: Json, name: str) -> Json:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def items(config: Json, name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []


def whole(value: object, otherwise: int = 0) -> int:
    """A whole number from 1 to LARGEST."""
    return int(value) if isinstance(value, int | float) and 1 <= value <= LARGEST else otherwise


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts by part. ``experts`` are the routed ones only; shared experts and routers are in ``mlp``.

    ``kv_projection`` (of ``attention``) and ``replicated`` (of ``attention`` and ``mlp``) say what tensor parallelism
    divides by the KV heads at most, and what every rank holds whole: they are counted above already.
    """

    embedding: int
    attention: int
    mlp: int
    experts: int
    norms: int
    lm_head: int  # 0 when tied to the embedding
    kv_projection: int = 0
    replicated: int = 0

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.experts + self.norms + self.lm_head


@dataclass(frozen=True, slots=True)
class Family:
    """What one ``model_type`` adds to the formula. None: the config's ``attention_bias`` or ``mlp_bias`` says."""

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True  # gate, up and down projections; else up and down
    norms_per_layer: int = 2
    norm_bias: bool = False  # LayerNorm with weight and bias instead of RMSNorm
    qk_norm: bool = False
    tied: bool = False  # lm_head shares the embedding unless the config says otherwise
    learned_positions: int | None = None  # rows of a learned position table beyond max_position_embeddings
    lm_head_bias: bool = False
    shared_expert_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False  # one learned logit per attention head


_LLAMA = Family()
_LAYER_NORM = Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norm_bias=True)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "mixtral", "phi3", "granite", "internlm2", "olmo", "deepseek"), _LLAMA
    ),
    "qwen2": Family(qkv_bias=True, o_bias=False),
    "qwen3": Family(qk_norm=True),
    "qwen2_moe": Family(qkv_bias=True, o_bias=False, shared_expert_gate=True),
    "qwen3_moe": Family(qk_norm=True),
    "gemma": Family(tied=True),
    "gemma2": Family(norms_per_layer=4, tied=True),
    "gemma3_text": Family(norms_per_layer=4, qk_norm=True, tied=True),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": Family(router_bias=True),
    "gpt_oss": Family(qkv_bias=True, o_bias=True, router_bias=True, expert_bias=True, sinks=True),
    "phimoe": Family(norm_bias=True),
    "glm4_moe": Family(router_bias=True, o_bias=False),
    "phi": Family(
        qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norms_per_layer=1, norm_bias=True, lm_head_bias=True
    ),
    "starcoder2": Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norm_bias=True, tied=True),
    "gpt_neox": _LAYER_NORM,
    "gpt2": Family(True, True, True, gated=False, norm_bias=True, tied=True, learned_positions=0),
    "opt": Family(True, True, True, gated=False, norm_bias=True, tied=True, learned_positions=2),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The figures of a config.json that the formula needs, in vLLM's and transformers' words."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    num_moe_layers: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @property
    def mla(self) -> bool:
        """Multi-head latent attention: the KV cache holds one latent per token instead of keys and values per head."""
        return self.kv_lora_rank > 0


def count(shape: Shape, family: Family) -> Parameters:
    """Parameters by part."""
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    dense_layers = layers - shape.num_moe_layers
    mlp = dense_layers * _mlp(hidden, shape.intermediate_size, family, _or(family.mlp_bias, shape.mlp_bias))
    shared = (
        _mlp(hidden, shape.shared_expert_intermediate_size, family, bias=False) + hidden * family.shared_expert_gate
    )
    router = shape.num_experts * (hidden + family.router_bias)
    positions = (
        0 if family.learned_positions is None else (shape.max_position_embeddings + family.learned_positions) * hidden
    )
    head = 0 if shape.tie_word_embeddings else shape.vocab_size * hidden
    return Parameters(
        embedding=shape.vocab_size * hidden + positions,
        attention=layers * (_mla(shape) if shape.mla else _attention(shape, family)),
        mlp=mlp + shape.num_moe_layers * (router + (shared if shape.shared_expert_intermediate_size else 0)),
        experts=shape.num_moe_layers * shape.num_experts * _expert(shape, family),
        norms=(layers * family.norms_per_layer + 1) * hidden * (2 if family.norm_bias else 1),
        lm_head=head + (shape.vocab_size if family.lm_head_bias else 0),
        kv_projection=0 if shape.mla else 2 * layers * hidden * shape.num_key_value_heads * shape.head_dim,
        replicated=shape.num_moe_layers * router + (layers * _latents(shape) if shape.mla else 0),
    )


def _or(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def _mlp(hidden: int, intermediate: int, family: Family, bias: bool) -> int:
    up = 2 if family.gated else 1
    return (up + 1) * hidden * intermediate + (up * intermediate + hidden if bias else 0)


def _expert(shape: Shape, family: Family) -> int:
    return _mlp(shape.hidden_size, shape.moe_intermediate_size, family, family.expert_bias)


def _attention(shape: Shape, family: Family) -> int:
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    weights = shape.hidden_size * (queries + 2 * keys) + queries * shape.hidden_size
    if _or(family.qkv_bias, shape.attention_bias):
        weights += queries + 2 * keys
    if _or(family.o_bias, shape.attention_bias):
        weights += shape.hidden_size
    return weights + 2 * shape.head_dim * family.qk_norm + shape.num_attention_heads * family.sinks


def _latents(shape: Shape) -> int:
    """The projections down to MLA's latents: too small to be worth dividing, every rank holds them."""
    width = shape.kv_lora_rank + shape.qk_rope_head_dim + shape.q_lora_rank
    return shape.hidden_size * width + shape.kv_lora_rank + shape.q_lora_rank


def _mla(shape: Shape) -> int:
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    query_width = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    query = (shape.q_lora_rank or hidden) * query_width
    expand = shape.kv_lora_rank * heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    return query + _latents(shape) + expand + heads * shape.v_head_dim * hidden


# Names of one storage format in different engines and kernels. A checkpoint's own method and the flag must share one.
FORMAT: dict[str, str] = {
    **dict.fromkeys(("awq", "auto_awq", "awq_marlin"), "awq"),
    **dict.fromkeys(("gptq", "auto_gptq", "gptq_marlin"), "gptq"),
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), "mxfp4"),
    **{name: name for name in ("fp8", "fbgemm_fp8", "compressed-tensors", "bitsandbytes", "quark", "torchao", "inc")},
}

KERNEL_OF = {"marlin": ("gptq", "awq"), "moe_wna16": ("gptq", "awq")}  # flags that name a kernel -> formats it takes

# Formats that exist only as checkpoints: on a 16-bit one the engine stops ("Cannot find the config file for awq").
CHECKPOINT_ONLY = frozenset({
    "awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "marlin", "compressed-tensors", "modelopt",
    "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "quark", "inc", "moe_wna16", "fbgemm_fp8", "gpt_oss_mxfp4",
    "deepseek_v4_fp8", "exl2", "petit_nvfp4", "w4afp8", "modelopt_fp8",
})  # fmt: skip
# Applied while loading: the checkpoint must not be quantized already.
ONLINE_ONLY = frozenset({
    "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "nvfp4_per_token",
    "experts_int8", "mxfp8",
})  # fmt: skip
MOE_ONLY = frozenset({"int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8", "moe_wna16"})
# Methods that quantize a 16-bit checkpoint while it loads: weight bits, scales included, and Quantization.scheme.
ONLINE: dict[str, tuple[float, str]] = {
    "fp8": (8, "fp8 per tensor"), "fp8_per_tensor": (8, "fp8 per tensor"), "fp8_per_channel": (8, "fp8 per channel"),
    "fp8_per_block": (8.002, "fp8 per block"), "mxfp8": (8.25, "mxfp8"), "mxfp4": (4.25, "mxfp4"),
    "int8_per_channel_weight_only": (8, "int8 weights"), "experts_int8": (8, "int8 weights"),
    "nvfp4_per_token": (4.5, "fp4"), "nvfp4_online": (4.5, "fp4"), "w8a8_int8": (8, "int8"),
    "w8a8_fp8": (8, "fp8 per channel"), "eetq": (8, "int8 weights"), "bitsandbytes": (4.13, ""),
    "bitsandbytes-nf4": (4.13, ""), "bitsandbytes-fp4": (4.13, ""), "bnb-4bit": (4.13, ""), "bnb-8bit": (8, ""),
}  # fmt: skip
_EXPERTS_ONLY = {"int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's weights are stored. ``bits`` includes scales and zero points, per weight.

    ``scheme`` is what a kernel must compute, whatever the format is called: ``int8`` or ``fp8 per channel`` (weights
    and activations), ``int4 weights`` (activations stay 16 bit); empty where that is not known.
    """

    method: str
    bits: float
    group_size: int | None = None  # inputs that share a scale
    block: tuple[int, int] | None = None  # (outputs, inputs) that share a scale
    experts_only: bool = False
    scheme: str = ""
    kv_cache_dtype: str | None = None  # that the checkpoint asks for, where the settings say nothing


def quantization_from_config(config: Json | None) -> Quantization | None:
    """The ``quantization_config`` of a checkpoint in one shape, None when its weights are not quantized."""
    if not config:
        return None
    method = str(config.get("quant_method") or config.get("quant_algo") or "unknown").lower()
    if method in {"awq", "gptq", "auto-round", "auto_gptq"}:
        return _grouped(method, whole(config.get("bits")) or whole(config.get("w_bit"), 4), config.get("group_size"))
    if method == "fp8":
        block = _block(config, "weight_block_size")
        scheme = "fp8 per block" if block else "fp8 per tensor"
        return Quantization(method, 8 + (32 / (block[0] * block[1]) if block else 0), block=block, scheme=scheme)
    if method in {"mxfp4", "gpt_oss_mxfp4"}:
        return Quantization("mxfp4", 4.25, group_size=32, experts_only=True, scheme="mxfp4")
    if method == "compressed-tensors":
        return replace(_compressed_tensors(config), kv_cache_dtype=_kv_cache_dtype(config))
    if method in {"modelopt", "nvfp4"}:
        inner = mapping(config, "quantization") or config
        if "FP4" in str(inner.get("quant_algo", "FP8")).upper():
            return Quantization("modelopt", 4.5, 16, scheme="fp4", kv_cache_dtype=_kv_cache_dtype(inner))
        return Quantization("modelopt", 8, scheme="fp8 per tensor", kv_cache_dtype=_kv_cache_dtype(inner))
    if method == "bitsandbytes":
        return Quantization(method, 4.13 if config.get("load_in_4bit") else 8)
    return Quantization(method, 8)


def _kv_cache_dtype(config: Json) -> str | None:
    """Of ``kv_cache_scheme`` or modelopt's ``kv_cache_quant_algo``: vLLM 0.32 utils/torch_utils.py reads the same."""
    scheme = mapping(config, "kv_cache_scheme")
    if scheme.get("type") == "float":
        return {8: "fp8", 4: "nvfp4"}.get(whole(scheme.get("num_bits")))
    algorithm = str(config.get("kv_cache_quant_algo") or "").lower()
    return algorithm if algorithm in {"fp8", "nvfp4"} else None


def _grouped(method: str, bits: int, group_size: object) -> Quantization:
    """Integer weights with a 16-bit scale and a zero point of ``bits`` per group."""
    group = whole(group_size) or None
    stored = bits + ((16 + bits) / group if group else 0)
    return Quantization(method, stored, group_size=group, scheme=f"int{bits} weights")


def _block(config: Json, name: str) -> tuple[int, int] | None:
    sizes = [whole(size) for size in items(config, name)]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and all(sizes) else None


def _compressed_tensors(config: Json) -> Quantization:
    groups = mapping(config, "config_groups")
    first = next((one for name in groups if mapping(one := mapping(groups, name), "weights")), {})
    if not first:  # activations of attention, or the KV cache alone
        return Quantization("compressed-tensors", 16)
    weights, strategy = mapping(first, "weights"), mapping(first, "weights").get("strategy")
    bits, block = whole(weights.get("num_bits"), 8), _block(weights, "block_structure")
    scheme = f"{'fp' if weights.get('type') == 'float' else 'int'}{bits}"
    if not mapping(first, "input_activations"):
        scheme += " weights"
    elif scheme == "fp8":
        scheme += f" per {strategy}"
    if block:
        return Quantization("compressed-tensors", bits, block=block, scheme=scheme)
    group = weights.get("group_size") if strategy == "group" else None
    return replace(_grouped("compressed-tensors", bits, group), scheme=scheme)


def online_quantization(quantization: str | None) -> Quantization | None:
    """What an engine makes of a 16-bit checkpoint while it loads; None for a method that does nothing then."""
    if quantization is None or quantization not in ONLINE:
        return None
    bits, scheme = ONLINE[quantization]
    return Quantization(quantization, bits, experts_only=quantization in _EXPERTS_ONLY, scheme=scheme)
