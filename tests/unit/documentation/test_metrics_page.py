"""The page of metrics names figures that the program has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from orchestrator.analysis.metrics import figures, observe
from orchestrator.report.columns import point_columns
from orchestrator.results.window import MeasuredWindow
from tests.unit.documentation.pages import ROOT
from tests.unit.results.builders import request, requests

PAGE = ROOT / "docs" / "reference" / "metrics.md"
NAMED = [
    name
    for row in re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(), re.MULTILINE)
    for name in re.findall(r"`(\w+)`", row)
]


@pytest.mark.parametrize("name", NAMED)
def test_a_figure_that_has_a_formula_is_a_column(name: str) -> None:
    assert name in {column.partition(".")[0] for column in point_columns()}


def test_latencies_and_throughputs_have_formulas() -> None:
    assert {"ttft_ms", "tpot_ms", "itl_ms", "output_token_throughput"} <= set(NAMED)


# One request, times in ms.
ONE = request(0, 20, sent_ms=30, first_ms=100, last_ms=400, tokens=7)
VALUES = {"scheduled": 20, "sent": 30, "first": 100, "last": 400, "N": 7, "k": 1}
WINDOW = MeasuredWindow(0, 10**9)


def latency_formulas(text: str) -> Iterator[tuple[str, str]]:
    """The names of a page with their formulas, of those that are made of VALUES alone."""
    for names, formulas in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, re.MULTILINE):
        for name, formula in zip(re.findall(r"`(\w+)`", names), formulas.split(", "), strict=False):
            if VALUES.keys() >= set(re.findall(r"\w+", formula)):
                yield name, formula.replace("−", "-")


FORMULAS = dict(latency_formulas(PAGE.read_text(encoding="utf-8")))


def test_the_formulas_of_latencies_are_read() -> None:
    times = {"ttft_ms", "ttft_from_sent_ms", "e2e_ms", "e2e_from_sent_ms"}
    assert {*times, "tpot_ms"} == FORMULAS.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_the_formula_of_a_latency_gives_what_is_computed(name: str) -> None:
    computed = asdict(figures(observe(requests(ONE), None, WINDOW)))
    assert eval(FORMULAS[name], {}, VALUES) == pytest.approx(computed[name]["mean"])
