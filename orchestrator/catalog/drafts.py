"""The bytes that speculative decoding adds to a rank: weights and KV cache of a draft model, of a
draft head, or of the model's own layers for multi-token prediction.

A draft runs on the ranks of the last pipeline stage. Heads that read the model's hidden states
(EAGLE, DFlash) share its embedding and, unless they have a vocabulary of their own, its output
layer (vLLM 0.32 ``v1/spec_decode/eagle.py``, SGLang 0.5.23 ``speculative/eagle_worker.py``).
"""

from dataclasses import replace

from orchestrator.catalog.memory import (
    NO_DRAFT,
    DraftBytes,
    draft_layer_bytes,
    dtype_bytes,
    kv_bytes_per_token,
    weight_bytes_per_rank,
    weights,
)
from orchestrator.catalog.models import ModelFacts
from orchestrator.spec.settings import EngineSettings, Speculative

# beginnings of methods that look tokens up instead of using a model, as "ngram_gpu"
WITHOUT_MODEL = ("ngram", "suffix")
EAGLE = "eagle"
HEADS = (EAGLE, "dflash", "dspark")  # methods, and parts of architectures, that share embeddings
MTP = ("mtp", "nextn")
AUXILIARY_STATES = 3  # hidden states of the model that EAGLE-3 joins


def looks_tokens_up(settings: EngineSettings) -> bool:
    """Whether drafts are looked up in earlier tokens, instead of coming from a model."""
    speculative = settings.speculative
    if speculative is None or speculative.method is None:
        return False
    return speculative.method.lower().startswith(WITHOUT_MODEL)


def is_own_layers(settings: EngineSettings) -> bool:
    """Whether the model's own layers for multi-token prediction are the draft."""
    speculative = settings.speculative
    if speculative is None or speculative.model not in (None, settings.model):
        return False
    method = (speculative.method or "").lower()
    return any(word in method for word in MTP)


def draft_bytes(
    facts: ModelFacts, settings: EngineSettings, draft: ModelFacts | None
) -> DraftBytes | None:
    """What the draft adds to a rank of the last stage. None: there is a draft of unknown size.

    ``facts``: of the model. ``draft``: the facts of ``settings.speculative.model``; None if they
    are not known.
    """
    speculative = settings.speculative
    if speculative is None or looks_tokens_up(settings):
        return NO_DRAFT
    if is_own_layers(settings):
        return _own_layers(facts, settings)
    if draft is None or not draft.has_parameter_count:
        return None
    of_draft = settings_of_draft(settings, speculative)
    kv = kv_bytes_per_token(draft, of_draft, stages=1)
    if is_head(draft, speculative):
        return DraftBytes(_head_bytes(draft, settings, of_draft.tensor_parallel_size), kv)
    weight_bytes = weight_bytes_per_rank(draft, weights(draft, settings.dtype), of_draft)
    return DraftBytes(weight_bytes, kv)


def is_head(draft: ModelFacts, speculative: Speculative) -> bool:
    """Whether a draft model reads the hidden states of the model, and shares its embedding."""
    names = _kind_of_draft(draft, speculative)
    return any(head in names for head in HEADS)


def is_eagle(draft: ModelFacts, speculative: Speculative) -> bool:
    """Whether a draft model is an EAGLE head, which drafts one token after the other."""
    return EAGLE in _kind_of_draft(draft, speculative)


def _kind_of_draft(draft: ModelFacts, speculative: Speculative) -> str:
    """The method and the architectures of a draft model, in lower case."""
    return " ".join((speculative.method or "", *draft.architectures)).lower()


def settings_of_draft(settings: EngineSettings, speculative: Speculative) -> EngineSettings:
    """How the draft model of a deployment runs: on the ranks of the last stage."""
    ranks = speculative.draft_tensor_parallel_size or settings.tensor_parallel_size
    return settings.model_copy(
        update={
            "tensor_parallel_size": ranks,
            "pipeline_parallel_size": 1,
            "data_parallel_size": 1,
            "enable_expert_parallel": False,
            "speculative": None,
        }
    )


def _own_layers(facts: ModelFacts, settings: EngineSettings) -> DraftBytes | None:
    if not (facts.draft_layers and facts.has_parameter_count):
        return None
    parts = weights(facts, settings.dtype, settings.quantization)
    layer_bytes = draft_layer_bytes(facts, parts, settings)
    one_layer = replace(
        facts,
        shape=replace(facts.shape, num_hidden_layers=1, mixers=("attention",), mlps=("mlp",)),
        num_sliding_layers=0,
    )
    layer_kv = kv_bytes_per_token(one_layer, settings, stages=1)
    return DraftBytes(facts.draft_layers * layer_bytes, facts.draft_layers * layer_kv)


def head_as_model(draft: ModelFacts) -> ModelFacts:
    """A head with all parameters that it reads for a token, those of the model's output layer
    included where it has none of its own. Parts that only some heads have are not counted.
    """
    shape = draft.shape
    hidden = shape.hidden_size
    # queries, keys and values read the embedding beside the hidden state
    attention = draft.parameters.attention
    attention += hidden * shape.head_dim * shape.num_attention_heads
    attention += 2 * hidden * shape.head_dim * shape.num_key_value_heads
    vocab_size = shape.vocab_size
    if draft.draft_vocab_size:
        attention += AUXILIARY_STATES * hidden * hidden
        vocab_size = draft.draft_vocab_size
    parameters = replace(draft.parameters, attention=attention, lm_head=vocab_size * hidden)
    return replace(draft, shape=replace(shape, vocab_size=vocab_size), parameters=parameters)


def own_layer_as_model(facts: ModelFacts) -> ModelFacts:
    """One of a model's own layers for multi-token prediction as a model: the mean of its layers,
    with the experts of the last one, a projection of two hidden states to one, and the model's
    output layer.
    """
    shape = facts.shape
    layers = shape.num_hidden_layers
    expert_layers = max(1, shape.num_moe_layers)
    parts = facts.parameters
    parameters = replace(
        parts,
        attention=parts.attention // layers + 2 * shape.hidden_size**2,
        mlp=parts.mlp // layers,
        experts=parts.experts // expert_layers,
        norms=parts.norms // layers,
        lm_head=shape.vocab_size * shape.hidden_size,
        kv_projection=parts.kv_projection // layers,
        latents=parts.latents // layers,
        routers=parts.routers // expert_layers,
    )
    one_layer = replace(shape, num_hidden_layers=1, mixers=("attention",), mlps=shape.mlps[-1:])
    return replace(
        facts,
        shape=one_layer,
        parameters=parameters,
        num_sliding_layers=0,
        checkpoint_bytes=None,
    )


def _head_bytes(draft: ModelFacts, settings: EngineSettings, ranks: int) -> float:
    """The least bytes of a head on one of ``ranks`` ranks. Parts that it shares with the model are
    not counted.
    """
    parts = head_as_model(draft).parameters
    own = parts.attention + parts.mlp + parts.experts
    if draft.draft_vocab_size:
        own += parts.lm_head
    return own * dtype_bytes(settings.dtype) / ranks
