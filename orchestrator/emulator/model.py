"""How long a step takes, and what one replica can hold: the emulator's stated model, formulas in
docs/emulator.md.

A token passes all pipeline stages, so every weight is read once per token whatever their number,
while each of the ``m = min(stages, sequences)`` micro-batches in flight is 1/m of the work.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.profile import Constants, resolved
from orchestrator.spec.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class RankLimits:
    """What one data-parallel rank of a replica takes at a time. ``kv_tokens`` is its KV capacity in
    tokens.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    chunked_prefill: bool = True
    prefix_caching: bool = True
    # decodes rest while there is a prompt to prefill (SGLang), else both share a step
    prefill_first: bool = False
    max_requests: int | None = None  # that run or wait, more are refused at once
    recv_interval: int = 1  # decode steps from one look for new requests to the next


class StepTimes(Protocol):
    """How long the steps of one data-parallel rank take: ``Costs`` by formula, ``Tables``
    (tables.py) by measured kernels. ``context``: tokens that all decodes of a step read in layers
    with full attention, ``windowed``: in layers with a sliding window.
    """

    @property
    def window(self) -> int:
        """Tokens of the sliding window; 0: ``windowed`` is not looked at."""

    def decode(self, sequences: int, context: int, windowed: float) -> tuple[float, float]:
        """Seconds of a step of decodes alone, and by how much the next is longer."""

    def mixed(
        self, decodes: int, context: int, windowed: float, chunks: list[tuple[int, int]]
    ) -> float:
        """Seconds of a step of decodes and prefill chunks, each (tokens computed before, tokens)."""


@dataclass(frozen=True, slots=True)
class Costs:
    """``StepTimes`` by formula. Coefficients of the step time, all in seconds: kernels run one
    after the other, so a step is a sum, and each kind of kernel takes the longer of reading and
    computing. Work is divided by the micro-batches in flight, reading weights and what a layer
    costs in any case are not: a token passes all stages.
    """

    step_s: float  # every step: host, kernel floors of all layers, latency of collectives and hops
    prefill_s: float  # added to a step that holds a prompt
    sequence_s: float  # each sequence in it
    weights_s: float  # reading all weights but the routed experts once
    token_s: float  # their arithmetic for one token, without the logits
    sample_s: float  # the logits of one sequence
    experts_s: float  # reading all routed experts once
    expert_token_s: float  # their arithmetic for one token
    # activations and messages of one token: read and written beside the weights, sent to other
    # ranks
    traffic_s: float
    context_s: float  # one token of context of a decode, in layers with full attention
    window_s: float  # the same in sliding-window layers
    # a prefill's pair of a token and a token of its context, in layers with full attention
    attend_s: float
    attend_window_s: float  # the same in sliding-window layers
    num_experts: int
    experts_per_token: int
    expert_sharers: int  # data-parallel ranks whose tokens the experts of a rank serve
    stages: int
    window: int

    def experts_read(self, tokens: float) -> float:
        """Expected share of the experts that a step of so many tokens reads, with uniform routing."""
        if not self.num_experts:
            return 0.0
        return float(
            1 - (1 - self.experts_per_token / self.num_experts) ** (tokens * self.expert_sharers)
        )

    def in_flight(self, sequences: int) -> int:
        """Micro-batches that share the work of a step."""
        return 1 if self.stages == 1 else min(self.stages, sequences)

    def without_attention(self, sequences: int, tokens: int) -> float:
        """Seconds of a step that do not depend on how long the context is."""
        m = self.in_flight(sequences)
        dense_s = math.hypot(
            self.weights_s, (tokens * self.token_s + sequences * self.sample_s) / m
        )
        if self.num_experts:
            dense_s += math.hypot(
                self.experts_s * self.experts_read(tokens / m), tokens * self.expert_token_s / m
            )
        return self.step_s + self.sequence_s * sequences + dense_s + tokens * self.traffic_s / m

    def decode(self, sequences: int, context: int, windowed: float) -> tuple[float, float]:
        m = self.in_flight(sequences)
        attention_s = (context * self.context_s + windowed * self.window_s) / m
        return self.without_attention(
            sequences, sequences
        ) + attention_s, sequences * self.context_s / m

    def mixed(
        self, decodes: int, context: int, windowed: float, chunks: list[tuple[int, int]]
    ) -> float:
        tokens, attention_s = decodes, context * self.context_s + windowed * self.window_s
        floor_s = self.prefill_s if chunks else 0.0
        for start, count in chunks:
            tokens += count
            middle = start + count / 2
            attention_s += max(count * middle * self.attend_s, start * self.context_s)
            attention_s += count * min(middle, self.window) * self.attend_window_s
        sequences = decodes + len(chunks)
        return (
            floor_s
            + self.without_attention(sequences, tokens)
            + attention_s / self.in_flight(sequences)
        )


