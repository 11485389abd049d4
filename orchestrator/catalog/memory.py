"""Bytes of weights and of KV cache on one rank: what feasibility judges by and what the emulator's timing reads.

Formulas: vLLM's ``get_num_kv_heads`` (KV heads are replicated once tensor parallelism exceeds them), MLA's latent is
replicated on every tensor-parallel rank, layers are dealt to pipeline stages as evenly as they go.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts, Quantization
from orchestrator.spec.settings import EngineSettings

BYTES: dict[str, float] = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "int8": 1}
# Weight bits, scales included, of methods that quantize a 16-bit checkpoint while it loads.
ONLINE_BITS: dict[str, float] = {
    "fp8": 8, "fp8_per_tensor": 8, "fp8_per_channel": 8, "fp8_per_block": 8.002, "mxfp8": 8.25, "mxfp4": 4.25,
    "int8_per_channel_weight_only": 8, "experts_int8": 8, "nvfp4_per_token": 4.5, "nvfp4_online": 4.5,
    "w8a8_int8": 8, "w8a8_fp8": 8, "eetq": 8, "bitsandbytes": 4.13, "bitsandbytes-nf4": 4.13, "bitsandbytes-fp4": 4.13,
    "bnb-4bit": 4.13, "bnb-8bit": 8,
}  # fmt: skip
_EXPERTS_ONLY = {"mxfp4", "int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8"}


def dtype_bytes(facts: ModelFacts, dtype: str | None) -> float:
    """Bytes of one unquantized weight or activation. ``auto`` follows the checkpoint, float32 becomes 16 bit."""
    if dtype in {None, "auto"}:
        return 2 if facts.dtype == "float32" else BYTES.get(facts.dtype, 2)
    return BYTES.get(dtype or "", 2)


def kv_cache_bytes(kv_cache_dtype: str | None, model_bytes: float) -> float:
    """Bytes of one KV element."""
    kind = kv_cache_dtype or "auto"
    if kind == "auto":
        return model_bytes
    if "fp4" in kind or "int4" in kind or "4bit" in kind or kind.startswith("q4"):
        return 0.5625  # 4 bits and an 8-bit scale for 16 of them
    return 1 if "8" in kind and "bfloat" not in kind else BYTES.get(kind, 2)


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a whole model by part, as they lie in memory."""

    embedding: float
    layers: float  # attention, dense MLPs, shared experts, routers
    experts: float
    norms: float  # replicated on tensor-parallel ranks
    lm_head: float  # what is read for it: the embedding again when tied
    tied: bool

    @property
    def total(self) -> float:
        return self.embedding + self.layers + self.experts + self.norms + (0 if self.tied else self.lm_head)


def weights(facts: ModelFacts, dtype: str | None = None, quantization: str | None = None) -> Weights:
    """Bytes by part under a dtype and a quantization (a checkpoint's own, or one applied while loading)."""
    plain = dtype_bytes(facts, dtype)
    stored = facts.quantization or _online(quantization)
    dense = experts = plain
    if stored is not None:
        experts = stored.bits / 8
        dense = plain if stored.experts_only else experts
    parts = facts.parameters
    result = Weights(
        embedding=parts.embedding * plain,
        layers=(parts.attention + parts.mlp) * dense,
        experts=parts.experts * experts,
        norms=parts.norms * plain,
        lm_head=(parts.lm_head or parts.embedding) * plain,
        tied=parts.lm_head == 0,
    )
    return _scaled_to_checkpoint(facts, result) if stored is facts.quantization and not facts.multimodal else result


def _online(quantization: str | None) -> Quantization | None:
    if quantization is None or quantization not in ONLINE_BITS:
        return None
    return Quantization(quantization, ONLINE_BITS[quantization], experts_only=quantization in _EXPERTS_ONLY)


def _scaled_to_checkpoint(facts: ModelFacts, computed: Weights) -> Weights:
    """A quantized checkpoint's own size is exact (scales, zero points, what was left alone): it wins."""
    if facts.quantization is None or facts.checkpoint_bytes is None:
        return computed
    fixed = computed.embedding + computed.norms + (0 if computed.tied else computed.lm_head)
    inner = computed.layers + computed.experts
    factor = max(0.0, facts.checkpoint_bytes - fixed) / inner if inner else 1.0
    return Weights(
        computed.embedding,
        computed.layers * factor,
        computed.experts * factor,
        computed.norms,
        computed.lm_head,
        computed.tied,
    )


def layers_per_stage(layers: int, stages: int) -> list[int]:
    """Layers of every pipeline stage, as vLLM deals them: remainders to the middle, the last stage last."""
    each, rest = divmod(layers, stages)
    counts = [each] * stages
    for offset in range(2, rest + 2):
        counts[-offset] += 1
    return counts


