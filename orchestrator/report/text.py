"""Tables and numbers as text. Lines may hold ANSI colours: ``click.echo`` strips them where there
is no terminal.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Cell]], width: int | None = None
) -> Iterator[str]:
    """A table line by line. ``rows``: one cell per column. On too narrow a terminal every cell gets
    its own line.
    """
    cells = [
        [one if isinstance(one, Cell) else Cell(one) for one in row]
        for row in ([Cell(column.title, "bold") for column in columns], *rows)
    ]
    width = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH)
    narrower = ((_stacked(columns, cells, first), " ") for first in range(len(columns), -1, -1))
    for shown, gap in ((cells, "  "), *narrower):
        texts = [[cell.text for cell in column] for column in zip(*shown, strict=True)]
        natural = [
            max(len(line) for text in column for line in text.split("\n")) for column in texts
        ]
        words = [
            max((len(word) for text in column for word in text.split()), default=0)
            for column in texts
        ]
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


def _stacked(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], first: int
) -> list[list[Cell]]:
    """The same rows, with one word per line in the columns from the ``first`` on that do not fold."""
    return [
        [
            one if column.fold or at < first else Cell(one.text.replace(" ", "\n"), one.style)
            for at, (column, one) in enumerate(zip(columns, row, strict=True))
        ]
        for row in rows
    ]


def _cell_by_cell(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    for row in rows:
        yield ""
        for column, cell in zip(columns, row, strict=True):
            yield f" {plain(column.title)}: {say(', '.join(cell.text.split(chr(10))), cell.style)}"


def echo(lines: str, err: bool = False) -> None:
    """Print lines, wrapped between words on a terminal."""
    width = (
        shutil.get_terminal_size().columns if (sys.stderr if err else sys.stdout).isatty() else None
    )
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
    return click.style(
        text,
        fg=colours[0] if colours else None,
        bold="bold" in words or None,
        dim="dim" in words or None,
    )


def plain(text: str) -> str:
    """Foreign text as one safe line: control characters are shown, not sent to the terminal."""
    return "".join(
        char if char.isprintable() else ascii(char)[1:-1]
        for char in text.replace("\t", "    ").replace("\n", " ")
    )


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
    return (
        f"{figure(interval.estimate)}\n±{figure((interval.upper - interval.lower) / 2)}"
        if interval
        else "-"
    )


def share_text(share: Interval) -> str:
    """A share, below it its interval."""
    return f"{share.estimate:.3f}\n{share.lower:.3f}-{share.upper:.3f}"


def size_text(count: float) -> str:
    """Bytes in the unit that leaves about three digits: ``13.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:,.1f} GiB"


def _widths(
    columns: Sequence[Column], natural: Sequence[int], words: Sequence[int], room: int
) -> list[int]:
    """The width of each column: folding ones share what the others leave of ``room``, the narrow
    ones first.

    None gets less than 8, nor less than its longest word or LEAST_FOLDED, whichever is shorter.
    """
    room -= sum(wide for column, wide in zip(columns, natural, strict=True) if not column.fold)
    found = list(natural)
    folding = sorted(
        (wide, at)
        for at, (column, wide) in enumerate(zip(columns, natural, strict=True))
        if column.fold
    )
    for left, (wide, at) in zip(range(len(folding), 0, -1), folding, strict=True):
        found[at] = max(8, min(words[at], LEAST_FOLDED), min(wide, room // left))
        room -= found[at]
    return found


def _lines(
    row: Sequence[Cell],
    columns: Sequence[Column],
    widths: Sequence[int],
    gap: str,
    bottom: bool = False,
) -> Iterator[str]:
    texts = [_folded(cell.text, wide) for cell, wide in zip(row, widths, strict=True)]
    height = max(map(len, texts))
    for nth in range(height):
        parts = []
        for cell, column, wide, lines in zip(row, columns, widths, texts, strict=True):
            at = nth - (height - len(lines) if bottom else 0)
            text = lines[at] if 0 <= at < len(lines) else ""
            parts.append(
                say(
                    text.ljust(wide) if column.fold else text.rjust(wide),
                    cell.style if text else None,
                )
            )
        yield (" " + gap.join(parts)).rstrip()


def _folded(text: str, width: int) -> list[str]:
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return lines
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    ]
