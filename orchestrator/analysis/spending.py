"""What the devices that an experiment held cost: starts, points that count, and what was wasted."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from orchestrator.analysis.attempt_summary import computed
from orchestrator.analysis.launches import StoredLaunch, load_launches
from orchestrator.analysis.points import StoredPoint
from orchestrator.results.records import PointHead
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store


@dataclass(frozen=True, slots=True)
class ExperimentSpending:
    """What devices cost while they were held, in USD.

    ``total``: all launches, from placement to the end. ``starts``: from the start of their processes
    until ready, of launches that then served. ``failed_starts``: launches that never served. ``counting``: attempts
    at points that answers rest on, warm-up included. ``not_counting``: other attempts: spoilt,
    tried again, or of an earlier version of the file. ``priced``: launches with a price whose time
    is known, of ``launches``.
    """

    total: float
    starts: float
    failed_starts: float
    counting: float
    not_counting: float
    priced: int
    launches: int

    @property
    def other(self) -> float:
        """Waits for hosts, fixed prompts, pauses, answers that came after the window, and stops."""
        return max(0.0, self.total - self._named)

    @property
    def _named(self) -> float:
        return self.starts + self.failed_starts + self.counting + self.not_counting


def spending(
    launches: Sequence[StoredLaunch], attempts: Iterable[PointHead], counting_ids: Collection[str]
) -> ExperimentSpending | None:
    """What launches cost; None without a launch that has a price and whose time is known.

    ``attempts``: all attempts on these launches. ``counting_ids``: the ids of those that count.
    """
    started = [launch for launch in launches if not launch.row.simulated]
    usd_per_s: dict[str, float] = {}
    total = starts = failed_starts = 0.0
    for launch in started:
        row = launch.row
        price = launch.deployment.usd_per_hour if launch.deployment else None
        if price is None or row.held_s is None:
            continue
        usd_per_s[row.launch_id] = price / 3600
        usd_of_launch = row.held_s * price / 3600
        total += usd_of_launch
        never_served = row.status != "ok" and row.ready_s is None
        if never_served:
            failed_starts += usd_of_launch
        else:  # it may have failed later
            starts += (row.ready_s or 0.0) * price / 3600
    if not usd_per_s:
        return None
    counting_usd = other_usd = 0.0
    for attempt in attempts:
        until_window_end_s = attempt.window_end_ns / 1e9  # since the start of the attempt
        usd = until_window_end_s * usd_per_s.get(attempt.launch_id, 0.0)
        if attempt.attempt_id in counting_ids:
            counting_usd += usd
        else:
            other_usd += usd
    return ExperimentSpending(
        total=total,
        starts=starts,
        failed_starts=failed_starts,
        counting=counting_usd,
        not_counting=other_usd,
        priced=len(usd_per_s),
        launches=len(started),
    )


def spending_of(store: Store, current: Iterable[StoredPoint]) -> ExperimentSpending | None:
    """What an experiment cost. ``current``: the points that its plan asks for."""
    launches = load_launches(store)
    if not any(launch.deployment and launch.deployment.usd_per_hour for launch in launches):
        return None
    counting_ids: set[str] = set()
    for point in current:
        for repeat in point.used_repeats:
            if repeat.shows_engine:  # ``used`` falls back to repeats that show nothing
                counting_ids.add(repeat.head.attempt_id)
    attempts: list[PointHead] = []
    for rows in computed(store, [attempt.ids for attempt in store.commits()], ["point"]):
        attempts += rows_of(pa.Table.from_struct_array(rows["point"]), PointHead)
    return spending(launches, attempts, counting_ids)
