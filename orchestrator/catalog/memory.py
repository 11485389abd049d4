"""Bytes of weights and KV cache on one rank, for feasibility and for the emulator's timing.

The rules are vLLM 0.32's: vocabularies are padded; KV heads are replicated when there are fewer
than tensor-parallel ranks; every rank has MLA's latent and its projections; layers are spread over
pipeline stages as evenly as possible; a sequence takes whole blocks.
"""

import itertools
from dataclasses import asdict, dataclass, replace
from typing import Literal

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.parameters import Shape
from orchestrator.catalog.quantization import Quantization, online_quantization
from orchestrator.spec.settings import EngineSettings

GIB = 2**30
BYTES: dict[str, float] = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
FLOAT32 = frozenset({"float32", "float"})
# Bytes of one value of ggml's types, scales included (ggml/src/ggml-common.h).
GGML_BYTES: dict[str, float] = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # fmt: skip
CONTEXT_BYTES = 1.0 * GIB  # CUDA context and NCCL buffers of a rank
GRAPH_BYTES = 0.6 * GIB  # CUDA graphs of a rank
DEFAULT_UTILIZATION = 0.92  # vLLM 0.32
SEQUENCES, BATCHED_TOKENS = 1024, 8192  # defaults of vLLM on GPUs of 70 GiB and more


def memory_text(size: float) -> str:
    """Bytes as ``67.7 GiB``, or ``12.3 MiB`` where that would be less than 0.1."""
    return f"{size / GIB:.1f} GiB" if size == 0 or size >= GIB / 10 else f"{size / 2**20:.1f} MiB"


def dtype_bytes(dtype: str | None) -> float:
    """Bytes of one unquantized weight or activation; 2 for ``auto``, which converts float32
    checkpoints to 16 bits.
    """
    return BYTES.get(dtype or "auto", 2)


def kv_element_bytes(kv_cache_dtype: str | None, model_bytes: float) -> float:
    """Bytes of one KV element."""
    kind, known = kv_cache_dtype or "auto", BYTES | GGML_BYTES
    if kind in known or kind == "auto":
        return known.get(kind, model_bytes)
    if "fp4" in kind or "int4" in kind or "4bit" in kind:
        return 0.5625  # 4 bits, and an 8-bit scale for each 16 values
    return 1 if "8" in kind else 2


