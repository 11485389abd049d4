"""Stored load points with their repeats and metrics, for tables and ``best``."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.attempt_summary import AttemptIds, computed, pool_key, pooled
from orchestrator.analysis.deployments import (
    StoredDeployment,
    stored_deployment,
    unknown_deployment,
)
from orchestrator.analysis.efficiency import (
    NO_SHARES,
    CountedShares,
    EfficiencyResult,
    MissingFigures,
    efficiency_of,
)
from orchestrator.analysis.energy import PointEnergy, RepeatEnergy, point_energy
from orchestrator.analysis.intervals import (
    Interval,
    interval_of_model,
    rate_interval,
    share_interval,
)
from orchestrator.analysis.metrics import (
    BACKLOG,
    BROKEN,
    UNCHECKED,
    ended_requests,
    validity_of,
    without_cut_off,
)
from orchestrator.analysis.output_agreement import UNKNOWN, Agreement
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import LimitValues, Verdicts, judge, judge_each, stored_values
from orchestrator.analysis.throughput import Batches
from orchestrator.base.arrays import Floats, Ints
from orchestrator.base.errors import DamagedError, FailureClass, ResultsError
from orchestrator.base.grouping import values_by_key
from orchestrator.catalog.work import MissingWork
from orchestrator.results.offered_rate import WindowOffer, is_as_asked, pooled_rate
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.records import (
    AttemptData,
    Committed,
    DeploymentRow,
    DeviceSide,
    EngineSide,
    Figures,
    PartFigures,
    PointHead,
    PooledFigures,
    RequestTotals,
)
from orchestrator.results.schemas import LazyRecords, arrow_schema, rows_of
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo

_log = logging.getLogger(__name__)
RecordT = TypeVar("RecordT")
ReadT = TypeVar("ReadT", covariant=True)
# a figure in a reason; the number behind "replica" is a name, not a figure
_FIGURE = re.compile(r"(?<!replica )\b\d+([.,]\d+)*")
# columns of AttemptData that stay in Arrow until they are needed
_LAZY = ["figures", "part_figures", "engine_side", "device_side"]
PARTS: Any = tuple[PartFigures, ...]  # the type of the column part_figures
# failures that say nothing about the engine
_NOT_THE_ENGINES = (FailureClass.INFRA, FailureClass.CLIENT_BOUND)


class _Readable(Protocol[ReadT]):
    """A record that is read when it is needed."""

    def read(self) -> ReadT: ...


@dataclass(frozen=True, slots=True)
class _RecordAtHand(Generic[RecordT]):
    """A record that is in memory."""

    record: RecordT

    def read(self) -> RecordT:
        return self.record


@dataclass(frozen=True, slots=True)
class _StoredRecord(Generic[RecordT]):
    """One of many records, which is decoded only when it is read."""

    records: LazyRecords[RecordT]
    row: int

    def read(self) -> RecordT:
        return self.records[self.row]


@dataclass(frozen=True, slots=True)
class VerdictBounds:
    """What a simulation's verdicts, one per SLO, would be at both ends of the model's error.

    ``if_slower``: if all latencies were longer by the factors within which nine in ten measurements
    lie. ``if_faster``: if they were shorter by as much.
    """

    if_slower: tuple[Verdicts, ...]
    if_faster: tuple[Verdicts, ...]

    def under(self, slo_index: int) -> VerdictBounds:
        """The bounds of one SLO alone."""
        alone = slice(slo_index, slo_index + 1)
        return VerdictBounds(self.if_slower[alone], self.if_faster[alone])


@dataclass(frozen=True, slots=True)
class Repeat:
    """One repeat of a point: the attempt that counts.

    ``ended_requests``: ``requests`` without those that this program cut off. ``bounds``: None where
    it was measured, and where the error of the model that simulated it is not known.
    """

    head: PointHead
    output_tokens: Batches  # tenths of the steady window: tokens and seconds of each
    verdicts: tuple[Verdicts, ...]  # one per SLO that was asked for; none where it failed
    attempts: int  # all attempts at this measurement, failed ones included
    requests: RequestTotals
    ended_requests: RequestTotals
    _figures: _Readable[Figures]
    _engine_side: _Readable[EngineSide | None]
    bounds: VerdictBounds | None = None
    _device_side: _Readable[DeviceSide | None] | None = None
    _part_figures: _Readable[tuple[PartFigures, ...]] | None = None

    @property
    def figures(self) -> Figures:
        return self._figures.read()

    @property
    def part_figures(self) -> tuple[PartFigures, ...]:
        """The figures of each part of a mix; empty for other workloads."""
        return () if self._part_figures is None else self._part_figures.read()

    def figures_of(self, part: str | None) -> Figures | None:
        """The figures of a part of a mix, or of all requests; None where no request is of it."""
        return self.figures if part is None else _figures_of_part(self.part_figures, part)

    @property
    def engine_side(self) -> EngineSide | None:
        """What the engines' own metrics say; None where the engines gave none."""
        return self._engine_side.read()

    @property
    def device_side(self) -> DeviceSide | None:
        """What its GPUs did; None where they were not read."""
        return None if self._device_side is None else self._device_side.read()

    @property
    def ok(self) -> bool:
        return self.head.status == "ok"

    @property
    def valid(self) -> bool:
        """Whether nothing is known to have distorted it.

        An imported repeat passes, because nothing is known against it.
        """
        return self.ok and self.head.validity in ("valid", UNCHECKED)

    @property
    def shows_engine(self) -> bool:
        """Whether its requests show how the engine did, even if the engine fell behind."""
        return self.valid or (self.ok and self.head.validity == BACKLOG)

    @property
    def engine_failed(self) -> bool:
        """Whether the engine is why it failed.

        The engine died, took too long or cannot run this configuration.
        """
        return not self.ok and self.head.failure_class not in _NOT_THE_ENGINES

    def under(self, slo_index: int) -> Repeat:
        """The repeat as if it had been judged by one of its SLOs alone."""
        return replace(
            self,
            verdicts=self.verdicts[slo_index : slo_index + 1],
            bounds=self.bounds.under(slo_index) if self.bounds is not None else None,
        )


