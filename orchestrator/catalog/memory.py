"""Bytes of weights and of KV cache on one rank: what feasibility judges by and what the emulator's timing reads.

The rules are vLLM 0.32's: vocabularies are padded, KV heads are replicated once tensor parallelism exceeds them, MLA's
latent and its projections are on every rank, layers are dealt to pipeline stages as evenly as they go, a sequence takes
whole blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, replace

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.catalog.parameters import online_quantization
from orchestrator.spec.settings import EngineSettings

GIB = 2**30
BYTES: dict[str, float] = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
FLOAT32 = frozenset({"float32", "float"})
# Of one value of ggml's types, scales included (ggml/src/ggml-common.h).
GGML_BYTES: dict[str, float] = {
    "f32": 4, "f16": 2, "bf16": 2, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}  # fmt: skip
# What a rank holds beside weights, activations and KV cache: CUDA context and NCCL buffers, and CUDA graphs.
CONTEXT_BYTES = 1.0 * GIB
GRAPH_BYTES = 0.6 * GIB
DEFAULT_UTILIZATION = 0.92  # vLLM 0.32
SEQUENCES, BATCHED_TOKENS = 1024, 8192  # where nothing is said: vLLM's choice on GPUs of 70 GiB and more


def dtype_bytes(dtype: str | None) -> float:
    """Bytes of one unquantized weight or activation: 2 for ``auto``, which turns float32 checkpoints into 16 bit."""
    return BYTES.get(dtype or "auto", 2)


def kv_element_bytes(kv_cache_dtype: str | None, model_bytes: float) -> float:
    """Bytes of one KV element."""
    kind, known = kv_cache_dtype or "auto", BYTES | GGML_BYTES
    if kind in known or kind == "auto":
        return known.get(kind, model_bytes)
    if "fp4" in kind or "int4" in kind or "4bit" in kind:
        return 0.5625  # 4 bits, and an 8-bit scale for 16 of them
    return 1 if "8" in kind else 2


def kv_cache_dtype(facts: ModelFacts, settings: EngineSettings) -> str:
    """The one asked for, else the checkpoint's own, else ``auto``."""
    asked, stored = settings.kv_cache_dtype or "auto", facts.quantization
    return (stored and stored.kv_cache_dtype) or "auto" if asked == "auto" else asked


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a whole model by part, as they lie in memory; no byte is in two parts."""

    embedding: float
    layers: float  # attention, dense MLPs and shared experts: divided by tensor parallelism
    kv_projection: float  # divided by the KV heads at most
    replicated: float  # norms, routers, latents: on every tensor-parallel rank
    experts: float
    lm_head: float  # what is read for it: the embedding again when tied
    tied: bool

    @property
    def total(self) -> float:
        inner = self.layers + self.kv_projection + self.replicated + self.experts
        return self.embedding + inner + (0 if self.tied else self.lm_head)


def weights(facts: ModelFacts, dtype: str | None = None, quantization: str | None = None) -> Weights:
    """Bytes by part under a dtype and a quantization (a checkpoint's own, or one applied while loading)."""
    plain = dtype_bytes(dtype)
    stored = facts.quantization or online_quantization(quantization)
    dense = experts = plain
    if stored is not None:
        experts = stored.bits / 8
        dense = plain if stored.experts_only else experts
    parts = facts.parameters
    divided = parts.attention + parts.mlp - parts.kv_projection - parts.replicated
    result = Weights(
        embedding=parts.embedding * plain,
        layers=divided * dense,
        kv_projection=parts.kv_projection * dense,
        replicated=parts.norms * plain + parts.replicated * dense,
        experts=parts.experts * experts,
        lm_head=(parts.lm_head or parts.embedding) * plain,
        tied=parts.lm_head == 0,
    )
    if stored is not None and stored.method == "gguf" and facts.checkpoint_bytes:  # of every part, the head too
        factor = facts.checkpoint_bytes / result.total
        return replace(result, **{name: size * factor for name, size in asdict(result).items() if name != "tied"})
    if facts.quantization is not None and facts.checkpoint_bytes and not facts.multimodal:
        return _scaled(result, facts.checkpoint_bytes)
    return result


def _scaled(computed: Weights, checkpoint_bytes: int) -> Weights:
    """A quantized checkpoint's own size is exact (scales, zero points, what was left alone): it wins."""
    fixed = computed.embedding + computed.replicated + (0 if computed.tied else computed.lm_head)
    inner = computed.layers + computed.kv_projection + computed.experts
    factor = max(0.0, checkpoint_bytes - fixed) / inner if inner else 1.0
    return replace(
        computed,
        layers=computed.layers * factor,
        kv_projection=computed.kv_projection * factor,
        experts=computed.experts * factor,
    )


def layers_per_stage(layers: int, stages: int) -> list[int]:
    """Layers of every pipeline stage: what is left over goes to the last stages but one (``get_pp_indices``)."""
    each, rest = divmod(layers, stages)
    counts = [each] * stages
    for offset in range(2, rest + 2):
        counts[-offset] += 1
    return counts


VOCAB_PADDING = 64  # rows: vLLM and SGLang round the vocabulary up (``DEFAULT_VOCAB_PADDING_SIZE``)


def weight_bytes_per_rank(facts: ModelFacts, parts: Weights, settings: EngineSettings) -> float:
    """Bytes on the fullest rank. Experts are spread over tensor or expert parallelism, and over the layers with any."""
    shape, tensor, stages = facts.shape, settings.tensor_parallel_size, settings.pipeline_parallel_size
    padding = -shape.vocab_size % VOCAB_PADDING * shape.hidden_size * dtype_bytes(settings.dtype)
    inner = parts.layers / tensor + parts.kv_projection / min(tensor, shape.num_key_value_heads) + parts.replicated
    experts = parts.experts / max(tensor, expert_parallel_size(settings))
    counts = layers_per_stage(shape.num_hidden_layers, stages)
    sparse = _expert_layers(counts, shape.num_hidden_layers - shape.num_moe_layers)
    held = [
        inner * count / shape.num_hidden_layers + experts * with_experts / max(1, shape.num_moe_layers)
        for count, with_experts in zip(counts, sparse, strict=True)
    ]
    held[0] += (parts.embedding + padding) / tensor
    if stages > 1 or not parts.tied:
        held[-1] += (parts.lm_head + padding) / tensor
    return max(held)


def _expert_layers(counts: list[int], dense: int) -> list[int]:
    """Layers with experts of every stage, the dense ones being the first as in DeepSeek."""
    ends = itertools.accumulate(counts)
    return [min(count, max(0, end - dense)) for count, end in zip(counts, ends, strict=True)]


def expert_parallel_size(settings: EngineSettings) -> int:
    """Ranks the experts are spread over; 1 without expert parallelism."""
    return settings.tensor_parallel_size * settings.data_parallel_size if settings.enable_expert_parallel else 1


def kv_bytes_per_token(facts: ModelFacts, settings: EngineSettings, stages: int, sliding: bool = True) -> float:
    """KV bytes of one token on the fullest rank of ``stages``. ``sliding=False``: full-attention layers only."""
    shape = facts.shape
    element = kv_element_bytes(kv_cache_dtype(facts, settings), dtype_bytes(settings.dtype))
    heads = max(1, shape.num_key_value_heads // settings.tensor_parallel_size)
    per_layer = shape.kv_lora_rank + shape.qk_rope_head_dim if shape.mla else 2 * heads * shape.head_dim
    counted = facts.num_attention_layers - (0 if sliding else facts.num_sliding_layers)
    return per_layer * element * max(layers_per_stage(counted, stages))


def kv_bytes_per_sequence(
    facts: ModelFacts, settings: EngineSettings, tokens: int, batched_tokens: int, block: int
) -> float:
    """KV bytes on one rank of a sequence of ``tokens``: whole blocks; sliding layers hold a window and one step."""
    stages = settings.pipeline_parallel_size
    full = kv_bytes_per_token(facts, settings, stages, sliding=False)
    windowed = kv_bytes_per_token(facts, settings, stages) - full
    held = min(tokens, (facts.sliding_window or 0) - 1 + batched_tokens)
    return full * -(-tokens // block) * block + windowed * (-(-held // block) + 1) * block


def kernel_scheme(facts: ModelFacts, settings: EngineSettings) -> str:
    """``Quantization.scheme`` of what is computed; empty where nothing is quantized or nothing is known of it."""
    possible = (facts.quantization, online_quantization(settings.quantization))
    real = (one for one in possible if one is not None and (facts.shape.num_experts or not one.experts_only))
    return next((one.scheme for one in real if one.scheme), "")


def compute_type(facts: ModelFacts, settings: EngineSettings) -> str:
    """The arithmetic of the matrix products: the peak follows it, not the storage type (W4A16 computes in 16 bit)."""
    scheme = kernel_scheme(facts, settings)
    if scheme in {"int8", "fp4"}:
        return scheme
    if scheme.startswith(("fp8 per", "mxfp8")):
        return "fp8"
    return "float32" if settings.dtype in FLOAT32 else "bfloat16"


def activation_bytes(facts: ModelFacts, settings: EngineSettings, batched_tokens: int) -> float:
    """Peak activations of one step: the widest MLP of a rank, a few hidden states, the logits of 256 sequences."""
    shape, element = facts.shape, dtype_bytes(settings.dtype)
    intermediate = max(shape.intermediate_size, shape.moe_intermediate_size * shape.num_experts_per_tok)
    per_token = (4 * shape.hidden_size + 2 * intermediate / settings.tensor_parallel_size) * element
    return batched_tokens * per_token + 2 * 4.0 * shape.vocab_size * 256


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an engine will report of itself at start, per data-parallel rank. None: not known here."""

    weight_bytes: int  # on the fullest rank
    kv_bytes_per_token: float  # on the fullest rank
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None

    @property
    def max_concurrency(self) -> float | None:
        """Sequences of ``max_model_len`` that fit at once."""
        return None if self.kv_cache_tokens is None else self.kv_cache_tokens / self.max_model_len


UNKNOWN_LENGTH = 2048  # vLLM's assumption where a config names no length


def predict(facts: ModelFacts, settings: EngineSettings, device: Accelerator | None) -> Prediction:
    """Weights, limits and KV capacity of a deployment. ``device=None``: nothing that depends on its memory."""
    length = settings.max_model_len or facts.max_model_len or UNKNOWN_LENGTH
    batched, sequences = settings.max_num_batched_tokens or BATCHED_TOKENS, settings.max_num_seqs or SEQUENCES
    held = weight_bytes_per_rank(facts, weights(facts, settings.dtype, settings.quantization), settings)
    room = _kv_room_bytes(facts, settings, device, held, batched)
    per_token = kv_bytes_per_token(facts, settings, settings.pipeline_parallel_size)
    tokens = settings.kv_cache_tokens
    if tokens is None and room is not None and per_token:
        block = settings.block_size or (128 if device is not None and device.name == "cpu" else 16)
        per_sequence = kv_bytes_per_sequence(facts, settings, length, batched, block)
        tokens = max(0, int(room / per_sequence * length))
    return Prediction(int(held), per_token, length, batched, sequences, None if room is None else int(room), tokens)


def _kv_room_bytes(
    facts: ModelFacts, settings: EngineSettings, device: Accelerator | None, weights_rank: float, batched_tokens: int
) -> float | None:
    """Bytes a rank has left for KV: what was fixed, or utilization * memory - weights - what a step needs."""
    if settings.kv_cache_memory_bytes is not None:
        return float(settings.kv_cache_memory_bytes)
    if device is None:
        return None
    if device.name == "cpu":
        fixed = settings.env.get("VLLM_CPU_KVCACHE_SPACE", "")
        return float(fixed) * GIB if fixed.isdigit() and int(fixed) else None
    budget = device.memory_bytes * (settings.gpu_memory_utilization or DEFAULT_UTILIZATION)
    graphs = 0 if settings.enforce_eager else GRAPH_BYTES
    return budget - weights_rank - CONTEXT_BYTES - graphs - activation_bytes(facts, settings, batched_tokens)
