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