def _figures_of_part(part_figures: Sequence[PartFigures], part: str) -> Figures | None:
    for of_part in part_figures:
        if of_part.part == part:
            return of_part.figures
    return None


@dataclass(frozen=True, slots=True)
class Attained:
    """The result of one test of an SLO at a load.

    ``share``: the share of requests that met the test. ``target``: the share that must meet it.
    ``part``: the part of a mix whose requests it is about; None: all requests.
    """

    name: str
    share: Interval
    target: float
    part: str | None = None


def deciding_test(tests: Sequence[Attained]) -> Attained | None:
    """The test whose share is the attainment: the first; where limits are on parts of a mix, the
    test that is worst off, and of equal ones the least certain. None without tests.
    """
    if not tests:
        return None
    if tests[0].part is None:
        return tests[0]
    return min(tests, key=_margins)


class _Margins(NamedTuple):
    """How far a share, and the lower end of its interval, lie above the target."""

    estimate: float
    lower: float


def _margins(test: Attained) -> _Margins:
    return _Margins(test.share.estimate - test.target, test.share.lower - test.target)


def attainment_of(tests: Sequence[Attained]) -> Interval | None:
    """The share that met the test that decides, see ``deciding_test``; None without tests."""
    test = deciding_test(tests)
    return test.share if test is not None else None


def attained(verdicts: Sequence[Verdicts], starts: Sequence[int] = ()) -> tuple[Attained, ...]:
    """The results of all tests of an SLO over some repeats; empty where a test has no requests.

    ``starts``: see share_interval.
    """
    results: list[Attained] = []
    for tests in zip(*(of_repeat.tests for of_repeat in verdicts), strict=True):
        share = share_interval([test.met for test in tests], starts)
        if share is None:
            return ()
        results.append(Attained(tests[0].name, share, tests[0].target, tests[0].part))
    return tuple(results)


def attained_by(repeats: Sequence[Repeat], slo_index: int) -> tuple[Attained, ...]:
    """The results of all tests of one SLO over some repeats; empty without requests.

    Where repeats were simulated, the intervals show the model's error.
    """
    starts = [repeat.head.start for repeat in repeats]
    results = attained([repeat.verdicts[slo_index] for repeat in repeats], starts)
    if not any(repeat.head.simulated for repeat in repeats):
        return results
    all_bounds = [repeat.bounds for repeat in repeats if repeat.bounds is not None]
    lowest = _share_by_test([bounds.if_slower[slo_index] for bounds in all_bounds])
    highest = _share_by_test([bounds.if_faster[slo_index] for bounds in all_bounds])
    simulated = []
    for result in results:
        lower = lowest.get(result.name, math.nan)
        upper = highest.get(result.name, math.nan)
        share = interval_of_model(result.share.estimate, lower, upper)
        simulated.append(replace(result, share=share))
    return tuple(simulated)


def _share_by_test(verdicts: Sequence[Verdicts]) -> dict[str, float]:
    """The share that met each test, by the test's name; empty without requests."""
    return {result.name: result.share.estimate for result in attained(verdicts)}


