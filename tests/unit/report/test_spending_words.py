"""What an experiment cost, in words and as columns."""

from __future__ import annotations

from orchestrator.analysis.spending import ExperimentSpending
from orchestrator.report.spending_words import SpendingRow, spending_columns, spending_text

SPENDING = ExperimentSpending(
    total=10.0,
    starts=2.0,
    failed_starts=0.0,
    counting=6.0,
    not_counting=1.0,
    priced=3,
    launches=3,
)


def test_the_parts_are_shares_of_the_whole_and_nothing_is_left_out() -> None:
    assert spending_text(SPENDING) == (
        "held devices cost 10.0 USD: 60% points that count, 20% starting engines,"
        " 10% points that do not count, 10% all else"
    )


def test_launches_of_unknown_price_are_named() -> None:
    unpriced = ExperimentSpending(1.0, 0.0, 0.0, 1.0, 0.0, priced=1, launches=3)
    assert spending_text(unpriced).endswith("(without 2 starts of unknown price or time)")


def test_columns_have_the_same_figures() -> None:
    columns = spending_columns()
    row = SpendingRow("exp", SPENDING)
    values = {name: column.value(row) for name, column in columns.items()}
    assert values["usd"] == 10.0
    parts = ("counting", "starts", "failed_starts", "not_counting", "other")
    assert sum(values[f"usd_{part}"] for part in parts) == 10.0
    assert all(column.description for column in columns.values())
