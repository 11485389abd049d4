"""Counts the parameters of a transformer by part, from the figures of its config.json.

One formula, and a table of what each architecture adds to it (biases, extra norms, sinks);
tests/unit/catalog checks it against published counts. Layers without attention: Qwen3-Next's gated
delta networks (transformers 5.19 ``modeling_qwen3_next.py``) and Nemotron-H's Mamba-2
(``modeling_nemotron_h.py``, where a layer has one mixer only).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Config = dict[str, Any]  # the content of a config.json
LARGEST = 10**9  # a larger figure of a config.json counts as missing
MOST_LAYERS = 10_000


class StoredModel(NamedTuple):
    """A model as its files describe it."""

    config: Config
    checkpoint_bytes: int | None  # of the weights; None: not known
    known_as: str | None = None  # the well-known model whose config it is; None: its own config


# Configs are written by many programs: a value of an unexpected type counts as missing.
def mapping(config: Config, name: str) -> Config:
    value = config.get(name)
    return value if isinstance(value, dict) else {}


def items(config: Config, name: str) -> list[Any]:
    value = config.get(name)
    return value if isinstance(value, list) else []


def whole(value: object, otherwise: int = 0) -> int:
    """A value of a config as a whole number; ``otherwise`` if it is no number from 1 to LARGEST."""
    return int(value) if isinstance(value, int | float) and 1 <= value <= LARGEST else otherwise


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts by part. ``experts`` are the routed ones; ``mlp`` includes shared experts and routers.

    ``kv_projection`` and ``latents`` are also part of ``attention``, ``routers`` of ``mlp``. Tensor
    parallelism divides the KV projection by at most the number of KV heads, and every rank has all
    latents and routers.
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
    """What a ``model_type`` adds to the formula. None: as the config's ``attention_bias`` or
    ``mlp_bias`` says.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    mlp_bias: bool | None = None
    gated: bool = True  # MLPs of gate, up and down projections; else only up and down
    norms_per_layer: int = 2
    norms_beside_experts: int = 0  # more of them in a layer with experts
    norm_bias: bool = False  # LayerNorm with weight and bias instead of RMSNorm
    qk_norm: bool = False
    tied: bool = False  # by default lm_head is the embedding
    # rows of a learned position table beyond max_position_embeddings
    learned_positions: int | None = None
    lm_head_bias: bool = False
    shared_expert_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    sinks: bool = False  # one learned logit per attention head
    gated_attention: bool = False  # the query projection is twice as wide
    wide_qk_norm: bool = False  # norms of queries and keys over all heads at once
    mamba_norm: bool = True  # a norm inside Mamba-2