@dataclass(frozen=True)
class StoredPoint:
    """One load level of one workload on one deployment, over all its repeats."""

    deployment: StoredDeployment
    repeats: tuple[Repeat, ...]
    _figures: _Readable[Figures]
    agreement: Agreement = UNKNOWN  # of its deployment with the model's reference
    # of a simulated point: the most output tokens/s that its deployment can give, see _with_peaks
    peak_throughput: float = 0.0
    _part_figures: _Readable[tuple[PartFigures, ...]] | None = None

    @property
    def head(self) -> PointHead:
        """The row of the first repeat, which stands for what all repeats share."""
        return self.repeats[0].head

    @cached_property
    def used_repeats(self) -> tuple[Repeat, ...]:
        """The repeats that the figures of the point come from."""
        return _repeats_to_use(self.repeats)

    def named(self, workload: str | None) -> StoredPoint:
        """The point under the name that its workload has now; renaming changes no measurement."""
        if workload is None or workload == self.head.workload:
            return self
        return self._with_heads(
            [replace(repeat.head, workload=workload) for repeat in self.repeats]
        )

    def of_experiment(self, name: str) -> StoredPoint:
        """The point as one of another experiment, in which it is shown."""
        return self._with_heads([replace(repeat.head, experiment=name) for repeat in self.repeats])

    def _with_heads(self, heads: Sequence[PointHead]) -> StoredPoint:
        """The point with another row of ``points`` for each of its repeats."""
        repeats = [
            replace(repeat, head=head) for repeat, head in zip(self.repeats, heads, strict=True)
        ]
        return replace(self, repeats=tuple(repeats))

    @cached_property
    def validity(self) -> str:
        """The verdict on the point.

        It is ``broken_output`` if any repeat has that verdict: the prompts of the other repeats may
        just not have shown it. Else it is that of the first valid used repeat, or of the first used
        one where none is valid. Where no repeat is used, all repeats take their place.

        A point that would be ``valid`` is ``failing`` if more than 5 % of the requests of its valid
        used repeats failed. Requests that this program cut off do not count for this, nor do
        repeats in which the engine fell behind, since the load itself may have ended requests.
        """
        if self._broken_output:
            return BROKEN
        repeats = self.used_repeats or self.repeats
        valid = [repeat for repeat in repeats if repeat.valid]
        deciding = valid[0] if valid else repeats[0]
        requests = [repeat.ended_requests for repeat in self.used_repeats if repeat.valid]
        return validity_of(deciding.head.validity, requests)

    @property
    def reasons(self) -> list[str]:
        """The reasons for its validity, from every repeat that decides it.

        Where the reasons of several repeats differ only in their figures, the first one is taken.
        """
        reasons: list[str] = []
        for repeat in self._broken_output or self.used_repeats or self.repeats:
            # reasons of one repeat are all kept
            of_earlier_repeats = {_without_figures(reason) for reason in reasons}
            for reason in repeat.head.validity_reasons:
                if _without_figures(reason) not in of_earlier_repeats:
                    reasons.append(reason)
        return reasons

    @property
    def _broken_output(self) -> tuple[Repeat, ...]:
        """The repeats whose verdict is ``broken_output``."""
        return tuple(
            repeat for repeat in self.repeats if repeat.ok and repeat.head.validity == BROKEN
        )

    @property
    def engine_failures(self) -> tuple[Repeat, ...]:
        """Its repeats that failed because of the engine; a level with one of them does not hold."""
        return tuple(repeat for repeat in self.repeats if repeat.engine_failed)

    @property
    def starts(self) -> tuple[int, ...]:
        """The engine start on which each used repeat was measured."""
        return tuple(repeat.head.start for repeat in self.used_repeats)

    @property
    def emulated(self) -> bool:
        return any(repeat.head.emulated for repeat in self.repeats)

    @property
    def simulated(self) -> bool:
        """Whether a model computed it in virtual time: nothing was measured."""
        return any(repeat.head.simulated for repeat in self.repeats)

    @property
    def source(self) -> str | None:
        """The other tool that measured it, with its version; None: this program did."""
        return self.head.source

    @property
    def model_error(self) -> ErrorFactors | None:
        """How far off the model is that simulated the point; None: unknown, or it was measured."""
        return self.deployment.prediction.error_factors if self.simulated else None

    @property
    def figures(self) -> Figures:
        """The figures of the used repeats pooled.

        Where all repeats failed, the figures of all of them: these have counts but no latencies.
        """
        return self._figures.read()

    @property
    def part_figures(self) -> tuple[PartFigures, ...]:
        """The figures of each part of a mix, over the same repeats; empty for other workloads."""
        return () if self._part_figures is None else self._part_figures.read()

    def figures_of(self, part: str | None) -> Figures | None:
        """The figures of a part of a mix, or of all requests; None where no request is of it."""
        return self.figures if part is None else _figures_of_part(self.part_figures, part)

    @property
    def requests(self) -> RequestTotals:
        """The requests that ``figures`` are about. They are counted without decoding figures."""
        totals = [repeat.requests for repeat in self.used_repeats or self.repeats]
        return RequestTotals(
            scheduled=sum(each.scheduled for each in totals),
            ok=sum(each.ok for each in totals),
            failed=sum(each.failed for each in totals),
        )

    @property
    def offered_rate(self) -> float | None:
        """Requests/s that were due in the steady windows of the used repeats; None: not known, or
        no rate was asked for.
        """
        windows: list[WindowOffer] = []
        for repeat in self.used_repeats:
            windows.append(
                WindowOffer(
                    due=repeat.requests.scheduled,
                    rate=repeat.head.offered_rate,
                    window_s=repeat.head.window_s,
                )
            )
        return pooled_rate(windows)

    @property
    def was_sent_as_asked(self) -> bool:
        """Whether requests were due at the rate asked for, apart from chance and a few percent."""
        return is_as_asked(self.offered_rate, self.head.level, self.requests.scheduled)

    @cached_property
    def efficiency(self) -> EfficiencyResult:
        """How much of its devices' peaks it used, or why that is not known."""
        if not self.used_repeats:
            return MissingFigures.NOTHING_SERVED
        work = self.deployment.work
        if isinstance(work, MissingWork):
            return work  # before figures are decoded
        engine_sides = [repeat.engine_side for repeat in self.used_repeats]
        energy = self.energy
        counted = NO_SHARES
        if energy is not None:
            counted = CountedShares(energy.dram_share, energy.tensor_share)
        return efficiency_of(work, self.figures, engine_sides, counted)

    @cached_property
    def energy(self) -> PointEnergy | None:
        """The energy of its tokens; None where the GPUs of a repeat were not read."""
        energies = []
        for repeat in self.used_repeats:
            if repeat.device_side is None:
                return None
            energies.append(RepeatEnergy(repeat.device_side, repeat.figures))
        return point_energy(energies)

    @cached_property
    def attained_by_slo(self) -> tuple[tuple[Attained, ...], ...]:
        """The results of the tests of each SLO; empty without requests."""
        if not self.used_repeats:
            return ()
        slos = len(self.used_repeats[0].verdicts)
        return tuple(attained_by(self.used_repeats, slo_index) for slo_index in range(slos))

    def under(self, slo_index: int) -> StoredPoint:
        """The point as if it had been judged by one of its SLOs alone."""
        repeats = tuple(repeat.under(slo_index) for repeat in self.repeats)
        return replace(self, repeats=repeats)

    @property
    def tests(self) -> tuple[Attained, ...]:
        """The results under the first SLO; empty without an SLO or without requests."""
        return self.attained_by_slo[0] if self.attained_by_slo else ()

    @property
    def attainment(self) -> Interval | None:
        """The share that met the limits, see ``attainment_of``; None without tests."""
        return attainment_of(self.tests)

    def output_token_throughput(self) -> Interval | None:
        """Output tokens/s with an interval, which shows the model's error where it was simulated.

        Where all requests are due at once, the tenths of a window are not alike: the engine first
        computes prompts and at last drains. Only repeats then show how much the throughput varies.
        """
        batches = [repeat.output_tokens for repeat in self.used_repeats]
        if math.isinf(self.head.level):
            batches = [of_repeat.as_one() for of_repeat in batches]
        rate = rate_interval(batches, self.starts)
        if rate is None or not self.simulated:
            return rate
        factor = self.model_error.tpot if self.model_error else math.nan
        return self.throughput_by_model(rate.estimate, factor)

    def throughput_by_model(self, tokens_per_s: float, factor: float) -> Interval:
        """A simulated throughput with its interval. ``factor``: how far off the model is.

        At a request rate that the engine keeps up with, the throughput is what the requests ask
        for, even if the engine is faster, so the estimate is also the upper bound. The lower bound
        is the engine's peak divided by the model's error, where that is less than the estimate.
        Neither holds where a faster engine would have been sent more.
        """
        asks_for_less = self.head.control == "request_rate" and not math.isinf(self.head.level)
        keeps_up = asks_for_less and self.validity != BACKLOG
        if keeps_up and not self._faster_would_get_more:
            peak = max(self.peak_throughput, tokens_per_s)
            return interval_of_model(tokens_per_s, min(peak / factor, tokens_per_s), tokens_per_s)
        return interval_of_model(tokens_per_s, tokens_per_s / factor, tokens_per_s * factor)

    @property
    def _faster_would_get_more(self) -> bool:
        """Whether a faster engine would have been sent more in the same time: later turns waited
        for answers. Of drawn sessions no more are due than the rate asks for; what a part of a
        trace holds is not known.
        """
        has_sessions = any(repeat.head.later_turns_share for repeat in self.used_repeats)
        return has_sessions and (self.head.arrivals == "trace" or not self.was_sent_as_asked)


