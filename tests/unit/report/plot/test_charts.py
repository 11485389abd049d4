"""Curves and frontiers, by the vertices of what is drawn."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib import pyplot
from matplotlib.collections import LineCollection, PolyCollection

import orchestrator
from orchestrator import plot
from orchestrator.base.errors import InputError
from orchestrator.report.columns import point_columns
from orchestrator.report.plot.charts import needed_columns
from orchestrator.report.plot.picture import CURVES
from orchestrator.report.plot.points import COLUMNS, MOST_CURVES, values_of
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.plot.frames import frame, row

RECIPES = Path(__file__).resolve().parents[4] / "docs" / "guides" / "notebooks.md"


@pytest.fixture(autouse=True)
def _close_figures() -> Any:
    yield
    pyplot.close("all")


def bands(axes: Any) -> list[set[tuple[float, float]]]:
    """The vertices of each band."""
    return [
        set(map(tuple, collection.get_paths()[0].vertices.tolist()))
        for collection in axes.collections
        if isinstance(collection, PolyCollection)
    ]


def lines(axes: Any) -> dict[str, list[list[float]]]:
    """The vertices of each line that connects points, by its name."""
    return {
        line.get_label(): line.get_xydata().tolist()
        for line in axes.lines
        if line.get_linestyle() != "None"
    }


def legend_texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_a_curve_and_its_band_are_the_numbers_of_the_frame(library: Any) -> None:
    rows = [row(level=4.0), row(level=2.0), row("tp=2", 2.0), row("tp=2", 4.0)]
    axes = plot.curve(library(rows))
    y = "output_token_throughput"
    for label, band in zip(("tp=1", "tp=2"), bands(axes), strict=True):
        of_label = sorted(
            (each for each in rows if each["deployment"] == label), key=lambda each: each["level"]
        )
        assert lines(axes)[label] == [[each["level"], each[y]] for each in of_label]
        ends = {
            (each["level"], each[f"{y}.{end}"]) for each in of_label for end in ("lower", "upper")
        }
        assert band == ends


def test_each_part_of_a_mix_has_a_curve_of_its_own() -> None:
    of_points = {"per_device", "per_device.lower", "per_device.upper"}
    rows = [
        {name: value for name, value in row(level=level).items() if name not in of_points}
        | {"part": part, "ttft_ms.p99": level * ttft_ms}
        for part, ttft_ms in (("chat", 10), ("rag", 30))
        for level in (2.0, 4.0)
    ]
    drawn = lines(plot.curve(frame(*rows), "ttft_ms.p99"))
    assert drawn == {
        "tp=1, chat: chat": [[2.0, 20.0], [4.0, 40.0]],
        "tp=1, chat: rag": [[2.0, 60.0], [4.0, 120.0]],
    }
    with pytest.raises(InputError, match="no tokens/s per device"):
        plot.frontier(frame(*rows))


def test_a_simulated_latency_has_the_model_error_as_its_band() -> None:
    errors = {"simulated": True, "model_error.ttft": 2.0, "model_error.others": 1.25}
    rows = frame(row(level=2.0, **errors), row(level=4.0, **errors))
    axes = plot.curve(rows, "ttft_ms.p99")
    (band,) = bands(axes)
    assert band == {(2.0, 10.1), (2.0, 40.4), (4.0, 20.2), (4.0, 80.8)}
    assert axes.get_title().endswith(" (simulated)")
    assert "9 in 10 measurements" in legend_texts(axes)[-1]


def test_simulated_points_stand_beside_measured_ones_and_share_no_frontier() -> None:
    rows = frame(row(), row(simulated=True), row(level=4.0, simulated=True))
    axes = plot.curve(rows)
    assert {"tp=1", "tp=1 (simulated)"} <= {*legend_texts(axes)}
    assert axes.get_title().endswith(" (some simulated)")
    with pytest.raises(InputError, match="simulated points do not compare with measured ones"):
        plot.frontier(rows)


def test_a_figure_without_intervals_has_no_band() -> None:
    axes = plot.curve(frame(row(level=2.0), row(level=4.0)), "ttft_ms.p99")
    assert lines(axes) == {"tp=1": [[2.0, 20.2], [4.0, 40.4]]}
    assert bands(axes) == []


def test_axes_have_units_and_the_title_says_what_was_measured() -> None:
    axes = plot.curve(frame(row(), row("tp=2", emulated=True)), "ttft_ms.p99")
    assert axes.get_xlabel() == "requests in flight"
    assert axes.get_ylabel().endswith("(ms)")
    assert axes.get_title() == "chat of sweep: some-org/m on h100 (some emulated)"
    assert plot.curve(frame(row(emulated=True))).get_title().endswith(" (emulated)")


def test_it_draws_into_the_axes_that_are_given() -> None:
    figure = pyplot.figure()
    axes = figure.add_subplot()
    assert plot.curve(frame(row()), ax=axes) is axes
    assert pyplot.get_fignums() == [figure.number]


def test_the_eight_best_have_curves_and_the_others_are_named() -> None:
    rows = [row(f"tp={n}", 1.0, per_device=float(n), per_user=1.0) for n in range(1, 13)]
    axes = plot.curve(frame(*rows))
    assert list(lines(axes)) == [f"tp={n}" for n in range(12, 4, -1)]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len({colour for colour, *_ in looks}) == MOST_CURVES
    assert legend_texts(axes)[-1] == "not drawn: tp=4, tp=3, tp=2 and 1 more"


def test_points_that_are_not_valid_are_hollow() -> None:
    axes = plot.curve(frame(row(level=2.0), row(level=4.0, validity="disturbed")))
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [line.get_xydata().tolist() for line in hollow] == [[[4.0, 400.4]]]
    assert legend_texts(axes) == ["tp=1", "not valid"]


def test_a_level_of_all_at_once_and_a_missing_figure_are_not_drawn() -> None:
    rows = [row(level=2.0), row(level=math.inf), row(level=4.0, output_token_throughput=None)]
    axes = plot.curve(frame(*rows))
    assert lines(axes)["tp=1"] == [[2.0, 200.2]]
    assert legend_texts(axes)[-1] == "not drawn: all requests due at once (tp=1)"
    of_throughput = plot.curve(frame(*rows), "ttft_ms.p99", "per_user")
    assert legend_texts(of_throughput) == ["tp=1"]


def test_the_legend_names_what_is_too_much_and_what_has_no_place() -> None:
    rows = [row(f"tp={n}", 1.0, per_device=float(n), per_user=1.0) for n in range(1, 10)]
    axes = plot.curve(frame(*rows, row("tp=9", math.inf)))
    text = " ".join(legend_texts(axes)[-1].split())
    assert text == "not drawn: tp=1; not drawn: all requests due at once (tp=9)"


def test_loads_that_double_have_equal_distances() -> None:
    far = plot.curve(frame(*(row(level=float(level)) for level in (1, 4, 16))))
    assert (far.get_xscale(), far.get_ylim()[0]) == ("log", 0.0)
    assert plot.curve(frame(row(level=1.0), row(level=4.0))).get_xscale() == "linear"


def test_a_long_legend_takes_no_room_from_the_axes() -> None:
    heights = []
    for deployments in (1, 8):
        names = [f"a deployment of a long name, {n}" for n in range(deployments)]
        axes = plot.curve(frame(*(row(name) for name in names)))
        axes.figure.canvas.draw()
        heights.append(axes.get_window_extent().height)
        legend = axes.get_legend().get_window_extent()
        assert legend.y1 < axes.xaxis.label.get_window_extent().y0
    assert heights[1] == pytest.approx(heights[0], rel=0.2)


def test_levels_of_two_controls_have_no_common_axis() -> None:
    rows = [row(), row("tp=2", control="request_rate")]
    with pytest.raises(InputError, match="no common axis"):
        plot.curve(frame(*rows))
    assert plot.curve(frame(*rows), "ttft_ms.p99", "per_user").get_xlabel().endswith("(tokens/s)")


def test_deployments_of_one_name_are_told_apart() -> None:
    axes = plot.curve(frame(row(), row(workload="code")))
    assert sorted(legend_texts(axes)) == ["tp=1, chat", "tp=1, code"]


def test_foreign_names_begin_no_formula_and_stay_in_the_legend() -> None:
    axes = plot.curve(frame(row("_a $x^2$ <b>\nc")))
    axes.figure.canvas.draw()
    assert legend_texts(axes) == [r"_a \$x^2\$ <b> c"]


def test_the_frontier_is_that_of_the_frame_function() -> None:
    rows = [
        row(level=2.0),
        row(level=4.0),
        row("tp=2", 3.0, per_user=20.0, per_device=20.0),
        row("tp=3", 8.0, validity="backlog"),
        row("tp=4", 4.0),
    ]
    axes = plot.frontier(frame(*rows))
    assert lines(axes)["frontier"] == [[75.075, 400.4], [75.075, 400.4], [150.15, 200.2]]
    (first,) = [each for each in axes.collections if isinstance(each, LineCollection)][:1]
    point = rows[0]
    assert first.get_segments()[0].tolist() == [
        [point["per_user"], point["per_device.lower"]],
        [point["per_user"], point["per_device.upper"]],
    ]


def test_the_frontier_of_stored_results_is_that_of_orchestrator_frontier(store: Store) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    kept = orchestrator.frontier(orchestrator.points(store.uri)).sort_values("per_user")
    drawn = np.array(lines(plot.frontier(store.uri))["frontier"])
    assert drawn[:, 0].tolist() == kept["per_user"].tolist()
    assert drawn[:, 1].tolist() == kept["per_device"].tolist()


def test_deployments_without_a_colour_are_grey_and_counted() -> None:
    rows = [row(f"tp={n}", 1.0, per_device=float(n), per_user=1.0) for n in range(1, 13)]
    axes = plot.frontier(frame(*rows))
    assert "4 other deployments" in legend_texts(axes)
    drawn = [line for line in axes.lines if line.get_label() != "frontier"]
    assert sum(line.get_xydata().shape[0] for line in drawn) == len(rows)


def test_a_frontier_of_several_workloads_is_refused() -> None:
    with pytest.raises(InputError, match="chat, code do not compare"):
        plot.frontier(frame(row(), row(workload="code")))


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_stored_results_are_drawn_as_their_frame_would_be(library: Any, store: Store) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    points = orchestrator.points(store.uri, library=library)
    for y in CURVES:
        of_uri, of_frame = plot.curve(store.uri, y), plot.curve(points, y)
        assert lines(of_uri) == lines(of_frame)
        assert bands(of_uri) == bands(of_frame)
        drawn = {tuple(vertex) for line in lines(of_frame).values() for vertex in line}
        levels, values = values_of(points, "level"), values_of(points, y)
        assert drawn == set(zip(levels, values, strict=True))
    assert lines(plot.frontier(store.uri)) == lines(plot.frontier(points))


def test_a_frame_that_lacks_a_column_is_refused() -> None:
    with pytest.raises(InputError, match="no column 'per_user'"):
        plot.frontier(frame(row()).drop(columns="per_user"))
    with pytest.raises(InputError, match="no column 'ttft_ms'"):
        plot.curve(frame(row()), "ttft_ms")


def test_without_matplotlib_the_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install 'matplotlib>="):
        plot.curve(frame(row()))


def test_the_recipes_run(store: Store) -> None:
    store_sweep(store, planned(levels=[2, 4]))
    (recipe,) = re.findall(r"```py\n(.*?)```", RECIPES.read_text(), re.DOTALL)
    exec(recipe.replace('"results/', f'"{store.uri}/'), {})
    assert len(pyplot.get_fignums()) == 3


def test_all_that_pictures_read_is_a_column() -> None:
    names = set(COLUMNS)
    for y in CURVES:
        names.update(needed_columns(y))
    assert names <= set(point_columns())


@pytest.fixture
def store(tmp_path: Any) -> Store:
    return Store.open(str(tmp_path), "exp")
