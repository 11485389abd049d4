"""What was predicted for a level beside what was measured there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.prediction import Prediction
from orchestrator.report.as_json import prediction_fields
from orchestrator.report.documents.prediction import PredictionComparison, compare_with_prediction

PREDICTED_LEVELS = [
    {"workload": "chat", "control": "concurrency", "level": level, "ttft_ms": 10.0 * level, "tpot_ms": 5.0 + level,
     "output_throughput": 100.0 * level}
    for level in (1, 4)
] + [
    {"workload": "chat", "control": "request_rate", "level": 6.0, "ttft_ms": 10.0, "tpot_ms": 5.0,
     "output_throughput": 600.0},
    {"workload": "chat", "control": "request_rate", "level": 9.0, "ttft_ms": None, "tpot_ms": None,
     "output_throughput": 800.0},
]  # fmt: skip
ERROR = {
    "ttft": 0.5,
    "tpot": 0.1,
    "source": "x",
    "within": {"ttft": 2.7, "tpot": 1.25},
    "counted": False,
}


def a_point(
    level: float = 4, control: str = "concurrency", ttft: float = 40.0, tpot: float | None = 9.0, rate: float = 400.0,
    **changes: Any,
) -> Any:  # fmt: skip
    predicted = Prediction.from_document(
        {"weight_bytes": 1, "levels": PREDICTED_LEVELS, "error": ERROR}
    )
    medians = {
        "ttft_ms": SimpleNamespace(p50=ttft),
        "tpot_ms": None if tpot is None else SimpleNamespace(p50=tpot),
    }
    values: dict[str, Any] = {
        "deployment": SimpleNamespace(prediction=predicted, label="tp=2"),
        "head": SimpleNamespace(workload="chat", control=control, level=level),
        "figures": SimpleNamespace(**medians, output_token_throughput=rate),
        "used_repeats": (1,), "validity": "valid", "emulated": False, "simulated": False,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def compared(point: Any) -> PredictionComparison:
    comparison = compare_with_prediction(point)
    assert comparison is not None
    return comparison


BEHIND = {"control": "request_rate", "ttft": 9000.0, "validity": "engine_bound_backlog"}


def used_repeats(ended_early: str | None) -> tuple[Any, ...]:
    """The only repeat of a point."""
    return (SimpleNamespace(head=SimpleNamespace(ended_early=ended_early)),)


def test_each_figure_is_measured_over_predicted() -> None:
    comparison = compared(a_point(ttft=60.0, tpot=9.9, rate=380.0))
    assert comparison.predicted == {"ttft_ms": 40.0, "tpot_ms": 9.0, "output_throughput": 400.0}
    assert comparison.ratio == pytest.approx(
        {"ttft_ms": 1.5, "tpot_ms": 1.1, "output_throughput": 0.95}
    )
    assert comparison.worse == {}


def test_a_level_between_two_that_were_predicted_is_interpolated() -> None:
    # half way between 1 and 4 on a scale of logarithms
    assert compared(a_point(level=2)).predicted["tpot_ms"] == pytest.approx(7.5)


def test_a_level_outside_of_those_that_were_predicted_has_no_comparison() -> None:
    assert compare_with_prediction(a_point(level=5)) is None
    assert compare_with_prediction(a_point(level=4, control="request_rate")) is None


def test_between_a_rate_that_is_kept_up_with_and_one_that_is_not_nothing_is_known() -> None:
    comparison = compared(a_point(level=7.0, control="request_rate"))
    assert set(comparison.predicted.values()) == {None}
    assert set(comparison.ratio.values()) == {None}


def test_a_figure_is_worse_beyond_the_error_of_nine_in_ten_predictions() -> None:
    assert compared(a_point(tpot=11.0)).worse == {}
    assert compared(a_point(tpot=11.5)).worse == {"tpot_ms": pytest.approx(11.5 / 9)}
    assert compared(a_point(rate=200.0)).worse == {"output_throughput": 2.0}


def test_at_a_rate_that_is_kept_up_with_the_throughput_tells_nothing() -> None:
    slow = a_point(control="request_rate", level=6.0, ttft=10.0, tpot=5.0, rate=100.0)
    assert compared(slow).worse == {}


def test_of_an_engine_that_fell_behind_only_the_throughput_tells() -> None:
    point = a_point(level=6.0, rate=200.0, used_repeats=used_repeats(None), **BEHIND)
    assert compared(point).worse == {"output_throughput": 3.0}


def test_a_probe_that_fell_behind_and_ended_early_tells_nothing() -> None:
    assert (
        compared(a_point(level=6.0, rate=200.0, used_repeats=used_repeats("fails"), **BEHIND)).worse
        == {}
    )


@pytest.mark.parametrize("predicted", [{}, {"not_predicted": "why"}])
def test_without_a_prediction_there_is_no_comparison(predicted: dict[str, Any]) -> None:
    deployment = SimpleNamespace(prediction=Prediction.from_document(predicted), label="x")
    assert compare_with_prediction(a_point(deployment=deployment)) is None


def test_without_a_measurement_there_is_no_comparison_and_json_says_null() -> None:
    assert compare_with_prediction(a_point(used_repeats=())) is None
    assert prediction_fields(None) == {
        "predicted": None,
        "measured_over_predicted": None,
        "worse_than_predicted": None,
    }
