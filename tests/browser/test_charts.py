"""What the charts draw is what the Python analysis says: figures of ECharts' options, not pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.frontier import on_frontier
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import StoredPoint
from orchestrator.capacity.capacities import holds, reason_to_exclude
from tests.browser.conftest import show_view

pytestmark = pytest.mark.browser
SETTINGS = ("tensor_parallel_size", "max_model_len")  # across and down
OPTION = """
(id) => {
  const { xAxis, yAxis, series } = echarts.getInstanceByDom(document.getElementById(id)).getOption();
  return {
    columns: xAxis[0].data,
    rows: yAxis[0].data,
    series: series.map(({ type, name, data }) => ({ type, name: name ?? "", data: [...data] })),
  };
}
"""


@pytest.fixture
def page(opened) -> Any:
    """The page with the fixed levels in sight, under the limits of their file."""
    opened.get_by_role("tab").nth(1).click()
    return opened


@pytest.fixture
def points(levels) -> list[StoredPoint]:
    return list(levels.points(*levels.slos).current)


def option_of(page: Any, chart: str) -> dict[str, Any]:
    """What a chart shows. A page that is about to be printed draws all of its charts at once."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    return page.evaluate(OPTION, chart)


def series_named(option: dict[str, Any], name: str) -> list[Any]:
    (data,) = [series["data"] for series in option["series"] if series["name"] == name]
    return data


def approximately(rows: Any) -> Any:
    return pytest.approx(np.array(rows, np.float64), rel=1e-9)


def per_device(point: StoredPoint) -> Interval:
    interval = point.output_token_throughput()
    assert interval is not None
    return interval.scaled(1 / point.deployment.devices)


def per_user(point: StoredPoint) -> float:
    assert point.figures.decode_throughput is not None
    return point.figures.decode_throughput.p50


def test_the_frontier_is_the_one_of_python(page, points):
    option = option_of(page, "frontier")
    holding = [point for point in points if reason_to_exclude(point) is None and holds(point)]
    xs = np.array([per_user(point) for point in holding])
    intervals = [per_device(point) for point in holding]
    ys = np.array([interval.estimate for interval in intervals])
    stays = on_frontier(xs, ys)
    order = np.argsort(xs[stays])
    expected = np.column_stack([xs[stays], ys[stays]])[order]
    assert np.array(series_named(option, "frontier")) == approximately(expected)
    assert len(expected) > 1
    (bars,) = [series["data"] for series in option["series"] if series["type"] == "custom"]
    expected_bars = [(x, each.lower, each.upper) for x, each in zip(xs, intervals, strict=True)]
    assert np.array(sorted(bars)) == approximately(sorted(expected_bars))


def test_the_roofline_has_the_points_of_python_below_the_peaks(page, points):
    option = option_of(page, "roofline")
    placed = []
    for series in option["series"]:
        if series["type"] == "scatter":
            coordinates = np.array(series["data"])  # x and y in turn
            placed += coordinates.reshape(-1, 2).tolist()
    expected = []
    for point in points:
        if isinstance(point.efficiency, Efficiency):
            expected.append((point.efficiency.flops_per_byte, point.efficiency.flops_s / 1e12))
    assert np.array(sorted(placed)) == approximately(sorted(expected))
    assert len(expected) > 5
    # 3.35 TB/s feed 989.4 TFLOP/s from 295.3 FLOPs per byte on
    (_, ridge, end) = series_named(option, "H100-80GB, bfloat16")
    assert ridge == approximately([989.4 / 3.35, 989.4])
    assert end[1] == pytest.approx(989.4)
    assert all(y <= min(3.35 * x, 989.4) for x, y in placed)


def test_the_table_of_efficiency_needs_no_script(page, points):
    known = [point for point in points if isinstance(point.efficiency, Efficiency)]
    show_view(page, "Efficiency")
    rows = page.locator("table.efficiency:visible tbody tr")
    assert rows.count() == len(known)
    first = known[0].efficiency
    texts = rows.first.locator("td").all_text_contents()
    assert texts[1] == f"{first.mbu.estimate:.2f}"
    assert texts[3] == "3,350"
    assert texts[4] == f"{first.mfu:.3f}"
    peaks = page.locator("table.peaks:visible tbody td").all_text_contents()
    assert peaks[-2:] == [first.peaks.source, first.peaks.as_of]


@pytest.mark.parametrize("metric", ["throughput", "attainment"])
def test_bands_are_the_intervals_of_python(page, points, metric):
    page.select_option("#curve-metric", metric)
    option = option_of(page, "curves")
    control = points[0].head.control
    drawn = 0
    for line, band in zip(option["series"][::2], option["series"][1::2], strict=True):
        intervals = []
        for point in points:
            interval = interval_of(point, metric)
            is_on_line = point.deployment.label == line["name"] and point.head.control == control
            if is_on_line and interval is not None:
                intervals.append((point.head.level, interval))
        intervals.sort(key=lambda each: each[0])
        figures = [(level, interval.estimate) for level, interval in intervals]
        assert [each["value"] for each in line["data"]] == approximately(figures)
        upper = [(level, interval.upper) for level, interval in intervals]
        lower = [(level, interval.lower) for level, interval in intervals]
        assert band["data"] == approximately([*upper, *reversed(lower)])
        drawn += len(intervals)
    assert drawn > 3


def interval_of(point: StoredPoint, metric: str) -> Interval | None:
    return point.attainment if metric == "attainment" else point.output_token_throughput()


def test_the_heat_map_shows_what_python_ranks(page, levels):
    for select, setting in zip(("#heat-x", "#heat-y"), SETTINGS, strict=True):
        page.select_option(select, setting)
    option = option_of(page, "heat")
    (slo,) = levels.slos
    (comparison,) = levels.comparisons(levels.points(slo), slo)
    expected = {}
    for ranked in reversed(comparison.ranking):  # the best comes last and stays
        settings = ranked.point.deployment.settings
        across, down = (str(settings.get(name, "default")) for name in SETTINGS)
        expected[across, down] = (ranked.label, ranked.throughput.estimate)
    (series,) = option["series"]
    shown = {}
    for item in series["data"]:
        column, row, value = item["value"]
        shown[option["columns"][column], option["rows"][row]] = (item["label"], value)
    assert shown.keys() == expected.keys()
    for cell, (label, value) in expected.items():
        assert shown[cell] == (label, pytest.approx(value, rel=1e-9))
    assert len(expected) > 1


def test_a_chart_whose_figures_stay_is_not_drawn_again(page):
    page.wait_for_selector("#curves canvas")
    drawn = page.evaluate(
        """async () => {
          const chart = echarts.getInstanceByDom(document.getElementById("curves"));
          let drawn = 0;
          const { setOption } = chart;
          chart.setOption = (...given) => { drawn++; return setOption.apply(chart, given); };
          const counts = [];
          const counted = async (change) => {
            const before = document.body.dataset.drawn;
            change();
            while (document.body.dataset.drawn === before) await new Promise(requestAnimationFrame);
            counts.push(drawn);
          };
          const slider = document.getElementById("limit-attainment");
          const moved = (value) => () => { slider.value = value; slider.dispatchEvent(new Event("input")); };
          await counted(moved("0.9"));
          drawn = 0;
          await counted(moved("0.899"));  // the order of the best stays, and so do their throughputs
          const metric = document.getElementById("curve-metric");
          await counted(() => { metric.value = "attainment"; metric.dispatchEvent(new Event("change")); });
          return counts.slice(1);
        }"""
    )
    assert drawn == [0, 1]
