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
        """Count a failure under ``key``, and return whether its class allows another try.

        ``key``: the id of a measurement, or a ``start_key``. Each class is counted separately.
        Failures of UNLIMITED kinds always allow another try. This ends for points that the clients
        slowed down, too: such a point fails only if the cluster has more clients for the next try,
        and else stays marked ``client_bound`` (attempt.py: ``judged``).
        """
        if failure.kind in UNLIMITED:
            self._failures[key, failure.kind] += 1
            return True
        self._failures[key, failure.failure_class] += 1
        return self._failures[key, failure.failure_class] <= failure.failure_class.retries

    def of(self, key: str) -> int:
        """How often the measurement with this id has failed or been spoilt, for whatever reason.
        Each try sends other prompts.
        """
        failures = sum(number for (name, _), number in self._failures.items() if name == key)
        return failures + self._spoilt.get(key, 0)


def start_key(start: int) -> str:
    """The key under which failures of a start of the engine are counted."""
    return f"start {start}"
