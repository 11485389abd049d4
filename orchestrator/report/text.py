"""Writes tables and numbers as text.

Lines may hold ANSI colours, which ``click.echo`` strips where there is no terminal.
"""

import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

import click

from orchestrator.analysis.intervals import CONFIDENCE_OF_MODEL, Interval
from orchestrator.analysis.metrics import are_too_few
from orchestrator.base.text import counted
from orchestrator.results.records import Distribution

WIDTH = 120  # where there is no terminal, and COLUMNS is not set
EMULATED = "emulated: an emulator answered; this says nothing about real hardware"
SIMULATED = "simulated: a model computed this in virtual time; nothing was measured"
# The least characters of a folding column, unless all its words are shorter: EASILY_FOLDED is
# tried first, then LEAST_FOLDED.
EASILY_FOLDED = 24
LEAST_FOLDED = 12
LEAST_WIDTH = 8  # of a folding column, even where all its words are shorter
# other columns are left out to give each folding column up to this share of the width
FOLDING_SHARE = 0.4
FEW_MARK = "*"  # beside a percentile of too few values
FEW_TEXT = f"{FEW_MARK} fewer requests than this percentile needs"
_BETWEEN_WORDS = re.compile(r"(?<!\d) ")  # a number keeps its unit
_RULE = "─"
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its title and its cells may have several lines.

    ``fold``: folding columns share the width that the others leave. ``name``: what ``--columns``
    calls the column. ``drop_rank``: where the width is too small, the column of the highest rank is
    left out first; 0: it stays. ``goes_last``: it is left out if no layout fits otherwise.
    """

    title: str
    # left-aligned, and wrapped where it is too wide; other columns are never wrapped
    fold: bool = False
    is_left: bool = False
    drop_rank: int = 0
    name: str = ""
    goes_last: bool = False

    @property
    def is_left_aligned(self) -> bool:
        return self.fold or self.is_left

    @property
    def one_line(self) -> str:
        """The title in one line: ``attainment`` for ``attain-``, ``ment``."""
        line = self.title.replace("-\n", "")
        for end in "/._":  # of the lines of a name
            line = line.replace(f"{end}\n", end)
        return line.replace("\n", " ")

    @property
    def name_or_title(self) -> str:
        return self.name or self.one_line


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in one style (see ``styled``)."""

    text: str
    style: str | None = None


@dataclass(frozen=True, slots=True)
class FilledColumn:
    """A column with its cells: one per row."""

    column: Column
    cells: Sequence[str | Cell]

    def append_to(self, columns: list[Column], rows: Sequence[list[str | Cell]]) -> None:
        columns.append(self.column)
        for row, cell in zip(rows, self.cells, strict=True):
            row.append(cell)


def rows_of(columns: Sequence[FilledColumn]) -> list[list[str | Cell]]:
    """The rows of a table that was made column by column."""
    return [list(cells) for cells in zip(*(column.cells for column in columns), strict=True)]


_Rows = Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class TableText:
    """The lines of a table. ``left_out``: columns for which there was no room."""

    lines: Sequence[str]
    left_out: Sequence[Column] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """The rows of a table, titles first, with the width of each column."""

    columns: Sequence[Column]
    rows: _Rows
    widths: Sequence[int]
    gap: str  # between two columns

    @property
    def width(self) -> int:
        return 1 + sum(self.widths) + len(self.gap) * (len(self.widths) - 1)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Cell]],
    width: int | None = None,
    shown_by: str = "a wider terminal",
) -> Iterator[str]:
    """The lines of a table. ``rows``: one cell per column.

    Where the width is too small, columns with a ``drop_rank`` are left out; a line below names
    them, and what shows them (``shown_by``). Where that is not enough, every cell gets its own
    line.
    """
    width = width or output_width()
    text = table_text(columns, rows, width)
    yield from text.lines
    if text.left_out:
        yield styled(left_out_text(text.left_out, shown_by, width), "dim")


def table_text(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | Cell]],
    width: int,
    is_ruled: bool = True,
) -> TableText:
    """The widest layout that fits; where none does, every cell on a line of its own.

    ``is_ruled``: there is a line below the titles.
    """
    body = [[_safe(cell) for cell in row] for row in rows]
    layout = _layout(columns, body, width)
    if layout is None:
        return TableText(list(_cell_by_cell(columns, body)))
    titles, *cells = layout.rows
    lines = list(_lines(titles, layout, at_bottom=True))
    if is_ruled:
        lines.append(" " + _RULE * (layout.width - 1))
    for row in cells:
        lines += _lines(row, layout)
    left_out = [column for column in columns if column not in layout.columns]
    return TableText(lines, left_out)


