"""Time lines of one point, by the vertices of what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from matplotlib import pyplot

import orchestrator
from orchestrator import plot
from orchestrator.base.errors import InputError
from orchestrator.results.store import Store
from tests.unit.report.test_series import commit
from tests.unit.report.test_series import reading as stored_reading
from tests.unit.results.builders import commit_measurement, deployment_row, request


@pytest.fixture(autouse=True)
def _close_figures() -> Any:
    yield
    pyplot.close("all")


def reading(seconds: float, replica: int = 0, **given: Any) -> dict[str, Any]:
    return {
        "point_id": "p0",
        "repeat": 0,
        "replica": replica,
        "seconds": seconds,
        "running": 8.0 + seconds,
        "waiting": 1.5,
        "kv_usage": 0.25,
    } | given


def lines(axes: Any) -> dict[str, list[list[float]]]:
    """The vertices of each line, by its name."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame, pa.Table.from_pylist])
def test_lines_are_the_readings_in_order_of_time(library: Any) -> None:
    axes = plot.timeline(library([reading(5.1), reading(-4.9), reading(0.1)]))
    assert lines(axes) == {
        "running": [[-4.9, 8.0 - 4.9], [0.1, 8.0 + 0.1], [5.1, 8.0 + 5.1]],
        "waiting": [[-4.9, 1.5], [0.1, 1.5], [5.1, 1.5]],
    }
    (kv_axes,) = [each for each in axes.figure.axes if each is not axes]
    assert list(lines(kv_axes).values()) == [[[-4.9, 0.25], [0.1, 0.25], [5.1, 0.25]]]
    assert axes.get_xlabel().endswith("(s)")
    assert axes.get_title() == "point p0"


def test_the_warm_up_alone_is_shaded() -> None:
    (shade,) = plot.timeline(pd.DataFrame([reading(-4.0), reading(6.0)])).patches
    assert shade.get_x() + shade.get_width() == pytest.approx(0.0)
    assert not plot.timeline(pd.DataFrame([reading(1.0), reading(6.0)])).patches


def test_what_was_not_reported_has_no_line() -> None:
    rows = [reading(1.0, kv_usage=None, waiting=None), reading(2.0, kv_usage=None)]
    axes = plot.timeline(pd.DataFrame(rows))
    assert lines(axes)["waiting"] == [[2.0, 1.5]]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["running", "waiting"]


def test_replicas_have_colours_and_those_without_room_are_named() -> None:
    rows = [reading(float(second), replica) for second in (1, 2) for replica in range(10)]
    axes = plot.timeline(pd.DataFrame(rows))
    assert len({line.get_color() for line in axes.lines}) == 8
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts[0] == "replica 0: running"
    assert texts[-1] == "not drawn: replica 8, replica 9"


def test_one_repeat_is_shown() -> None:
    frame = pd.DataFrame([reading(1.0, repeat=1), reading(2.0, repeat=2)])
    assert lines(plot.timeline(frame))["running"] == [[1.0, 9.0]]
    assert lines(plot.timeline(frame, repeat=2))["running"] == [[2.0, 10.0]]


def test_a_point_of_stored_results_is_drawn_as_its_frame_would_be(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    readings = [stored_reading(1.5, running=1), stored_reading(5.0, running=3)]
    row = deployment_row("d0", label="tp=2")
    commit(store, "m0", readings, repeat=0)
    commit_measurement(store, "m1", [request(0)], deployment=row, point_id="p1")
    axes = plot.timeline(store.uri, "p0")
    assert lines(axes) == {"running": [[-0.5, 1.0], [3.0, 3.0]]}
    assert lines(axes) == lines(plot.timeline(orchestrator.series(store.uri, "p0")))
    assert axes.get_title() == "chat of exp: m on h100, tp=2 at 1 req/s"
    with pytest.raises(InputError, match="no point 'p2'"):
        plot.timeline(store.uri, "p2")


def test_what_is_no_series_of_one_point_is_refused() -> None:
    with pytest.raises(InputError, match="several points"):
        plot.timeline(pd.DataFrame([reading(1.0), reading(1.0, point_id="p1")]))
    with pytest.raises(InputError, match="no column 'seconds'"):
        plot.timeline(pd.DataFrame([reading(1.0)]).drop(columns="seconds"))
    with pytest.raises(InputError, match="reported nothing"):
        plot.timeline(pd.DataFrame([reading(1.0)])[:0])
    with pytest.raises(InputError, match="no readings of repeat 7, only of 1, 2"):
        plot.timeline(pd.DataFrame([reading(1.0, repeat=2), reading(1.0, repeat=1)]), repeat=7)
    with pytest.raises(InputError, match="give a point_id too"):
        plot.timeline("results/")
