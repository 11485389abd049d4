"""What a deployment has to read and to compute for its tokens, and the peaks of its devices: the
numerators and denominators of MBU and MFU (docs/reference/efficiency.md).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.catalog.accelerators import Accelerator
from orchestrator.catalog.arithmetic import attention_pair_flops, no_term
from orchestrator.catalog.drafts import looks_tokens_up
from orchestrator.catalog.memory import ExpertRouting, StepBytes, compute_type, step_bytes
from orchestrator.catalog.models import ModelFacts
from orchestrator.spec.settings import EngineSettings


class MissingWork(StrEnum):
    """Why the work of a deployment is not known."""

    CPU = "cpu"  # no peak of these cores was measured
    ENDPOINT = "endpoint"  # somebody else started it
    ROLES = "roles"  # prefill and decode run on devices of their own
    DEVICE = "device"  # the catalogue has no such accelerator
    MODEL = "model"  # its config.json is not at hand, or no formula fits it
    TERM = "term"  # a part of the model has no term in the formulas
    OFFLOAD = "offload"  # a part of the weights is read from the host's memory


@dataclass(frozen=True, slots=True)
class Peaks:
    """The peaks of one device, as published for dense arithmetic.

    ``flops_s``: of ``compute_type``, the type in which matrices are multiplied. ``source``: where
    the figures were published, and ``as_of`` when they were looked up (ISO 8601). ``is_overridden``:
    the experiment file gives another bandwidth than the source.
    """

    device: str
    bandwidth_bytes_s: float
    flops_s: float
    compute_type: str
    source: str
    as_of: str | None
    is_overridden: bool = False


@dataclass(frozen=True, slots=True)
class TokenFlops:
    """FLOPs of one data-parallel rank, all its devices together, that a model needs for its tokens.

    ``token``: one token through all layers, without attention. ``sample``: the logits of one token.
    ``decode_pair``: one token that attends to one token of its context, while it decodes, in layers
    with full attention; ``prefill_pair``: while it prefills. ``decode_window_pair`` and
    ``prefill_window_pair``: the same in layers with a sliding window.
    """

    token: float
    sample: float
    decode_pair: float
    prefill_pair: float
    decode_window_pair: float
    prefill_window_pair: float


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a deployment's tokens.

    ``step``: what one tensor-parallel rank reads. ``window``: tokens of a sliding window; 0: the
    model has none. ``tensor_ranks`` and ``stages``: of one data-parallel rank. ``data_ranks``: of
    all replicas. ``draft_tokens``: tokens that are proposed for one step; 0: no speculation.
    ``drafts_vary``: whether a step may propose fewer, or none, because it finds none to look up.
    """

    step: StepBytes
    flops: TokenFlops
    window: int
    tensor_ranks: int
    stages: int
    data_ranks: int
    draft_tokens: int
    drafts_vary: bool
    peaks: Peaks

    def as_json(self) -> dict[str, Any]:
        """The record as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "StepWork":
        """The record from plain values. Raises KeyError or TypeError if they are another's."""
        step = dict(values["step"])
        routing = ExpertRouting(**step.pop("routing"))
        return cls(
            step=StepBytes(**step, routing=routing),
            flops=TokenFlops(**values["flops"]),
            window=values["window"],
            tensor_ranks=values["tensor_ranks"],
            stages=values["stages"],
            data_ranks=values["data_ranks"],
            draft_tokens=values["draft_tokens"],
            drafts_vary=values.get("drafts_vary", False),  # older versions stored no such value
            peaks=Peaks(**values["peaks"]),
        )


def step_work(
    facts: ModelFacts,
    settings: EngineSettings,
    device: Accelerator,
    is_overridden: bool = False,
) -> StepWork | MissingWork:
    """The work of a deployment without roles.

    ``is_overridden``: the device's bandwidth is not that of its source.
    """
    if device.name == "cpu":
        return MissingWork.CPU
    if not facts.all_parameters_counted:
        return MissingWork.MODEL
    if no_term(facts):
        return MissingWork.TERM
    if settings.cpu_offload_gb:
        return MissingWork.OFFLOAD
    kind = compute_type(facts, settings)
    speculative = settings.speculative
    draft_tokens = 0
    if speculative is not None:
        draft_tokens = speculative.num_draft_tokens or speculative.num_speculative_tokens
    return StepWork(
        step=step_bytes(facts, settings),
        flops=_token_flops(facts),
        window=facts.sliding_window or 0,
        tensor_ranks=settings.tensor_parallel_size,
        stages=settings.pipeline_parallel_size,
        data_ranks=settings.data_parallel_size * settings.replicas,
        draft_tokens=draft_tokens,
        drafts_vary=looks_tokens_up(settings),
        peaks=Peaks(
            device=device.name,
            bandwidth_bytes_s=device.bandwidth_bytes_s,
            flops_s=device.flops_for(kind),
            compute_type=kind,
            source=device.source,
            as_of=device.as_of,
            is_overridden=is_overridden,
        ),
    )


def _token_flops(facts: ModelFacts) -> TokenFlops:
    """Two FLOPs for each parameter that a token uses, and those of attention (PaLM,
    arXiv 2204.02311, appendix B; without the norms' and the softmax's few).
    """
    shape = facts.shape
    head_parameters = facts.parameters.lm_head or facts.parameters.embedding
    pair = attention_pair_flops(shape)
    sliding_layers = facts.num_sliding_layers
    full_heads = (shape.num_attention_layers - sliding_layers) * shape.num_attention_heads
    window_heads = sliding_layers * shape.num_attention_heads
    return TokenFlops(
        token=2.0 * (facts.active_parameters - head_parameters),
        sample=2.0 * head_parameters,
        decode_pair=full_heads * pair.decode,
        prefill_pair=full_heads * pair.prefill,
        decode_window_pair=window_heads * pair.decode,
        prefill_window_pair=window_heads * pair.prefill,
    )
