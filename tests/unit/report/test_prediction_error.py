"""Measured beside predicted: levels, ratios, and which deployments are worse than the known error
explains.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.deployments import prediction_of
from orchestrator.report.as_json import _prediction_fields
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.documents.prediction import compare_with_prediction
from orchestrator.report.prediction_error import (
    predicted_vs_measured_column,
    predicted_vs_measured_text,
)

LEVELS = [
    {"workload": "chat", "control": "concurrency", "level": level, "ttft_ms": 10.0 * level, "tpot_ms": 5.0 + level,
     "output_throughput": 100.0 * level}
    for level in (1, 4)
] + [
    {"workload": "chat", "control": "request_rate", "level": 6.0, "ttft_ms": 10.0, "tpot_ms": 5.0,
     "output_throughput": 600.0},
    {"workload": "chat", "control": "request_rate", "level": 9.0, "ttft_ms": None, "tpot_ms": None,
     "output_throughput": 800.0},
]  # fmt: skip
ERROR = {"ttft": 0.5, "tpot": 0.1, "source": "x", "within": {"ttft": 2.7, "tpot": 1.25}}


def a_point(
    level: float = 4, control: str = "concurrency", ttft: float = 40.0, tpot: float | None = 9.0, rate: float = 400.0,
    **changes: Any,
) -> Any:  # fmt: skip
    predicted = prediction_of({"weight_bytes": 1, "levels": LEVELS, "error": ERROR})
    medians = {
        "ttft_ms": SimpleNamespace(p50=ttft),
        "tpot_ms": None if tpot is None else SimpleNamespace(p50=tpot),
    }
    values: dict[str, Any] = {
        "deployment": SimpleNamespace(prediction=predicted, label="tp=2"),
        "head": SimpleNamespace(workload="chat", control=control, level=level),
        "figures": SimpleNamespace(**medians, output_token_throughput=rate),
        "used": (1,), "validity": "valid", "emulated": False,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def documents(points: list[Any]) -> list[PointDocument]:
    return [
        PointDocument(point, (), True, False, (), None, compare_with_prediction(point))
        for point in points
    ]


def fields_of(point: Any) -> Any:
    return _prediction_fields(compare_with_prediction(point))


def test_each_figure_is_measured_over_predicted() -> None:
    fields = fields_of(a_point(ttft=60.0, tpot=9.9, rate=380.0))
    assert fields["predicted"] == {"ttft_ms": 40.0, "tpot_ms": 9.0, "output_throughput": 400.0}
    ratio = fields["measured_over_predicted"]
    assert ratio == pytest.approx({"ttft_ms": 1.5, "tpot_ms": 1.1, "output_throughput": 0.95})
    assert fields["worse_than_predicted"] is False


def test_a_level_between_two_that_were_predicted_is_interpolated_and_one_outside_is_not() -> None:
    found = compare_with_prediction(a_point(level=2))
    # half way between 1 and 4
    assert found is not None and found.predicted["tpot_ms"] == pytest.approx(7.5)
    assert compare_with_prediction(a_point(level=5)) is None
    assert compare_with_prediction(a_point(level=4, control="request_rate")) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tpot": 11.5},
            (
                "TPOT is 1.28 times the predicted 9.00 at 4 in flight, where 9 in 10 are within 1.25 "
                "times"
            ),
        ),
        (
            {"ttft": 120.0},
            (
                "TTFT is 3.00 times the predicted 40.0 at 4 in flight, where 9 in 10 are within 2.70 "
                "times"
            ),
        ),
        ({"rate": 200.0}, "output tokens/s is 0.50 of the predicted 400 at 4 in flight, where"),
        (
            {"control": "request_rate", "level": 9.0, "rate": 500.0},
            "output tokens/s is 0.62 of the predicted 800 at 9",
        ),
    ],
)
def test_a_deployment_that_is_worse_than_the_known_error_explains_is_named(
    changes: dict[str, Any], said: str
) -> None:
    worse, fine = a_point(**changes), a_point(level=1, ttft=10.0, tpot=6.0, rate=100.0)
    (line,) = predicted_vs_measured_text(documents([fine, worse]))
    assert line.startswith("\x1b[33mlook at tp=2: ") and said in line
    assert fields_of(worse)["worse_than_predicted"] is True
    _, cells = predicted_vs_measured_column(documents([fine, worse]))
    assert [row[0].style for row in cells] == [None, "yellow"]


def test_what_is_better_not_valid_or_as_much_as_was_sent_is_no_reason_to_look() -> None:
    better, sent = (
        a_point(ttft=1.0, tpot=1.0, rate=4000.0),
        a_point(control="request_rate", level=9.0, rate=790.0),
    )
    disturbed = a_point(tpot=90.0, validity="disturbed")
    short = a_point(control="request_rate", level=7.0, rate=400.0)  # few came in a short probe
    assert list(predicted_vs_measured_text(documents([better, sent, disturbed, short]))) == []


BEHIND = {"control": "request_rate", "ttft": 9000.0, "validity": "engine_bound_backlog"}


def used(ended_early: str | None) -> tuple[Any, ...]:
    return (SimpleNamespace(point=SimpleNamespace(ended_early=ended_early)),)


@pytest.mark.parametrize(("level", "predicted"), [(6.0, 600), (9.0, 800)])
def test_a_deployment_that_falls_behind_far_below_what_it_was_predicted_to_do_is_named(
    level: float, predicted: int
) -> None:
    point = a_point(level=level, rate=200.0, used=used(None), **BEHIND)
    (line,) = predicted_vs_measured_text(documents([point]))
    amount = 200 / predicted
    assert (
        f"output tokens/s is {amount:.2f} of the predicted {predicted} at {level:g} req/s and it "
        "fell behind"
    ) in line
    assert fields_of(point)["worse_than_predicted"] is True


def test_falling_behind_by_as_little_as_the_known_error_or_in_a_probe_that_ended_early_is_no_reason_to_look() -> (
    None
):
    # however long it took with a queue that grew
    little = a_point(level=6.0, rate=500.0, used=used(None), **BEHIND)
    early = a_point(level=6.0, rate=200.0, used=used("fails"), **BEHIND)
    # nobody knows what it should do there
    between = a_point(level=7.0, rate=200.0, used=used(None), **BEHIND)
    assert list(predicted_vs_measured_text(documents([little, early, between]))) == []
    assert not any(fields_of(one)["worse_than_predicted"] for one in (little, early, between))


def test_where_nothing_was_predicted_there_is_no_column() -> None:
    bare = a_point(deployment=SimpleNamespace(prediction=prediction_of({}), label="x"))
    unknown = a_point(
        deployment=SimpleNamespace(prediction=prediction_of({"not_predicted": "why"}), label="x")
    )
    failed = a_point(used=())
    assert predicted_vs_measured_column(documents([bare, unknown, failed])) == ([], [[], [], []])
    assert fields_of(failed) == {
        "predicted": None,
        "measured_over_predicted": None,
        "worse_than_predicted": None,
    }
    assert list(predicted_vs_measured_text(documents([bare, unknown]))) == []


def test_an_emulated_one_is_marked() -> None:
    (line,) = predicted_vs_measured_text(documents([a_point(tpot=90.0, emulated=True)]))
    assert "look at tp=2 (emulated): " in line
