"""The record of a point: results under each SLO, its repeats, what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, request

SLO = parse_slo("ttft<=150ms,attainment>=0.9")
PERCENTILE = parse_slo("ttft_p95<=150ms")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(store: Store, repeat: int, ttft_ms: float = 100.0, **point: Any) -> None:
    """A repeat of one point: 100 requests over ten seconds."""
    rows = [
        request(
            at, at * 100, first_ms=at * 100 + ttft_ms, last_ms=at * 100 + ttft_ms + 90, tokens=4
        )
        for at in range(100)
    ]
    commit_measurement(store, f"m{repeat}", rows, repeat=repeat, point_id="p", **point)


def document_of(store: Store, *slos: Any, **given: Any) -> PointDocument:
    (point,) = load_points(store, *slos)
    return point_document(point, slos, **given)


def test_attainment_is_that_of_all_repeats_and_of_each_alone(store: Store) -> None:
    commit(store, 0)
    commit(store, 1, ttft_ms=200.0)
    document = document_of(store, SLO)
    (result,) = document.slo_results
    assert result.attainment is not None
    assert result.attainment.estimate == pytest.approx(0.5)
    assert result.is_met is False
    alone = [repeat.slo_results[0].is_met for repeat in document.repeats]
    assert alone == [True, False]


def test_goodput_counts_requests_that_met_the_limits_over_all_windows(store: Store) -> None:
    commit(store, 0)
    commit(store, 1, ttft_ms=200.0)
    (result,) = document_of(store, SLO).slo_results
    windows_s = [
        (repeat.head.window_end_ns - repeat.head.window_start_ns) / 1e9
        for repeat in load_points(store, SLO)[0].used_repeats
    ]
    assert result.goodput is not None
    assert result.goodput == pytest.approx(result.verdicts[0].met.sum() / sum(windows_s))


def test_limits_on_percentiles_alone_have_no_goodput(store: Store) -> None:
    commit(store, 0)
    (result,) = document_of(store, PERCENTILE).slo_results
    assert result.is_met is True
    assert result.goodput is None


def test_where_all_repeats_failed_nothing_is_known_of_the_limits(store: Store) -> None:
    commit(store, 0, status="failed", reason="It died.", launch_id="L0")
    launch: Any = object()
    document = document_of(store, SLO, launches={"L0": launch})
    (result,) = document.slo_results
    assert (result.attainment, result.is_met, result.goodput) == (None, None, None)
    assert result.share_by_limit == {}
    assert [head.reason for head in document.failed] == ["It died."]
    assert document.launch is launch


def test_the_launch_of_a_point_without_failures_is_not_looked_for(store: Store) -> None:
    commit(store, 0, launch_id="L0")
    launch: Any = object()
    assert document_of(store, launches={"L0": launch}).launch is None


def test_a_point_is_marked_where_its_curve_bends(store: Store) -> None:
    commit(store, 0)
    assert document_of(store, knees=["p"]).is_knee
    assert not document_of(store, knees=["another"]).is_knee
