"""Tables and figures as text. Lines may hold ANSI colours: ``click.echo`` takes them away where it is no terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from orchestrator.analysis.metrics import few
from orchestrator.results.records import Distribution

WIDTH = 120  # where there is no terminal
EMULATED = "emulated: an emulator answered, not an engine; this says nothing about real hardware"
LEAST_FOLDED = 12  # of columns that fold
_RULE = "─"


@dataclass(frozen=True, slots=True)
class Column:
    """``title`` and cells may have several lines. Columns that fold share the width that the others leave."""

    title: str
    fold: bool = False  # left-aligned and folded; else right-aligned and whole


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of one style (a colour of click's, or ``bold``)."""

    text: str
    style: str | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None = None) -> Iterator[str]:
    """A table line by line. ``rows``: a cell per column. Where the terminal is too narrow, a line per cell instead."""
    cells = [
        [one if isinstance(one, Cell) else Cell(one) for one in row]
        for row in ([Cell(column.title, "bold") for column in columns], *rows)
    ]
    width = width or terminal_width()
    for shown, gap in ((cells, "  "), (cells, " "), (_stacked(columns, cells), " ")):
        texts = [[cell.text for cell in column] for column in zip(*shown, strict=True)]
        natural = [max(len(line) for text in column for line in text.split("\n")) for column in texts]
        words = [max((len(word) for text in column for word in text.split()), default=0) for column in texts]
        widths = _widths(columns, natural, words, width - 1 - len(gap) * (len(columns) - 1))
        if (whole := 1 + sum(widths) + len(gap) * (len(widths) - 1)) <= width:
            break
    else:
        yield from _cell_by_cell(columns, cells[1:])
        return
    yield from _lines(shown[0], columns, widths, gap, bottom=True)
    yield " " + _RULE * (whole - 1)
    for row in shown[1:]:
        yield from _lines(row, columns, widths, gap)


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """The same with the words of columns that do not fold below each other."""
    return [
        [
            one if column.fold else Cell(one.text.replace(" ", "\n"), one.style)
            for column, one in zip(columns, row, strict=True)
        ]
        for row in rows
    ]


def _cell_by_cell(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    for row in rows:
        yield ""
        for column, cell in zip(columns, row, strict=True):
            yield f" {plain(column.title)}: {say(', '.join(cell.text.split(chr(10))), cell.style)}"


def echo(lines: str, err: bool = False) -> None:
    """Prints them: on a terminal folded between words."""
    width = shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None
    for line in lines.split("\n"):
        click.echo(line if width is None else _between_words(line, width), err=err)


def _between_words(line: str, width: int) -> str:
    text = click.unstyle(line)
    if len(text) <= width or text not in line or " orchestrator " in text:  # several styles; a command, which is copied
        return line
    begin, _, end = line.partition(text)  # its style
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    parts = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{begin}{part}{end}" for part in parts)


def terminal_width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def say(text: str, style: str | None = None) -> str:
    """A line in a style: a colour of click's, ``bold``, ``dim``, or two of them (``bold green``)."""
    text = plain(text)
    if style is None:
        return text
    words = style.split()
    colours = [word for word in words if word not in ("bold", "dim")]
    return click.style(
        text, fg=colours[0] if colours else None, bold="bold" in words or None, dim="dim" in words or None
    )


def plain(text: str) -> str:
    """Foreign text as one line that no terminal obeys: control characters are shown, not sent."""
    return "".join(
        char if char.isprintable() else ascii(char)[1:-1] for char in text.replace("\t", "    ").replace("\n", " ")
    )


def figure(value: float | None) -> str:
    """Three digits that matter, thousands separated; ``-`` for None."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percentile(values: Distribution | None, quantile: float, count: int) -> str:
    """One percentile of so many values; with their number where they are too few for it."""
    if values is None:
        return "-"
    text = figure(getattr(values, f"p{quantile * 100:.0f}"))
    return f"{text} (n={count})" if few(count, quantile) else text


def size_text(count: float) -> str:
    """Bytes in the unit that leaves three digits or so: ``13.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:,.1f} GiB"


def _widths(columns: Sequence[Column], natural: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """What fits stays whole; else the folding columns get what the others leave, the narrow ones first, but no less
    than their longest word where that is short."""
    room -= sum(wide for column, wide in zip(columns, natural, strict=True) if not column.fold)
    found = list(natural)
    folding = sorted((wide, at) for at, (column, wide) in enumerate(zip(columns, natural, strict=True)) if column.fold)
    for left, (wide, at) in zip(range(len(folding), 0, -1), folding, strict=True):
        found[at] = max(8, min(words[at], LEAST_FOLDED), min(wide, room // left))
        room -= found[at]
    return found


def _lines(
    row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], gap: str, bottom: bool = False
) -> Iterator[str]:
    texts = [_folded(cell.text, wide) for cell, wide in zip(row, widths, strict=True)]
    height = max(map(len, texts))
    for nth in range(height):
        parts = []
        for cell, column, wide, lines in zip(row, columns, widths, texts, strict=True):
            at = nth - (height - len(lines) if bottom else 0)
            text = lines[at] if 0 <= at < len(lines) else ""
            parts.append(say(text.ljust(wide) if column.fold else text.rjust(wide), cell.style))
        yield (" " + gap.join(parts)).rstrip()


def _folded(text: str, width: int) -> list[str]:
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return lines
    return [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]
