"""Numbered notes below a table."""

from __future__ import annotations

from orchestrator.report.footnotes import Footnotes, RowNote
from orchestrator.report.written_form import TextForm


def lines_of(footnotes: Footnotes, width: int = 80) -> list[str]:
    return list(footnotes.lines(TextForm("--columns", width)))


def test_the_same_note_has_the_same_number_and_is_said_once() -> None:
    footnotes = Footnotes()
    marks = [
        footnotes.marks([RowNote("late")]),
        footnotes.marks([RowNote("lost"), RowNote("late")]),
    ]
    assert marks == ["[1]", "[1,2]"]
    assert lines_of(footnotes) == ["[1] late", "[2] lost"]


def test_of_notes_that_differ_only_in_figures_the_first_is_shown() -> None:
    footnotes = Footnotes()
    for share in (96, 92, 95):
        assert footnotes.marks([RowNote(f"others took {share}% of 2.5 cores")]) == "[1]"
    assert lines_of(footnotes) == ["[1] (the first of 3) others took 96% of 2.5 cores"]


def test_a_note_whose_figures_matter_stands_for_itself() -> None:
    footnotes = Footnotes()
    for used in (1, 2):
        footnotes.marks([RowNote(f"{used} of 3 repeats failed", is_exact=True)])
    assert lines_of(footnotes) == ["[1] 1 of 3 repeats failed", "[2] 2 of 3 repeats failed"]


def test_a_row_without_notes_has_no_mark() -> None:
    footnotes = Footnotes()
    assert footnotes.marks([]) == ""
    assert lines_of(footnotes) == []


def test_a_note_fits_a_line() -> None:
    footnotes = Footnotes()
    footnotes.marks([RowNote("other processes took the CPU " * 5)])
    (line,) = lines_of(footnotes, 60)
    assert len(line) <= 60
    assert line.endswith("…")