def repeat_of(attempt: AttemptData, slo: Slo) -> Repeat:
    """Makes a repeat of an attempt that counts, judged by one SLO.

    Raises InputError where a limit needs token_events that are not there.
    """
    verdicts: tuple[Verdicts, ...] = ()
    if attempt.status == "ok":
        verdicts = (judge(stored_values(attempt), slo),)
    return Repeat(
        head=attempt.point,
        output_tokens=Batches(np.asarray(attempt.batch_tokens), np.asarray(attempt.batch_s)),
        verdicts=verdicts,
        attempts=1,
        requests=attempt.figures.requests,
        ended_requests=ended_requests(attempt.figures.requests, attempt.figures.errors),
        _figures=_RecordAtHand(attempt.figures),
        _engine_side=_RecordAtHand(attempt.engine_side),
        _device_side=_RecordAtHand(attempt.device_side),
        _part_figures=_RecordAtHand(attempt.part_figures),
    )


def point_of(deployment: StoredDeployment, repeats: Sequence[Repeat]) -> StoredPoint:
    """Makes a point of these repeats. Its figures are those of the first repeat, not pooled."""
    figures = _RecordAtHand(repeats[0].figures)
    part_figures = _RecordAtHand(repeats[0].part_figures)
    return StoredPoint(deployment, tuple(repeats), figures, _part_figures=part_figures)


