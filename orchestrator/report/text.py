"""Tables and numbers as text. Lines may hold ANSI colours: ``click.echo`` strips them where there
is no terminal.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

import click

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.metrics import few
from orchestrator.results.records import Distribution

WIDTH = 120  # where there is no terminal
EMULATED = "emulated: an emulator answered, not an engine; this says nothing about real hardware"
LEAST_FOLDED = 12  # characters of a folding column, unless all its words are shorter
_RULE = "─"


@dataclass(frozen=True, slots=True)
class Column:
    """``title`` and cells may have several lines. Folding columns share the width that the others
    leave.
    """

    title: str
    # left-aligned and wrapped where too wide; else right-aligned and never wrapped
    fold: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in one style (see ``say``)."""

    text: str
    style: str | None = None


@dataclass(frozen=True, slots=True)
class ExtraColumn:
    """A column that a table has only where some row has something in it; ``cells``: one per row."""

    column: Column
    cells: Sequence[str | Cell]

    def append_to(self, columns: list[Column], rows: Sequence[list[str | Cell]]) -> None:
        columns.append(self.column)
        for row, cell in zip(rows, self.cells, strict=True):
            row.append(cell)


_Rows = Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The rows of a table, the title's first, with the width of each column."""

    rows: _Rows
    widths: Sequence[int]
    gap: str  # between two columns

    @property
    def width(self) -> int:
        return 1 + sum(self.widths) + len(self.gap) * (len(self.widths) - 1)


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None = None
) -> Iterator[str]:
    """A table line by line. ``rows``: one cell per column. On too narrow a terminal every cell gets
    its own line.
    """
    title_row = [Cell(column.title, "bold") for column in columns]
    body = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    width = width or _terminal_width(sys.stdout) or WIDTH
    layout = _layout(columns, [title_row, *body], width)
    if layout is None:
        yield from _cell_by_cell(columns, body)
        return
    titles, *cells = layout.rows
    yield from _lines(titles, columns, layout, at_bottom=True)
    yield " " + _RULE * (layout.width - 1)
    for row in cells:
        yield from _lines(row, columns, layout)


def _terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that a stream is; None: it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def _layout(columns: Sequence[Column], rows: _Rows, width: int) -> _Layout | None:
    """The widest layout that fits; None: not even one word per line does."""
    for layout in _layouts(columns, rows, width):
        if layout.width <= width:
            return layout
    return None


def _layouts(columns: Sequence[Column], rows: _Rows, width: int) -> Iterator[_Layout]:
    """As it is; with narrow gaps; then with more and more columns stacked, from the right."""
    yield _measured(columns, rows, "  ", width)
    for first_stacked in range(len(columns), -1, -1):
        yield _measured(columns, _stacked(columns, rows, first_stacked), " ", width)


def _stacked(columns: Sequence[Column], rows: _Rows, first_stacked: int) -> _Rows:
    """The same rows, with one word per line in the columns from ``first_stacked`` on that do not
    fold.
    """
    stacked_rows = []
    for row in rows:
        cells = list(row)
        for at, column in enumerate(columns):
            if at >= first_stacked and not column.fold:
                cells[at] = replace(cells[at], text=cells[at].text.replace(" ", "\n"))
        stacked_rows.append(cells)
    return stacked_rows


def _measured(columns: Sequence[Column], rows: _Rows, gap: str, width: int) -> _Layout:
    """A layout with the width of each column. It may be wider than ``width``."""
    natural_widths, longest_words = [], []
    for cells in zip(*rows, strict=True):
        lines: list[str] = []
        for cell in cells:
            lines += cell.text.split("\n")
        natural_widths.append(max(len(line) for line in lines))
        words = " ".join(lines).split()
        longest_words.append(max((len(word) for word in words), default=0))
    room = width - 1 - len(gap) * (len(columns) - 1)
    return _Layout(rows, _widths(columns, natural_widths, longest_words, room), gap)


