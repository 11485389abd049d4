"""Numbered notes below a table; a note on several rows stands there once."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.report.written_form import Form


@dataclass(frozen=True, slots=True)
class RowNote:
    """A sentence about a row.

    ``is_exact``: the same sentence with other figures is another note; else it is the same note.
    """

    text: str
    style: str | None = None
    is_exact: bool = False

    @property
    def key(self) -> str:
        return self.text if self.is_exact else _without_figures(self.text)


@dataclass(slots=True)
class _Footnote:
    number: int
    note: RowNote
    texts: list[str]


@dataclass(slots=True)
class Footnotes:
    """The notes of one table, numbered in the order in which they first come."""

    _by_key: dict[str, _Footnote] = field(default_factory=dict)

    def marks(self, notes: Iterable[RowNote]) -> str:
        """``[1]`` or ``[1,3]`` for the notes on one row; empty without notes."""
        numbers = sorted({self._number(note) for note in notes})
        return f"[{','.join(map(str, numbers))}]" if numbers else ""

    def _number(self, note: RowNote) -> int:
        footnote = self._by_key.get(note.key)
        if footnote is None:
            footnote = _Footnote(len(self._by_key) + 1, note, [])
            self._by_key[note.key] = footnote
        footnote.texts.append(note.text)
        return footnote.number

    def lines(self, form: Form) -> Iterator[str]:
        for footnote in self._by_key.values():
            texts = footnote.texts
            first_of = f" (the first of {len(texts)})" if len(set(texts)) > 1 else ""
            line = f"[{footnote.number}]{first_of} {footnote.note.text}"
            yield from form.short_note(line, footnote.note.style)


def _without_figures(text: str) -> str:
    return re.sub(r"\d+([.,]\d+)*", "", text)