def load_points(store: Store, *slos: Slo) -> list[StoredPoint]:
    """Every point of an experiment, judged by these SLOs, sorted by deployment, workload and level.

    Of each measurement, the first ok attempt that nothing spoilt counts, else the first ok attempt,
    else the latest failed one. Attempts with damaged files are left out (``store.damage``): when
    one is found, everything is read again without it. Raises DamagedError where a file is damaged
    that cannot be left out.
    """
    while True:
        damaged_before = len(store.damage)
        points: list[StoredPoint] = []
        try:
            points = _points_of(store, slos)
        except DamagedError:
            if len(store.damage) == damaged_before:
                raise  # the damaged file cannot be left out
        if len(store.damage) == damaged_before:
            return sorted(points, key=_order)


def compute_ahead(store: Store) -> None:
    """Computes and stores what later answers need, as far as possible; else logs a warning."""
    try:
        load_points(store)
    except (ResultsError, ValueError) as error:  # nothing is lost: readers compute what is missing
        _log.warning("not everything that answers need was computed: %s", error)


def _order(point: StoredPoint) -> tuple[str, str, str, float]:
    head = point.head
    return point.deployment.label, head.workload, head.control, head.level


def _points_of(store: Store, slos: Sequence[Slo]) -> list[StoredPoint]:
    committed = store.commits()  # oldest first
    attempts = _AttemptColumns(slos)
    for rows in computed(store, _counting(store, committed), attempts.columns):
        attempts.add(rows)
    deployments = dict(attempts.deployments)
    unknown = attempts.deployment_ids - set(deployments)
    if unknown:  # older versions stored a deployment's row with its launch only
        deployments |= _launched_deployments(store, unknown)
    tries = Counter(attempt.measurement_id for attempt in committed)
    repeats = attempts.repeats(deployments, tries)
    groups = values_by_key((repeat.head.point_id, repeat) for repeat in repeats).values()
    pooled_figures = _pooled_figures(store, [_repeats_to_use(group) or group for group in groups])
    points = []
    for group, pooled_of_group in zip(groups, pooled_figures, strict=True):
        deployment = _deployment(deployments, group[0].head.deployment_id)
        points.append(
            StoredPoint(
                deployment,
                tuple(group),
                pooled_of_group.figures,
                _part_figures=pooled_of_group.part_figures,
            )
        )
    return _with_peaks(points) if any(point.simulated for point in points) else points


def _with_peaks(points: Sequence[StoredPoint]) -> list[StoredPoint]:
    """The points, each with its peak: the most output tokens/s at any request rate.

    The peak is that of the point's deployment and workload. Where it fell behind at no rate, more
    load was not asked for, and the peak is at least what its prediction says it holds.
    """
    peaks: dict[_Served, float] = {}
    predicted: dict[_Served, float] = {}
    behind: set[_Served] = set()
    for point in points:
        # no point has its peak yet; only the lower bound needs it, and here the estimate is used
        rate = point.output_token_throughput()
        if point.head.control == "request_rate" and rate is not None:
            served = _Served(point.head.deployment_id, point.head.workload)
            peaks[served] = max(peaks.get(served, 0.0), rate.estimate)
            prediction = point.deployment.prediction
            predicted[served] = prediction.highest_capacity(point.head.workload)
            if point.validity == BACKLOG:
                behind.add(served)
    for served, throughput in predicted.items():
        if served not in behind:
            peaks[served] = max(peaks[served], throughput)
    return [
        replace(
            point,
            peak_throughput=peaks.get(_Served(point.head.deployment_id, point.head.workload), 0.0),
        )
        for point in points
    ]


