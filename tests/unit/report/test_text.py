"""Tables and sentences on terminals of any width."""

from __future__ import annotations

import sys

import click
import pytest

from orchestrator.report.text import Cell, Column, echo, say, table

COLUMNS = [
    Column("deployment", fold=True),
    *map(Column, ("load", "tokens/s\n95 %", "TTFT ms\np50, p99")),
]
ROW: list[str | Cell] = [
    "vllm tp=2 len=4096",
    "20 req/s",
    Cell("612\n±141", "green"),
    "13.6\n26.1 (n=78)",
]


@pytest.mark.parametrize("width", [48, 60, 80, 160])
def test_no_line_of_a_table_is_longer_than_the_terminal_is_wide(width: int) -> None:
    lines = [click.unstyle(line) for line in table(COLUMNS, [ROW, ROW], width)]
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(" deploym") or lines[0].strip() == "tokens/s      TTFT ms"


def test_on_a_narrow_terminal_only_as_many_columns_as_needed_are_stacked_from_the_right() -> None:
    wide, narrow = (
        "\n".join(map(click.unstyle, table(COLUMNS, [ROW], width))) for width in (44, 40)
    )
    assert "20 req/s" in wide and "26.1 (n=78)" in wide
    assert "20 req/s" in narrow and "26.1 (n=78)" not in narrow


def test_where_no_column_fits_every_cell_has_a_line() -> None:
    lines = list(table([Column("load"), Column("tokens/s\n95 %")], [["a", "1\n2"], ["b", "3"]], 12))
    assert lines == ["", " load: a", " tokens/s 95 %: 1, 2", "", " load: b", " tokens/s 95 %: 3"]


def test_sentences_are_folded_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = f"  left out: {'emulator ' * 12}at 5 req/s"
    text = f"{say(long, 'dim')}\n\nnext: orchestrator best '/{'a' * 90}' --slo interactive"
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
