"""The answer to *which configuration is best*: the records that ``best`` and a sweep's end show."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.capacity.answers import Excluded, RankedDeployment
from orchestrator.capacity.best import Comparison
from orchestrator.report.words import (
    exclusion_text,
    model_text,
    note_texts,
    remedy_texts,
    unit_text,
    verdict_text,
)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A deployment in the ranking, with what a reader must know of it."""

    deployment: RankedDeployment
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExcludedDocument:
    """A level, or a deployment, that is not in the ranking."""

    excluded: Excluded
    reason: str


@dataclass(frozen=True, slots=True)
class ComparisonDocument:
    """The deployments of one model that got the same workload, best first.

    ``unit``: that of the throughputs. ``verdict``: how certain the answer is, or why there is none.
    ``remedies``: the measurements that would make it certain, a sentence each.
    """

    comparison: Comparison
    model: str
    unit: str
    verdict: str
    remedies: tuple[str, ...]
    ranking: tuple[RankedDocument, ...]
    excluded: tuple[ExcludedDocument, ...]


@dataclass(frozen=True, slots=True)
class AnswerDocument:
    """One comparison for each model, workload, hardware and SLO."""

    comparisons: tuple[ComparisonDocument, ...]


def answer_document(comparisons: Iterable[Comparison]) -> AnswerDocument:
    return AnswerDocument(tuple(_comparison_document(comparison) for comparison in comparisons))


def _comparison_document(comparison: Comparison) -> ComparisonDocument:
    return ComparisonDocument(
        comparison=comparison,
        model=model_text(comparison.model),
        unit=unit_text(comparison),
        verdict=verdict_text(comparison),
        remedies=tuple(remedy_texts(comparison)),
        ranking=tuple(
            RankedDocument(deployment, tuple(note_texts(deployment)))
            for deployment in comparison.ranking
        ),
        excluded=tuple(
            ExcludedDocument(excluded, exclusion_text(excluded)) for excluded in comparison.excluded
        ),
    )