def kv_cache_dtype(facts: ModelFacts, settings: EngineSettings) -> str:
    """The data type of the KV cache: as asked for, else the checkpoint's own, else ``auto``."""
    asked = settings.kv_cache_dtype or "auto"
    if asked != "auto" or facts.quantization is None:
        return asked
    return facts.quantization.kv_cache_dtype or "auto"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a whole model in memory. The parts do not overlap, but for a tied ``lm_head`` and
    ``mlp``.
    """

    embedding: float
    layers: float  # attention, dense MLPs and shared experts: divided among tensor-parallel ranks
    mlp: float  # dense MLPs and shared experts alone, a part of ``layers``
    kv_projection: float  # divided among ranks up to the number of KV heads
    replicated: float  # norms, routers, latents: on every tensor-parallel rank
    experts: float
    lm_head: float  # the embedding when tied
    tied: bool

    @property
    def total(self) -> float:
        inner = self.layers + self.kv_projection + self.replicated + self.experts
        return self.embedding + inner + (0 if self.tied else self.lm_head)


def weights(
    facts: ModelFacts, dtype: str | None = None, quantization: str | None = None
) -> Weights:
    """Bytes by part with a dtype and a quantization (the checkpoint's own, or one applied while
    loading).

    If the checkpoint's size is known, the parts are scaled to it: it includes scales, zero points,
    unquantized modules and encoders that no formula counts.
    """
    computed = _computed(facts, dtype_bytes(dtype), loaded(facts.quantization, quantization))
    if not facts.checkpoint_bytes:
        return computed
    if facts.quantization is not None and facts.quantization.method == "gguf":  # all parts alike
        return _times(
            computed, facts.checkpoint_bytes / computed.total, *asdict(computed).keys() - {"tied"}
        )
    element = 4 if facts.checkpoint_bytes > 3 * facts.parameters.total else dtype_bytes(facts.dtype)
    stored = _computed(facts, 2 if facts.quantization else element, facts.quantization)
    drafts = facts.draft_layers * _layer_bytes(facts, stored)
    beyond = facts.checkpoint_bytes - stored.total
    inner = stored.layers + stored.kv_projection + stored.experts
    factor = (inner + beyond - min(max(0.0, beyond), drafts)) / inner if inner else 1.0
    if facts.exact and not LEAST_FACTOR < factor < 1 / LEAST_FACTOR:
        return computed  # files are missing, or there is more than one copy of the model
    return _times(computed, max(0.0, factor), "layers", "mlp", "kv_projection", "experts")


def loaded(stored: Quantization | None, asked: str | None) -> Quantization | None:
    """The quantization in memory: the one ``asked`` for where a 16-bit checkpoint is quantized
    while it loads; those in FP8 may be quantized further.
    """
    online = online_quantization(asked)
    if stored is None or online is None or stored.method != "fp8" or online.bits >= stored.bits:
        return stored or online
    parts = ("experts",) if online.experts_only else ("attention", "mlp", "experts")
    return replace(stored, part_bits=dict.fromkeys(parts, online.bits))


LEAST_FACTOR = 0.6  # least plausible ratio of a checkpoint's size to an exact formula's


def _computed(facts: ModelFacts, plain: float, stored: Quantization | None) -> Weights:
    """Bytes by part from the parameter counts. ``plain``: bytes of an unquantized weight."""
    parts = facts.parameters
    attention, mlp, experts, head = (
        stored.bytes_of(part, plain) if stored else plain
        for part in ("attention", "mlp", "experts", "lm_head")
    )
    dense = (parts.mlp - parts.routers) * mlp
    return Weights(
        embedding=parts.embedding * plain,
        layers=(parts.attention - parts.kv_projection - parts.latents) * attention + dense,
        mlp=dense,
        kv_projection=parts.kv_projection * attention,
        replicated=(parts.norms + parts.routers) * plain + parts.latents * attention,
        experts=parts.experts * experts,
        lm_head=(parts.lm_head or parts.embedding) * (head if parts.lm_head else plain),
        tied=parts.lm_head == 0,
    )


def _times(computed: Weights, factor: float, *names: str) -> Weights:
    return replace(computed, **{name: getattr(computed, name) * factor for name in names})


def _layer_bytes(facts: ModelFacts, stored: Weights) -> float:
    """Bytes of one layer of the checkpoint and of the projection that a draft layer adds."""
    shape = facts.shape
    dense = (stored.layers + stored.kv_projection + stored.replicated) / shape.num_hidden_layers
    return dense + stored.experts / max(1, shape.num_moe_layers) + _joining_bytes(facts)


def draft_layer_bytes(facts: ModelFacts, parts: Weights, settings: EngineSettings) -> float:
    """Bytes on one rank of one of the model's own draft layers: those of a layer, and of the
    projection to which it adds, which every rank has whole.
    """
    shape, tensor = facts.shape, settings.tensor_parallel_size
    dense = parts.layers / tensor + parts.replicated
    dense += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    experts = parts.experts / expert_ranks(settings) / max(1, shape.num_moe_layers)
    return dense / shape.num_hidden_layers + experts + _joining_bytes(facts)


def _joining_bytes(facts: ModelFacts) -> float:
    """Bytes of the projection of two hidden states to one, in 16 bits."""
    return 2 * 2 * facts.shape.hidden_size**2


@dataclass(frozen=True, slots=True)
class DraftBytes:
    """What a draft adds to each rank of the last pipeline stage."""

    weights: float
    kv_per_token: float


NO_DRAFT = DraftBytes(0.0, 0.0)


def layers_per_stage(layers: int, stages: int) -> list[int]:
    """Layers of every pipeline stage. A remainder goes to the stages before the last (vLLM's
    ``get_pp_indices``).
    """
    each, rest = divmod(layers, stages)
    counts = [each] * stages
    for offset in range(2, rest + 2):
        counts[-offset] += 1
    return counts


VOCAB_PADDING = 64  # rows: vLLM and SGLang round the vocabulary up (``DEFAULT_VOCAB_PADDING_SIZE``)


def weight_bytes_per_rank(
    facts: ModelFacts,
    parts: Weights,
    settings: EngineSettings,
    shared: bool = False,
    draft: DraftBytes = NO_DRAFT,
) -> float:
    """Bytes on the fullest rank, with those of a draft. Experts are spread over all ranks of a
    stage; with ``shared`` dense MLPs, shared experts and the output layer are too, else over the
    tensor-parallel ranks of each data-parallel one.
    """
    shape, tensor, stages = (
        facts.shape,
        settings.tensor_parallel_size,
        settings.pipeline_parallel_size,
    )
    if not facts.sized:
        return parts.total / tensor / stages + draft.weights
    padding = -shape.vocab_size % VOCAB_PADDING * shape.hidden_size * dtype_bytes(settings.dtype)
    sharers = expert_ranks(settings) if shared else tensor
    inner = (parts.layers - parts.mlp) / tensor + parts.mlp / sharers + parts.replicated
    inner += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    experts = parts.experts / expert_ranks(settings)
    if (spread := expert_parallel_size(settings)) > 1 and shape.num_experts:  # whole experts
        experts = parts.experts * -(-shape.num_experts // spread) / shape.num_experts
    counts = layers_per_stage(shape.num_hidden_layers, stages)
    ends = list(itertools.accumulate(counts))
    held = [
        inner * count / shape.num_hidden_layers
        + experts * shape.mlps[end - count : end].count("moe") / max(1, shape.num_moe_layers)
        for count, end in zip(counts, ends, strict=True)
    ]
    held[0] += (parts.embedding + padding) / tensor
    if stages > 1 or not parts.tied:
        held[-1] += (parts.lm_head + padding) / sharers
    held[-1] += draft.weights
    return max(held)


def expert_ranks(settings: EngineSettings) -> int:
    """Ranks of a stage that share the experts. Without expert parallelism vLLM divides their
    widths, also among data-parallel ranks (0.32 ``fused_moe/config.py:
    flatten_tp_across_dp_and_pcp``).
    """
    return settings.tensor_parallel_size * settings.data_parallel_size


def expert_parallel_size(settings: EngineSettings) -> int:
    """Ranks among which whole experts are divided; 1 without expert parallelism."""
    return expert_ranks(settings) if settings.enable_expert_parallel else 1


def kv_bytes_per_token(
    facts: ModelFacts,
    settings: EngineSettings,
    stages: int,
    sliding: bool = True,
    draft: DraftBytes = NO_DRAFT,
) -> float:
    """KV bytes of one token on the fullest rank of ``stages``, with those of a draft.
    ``sliding=False``: full-attention layers only.
    """
    shape, wide = facts.shape, facts.shape.mixers.count("global")
    element = kv_element_bytes(kv_cache_dtype(facts, settings), dtype_bytes(settings.dtype))
    others = shape.num_attention_layers - wide - (0 if sliding else facts.num_sliding_layers)

    def elements(of: Shape) -> int:
        if of.mla:
            return of.kv_lora_rank + of.qk_rope_head_dim
        heads = max(1, of.num_key_value_heads // settings.tensor_parallel_size)
        return 2 * heads * of.head_dim

    narrow_bytes, wide_bytes = element * elements(shape), element * elements(shape.of_global)
    fullest = narrow_bytes * -(-others // stages) + wide_bytes * -(-wide // stages)
    last = narrow_bytes * (others // stages) + wide_bytes * (wide // stages)
    return max(fullest, last + draft.kv_per_token)


def kv_bytes_per_sequence(
    facts: ModelFacts,
    settings: EngineSettings,
    tokens: int,
    batched_tokens: int,
    block: int,
    draft: DraftBytes = NO_DRAFT,
) -> float:
    """KV bytes on one rank of a sequence of ``tokens``, in whole blocks. Sliding layers keep a
    window and one step, layers with a state that alone.
    """
    stages = settings.pipeline_parallel_size
    full = kv_bytes_per_token(facts, settings, stages, sliding=False, draft=draft)
    windowed = kv_bytes_per_token(facts, settings, stages, draft=draft) - full
    held = min(tokens, (facts.sliding_window or 0) - 1 + batched_tokens)
    states = facts.shape.state_elements * dtype_bytes(settings.dtype)
    states /= settings.tensor_parallel_size * stages
    return full * -(-tokens // block) * block + windowed * (-(-held // block) + 1) * block + states


def kernel_scheme(facts: ModelFacts, settings: EngineSettings) -> str:
    """``Quantization.scheme`` of the kernels in use; empty when nothing is quantized or the scheme
    is unknown.
    """
    possible = (facts.quantization, online_quantization(settings.quantization))
    real = (
        one
        for one in possible
        if one is not None and (facts.shape.num_experts or not one.experts_only)
    )
    return next((one.scheme for one in real if one.scheme), "")


def compute_type(facts: ModelFacts, settings: EngineSettings) -> str:
    """Data type of the matrix products, which decides the peak FLOP/s, not that of storage (W4A16:
    16 bits).
    """
    scheme = kernel_scheme(facts, settings)
    if scheme in {"int8", "fp4"}:
        return scheme
    if scheme.startswith(("fp8 per", "mxfp8")):
        return "fp8"
    return "float32" if settings.dtype in FLOAT32 else "bfloat16"


def activation_bytes(facts: ModelFacts, settings: EngineSettings, batched_tokens: int) -> float:
    """Peak bytes of activations in a step: the widest MLP, a few hidden states, the logits of 256
    sequences.
    """
    shape, element = facts.shape, dtype_bytes(settings.dtype)
    intermediate = max(
        shape.intermediate_size, shape.moe_intermediate_size * shape.num_experts_per_tok
    )
    per_token = (4 * shape.hidden_size + 2 * intermediate / settings.tensor_parallel_size) * element
    return batched_tokens * per_token + 2 * 4.0 * shape.vocab_size * 256


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What an engine will report at start, per data-parallel rank. None: not known."""

    weight_bytes: int | None  # on the fullest rank
    kv_bytes_per_token: float | None  # on the fullest rank
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None

    @property
    def max_concurrency(self) -> float | None:
        """Number of sequences of ``max_model_len`` that fit into the KV cache."""
        return None if self.kv_cache_tokens is None else self.kv_cache_tokens / self.max_model_len