def weight_bytes_per_rank(
    facts: ModelFacts, parts: Weights, tensor_parallel: int, pipeline_parallel: int, expert_parallel: int = 1
) -> float:
    """Bytes on the fullest rank. Experts are spread over tensor or expert parallelism, norms over neither."""
    layers = facts.shape.num_hidden_layers
    counts = layers_per_stage(layers, pipeline_parallel)
    inner = parts.layers / tensor_parallel + parts.experts / max(tensor_parallel, expert_parallel) + parts.norms
    embedding, head = parts.embedding / tensor_parallel, parts.lm_head / tensor_parallel
    stages = [inner * count / layers for count in counts]
    stages[0] += embedding
    if pipeline_parallel > 1 or not parts.tied:
        stages[-1] += head
    return max(stages)


def kv_heads_per_rank(facts: ModelFacts, tensor_parallel: int) -> int:
    """KV heads one rank holds; never below one."""
    return max(1, facts.shape.num_key_value_heads // tensor_parallel)


def kv_bytes_per_token(
    facts: ModelFacts, tensor_parallel: int, pipeline_parallel: int, element_bytes: float, sliding: bool = True
) -> float:
    """KV bytes of one token on the fullest rank. ``sliding=False`` counts full-attention layers only."""
    shape = facts.shape
    if shape.mla:
        per_layer = float(shape.kv_lora_rank + shape.qk_rope_head_dim)
    else:
        per_layer = 2.0 * kv_heads_per_rank(facts, tensor_parallel) * shape.head_dim
    counted = facts.num_attention_layers - (0 if sliding else facts.num_sliding_layers)
    return per_layer * element_bytes * -(-counted // pipeline_parallel)


def kv_bytes_per_sequence(
    facts: ModelFacts,
    tokens: int,
    tensor_parallel: int,
    pipeline_parallel: int,
    element_bytes: float,
    block_size: int = 16,
) -> float:
    """KV bytes on one rank of one sequence: whole blocks, and at most a window's worth in sliding layers."""
    whole = -(-tokens // block_size) * block_size
    full = kv_bytes_per_token(facts, tensor_parallel, pipeline_parallel, element_bytes, sliding=False)
    every = kv_bytes_per_token(facts, tensor_parallel, pipeline_parallel, element_bytes)
    window = min(whole, (facts.sliding_window or 0) + block_size)
    return full * whole + (every - full) * window


def compute_type(facts: ModelFacts, settings: EngineSettings) -> str:
    """The arithmetic of the matrix products: the peak follows it, not the storage type (W4A16 computes in 16 bit)."""
    method = settings.quantization or (facts.quantization.method if facts.quantization else "")
    if method.startswith(("fp8", "mxfp8", "modelopt", "w8a8_fp8")):
        return "fp8"
    if "int8" in method and "weight_only" not in method:
        return "int8"
    if method.startswith("nvfp4"):
        return "fp4"
    return "float32" if settings.dtype in {"float32", "float"} else "bfloat16"


# What a rank holds beside weights and KV cache: CUDA context and NCCL buffers, and CUDA graphs.
CONTEXT_BYTES = 1.0 * 2**30
GRAPH_BYTES = 0.6 * 2**30
DEFAULT_UTILIZATION = 0.92  # vLLM 0.32
CPU_KV_BYTES = 4 * 2**30  # VLLM_CPU_KVCACHE_SPACE where it is not given


def activation_bytes(facts: ModelFacts, settings: EngineSettings, batched_tokens: int) -> float:
    """Peak activations of one step: the widest MLP of a rank, a few hidden states, and the logits of all sequences."""
    shape, element = facts.shape, dtype_bytes(facts, settings.dtype)
    intermediate = max(shape.intermediate_size, shape.moe_intermediate_size * shape.num_experts_per_tok)
    per_token = (4 * shape.hidden_size + 2 * intermediate / settings.tensor_parallel_size) * element
    return batched_tokens * per_token + 2 * 4.0 * shape.vocab_size * 256


def kv_room_bytes(device: Accelerator, weights_rank: float, settings: EngineSettings, facts: ModelFacts) -> float:
    """Bytes a rank has left for KV under vLLM's budget: utilization * memory - weights - what a step needs."""
    if device.name == "cpu":
        return float(settings.env.get("VLLM_CPU_KVCACHE_SPACE", 0) or 0) * 2**30 or float(CPU_KV_BYTES)
    budget = device.memory_bytes * (settings.gpu_memory_utilization or DEFAULT_UTILIZATION)
    tokens = settings.max_num_batched_tokens or batch_defaults(device, settings)[0]
    graphs = 0 if settings.enforce_eager else GRAPH_BYTES
    return budget - weights_rank - CONTEXT_BYTES - graphs - activation_bytes(facts, settings, tokens)


def batch_defaults(device: Accelerator, settings: EngineSettings) -> tuple[int, int]:
    """vLLM 0.32's (max_num_batched_tokens, max_num_seqs) on a device (``get_batch_defaults``, API server)."""
    if device.name == "cpu":
        return 2048 * settings.world_size, 128 * settings.world_size
    if device.memory_bytes >= 160 * 2**30:
        return 16384, 1024
    if device.memory_bytes >= 70 * 2**30 and not device.name.startswith("A100"):
        return 8192, 1024
    return 2048, 256