def _safe(cell: str | Cell) -> Cell:
    """The cell with every character visible, so that its text is as wide as it is long.

    See ``plain``.
    """
    if isinstance(cell, str):
        cell = Cell(cell)
    if cell.text.isprintable():  # most are
        return cell
    return replace(cell, text="\n".join(plain(line) for line in cell.text.split("\n")))


def left_out_text(columns: Sequence[Column], shown_by: str, width: int) -> str:
    """``not shown: e2e_ms.p50, e2e_ms.p99 (--columns shows them)``, in one line of this width."""
    names = [column.name_or_title for column in columns]
    text = ""
    for shown in range(len(names), 0, -1):
        more = f" and {len(names) - shown} more" if shown < len(names) else ""
        text = f"not shown: {', '.join(names[:shown])}{more} ({shown_by} shows them)"
        if len(text) <= width:
            return text
    number = f"not shown: {counted(len(names), 'column')} ({shown_by} shows them)"
    return number if len(number) <= width else cut(text, width)


def output_width(err: bool = False) -> int:
    """The width in characters: COLUMNS, the terminal's, or WIDTH. ``err``: that of stderr."""
    return _width_of(sys.stderr if err else sys.stdout) or WIDTH


def cut(text: str, width: int | None = None) -> str:
    """The text cut to ``width`` characters, with an ellipsis where something is missing.

    ``width``: None: that of the output.
    """
    width = width or output_width()
    return text if len(text) <= width else text[: width - 1].rstrip() + _CUT


def _width_of(stream: TextIO) -> int | None:
    """COLUMNS, or the width of a stream's terminal; None: neither is there."""
    variable = os.environ.get("COLUMNS", "")
    is_set = variable.isdecimal() and int(variable) > 0
    return shutil.get_terminal_size().columns if is_set or stream.isatty() else None


def _layout(columns: Sequence[Column], body: _Rows, width: int) -> _Layout | None:
    """The widest layout that fits; None: not even one word per line does."""
    layout = _layout_of(columns, body, width)
    if layout is not None:
        return layout
    places = [at for at, column in enumerate(columns) if not column.goes_last]
    kept_columns = [columns[at] for at in places]
    return _layout_of(kept_columns, [[row[at] for at in places] for row in body], width)


def _layout_of(columns: Sequence[Column], body: _Rows, width: int) -> _Layout | None:
    """The widest layout that fits; None: not even one word per line does.

    First columns are left out by their ranks, until each folding column has its room. Then gaps and
    titles become narrow, and at last the folding columns get less room than they should have.
    """
    ranks = {column.drop_rank for column in columns if column.drop_rank}
    for highest in sorted(ranks, reverse=True):
        layout = _of_ranks(columns, body, highest, width)
        if layout.width <= width and _is_roomy(layout, width):
            return layout
    without_ranked = _of_ranks(columns, body, 0, width)
    if without_ranked.width <= width and _is_roomy(without_ranked, width):
        return without_ranked
    for narrow in _narrower(without_ranked, width, EASILY_FOLDED):
        if narrow.width <= width and _is_roomy(narrow, width):
            return narrow
    for least_folded in (EASILY_FOLDED, LEAST_FOLDED):
        for narrow in _narrower(without_ranked, width, least_folded):
            if narrow.width <= width:
                return narrow
    return None


def _of_ranks(columns: Sequence[Column], body: _Rows, highest: int, width: int) -> _Layout:
    """A layout with the columns up to a ``drop_rank``."""
    places = [at for at, column in enumerate(columns) if column.drop_rank <= highest]
    shown = [columns[at] for at in places]
    titles = [Cell(column.title, "bold") for column in shown]
    rows = [[row[at] for at in places] for row in body]
    return _measured(shown, [titles, *rows], "  ", width, LEAST_FOLDED)


def _is_roomy(layout: _Layout, width: int) -> bool:
    """Whether each folding column has the room that it should have.

    This is its natural width or, if that is more than its share of the whole, a width at which its
    texts take two lines.
    """
    share = max(int(width * FOLDING_SHARE), LEAST_FOLDED)
    for at, column in enumerate(layout.columns):
        if not column.fold:
            continue
        needed = max(_width(row[at]) for row in layout.rows)
        if needed > share:
            needed = min(share, _width_of_two_lines({row[at].text for row in layout.rows}))
        if layout.widths[at] < needed:
            return False
    return True


def _width_of_two_lines(texts: Iterable[str]) -> int:
    """The least width at which each text is folded into two lines at most."""
    width = LEAST_FOLDED
    for text in texts:
        while len(_folded(text, width)) > 2 and width < len(text):
            width += 1
    return width


