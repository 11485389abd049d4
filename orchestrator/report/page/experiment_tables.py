"""The tables on one experiment in the page, which need no script."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.cost import MillionTokens, usd_per_million
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.energy import PointEnergy
from orchestrator.analysis.launches import load_launches
from orchestrator.analysis.output_agreement import Agreement
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.spending import ExperimentSpending, spending_of
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.answers import Excluded, Exclusion
from orchestrator.catalog.work import Peaks
from orchestrator.plan.model import Plan
from orchestrator.report.adapter_text import adapter_notes
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.launch import LaunchDocument, launch_documents
from orchestrator.report.documents.part import PartDocument, part_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.documents.workload import WorkloadDocument, workload_documents
from orchestrator.report.efficiency_words import efficiency_note_text, energy_note_text
from orchestrator.report.guidance_text import guidance_notes
from orchestrator.report.page.environment import MeasuredWith, measured_with
from orchestrator.report.selection import AnsweredExperiment, JudgedExperiment
from orchestrator.report.shortlist_words import left_out_reasons
from orchestrator.report.words import experiment_notes
from orchestrator.results.validity import Validity

FAILED = "failed"
# titles of figures of analysis.launches.FIGURES
LAUNCH_FIGURES = {
    "weight_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "kv_cache_tokens": "KV tokens",
    "max_concurrency": "concurrency",
}
MOST_ROWS = 200  # of every table but that of all points: a large sweep would fill the page


@dataclass(frozen=True, slots=True)
class VerdictCount:
    """How many points have a verdict.

    ``example``: the reasons of the first such point; empty: none are stored.
    """

    verdict: str
    points: int
    example: str


@dataclass(frozen=True, slots=True)
class LeftOutCount:
    """How many levels, or whole deployments, are in no ranking for one reason.

    ``verdict``: that of levels that are not valid; None: another reason.
    """

    reason: Exclusion
    verdict: str | None
    number: int


@dataclass(frozen=True, slots=True)
class DeploymentAgreement:
    """How far the outputs of one deployment equal its reference's."""

    label: str
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class EfficientPoint:
    """A point whose efficiency is known. ``energy``: None: its GPUs were not read."""

    document: PointDocument
    efficiency: Efficiency
    usd: MillionTokens
    energy: PointEnergy | None


@dataclass(frozen=True, slots=True)
class EfficiencyNoteCount:
    """How many points have a note on their efficiency or their energy.

    ``is_unknown``: it says why they have none.
    """

    text: str
    is_unknown: bool
    points: int


