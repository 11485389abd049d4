"""How much of its devices' peaks a point used: MBU and MFU, with numerators and denominators.

docs/reference/efficiency.md has the definitions. Sources: model bandwidth utilization is
Databricks' "LLM Inference Performance Engineering" (2023), model FLOPs utilization PaLM's (arXiv
2204.02311, appendix B). Added here: pipeline stages, latents of MLA, replicated KV heads, the
experts that a step reads, prefix hits and speculation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.catalog.work import MissingWork, Peaks, StepWork
from orchestrator.results.records import EngineSide, Figures

# between these figures and an engine's own, as a share: their formulas differ in small terms
MOST_DIFFERENCE = 0.2
COUNTER_ERROR = 0.05  # of a GPU's own shares, which are means between its readings


class MissingFigures(StrEnum):
    """Why a point has no MBU and MFU although the work of its deployment is known."""

    NOTHING_SERVED = "nothing_served"
    PROMPTS = "prompts"  # prompt tokens were not counted
    TIMES = "times"  # the times between tokens are not known
    ACCEPTANCE = "acceptance"  # the engine does not say how many drafts it accepted


class EfficiencyNote(StrEnum):
    """What a reader of MBU and MFU must know."""

    ABOVE_PEAK = "above_peak"  # more than the device can do: a formula or a peak is wrong
    OVERRIDDEN_PEAK = "overridden_peak"  # the bandwidth is the experiment file's
    DRAFTS_VARY = "drafts_vary"  # steps with fewer drafts are counted as if they had all
    HITS_UNKNOWN = "hits_unknown"  # the engine does not report prefix hits: taken as none
    # the engine's own estimate of FLOPs, or of bytes, is another one
    ENGINE_FLOPS_DIFFER = "engine_flops_differ"
    ENGINE_BYTES_DIFFER = "engine_bytes_differ"
    # the GPU did less than the tokens needed, by its own counters: a formula or a peak is wrong
    ABOVE_DRAM_SHARE = "above_dram_share"
    ABOVE_TENSOR_SHARE = "above_tensor_share"


@dataclass(frozen=True, slots=True)
class Bounds:
    """A figure, and the least and the most that it can be.

    They differ where a model has routed experts: how many of them a step reads is not known.
    ``lower``: all tokens of a step choose the same experts. ``estimate``: they choose uniformly.
    ``upper``: no two choose the same, as far as there are enough experts.
    """

    lower: float
    estimate: float
    upper: float

    def scaled(self, factor: float) -> "Bounds":
        return Bounds(self.lower * factor, self.estimate * factor, self.upper * factor)


@dataclass(frozen=True, slots=True)
class Served:
    """What a deployment served in a steady window, all its devices together.

    ``output_tokens_s``, ``input_tokens_s``: tokens per second; of prompts also those that were found
    in the prefix cache, whose share is ``hit_share``. ``token_s``: seconds between two tokens of a
    request, the mean over tokens. ``context``: mean tokens of context of a decoded token.
    ``prompt_context``: mean tokens of context of a prompt token if nothing is found in the prefix
    cache: half the prompt, where all are of one length. ``accepted_share``: of the drafts.
    """

    output_tokens_s: float
    input_tokens_s: float
    token_s: float
    context: float
    prompt_context: float
    hit_share: float = 0.0
    accepted_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of its devices' peaks a point used.

    ``running``: requests that decode at a time on one data-parallel rank, by Little's law.
    ``step_s``: seconds of a step. ``tokens_per_step``: of one request. ``bytes_s`` and ``flops_s``:
    of one device, what the tokens needed per second; ``mbu`` and ``mfu``: divided by its peaks.
    ``engine_flops_s`` and ``engine_bytes_s``: what the engine estimates; None: it does not.
    """

    running: float
    step_s: float
    tokens_per_step: float
    bytes_s: Bounds
    flops_s: float
    mbu: Bounds
    mfu: float
    peaks: Peaks
    engine_flops_s: float | None = None
    engine_bytes_s: float | None = None
    notes: tuple[EfficiencyNote, ...] = ()

    @property
    def flops_per_byte(self) -> float:
        """The arithmetic intensity: where the point stands on a roofline."""
        return self.flops_s / self.bytes_s.estimate


