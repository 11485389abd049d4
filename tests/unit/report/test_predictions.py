"""``plan --predict``: a table per workload and limits, and how far off predictions are."""

from __future__ import annotations

import click

from orchestrator.plan.model import Plan
from orchestrator.report.predictions import predictions_text
from tests.unit.report.documents.test_predicted_deployment import CAPACITY, predicting

ERROR = {
    "ttft": 0.3,
    "tpot": 0.05,
    "source": "points of x",
    "within": {"ttft": 2, "tpot": 1.2},
    "counted": False,
}


def shown(plan: Plan) -> str:
    return click.unstyle("\n".join(predictions_text(plan)))


def capacity(per_gpu: float, level: float = 24.0) -> dict[str, object]:
    changed = CAPACITY | {"output_throughput_per_gpu": per_gpu, "level": level}
    return {"capacity": {"interactive": {"chat": changed}}, "error": ERROR}


def test_the_best_deployment_stands_first() -> None:
    text = shown(predicting(capacity(96.0), capacity(200.0)))
    (table,) = [part for part in text.split("\n\n") if "predicted capacity of chat" in part]
    assert "under interactive: ttft<=150ms" in table
    *_, best, other = table.splitlines()
    assert best.split() == ["emulator", "seqs=16", "24", "req/s", "200", "80.0-120", "-"]
    assert other.split()[:2] == ["emulator", "seqs=8"]


def test_limits_that_nothing_is_predicted_to_hold_say_so() -> None:
    assert " none holds " in shown(predicting(capacity(0.0, level=0.0), None))


def test_the_error_of_predictions_is_said_once() -> None:
    text = shown(predicting(capacity(96.0), capacity(200.0)))
    error = "median error of predictions: 30% (TTFT), 5% (TPOT), on points of x; intervals would"
    assert text.count(error) == 1
    larger = capacity(200.0) | {"error": ERROR | {"ttft": 0.6}}
    text = shown(predicting(capacity(96.0), larger))
    assert "error of predictions: 30% (TTFT)" in text and "normal: emulator seqs=8\n" in text
    assert "error of predictions: 60% (TTFT)" in text and "normal: emulator seqs=16\n" in text


def test_counted_intervals_hold_nine_in_ten() -> None:
    counted = capacity(96.0) | {"error": ERROR | {"counted": True}}
    assert "intervals hold 9 in 10" in shown(predicting(counted, None))


def test_each_reason_names_the_deployments_it_is_about() -> None:
    without = {"not_predicted": "it runs already"}
    text = shown(predicting(without, without))
    assert "not predicted: it runs already: emulator seqs=8, emulator seqs=16\n" in text
    by_formula = capacity(96.0) | {"no_row": "no row for TP=4"}
    text = shown(predicting(by_formula, None))
    assert "predicted by the formula, no tables: no row for TP=4: emulator seqs=8\n" in text


def test_what_was_simulated_is_called_so() -> None:
    assert "simulated capacity of chat" in shown(
        predicting(capacity(96.0) | {"simulated": "s/"}, None)
    )
