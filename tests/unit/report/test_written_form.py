"""The same tables and notes for a terminal and as Markdown."""

from __future__ import annotations

import click

from orchestrator.report.text import Cell, Column
from orchestrator.report.written_form import MarkdownForm, TextForm

COLUMNS = [Column("deployment", fold=True), Column("tokens/s"), Column("E2E ms", drop_rank=1)]
ROWS = [["vllm tp=2", Cell("1,612", "green"), "200"]]


def unstyled(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


def test_columns_that_are_left_out_of_several_tables_are_named_once() -> None:
    form = TextForm("--columns", 24)
    for _ in range(2):
        assert not any("not shown" in line for line in form.table(COLUMNS, ROWS))
    wide = [Column("deployment"), Column("tokens/s"), Column("TTFT ms", drop_rank=1)]
    list(form.table(wide, ROWS))
    form.width = 80
    assert unstyled(list(form.closing())) == ["not shown: E2E ms, TTFT ms (--columns shows them)"]


def test_only_short_notes_are_cut_and_it_is_said_where_they_stand_whole() -> None:
    form = TextForm("--columns", 20)
    long = "a reason that is longer than a line"
    assert unstyled(list(form.note(long))) == [long]
    assert list(form.closing()) == []
    assert unstyled(list(form.short_note(long, "dim"))) == ["a reason that is lo…"]
    assert unstyled(list(form.closing())) == ["… --format json has these reasons whole"]
    form.reasons_by = "orchestrator best --format json"
    assert unstyled(list(form.closing()))[0].startswith("… orchestrator best --format json has")


def test_control_characters_are_shown_before_a_line_is_cut() -> None:
    (line,) = TextForm("--columns", 10).short_note("\x1b[2J\x1b[2J\x1b[2J")
    assert line == "\\x1b[2J\\x…"


def test_markdown_has_all_columns_and_no_colours() -> None:
    form = MarkdownForm()
    assert list(form.heading("chat of exp")) == ["**chat of exp**"]
    lines = list(form.table(COLUMNS, ROWS))
    assert lines == [
        "",
        "| deployment | tokens/s | E2E ms |",
        "| :-- | --: | --: |",
        "| vllm tp=2 | 1,612 | 200 |",
        "",
    ]
    assert list(form.short_note("  a long reason " * 20))[0].endswith("reason")
    assert list(form.closing()) == []


def test_foreign_text_is_no_markup_in_a_heading_or_a_note() -> None:
    form = MarkdownForm()
    assert list(form.heading("<b>x</b>"))[0] == "**&lt;b&gt;x&lt;/b&gt;**"
    assert list(form.note("a | b")) == ["- a \\| b"]
