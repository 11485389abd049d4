"""What a search strategy is, and the simplest one.

A strategy asks for levels and is told what came of them; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from orchestrator.capacity.levels import ANY_LEVEL, LevelRange
from orchestrator.capacity.sequential_test import ANY_SIZE, ProbeSize
from orchestrator.spec.load import Control, Level, Slo

if TYPE_CHECKING:
    from orchestrator.capacity.race import Rivals
    from orchestrator.capacity.sequential_test import EarlierProbes
    from orchestrator.results.records import Committed


@dataclass(frozen=True, slots=True)
class SearchQuestion:
    """What is to be found out about one workload on one deployment, as the experiment file says."""

    levels: tuple[Level, ...] = ()
    control: Control | None = None
    slos: tuple[Slo, ...] = ()
    repeats: int = 1
    # highest level at which the first SLO is predicted to hold; None: unknown
    first_guess: float | None = None
    starts: int = 1  # how often the engine is started
    rivals: Rivals | None = None  # searches of other deployments; None: there are none
    precision: float | None = None  # of a search for capacities; None: its default
    sendable: LevelRange = ANY_LEVEL  # no other level can be sent
    # another deployment of its race is expected to be ahead; used for estimates
    follows: bool = False


class Strategy(Protocol):
    """Says which level to measure next, for one workload on one deployment.

    What it asks for depends only on what it was told, so a sweep that was killed can go on: the
    strategy is told what is committed. A strategy that needs figures is first told all of it, the
    oldest first, whether or not it would have asked for it. To repeat a level, a strategy asks for
    it again.
    """

    # whether it must be told AttemptData, where the stored rows have it; the rows of earlier sweeps
    # are then read too
    needs_figures: ClassVar[bool]

    def __init__(self, question: SearchQuestion) -> None: ...

    @staticmethod
    def problem(question: SearchQuestion) -> str | None:
        """Why it cannot answer such a question, as one sentence; None: it can."""
        ...

    def ask(self) -> Level | None:
        """The next level, the same until it is told something; None: nothing is left to measure."""
        ...

    def tell(self, level: Level, attempt: Committed) -> None:
        """Takes in what came of a level, whether it was measured or given up."""
        ...

    def ahead(self) -> Sequence[Level]:
        """What it will probably ask for, for estimates and progress; first what ``ask`` returns."""
        ...


class LevelsInOrder:
    """Asks for the levels of a list, then for all of them again for each repeat.

    What it is told of them does not matter.
    """

    needs_figures = False

    def __init__(self, question: SearchQuestion) -> None:
        self._left = list(question.levels) * question.repeats

    @staticmethod
    def problem(question: SearchQuestion) -> str | None:
        return None if question.levels else "it measures given levels, and there are none"

    def ask(self) -> Level | None:
        return self._left[0] if self._left else None

    def tell(self, level: Level, attempt: Committed) -> None:
        self._left.remove(level)

    def ahead(self) -> Sequence[Level]:
        return tuple(self._left)


@dataclass(frozen=True, slots=True)
class ProbeWatch:
    """What a probe is watched for.

    ``before``, ``size``: see ``capacity/sequential_test.py: Probe``. ``over``: returns whether the
    probe's search must end now, whatever is known.
    """

    slos: tuple[Slo, ...]
    before: tuple[tuple[EarlierProbes, ...], ...] = ()
    size: ProbeSize = ANY_SIZE
    over: Callable[[], bool] = lambda: False
