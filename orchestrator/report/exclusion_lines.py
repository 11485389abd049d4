"""What a ranking leaves out in short, for a terminal: counted, one line per reason.

``words.py`` has the reasons as whole sentences.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, listed_within
from orchestrator.capacity.answers import Excluded, Exclusion, level_of
from orchestrator.capacity.doubts import DeploymentLevels
from orchestrator.report.documents.answer import ExcludedDocument
from orchestrator.report.words import at_levels_text
from orchestrator.results.validity import SPOILT
from orchestrator.spec.load import Level

ALL_REASONS = "--format json"  # the option of `best` that shows every reason whole
MOST_REASON = 60  # characters of why something failed

# What follows the number of levels or deployments. FAILED and NOT_VALID have words of their own.
_REASONS: Mapping[Exclusion, str] = {
    Exclusion.ENDED_EARLY: " ended early, below the limits",
    Exclusion.NO_REQUESTS: " without a due request",
    Exclusion.ONLY_FIGURES: " without requests in the imported file",
    Exclusion.GPUS_UNKNOWN: " with an unknown number of GPUs (--per deployment)",
    Exclusion.PRICE_UNKNOWN: " of unknown price (--price HARDWARE=USD)",
    Exclusion.ENERGY_UNKNOWN: " of unknown energy",
    Exclusion.DISAGREES: " with other answers than the reference",
    Exclusion.NO_LEVEL_HOLDS: ", no level holds",
    Exclusion.SEARCH_FOUND_NO_LEVEL: ", no load was shown to hold",
}


@dataclass(frozen=True, slots=True)
class ExclusionLine:
    """What is left out for one reason.

    ``reason``: the words that follow the number of levels or deployments. ``nearest``: the level or
    deployment that came nearest to the limits, with its whole reason; None: the reason has no
    figures.
    """

    reason: str
    excluded: tuple[Excluded, ...]
    nearest: ExcludedDocument | None

    @property
    def count_text(self) -> str:
        """``3 levels`` or ``1 deployment``."""
        noun = "deployment" if self.excluded[0].level is None else "level"
        return counted(len(self.excluded), noun)

    @property
    def levels_by_label(self) -> dict[str, list[Level]]:
        """By label, the levels that are left out; an empty list: the whole deployment is."""
        levels_by_label: dict[str, list[Level]] = {}
        for excluded in self.excluded:
            levels = levels_by_label.setdefault(excluded.deployment.label, [])
            if excluded.level is not None:
                levels.append(level_of(excluded.level))
        return levels_by_label


def exclusion_lines(documents: Sequence[ExcludedDocument]) -> list[ExclusionLine]:
    """A line per reason, in the order in which the reasons first come."""
    lines = []
    by_reason = values_by_key((_reason_text(document), document) for document in documents)
    for reason, alike in by_reason.items():
        excluded = tuple(document.excluded for document in alike)
        lines.append(ExclusionLine(reason, excluded, _nearest(alike)))
    return lines


def exclusion_line_text(line: ExclusionLine, width: int) -> str:
    """``3 levels disturbed: a at 4 req/s, b at 2 req/s, 4 req/s``.

    To fit into ``width`` characters, first the levels are left out, then names.
    """
    beginning = f"{line.count_text}{line.reason}: "
    room = width - len(beginning)
    labels = list(line.levels_by_label)
    names = [_name(label, levels) for label, levels in line.levels_by_label.items()]
    for texts in (names, labels):
        if len(", ".join(texts)) <= room:
            return beginning + ", ".join(texts)
    ending = f": {ALL_REASONS}"
    shortened = listed_within(labels, room - len(ending))
    if len(shortened) + len(ending) <= room:
        return f"{beginning}{shortened}{ending}"
    return beginning + listed_within(labels, room)


def _name(label: str, levels: Sequence[Level]) -> str:
    return at_levels_text(DeploymentLevels(label, tuple(levels))) if levels else label


def nearest_text(line: ExclusionLine) -> str | None:
    """``nearest: a: attainment is at most 0.4 (at 4 req/s), not 0.9; ...``."""
    if line.nearest is None:
        return None
    label = line.nearest.excluded.deployment.label
    _, _, figures = line.nearest.reason.partition(" the limits: ")
    return f"nearest: {label}: {figures or line.nearest.reason}"


def spoilt_text(line: ExclusionLine) -> str | None:
    """``for example: other processes took 96% of the CPU ...``, the reason of the first level; None
    where nothing but the engine decided the verdict.
    """
    excluded = line.excluded[0]
    point = excluded.evidence
    if excluded.reason is not Exclusion.NOT_VALID or point is None:
        return None
    if point.validity not in SPOILT or not point.reasons:
        return None
    return f"for example: {point.reasons[0]}"


def _nearest(documents: Sequence[ExcludedDocument]) -> ExcludedDocument | None:
    """Of those left out for one reason, the one that came nearest to the limits.

    Where none has figures, it is the first if its search ended with bounds, else None.
    """
    with_figures = [document for document in documents if document.excluded.shortfall is not None]
    if with_figures:
        return max(with_figures, key=_margin)
    return documents[0] if documents[0].excluded.claims else None


def _margin(document: ExcludedDocument) -> float:
    """How far the best level lies below the target, as a negative share."""
    shortfall = document.excluded.shortfall
    assert shortfall is not None
    return shortfall.test.share.estimate - shortfall.test.target


def _reason_text(document: ExcludedDocument) -> str:
    excluded = document.excluded
    if excluded.reason is Exclusion.FAILED:
        return _failure_text(document)
    if excluded.reason is Exclusion.NOT_VALID:
        assert excluded.evidence is not None
        return f" {excluded.evidence.validity}"
    return _REASONS[excluded.reason]


def _failure_text(document: ExcludedDocument) -> str:
    """The kind of the failure; without one, the beginning of the stored reason."""
    point = document.excluded.evidence
    assert point is not None
    first = (point.engine_failures or point.repeats)[0].head
    if first.failure_kind:
        return f" failed ({first.failure_kind})"
    reason = re.sub(r"\s+", " ", first.reason or "")
    return f" failed ({reason[:MOST_REASON]})" if reason else " failed"