_LLAMA = Family()
_LAYER_NORM = Family(qkv_bias=True, o_bias=True, mlp_bias=True, gated=False, norm_bias=True)
FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "ministral",
            "mixtral",
            "phi3",
            "granite",
            "internlm2",
            "olmo",
            "deepseek",
        ),
        _LLAMA,
    ),
    **dict.fromkeys(("ministral3", "smollm3", "granitemoe", "cwm", "mistral4"), _LLAMA),
    "arcee": Family(gated=False),
    "apertus": Family(gated=False, qk_norm=True),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe", "flex_olmo"), Family(wide_qk_norm=True)),
    **dict.fromkeys(("glm", "seed_oss"), Family(o_bias=False)),
    "glm4": Family(o_bias=False, norms_per_layer=4),
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), Family(norms_per_layer=1, tied=True)),
    **dict.fromkeys(("exaone4", "mellum"), Family(qk_norm=True)),
    **dict.fromkeys(("solar_open", "glm4_moe_lite", "ernie4_5_moe"), Family(router_bias=True)),
    **dict.fromkeys(("hy_v3", "exaone_moe"), Family(qk_norm=True, router_bias=True)),
    **dict.fromkeys(
        # the language models of Qwen2-VL and 2.5-VL, and MiMo, are Qwen2 to the last parameter
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "mimo"),
        Family(qkv_bias=True, o_bias=False),
    ),
    "qwen3": Family(qk_norm=True),
    "qwen2_moe": Family(qkv_bias=True, o_bias=False, shared_expert_gate=True),
    "qwen3_moe": Family(qk_norm=True),
    "gemma": Family(tied=True),
    "gemma2": Family(norms_per_layer=4, tied=True),
    "gemma3_text": Family(norms_per_layer=4, qk_norm=True, tied=True),
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"),
        Family(
            norms_per_layer=4, norms_beside_experts=4, qk_norm=True, tied=True, router_bias=True
        ),
    ),
    "llama4_text": _LLAMA,
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        Family(qk_norm=True, shared_expert_gate=True, gated_attention=True),
    ),
    **dict.fromkeys(("qwen3_vl_text", "qwen3_vl_moe_text"), Family(qk_norm=True)),
    "nemotron_h": Family(gated=False, norms_per_layer=1, router_bias=True),
    "minimax_m2": Family(router_bias=True, wide_qk_norm=True),
    "deepseek_v2": _LLAMA,
    **dict.fromkeys(
        ("deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa"), Family(router_bias=True)
    ),
    "gpt_oss": Family(qkv_bias=True, o_bias=True, router_bias=True, expert_bias=True, sinks=True),
    "phimoe": Family(norm_bias=True),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), Family(router_bias=True, o_bias=False)),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), Family(qk_norm=True)),
    **dict.fromkeys(("granitemoehybrid", "jamba"), _LLAMA),
    "falcon_h1": Family(mamba_norm=False),
    "kimi_linear": Family(router_bias=True),
    "phi": replace(_LAYER_NORM, norms_per_layer=1, lm_head_bias=True),
    "starcoder2": replace(_LAYER_NORM, tied=True),
    "gpt_neox": _LAYER_NORM,
    "gpt2": replace(_LAYER_NORM, tied=True, learned_positions=0),
    "opt": replace(_LAYER_NORM, tied=True, learned_positions=2),
}


def in_our_words(text: Config, model_type: str) -> Config:
    """The config by the formula's names, for families with other names or defaults."""
    in_words_of_formula = _TRANSLATIONS.get(model_type)
    return text if in_words_of_formula is None else in_words_of_formula(text)


def _llama4(text: Config) -> Config:
    """Llama 4: ``intermediate_size`` is that of the experts."""
    expert_width = text.get("intermediate_size")
    return text | {
        "moe_intermediate_size": expert_width,
        "shared_expert_intermediate_size": expert_width,
        "intermediate_size": text.get("intermediate_size_mlp"),
        "decoder_sparse_step": text.get("interleave_moe_layer_step"),
        "sliding_window": text.get("attention_chunk_size"),
        "sliding_window_pattern": 4,
    }


def _nemotron_h(text: Config) -> Config:
    """Nemotron-H: Mamba-2, attention or an MLP in each layer."""
    # transformers 5 writes the kinds of layers in other words
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [words.get(str(kind), kind) for kind in items(text, "layers_block_type")]
    renamed: Config = {
        "head_dim": text.get("attention_head_dim"),
        "shared_expert_intermediate_size": text.get("moe_shared_expert_intermediate_size"),
        "layers_block_type": kinds,
    }
    return text | {name: value for name, value in renamed.items() if value}


def _gemma3(text: Config) -> Config:
    return {"max_position_embeddings": 131072} | text


def _gemma4(text: Config) -> Config:
    """Gemma 4: a dense MLP beside the experts of a layer, and heads of other sizes in layers with
    full attention.
    """
    beside_experts = text.get("intermediate_size") if text.get("num_experts") else None
    # transformers 5.19 lists only layers of full attention there, and all of them are alike
    layers = mapping(text, "per_layer_config")
    full_attention = mapping(layers, next(iter(layers), ""))
    defaults = {
        "global_head_dim": full_attention.get("head_dim", 512),
        "num_global_key_value_heads": full_attention.get("num_key_value_heads"),
    }
    return defaults | text | {"shared_expert_intermediate_size": beside_experts}


