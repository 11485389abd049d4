"""What a search strategy is, and the simplest one: it asks for levels, is told what came of them,
and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from orchestrator.capacity.sequential_test import ANY_SIZE, ProbeSize
from orchestrator.spec.load import Control, Level, Slo

if TYPE_CHECKING:
    from orchestrator.capacity.race import Rivals
    from orchestrator.capacity.sequential_test import EarlierProbes
    from orchestrator.results.records import Committed


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be found out of one workload on one deployment, as the experiment file says it."""

    levels: tuple[Level, ...] = ()
    control: Control | None = None
    slos: tuple[Slo, ...] = ()
    repeats: int = 1
    # level up to which the first of the limits is predicted to hold; None: unknown
    first_guess: float | None = None
    starts: int = 1  # of the engine
    rivals: Rivals | None = None  # searches of other deployments; None: there are none
    precision: float | None = None  # of a search for capacities; None: its own
    # another deployment of its race is expected to be ahead; used for estimates
    follows: bool = False


class Strategy(Protocol):
    """Says which level to measure next, for one workload on one deployment.

    What it asks for depends only on what it was told, so a sweep that was killed goes on by telling
    it what is committed. A strategy that needs figures is first told all of that, the oldest first,
    whether or not it would have asked for it. A level is repeated by asking for it again.
    """

    # whether it must be told AttemptData, where the stored rows have it: then the rows of earlier
    # sweeps are read, too
    needs_figures: ClassVar[bool]

    def __init__(self, question: Question) -> None: ...

    @staticmethod
    def problem(question: Question) -> str | None:
        """One sentence when it cannot answer such a question."""
        ...

    def ask(self) -> Level | None:
        """The next level; the same until something is told. None: nothing is left to measure."""
        ...

    def tell(self, level: Level, attempt: Committed) -> None:
        """What came of a level, measured or given up."""
        ...

    def ahead(self) -> Sequence[Level]:
        """What it will ask for as far as is known now, for estimates and progress. First is what
        ``ask`` says.
        """
        ...


class LevelsInOrder:
    """The levels of a list, then all of them again for each repeat. What it is told of them does
    not matter.
    """

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


@dataclass(frozen=True, slots=True)
class ProbeWatch:
    """What a probe is watched for. ``before``, ``size``: see ``capacity/sequential_test.py:
    Probe``. ``over``: whether its search ends now, whatever is known.
    """

    slos: tuple[Slo, ...]
    before: tuple[tuple[EarlierProbes, ...], ...] = ()
    size: ProbeSize = ANY_SIZE
    over: Callable[[], bool] = lambda: False
