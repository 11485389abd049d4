"""Says whether a figure was measured, emulated, simulated or imported from another tool, and how
far off the model is.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.base.text import listed
from orchestrator.report.text import EMULATED, SIMULATED
from orchestrator.spec.assumptions import Assumptions

CLAIMS_OF_MODEL = "bounds and estimates are those of the search; the model's error comes on top"


class HasOrigin(Protocol):
    """A point, a launch or a comparison. A simulated emulator is both emulated and simulated."""

    @property
    def source(self) -> str | None:
        """The other tool that measured it, with its version; None: this program did."""

    @property
    def emulated(self) -> bool: ...

    @property
    def simulated(self) -> bool: ...


def badge_of(origin: HasOrigin) -> str:
    """`` (simulated)``, `` (emulated)`` or the other tool, as `` (GuideLLM 0.8.1)``, to be put behind a
    name; empty for what this program measured.
    """
    if origin.source is not None:
        return f" ({origin.source})"
    if origin.simulated:
        return " (simulated)"
    return " (emulated)" if origin.emulated else ""


def common_badge(origins: Sequence[HasOrigin]) -> str:
    """The badge that all of these have; empty where they differ."""
    badges = {badge_of(origin) for origin in origins}
    return badges.pop() if len(badges) == 1 else ""


def origin_texts(origins: Iterable[HasOrigin]) -> list[str]:
    """A line for each kind of what was not measured; empty where everything was."""
    badges: set[str] = set()
    sources: dict[str, None] = {}  # in the order in which they first come
    for origin in origins:
        badges.add(badge_of(origin))
        if origin.source is not None:
            sources[origin.source] = None
    texts = {" (simulated)": SIMULATED, " (emulated)": EMULATED}
    lines = [text for badge, text in texts.items() if badge in badges]
    if sources:
        lines.append(imported_text(list(sources)))
    return lines


def imported_text(sources: Sequence[str]) -> str:
    """What a reader must know of the figures of other tools."""
    return (
        f"imported from {listed(sources)}: figures as defined there, and not ranked with others "
        "(docs/guides/other-tools.md)"
    )


def model_error_lines(points: Iterable[StoredPoint]) -> list[str]:
    """Lines on the intervals of simulated points: what they mean, and on what they rest; one line
    where the model's error is not known, none without simulated points.

    ``intervals: 9 in 10 measurements within 1.55-2.40x (TTFT), 1.41-1.99x (all else)`` and
    ``model's error by 2 sources: published points of vllm on hopper GPUs``. Of several sources only
    the one with the smallest error is named: ``model_error_sentence`` names them all.
    """
    simulated = [point for point in points if point.simulated]
    if not simulated:
        return []
    errors = _known_errors(simulated)
    if not errors:
        return [f"intervals: {_UNKNOWN}"]
    ttft = _range_text([error.ttft for error in errors])
    others = _range_text([error.tpot for error in errors])
    sources = list(dict.fromkeys(error.source for error in errors))
    count = f"{len(sources)} sources: " if len(sources) > 1 else ""
    return [
        f"intervals: 9 in 10 measurements within {ttft} (TTFT), {others} (all else)",
        f"  model's error by {count}{sources[0]}",
    ]


def assumption_lines(points: Iterable[StoredPoint]) -> list[str]:
    """A line for each thing that the simulation of these points assumed."""
    assumed: dict[str, Any] = {}
    for point in points:
        if point.simulated:
            assumed |= point.deployment.prediction.assumed.stated()
    texts = assumption_texts(Assumptions(**assumed))
    return [f"assumed: {text}" for text in texts]


def assumption_texts(assumptions: Assumptions) -> list[str]:
    """What is assumed, and what would measure it."""
    texts: list[str] = []
    share = assumptions.drafts_accepted
    if share is not None:
        texts.append(
            f"{share * 100:g} % of drafted tokens are accepted; a run measures it "
            "(spec_accepted_share)"
        )
    if assumptions.constrained_answers == "asked":
        texts.append(
            "constrained answers are as long as output_tokens asks, and the constraint costs nothing"
        )
    if assumptions.adapters == "free":
        texts.append("LoRA adapters cost nothing, and no request waits for its adapter")
    if assumptions.image_patch is not None:
        texts.append(
            f"a picture is one prompt token for each square of {assumptions.image_patch} pixels, its "
            "sides rounded to whole squares, and encoding it costs nothing beside these tokens"
        )
    return texts


def model_error_sentence(points: Iterable[StoredPoint]) -> str:
    """``model_error_lines`` as one sentence with every source; empty without simulated points."""
    simulated = [point for point in points if point.simulated]
    if not simulated:
        return ""
    texts = [
        f"within {error.ttft:.2f}x (TTFT) and {error.tpot:.2f}x (all else) by {error.source}"
        for error in _known_errors(simulated)
    ]
    if not texts:
        return f"Intervals: {_UNKNOWN}."
    return (
        f"An interval holds 9 in 10 measurements, by the model's known error: {'; '.join(texts)}."
    )


_UNKNOWN = "not known, the model was never compared with such engines"


def _known_errors(points: Iterable[StoredPoint]) -> list[ErrorFactors]:
    """The known model errors of these points, each once, the smallest first."""
    errors = {point.model_error for point in points}
    known = [error for error in errors if error is not None]
    return sorted(known, key=lambda error: (error.ttft, error.tpot, error.source))


def _range_text(factors: Sequence[float]) -> str:
    """``1.55-2.40x``."""
    lowest = f"{min(factors):.2f}"
    highest = f"{max(factors):.2f}"
    return f"{lowest}x" if lowest == highest else f"{lowest}-{highest}x"
