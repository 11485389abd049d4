"""Stored measurements with their metrics: load points, each with its repeats, for tables and
``best``.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.attempt_summary import computed, pool_key, pooled
from orchestrator.analysis.deployments import (
    StoredDeployment,
    stored_deployment,
    unknown_deployment,
)
from orchestrator.analysis.intervals import Interval, rate_interval, share_interval
from orchestrator.analysis.metrics import BACKLOG, BROKEN, FAILING, validity_of
from orchestrator.analysis.output_agreement import UNKNOWN, Agreement
from orchestrator.analysis.slo import LimitValues, Verdicts, judge_each
from orchestrator.analysis.throughput import Batches
from orchestrator.base.arrays import Floats
from orchestrator.base.errors import DamagedError, FailureClass, ResultsError
from orchestrator.base.text import grouped
from orchestrator.results.records import (
    AttemptData,
    Committed,
    DeploymentRow,
    EngineSide,
    Figures,
    PointHead,
    PooledFigures,
    RequestTotals,
)
from orchestrator.results.schemas import LazyRecords, arrow_schema, rows_of
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo

_log = logging.getLogger(__name__)
# a replica's number is its name
_without_figures = partial(re.compile(r"(?<!replica )\b\d+([.,]\d+)*").sub, "")
# failures that say nothing of a deployment
_NOT_THE_ENGINES = (FailureClass.INFRA, FailureClass.CLIENT_BOUND)


@dataclass(frozen=True, slots=True)
class Repeat:
    """One repeat of a point: the attempt of it that counts."""

    point: PointHead
    output_tokens: Batches  # over the steady window
    verdicts: tuple[Verdicts, ...]  # one per SLO that was asked for; none where it failed
    attempts: int  # all attempts at this measurement, failed ones included
    requests: RequestTotals
    _figures: Callable[[], Figures]  # these two are decoded only when needed
    _engine_side: Callable[[], EngineSide | None]

    @property
    def figures(self) -> Figures:
        return self._figures()

    @property
    def engine_side(self) -> EngineSide | None:
        """What the engines' own metrics say; None where they gave none."""
        return self._engine_side()

    @property
    def ok(self) -> bool:
        return self.point.status == "ok"

    @property
    def valid(self) -> bool:
        return self.ok and self.point.validity in ("valid", FAILING)

    @property
    def counts(self) -> bool:
        """Whether its requests show how the engine did. A repeat in which the engine fell behind
        counts too.
        """
        return self.valid or (self.ok and self.point.validity == BACKLOG)

    @property
    def broken(self) -> bool:
        """Whether it failed because of the engine: that died, took too long or cannot run this
        configuration.
        """
        return not self.ok and self.point.failure_class not in _NOT_THE_ENGINES


class Attained(NamedTuple):
    """The result of one test of an SLO at a load: the share of requests that met it, and the share
    that must.
    """

    name: str
    share: Interval
    target: float


def attained(verdicts: Sequence[Verdicts], starts: Sequence[int] = ()) -> tuple[Attained, ...]:
    """The results of all tests of an SLO over some repeats; empty without requests. ``starts``: see
    share_interval.
    """
    results = []
    for tests in zip(*(repeat.tests for repeat in verdicts), strict=True):
        share = share_interval([test.met for test in tests], starts)
        if share is not None:
            results.append(Attained(tests[0].name, share, tests[0].target))
    return tuple(results)