def _width(cell: Cell) -> int:
    return max(len(line) for line in cell.text.split("\n"))


def _narrower(layout: _Layout, width: int, least_folded: int) -> Iterator[_Layout]:
    """The layout anew, then with narrow gaps, then also with one word per line in the titles."""
    columns = layout.columns
    yield _measured(columns, layout.rows, "  ", width, least_folded)
    yield _measured(columns, layout.rows, " ", width, least_folded)
    titles, *rows = layout.rows
    stacked = [replace(title, text=_BETWEEN_WORDS.sub("\n", title.text)) for title in titles]
    yield _measured(columns, [stacked, *rows], " ", width, least_folded)


def _measured(
    columns: Sequence[Column], rows: _Rows, gap: str, width: int, least_folded: int
) -> _Layout:
    """A layout with the width of each column. It may be wider than ``width``."""
    natural_widths = []
    least_widths = []
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        texts = {cell.text for cell in cells}
        natural_widths.append(max(map(len, "\n".join(texts).split("\n"))))
        longest_word = 0
        if column.fold:  # the least width of others is not used
            longest_word = max(map(len, " ".join(texts).split()), default=0)
        least_widths.append(max(LEAST_WIDTH, min(longest_word, least_folded)))
    room = width - 1 - len(gap) * (len(columns) - 1)
    return _Layout(columns, rows, _widths(columns, natural_widths, least_widths, room), gap)


def _widths(
    columns: Sequence[Column],
    natural_widths: Sequence[int],
    least_widths: Sequence[int],
    room: int,
) -> list[int]:
    """The width of each column. Folding columns share what the others leave of ``room``.

    Narrow ones are served first. ``least_widths``: what each folding column gets at least.
    """
    widths = list(natural_widths)
    folding = [at for at, column in enumerate(columns) if column.fold]
    room -= sum(width for at, width in enumerate(widths) if at not in folding)
    folding.sort(key=lambda at: natural_widths[at])
    for index, at in enumerate(folding):
        share = room // (len(folding) - index)
        widths[at] = max(least_widths[at], min(natural_widths[at], share))
        room -= widths[at]
    return widths


def _lines(row: Sequence[Cell], layout: _Layout, at_bottom: bool = False) -> Iterator[str]:
    """The lines of one row. ``at_bottom``: short cells stand at the bottom, as titles do."""
    texts = [_folded(cell.text, width) for cell, width in zip(row, layout.widths, strict=True)]
    height = max(len(lines) for lines in texts)
    cells: list[list[str]] = []
    for cell, column, width, lines in zip(row, layout.columns, layout.widths, texts, strict=True):
        empty_lines = [""] * (height - len(lines))
        filled = [*empty_lines, *lines] if at_bottom else [*lines, *empty_lines]
        cells.append([_aligned(text, cell.style, column, width) for text in filled])
    for parts in zip(*cells, strict=True):
        yield (" " + layout.gap.join(parts)).rstrip()


def _aligned(text: str, style: str | None, column: Column, width: int) -> str:
    """One line of a cell, as wide as its column."""
    shown = styled(text, style if text else None)
    spaces = " " * (width - len(text))
    return shown + spaces if column.is_left_aligned else spaces + shown


def _folded(text: str, width: int) -> list[str]:
    """The lines of a text; those that are too long are wrapped."""
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return lines
    folded: list[str] = []
    for line in lines:
        folded += textwrap.wrap(line, width, break_on_hyphens=False) or [""]
    return folded


def _cell_by_cell(columns: Sequence[Column], rows: _Rows) -> Iterator[str]:
    """Every cell on a line of its own, behind the title of its column."""
    for row in rows:
        yield ""
        for column, cell in zip(columns, row, strict=True):
            text = ", ".join(cell.text.split("\n"))
            yield f" {plain(column.one_line)}: {styled(text, cell.style)}"


def echo(lines: str, err: bool = False) -> None:
    """Prints lines; where the width is known (a terminal, or COLUMNS), they are wrapped.

    They break after a clause or, failing that, between words.
    """
    width = _width_of(sys.stderr if err else sys.stdout)
    for line in lines.split("\n"):
        click.echo(line if width is None else wrapped(line, width), err=err)


def wrapped(line: str, width: int) -> str:
    """The line in several of ``width`` characters at most; those after the first are indented.

    A line with a command or with several styles stays whole.
    """
    text = click.unstyle(line)
    # a line with several styles cannot be cut; a command is left whole to be copied
    if len(text) <= width or text not in line or " orchestrator " in text:
        return line
    before, _, after = line.partition(text)  # the ANSI codes of its style
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    parts: list[str] = []
    rest = text
    while rest:
        end = _line_end(rest, width)
        parts.append(rest[:end])
        following = rest[end:].lstrip()
        rest = f"{indent}{following}" if following else ""
    return "\n".join(f"{before}{part}{after}" for part in parts)


