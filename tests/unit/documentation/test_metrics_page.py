"""The page of metrics names figures that the program has."""

from __future__ import annotations

import re

import pytest

from orchestrator.report.columns import point_columns
from tests.unit.documentation.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"
NAMED = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", NAMED)
def test_a_figure_that_has_a_formula_is_a_column(name: str) -> None:
    assert name in {column.partition(".")[0] for column in point_columns()}


def test_latencies_and_throughputs_have_formulas() -> None:
    assert {"ttft_ms", "tpot_ms", "itl_ms", "output_token_throughput"} <= set(NAMED)