@dataclass(frozen=True)
class StoredPoint:
    """One load level of one workload on one deployment, over all its repeats."""

    deployment: StoredDeployment
    repeats: tuple[Repeat, ...]
    _figures: Callable[[], Figures]
    agreement: Agreement = UNKNOWN  # of its deployment with the model's reference

    @property
    def head(self) -> PointHead:
        """The row of the first repeat, which stands for what all repeats share."""
        return self.repeats[0].point

    @cached_property
    def used(self) -> tuple[Repeat, ...]:
        """The repeats that its answers come from."""
        return _used(self.repeats)

    def named(self, workload: str | None) -> StoredPoint:
        """The point under the name that its workload has now: renaming changes no measurement."""
        if workload is None or workload == self.head.workload:
            return self
        return replace(
            self,
            repeats=tuple(
                replace(one, point=replace(one.point, workload=workload)) for one in self.repeats
            ),
        )

    def of_experiment(self, name: str) -> StoredPoint:
        """The point as one of another experiment, which it is shown in."""
        return replace(
            self,
            repeats=tuple(
                replace(one, point=replace(one.point, experiment=name)) for one in self.repeats
            ),
        )

    @property
    def validity(self) -> str:
        """The verdict on its used repeats; ``failing`` where more than 5 % of the requests of valid
        ones failed. What failed in one that fell behind may have been ended by the load itself.

        ``broken_output`` where any repeat is: the prompts of the others may just not have shown it.
        """
        if self._noise:
            return BROKEN
        repeats = self.used or self.repeats
        valid = [repeat for repeat in repeats if repeat.valid]
        deciding = valid[0] if valid else repeats[0]
        requests = [repeat.requests for repeat in self.used if repeat.valid]
        return validity_of(deciding.point.validity, requests)

    @property
    def reasons(self) -> list[str]:
        """The reasons for its validity, from every repeat that decides it. What repeats say alike
        but for its figures is said once, with the first one's.
        """
        reasons: list[str] = []
        for repeat in self._noise or self.used or self.repeats:
            known = {_without_figures(reason) for reason in reasons}
            reasons += [
                reason
                for reason in repeat.point.validity_reasons
                if _without_figures(reason) not in known
            ]
        return reasons

    @property
    def _noise(self) -> tuple[Repeat, ...]:
        return tuple(one for one in self.repeats if one.ok and one.point.validity == BROKEN)

    @property
    def broken(self) -> tuple[Repeat, ...]:
        """Its repeats that the engine failed. A level with such a repeat does not hold."""
        return tuple(one for one in self.repeats if one.broken)

    @property
    def starts(self) -> tuple[int, ...]:
        """The start of its deployment that each used repeat was measured on."""
        return tuple(one.point.start for one in self.used)

    @property
    def emulated(self) -> bool:
        return any(one.point.emulated for one in self.repeats)

    @property
    def figures(self) -> Figures:
        """The used repeats pooled; where all repeats failed, all of them (counts, no latencies)."""
        return self._figures()

    @cached_property
    def held(self) -> tuple[tuple[Attained, ...], ...]:
        """The results of the tests of each SLO; empty without requests."""
        by_slo = zip(*(one.verdicts for one in self.used), strict=True)
        return tuple(attained(verdicts, self.starts) for verdicts in by_slo)

    @property
    def tests(self) -> tuple[Attained, ...]:
        """The results under the first SLO; empty without an SLO or without requests."""
        return self.held[0] if self.held else ()

    @property
    def attainment(self) -> Interval | None:
        """The share of the first of these tests."""
        return self.tests[0].share if self.tests else None

    def output_token_throughput(self) -> Interval | None:
        """Output tokens per second, with its interval."""
        return rate_interval([one.output_tokens for one in self.used], self.starts)


def load_points(store: Store, *slos: Slo) -> list[StoredPoint]:
    """Every point of an experiment, judged by these SLOs, sorted by deployment, workload and level.

    Of each measurement the first ok attempt that nothing spoilt counts, else the first ok one, else
    the latest failed one. Attempts with damaged files are left out (``store.damage``); where one is
    found, all is read again without it.
    """
    while True:
        damaged = len(store.damage)
        try:
            points = _points_of(store, slos)
        except DamagedError:
            if len(store.damage) == damaged:
                raise
        else:
            if len(store.damage) == damaged:
                return sorted(points, key=_order)


def complete(store: Store) -> None:
    """Compute and keep what later answers need and is not computed yet, as far as that is possible
    now.
    """
    try:
        load_points(store)
    except (ResultsError, ValueError) as error:  # nothing is lost: readers compute what is missing
        _log.warning("not everything that answers need was computed: %s", error)


