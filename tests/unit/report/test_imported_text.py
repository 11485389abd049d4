"""What an import says of its files."""

from __future__ import annotations

from orchestrator.report.imported_text import ImportedFileSummary, import_text


def summary(**given: object) -> ImportedFileSummary:
    values = {
        "name": "a.json",
        "source": "GuideLLM 0.8.1",
        "points": 2,
        "already_stored": 0,
        "with_requests": 2,
        "left_out": {},
    }
    return ImportedFileSummary(**{**values, **given})


def test_a_whole_file_is_one_line() -> None:
    assert list(import_text([summary()], "results/imported")) == [
        "a.json: GuideLLM 0.8.1, 2 points",
        "2 points stored; to see them: orchestrator results results/imported",
    ]


def test_what_was_there_and_what_lacks_requests_is_said() -> None:
    first, *_ = import_text([summary(already_stored=1, with_requests=0)], "p")
    assert first == (
        "a.json: GuideLLM 0.8.1, 2 points, 1 of them imported before, "
        "2 points without requests, so no limits can be judged"
    )


def test_what_is_left_out_is_named_with_numbers() -> None:
    left_out = {f"field{number}": 1_000 * number for number in range(1, 9)}
    _, second, _ = import_text([summary(left_out=left_out)], "p")
    assert second.startswith("  values not stored: field1 (1,000), field2 (2,000)")
    assert second.endswith("field6 (6,000) and 2 more")
