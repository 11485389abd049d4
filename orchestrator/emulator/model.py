"""How long a step takes, and what one replica can hold: the emulator's stated model, formulas in docs/emulator.md.

A token passes all pipeline stages, so every weight is read once per token whatever their number, while each of the
``m = min(stages, sequences)`` micro-batches in flight is 1/m of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.catalog import memory
from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.models import ModelFacts
from orchestrator.emulator.profile import Constants
from orchestrator.spec.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Limits:
    """What one data-parallel rank of a replica takes at a time. ``kv_tokens`` is its KV capacity in tokens."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    chunked_prefill: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """Coefficients of the step time, all in seconds. Work that is shared is divided by the micro-batches in flight."""

    step_s: float  # every step
    sequence_s: float  # each sequence in it
    token_s: float  # compute of one token through all layers
    sample_s: float  # compute of the logits of one sequence
    attend_s: float  # compute of one token attending to one token of context
    weights_s: float  # reading all weights but the routed experts once
    experts_s: float  # reading all routed experts once
    read_s: float  # reading one token of KV in full-attention layers
    window_s: float  # the same in sliding-window layers
    hop_s: float  # communication of every step, whatever its size
    hop_token_s: float  # communication of one token
    num_experts: int
    experts_per_token: int
    stages: int
    window: int

    def experts_read(self, tokens: float) -> float:
        """Expected share of the experts that a step of so many tokens reads, with uniform routing."""
        if not self.num_experts:
            return 0.0
        return float(1 - (1 - self.experts_per_token / self.num_experts) ** tokens)

    def in_flight(self, sequences: int) -> int:
        """Micro-batches that share the work of a step."""
        return 1 if self.stages == 1 else min(self.stages, sequences)

    def parts(
        self, sequences: int, tokens: int, attended: float, read: float, windowed: float
    ) -> tuple[float, float, float]:
        """Seconds of a step that are spent in any case, computing, and reading memory; the longer of these two counts.

        ``attended``: pairs of a token and a token of its context; ``read``, ``windowed``: tokens of KV read in layers
        with full attention and with a sliding window.
        """
        m = self.in_flight(sequences)
        memory_s = self.weights_s + (read * self.read_s + windowed * self.window_s) / m
        if self.num_experts:
            memory_s += self.experts_s * self.experts_read(tokens / m)
        return (
            self.step_s + self.sequence_s * sequences + self.hop_s + self.hop_token_s * tokens / m,
            (tokens * self.token_s + sequences * self.sample_s + attended * self.attend_s) / m,
            memory_s,
        )

    def mixed(self, decodes: int, context: int, windowed: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with ``decodes`` reading ``context`` tokens and prefill chunks of (start, tokens)."""
        tokens, attended, read = decodes, float(context), context
        for start, count in chunks:
            tokens += count
            attended += count * (start + count / 2)
            if start:
                read += start
                windowed += min(start, self.window)
        fixed_s, compute_s, memory_s = self.parts(decodes + len(chunks), tokens, attended, read, windowed)
        return fixed_s + max(compute_s, memory_s)


@dataclass(frozen=True, slots=True)
class Replica:
    """The model of one data-parallel rank: costs, limits and what they came from."""

    costs: Costs
    limits: Limits
    prediction: memory.Prediction
    request_overhead_s: float
    token_interval_s: float


_CPU_KV_BYTES = 4 * memory.GIB  # where a profile imitates a CPU whose memory is not known


def replica(settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants) -> Replica:
    """The model of one data-parallel rank of a deployment on a device. Pure."""
    prediction = memory.predict(facts, settings, device)
    if prediction.kv_cache_tokens is None:
        bounded = settings.model_copy(update={"kv_cache_memory_bytes": _CPU_KV_BYTES})
        prediction = memory.predict(facts, bounded, device)
    limits = Limits(
        max_model_len=prediction.max_model_len,
        max_num_seqs=prediction.max_num_seqs,
        max_num_batched_tokens=prediction.max_num_batched_tokens,
        kv_tokens=prediction.kv_cache_tokens or 0,
        chunked_prefill=settings.enable_chunked_prefill is not False,
    )
    costs = _costs(settings, facts, device, constants)
    return Replica(costs, limits, prediction, constants.request_overhead_s, constants.token_interval_s)


def _costs(settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants) -> Costs:
    tensor, shape = settings.tensor_parallel_size, facts.shape
    parts = memory.weights(facts, settings.dtype, settings.quantization)
    flops = tensor * device.flops_for(memory.compute_type(facts, settings)) * constants.compute_efficiency
    bandwidth = device.bandwidth_bytes_s * constants.bandwidth_efficiency
    read = (parts.layers + parts.lm_head) / tensor + parts.replicated
    read += parts.kv_projection / min(tensor, shape.num_key_value_heads)
    full = memory.kv_bytes_per_token(facts, settings, stages=1, sliding=False)
    every = memory.kv_bytes_per_token(facts, settings, stages=1)
    head = shape.vocab_size * shape.hidden_size
    width = shape.num_attention_heads * ((shape.kv_lora_rank + shape.qk_rope_head_dim) if shape.mla else shape.head_dim)
    eager = constants.eager_layer_overhead_s * shape.num_hidden_layers if settings.enforce_eager else 0.0
    hop_s, hop_token_s = _communication(settings, facts, device, constants)
    return Costs(
        step_s=constants.step_overhead_s + eager,
        sequence_s=constants.sequence_overhead_s,
        token_s=2 * (facts.active_parameters - head) / flops,
        sample_s=2 * head / flops,
        attend_s=4 * facts.num_attention_layers * width / flops,
        weights_s=read / bandwidth,
        experts_s=parts.experts / max(tensor, memory.expert_parallel_size(settings)) / bandwidth,
        read_s=full / bandwidth,
        window_s=(every - full) / bandwidth,
        hop_s=hop_s,
        hop_token_s=hop_token_s,
        num_experts=shape.num_experts,
        experts_per_token=shape.num_experts_per_tok,
        stages=settings.pipeline_parallel_size,
        window=facts.sliding_window or 0,
    )


def _communication(
    settings: EngineSettings, facts: ModelFacts, device: Accelerator, constants: Constants
) -> tuple[float, float]:
    """Seconds per step and per token: two ring all-reduces a layer over TP, one hop between pipeline stages."""
    tensor, hops = settings.tensor_parallel_size, settings.pipeline_parallel_size - 1
    inside = settings.nnodes == 1 or tensor <= settings.devices_per_node
    link = device.link_bytes_s if inside else device.network_bytes_s
    between = device.network_bytes_s if settings.nnodes > 1 else device.link_bytes_s
    token_bytes = facts.shape.hidden_size * memory.dtype_bytes(settings.dtype)
    reduces = 2 * facts.shape.num_hidden_layers if tensor > 1 else 0
    near, far = constants.collective_latency_s, constants.network_latency_s
    latency = reduces * (near if inside else far) + hops * (far if settings.nnodes > 1 else near)
    per_token = reduces * token_bytes * 2 * (tensor - 1) / tensor / link + hops * token_bytes / between
    return latency, per_token
