"""How pictures look: names in legends, titles, and notes on what is not drawn."""

from __future__ import annotations

import math
from typing import Any

from orchestrator.report.plot.look import (
    LONGEST_LABEL,
    axis_text,
    colour,
    curves_note,
    left_out_text,
    line_style,
    marker,
    note_handles,
    short,
    title_of,
    written,
)
from orchestrator.report.plot.points import MOST_CURVES, points_of, series_of
from tests.unit.report.plot.frames import frame, row


def title(*rows: dict[str, Any]) -> str:
    return title_of(points_of(frame(*rows)))


def test_long_names_lose_their_middle() -> None:
    assert short("a" * LONGEST_LABEL) == "a" * LONGEST_LABEL
    assert short("a" * 40 + "b" * 40) == "a" * 29 + "…" + "b" * 29


def test_a_dollar_sign_begins_no_formula() -> None:
    assert written("$1") == r"\$1"


def test_no_two_curves_look_alike() -> None:
    looks = {(colour(rank), marker(rank), line_style(rank)) for rank in range(MOST_CURVES)}
    assert len(looks) == MOST_CURVES


def test_an_axis_has_the_description_of_its_column_with_the_unit() -> None:
    assert axis_text("ttft_ms.p99").endswith("(ms)")
    assert axis_text("no column") == "no column"


def test_a_title_names_workload_experiment_model_and_hardware_once() -> None:
    assert title_of([]) == "no points"
    assert title(row(level=2.0), row(level=4.0)) == "chat of sweep: some-org/m on h100"
    assert title(row(hardware=None)) == "chat of sweep: some-org/m"


def test_a_title_says_what_was_not_measured() -> None:
    assert title(row(emulated=True)).endswith(" (emulated)")
    assert title(row(), row(emulated=True)).endswith(" (some emulated)")


def test_what_has_no_colour_is_named_up_to_three_names() -> None:
    labels = [f"d{number}" for number in range(MOST_CURVES + 5)]
    assert left_out_text(labels) == "not drawn: d8, d9, d10 and 2 more"
    assert left_out_text(labels[:MOST_CURVES]) == ""


def test_a_note_names_loads_without_a_place_on_the_axis() -> None:
    series = series_of(points_of(frame(row("a"), row("b", level=math.inf, per_device=1.0))))
    assert curves_note(series) == "not drawn: all requests due at once (b)"
    assert curves_note(series[:1]) == ""


def test_an_empty_note_has_no_line_in_the_legend() -> None:
    assert note_handles("") == []
    assert [handle.get_label() for handle in note_handles("a note")] == ["a note"]