@dataclass(frozen=True, slots=True)
class _Served:
    """A workload on a deployment."""

    deployment_id: str
    workload: str


def _counting(store: Store, committed: Sequence[Committed]) -> list[AttemptIds]:
    """The ids of the attempts that count. ``committed``: all attempts, oldest first."""
    latest = {attempt.measurement_id: attempt for attempt in committed}
    counting = latest | store.counting(committed)  # without an ok attempt the latest counts
    return sorted(attempt.ids for attempt in counting.values())


def _launched_deployments(store: Store, ids: Container[str]) -> dict[str, StoredDeployment]:
    """Deployments by id, from the rows that were stored with their launches."""
    rows = rows_of(store.read_manifests("deployments", store.manifests("launch")), DeploymentRow)
    return {row.deployment_id: stored_deployment(row) for row in rows if row.deployment_id in ids}


def _deployment(
    deployments: Mapping[str, StoredDeployment], deployment_id: str
) -> StoredDeployment:
    """A deployment; where its row was never stored, one that has only the id."""
    return deployments.get(deployment_id) or unknown_deployment(deployment_id)


@dataclass(frozen=True, slots=True)
class _CountingAttempt:
    """What is kept as a record of an attempt that counts; its figures stay in Arrow."""

    head: PointHead
    output_tokens: Batches
    verdicts: tuple[Verdicts, ...]
    bounds: VerdictBounds | None


