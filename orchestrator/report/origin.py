"""Whether what is shown was measured, answered by an emulator, or simulated by a model; and how far
off the model is.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from orchestrator.analysis.points import StoredPoint
from orchestrator.report.text import EMULATED, SIMULATED


class Origin(Protocol):
    """A point, a launch or a comparison. An emulator that was simulated is both."""

    @property
    def emulated(self) -> bool: ...

    @property
    def simulated(self) -> bool: ...


def badge_of(origin: Origin) -> str:
    """What stands behind the name of what was not measured: `` (simulated)``, `` (emulated)``."""
    if origin.simulated:
        return " (simulated)"
    return " (emulated)" if origin.emulated else ""


def common_badge(origins: Sequence[Origin]) -> str:
    """The badge that all of them have; empty where they differ."""
    badges = {badge_of(origin) for origin in origins}
    return badges.pop() if len(badges) == 1 else ""


def origin_texts(origins: Iterable[Origin]) -> list[str]:
    """What is said once of all that was not measured: a line for each kind."""
    badges = {badge_of(origin) for origin in origins}
    texts = {" (simulated)": SIMULATED, " (emulated)": EMULATED}
    return [text for badge, text in texts.items() if badge in badges]


def model_error_texts(points: Iterable[StoredPoint]) -> list[str]:
    """What the intervals of simulated points are, two lines for each source of the model's error:
    ``intervals: 9 in 10 measurements within 1.34x (TTFT), 1.12x (all else)`` and `` model's error
    by published points of vllm on Hopper GPUs``.
    """
    texts: dict[str, None] = {}
    for point in points:
        error = point.model_error
        if error is not None:
            factors = f"within {error.ttft:.2f}x (TTFT), {error.tpot:.2f}x (all else)"
            texts[f"intervals: 9 in 10 measurements {factors}"] = None
            texts[f"  model's error by {error.source}"] = None
        elif point.simulated:
            texts["intervals: not known, the model was never compared with such engines"] = None
    return list(texts)
