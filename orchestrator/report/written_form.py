"""Writes tables and the notes below them, for a terminal or as Markdown for a pull request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.report.formats import markdown_cell, markdown_table
from orchestrator.report.text import (
    Cell,
    Column,
    cut,
    left_out_text,
    output_width,
    plain,
    styled,
    table_text,
)


class Form(Protocol):
    """Writes headings, tables and notes line by line."""

    def heading(self, text: str, style: str = "bold") -> Iterator[str]: ...

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str | Cell]],
        is_ruled: bool = True,
    ) -> Iterator[str]:
        """The lines of a table. ``is_ruled``: there is a line below the titles."""
        ...

    def note(self, text: str, style: str | None = None) -> Iterator[str]:
        """A sentence that is shown whole."""
        ...

    def short_note(self, text: str, style: str | None = None) -> Iterator[str]:
        """A sentence that may be cut, since JSON has it whole."""
        ...

    def gap(self) -> Iterator[str]: ...

    def closing(self) -> Iterator[str]:
        """The lines that stand once, below all tables."""
        ...


@dataclass(slots=True)
class TextForm:
    """For a terminal. ``shown_by`` names what shows the columns for which there is no room, and
    ``reasons_by`` what shows the sentences that were cut.
    """

    shown_by: str
    width: int = field(default_factory=output_width)
    reasons_by: str = "--format json"
    _left_out: dict[str, Column] = field(default_factory=dict)
    _was_cut: bool = False

    def heading(self, text: str, style: str = "bold") -> Iterator[str]:
        yield styled(text, style)

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str | Cell]],
        is_ruled: bool = True,
    ) -> Iterator[str]:
        text = table_text(columns, rows, self.width, is_ruled)
        for column in text.left_out:
            self._left_out.setdefault(column.name_or_title, column)
        yield from text.lines

    def note(self, text: str, style: str | None = None) -> Iterator[str]:
        yield styled(text, style)

    def short_note(self, text: str, style: str | None = None) -> Iterator[str]:
        whole = plain(text)
        shown = cut(whole, self.width)
        self._was_cut = self._was_cut or shown != whole
        yield styled(shown, style)

    def gap(self) -> Iterator[str]:
        yield ""

    def closing(self) -> Iterator[str]:
        if self._left_out:
            columns = list(self._left_out.values())
            yield styled(left_out_text(columns, self.shown_by, self.width), "dim")
        if self._was_cut:
            yield styled(f"… {self.reasons_by} has these reasons whole", "dim")


@dataclass(frozen=True, slots=True)
class MarkdownForm:
    """All columns, and no sentence cut: a page has the room."""

    def heading(self, text: str, style: str = "bold") -> Iterator[str]:
        yield f"**{markdown_cell(text)}**"

    def table(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str | Cell]],
        is_ruled: bool = True,
    ) -> Iterator[str]:
        yield ""  # ends a heading, or a list of notes
        yield from markdown_table(columns, rows)
        yield ""

    def note(self, text: str, style: str | None = None) -> Iterator[str]:
        yield f"- {markdown_cell(text.strip())}"

    def short_note(self, text: str, style: str | None = None) -> Iterator[str]:
        yield from self.note(text)

    def gap(self) -> Iterator[str]:
        yield ""

    def closing(self) -> Iterator[str]:
        yield from ()
