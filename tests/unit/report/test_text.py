"""Tables and sentences on terminals of any width."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import click
import pytest

from orchestrator.report.text import (
    Cell,
    Column,
    FilledColumn,
    cut,
    echo,
    interval_text,
    left_out_text,
    marked_percentile,
    marks_aligned,
    output_width,
    rows_of,
    share_interval_text,
    styled,
    table,
    table_text,
    value_texts,
)

COLUMNS = [
    Column("deployment", fold=True),
    Column("load"),
    Column("tokens/s"),
    Column("95 %\ninterval", drop_rank=1, name="tokens/s.lower"),
    Column("TTFT ms\np50", drop_rank=2, name="ttft_ms.p50"),
    Column("TTFT ms\np99"),
]
ROW: list[str | Cell] = [
    "vllm tp=2 len=4096",
    "20 req/s",
    Cell("1,612", "green"),
    "1,471-1,753",
    "13.6",
    "26.1",
]


def shown(width: int, columns: Any = COLUMNS, row: Any = ROW) -> list[str]:
    return [click.unstyle(line) for line in table(columns, [row, row], width)]


@pytest.mark.parametrize("width", [36, 40, 60, 70, 80, 160])
def test_no_line_is_longer_than_the_width(width: int) -> None:
    assert max(map(len, shown(width))) <= width


@pytest.mark.parametrize("width", range(20, 90))
def test_nothing_wraps_inside_a_number(width: int) -> None:
    text = "\n".join(shown(width))
    for whole in ("20 req/s", "1,612", "26.1"):
        assert text.count(whole) == 2
    for droppable in ("1,471-1,753", "13.6"):
        assert text.count(droppable) in (0, 2)
    assert "1,471-\n" not in text


def test_where_all_columns_fit_each_row_is_a_line() -> None:
    *_, first, second = shown(100)
    assert first.split() == ["vllm", "tp=2", "len=4096", "20", "req/s", *first.split()[5:]]
    assert first == second
    assert first.endswith("1,612  1,471-1,753     13.6     26.1")


def test_the_column_of_the_highest_rank_goes_first_and_a_line_says_which() -> None:
    *_, row, note = shown(62)
    assert row.endswith("1,612  1,471-1,753     26.1")
    assert note == "not shown: ttft_ms.p50 (a wider terminal shows them)"
    *_, row, note = shown(50)
    assert row.endswith("1,612     26.1")
    assert note == "not shown: 2 columns (a wider terminal shows them)"
    *_, note = shown(40)
    assert note.startswith("not shown: tokens/s.lower")


def test_columns_without_a_rank_stay_and_the_label_is_folded_between_words() -> None:
    lines = shown(36)
    assert any(line.startswith(" vllm tp=2  ") for line in lines)
    assert any(line.strip() == "len=4096" for line in lines)


def test_a_long_label_is_folded_before_others_are_left_out_for_it() -> None:
    row = [" ".join(["word"] * 30), *ROW[1:]]
    lines = shown(100, row=row)
    assert "1,471-1,753" in lines[3]
    assert not any(line.startswith("not shown") for line in lines)


def test_where_no_column_fits_every_cell_has_a_line() -> None:
    lines = list(table([Column("load"), Column("tokens/s\n95 %")], [["a", "1\n2"], ["b", "3"]], 12))
    assert lines == ["", " load: a", " tokens/s 95 %: 1, 2", "", " load: b", " tokens/s 95 %: 3"]


def test_control_characters_take_the_room_that_they_are_shown_with() -> None:
    lines = table_text([Column("label", fold=True), Column("load")], [["\x1b[2J", "1"]], 80).lines
    assert click.unstyle(lines[-1]) == " \\x1b[2J      1"


def test_names_of_columns_that_are_left_out_fit_a_line() -> None:
    columns = [Column("x", name=f"latency_{at}.p50") for at in range(9)]
    text = left_out_text(columns, "--columns", 60)
    assert text == "not shown: latency_0.p50 and 8 more (--columns shows them)"
    assert len(left_out_text(columns, "--columns", 30)) <= 30


def test_columns_that_are_left_out_are_counted_where_not_even_one_name_fits() -> None:
    columns = [Column("x", name="attainment.lower"), *[Column("y", name="starts")] * 6]
    shown_by = "a wider terminal or --format json"
    text = left_out_text(columns, shown_by, 80)
    assert text == f"not shown: 7 columns ({shown_by} shows them)"


def test_a_cut_line_ends_in_an_ellipsis() -> None:
    assert cut("one two three", 8) == "one two…"
    assert cut("one two", 8) == "one two"


def test_the_width_can_be_asked_for_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output_width() == 120
    monkeypatch.setenv("COLUMNS", "80")
    assert output_width() == 80
    monkeypatch.setenv("COLUMNS", "wide")
    assert output_width() == 120


def test_a_table_can_be_made_column_by_column() -> None:
    columns = [FilledColumn(Column("a"), ["1", "2"]), FilledColumn(Column("b"), ["3", "4"])]
    assert rows_of(columns) == [["1", "3"], ["2", "4"]]


def test_a_percentile_of_too_few_values_is_marked_and_digits_stay_aligned() -> None:
    values: Any = SimpleNamespace(p50=10.0, p99=20.0)
    assert marked_percentile(values, 0.99, 99) == "20.0*"
    assert marked_percentile(values, 0.99, 100) == "20.0"
    assert marked_percentile(None, 0.99, 3) == "-"
    assert marks_aligned(["20.0*", "7.00"]) == ["20.0*", "7.00 "]
    assert marks_aligned(["20.0", "7.00"]) == ["20.0", "7.00"]


def test_intervals_are_two_numbers() -> None:
    interval: Any = SimpleNamespace(estimate=0.8, lower=0.75, upper=0.85)
    assert interval_text(interval) == "0.75-0.85"
    assert share_interval_text(interval) == "0.750-0.850"
    assert interval_text(None) == share_interval_text(None) == "-"


def test_sentences_are_folded_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = f"  left out: {'emulator ' * 12}at 5 req/s"
    text = f"{styled(long, 'dim')}\n\nnext: orchestrator best '/{'a' * 90}' --slo interactive"
    echo(text)
    assert capsys.readouterr().out == click.unstyle(text) + "\n"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    echo(text)
    *folded, empty, command = capsys.readouterr().out.splitlines()
    shown = [click.unstyle(line) for line in folded]
    assert max(map(len, shown)) <= 60
    assert " ".join(" ".join(shown).split()) == " ".join(long.split())
    assert all(line.startswith("  ") for line in shown) and shown[1].startswith("    ")
    assert (empty, command) == ("", text.splitlines()[2])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "best: tp=2 at 10 in flight (not the limit): 887 output tokens/s per core",
            ["best: tp=2 at 10 in flight (not the limit):", "  887 output tokens/s per core"],
        ),
        (
            "best: tp=2 at 10 in flight: 887 output tokens/s per core (95 %: 863-911)",
            ["best: tp=2 at 10 in flight:", "  887 output tokens/s per core (95 %: 863-911)"],
        ),
        (
            "  a: this sentence has no clause in the second half of its line",
            ["  a: this sentence has no clause in the second", "    half of its line"],
        ),
        (f"  {'x' * 60} y", [f"  {'x' * 60}", "    y"]),
        (f"  {'x' * 60}", [f"  {'x' * 60}"]),
    ],
)
def test_a_line_ends_after_a_clause_where_one_ends_in_its_second_half(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, lines: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    echo(text)
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([None, "x", ("a", "b")], ["-", "x", "a; b"]),
        ([True, False], ["yes", "no"]),
        ([12345, 8], ["12,345", "8"]),
        ([8.0, 1234.0, math.inf], ["8", "1,234", "inf"]),
        ([1.0, 0.75812, None], ["1.000", "0.758", "-"]),
        ([1234.5, 8.0], ["1,234", "8.00"]),
    ],
)
def test_any_values_of_a_column_have_texts(values: list[object], texts: list[str]) -> None:
    assert value_texts(values) == texts


def test_a_title_in_several_lines_is_a_line_in_markdown_and_in_blocks() -> None:
    titles = ("attain-\nment", "measured/\npredicted", "TTFT ms\np99", "per_\ndevice.\nlower")
    assert [Column(title).one_line for title in titles] == [
        "attainment",
        "measured/predicted",
        "TTFT ms p99",
        "per_device.lower",
    ]


def test_a_column_goes_last_rather_than_each_cell_gets_a_line() -> None:
    columns = [
        Column("deployment", fold=True),
        Column("tokens/s"),
        Column("TTFT p99 ms", name="ttft_ms.p99", goes_last=True),
    ]
    rows = [["tensor parallel 2", "1,234,567,890", "123,456,789.0"]]
    assert table_text(columns, rows, 60).left_out == []
    narrow = table_text(columns, rows, 30)
    assert [column.name for column in narrow.left_out] == ["ttft_ms.p99"]
    assert max(map(len, map(click.unstyle, narrow.lines))) <= 30
