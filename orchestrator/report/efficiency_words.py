"""The words about efficiency."""

from __future__ import annotations

from orchestrator.analysis.efficiency import Efficiency, EfficiencyNote, MissingFigures
from orchestrator.analysis.energy import LEAST_WINDOW_S, MOST_DIFFERENCE, EnergyNote
from orchestrator.analysis.points import StoredPoint
from orchestrator.catalog.work import MissingWork

_MISSING_WORK = {
    MissingWork.CPU: "no peak of these CPU cores is known",
    MissingWork.ENDPOINT: "the server was not started here: its settings are not known",
    MissingWork.ROLES: "prefill and decode ran on devices of their own",
    MissingWork.DEVICE: "the catalogue has no such accelerator",
    MissingWork.MODEL: "the model's config.json was not at hand, or no formula fits it",
    MissingWork.TERM: "a part of the model has no term in the formulas",
    MissingWork.OFFLOAD: "a part of the weights was read from the host's memory",
}
_MISSING_FIGURES = {
    MissingFigures.NOTHING_SERVED: "nothing was served",
    MissingFigures.PROMPTS: "prompt tokens were not counted",
    MissingFigures.TIMES: "the times between tokens are not known",
    MissingFigures.ACCEPTANCE: "the engine does not say how many drafts it accepted",
}
_NOTES = {
    EfficiencyNote.ABOVE_PEAK: "above the peak: a formula or the peak is wrong",
    EfficiencyNote.OVERRIDDEN_PEAK: "the bandwidth is the experiment file's",
    EfficiencyNote.DRAFTS_VARY: (
        "steps with fewer drafts are counted as full ones: tokens_per_step is the most it can be"
    ),
    EfficiencyNote.HITS_UNKNOWN: "prefix hits are not reported: taken as none",
    EfficiencyNote.ENGINE_FLOPS_DIFFER: "the engine estimates other FLOPs (engine_flops_s)",
    EfficiencyNote.ENGINE_BYTES_DIFFER: "the engine estimates other bytes (engine_bytes_s)",
    EfficiencyNote.ABOVE_DRAM_SHARE: (
        "more than the memory moved (dram_share): a formula or the peak is wrong"
    ),
    EfficiencyNote.ABOVE_TENSOR_SHARE: (
        "more than tensor cores ran (tensor_share): a formula or the peak is wrong"
    ),
}
_ENERGY_NOTES = {
    EnergyNote.NO_COUNTER: "a GPU has no counter of its energy",
    EnergyNote.SHORT_WINDOW: f"the window is shorter than {LEAST_WINDOW_S:g} s",
    EnergyNote.RESET: "a counter fell: its driver was loaded again",
    EnergyNote.STANDS_STILL: "a counter stood still although its GPU drew power",
    EnergyNote.GPU_LOST: "a GPU was not read for a part of the window",
    EnergyNote.DISAGREES: (
        f"counters and power differ by more than {MOST_DIFFERENCE:.0%} (energy_integral_j)"
    ),
    EnergyNote.FOREIGN: "other programs used a GPU",
}
NO_GPU_READ = "no GPU was read while it ran"
NO_ENERGY_MODEL = "simulated: no energy is modelled"
OF_IMITATED = "of the accelerator that the emulator imitates"
OF_MODEL = "simulated: what the model assumes, not what a device did"


def efficiency_note_text(point: StoredPoint) -> str | None:
    """What to know of the efficiency of a point, or why it is not known; None: nothing."""
    result = point.efficiency
    if isinstance(result, MissingWork):
        return _MISSING_WORK[result]
    if isinstance(result, MissingFigures):
        return _MISSING_FIGURES[result]
    texts = [_NOTES[note] for note in result.notes]
    if point.simulated:
        texts.append(OF_MODEL)
    elif point.emulated:
        texts.append(OF_IMITATED)
    return "; ".join(texts) or None


def energy_note_text(point: StoredPoint) -> str | None:
    """What to know of the energy of a point, or why it is not known; None: nothing."""
    if not point.used_repeats:
        return None
    if point.simulated:
        return NO_ENERGY_MODEL
    energy = point.energy
    if energy is None:
        return NO_GPU_READ
    return "; ".join(_ENERGY_NOTES[note] for note in energy.notes) or None


def mbu_text(efficiency: Efficiency) -> str:
    """MBU as ``0.58``, or as ``0.58 (0.10 to 0.65)`` where it depends on the experts chosen."""
    mbu = efficiency.mbu
    if mbu.lower == mbu.upper:
        return f"{mbu.estimate:.2f}"
    return f"{mbu.estimate:.2f} ({mbu.lower:.2f} to {mbu.upper:.2f})"