# What ``gpu_memory_utilization`` is a share of: all that a rank uses; weights and KV cache alone, a
# step's activations come on top; or what weights and activations leave, for the KV cache alone.
ShareOf = Literal["all", "static", "free"]
UNKNOWN_LENGTH = 2048  # vLLM's assumption for configs without a length


def estimate_memory(
    facts: ModelFacts,
    settings: EngineSettings,
    device: Accelerator | None,
    share_of: ShareOf = "all",
    shared: bool = False,
    draft: DraftBytes = NO_DRAFT,
) -> MemoryEstimate:
    """Weights, limits and KV capacity of a deployment. ``device=None``: without figures that depend
    on its memory.

    ``shared``: as in ``weight_bytes_per_rank``; ``draft``: what speculative decoding adds. Models
    that no formula fits (``ModelFacts.sized``) get only the weights, if their files are at hand.
    """
    length = settings.max_model_len or facts.max_model_len or UNKNOWN_LENGTH
    batched, sequences = (
        settings.max_num_batched_tokens or BATCHED_TOKENS,
        settings.max_num_seqs or SEQUENCES,
    )
    held = None
    if facts.sized or facts.checkpoint_bytes:
        parts = weights(facts, settings.dtype, settings.quantization)
        held = int(weight_bytes_per_rank(facts, parts, settings, shared, draft))
    if held is None or not facts.sized:
        return MemoryEstimate(held, None, length, batched, sequences, None, settings.kv_cache_tokens)
    room = _kv_room_bytes(facts, settings, device, held, batched, share_of)
    stages = settings.pipeline_parallel_size
    per_token = kv_bytes_per_token(facts, settings, stages, draft=draft)
    tokens = settings.kv_cache_tokens
    if tokens is None and room is not None and per_token:
        block = settings.block_size or (128 if device is not None and device.name == "cpu" else 16)
        per_sequence = kv_bytes_per_sequence(facts, settings, length, batched, block, draft)
        tokens = max(0, int(room / per_sequence * length))
    return MemoryEstimate(
        held, per_token, length, batched, sequences, None if room is None else int(room), tokens
    )


def _kv_room_bytes(
    facts: ModelFacts,
    settings: EngineSettings,
    device: Accelerator | None,
    held: float,
    batched: int,
    share_of: ShareOf,
) -> float | None:
    """Bytes of a rank for KV cache: as given, or what is left beside ``held`` bytes of weights and
    the needs of a step of ``batched`` tokens.
    """
    if settings.kv_cache_memory_bytes is not None:
        return float(settings.kv_cache_memory_bytes)
    if device is None:
        return None
    if device.name == "cpu":
        fixed = settings.env.get("VLLM_CPU_KVCACHE_SPACE", "")
        return float(fixed) * GIB if fixed.isdigit() and int(fixed) else None
    memory, share = device.memory_bytes, settings.gpu_memory_utilization
    share = DEFAULT_UTILIZATION if share is None else share
    if share_of == "static":
        return memory * share - held
    needs = held + CONTEXT_BYTES + activation_bytes(facts, settings, batched)
    needs += 0 if settings.enforce_eager else GRAPH_BYTES
    return (memory - needs) * share if share_of == "free" else memory * share - needs
