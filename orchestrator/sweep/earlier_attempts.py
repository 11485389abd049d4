"""Finds what earlier sweeps of a plan left: spoilt attempts, measurements that failed because of a
fault in the experiment file, and engines that died under load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.errors import FIXED_ON_THE_HOST, FailureClass
from orchestrator.results.records import Committed
from orchestrator.results.store import best_ok

if TYPE_CHECKING:
    from orchestrator.results.store import Store


@dataclass(frozen=True, slots=True)
class SpoiltAttempts:
    """The measurements whose ok attempts were all spoilt, and how often measurements were spoilt.

    ``open``, ``kept``: by measurement id, the attempt that counts. Those in ``open`` are measured
    again. Those in ``kept`` were measured again as often as is allowed, and stay as they are.
    ``spoilt_counts``: by measurement id, how many attempts were spoilt, even if another one was
    not. ``verdicts``: the verdict on each spoilt attempt, by the attempt's ids.
    """

    open: dict[str, Committed]
    kept: dict[str, Committed]
    spoilt_counts: Mapping[str, int]
    verdicts: Mapping[tuple[str, str], str]

    def words(self, attempts: Iterable[Committed]) -> str:
        """How many of these attempts have which verdict: ``3 disturbed, 1 client_bound``."""
        verdicts = Counter(self.verdicts[attempt.ids] for attempt in attempts)
        return ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())


def spoilt_of(store: Store, commits: Sequence[Committed], most_again: int) -> SpoiltAttempts:
    """The attempts among ``commits`` that something other than the engine spoilt. ``most_again``:
    how often a spoilt measurement is made again.
    """
    verdicts = store.spoilt(commits)
    spoilt_counts = Counter(measurement_id for measurement_id, _ in verdicts)
    spoilt = SpoiltAttempts({}, {}, spoilt_counts, verdicts)
    for measurement_id, attempt in best_ok(commits, verdicts).items():
        # best_ok takes a spoilt attempt only where all are spoilt
        if attempt.ids not in verdicts:
            continue
        if spoilt_counts[measurement_id] <= most_again:
            spoilt.open[measurement_id] = attempt
        else:
            spoilt.kept[measurement_id] = attempt
    return spoilt


def failed_by_configuration(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements whose last attempt failed because of a fault in the experiment file: by
    measurement id, that attempt. ``commits``: oldest first.
    """
    last = {attempt.measurement_id: attempt for attempt in commits}
    badly_configured = [
        attempt for attempt in last.values() if attempt.failure_class == FailureClass.BAD_CONFIG
    ]
    failed_by_id: dict[str, Committed] = {}
    for attempt in attempt_data(store, badly_configured):
        if attempt.point.failure_kind not in FIXED_ON_THE_HOST:
            failed_by_id[attempt.measurement_id] = attempt
    return failed_by_id


def died_at(store: Store, commits: Iterable[Committed]) -> dict[str, Committed]:
    """The measurements at which the engine died under load in every try that is allowed: by
    measurement id, the last attempt. For a search, such a death is an answer. ``commits``: oldest
    first.
    """
    tries: Counter[str] = Counter()
    last: dict[str, Committed] = {}
    crashed = [attempt for attempt in commits if attempt.failure_class == FailureClass.ENGINE_CRASH]
    for attempt in attempt_data(store, crashed):
        if attempt.point.clients:  # otherwise it died before any load
            tries[attempt.measurement_id] += 1
            last[attempt.measurement_id] = attempt
    retries = FailureClass.ENGINE_CRASH.retries  # after the first try
    return {
        measurement_id: attempt
        for measurement_id, attempt in last.items()
        if tries[measurement_id] > retries
    }
