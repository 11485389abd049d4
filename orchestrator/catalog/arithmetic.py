"""The floating-point operations (FLOPs) of a model's parts."""

from dataclasses import dataclass

from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.parameters import Shape


@dataclass(frozen=True, slots=True)
class PairFlops:
    """FLOPs of one token that attends to one token of its context, in one head of one layer."""

    decode: float
    prefill: float


def attention_pair_flops(shape: Shape) -> PairFlops:
    """A product with the key, and one with the value. MLA decodes in its latent space (absorbed)
    and prefills in its heads.
    """
    if not shape.has_latent_attention:
        flops = 4.0 * shape.head_dim
        return PairFlops(flops, flops)
    return PairFlops(
        decode=2.0 * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim),
        prefill=2.0 * (shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim),
    )


def no_term(facts: ModelFacts) -> str | None:
    """The part of a model for which the formulas have no term; None if they cover all of it. Models
    that they do not cover (GLM-5, Qwen3.5) took up to three times the predicted time.
    """
    if facts.shape.index_n_heads:
        return "sparse attention"
    if "global" in facts.shape.mixers:
        return "layers with heads of their own"
    if "both" in facts.shape.mixers:
        return "Mamba beside attention"
    if facts.shape.num_attention_layers < facts.shape.num_hidden_layers:
        return "layers without attention"
    return None
