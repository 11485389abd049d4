"""Shares of requests over latencies: they are the attainment of limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot

import orchestrator
from orchestrator import plot
from orchestrator.base.errors import InputError
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import commit_simulation
from tests.unit.results.builders import commit_measurement, failed_request, request


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A point of 40 requests, of which every eighth failed."""
    store = Store.open(str(tmp_path), "exp")
    rows = []
    for n in range(40):
        due = n * 100.0
        if n % 8 == 7:
            rows.append(failed_request(n, due))
        else:
            rows.append(request(n, due, first_ms=due + 100 + 2 * n, last_ms=due + 300, tokens=8))
    commit_measurement(store, "m0", rows)
    return store


def test_each_vertex_is_the_attainment_of_that_limit(store: Store) -> None:
    axes = plot.ecdf(store.uri)
    (line,) = axes.lines
    vertices = line.get_xydata().tolist()
    assert len(vertices) == 35
    assert vertices[-1][1] == 35 / 40  # failed requests are never fast enough
    band = set(map(tuple, axes.collections[0].get_paths()[0].vertices.tolist()))
    for latency_ms, share in vertices[::7]:
        slo = f"ttft<={latency_ms + 1}ms,attainment>=0.5"  # the next one is 2 ms slower
        row = orchestrator.metrics(store.uri, slo=slo).iloc[0]
        assert share == row["slo.attainment.estimate"]
        assert (latency_ms, row["slo.attainment.lower"]) in band
        assert (latency_ms, row["slo.attainment.upper"]) in band
    pyplot.close("all")


def test_the_band_of_a_simulation_has_shares_of_longer_and_shorter_latencies(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_simulation(store)  # TTFTs of 100 and 140 ms, right to a factor of 2
    points = orchestrator.points(store.uri)
    axes = plot.ecdf(store.uri, points=points[points["level"] == 2].head(1))
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[100.0, 1.0]]
    band = set(map(tuple, axes.collections[0].get_paths()[0].vertices.tolist()))
    assert {(100.0, 0.0), (100.0, 1.0)} <= band
    assert axes.get_title().endswith(" (simulated)")
    pyplot.close("all")


def test_at_most_eight_points_are_drawn_highest_loads_first(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(levels=[1, 2, 3, 4, 5, 6]))
    axes = plot.ecdf(store.uri, "e2e_ms")
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(axes.lines) == 8
    assert sorted(texts[:2]) == [
        "emulator seqs=16 at 6 in flight",
        "emulator seqs=8 at 6 in flight",
    ]
    assert texts[-1].startswith("not drawn: ")
    assert texts[-1].endswith("1 more")
    points = orchestrator.metrics(store.uri)
    low = points[points["level"] == 1.0]
    assert len(plot.ecdf(store.uri, points=low).lines) == 2
    pyplot.close("all")


def test_a_part_of_a_mix_has_its_own_requests_alone(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    rows = [
        request(n, n * 100.0, first_ms=n * 100.0 + 50 * (1 + n % 2), part=("chat", "rag")[n % 2])
        for n in range(10)
    ]
    commit_measurement(store, "m0", rows)
    (line,) = plot.ecdf(store.uri, part="rag").lines
    assert line.get_xydata().tolist() == [[100.0, 1.0]]
    with pytest.raises(InputError, match="requests of a part 'chta'"):
        plot.ecdf(store.uri, part="chta")
    pyplot.close("all")


def test_an_unknown_latency_is_refused_with_the_nearest(store: Store) -> None:
    with pytest.raises(InputError, match="ttft_ms"):
        plot.ecdf(store.uri, "ttft_m")
