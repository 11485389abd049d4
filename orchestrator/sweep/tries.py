"""How often the measurements and starts of one deployment failed, and whether they are tried again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchestrator.base.errors import Failure, FailureClass, FailureKind

# Failures of these kinds never forbid another try.
UNLIMITED = frozenset({FailureKind.CLIENT_BOUND, FailureKind.PREEMPTED})


class Tries:
    """The failed tries of one deployment's measurements and starts.

    ``spoilt``: measurement id -> how many of its attempts were spoilt in earlier sweeps.
    """

    def __init__(self, spoilt: Mapping[str, int]) -> None:
        self._spoilt = spoilt
        self._failures: Counter[tuple[str, FailureClass | FailureKind]] = Counter()

    def count(self, key: str, failure: Failure) -> bool:
        """Count a failure, and return whether there may be another try.

        ``key``: the id of the measurement that failed, or the ``start_key`` of the start. Each class
        of failures is counted by itself, and allows so many tries more (``retries``). Kinds in
        UNLIMITED always allow another one. Even for points that the clients slowed down, tries come
        to an end: such a point counts as failed only while the cluster has more clients for the
        next try (attempt.py: ``judged``).
        """
        if failure.kind in UNLIMITED:
            self._failures[key, failure.kind] += 1
            return True
        failure_class = failure.failure_class
        self._failures[key, failure_class] += 1
        return self._failures[key, failure_class] <= failure_class.retries

    def of(self, key: str) -> int:
        """How often the measurement with this id has failed or been spoilt, for whatever reason. It
        is the number of the next try, which sends other prompts than the tries before.
        """
        failures = 0
        for (failed_key, _), number in self._failures.items():
            if failed_key == key:
                failures += number
        return failures + self._spoilt.get(key, 0)


def start_key(start: int) -> str:
    """The key under which failures of a start of the engine are counted."""
    return f"start {start}"
