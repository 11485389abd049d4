"""What was measured of one part of a mix at one point: the record for tables, JSON and frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.points import Repeat
from orchestrator.report.documents.point import PointDocument, SloResult
from orchestrator.results.records import Figures, PartFacts, PartFigures


@dataclass(frozen=True, slots=True)
class PartDocument:
    """One part of a mix at a point.

    ``figures``: of its requests alone, over the window of the whole point, so that throughputs of
    all parts add up. ``share_of_requests``, ``share_of_output_tokens``: of those of all parts; None
    where there are none. ``facts``: the mean over repeats of each fact; None where a repeat does not
    have it. ``slo_results``: under the SLOs that limit this part.
    """

    point: PointDocument
    part: str
    figures: Figures
    share_of_requests: float | None
    share_of_output_tokens: float | None
    facts: PartFacts
    slo_results: tuple[SloResult, ...]


def part_documents(document: PointDocument) -> list[PartDocument]:
    """The parts of a mix, in the order of their names; none for other workloads."""
    point = document.point
    return parts_of_figures(document, point.part_figures, document.slo_results, point.used_repeats)


def parts_of_figures(
    document: PointDocument,
    figures: Sequence[PartFigures],
    slo_results: Sequence[SloResult],
    repeats: Sequence[Repeat],
) -> list[PartDocument]:
    """The parts with these figures and results, which may be those of a repeat of the point.
    ``repeats``: those that the figures come from.
    """
    requests = sum(of_part.figures.requests.scheduled for of_part in figures)
    tokens = sum(of_part.figures.output_token_throughput or 0.0 for of_part in figures)
    parts: list[PartDocument] = []
    for of_part in figures:
        part_figures = of_part.figures
        parts.append(
            PartDocument(
                point=document,
                part=of_part.part,
                figures=part_figures,
                share_of_requests=share_of(part_figures.requests.scheduled, requests),
                share_of_output_tokens=share_of(part_figures.output_token_throughput, tokens),
                facts=_mean_facts(of_part.part, repeats),
                slo_results=tuple(results_of_part(slo_results, of_part.part)),
            )
        )
    return parts


def _mean_facts(part: str, repeats: Sequence[Repeat]) -> PartFacts:
    """The mean of each fact of a part over repeats; None where a repeat lacks it."""
    of_repeats: list[PartFacts | None] = []
    for repeat in repeats:
        facts_by_part = {of_part.part: of_part.facts for of_part in repeat.part_figures}
        of_repeats.append(facts_by_part.get(part))
    return PartFacts(
        cached_share=_mean_fact("cached_share", of_repeats),
        expected_cached_share=_mean_fact("expected_cached_share", of_repeats),
        constraint_violations=_mean_fact("constraint_violations", of_repeats),
    )


def _mean_fact(name: str, of_repeats: Sequence[PartFacts | None]) -> float | None:
    values: list[float] = []
    for facts in of_repeats:
        value = None if facts is None else getattr(facts, name)
        if value is None:
            return None
        values.append(value)
    return sum(values) / len(values) if values else None


def share_of(amount: float | None, total: float) -> float | None:
    """The share of a total; None where the amount is unknown or the total is 0."""
    return amount / total if amount is not None and total > 0 else None


def results_of_part(results: Sequence[SloResult], part: str) -> list[SloResult]:
    """The results of the limits on a part alone; SLOs without any are left out."""
    of_part: list[SloResult] = []
    for result in results:
        slo = result.slo.of_part(part)
        if slo is None:
            continue
        names = {limit.name for limit in slo.limits}
        tests = tuple(test for test in result.tests if test.part == part)
        verdicts = [
            replace(
                verdict,
                tests=tuple(test for test in verdict.tests if test.part == part),
                by_limit={name: count for name, count in verdict.by_limit.items() if name in names},
            )
            for verdict in result.verdicts
        ]
        of_part.append(replace(result, slo=slo, tests=tests, verdicts=tuple(verdicts)))
    return of_part