def _line_end(text: str, width: int) -> int:
    """Where the first line of a text ends.

    It ends after the last clause that ends in its second half, so that a number keeps its unit.
    Failing that, it ends after its last word. A word is never cut.
    """
    if len(text) <= width:
        return len(text)
    begin = len(text) - len(text.lstrip())
    after_word = text.rfind(" ", begin, width + 1)
    if after_word < 0:
        after_long_word = text.find(" ", begin)
        return len(text) if after_long_word < 0 else after_long_word
    clause_ends = [end for end in _clause_ends(text) if width // 2 <= end <= after_word]
    return clause_ends[-1] if clause_ends else after_word


def _clause_ends(text: str) -> Iterator[int]:
    """The spaces after a clause, and those around a parenthesis; none inside a parenthesis."""
    open_parentheses = 0
    for at, char in enumerate(text):
        if char == "(":
            open_parentheses += 1
        elif char == ")":
            open_parentheses -= 1
        elif char == " " and not open_parentheses and _ends_clause(text, at):
            yield at


def _ends_clause(text: str, space: int) -> bool:
    return text[space - 1] in ":;,)" or text[space + 1 : space + 2] == "("


def styled(text: str, style: str | None = None) -> str:
    """One line in a style.

    ``style``: a colour that click knows, ``bold``, ``dim``, or two of them (``bold green``).
    """
    text = plain(text)
    if style is None:
        return text
    words = style.split()
    colours = [word for word in words if word not in ("bold", "dim")]
    colour = colours[0] if colours else None
    return click.style(text, fg=colour, bold="bold" in words or None, dim="dim" in words or None)


def plain(text: str) -> str:
    """The text as one safe line: control characters are shown, and not sent to the terminal."""
    if text.isprintable():  # most are
        return text
    line = text.replace("\t", "    ").replace("\n", " ")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def figure(value: float | None) -> str:
    """Three significant digits; from 1,000 on all before the point, below 1 two digits after it.

    ``-`` for None and NaN.
    """
    if value is None or math.isnan(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def marked_percentile(values: Distribution | None, quantile: float, count: int) -> str:
    """One percentile of ``count`` values, with FEW_MARK where they are too few for it."""
    text = _percentile(values, quantile)
    return f"{text}{FEW_MARK}" if values is not None and are_too_few(count, quantile) else text


def _percentile(values: Distribution | None, quantile: float) -> str:
    return figure(None if values is None else getattr(values, f"p{quantile * 100:.0f}"))


def marks_aligned(texts: Sequence[str]) -> list[str]:
    """Pads texts without FEW_MARK by a space if others in the column have the mark."""
    if not any(text.endswith(FEW_MARK) for text in texts):
        return list(texts)
    return [text if text.endswith(FEW_MARK) else f"{text} " for text in texts]


def interval_text(interval: Interval | None) -> str:
    """``842-905``; ``-`` where there is no interval, or its bounds are unknown."""
    if interval is None or math.isnan(interval.lower):
        return "-"
    return f"{figure(interval.lower)}-{figure(interval.upper)}"


def share_interval_text(share: Interval | None) -> str:
    """``0.697-0.811``; ``-`` where there is no interval, or its bounds are unknown."""
    if share is None or math.isnan(share.lower):
        return "-"
    return f"{share.lower:.3f}-{share.upper:.3f}"


def confidence_text(interval: Interval) -> str:
    """``95 %`` for an interval of measurements, ``9 in 10`` for one of a simulated figure."""
    return "9 in 10" if interval.confidence == CONFIDENCE_OF_MODEL else "95 %"


def size_text(size_bytes: float) -> str:
    """A size in the unit that leaves about three digits: ``13.0 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} B"
    size = size_bytes
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:,.1f} GiB"


def value_texts(values: Sequence[object]) -> list[str]:
    """The texts of one column's values; ``-`` for None.

    Numbers have no digits after the point if none of them needs any.
    """
    floats = [value for value in values if isinstance(value, float)]
    are_whole = all(value.is_integer() or math.isinf(value) for value in floats)
    return [_value_text(value, are_whole) for value in values]


def _value_text(value: object, are_whole: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if are_whole else _number_text(value)
    if isinstance(value, list | tuple):
        return "; ".join(map(str, value))
    return str(value)


def _number_text(value: float) -> str:
    """Shares have three digits after the point."""
    return f"{value:.3f}" if abs(value) <= 1 else figure(value)
