"""What earlier sweeps left of a plan's measurements: spoilt attempts, faults of the experiment
file, and engines that died under load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.errors import OF_THE_MACHINE, FailureClass
from orchestrator.results.records import Committed
from orchestrator.results.store import best_ok

if TYPE_CHECKING:
    from orchestrator.results.store import Store


@dataclass(frozen=True, slots=True)
class SpoiltAttempts:
    """The measurements of which every ok attempt was spoilt, by id, with the attempt that counts.

    ``open``: they are measured again. ``kept``: they were, as often as is allowed, and stay.
    ``tries``: spoilt attempts by measurement id. ``verdicts``: of each spoilt attempt, by its ids.
    """

    open: dict[str, Committed]
    kept: dict[str, Committed]
    tries: Mapping[str, int]
    verdicts: Mapping[tuple[str, str], str]

    def words(self, attempts: Iterable[Committed]) -> str:
        """How many of these have which verdict: ``3 disturbed, 1 client_bound``."""
        verdicts = Counter(self.verdicts[one.ids] for one in attempts)
        return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


def spoilt_of(store: Store, commits: Sequence[Committed], most_again: int) -> SpoiltAttempts:
    """What something beside the engine spoilt, of all ``commits``. ``most_again``: how often a
    measurement is measured again for that.
    """
    verdicts = store.spoilt(commits)
    tries = Counter(measurement_id for measurement_id, _ in verdicts)
    found = SpoiltAttempts({}, {}, tries, verdicts)
    for name, attempt in best_ok(commits, verdicts).items():
        if attempt.ids not in verdicts:
            continue
        if tries[name] <= most_again:
            found.open[name] = attempt
        else:
            found.kept[name] = attempt
    return found


def refused(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements whose last attempt (``commits`` come oldest first) failed by a fault of the
    experiment file.
    """
    last = {attempt.measurement_id: attempt for attempt in commits}
    wrong = [one for one in last.values() if one.failure_class == FailureClass.BAD_CONFIG]
    refused_by_id: dict[str, Committed] = {}
    for attempt in attempt_data(store, wrong):
        if attempt.point.failure_kind not in OF_THE_MACHINE:
            refused_by_id[attempt.measurement_id] = attempt
    return refused_by_id


def died_at(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements at which the engine died under load as often as it is tried: to a search,
    that is an answer.
    """
    tries: Counter[str] = Counter()
    last: dict[str, Committed] = {}
    crashed = [one for one in commits if one.failure_class == FailureClass.ENGINE_CRASH]
    for attempt in attempt_data(store, crashed):
        if attempt.point.clients:
            tries[attempt.measurement_id] += 1
            last[attempt.measurement_id] = attempt
    most_tries = FailureClass.ENGINE_CRASH.retries
    return {name: attempt for name, attempt in last.items() if tries[name] > most_tries}
