"""Measured beside predicted in tables, and which deployments deserve a look."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.prediction import Prediction
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.documents.prediction import compare_with_prediction
from orchestrator.report.prediction_error import (
    predicted_vs_measured_columns,
    predicted_vs_measured_notes,
)
from orchestrator.report.text import Cell
from tests.unit.report.documents.test_prediction import BEHIND, a_point, compared, used_repeats


def documents(points: list[Any]) -> list[PointDocument]:
    return [
        PointDocument(point, (), True, False, (), None, compare_with_prediction(point))
        for point in points
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"tpot": 11.5},
            "TPOT is 1.28 times the predicted 9.00 at 4 in flight (9 in 10 within 1.25x)",
        ),
        (
            {"ttft": 120.0},
            "TTFT is 3.00 times the predicted 40.0 at 4 in flight (9 in 10 within 2.70x)",
        ),
        ({"rate": 200.0}, "output tokens/s is 0.50 of the predicted 400 at 4 in flight ("),
        (
            {"control": "request_rate", "level": 9.0, "rate": 500.0},
            "output tokens/s is 0.62 of the predicted 800 at 9",
        ),
    ],
)
def test_a_deployment_that_is_worse_than_the_known_error_explains_is_named(
    changes: dict[str, Any], sentence: str
) -> None:
    worse, fine = a_point(**changes), a_point(level=1, ttft=10.0, tpot=6.0, rate=100.0)
    (line,) = predicted_vs_measured_notes(documents([fine, worse]))
    assert line.startswith("look at tp=2: ") and sentence in line
    assert compared(worse).worse
    columns = predicted_vs_measured_columns(documents([fine, worse]))
    styles = [[cell.style for cell in each.cells if isinstance(cell, Cell)] for each in columns]
    assert all(fine_style is None for fine_style, _ in styles)
    is_latency_of_first_token = set(compared(worse).worse) == {"ttft_ms"}  # it has no column
    assert any(worse_style == "yellow" for _, worse_style in styles) != is_latency_of_first_token


def test_better_figures_and_points_of_other_verdicts_are_no_reason_to_look() -> None:
    better, sent = (
        a_point(ttft=1.0, tpot=1.0, rate=4000.0),
        a_point(control="request_rate", level=9.0, rate=790.0),
    )
    disturbed = a_point(tpot=90.0, validity="disturbed")
    short = a_point(control="request_rate", level=7.0, rate=400.0)  # few came in a short probe
    assert list(predicted_vs_measured_notes(documents([better, sent, disturbed, short]))) == []


@pytest.mark.parametrize(("level", "predicted"), [(6.0, 600), (9.0, 800)])
def test_falling_behind_far_below_what_was_predicted_is_named(level: float, predicted: int) -> None:
    point = a_point(level=level, rate=200.0, used_repeats=used_repeats(None), **BEHIND)
    (line,) = predicted_vs_measured_notes(documents([point]))
    amount = 200 / predicted
    assert (
        f"output tokens/s is {amount:.2f} of the predicted {predicted} at {level:g} req/s and it "
        "fell behind"
    ) in line


def test_falling_behind_a_little_or_in_a_short_probe_is_no_reason_to_look() -> None:
    # however long it took with a queue that grew
    little = a_point(level=6.0, rate=500.0, used_repeats=used_repeats(None), **BEHIND)
    early = a_point(level=6.0, rate=200.0, used_repeats=used_repeats("fails"), **BEHIND)
    # nobody knows what it should do there
    between = a_point(level=7.0, rate=200.0, used_repeats=used_repeats(None), **BEHIND)
    assert list(predicted_vs_measured_notes(documents([little, early, between]))) == []


def test_where_nothing_was_predicted_there_is_no_column() -> None:
    bare = a_point(deployment=SimpleNamespace(prediction=Prediction.from_document({}), label="x"))
    unknown = a_point(
        deployment=SimpleNamespace(
            prediction=Prediction.from_document({"not_predicted": "why"}), label="x"
        )
    )
    failed = a_point(used_repeats=())
    assert predicted_vs_measured_columns(documents([bare, unknown, failed])) == []
    assert list(predicted_vs_measured_notes(documents([bare, unknown]))) == []


def test_of_one_deployment_the_worst_figure_is_named() -> None:
    bad, worse = a_point(tpot=12.0), a_point(tpot=36.0)
    (line,) = predicted_vs_measured_notes(documents([bad, worse]))
    assert "TPOT is 4.00 times" in line


def test_how_near_a_simulation_came_is_one_line() -> None:
    point, other = a_point(), a_point(level=1, ttft=10.0, tpot=6.0, rate=100.0)
    for each in (point, other):
        prediction = replace(each.deployment.prediction, simulated_at="/results")
        each.deployment = SimpleNamespace(prediction=prediction, label="tp=2")
    line, *_ = predicted_vs_measured_notes(documents([point, other]))
    assert line.startswith("measured over simulated (median of 2): tokens/s ")
    assert ", TTFT " in line
    assert ", TPOT " in line
