"""What an export says of its files."""

from __future__ import annotations

from orchestrator.report.exported_text import export_text


def test_one_file_is_named_and_several_are_counted() -> None:
    assert list(export_text("rows", ["out/a.json"], 3, [])) == ["out/a.json: 3 points, rows"]
    assert list(export_text("reports", ["out/a.json", "out/b.json"], 2, [])) == [
        "2 files in out: reports"
    ]


def test_reasons_are_counted_the_commonest_first() -> None:
    lines = list(export_text("rows", [], 0, ["it failed", "it is disturbed", "it failed"]))
    assert lines == [
        "rows: nothing to write",
        "left out: 2 points: it failed",
        "left out: 1 point: it is disturbed",
    ]


def test_mixes_that_are_written_without_their_parts_are_counted() -> None:
    whole = "a row stands for all that the GPUs did"
    (_, line) = export_text("rows", ["a.json"], 3, [], [whole])
    assert line == f"1 point of a mix is written whole, without its parts: {whole}"
    (_, line) = export_text("rows", ["a.json"], 3, [], [whole, whole])
    assert line == f"2 points of mixes are written whole, without their parts: {whole}"
