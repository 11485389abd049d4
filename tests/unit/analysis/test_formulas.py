"""The formulas of the page of metrics are those by which figures are computed."""

from __future__ import annotations

import re
from dataclasses import asdict, fields

import pytest

from orchestrator.analysis.formulas import (
    LATENCIES,
    OF_ONE_REQUEST,
    THROUGHPUTS,
    RequestFormula,
)
from orchestrator.analysis.metrics import figures, observe
from orchestrator.results.records import Figures
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import request, requests

# One request, times in ms.
REQUEST = request(0, 20, sent_ms=30, first_ms=100, last_ms=400, tokens=7, prompt=40)
VALUES = {
    "scheduled": 20,
    "sent": 30,
    "first": 100,
    "last": 400,
    "N": 7,
    "k": 1,
    "prompt": 40,
}
WINDOW_S = 2.0
COMPUTED = asdict(
    figures(observe(requests(REQUEST), None, MeasuredWindow(0, round(WINDOW_S * 1e9))))
)
# in words: it needs the gaps of a stream, or a stream with reasoning
IN_WORDS = {"ttfo_ms", "itl_ms"}
OF_REQUESTS = (*LATENCIES, *OF_ONE_REQUEST)


@pytest.mark.parametrize(
    "formula",
    [formula for formula in OF_REQUESTS if formula.name not in IN_WORDS],
    ids=lambda formula: formula.name,
)
def test_the_formula_of_a_figure_gives_what_is_computed(formula: RequestFormula) -> None:
    assert VALUES.keys() >= set(re.findall(r"[A-Za-z]+", formula.formula))
    per_ms = eval(formula.formula, {}, VALUES)
    expected = per_ms * 1000 if formula.name.endswith("_throughput") else per_ms
    assert COMPUTED[formula.name]["mean"] == pytest.approx(expected)


def test_throughputs_are_counts_over_the_window() -> None:
    counts = {
        "request_throughput": 1,
        "requests_per_minute": 60,
        "output_token_throughput": 7,
        "input_token_throughput": 40,
        "total_token_throughput": 47,
    }
    assert counts.keys() == {formula.name for formula in THROUGHPUTS}
    for name, count in counts.items():
        assert COMPUTED[name] == pytest.approx(count / WINDOW_S), name


def test_every_figure_with_a_unit_has_a_formula() -> None:
    with_units = {
        field.name
        for field in fields(Figures)
        if field.name.endswith(("_ms", "_throughput", "_per_minute"))
    }
    described = {formula.name for formula in (*OF_REQUESTS, *THROUGHPUTS)}
    assert described == with_units