@dataclass(frozen=True, slots=True)
class CountedShares:
    """What a GPU did by its own counters; None: it has none. ``dram``: the share of its bandwidth that
    it used. ``tensor``: the share of the time in which its tensor cores ran.
    """

    dram: float | None = None
    tensor: float | None = None


NO_SHARES = CountedShares()
EfficiencyResult = Efficiency | MissingWork | MissingFigures


def efficiency_of(
    work: StepWork,
    figures: Figures,
    engine_sides: Sequence[EngineSide | None],
    counted: CountedShares = NO_SHARES,
) -> EfficiencyResult:
    """MBU and MFU of a point, or why they are not known. ``engine_sides``: of its repeats."""
    if not figures.output_token_throughput:
        return MissingFigures.NOTHING_SERVED
    prompts = figures.input_tokens
    if figures.decode_context is None or not figures.input_token_throughput or not prompts:
        return MissingFigures.PROMPTS
    token_ms = figures.itl_ms or figures.tpot_ms
    if token_ms is None or not token_ms.mean:
        return MissingFigures.TIMES
    reports = [side for side in engine_sides if side is not None]
    if len(reports) < len(engine_sides):
        reports = []  # what the engines of some repeats say is not taken for all of them
    hit_share = _mean([report.prefix_hit_share for report in reports])
    accepted_share = _mean([report.spec_accepted_share for report in reports])
    if work.draft_tokens and accepted_share is None:
        return MissingFigures.ACCEPTANCE
    mean_square = prompts.mean**2 + prompts.std**2
    served = Served(
        output_tokens_s=figures.output_token_throughput,
        input_tokens_s=figures.input_token_throughput,
        token_s=token_ms.mean / 1e3,
        context=figures.decode_context,
        prompt_context=mean_square / prompts.mean / 2,
        hit_share=hit_share or 0.0,
        accepted_share=accepted_share or 0.0,
    )
    result = efficiency(work, served)
    result = replace(
        result,
        engine_flops_s=_mean([report.estimated_flops_s for report in reports]),
        engine_bytes_s=_mean([report.estimated_bytes_s for report in reports]),
    )
    notes = [*result.notes, *_checks(result, counted)]
    if hit_share is None:
        notes.append(EfficiencyNote.HITS_UNKNOWN)
    return replace(result, notes=tuple(notes))


def _checks(result: Efficiency, counted: CountedShares) -> Iterator[EfficiencyNote]:
    """Where the counters of the engine or of the GPU say something else."""
    flops_s = result.engine_flops_s
    bytes_s = result.engine_bytes_s
    if flops_s is not None and not _near(flops_s, result.flops_s, result.flops_s):
        yield EfficiencyNote.ENGINE_FLOPS_DIFFER
    if bytes_s is not None and not _near(bytes_s, result.bytes_s.lower, result.bytes_s.upper):
        yield EfficiencyNote.ENGINE_BYTES_DIFFER
    if counted.dram is not None and result.mbu.lower > counted.dram * (1 + COUNTER_ERROR):
        yield EfficiencyNote.ABOVE_DRAM_SHARE
    if counted.tensor is not None and result.mfu > counted.tensor * (1 + COUNTER_ERROR):
        yield EfficiencyNote.ABOVE_TENSOR_SHARE


