"""How long the steps of an engine take, by formula.

docs/explained/step-model.md explains the formulas. With pipeline stages, a token passes all of
them, so every weight is read once per token, however many stages there are. But as many
micro-batches as there are stages (or sequences, if these are fewer) are in flight at the same time,
and they share the other work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.arithmetic import attention_pair_flops
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.profile import Constants
from orchestrator.spec.settings import EngineSettings


class Chunk(NamedTuple):
    """The part of a prompt that one step computes."""

    start: int  # tokens computed before
    tokens: int


class DecodeStep(NamedTuple):
    """A step of decodes alone.

    ``growth_s``: how much longer the next step takes, in which each of the same sequences has one
    more token of context.
    """

    step_s: float
    growth_s: float


class StepTimes(Protocol):
    """How long the steps of one data-parallel rank take.

    ``Costs`` computes it by formula, ``Tables`` (step_tables.py) from measured kernels.
    ``context``: tokens that all decodes of a step together read in layers with full attention.
    ``windowed``: the same in layers with a sliding window.
    """

    @property
    def window(self) -> int:
        """Tokens of the sliding window; 0 without one, and ``windowed`` is then ignored."""

    def decode(self, sequences: int, context: int, windowed: float) -> DecodeStep:
        """How long a step of decodes alone takes."""

    def mixed(self, decodes: int, context: int, windowed: float, chunks: list[Chunk]) -> float:
        """Seconds of a step of decodes and prefill chunks."""


@dataclass(frozen=True, slots=True)
class Costs:
    """``StepTimes`` by formula: the coefficients of a step's time, all in seconds.

    Kernels run one after the other, so a step is a sum. Each kind of kernel takes the time of
    reading or of computing, whichever is longer, and a little more if both are long: ``hypot``.
    Work is divided by the number of micro-batches in flight. Reading weights, and what a layer
    costs in any case, are not divided, because a token passes all stages.
    """

    step_s: float  # every step: host, kernel floors of all layers, latency of collectives and hops
    prefill_s: float  # added to a step that holds a prompt
    sequence_s: float  # each sequence in it
    weights_s: float  # reading all weights once, without the routed experts
    token_s: float  # the arithmetic of these weights for one token, without the logits
    sample_s: float  # the logits of one sequence
    experts_s: float  # reading all routed experts once
    expert_token_s: float  # the arithmetic of the routed experts for one token
    # reading and writing the activations of one token, and sending its messages to other ranks
    traffic_s: float
    context_s: float  # one token of context of a decode, in layers with full attention
    window_s: float  # the same in sliding-window layers
    # in a prefill: one token attending to one token of its context, in layers with full attention
    attend_s: float
    attend_window_s: float  # the same in sliding-window layers
    routing: memory.ExpertRouting
    stages: int
    window: int

    def micro_batches(self, sequences: int) -> int:
        """How many micro-batches are in flight, which share the work of a step."""
        return 1 if self.stages == 1 else min(self.stages, sequences)

    def without_attention(self, sequences: int, tokens: int, drafts: int = 0) -> float:
        """Seconds of a step that do not depend on how long the context is.

        Logits are computed for the last token of each sequence, and for ``drafts`` further tokens.
        """
        micro_batches = self.micro_batches(sequences)
        logits_s = (sequences + drafts) * self.sample_s
        arithmetic_s = (tokens * self.token_s + logits_s) / micro_batches
        dense_s = math.hypot(self.weights_s, arithmetic_s)
        experts_s = 0.0
        if self.routing.num_experts:
            reads_s = self.experts_s * self.routing.expected_share(tokens / micro_batches)
            experts_s = math.hypot(reads_s, tokens * self.expert_token_s / micro_batches)
        host_s = self.step_s + self.sequence_s * sequences
        traffic_s = tokens * self.traffic_s / micro_batches
        return host_s + (dense_s + experts_s) + traffic_s

    def decode(self, sequences: int, context: int, windowed: float) -> DecodeStep:
        micro_batches = self.micro_batches(sequences)
        attention_s = (context * self.context_s + windowed * self.window_s) / micro_batches
        return DecodeStep(
            step_s=self.without_attention(sequences, sequences) + attention_s,
            growth_s=sequences * self.context_s / micro_batches,
        )

    def mixed(
        self,
        decodes: int,
        context: int,
        windowed: float,
        chunks: list[Chunk],
        drafts: int = 0,
    ) -> float:
        """See ``StepTimes.mixed``. ``drafts``: tokens that the step verifies beside one token of
        each decode.
        """
        tokens = decodes + drafts
        attention_s = context * self.context_s + windowed * self.window_s
        prefill_s = self.prefill_s if chunks else 0.0
        for start, chunk_tokens in chunks:
            tokens += chunk_tokens
            middle = start + chunk_tokens / 2  # the context of its tokens, on average
            attention_s += max(chunk_tokens * middle * self.attend_s, start * self.context_s)
            attention_s += chunk_tokens * min(middle, self.window) * self.attend_window_s
        sequences = decodes + len(chunks)
        return (
            prefill_s
            + self.without_attention(sequences, tokens, drafts)
            + attention_s / self.micro_batches(sequences)
        )


def step_costs(
    settings: EngineSettings,
    facts: ModelFacts,
    device: Accelerator,
    constants: Constants,
    decode_tokens: int = 1,
) -> Costs:
    """The costs of a rank by formula.

    ``constants``: those of a profile, with the typical ones of its engine where it has none.
    ``decode_tokens``: how many tokens of each sequence a step computes while it decodes.
    """
    shape = facts.shape
    tensor = settings.tensor_parallel_size
    step = memory.step_bytes(facts, settings)
    bandwidth = device.bandwidth_bytes_s
    compute_type = memory.compute_type(facts, settings)
    peak = tensor * device.flops_for(compute_type)
    peak_16_bit = tensor * device.flops_for("bfloat16")
    computes_in_low_bits = compute_type not in memory.BYTES  # FP8, INT8 and the like
    efficiency = constants.compute_efficiency
    if computes_in_low_bits:
        efficiency = constants.low_bit_efficiency
    head_parameters = shape.vocab_size * shape.hidden_size
    experts = shape.num_experts_per_tok
    expert_parameters = facts.parameters.experts * experts / max(1, shape.num_experts)
    dense_parameters = facts.active_parameters - expert_parameters - head_parameters
    communication = _communication(settings, facts, device, constants)
    traffic_bandwidth = bandwidth * constants.activation_efficiency
    activations_s = _activation_bytes(settings, facts) / traffic_bandwidth
    layers_s = shape.num_hidden_layers * _layer_s(settings, facts, constants)
    routing_s = shape.num_moe_layers * constants.expert_layer_overhead_s
    attention = _attention(step, settings, facts, device, constants, decode_tokens)
    return Costs(
        step_s=constants.step_overhead_s + layers_s + routing_s + communication.step_s,
        prefill_s=shape.num_hidden_layers * constants.prefill_layer_overhead_s,
        sequence_s=constants.sequence_overhead_s,
        weights_s=step.weights / (bandwidth * constants.bandwidth_efficiency),
        token_s=2 * dense_parameters / (peak * efficiency),
        sample_s=2 * head_parameters / (peak_16_bit * constants.compute_efficiency),
        experts_s=step.experts / (bandwidth * constants.expert_bandwidth_efficiency),
        expert_token_s=2 * expert_parameters / (peak * constants.expert_compute_efficiency),
        traffic_s=activations_s + communication.token_s,
        context_s=attention.context_s,
        window_s=attention.window_s,
        attend_s=attention.attend_s,
        attend_window_s=attention.attend_window_s,
        routing=step.routing,
        stages=settings.pipeline_parallel_size,
        window=facts.sliding_window or 0,
    )


def _layer_s(settings: EngineSettings, facts: ModelFacts, constants: Constants) -> float:
    """Seconds that the kernels of a layer take at least, however small the batch is."""
    layer_s = constants.layer_overhead_s
    if memory.kernel_scheme(facts, settings) in {"fp8 per block", "mxfp8"}:
        layer_s += constants.block_fp8_layer_overhead_s
    if settings.enforce_eager:
        layer_s += constants.eager_layer_overhead_s
    return layer_s


def _activation_bytes(settings: EngineSettings, facts: ModelFacts) -> float:
    """Bytes that a rank reads and writes for one token, without weights and KV cache.

    Norms, residuals and projections of each layer are whole on every rank; the inside of its MLP or
    of its experts is divided by tensor parallelism.
    """
    shape = facts.shape
    dense_layers = shape.num_hidden_layers - shape.num_moe_layers
    inner = dense_layers * shape.intermediate_size
    routed = shape.num_experts_per_tok * (shape.moe_intermediate_size + shape.hidden_size)
    inner += shape.num_moe_layers * (routed + shape.shared_expert_intermediate_size)
    outer = shape.num_hidden_layers * shape.hidden_size
    elements = 8 * outer + 3 * inner / settings.tensor_parallel_size
    return memory.dtype_bytes(settings.dtype) * elements


@dataclass(frozen=True, slots=True)
class _AttentionCosts:
    """The coefficients of attention in ``Costs``, where they are explained."""

    context_s: float
    window_s: float
    attend_s: float
    attend_window_s: float


def _attention(
    step: memory.StepBytes,
    settings: EngineSettings,
    facts: ModelFacts,
    device: Accelerator,
    constants: Constants,
    decode_tokens: int,
) -> _AttentionCosts:
    """The costs of layers with full attention and with a sliding window.

    For each token of context, a decode takes the time of reading it once or of computing on it,
    whichever is longer; a prefill takes that of computing. Attention is computed in 16 bit whatever
    the weights are (an FP8 cache is widened for it). MLA decodes in its latent space (absorbed) and
    prefills in its heads.
    """
    shape = facts.shape
    pair_flops = attention_pair_flops(shape)
    peak = settings.tensor_parallel_size * device.flops_for("bfloat16")
    # the share of one head, because ``pair_flops`` are those of one head
    head_flops_per_s = peak * constants.attention_efficiency / shape.num_attention_heads
    bandwidth = device.bandwidth_bytes_s * constants.kv_efficiency
    sliding_layers = facts.num_sliding_layers
    full_layers = shape.num_attention_layers - sliding_layers
    decode_pair_s = decode_tokens * pair_flops.decode / head_flops_per_s
    return _AttentionCosts(
        context_s=max(step.context_token / bandwidth, full_layers * decode_pair_s),
        window_s=max(step.window_token / bandwidth, sliding_layers * decode_pair_s),
        attend_s=full_layers * pair_flops.prefill / head_flops_per_s,
        attend_window_s=sliding_layers * pair_flops.prefill / head_flops_per_s,
    )


@dataclass(frozen=True, slots=True)
class _CommunicationCosts:
    """Seconds that messages between ranks take."""

    step_s: float  # latencies
    token_s: float  # bytes


def _communication(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> _CommunicationCosts:
    """The costs of messages between ranks.

    Tensor parallelism has two all-reduces per layer, pipeline parallelism a hop from each stage to
    the next. Where experts are spread over data-parallel ranks, a token also goes to its experts
    and back.
    """
    shape = facts.shape
    tensor = settings.tensor_parallel_size
    hops = settings.pipeline_parallel_size - 1
    near_s = constants.collective_latency_s
    far_s = constants.network_latency_s
    link = device.link_bytes_s * constants.link_efficiency
    network = device.network_bytes_s * constants.link_efficiency
    token_bytes = shape.hidden_size * memory.dtype_bytes(settings.dtype)
    all_reduces = 2 * shape.num_hidden_layers if tensor > 1 else 0
    reduces_in_node = settings.nnodes == 1 or tensor <= settings.devices_per_node
    reduce_s = near_s if reduces_in_node else far_s
    reduce_bandwidth = link if reduces_in_node else network
    hop_s = far_s if settings.nnodes > 1 else near_s
    hop_bandwidth = network if settings.nnodes > 1 else link
    step_s = all_reduces * (reduce_s + constants.collective_rank_s * tensor)
    step_s += hops * hop_s
    # in a ring of n ranks, each of them sends 2 (n - 1) / n of what is reduced
    token_s = all_reduces * token_bytes * 2 * (tensor - 1) / tensor / reduce_bandwidth
    token_s += hops * token_bytes / hop_bandwidth
    if settings.enable_expert_parallel and settings.data_parallel_size > 1:
        all_to_alls = 2 * shape.num_moe_layers  # to the experts of a layer, and back
        ranks = memory.expert_parallel_size(settings)
        step_s += all_to_alls * (near_s + constants.collective_rank_s * ranks)
        token_s += all_to_alls * shape.num_experts_per_tok * token_bytes / tensor / link
    return _CommunicationCosts(step_s, token_s)