def _order(point: StoredPoint) -> tuple[str, str, str, float]:
    head = point.head
    return point.deployment.label, head.workload, head.control, head.level


def _points_of(store: Store, slos: Sequence[Slo]) -> list[StoredPoint]:
    counting, tries = _counting(store)
    attempts = _Attempts(slos, tries)
    for rows in computed(store, counting, attempts.columns):
        attempts.add(rows)
    unknown = attempts.undescribed()
    if unknown:  # older versions stored a deployment's row with its launch only
        launched = rows_of(
            store.read_manifests("deployments", store.manifests("launch")), DeploymentRow
        )
        attempts.deployments |= {
            row.deployment_id: stored_deployment(row)
            for row in launched
            if row.deployment_id in unknown
        }
    groups = grouped((one.point.point_id, one) for one in attempts.measurements())
    together = _together(store, [_used(group) or group for group in groups.values()])
    return [
        StoredPoint(attempts.deployment(group[0].point), tuple(group), figures)
        for group, figures in zip(groups.values(), together, strict=True)
    ]


def _counting(store: Store) -> tuple[list[tuple[str, str]], Counter[str]]:
    """The ids of the attempts that count, and how many attempts each measurement had."""
    committed = store.commits()  # oldest first
    counting = {one.measurement_id: one for one in committed} | store.counting(committed)
    return sorted(one.ids for one in counting.values()), Counter(
        one.measurement_id for one in committed
    )


class _Attempts:
    """The attempts that count, with the columns of AttemptData that are needed.

    Small things are held as records, figures as Arrow. ``tries``: how many attempts each
    measurement had.
    """

    def __init__(self, slos: Sequence[Slo], tries: Mapping[str, int]) -> None:
        self._slos, self._tries = slos, tries
        self._limits = list(
            dict.fromkeys(name for slo in slos for name in (one.of for one in slo.limits))
        )
        limits = ["request_ok", *(f"request_{name}_s" for name in self._limits)] if slos else []
        needed = [
            "point",
            "deployment",
            "figures",
            "engine_side",
            "batch_tokens",
            "batch_s",
            *limits,
        ]
        self.columns = [*arrow_schema(Committed).names, *needed]
        self.deployments: dict[str, StoredDeployment] = {}
        # by deployment: creation time of the attempt that its row came with
        self._described: dict[str, int] = {}
        self._rows: list[tuple[PointHead, Batches, tuple[Verdicts, ...]]] = []
        self._figures = [arrow_schema(AttemptData).empty_table().select(["figures", "engine_side"])]

    def add(self, rows: pa.Table) -> None:
        """Add attempts. ``rows``: the columns ``columns``."""
        points = rows_of(_unnested(rows["point"]), PointHead)
        batches = map(Batches, _split(rows["batch_tokens"]), _split(rows["batch_s"]))
        committed = rows_of(rows, Committed)
        self._rows += zip(points, batches, self._verdicts(rows), strict=True)
        self._figures.append(rows.select(["figures", "engine_side"]))
        there, new = rows["deployment"].is_valid().to_pylist(), dict[str, int]()
        for at, (one, point) in enumerate(zip(committed, points, strict=True)):
            known = self._described.get(point.deployment_id)
            # prices and labels may change: the oldest row counts
            oldest = known is None or one.created_unix_ns < known
            if there[at] and oldest:
                self._described[point.deployment_id], new[point.deployment_id] = (
                    one.created_unix_ns,
                    at,
                )
        described = rows["deployment"].take(pa.array(new.values(), pa.int64())).drop_null()
        self.deployments |= {
            row.deployment_id: stored_deployment(row)
            for row in rows_of(_unnested(described), DeploymentRow)
        }

    def undescribed(self) -> set[str]:
        """Ids of deployments whose row came with none of the attempts."""
        return {point.deployment_id for point, _, _ in self._rows} - set(self.deployments)

    def deployment(self, point: PointHead) -> StoredDeployment:
        """The deployment of a point; where its row was never stored, one that has only the id."""
        known = self.deployments.get(point.deployment_id)
        return known or unknown_deployment(point.deployment_id)

    def measurements(self) -> list[Repeat]:
        """Sorted by deployment, load and repeat."""
        chosen = sorted(range(len(self._rows)), key=self._order)
        columns = pa.concat_tables(self._figures)
        # the copy in order is made, and these given back, before anything else is
        self._figures = []
        columns = columns.take(pa.array(chosen, pa.int64()))
        pa.default_memory_pool().release_unused()
        figures, engine_side = (
            _handles(columns["figures"], Figures),
            _handles(columns["engine_side"], EngineSide),
        )
        counts = rows_of(_unnested(pc.struct_field(columns["figures"], "requests")), RequestTotals)
        rows = zip((self._rows[at] for at in chosen), counts, figures, engine_side, strict=True)
        return [
            Repeat(point, batches, verdicts, self._tries[point.measurement_id], count, made, side)
            for (point, batches, verdicts), count, made, side in rows
        ]

    def _order(self, at: int) -> tuple[str, str, float, str, int]:
        point, _, _ = self._rows[at]
        return (
            self.deployment(point).label,
            point.workload,
            point.level,
            point.point_id,
            point.repeat,
        )

    def _verdicts(self, rows: pa.Table) -> list[tuple[Verdicts, ...]]:
        """The verdicts on each attempt, none on failed ones. The requests of all attempts are
        judged at once.
        """
        if not self._slos:
            return [()] * rows.num_rows
        ok = [status == "ok" for status in rows["status"].to_pylist()]
        judged = rows.filter(pa.array(ok, pa.bool_()))
        columns = {name: judged[f"request_{name}_s"] for name in self._limits}
        seconds = {name: _flat(column) for name, column in columns.items() if not column.null_count}
        values, ends = (
            LimitValues(_flat(judged["request_ok"]), seconds),
            np.cumsum(_lengths(judged["request_ok"])),
        )
        each = zip(*(judge_each(values, slo, ends.tolist()) for slo in self._slos), strict=True)
        return [next(each) if one else () for one in ok]


