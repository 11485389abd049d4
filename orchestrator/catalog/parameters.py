"""Counts the parameters of a transformer by part, from the figures of its config.json.

One formula, and a table of what each architecture adds to it (biases, extra norms, sinks); tests/unit/catalog checks it
against published counts. Layers without attention: Qwen3-Next's gated delta networks (transformers 5.19
``modeling_qwen3_next.py``) and Nemotron-H's Mamba-2 (``modeling_nemotron_h.py``, where a layer has one mixer only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
LARGEST = 10**9  # of the figures of a config.json


# Configs are written by many programs: a value of an unexpected type counts as missing.
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
    """Counts by part. ``experts`` are the routed ones; ``mlp`` includes shared experts and routers.

    ``kv_projection`` and ``latents`` are also part of ``attention``, ``routers`` of ``mlp``. Tensor parallelism divides
    the KV projection by at most the number of KV heads, and every rank has all latents and routers.
    """

    embedding: int
    attention: int
    mlp: int
    experts: int
    norms: int
    lm_head: int  # 0 when tied to the embedding
    kv_projection: int = 0
    latents: int = 0
    routers: int = 0

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.experts + self.norms + self.lm_head


@dataclass(frozen=True, slots=True)
class Family:
    """What a ``model_type`` adds to the formula. None: as the config's ``attention_bias`` or ``mlp_bias`` says."""

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True  # MLPs of gate, up and down projections; else only up and down
    norms_per_layer: int = 2
    norm_bias: bool = False  # LayerNorm with weight and bias instead of RMSNorm
    qk_norm: bool = False
    tied: bool = False  # by default lm_head is the embedding
    learned_positions: int | None = None  # rows of a learned position table beyond max_position_embeddings
    lm_head_bias: bool = False
    shared_expert_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False  # one learned logit per attention head
    gated_attention: bool = False  # the query projection is twice as wide
    wide_qk_norm: bool = False  # over all heads at once


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
    "llama4_text": _LLAMA,
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        Family(qk_norm=True, shared_expert_gate=True, gated_attention=True),
    ),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), Family(qk_norm=True)),
    "nemotron_h": Family(gated=False, norms_per_layer=1, router_bias=True),
    "minimax_m2": Family(router_bias=True, wide_qk_norm=True),
    "deepseek_v2": _LLAMA,
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), Family(router_bias=True)),
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
    """The figures of a config.json that the formula needs, by vLLM's and transformers' names."""

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
    moe_latent_size: int = 0  # width of the experts' inputs, if they are projected
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    index_n_heads: int = 0  # DeepSeek's sparse attention
    index_head_dim: int = 0
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    mamba_num_heads: int = 0
    mamba_head_dim: int = 0
    ssm_state_size: int = 0
    n_groups: int = 0
    conv_kernel: int = 0
    # For every layer what mixes tokens (attention, linear, mamba) and what follows (mlp, moe); "": nothing.
    mixers: tuple[str, ...] = ()
    mlps: tuple[str, ...] = ()

    @property
    def num_attention_layers(self) -> int:
        """Number of layers with a KV cache."""
        return self.mixers.count("attention")

    @property
    def num_moe_layers(self) -> int:
        return self.mlps.count("moe")

    @property
    def mla(self) -> bool:
        """Whether it has multi-head latent attention: one latent per token in the KV cache, no keys and values."""
        return self.kv_lora_rank > 0


