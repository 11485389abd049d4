"""Parameters of a transformer by part, from the figures of its config.json: one formula, and a table of what each
architecture family adds to it (biases, extra norms, sinks). Checked against published counts in tests/unit/catalog.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def layers(self) -> int:
        """Everything inside the layers, and the final norm."""
        return self.attention + self.mlp + self.experts + self.norms


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