class _AttemptColumns:
    """Gathers the attempts that count, from the columns of AttemptData that are needed.

    Figures stay in Arrow, because they are large; the rest is kept as records.
    """

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self._latencies = list(dict.fromkeys(limit.of for slo in slos for limit in slo.limits))
        of_commit = arrow_schema(Committed).names
        of_attempt = ["point", "deployment", *_LAZY, "batch_tokens", "batch_s"]
        of_limits = [f"request_{name}_s" for name in self._latencies]
        if slos:
            of_limits.insert(0, "request_ok")
        self._needs_parts = any(slo.parts is not None for slo in slos)
        if self._needs_parts:
            of_limits += ["request_part", "part_names"]
        self.columns = [*of_commit, *of_attempt, *of_limits]
        self.deployments: dict[str, StoredDeployment] = {}
        # by deployment: when the attempt that brought its oldest row was created
        self._oldest_unix_ns: dict[str, int] = {}
        self._attempts: list[_CountingAttempt] = []
        self._figures = [arrow_schema(AttemptData).empty_table().select(_LAZY)]

    def add(self, rows: pa.Table) -> None:
        """Adds attempts. ``rows``: must have the columns of ``self.columns``."""
        points = rows_of(_unnested(rows["point"]), PointHead)
        tokens, seconds = _split(rows["batch_tokens"]), _split(rows["batch_s"])
        batches = map(Batches, tokens, seconds)
        self._add_deployments(rows, points)
        verdicts, bounds = self._verdicts(rows), self._bounds(rows, points)
        self._attempts += map(_CountingAttempt, points, batches, verdicts, bounds)
        self._figures.append(rows.select(_LAZY))

    def _add_deployments(self, rows: pa.Table, points: Sequence[PointHead]) -> None:
        """Keeps the oldest row of each deployment: in later ones, price and label may be others."""
        row_of_deployment: dict[str, int] = {}
        has_deployment = rows["deployment"].is_valid().to_pylist()
        for row, committed in enumerate(rows_of(rows, Committed)):
            deployment_id = points[row].deployment_id
            oldest_unix_ns = self._oldest_unix_ns.get(deployment_id, math.inf)
            if has_deployment[row] and committed.created_unix_ns < oldest_unix_ns:
                self._oldest_unix_ns[deployment_id] = committed.created_unix_ns
                row_of_deployment[deployment_id] = row
        oldest = pa.array(row_of_deployment.values(), pa.int64())
        for described in rows_of(_unnested(rows["deployment"].take(oldest)), DeploymentRow):
            self.deployments[described.deployment_id] = stored_deployment(described)

    @property
    def deployment_ids(self) -> set[str]:
        """Ids of the deployments of all attempts."""
        return {attempt.head.deployment_id for attempt in self._attempts}

    def repeats(
        self, deployments: Mapping[str, StoredDeployment], tries: Mapping[str, int]
    ) -> list[Repeat]:
        """The attempts as repeats, sorted by deployment, workload, level and repeat.

        ``tries``: how many attempts each measurement had.
        """

        def order(row: int) -> tuple[str, str, float, str, int]:
            head = self._attempts[row].head
            label = _deployment(deployments, head.deployment_id).label
            return label, head.workload, head.level, head.point_id, head.repeat

        rows_in_order = sorted(range(len(self._attempts)), key=order)
        # Drop each unsorted table before the next one is made, and give their memory back before
        # records are decoded. Of several chunks, ``take`` would make one more table.
        columns = pa.concat_tables(self._figures).combine_chunks()
        self._figures = []
        pa.default_memory_pool().release_unused()
        columns = columns.take(pa.array(rows_in_order, pa.int64()))
        pa.default_memory_pool().release_unused()
        figures = LazyRecords[Figures](columns["figures"], Figures)
        engine_sides = LazyRecords[EngineSide | None](columns["engine_side"], EngineSide)
        device_sides = LazyRecords[DeviceSide | None](columns["device_side"], DeviceSide)
        part_figures = LazyRecords[tuple[PartFigures, ...]](columns["part_figures"], PARTS)
        totals = rows_of(_unnested(pc.struct_field(columns["figures"], "requests")), RequestTotals)
        errors = pc.struct_field(columns["figures"], "errors")
        cut_off = pc.map_lookup(errors, ErrorClass.ABORTED, "first").fill_null(0).to_pylist()
        repeats = []
        for place, row in enumerate(rows_in_order):
            attempt = self._attempts[row]
            repeats.append(
                Repeat(
                    head=attempt.head,
                    output_tokens=attempt.output_tokens,
                    verdicts=attempt.verdicts,
                    attempts=tries[attempt.head.measurement_id],
                    requests=totals[place],
                    ended_requests=without_cut_off(totals[place], cut_off[place]),
                    _figures=_StoredRecord(figures, place),
                    _engine_side=_StoredRecord(engine_sides, place),
                    _device_side=_StoredRecord(device_sides, place),
                    _part_figures=_StoredRecord(part_figures, place),
                    bounds=attempt.bounds,
                )
            )
        return repeats

    def _bounds(self, rows: pa.Table, points: Sequence[PointHead]) -> list[VerdictBounds | None]:
        """The verdicts on each attempt at both ends of the model's error; None where unknown."""
        factors: list[ErrorFactors | None] = []
        for head in points:
            deployment = _deployment(self.deployments, head.deployment_id)
            factors.append(deployment.prediction.error_factors if head.simulated else None)
        if not any(factors):
            return [None] * len(points)
        exact = ErrorFactors(1.0, 1.0)
        longer = [of_attempt or exact for of_attempt in factors]
        shorter = [ErrorFactors(1 / of_attempt.ttft, 1 / of_attempt.tpot) for of_attempt in longer]
        verdicts_if_slower = self._verdicts(rows, longer)
        verdicts_if_faster = self._verdicts(rows, shorter)
        bounds: list[VerdictBounds | None] = []
        for place, of_attempt in enumerate(factors):
            if of_attempt is None:
                bounds.append(None)
            else:
                bounds.append(VerdictBounds(verdicts_if_slower[place], verdicts_if_faster[place]))
        return bounds

    def _verdicts(
        self, rows: pa.Table, factors: Sequence[ErrorFactors] = ()
    ) -> list[tuple[Verdicts, ...]]:
        """The verdicts on each attempt; none on failed ones.

        The requests of all attempts are judged at once, which is faster. ``factors``: what the
        latencies of each attempt are multiplied by.
        """
        if not self._slos:
            return [()] * rows.num_rows
        is_ok = [status == "ok" for status in rows["status"].to_pylist()]
        judged = rows.filter(pa.array(is_ok, pa.bool_()))
        seconds = self._latencies_in_seconds(judged)
        requests = _lengths(judged["request_ok"])
        if factors:
            factors_of_judged = [
                of_attempt for of_attempt, ok in zip(factors, is_ok, strict=True) if ok
            ]
            seconds = _scaled_latencies(seconds, factors_of_judged, requests)
        parts = _joined_parts(judged, requests) if self._needs_parts else None
        values = LimitValues(_flat(judged["request_ok"]), seconds, parts)
        ends = np.cumsum(requests).tolist()
        verdicts_by_slo = [judge_each(values, slo, ends) for slo in self._slos]
        verdicts: list[tuple[Verdicts, ...]] = [()] * rows.num_rows
        ok_rows = np.flatnonzero(is_ok).tolist()
        for row, *verdicts_of_row in zip(ok_rows, *verdicts_by_slo, strict=True):
            verdicts[row] = tuple(verdicts_of_row)
        return verdicts

    def _latencies_in_seconds(self, rows: pa.Table) -> dict[str, Floats]:
        """By name, the latencies of the requests of all attempts, one attempt after the other.

        Latencies that some attempt does not have are left out.
        """
        seconds: dict[str, Floats] = {}
        for name in self._latencies:
            column = rows[f"request_{name}_s"]
            if not column.null_count:
                seconds[name] = _flat(column)
        return seconds