def count(shape: Shape, family: Family) -> Parameters:
    """Parameters by part; ``attention`` includes layers that mix tokens without attention."""
    layers, hidden, sparse = shape.num_hidden_layers, shape.hidden_size, shape.num_moe_layers
    mlp = shape.mlps.count("mlp") * _mlp(hidden, shape.intermediate_size, family, _or(family.mlp_bias, shape.mlp_bias))
    shared = 0
    if shape.shared_expert_intermediate_size:
        shared = _mlp(hidden, shape.shared_expert_intermediate_size, family, bias=False)
        shared += hidden * family.shared_expert_gate
    routers = sparse * shape.num_experts * (hidden + family.router_bias)
    positions = (
        0 if family.learned_positions is None else (shape.max_position_embeddings + family.learned_positions) * hidden
    )
    head = 0 if shape.tie_word_embeddings else shape.vocab_size * hidden
    full, linear, mamba = (shape.mixers.count(kind) for kind in ("attention", "linear", "mamba"))
    attention = full * (_mla(shape) if shape.mla else _attention(shape, family))
    return Parameters(
        embedding=shape.vocab_size * hidden + positions,
        attention=attention + linear * _delta_network(shape) + mamba * _mamba(shape),
        mlp=mlp + routers + sparse * (shared + 2 * hidden * shape.moe_latent_size),
        experts=sparse * shape.num_experts * _expert(shape, family),
        norms=(layers * family.norms_per_layer + 1) * hidden * (2 if family.norm_bias else 1),
        lm_head=head + (shape.vocab_size if family.lm_head_bias else 0),
        kv_projection=0 if shape.mla else 2 * full * hidden * shape.num_key_value_heads * shape.head_dim,
        latents=full * _latents(shape) if shape.mla else 0,
        routers=routers,
    )


def _or(value: bool | None, otherwise: bool) -> bool:
    return otherwise if value is None else value


def _mlp(hidden: int, intermediate: int, family: Family, bias: bool) -> int:
    up = 2 if family.gated else 1
    return (up + 1) * hidden * intermediate + (up * intermediate + hidden if bias else 0)


def _expert(shape: Shape, family: Family) -> int:
    return _mlp(shape.moe_latent_size or shape.hidden_size, shape.moe_intermediate_size, family, family.expert_bias)


def _attention(shape: Shape, family: Family) -> int:
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    weights = shape.hidden_size * (queries * (1 + family.gated_attention) + 2 * keys) + queries * shape.hidden_size
    if _or(family.qkv_bias, shape.attention_bias):
        weights += queries + 2 * keys
    if _or(family.o_bias, shape.attention_bias):
        weights += shape.hidden_size
    norms = 2 * shape.head_dim * family.qk_norm + (queries + keys) * family.wide_qk_norm
    return weights + norms + shape.num_attention_heads * family.sinks


def _delta_network(shape: Shape) -> int:
    keys = shape.linear_num_key_heads * shape.linear_key_head_dim
    values = shape.linear_num_value_heads * shape.linear_value_head_dim
    inputs = shape.hidden_size * (2 * keys + 2 * values + 2 * shape.linear_num_value_heads)
    small = 2 * shape.linear_num_value_heads + shape.linear_value_head_dim
    return inputs + (2 * keys + values) * shape.linear_conv_kernel_dim + small + values * shape.hidden_size


def _mamba(shape: Shape) -> int:
    inner, states = shape.mamba_num_heads * shape.mamba_head_dim, 2 * shape.n_groups * shape.ssm_state_size
    inputs = shape.hidden_size * (2 * inner + states + shape.mamba_num_heads)
    small = 3 * shape.mamba_num_heads + inner
    return inputs + (inner + states) * (shape.conv_kernel + 1) + small + inner * shape.hidden_size


def _latents(shape: Shape) -> int:
    """The projections to MLA's latents: too small to be divided, so every rank has them."""
    width = shape.kv_lora_rank + shape.qk_rope_head_dim + shape.q_lora_rank
    return shape.hidden_size * width + shape.kv_lora_rank + shape.q_lora_rank


def _mla(shape: Shape) -> int:
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    query_width = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    query = (shape.q_lora_rank or hidden) * query_width
    expand = shape.kv_lora_rank * heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    chosen = shape.q_lora_rank * shape.index_n_heads + hidden + 2  # the indexer's queries, its key and the key's norm
    indexer = chosen * shape.index_head_dim + hidden * shape.index_n_heads
    return (
        query + _latents(shape) + expand + heads * shape.v_head_dim * hidden + (indexer if shape.index_n_heads else 0)
    )