def _hunyuan_moe(text: Config) -> Config:
    """Hunyuan: each shared expert has the width of an MLP."""
    shared_experts = whole(text.get("num_shared_expert"), 1)
    width = shared_experts * whole(text.get("intermediate_size"))
    return text | {"shared_expert_intermediate_size": width}


def _ernie_moe(text: Config) -> Config:
    return text | {"first_k_dense_replace": text.get("moe_layer_start_index")}


def _granite_hybrid(text: Config) -> Config:
    """Granite 4 H: Mamba-2 or attention in each layer, and a dense MLP beside the experts."""
    ours = _with_mamba_2(text)
    dense_width = text.get("shared_intermediate_size")
    if not whole(text.get("num_local_experts")):
        return ours | {"intermediate_size": dense_width}
    return ours | {
        "moe_intermediate_size": text.get("intermediate_size"),
        "shared_expert_intermediate_size": dense_width,
    }


def _falcon_h1(text: Config) -> Config:
    """Falcon-H1: attention and Mamba-2 side by side in each layer."""
    layers = min(whole(text.get("num_hidden_layers")), MOST_LAYERS)
    return _with_mamba_2(text) | {"layers_block_type": ["both"] * layers}


def _with_mamba_2(text: Config) -> Config:
    """The config with the formula's names for the figures of Mamba-2."""
    inner = whole(text.get("mamba_d_ssm"))
    inner = inner or whole(text.get("mamba_expand"), 2) * whole(text.get("hidden_size"))
    heads = whole(text.get("mamba_n_heads"), 128)
    return _without(text, "mamba_d_state") | {
        "mamba_num_heads": heads,
        "mamba_head_dim": whole(text.get("mamba_d_head"), inner // heads),
        "ssm_state_size": text.get("mamba_d_state"),
        "n_groups": text.get("mamba_n_groups", 1),
        "conv_kernel": text.get("mamba_d_conv", 4),
    }


def _jamba(text: Config) -> Config:
    """Jamba: attention in every eighth layer, Mamba-1 in the others; experts in every second."""
    layers = min(whole(text.get("num_hidden_layers")), MOST_LAYERS)
    hidden = whole(text.get("hidden_size"))
    period = whole(text.get("attn_layer_period"), 8)
    offset = whole(text.get("attn_layer_offset"))
    kinds = ["attention" if layer % period == offset else "mamba1" for layer in range(layers)]
    expert_period = whole(text.get("expert_layer_period"), 2)
    expert_offset = whole(text.get("expert_layer_offset"))
    mlps = [
        "sparse" if layer % expert_period == expert_offset else "dense" for layer in range(layers)
    ]
    is_sparse = whole(text.get("num_experts")) > 1
    return _without(text, "mamba_d_state") | {
        "layers_block_type": kinds,
        "mlp_layer_types": mlps,
        "num_experts": text.get("num_experts") if is_sparse else 0,
        "mamba_inner_size": whole(text.get("mamba_expand"), 2) * hidden,
        "mamba_dt_rank": whole(text.get("mamba_dt_rank"), -(-hidden // 16)),
        "ssm_state_size": text.get("mamba_d_state", 16),
        "conv_kernel": text.get("mamba_d_conv", 4),
    }


_DELTA_KEYS = {"full_attn_layers", "kda_layers", "head_dim", "num_heads", "short_conv_kernel_size"}


def _kimi_linear(text: Config) -> Config:
    """Kimi Linear: delta attention in most layers, latent attention in those that it lists."""
    delta = mapping(text, "linear_attn_config")
    if delta.keys() - _DELTA_KEYS:  # Kimi K3 has gates and experts of another kind
        return text
    if delta:
        layers = min(whole(text.get("num_hidden_layers")), MOST_LAYERS)
        kinds = ["kda"] * layers
        for layer in items(delta, "full_attn_layers"):  # counted from 1
            if 1 <= whole(layer) <= layers:
                kinds[whole(layer) - 1] = "attention"
        heads = delta.get("num_heads")
        head_dim = delta.get("head_dim")
    else:  # transformers 5 writes the same under other names
        words = {"full_attention": "attention", "linear_attention": "kda"}
        kinds = [words.get(str(kind), str(kind)) for kind in items(text, "layer_types")]
        heads = text.get("linear_num_heads", 32)
        head_dim = text.get("linear_head_dim", 128)
    return _without(text, "linear_attn_config", "layer_types") | {
        "layers_block_type": kinds,
        "linear_num_value_heads": heads,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": delta.get("short_conv_kernel_size", 4),
    }


def _without(text: Config, *names: str) -> Config:
    """The config without keys that ``models.py`` would take for layers that it cannot count."""
    return {name: value for name, value in text.items() if name not in names}


# By model type: what puts a config into the words of the formula.
_TRANSLATIONS: dict[str, Callable[[Config], Config]] = {
    "llama4_text": _llama4,
    "nemotron_h": _nemotron_h,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "granitemoehybrid": _granite_hybrid,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "hunyuan_v1_moe": _hunyuan_moe,
    "ernie4_5_moe": _ernie_moe,
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
    mamba_inner_size: int = 0  # of Mamba-1
    mamba_dt_rank: int = 0
    n_groups: int = 0
    conv_kernel: int = 0
    global_head_dim: int = 0  # of Gemma 4's layers with full attention
    num_global_key_value_heads: int = 0
    attention_k_eq_v: bool = False  # those layers have one projection for keys and values
    # Of every layer, what mixes tokens: "attention", "global" (attention with heads of its own),
    # "linear", "kda", "mamba", "mamba1", "both" (attention and mamba), or "" for nothing.
    mixers: tuple[str, ...] = ()
    # Of every layer, what follows: "mlp", "moe", or "" for nothing.
    mlps: tuple[str, ...] = ()

    @property
    def num_attention_layers(self) -> int:
        """Number of layers with a KV cache."""
        return sum(self.mixers.count(kind) for kind in ("attention", "global", "both"))

    @property
    def state_elements(self) -> int:
        """Numbers that all layers with a state keep of one sequence, whatever its length."""
        # of each layer: the recurrent state, and the earlier inputs that a convolution needs
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim
        earlier_inputs = self.linear_conv_kernel_dim - 1
        linear = values * self.linear_key_head_dim + (2 * keys + values) * earlier_inputs
        kda = values * self.linear_value_head_dim + 3 * values * earlier_inputs
        inner = self.mamba_num_heads * self.mamba_head_dim
        groups = 2 * self.n_groups * self.ssm_state_size
        earlier_mamba_inputs = self.conv_kernel - 1
        mamba = inner * self.ssm_state_size + (inner + groups) * earlier_mamba_inputs
        mamba1 = self.mamba_inner_size * (self.ssm_state_size + earlier_mamba_inputs)
        layers = Counter(self.mixers)
        return (
            layers["linear"] * linear
            + layers["kda"] * kda
            + (layers["mamba"] + layers["both"]) * mamba
            + layers["mamba1"] * mamba1
        )

    @property
    def of_global(self) -> Shape:
        """The shape with the heads of layers of ``global`` attention."""
        heads = self.num_key_value_heads
        if self.attention_k_eq_v and self.num_global_key_value_heads:
            heads = self.num_global_key_value_heads
        return replace(self, head_dim=self.global_head_dim, num_key_value_heads=heads)

    @property
    def num_moe_layers(self) -> int:
        return self.mlps.count("moe")

    @property
    def has_latent_attention(self) -> bool:
        """Whether attention is multi-head latent attention: the KV cache has one latent per token,
        and no keys and values.
        """
        return self.kv_lora_rank > 0


def count(shape: Shape, family: Family) -> Parameters:
    """Parameters by part; ``attention`` includes layers that mix tokens without attention."""
    hidden = shape.hidden_size
    moe_layers = shape.num_moe_layers
    has_mlp_bias = _has_bias(family.mlp_bias, shape.mlp_bias)
    dense_mlp = _mlp(hidden, shape.intermediate_size, family, has_bias=has_mlp_bias)
    shared_experts = 0
    if shape.shared_expert_intermediate_size:
        width = shape.shared_expert_intermediate_size
        shared_experts = _mlp(hidden, width, family, has_bias=False)
        if family.shared_expert_gate:
            shared_experts += hidden
    latent_projections = 2 * hidden * shape.moe_latent_size
    router_width = hidden + 1 if family.router_bias else hidden
    routers = moe_layers * shape.num_experts * router_width
    positions = 0
    if family.learned_positions is not None:
        positions = shape.max_position_embeddings + family.learned_positions
    norms = shape.num_hidden_layers * family.norms_per_layer
    norms += moe_layers * family.norms_beside_experts
    norms += 1  # after the last layer
    head = 0 if shape.tie_word_embeddings else shape.vocab_size * hidden
    if family.lm_head_bias:
        head += shape.vocab_size
    return Parameters(
        embedding=(shape.vocab_size + positions) * hidden,
        attention=_mixer_parameters(shape, family),
        mlp=(
            shape.mlps.count("mlp") * dense_mlp
            + moe_layers * (shared_experts + latent_projections)
            + routers
        ),
        experts=moe_layers * shape.num_experts * _expert(shape, family),
        norms=norms * hidden * (2 if family.norm_bias else 1),
        lm_head=head,
        kv_projection=_kv_projection(shape),
        latents=_attention_layers(shape) * _latents(shape) if shape.has_latent_attention else 0,
        routers=routers,
    )


def _attention_layers(shape: Shape) -> int:
    """Layers with attention of the shape's own heads."""
    return shape.mixers.count("attention") + shape.mixers.count("both")


def _mixer_parameters(shape: Shape, family: Family) -> int:
    """Parameters of attention, and of layers that mix tokens without it."""
    layers = Counter(shape.mixers)
    attention = _mla(shape) if shape.has_latent_attention else _attention(shape, family)
    global_attention = _attention(shape.of_global, family)
    if shape.attention_k_eq_v:
        global_attention -= _key_projection(shape.of_global)  # values are keys
    return (
        _attention_layers(shape) * attention
        + layers["global"] * global_attention
        + layers["linear"] * _delta_network(shape)
        + (layers["mamba"] + layers["both"]) * _mamba_2(shape, family)
        + layers["kda"] * _delta_attention(shape)
        + layers["mamba1"] * _mamba_1(shape)
    )


def _key_projection(shape: Shape) -> int:
    return shape.hidden_size * shape.num_key_value_heads * shape.head_dim


def _kv_projection(shape: Shape) -> int:
    """Projections to keys and values; those to the latents of MLA are counted apart."""
    if shape.has_latent_attention:
        return 0
    of_attention = 2 * _attention_layers(shape) * _key_projection(shape)
    projections = 1 if shape.attention_k_eq_v else 2
    of_global = projections * shape.mixers.count("global") * _key_projection(shape.of_global)
    return of_attention + of_global


def _has_bias(of_family: bool | None, of_config: bool) -> bool:
    """Whether a projection has a bias: as its family says, else as the config does."""
    return of_config if of_family is None else of_family


def _mlp(hidden: int, intermediate: int, family: Family, *, has_bias: bool) -> int:
    """An MLP of this width: one projection up, or two if it is gated, and one down."""
    ups = 2 if family.gated else 1
    weights = (ups + 1) * hidden * intermediate
    if has_bias:
        weights += ups * intermediate + hidden
    return weights


def _expert(shape: Shape, family: Family) -> int:
    return _mlp(
        shape.moe_latent_size or shape.hidden_size,
        shape.moe_intermediate_size,
        family,
        has_bias=family.expert_bias,
    )


def _attention(shape: Shape, family: Family) -> int:
    """Attention with a head dimension that queries, keys and values share."""
    hidden = shape.hidden_size
    heads = shape.num_attention_heads
    queries = heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    gate = queries if family.gated_attention else 0
    weights = hidden * (queries + gate + 2 * keys) + queries * hidden
    if _has_bias(family.qkv_bias, shape.attention_bias):
        weights += queries + 2 * keys
    if _has_bias(family.o_bias, shape.attention_bias):
        weights += hidden
    if family.qk_norm:
        weights += 2 * shape.head_dim
    if family.wide_qk_norm:
        weights += queries + keys
    if family.sinks:
        weights += heads
    return weights


def _delta_network(shape: Shape) -> int:
    """A gated delta network (transformers 5.19 ``modeling_qwen3_next.py``)."""
    heads = shape.linear_num_value_heads
    keys = shape.linear_num_key_heads * shape.linear_key_head_dim
    values = heads * shape.linear_value_head_dim
    inputs = shape.hidden_size * (2 * keys + 2 * values + 2 * heads)
    convolution = (2 * keys + values) * shape.linear_conv_kernel_dim
    output = values * shape.hidden_size
    # the bias of the time step and A of each head, and a norm
    return inputs + convolution + 2 * heads + shape.linear_value_head_dim + output


def _delta_attention(shape: Shape) -> int:
    """Kimi Delta Attention (transformers 5.24 ``modeling_kimi_linear.py``)."""
    hidden = shape.hidden_size
    heads = shape.linear_num_value_heads
    head_dim = shape.linear_value_head_dim
    width = heads * head_dim
    projections = 4 * hidden * width + hidden * heads  # queries, keys, values, output; beta
    gates = 2 * (hidden * head_dim + head_dim * width)  # of forgetting and of the output
    convolutions = 3 * width * shape.linear_conv_kernel_dim
    # the bias of the time step, A of each head, and a norm
    return projections + gates + convolutions + width + heads + head_dim


def _mamba_1(shape: Shape) -> int:
    """Mamba-1 with the norms that Jamba adds (transformers 5.24 ``modeling_jamba.py``)."""
    inner = shape.mamba_inner_size
    states = shape.ssm_state_size
    rank = shape.mamba_dt_rank
    projections = 3 * shape.hidden_size * inner + inner * (rank + 2 * states) + rank * inner
    norms = rank + 2 * states
    # the convolution and its bias, the bias of the time step, A and D
    return projections + norms + inner * (shape.conv_kernel + 1 + 1 + states + 1)


def _mamba_2(shape: Shape, family: Family) -> int:
    """Mamba-2 (transformers 5.19 ``modeling_nemotron_h.py``)."""
    heads = shape.mamba_num_heads
    inner = heads * shape.mamba_head_dim
    states = 2 * shape.n_groups * shape.ssm_state_size
    inputs = shape.hidden_size * (2 * inner + states + heads)
    convolution = (inner + states) * (shape.conv_kernel + 1)  # with its bias
    norm = inner if family.mamba_norm else 0
    output = inner * shape.hidden_size
    return inputs + convolution + 3 * heads + norm + output  # per head: bias of the step, A and D


def _latents(shape: Shape) -> int:
    """The projections to MLA's latents: too small to be divided, so every rank has them."""
    width = shape.kv_lora_rank + shape.qk_rope_head_dim + shape.q_lora_rank
    return shape.hidden_size * width + shape.kv_lora_rank + shape.q_lora_rank


def _mla(shape: Shape) -> int:
    """Multi-head latent attention, with an indexer where the model has one."""
    hidden = shape.hidden_size
    heads = shape.num_attention_heads
    query_width = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    query = (shape.q_lora_rank or hidden) * query_width
    expand = shape.kv_lora_rank * heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    output = heads * shape.v_head_dim * hidden
    return query + _latents(shape) + expand + output + _indexer(shape)


def _indexer(shape: Shape) -> int:
    """What chooses the tokens that sparse attention reads."""
    if not shape.index_n_heads:
        return 0
    queries = shape.q_lora_rank * shape.index_n_heads
    key = shape.hidden_size
    norm = 2  # of the key
    weights_of_heads = shape.hidden_size * shape.index_n_heads
    return (queries + key + norm) * shape.index_head_dim + weights_of_heads