@dataclass(frozen=True, slots=True)
class UnlistedDeployment:
    """A deployment that a shortlist left out, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExperimentSection:
    """What the page shows of one experiment.

    ``parts``: the parts of mixes at its points. ``more_parts``: how many more there are, for which the
    page has no room. ``predicted``: points with a prediction. ``more_predicted``: how many more there are, for which
    the page has no room. ``found``: how they were predicted: ``predicted`` or ``simulated``.
    ``costs``: what constraints and adapters cost at its points, in sentences.
    ``unlisted``: deployments that a shortlist left out. ``more_unlisted``: how many more there are,
    for which the page has no room.
    """

    name: str
    points: tuple[PointDocument, ...]
    parts: tuple[PartDocument, ...]
    more_parts: int
    verdicts: tuple[VerdictCount, ...]
    costs: tuple[str, ...]
    efficient: tuple[EfficientPoint, ...]
    efficiency_notes: tuple[EfficiencyNoteCount, ...]
    spending: ExperimentSpending | None
    predicted: tuple[PointDocument, ...]
    more_predicted: int
    found: str
    unlisted: tuple[UnlistedDeployment, ...]
    more_unlisted: int
    capacities: tuple[CapacityDocument, ...]
    launches: tuple[LaunchDocument, ...]
    agreements: tuple[DeploymentAgreement, ...]
    environment: MeasuredWith
    notes: tuple[str, ...]
    workloads: tuple[WorkloadDocument, ...] = ()

    @property
    def peaks(self) -> list[Peaks]:
        """The peaks of its devices, each once."""
        return list(dict.fromkeys(row.efficiency.peaks for row in self.efficient))

    @property
    def launch_figures(self) -> dict[str, str]:
        """By name, the titles of those LAUNCH_FIGURES that are known of some launch."""
        shown = {}
        for name, title in LAUNCH_FIGURES.items():
            figures = [launch.figures[name] for launch in self.launches]
            if any(each.predicted is not None or each.reported is not None for each in figures):
                shown[name] = title
        return shown

    @property
    def is_simulated(self) -> bool:
        return any(document.point.simulated for document in self.points)

    @property
    def are_answers_made_up(self) -> bool:
        """Whether no output can be compared: all points were emulated or simulated."""
        points = [document.point for document in self.points]
        return bool(points) and all(point.emulated or point.simulated for point in points)


def experiment_section(judged: JudgedExperiment, answered: AnsweredExperiment) -> ExperimentSection:
    """What the page shows of one experiment. ``answered``: the same experiment, ranked."""
    experiment = judged.experiment
    current = judged.points.current
    knees = experiment.knees(judged.points)
    points = [point_document(point, judged.slos, knees=knees) for point in current]
    parts = [
        part
        for document in points
        if document.point.used_repeats
        for part in part_documents(document)
    ]
    predicted = [document for document in points if document.prediction is not None]
    is_simulated = any(each.point.deployment.prediction.simulated for each in predicted)
    reasons = {} if experiment.plan is None else left_out_reasons(experiment.plan)
    unlisted = [UnlistedDeployment(label, reason) for label, reason in reasons.items()]
    launches = launch_documents(load_launches(experiment.store))
    return ExperimentSection(
        name=experiment.name,
        points=tuple(points),
        parts=tuple(parts[:MOST_ROWS]),
        more_parts=max(len(parts) - MOST_ROWS, 0),
        verdicts=tuple(verdict_counts(current)),
        costs=(*guidance_notes(points), *adapter_notes(points)),
        efficient=tuple(_efficient(points)),
        efficiency_notes=tuple(efficiency_note_counts(current)),
        spending=spending_of(experiment.store, current),
        predicted=tuple(predicted[:MOST_ROWS]),
        more_predicted=max(len(predicted) - MOST_ROWS, 0),
        found="simulated" if is_simulated else "predicted",
        unlisted=tuple(unlisted[:MOST_ROWS]),
        more_unlisted=max(len(unlisted) - MOST_ROWS, 0),
        capacities=tuple(capacity_documents(experiment, current, judged.slos)),
        launches=tuple(launches),
        agreements=tuple(_agreements(current)),
        environment=measured_with(experiment, current, launches),
        notes=tuple(
            experiment_notes(experiment, judged.points, answered.unanswered, answered.ranked_apart)
        ),
        workloads=tuple(_workloads(experiment.plan)),
    )


def _workloads(plan: Plan | None) -> Iterator[WorkloadDocument]:
    if plan is not None:
        yield from workload_documents([load.workload for load in plan.loads], plan.seed)


def verdict_counts(points: Iterable[StoredPoint]) -> Iterator[VerdictCount]:
    """How many points have each verdict, the commonest first."""
    by_verdict = values_by_key((_verdict(point), point) for point in points)
    in_order = sorted(by_verdict)
    in_order.sort(key=lambda verdict: len(by_verdict[verdict]), reverse=True)
    for verdict in in_order:
        alike = by_verdict[verdict]
        yield VerdictCount(verdict, len(alike), _example(alike))


def _verdict(point: StoredPoint) -> str:
    """Its validity; FAILED for a point that has no other verdict because every attempt failed."""
    has_failed = not point.used_repeats and point.validity == Validity.UNMEASURED
    return FAILED if has_failed else point.validity


def _example(points: Sequence[StoredPoint]) -> str:
    for point in points:
        if point.validity == "valid":
            return ""
        failures = [repeat.head.reason for repeat in point.repeats if repeat.head.reason]
        reasons = failures if not point.used_repeats and failures else point.reasons
        if reasons:
            return f"{point.deployment.label}: {'; '.join(dict.fromkeys(reasons))}"
    return ""


def left_out_counts(excluded: Iterable[Excluded]) -> Iterator[LeftOutCount]:
    """How many levels or deployments are left out for each reason, the commonest first."""
    counts: Counter[tuple[Exclusion, str | None]] = Counter()
    for each in excluded:
        verdict = None
        if each.reason is Exclusion.NOT_VALID and each.evidence is not None:
            verdict = each.evidence.validity
        counts[each.reason, verdict] += 1
    for (reason, verdict), number in counts.most_common():
        yield LeftOutCount(reason, verdict, number)


def _efficient(documents: Iterable[PointDocument]) -> Iterator[EfficientPoint]:
    for document in documents:
        point = document.point
        if isinstance(point.efficiency, Efficiency):
            usd = usd_per_million(point)
            yield EfficientPoint(document, point.efficiency, usd, point.energy)


def efficiency_note_counts(points: Iterable[StoredPoint]) -> Iterator[EfficiencyNoteCount]:
    """The notes on efficiency and energy, the commonest first; without those of failed points."""
    efficiency_notes: Counter[tuple[str, bool]] = Counter()
    energy_notes: Counter[tuple[str, bool]] = Counter()
    for point in points:
        if not point.used_repeats:
            continue
        note = efficiency_note_text(point)
        if note is not None:
            efficiency_notes[note, not isinstance(point.efficiency, Efficiency)] += 1
        note = energy_note_text(point)
        if note is not None and point.energy is not None:
            energy_notes[f"energy: {note}", point.energy.energy_j is None] += 1
    for notes in (efficiency_notes, energy_notes):
        for (text, is_unknown), number in notes.most_common():
            yield EfficiencyNoteCount(text, is_unknown, number)


def _agreements(points: Iterable[StoredPoint]) -> Iterator[DeploymentAgreement]:
    by_deployment = {point.head.deployment_id: point for point in points}
    for point in by_deployment.values():
        yield DeploymentAgreement(point.deployment.label, point.agreement)
