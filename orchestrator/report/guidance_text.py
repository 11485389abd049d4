"""What constraints on answers came to and what they cost, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.analysis.guidance import Guidance
from orchestrator.base.text import counted
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.fact_columns import mean_of_repeats
from orchestrator.report.latency_costs import latency_costs_text
from orchestrator.spec.load import load_text


def guidance_text(guidance: Guidance) -> str:
    """What came of constraints, and what they cost beside the free requests of the same level."""
    text = (
        f"constrained: {guidance.constrained_share:.1%} of requests, "
        f"{counted(guidance.constraint_violations, 'violation')}, "
        f"{guidance.constraint_cut_share:.1%} cut too early to tell"
    )
    if guidance.constraint_unchecked_share:
        text += f", {guidance.constraint_unchecked_share:.1%} unchecked (the check took too long, or was ended)"
    costs = latency_costs_text(
        ttft_ms=guidance.constrained_ttft_ms,
        plain_ttft_ms=guidance.free_ttft_ms,
        tpot_ms=guidance.constrained_tpot_ms,
        plain_tpot_ms=guidance.free_tpot_ms,
    )
    if costs:
        text += f"; beside the free ones, by medians: {costs}"
    return text


def guidance_notes(documents: Iterable[PointDocument]) -> Iterator[str]:
    """A sentence for each point whose requests were constrained, by the means of its repeats."""
    for document in documents:
        share = mean_of_repeats("constrained_share", document)
        if share is None:
            continue
        heads = [repeat.head for repeat in document.point.used_repeats]
        guidance = Guidance(
            constrained_share=share,
            constraint_violations=sum(head.constraint_violations or 0 for head in heads),
            constraint_cut_share=mean_of_repeats("constraint_cut_share", document) or 0.0,
            constraint_unchecked_share=mean_of_repeats("constraint_unchecked_share", document)
            or 0.0,
            constrained_ttft_ms=mean_of_repeats("constrained_ttft_ms", document),
            free_ttft_ms=mean_of_repeats("free_ttft_ms", document),
            constrained_tpot_ms=mean_of_repeats("constrained_tpot_ms", document),
            free_tpot_ms=mean_of_repeats("free_tpot_ms", document),
        )
        head = document.point.head
        load = load_text(head.control, head.level)
        yield f"{document.label} at {load}: {guidance_text(guidance)}"