@dataclass(frozen=True, slots=True)
class Replica:
    """The model of one data-parallel rank: costs, limits and what they came from."""

    costs: StepTimes
    limits: RankLimits
    prediction: memory.Prediction
    request_overhead_s: float
    token_interval_s: float
    jitter: float = 0.0  # standard deviation of a step's length, as a share of it


_CPU_KV_BYTES = 4 * memory.GIB  # where a profile imitates a CPU whose memory is not known


def replica(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> Replica:
    """The model of one data-parallel rank of a deployment on a device; constants that are not given
    are those typical of its engine. Pure. Raises tables.NoRow where ``constants.tables`` asks for
    what the tables do not have.
    """
    constants = resolved(constants, settings.engine, device)
    prediction = memory.predict(facts, settings, device)
    if prediction.kv_cache_tokens is None:
        bounded = settings.model_copy(update={"kv_cache_memory_bytes": _CPU_KV_BYTES})
        prediction = memory.predict(facts, bounded, device)
    queue = settings.max_num_queued_reqs
    limits = RankLimits(
        max_model_len=prediction.max_model_len,
        max_num_seqs=prediction.max_num_seqs,
        max_num_batched_tokens=prediction.max_num_batched_tokens,
        kv_tokens=prediction.kv_cache_tokens or 0,
        chunked_prefill=settings.enable_chunked_prefill is not False,
        prefix_caching=settings.enable_prefix_caching is not False,
        prefill_first=constants.prefill_first,
        max_requests=None if queue is None else -(-queue // settings.data_parallel_size),
        recv_interval=settings.scheduler_recv_interval or 1,
    )
    costs: StepTimes = _costs(settings, facts, device, constants)
    if constants.tables:
        from orchestrator.emulator.tables import tables_of  # a package that few have

        costs = tables_of(settings, facts, device, constants)
    return Replica(
        costs,
        limits,
        prediction,
        constants.request_overhead_s,
        constants.token_interval_s,
        constants.jitter,
    )


def no_term(facts: ModelFacts) -> str | None:
    """What the formulas have no term for in a model: GLM-5 and Qwen3.5 took up to three times the
    predicted time.
    """
    if facts.shape.index_n_heads:
        return "sparse attention"
    if "global" in facts.shape.mixers:
        return "layers with heads of their own"
    if "both" in facts.shape.mixers:
        return "Mamba beside attention"
    return (
        "layers without attention"
        if facts.shape.num_attention_layers < facts.shape.num_hidden_layers
        else None
    )


def _costs(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> Costs:
    tensor, shape = settings.tensor_parallel_size, facts.shape
    parts = memory.weights(facts, settings.dtype, settings.quantization)
    read = (parts.layers + parts.lm_head) / tensor + parts.replicated
    read += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    bandwidth, compute = device.bandwidth_bytes_s, memory.compute_type(facts, settings)
    peak, wide = tensor * device.flops_for(compute), tensor * device.flops_for("bfloat16")
    efficiency = (
        constants.compute_efficiency if compute in memory.BYTES else constants.low_bit_efficiency
    )
    head = shape.vocab_size * shape.hidden_size
    experts = facts.parameters.experts * shape.num_experts_per_tok / max(1, shape.num_experts)
    floors = shape.num_hidden_layers * _layer_s(settings, facts, constants)
    latency_s, message_s = _communication(settings, facts, device, constants)
    return Costs(
        step_s=constants.step_overhead_s
        + floors
        + shape.num_moe_layers * constants.expert_layer_overhead_s
        + latency_s,
        prefill_s=shape.num_hidden_layers * constants.prefill_layer_overhead_s,
        sequence_s=constants.sequence_overhead_s,
        weights_s=read / (bandwidth * constants.bandwidth_efficiency),
        token_s=2 * (facts.active_parameters - experts - head) / (peak * efficiency),
        sample_s=2 * head / (wide * constants.compute_efficiency),
        experts_s=parts.experts
        / memory.expert_ranks(settings)
        / (bandwidth * constants.expert_bandwidth_efficiency),
        expert_token_s=2 * experts / (peak * constants.expert_compute_efficiency),
        traffic_s=_activation_bytes(settings, facts) / (bandwidth * constants.activation_efficiency)
        + message_s,
        **_attention(settings, facts, device, constants),
        num_experts=shape.num_experts,
        experts_per_token=shape.num_experts_per_tok,
        expert_sharers=settings.data_parallel_size if settings.enable_expert_parallel else 1,
        stages=settings.pipeline_parallel_size,
        window=facts.sliding_window or 0,
    )


def _layer_s(settings: EngineSettings, facts: ModelFacts, constants: Constants) -> float:
    """Seconds that the kernels of a layer take at the least, however small the batch."""
    blocks = memory.kernel_scheme(facts, settings) in {"fp8 per block", "mxfp8"}
    extra = constants.block_fp8_layer_overhead_s if blocks else 0.0
    return (
        constants.layer_overhead_s
        + extra
        + (constants.eager_layer_overhead_s if settings.enforce_eager else 0.0)
    )


def _activation_bytes(settings: EngineSettings, facts: ModelFacts) -> float:
    """Read and written for one token beside weights and KV: norms, residuals and projections of
    each layer whole on every rank, the inside of its MLP or of its experts divided by tensor
    parallelism.
    """
    shape, tensor = facts.shape, settings.tensor_parallel_size
    inner = (shape.num_hidden_layers - shape.num_moe_layers) * shape.intermediate_size
    routed = shape.num_experts_per_tok * (shape.moe_intermediate_size + shape.hidden_size)
    inner += shape.num_moe_layers * (routed + shape.shared_expert_intermediate_size)
    element = memory.dtype_bytes(settings.dtype)
    return element * (8 * shape.num_hidden_layers * shape.hidden_size + 3 * inner / tensor)


def _attention(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> dict[str, float]:
    """Of layers with full attention and of sliding ones: a decode reads a token of context or
    computes on it, whichever is longer; a prefill computes. In 16 bit whatever the weights are (an
    FP8 cache too is widened for it). MLA decodes in its latent (absorbed) and prefills in its
    heads.
    """
    tensor, shape = settings.tensor_parallel_size, facts.shape
    full = memory.kv_bytes_per_token(facts, settings, stages=1, sliding=False)
    sliding = memory.kv_bytes_per_token(facts, settings, stages=1) - full
    # FLOPs of one head of one layer: a product with the key, one with the value
    pair = 4.0 * shape.head_dim
    decode_pair = prefill_pair = pair
    if shape.mla:
        decode_pair = 2.0 * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim)
        prefill_pair = 2.0 * (shape.qk_nope_head_dim + shape.qk_rope_head_dim + shape.v_head_dim)
    flops = (
        tensor
        * device.flops_for("bfloat16")
        * constants.attention_efficiency
        / shape.num_attention_heads
    )
    bandwidth = device.bandwidth_bytes_s * constants.kv_efficiency
    layers = facts.shape.num_attention_layers - facts.num_sliding_layers
    return {
        "context_s": max(full / bandwidth, layers * decode_pair / flops),
        "window_s": max(sliding / bandwidth, facts.num_sliding_layers * decode_pair / flops),
        "attend_s": layers * prefill_pair / flops,
        "attend_window_s": facts.num_sliding_layers * prefill_pair / flops,
    }


def _communication(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> tuple[float, float]:
    """Seconds per step and per token: two all-reduces a layer over TP, one hop between pipeline
    stages, and where experts are spread over data-parallel ranks a token's way to its experts and
    back.
    """
    tensor, hops, shape = (
        settings.tensor_parallel_size,
        settings.pipeline_parallel_size - 1,
        facts.shape,
    )
    inside = settings.nnodes == 1 or tensor <= settings.devices_per_node
    near, far = constants.collective_latency_s, constants.network_latency_s
    link, network = (
        speed * constants.link_efficiency for speed in (device.link_bytes_s, device.network_bytes_s)
    )
    token_bytes = shape.hidden_size * memory.dtype_bytes(settings.dtype)
    reduces = 2 * shape.num_hidden_layers if tensor > 1 else 0
    latency = reduces * ((near if inside else far) + constants.collective_rank_s * tensor)
    latency += hops * (far if settings.nnodes > 1 else near)
    per_token = reduces * token_bytes * 2 * (tensor - 1) / tensor / (link if inside else network)
    per_token += hops * token_bytes / (network if settings.nnodes > 1 else link)
    if settings.enable_expert_parallel and settings.data_parallel_size > 1:
        ways = 2 * shape.num_moe_layers
        latency += ways * (
            near + constants.collective_rank_s * memory.expert_parallel_size(settings)
        )
        per_token += ways * shape.num_experts_per_tok * token_bytes / tensor / link
    return latency, per_token