def _joined_parts(rows: pa.Table, requests: Ints) -> RequestParts:
    """The parts of the requests of all attempts, one attempt after the other. ``requests``: how many
    each attempt has.
    """
    code_of_name: dict[str, int] = {}
    codes: list[Ints] = []
    parts = zip(rows["request_part"], rows["part_names"].to_pylist(), requests, strict=True)
    for part_codes, names, count in parts:
        if not part_codes.is_valid:
            codes.append(np.full(count, -1))
            continue
        of_attempt = RequestParts(tuple(names), part_codes.values.to_numpy(zero_copy_only=False))
        codes.append(of_attempt.recoded(code_of_name))
    return RequestParts(tuple(code_of_name), np.concatenate([np.zeros(0, np.int64), *codes]))


def _scaled_latencies(
    seconds: Mapping[str, Floats], factors: Sequence[ErrorFactors], requests: Ints
) -> dict[str, Floats]:
    """Latencies times the factors of their attempts. ``requests``: how many each attempt has."""
    ttft = np.repeat([of_attempt.ttft for of_attempt in factors], requests)
    # all other latencies are mostly decode steps, whose error is that of TPOT
    others = np.repeat([of_attempt.tpot for of_attempt in factors], requests)
    return {
        name: latencies * (ttft if "ttft" in name else others)
        for name, latencies in seconds.items()
    }


@dataclass(frozen=True, slots=True)
class _PooledFigures:
    """The figures of some repeats together: of all requests, and of each part of a mix."""

    figures: _Readable[Figures]
    part_figures: _Readable[tuple[PartFigures, ...]] | None


def _pooled_figures(store: Store, groups: Sequence[Sequence[Repeat]]) -> list[_PooledFigures]:
    """The pooled figures of each group; those that are not stored yet are computed.

    The figures of a repeat that is alone in its group are its own, without pooling.
    """
    groups_to_pool = [group for group in groups if len(group) > 1]
    pools = iter(_pools(store, groups_to_pool))
    figures: list[_PooledFigures] = []
    for group in groups:
        if len(group) > 1:
            figures.append(next(pools))
        else:
            figures.append(_PooledFigures(group[0]._figures, group[0]._part_figures))
    return figures


def _pools(store: Store, groups: Sequence[Sequence[Repeat]]) -> list[_PooledFigures]:
    """The pooled figures of each of these groups of several repeats."""
    heads = [[repeat.head for repeat in group] for group in groups]
    empty = arrow_schema(PooledFigures).empty_table()
    empty = empty.select(["attempt_ids", "figures", "part_figures"])
    rows = pa.concat_tables([empty, *pooled(store, heads)], promote_options="permissive")
    row_of_key = {key: row for row, key in enumerate(rows["attempt_ids"].to_pylist())}
    row_of_group: list[int] = []
    for group in groups:
        key = pool_key(repeat.head.attempt_id for repeat in group)
        row_of_group.append(row_of_key[key])
    # in the order of the groups, since neighbours are decoded together
    in_order = rows.take(pa.array(row_of_group, pa.int64()))
    figures = LazyRecords[Figures](in_order["figures"], Figures)
    part_figures = LazyRecords[tuple[PartFigures, ...]](in_order["part_figures"], PARTS)
    return [
        _PooledFigures(_StoredRecord(figures, place), _StoredRecord(part_figures, place))
        for place in range(len(groups))
    ]


def _repeats_to_use(repeats: Sequence[Repeat]) -> tuple[Repeat, ...]:
    """The repeats that show how the engine did; where none does, those that are ok."""
    showing_engine = tuple(repeat for repeat in repeats if repeat.shows_engine)
    return showing_engine or tuple(repeat for repeat in repeats if repeat.ok)


def _without_figures(reason: str) -> str:
    return _FIGURE.sub("", reason)


def _unnested(column: pa.ChunkedArray) -> pa.Table:
    """The fields of a struct column as a table."""
    return pa.Table.from_batches(
        [pa.RecordBatch.from_struct_array(chunk) for chunk in column.chunks],
        pa.schema(list(column.type)),
    )


def _flat(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a list column, one list after the other."""
    return np.asarray(column.combine_chunks().flatten().to_numpy(zero_copy_only=False))


def _lengths(column: pa.ChunkedArray) -> Ints:
    """How many values each list of a list column has."""
    return np.asarray(
        column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False), np.int64
    )


def _split(column: pa.ChunkedArray) -> list[Floats]:
    """The lists of a list column, one array each."""
    if not len(column):
        return []
    ends = np.cumsum(_lengths(column))
    return np.split(_flat(column), ends[:-1])
