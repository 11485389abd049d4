"""The page of a comparison, before a browser has opened it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.comparison import (
    DifferenceRules,
    MetricChange,
    SweepComparison,
    compare_sweeps,
    metric_named,
)
from orchestrator.report.documents.comparison_defaults import ACROSS, GATED
from orchestrator.report.page.comparison import MOST_CURVES, comparison_page
from orchestrator.results.store import Store
from tests.unit.report.stores import commit_starts

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
RULES = DifferenceRules(ACROSS, 0.03, tuple(metric_named(name) for name in GATED))


def comparison_of(
    tmp_path: Path, *ttft_ms: float, max_num_seqs: tuple[int, ...] = (8, 16)
) -> SweepComparison:
    """BASE has TTFTs of 100 and 101 ms at 2 and 4 in flight; ``ttft_ms``: of NEW's starts."""
    sides = []
    for name, of_side in (("base", (100, 101)), ("new", ttft_ms)):
        store = Store.open(str(tmp_path / name), "exp")
        commit_starts(store, of_side, levels=(2, 4), max_num_seqs=max_num_seqs)
        sides.append(StoredExperiment(store))
    base, new = sides
    return compare_sweeps(base, new, RULES, base.slos[0])


def charts(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="comparison">(.*?)</script>', page)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_each_change_is_a_row_with_its_badge_and_verdict(tmp_path: Path) -> None:
    page = comparison_page(comparison_of(tmp_path, 110, 111))
    assert page.count('<span class="badge change-worse">+10.0%</span>') == 4
    assert page.count('<span class="badge change-same">') == 8
    assert page.count('<td class="text">worse</td>') == 4
    assert '<h1 class="doubted">4 of 12 figures are worse</h1>' in page


@pytest.mark.parametrize(
    ("ttft_ms", "headline"),
    [
        ((100, 101), '<h1 class="certain">Nothing is worse, of 12 figures</h1>'),
        ((145,), "<h1>Nothing is certainly worse; 12 of 12 figures undecided</h1>"),
    ],
)
def test_the_headline_is_the_verdict(
    tmp_path: Path, ttft_ms: tuple[float, ...], headline: str
) -> None:
    assert headline in comparison_page(comparison_of(tmp_path, *ttft_ms))


def test_charts_have_both_sides_of_the_worst_deployments(tmp_path: Path) -> None:
    seqs = (8, 16, 32, 64, 128)
    drawn = charts(comparison_page(comparison_of(tmp_path, 110, 111, max_num_seqs=seqs)))
    assert [chart["title"] for chart in drawn["changes"]] == ["TTFT p99", "tokens/s", "attainment"]
    chart = drawn["curves"][0]
    assert (chart["title"], chart["x_name"]) == ("TTFT p99 of chat", "requests in flight")
    assert (chart["deployments"], len(chart["curves"])) == (5, MOST_CURVES)
    points = chart["curves"][0]["points"]
    assert [point["level"] for point in points] == [2, 4]
    assert points[0]["new"] / points[0]["base"] == pytest.approx(1.0995, abs=1e-3)
    assert points[0]["text"].endswith("): worse")


def test_the_band_is_what_is_tolerated(tmp_path: Path) -> None:
    of_latency, _, of_share = charts(comparison_page(comparison_of(tmp_path, 110, 111)))["changes"]
    assert (of_latency["lower"], of_latency["upper"], of_latency["unit"]) == (-3, 3, "%")
    assert (of_share["lower"], of_share["upper"], of_share["unit"]) == (-3, 3, "points")


def test_points_without_a_partner_are_listed(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, 110, 111)
    other = Store.open(str(tmp_path / "other"), "exp")
    commit_starts(other, (100, 101), levels=(8,))
    apart = compare_sweeps(comparison.base, StoredExperiment(other), RULES, None)
    page = comparison_page(apart)
    assert '<h1 class="doubted">Nothing could be compared</h1>' in page
    assert "<li>BASE only: emulator seqs=8 (chat 2 in flight, chat 4 in flight)</li>" in page
    assert "<script" not in page  # there is nothing to draw
    assert "script-src 'none'" in page


def renamed(change: MetricChange, name: str) -> MetricChange:
    point = change.pair.new
    point = replace(point, deployment=replace(point.deployment, label=name))
    return replace(change, pair=replace(change.pair, new=point))


def test_hostile_names_are_text(tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path, 110, 111)
    harmless = comparison_page(comparison)
    comparison = replace(
        comparison,
        changes=tuple(renamed(change, HOSTILE) for change in comparison.changes),
        rules=replace(RULES, across=(HOSTILE,)),
    )
    page = comparison_page(comparison)
    assert HOSTILE not in page
    assert str(escape(HOSTILE)) in page
    assert page.count("<script") == harmless.count("<script")
    assert charts(page)["curves"][0]["curves"][0]["deployment"].endswith(HOSTILE)