def _widths(
    columns: Sequence[Column],
    natural_widths: Sequence[int],
    longest_words: Sequence[int],
    room: int,
) -> list[int]:
    """The width of each column: folding ones share what the others leave of ``room``, the narrow
    ones first.

    None gets less than 8, nor less than its longest word or LEAST_FOLDED, whichever is shorter.
    """
    widths = list(natural_widths)
    folding = [at for at, column in enumerate(columns) if column.fold]
    room -= sum(width for at, width in enumerate(widths) if at not in folding)
    folding.sort(key=lambda at: natural_widths[at])
    for index, at in enumerate(folding):
        share = room // (len(folding) - index)
        least = max(8, min(longest_words[at], LEAST_FOLDED))
        widths[at] = max(least, min(natural_widths[at], share))
        room -= widths[at]
    return widths


def _lines(
    row: Sequence[Cell], columns: Sequence[Column], layout: _Layout, at_bottom: bool = False
) -> Iterator[str]:
    """The lines of one row. ``at_bottom``: short cells stand at its bottom, as titles do."""
    texts = [_folded(cell.text, width) for cell, width in zip(row, layout.widths, strict=True)]
    height = max(len(lines) for lines in texts)
    for line in range(height):
        parts = []
        for cell, column, width, lines in zip(row, columns, layout.widths, texts, strict=True):
            at = line - (height - len(lines)) if at_bottom else line
            text = lines[at] if 0 <= at < len(lines) else ""
            padded = text.ljust(width) if column.fold else text.rjust(width)
            parts.append(say(padded, cell.style if text else None))
        yield (" " + layout.gap.join(parts)).rstrip()


def _folded(text: str, width: int) -> list[str]:
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return lines
    folded: list[str] = []
    for line in lines:
        folded += textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    return folded


def _cell_by_cell(columns: Sequence[Column], rows: _Rows) -> Iterator[str]:
    for row in rows:
        yield ""
        for column, cell in zip(columns, row, strict=True):
            text = ", ".join(cell.text.split("\n"))
            yield f" {plain(column.title)}: {say(text, cell.style)}"


def echo(lines: str, err: bool = False) -> None:
    """Print lines, wrapped between words on a terminal."""
    width = _terminal_width(sys.stderr if err else sys.stdout)
    for line in lines.split("\n"):
        click.echo(line if width is None else _between_words(line, width), err=err)


def _between_words(line: str, width: int) -> str:
    text = click.unstyle(line)
    # a line with several styles cannot be cut; a command is left whole to be copied
    if len(text) <= width or text not in line or " orchestrator " in text:
        return line
    begin, _, end = line.partition(text)  # begin and end are the ANSI codes of its style
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    parts = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(f"{begin}{part}{end}" for part in parts)


def say(text: str, style: str | None = None) -> str:
    """One line in a style: a colour that click knows, ``bold``, ``dim``, or two of them (``bold
    green``).
    """
    text = plain(text)
    if style is None:
        return text
    words = style.split()
    colours = [word for word in words if word not in ("bold", "dim")]
    colour = colours[0] if colours else None
    return click.style(text, fg=colour, bold="bold" in words or None, dim="dim" in words or None)


def plain(text: str) -> str:
    """Foreign text as one safe line: control characters are shown, not sent to the terminal."""
    line = text.replace("\t", "    ").replace("\n", " ")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def figure(value: float | None) -> str:
    """About three significant digits, thousands separated; ``-`` for None."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percentile(values: Distribution | None, quantile: float, count: int) -> str:
    """One percentile of ``count`` values; their number is added where they are too few for that
    percentile.
    """
    if values is None:
        return "-"
    text = figure(getattr(values, f"p{quantile * 100:.0f}"))
    return f"{text} (n={count})" if few(count, quantile) else text


def p50_p99(values: Distribution | None, count: int) -> str:
    """Both percentiles of ``count`` values, one below the other."""
    return f"{percentile(values, 0.5, count)}\n{percentile(values, 0.99, count)}"


def plus_minus(interval: Interval | None) -> str:
    """The estimate, below it half the width of its interval."""
    if interval is None:
        return "-"
    half_width = (interval.upper - interval.lower) / 2
    return f"{figure(interval.estimate)}\n±{figure(half_width)}"


def share_text(share: Interval) -> str:
    """A share, below it its interval."""
    return f"{share.estimate:.3f}\n{share.lower:.3f}-{share.upper:.3f}"


def size_text(count: float) -> str:
    """Bytes in the unit that leaves about three digits: ``13.0 MiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:,.1f} GiB"
