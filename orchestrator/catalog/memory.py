"""Bytes of weights and KV cache on one rank, for feasibility and for the emulator's timing.

The rules are vLLM 0.32's: vocabularies are padded; KV heads are replicated when there are fewer
than tensor-parallel ranks; every rank has MLA's latent and its projections; layers are spread over
pipeline stages as evenly as possible; a sequence takes whole blocks.
"""

import math
from dataclasses import dataclass, replace
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
SEQUENCES = 1024  # default of vLLM on GPUs of 70 GiB and more
BATCHED_TOKENS = 8192  # likewise
LEAST_FACTOR = 0.6  # least plausible ratio of a checkpoint's size to that of an exact formula
VOCAB_PADDING = 64  # rows: vLLM and SGLang round the vocabulary up (``DEFAULT_VOCAB_PADDING_SIZE``)
CPU_BLOCK = 128  # tokens of a KV cache's block where none is given
GPU_BLOCK = 16
# Engines of which every data-parallel rank is a whole replica unless experts are parallel
# (SGLang 0.5.23: ``--dp-size`` without attention on data-parallel ranks).
WHOLE_REPLICAS = frozenset({"sglang"})
LOGITS_OF_SEQUENCES = 256  # sequences whose logits a step holds at a time, twice, in float32


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
    kind = kv_cache_dtype or "auto"
    if kind == "auto":
        return model_bytes
    for bytes_by_type in (GGML_BYTES, BYTES):
        if kind in bytes_by_type:
            return bytes_by_type[kind]
    if "fp4" in kind or "int4" in kind or "4bit" in kind:
        return 0.5625  # 4 bits, and an 8-bit scale for each 16 values
    return 1 if "8" in kind else 2


