"""What was measured at one point: the record from which tables, JSON, CSV and frames are made."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.analysis.cost import AllocatedUsd
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import Attained, Repeat, StoredPoint, attained_by, attainment_of
from orchestrator.analysis.slo import Verdicts, is_joint_test, shares
from orchestrator.report.documents.prediction import PredictionComparison, compare_with_prediction
from orchestrator.results.records import LaunchRow, PointHead
from orchestrator.spec.load import Slo


@dataclass(frozen=True, slots=True)
class SloResult:
    """How an SLO was held over some repeats.

    ``tests``, ``verdicts``: empty if no request was due. ``window_s``: the length of the windows of
    all repeats together, in seconds.
    """

    slo: Slo
    tests: tuple[Attained, ...]
    verdicts: tuple[Verdicts, ...]
    window_s: float

    @property
    def attainment(self) -> Interval | None:
        """The share that met the limits, see ``attainment_of``; None without tests."""
        return attainment_of(self.tests)

    @property
    def is_met(self) -> bool | None:
        """Whether all tests hold; None: unknown."""
        if not self.tests:
            return None
        return all(test.share.estimate >= test.target for test in self.tests)

    @property
    def share_by_limit(self) -> dict[str, float]:
        """The share of requests that met each limit alone."""
        return shares(self.verdicts) if self.tests else {}

    @property
    def goodput(self) -> float | None:
        """Requests per second that met all limits on requests; None: the SLO has none of these."""
        has_joint = any(is_joint_test(test.name) for test in self.tests)
        if not has_joint or self.window_s <= 0:
            return None
        return sum(verdicts.requests_in_limits for verdicts in self.verdicts) / self.window_s


@dataclass(frozen=True, slots=True)
class RepeatDocument:
    """One repeat of a point."""

    repeat: Repeat
    slo_results: tuple[SloResult, ...]


@dataclass(frozen=True, slots=True)
class PointDocument:
    """One point over its repeats.

    ``is_current``: the plan still asks for it. ``is_knee``: its curve bends there. ``failed``: its
    repeats that failed. ``launch``: the engine start on which the first of these failed; None: none
    failed, or the launch was not given. ``allocated``: prices of its deployment's tokens; None: there
    are none, or they were not given.
    """

    point: StoredPoint
    slo_results: tuple[SloResult, ...]
    is_current: bool
    is_knee: bool
    failed: tuple[PointHead, ...]
    launch: LaunchRow | None
    prediction: PredictionComparison | None
    allocated: AllocatedUsd | None = None

    @property
    def repeats(self) -> list[RepeatDocument]:
        slos = [result.slo for result in self.slo_results]
        return [
            RepeatDocument(repeat, _results_of_repeat(repeat, slos))
            for repeat in self.point.repeats
        ]

    @property
    def label(self) -> str:
        return self.point.deployment.label


def point_document(
    point: StoredPoint,
    slos: Sequence[Slo] = (),
    launches: Mapping[str, LaunchRow] | None = None,
    is_current: bool = True,
    knees: Collection[str] = (),
    allocated: Mapping[str, AllocatedUsd] | None = None,
) -> PointDocument:
    """Makes the document of a point.

    ``slos``: the SLOs by which the point was judged. ``launches``: by id, the launches on which
    something failed, for the engine's log. ``knees``: ids of the points where a curve bends.
    ``allocated``: by deployment, from ``allocated_usd``.
    """
    failed = tuple(repeat.head for repeat in point.repeats if not repeat.ok)
    launch = None
    if failed and launches is not None:
        launch = launches.get(failed[0].launch_id)
    return PointDocument(
        point=point,
        slo_results=_results(point, slos),
        is_current=is_current,
        is_knee=point.head.point_id in knees,
        failed=failed,
        launch=launch,
        prediction=compare_with_prediction(point),
        allocated=(allocated or {}).get(point.head.deployment_id),
    )


def _results(point: StoredPoint, slos: Sequence[Slo]) -> tuple[SloResult, ...]:
    window_s = sum(repeat.head.window_s for repeat in point.used_repeats)
    results = []
    for index, slo in enumerate(slos):
        verdicts = tuple(repeat.verdicts[index] for repeat in point.used_repeats)
        tests = point.attained_by_slo[index] if point.used_repeats else ()
        results.append(SloResult(slo, tests, verdicts, window_s))
    return tuple(results)


def _results_of_repeat(repeat: Repeat, slos: Sequence[Slo]) -> tuple[SloResult, ...]:
    if not repeat.verdicts:
        return tuple(SloResult(slo, (), (), 0.0) for slo in slos)
    window_s = repeat.head.window_s
    return tuple(
        SloResult(slo, attained_by([repeat], index), (repeat.verdicts[index],), window_s)
        for index, slo in enumerate(slos)
    )


def per_device(throughput: Interval | None, devices: int) -> Interval | None:
    """A throughput per GPU or core; None where their number is unknown (0)."""
    return throughput.scaled(1 / devices) if throughput is not None and devices else None
