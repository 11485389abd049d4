"""Every level of a list, then every level again for each repeat: the whole curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.search.base import Question
from orchestrator.spec.load import Level

if TYPE_CHECKING:
    from orchestrator.results.records import Committed


class LevelsInOrder:
    """What it is told changes nothing but that it goes on."""

    needs_figures = False

    def __init__(self, question: Question) -> None:
        self._left = list(question.levels) * question.repeats

    @staticmethod
    def problem(question: Question) -> str | None:
        return None if question.levels else "it measures given levels, and there are none"

    def ask(self) -> Level | None:
        return self._left[0] if self._left else None

    def tell(self, level: Level, attempt: Committed) -> None:
        self._left.remove(level)

    def ahead(self) -> Sequence[Level]:
        return tuple(self._left)