def kv_cache_dtype(facts: ModelFacts, settings: EngineSettings) -> str:
    """The data type of the KV cache: as requested, else the checkpoint's own, else ``auto``."""
    requested = settings.kv_cache_dtype or "auto"
    if requested != "auto" or facts.quantization is None:
        return requested
    return facts.quantization.kv_cache_dtype or "auto"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a whole model in memory. The parts do not overlap, except that ``mlp`` is a part of
    ``layers`` and a tied ``lm_head`` is the embedding.
    """

    embedding: float
    layers: float  # attention, dense MLPs and shared experts: divided among tensor-parallel ranks
    mlp: float  # dense MLPs and shared experts alone
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
    computed = _computed(
        facts, dtype_bytes(dtype), quantization_in_memory(facts.quantization, quantization)
    )
    if not facts.checkpoint_bytes:
        return computed
    if facts.quantization is not None and facts.quantization.method == "gguf":
        return _times(computed, facts.checkpoint_bytes / computed.total, *_PARTS)
    factor = _size_factor(facts, facts.checkpoint_bytes)
    if facts.all_parameters_counted and not LEAST_FACTOR < factor < 1 / LEAST_FACTOR:
        return computed  # files are missing, or there is more than one copy of the model
    return _times(computed, max(0.0, factor), *_SCALED_PARTS)


_SCALED_PARTS = ("layers", "mlp", "kv_projection", "experts")
_PARTS = (*_SCALED_PARTS, "embedding", "replicated", "lm_head")


def _size_factor(facts: ModelFacts, checkpoint_bytes: int) -> float:
    """The bytes of the layers in the checkpoint, divided by those that the formula gives.

    If the checkpoint is larger than the formula says, as many of the bytes beyond it as the model's
    draft layers would take are not counted as bytes of its layers.
    """
    stored = _computed(facts, _stored_element_bytes(facts, checkpoint_bytes), facts.quantization)
    inner = stored.layers + stored.kv_projection + stored.experts
    if not inner:
        return 1.0
    beyond = checkpoint_bytes - stored.total
    draft_bytes = facts.draft_layers * _layer_bytes(facts, stored)
    explained_by_draft = min(max(0.0, beyond), draft_bytes)
    return (inner + beyond - explained_by_draft) / inner


def _stored_element_bytes(facts: ModelFacts, checkpoint_bytes: int) -> float:
    """Bytes of one unquantized weight in the checkpoint."""
    if facts.quantization:
        return 2
    if checkpoint_bytes > 3 * facts.parameters.total:
        return 4  # too large for 16 bits, whatever config.json names
    return dtype_bytes(facts.dtype)


def quantization_in_memory(
    stored: Quantization | None, requested: str | None
) -> Quantization | None:
    """The quantization of the weights in memory. A 16-bit checkpoint may be quantized while it
    loads, and one in FP8 quantized further.
    """
    online = online_quantization(requested)
    if stored is None:
        return online
    if online is None or stored.method != "fp8" or online.bits >= stored.bits:
        return stored
    parts = ("experts",) if online.experts_only else ("attention", "mlp", "experts")
    return replace(stored, part_bits=dict.fromkeys(parts, online.bits))


def _computed(facts: ModelFacts, plain: float, stored: Quantization | None) -> Weights:
    """Bytes by part from the parameter counts. ``plain``: bytes of an unquantized weight."""
    parts = facts.parameters

    def element(part: str) -> float:
        return stored.bytes_of(part, plain) if stored else plain

    attention = element("attention")
    dense_bytes = (parts.mlp - parts.routers) * element("mlp")
    attention_parameters = parts.attention - parts.kv_projection - parts.latents
    embedding_bytes = parts.embedding * plain
    is_tied = parts.lm_head == 0
    return Weights(
        embedding=embedding_bytes,
        layers=attention_parameters * attention + dense_bytes,
        mlp=dense_bytes,
        kv_projection=parts.kv_projection * attention,
        replicated=(parts.norms + parts.routers) * plain + parts.latents * attention,
        experts=parts.experts * element("experts"),
        lm_head=embedding_bytes if is_tied else parts.lm_head * element("lm_head"),
        tied=is_tied,
    )


def _times(computed: Weights, factor: float, *names: str) -> Weights:
    """The weights with some parts times a factor."""
    return replace(computed, **{name: getattr(computed, name) * factor for name in names})


def _layer_bytes(facts: ModelFacts, stored: Weights) -> float:
    """Bytes of one layer of the checkpoint, with the projection that a draft layer adds."""
    shape = facts.shape
    dense = (stored.layers + stored.kv_projection + stored.replicated) / shape.num_hidden_layers
    return dense + stored.experts / max(1, shape.num_moe_layers) + _joining_bytes(facts)


def draft_layer_bytes(facts: ModelFacts, parts: Weights, settings: EngineSettings) -> float:
    """Bytes on one rank of one of the model's own draft layers: those of any layer, and of the
    projection that a draft layer adds, which every rank has whole.
    """
    shape = facts.shape
    tensor = settings.tensor_parallel_size
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
    """The number of layers of every pipeline stage. Layers that cannot be divided evenly go to the
    stages before the last one (vLLM's ``get_pp_indices``).
    """
    layers_each, remaining_layers = divmod(layers, stages)
    counts = [layers_each] * stages
    for offset in range(2, remaining_layers + 2):
        counts[-offset] += 1
    return counts


def weight_bytes_per_rank(
    facts: ModelFacts,
    parts: Weights,
    settings: EngineSettings,
    shares_dense: bool = False,
    draft: DraftBytes = NO_DRAFT,
) -> float:
    """Bytes on the fullest rank, a draft included.

    Experts are spread over all ranks of a stage. With ``shares_dense``, dense MLPs, shared experts
    and the output layer are, too. Without it they are spread over the tensor-parallel ranks of each
    data-parallel rank, so each data-parallel rank has all of them.
    """
    shape = facts.shape
    tensor = settings.tensor_parallel_size
    stages = settings.pipeline_parallel_size
    if not facts.has_parameter_count:
        return parts.total / tensor / stages + draft.weights
    sharers = expert_ranks(settings) if shares_dense else tensor
    dense = (parts.layers - parts.mlp) / tensor + parts.mlp / sharers + parts.replicated
    dense += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    experts = _expert_bytes_per_rank(facts, parts, settings)
    bytes_of_stages: list[float] = []
    end = 0
    for layers in layers_per_stage(shape.num_hidden_layers, stages):
        start, end = end, end + layers
        moe_layers = shape.mlps[start:end].count("moe")
        bytes_of_stages.append(
            dense * layers / shape.num_hidden_layers
            + experts * moe_layers / max(1, shape.num_moe_layers)
        )
    padded_rows = -shape.vocab_size % VOCAB_PADDING
    padding = padded_rows * shape.hidden_size * dtype_bytes(settings.dtype)
    bytes_of_stages[0] += (parts.embedding + padding) / tensor
    if stages > 1 or not parts.tied:
        bytes_of_stages[-1] += (parts.lm_head + padding) / sharers
    bytes_of_stages[-1] += draft.weights
    return max(bytes_of_stages)


def _expert_bytes_per_rank(facts: ModelFacts, parts: Weights, settings: EngineSettings) -> float:
    """Bytes of experts on the fullest rank if there were one pipeline stage."""
    experts = facts.shape.num_experts
    ranks = expert_parallel_size(settings)
    if ranks > 1 and experts:
        most_whole_experts = math.ceil(experts / ranks)
        return parts.experts * most_whole_experts / experts
    return parts.experts / expert_ranks(settings)


def expert_data_ranks(settings: EngineSettings) -> int:
    """Data-parallel ranks that divide the experts among them, each for the tokens of all.

    vLLM's do with and without expert parallelism. Without it they divide the experts' widths, and
    each gets the tokens of all ranks (0.32 ``fused_moe/config.py: flatten_tp_across_dp_and_pcp``,
    ``fused_moe/runner/moe_runner.py: do_naive_dispatch_combine``).
    """
    if settings.engine in WHOLE_REPLICAS and not settings.enable_expert_parallel:
        return 1
    return settings.data_parallel_size


def expert_ranks(settings: EngineSettings) -> int:
    """Ranks of a stage that share the experts."""
    return settings.tensor_parallel_size * expert_data_ranks(settings)


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
    """KV bytes of one token on the fullest rank of ``stages`` pipeline stages.

    ``sliding``: False leaves out the layers with a sliding window. ``draft``: a draft's KV cache is
    on the last stage, which has the fewest layers.
    """
    shape = facts.shape
    global_layers = shape.mixers.count("global")
    other_layers = shape.num_attention_layers - global_layers
    if not sliding:
        other_layers -= facts.num_sliding_layers
    element = kv_element_bytes(kv_cache_dtype(facts, settings), dtype_bytes(settings.dtype))
    other_bytes = element * _kv_elements(shape, settings)
    global_bytes: float = 0
    if global_layers:
        global_bytes = element * _kv_elements(shape.of_global, settings)
    most_others = math.ceil(other_layers / stages)
    most_globals = math.ceil(global_layers / stages)
    fullest = other_bytes * most_others + global_bytes * most_globals
    last = other_bytes * (other_layers // stages) + global_bytes * (global_layers // stages)
    return max(fullest, last + draft.kv_per_token)


def _kv_elements(shape: Shape, settings: EngineSettings) -> int:
    """Elements that one token adds to the cache of one layer on a rank."""
    if shape.has_latent_attention:
        return shape.kv_lora_rank + shape.qk_rope_head_dim
    heads = max(1, shape.num_key_value_heads // settings.tensor_parallel_size)
    return 2 * heads * shape.head_dim


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """How the tokens of a step choose among the routed experts of each layer.

    ``sharers``: data-parallel ranks whose tokens choose among the same experts. All shares are 0 for
    a model without experts.
    """

    num_experts: int
    experts_per_token: int
    sharers: int = 1

    @property
    def least_share(self) -> float:
        """The share of the experts that is read if all tokens of a step choose the same ones."""
        return self.experts_per_token / self.num_experts if self.num_experts else 0.0

    def expected_share(self, tokens: float) -> float:
        """The expected share of the experts that ``tokens`` tokens of a rank read, with uniform
        routing: ``1 - (1 - experts_per_token / num_experts) ** tokens``.
        """
        if not self.num_experts:
            return 0.0
        not_read_by_token = 1 - self.experts_per_token / self.num_experts
        return float(1 - not_read_by_token ** (tokens * self.sharers))

    def most_share(self, tokens: float) -> float:
        """The share that is read if no two tokens choose the same expert, as far as there are
        enough experts. vLLM's ``estimated_read_bytes_per_gpu_total`` counts this one.
        """
        return min(1.0, self.least_share * max(1.0, tokens * self.sharers))


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one tensor-parallel rank reads from memory in one step, in all pipeline stages
    together: a token passes all of them, so it makes every weight be read once.

    ``weights``: all weights but the routed experts, and without the input embedding, of which only
    single rows are read. ``experts``: all routed experts. ``context_token``: the KV cache of one
    token of context, in layers with full attention. ``window_token``: the same in layers with a
    sliding window, for a token within the window.
    """

    weights: float
    experts: float
    context_token: float
    window_token: float
    routing: ExpertRouting


def step_bytes(facts: ModelFacts, settings: EngineSettings) -> StepBytes:
    """What a step reads. KV heads are replicated where there are fewer than tensor-parallel ranks,
    and every rank has norms, routers and the latents of MLA.
    """
    shape = facts.shape
    tensor = settings.tensor_parallel_size
    parts = weights(facts, settings.dtype, settings.quantization)
    read_bytes = (parts.layers + parts.lm_head) / tensor + parts.replicated
    read_bytes += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    full_bytes = kv_bytes_per_token(facts, settings, stages=1, sliding=False)
    return StepBytes(
        weights=read_bytes,
        experts=parts.experts / expert_ranks(settings),
        context_token=full_bytes,
        window_token=kv_bytes_per_token(facts, settings, stages=1) - full_bytes,
        routing=ExpertRouting(
            num_experts=shape.num_experts,
            experts_per_token=shape.num_experts_per_tok,
            sharers=expert_data_ranks(settings),
        ),
    )


def kv_bytes_per_sequence(
    facts: ModelFacts,
    settings: EngineSettings,
    tokens: int,
    batched_tokens: int,
    block: int,
    draft: DraftBytes = NO_DRAFT,
) -> float:
    """The KV bytes of a sequence of ``tokens`` on one rank, in whole blocks. Layers with a sliding
    window keep the window and the tokens of one step; layers with a state keep only the state.
    """
    stages = settings.pipeline_parallel_size
    full = kv_bytes_per_token(facts, settings, stages, sliding=False, draft=draft)
    windowed = kv_bytes_per_token(facts, settings, stages, draft=draft) - full
    blocks = math.ceil(tokens / block)
    tokens_in_window = min(tokens, (facts.sliding_window or 0) - 1 + batched_tokens)
    blocks_of_window = math.ceil(tokens_in_window / block) + 1  # it may begin within a block
    states = facts.shape.state_elements * dtype_bytes(settings.dtype)
    states /= settings.tensor_parallel_size * stages
    return full * blocks * block + windowed * blocks_of_window * block + states


def kernel_scheme(facts: ModelFacts, settings: EngineSettings) -> str:
    """``Quantization.scheme`` of the kernels in use: the checkpoint's, else that of the quantization
    while loading. Empty when nothing is quantized or the scheme is unknown.
    """
    for quantization in (facts.quantization, online_quantization(settings.quantization)):
        if quantization is None or not quantization.scheme:
            continue
        quantizes_nothing = quantization.experts_only and not facts.shape.num_experts
        if not quantizes_nothing:
            return quantization.scheme
    return ""


def compute_type(facts: ModelFacts, settings: EngineSettings) -> str:
    """The data type in which matrices are multiplied, which decides the peak FLOP/s. Weights may be
    stored in another type: W4A16 computes in 16 bits.
    """
    scheme = kernel_scheme(facts, settings)
    if scheme in {"int8", "fp4"}:
        return scheme
    if scheme.startswith(("fp8 per", "mxfp8")):
        return "fp8"
    return "float32" if settings.dtype in FLOAT32 else "bfloat16"


def activation_bytes(facts: ModelFacts, settings: EngineSettings, batched_tokens: int) -> float:
    """Peak bytes of activations in a step: the widest MLP, a few hidden states, the logits of
    LOGITS_OF_SEQUENCES.
    """
    shape = facts.shape
    expert_width = shape.moe_intermediate_size * shape.num_experts_per_tok
    width = max(shape.intermediate_size, expert_width)
    elements = 4 * shape.hidden_size + 2 * width / settings.tensor_parallel_size
    bytes_per_token = elements * dtype_bytes(settings.dtype)
    copies = 2
    logits_bytes = copies * BYTES["float32"] * shape.vocab_size * LOGITS_OF_SEQUENCES
    return batched_tokens * bytes_per_token + logits_bytes


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory and the limits that an engine will report at start, per data-parallel rank. None:
    not known.
    """

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
        if self.kv_cache_tokens is None:
            return None
        return self.kv_cache_tokens / self.max_model_len


# What ``gpu_memory_utilization`` is a share of:
# - all: all that a rank uses
# - static: weights and KV cache alone; the activations of a step come on top
# - free: the KV cache alone, of what weights and activations leave
ShareOf = Literal["all", "static", "free"]
UNKNOWN_LENGTH = 2048  # vLLM's assumption for configs without a length


def estimate_memory(
    facts: ModelFacts,
    settings: EngineSettings,
    device: Accelerator | None,
    share_of: ShareOf = "all",
    shares_dense: bool = False,
    draft: DraftBytes = NO_DRAFT,
) -> MemoryEstimate:
    """Weights, limits and KV capacity of a deployment. ``device=None``: without figures that depend
    on its memory.

    ``shares_dense``: as in ``weight_bytes_per_rank``. ``draft``: what speculative decoding adds. Of models
    that no formula fits (``ModelFacts.has_parameter_count``) only the weights are estimated, if
    their files are at hand.
    """
    length = settings.max_model_len or facts.max_model_len or UNKNOWN_LENGTH
    batched = settings.max_num_batched_tokens or BATCHED_TOKENS
    weight_bytes = None
    if facts.has_parameter_count or facts.checkpoint_bytes:
        parts = weights(facts, settings.dtype, settings.quantization)
        weight_bytes = int(weight_bytes_per_rank(facts, parts, settings, shares_dense, draft))
    estimate = MemoryEstimate(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=None,
        max_model_len=length,
        max_num_batched_tokens=batched,
        max_num_seqs=settings.max_num_seqs or SEQUENCES,
        kv_cache_tokens=settings.kv_cache_tokens,
    )
    if weight_bytes is None or not facts.has_parameter_count:
        return estimate
    stages = settings.pipeline_parallel_size
    per_token = kv_bytes_per_token(facts, settings, stages, draft=draft)
    estimate = replace(estimate, kv_bytes_per_token=per_token)
    room = _kv_room_bytes(facts, settings, device, weight_bytes, batched, share_of)
    if room is None:
        return estimate
    estimate = replace(estimate, kv_cache_memory_bytes=int(room))
    if settings.kv_cache_tokens is not None or not per_token:
        return estimate
    block = settings.block_size
    if block is None:
        block = CPU_BLOCK if device is not None and device.name == "cpu" else GPU_BLOCK
    per_sequence = kv_bytes_per_sequence(facts, settings, length, batched, block, draft)
    return replace(estimate, kv_cache_tokens=max(0, int(room / per_sequence * length)))


def _kv_room_bytes(
    facts: ModelFacts,
    settings: EngineSettings,
    device: Accelerator | None,
    weight_bytes: float,
    batched: int,
    share_of: ShareOf,
) -> float | None:
    """Bytes of a rank for its KV cache: as the settings say, or what weights and a step of
    ``batched`` tokens leave. None: not known.
    """
    if settings.kv_cache_memory_bytes is not None:
        return float(settings.kv_cache_memory_bytes)
    if device is None:
        return None
    if device.name == "cpu":
        gib = settings.env.get("VLLM_CPU_KVCACHE_SPACE", "")
        return float(gib) * GIB if gib.isdigit() and int(gib) > 0 else None
    memory = device.memory_bytes
    share = settings.gpu_memory_utilization
    if share is None:
        share = DEFAULT_UTILIZATION
    if share_of == "static":
        return memory * share - weight_bytes
    needed = weight_bytes + CONTEXT_BYTES + activation_bytes(facts, settings, batched)
    if not settings.enforce_eager:
        needed += GRAPH_BYTES
    if share_of == "free":
        return (memory - needed) * share
    return memory * share - needed
