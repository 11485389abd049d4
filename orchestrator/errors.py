"""Every exception this program raises on purpose.

OrchestratorError
├── InputError            the user's input is wrong; nothing was started; exit status 2
│   └── ProblemsError     several problems found at once, each with its place in a file
├── EngineFailure         an engine did not start, died or misbehaved: becomes a row, the sweep goes on
├── PlacementError        the cluster could not give what a deployment needs
│   └── NoRoom            it never can: its nodes are too few or too small, and nothing adds any
└── ResultsError          the results store is unreadable or refuses a write

A failed *request* is never an exception: it is a row in ``requests``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """Why something failed; decides whether it is tried again (docs/architecture.md, "Failures")."""

    BAD_CONFIG = "bad_config"  # never retried
    ENGINE_CRASH = "engine_crash"  # retried once
    INFRA = "infra"  # retried up to 3 times, not held against the configuration
    TIMEOUT = "timeout"  # retried once
    CLIENT_BOUND = "client_bound"  # repeated with twice the clients


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input. ``line`` is 1-based, None when there is no file behind it."""

    message: str
    file: str | None = None
    line: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with an engine, in the words that are stored.

    ``kind`` is the finer signature (``oom_load``, ``no_model``, …; engines/failures.py lists them),
    ``sentence`` one plain sentence for a person, ``log_tail`` the last lines the engine wrote.
    """

    failure_class: FailureClass
    kind: str
    sentence: str
    log_tail: str = ""


class OrchestratorError(Exception):
    """Root of everything raised on purpose."""


class InputError(OrchestratorError):
    """The user's input is wrong and nothing was started."""


class ProblemsError(InputError):
    """All problems of an input, found in one pass."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class EngineFailure(OrchestratorError):
    """An engine did not start, died or misbehaved."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure.sentence)

    def __reduce__(self) -> tuple[type[EngineFailure], tuple[Failure]]:
        return type(self), (self.failure,)  # crosses process borders whole


class PlacementError(OrchestratorError):
    """The cluster could not give what a deployment needs, or lost it."""


class NoRoom(PlacementError):
    """Its nodes cannot hold what a deployment needs, even when idle, and no autoscaler adds any."""


class ResultsError(OrchestratorError):
    """The results store is unreadable or refused a write."""
