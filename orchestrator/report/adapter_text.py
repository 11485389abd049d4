"""What LoRA adapters cost, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from orchestrator.base.text import counted
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.fact_columns import mean_of_repeats
from orchestrator.report.latency_costs import latency_costs_text
from orchestrator.spec.load import load_text


def adapter_notes(documents: Iterable[PointDocument]) -> Iterator[str]:
    """A sentence for each point with requests for adapters, by the means of its repeats."""
    for document in documents:
        share = mean_of_repeats("adapter_share", document)
        asked = mean_of_repeats("adapters_asked", document)
        if share is None or asked is None:
            continue
        text = f"{counted(round(asked), 'adapter')} answered {share:.1%} of requests"
        costs = latency_costs_text(
            ttft_ms=mean_of_repeats("adapter_ttft_ms", document),
            plain_ttft_ms=mean_of_repeats("base_ttft_ms", document),
            tpot_ms=mean_of_repeats("adapter_tpot_ms", document),
            plain_tpot_ms=mean_of_repeats("base_tpot_ms", document),
        )
        if costs:
            text += f"; beside the model itself, by medians: {costs}"
        head = document.point.head
        yield f"{document.label} at {load_text(head.control, head.level)}: {text}"