def _together(store: Store, groups: Sequence[Sequence[Repeat]]) -> list[Callable[[], Figures]]:
    """The pooled figures of each group; those that are not stored yet are computed."""
    ids = [
        [(one.point.measurement_id, one.point.attempt_id) for one in group]
        for group in groups
        if len(group) > 1
    ]
    empty = arrow_schema(PooledFigures).empty_table().select(["attempt_ids", "figures"])
    rows = pa.concat_tables([empty, *pooled(store, ids)], promote_options="permissive")
    found = {key: at for at, key in enumerate(rows["attempt_ids"].to_pylist())}
    # as they will be asked for
    order = [found[pool_key(attempt for _, attempt in group)] for group in ids]
    several = iter(_handles(rows["figures"].take(pa.array(order, pa.int64())), Figures))
    return [next(several) if len(group) > 1 else group[0]._figures for group in groups]


def _handles(column: pa.ChunkedArray, record: type[Any]) -> list[Callable[[], Any]]:
    """For each row a function that makes its record."""
    records = LazyRecords[Any](column, record)
    return [partial(records.__getitem__, at) for at in range(len(column))]


def _used(repeats: Sequence[Repeat]) -> tuple[Repeat, ...]:
    """The repeats that count; without any, those that ran at all."""
    counting = tuple(one for one in repeats if one.counts)
    return counting or tuple(one for one in repeats if one.ok)


def _unnested(column: pa.ChunkedArray) -> pa.Table:
    """The fields of a struct column as a table."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks],
        pa.schema(list(column.type)),
    )


def _flat(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a list column, one list after the other."""
    return np.asarray(column.combine_chunks().flatten().to_numpy(zero_copy_only=False))


def _lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(
        column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False), np.int64
    )


def _split(column: pa.ChunkedArray) -> list[Floats]:
    return np.split(_flat(column), np.cumsum(_lengths(column))[:-1])[: len(column)]