def _near(value: float, lower: float, upper: float) -> bool:
    """Whether a value lies within bounds, or outside by no more than a share of them."""
    return lower * (1 - MOST_DIFFERENCE) <= value <= upper * (1 + MOST_DIFFERENCE)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where any value is unknown, or there are none."""
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return sum(numbers) / len(numbers)


def efficiency(work: StepWork, served: Served) -> Efficiency:
    """MBU and MFU of a window in which a deployment served so much."""
    tokens_per_step = 1 + work.draft_tokens * served.accepted_share
    step_s = served.token_s * tokens_per_step
    running = served.output_tokens_s / work.data_ranks * served.token_s
    bytes_s = _bytes_per_device(work, served, running, tokens_per_step)
    flops_s = _flops_per_device(work, served)
    peaks = work.peaks
    mbu = bytes_s.scaled(1 / peaks.bandwidth_bytes_s)
    mfu = flops_s / peaks.flops_s
    notes: list[EfficiencyNote] = []
    if mbu.lower > 1 or mfu > 1:
        notes.append(EfficiencyNote.ABOVE_PEAK)
    if peaks.is_overridden:
        notes.append(EfficiencyNote.OVERRIDDEN_PEAK)
    if work.drafts_vary:
        notes.append(EfficiencyNote.DRAFTS_VARY)
    return Efficiency(
        running=running,
        step_s=step_s,
        tokens_per_step=tokens_per_step,
        bytes_s=bytes_s,
        flops_s=flops_s,
        mbu=mbu,
        mfu=mfu,
        peaks=peaks,
        notes=tuple(notes),
    )


def _bytes_per_device(
    work: StepWork, served: Served, running: float, tokens_per_step: float
) -> Bounds:
    """Bytes per second that the tokens make one device read and write.

    With pipeline stages up to ``stages`` micro-batches are in flight, and each pass of one makes
    every weight be read. Fewer than one running request means that the devices idle in between.
    """
    step = work.step
    routing = work.step.routing
    output_s = served.output_tokens_s / work.data_ranks
    computed_s = served.input_tokens_s * (1 - served.hit_share) / work.data_ranks
    micro_batches = min(work.stages, running)
    passes_s = micro_batches / (served.token_s * tokens_per_step)
    decoded_per_pass = max(1.0, running) * (1 + work.draft_tokens) / max(1.0, micro_batches)
    tokens_per_pass = decoded_per_pass + computed_s / passes_s
    windowed = min(served.context, work.window)
    context_bytes = served.context * step.context_token + windowed * step.window_token
    read_s = output_s / tokens_per_step * context_bytes
    written_s = (computed_s + output_s) * (step.context_token + step.window_token)

    def bytes_s(expert_share: float) -> float:
        weights_s = passes_s * (step.weights + step.experts * expert_share)
        return (weights_s + read_s + written_s) / work.stages

    return Bounds(
        lower=bytes_s(routing.least_share),
        estimate=bytes_s(routing.expected_share(decoded_per_pass)),
        upper=bytes_s(routing.most_share(tokens_per_pass)),
    )


def _flops_per_device(work: StepWork, served: Served) -> float:
    """FLOPs per second that the tokens need of one device. Drafts that are not accepted need none,
    and neither do prompt tokens that were found in the prefix cache.
    """
    flops = work.flops
    output_s = served.output_tokens_s / work.data_ranks
    computed_s = served.input_tokens_s * (1 - served.hit_share) / work.data_ranks
    # computed tokens stand at the end of a prompt: their context is longer by the hits before them
    prompt_context = served.prompt_context * (1 + served.hit_share)
    decode_pairs = served.context * flops.decode_pair
    decode_pairs += min(served.context, work.window) * flops.decode_window_pair
    prefill_pairs = prompt_context * flops.prefill_pair
    prefill_pairs += min(prompt_context, work.window) * flops.prefill_window_pair
    rank_flops_s = (computed_s + output_s) * flops.token + output_s * flops.sample
    rank_flops_s += output_s * decode_pairs + computed_s * prefill_pairs
    return rank_flops_s / (work.tensor_ranks * work.stages)
