"""What ``load`` prints, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.report.documents.level import LevelDocument
from orchestrator.report.load_summary import run_text, runs_text
from orchestrator.spec.load import Level
from tests.unit.load.test_validity import table
from tests.unit.report.documents.test_level import (
    POINT,
    SECRET,
    SOURCE,
    answered,
    document_of,
    failed,
)


def lines_of(document: LevelDocument) -> list[str]:
    return [click.unstyle(line) for line in run_text(document)]


def at_rate(document: LevelDocument, rate: float) -> LevelDocument:
    return replace(document, level=Level(control="request_rate", value=rate))


def test_the_table_names_failures_and_reasons() -> None:
    text = "\n".join(lines_of(document_of(failed(40))))
    assert "360 ok, 40 failed" in text
    assert "http_5xx: 40" in text
    assert "validity: failing" in text
    assert "50.00" in text
    assert SECRET not in text


def test_a_point_where_nothing_answered_still_prints() -> None:
    nothing: dict[str, Any] = {
        "status": ["error"] * 400,
        "error_class": ["connect"] * 400,
        "output_tokens": [None] * 400,
    }
    text = "\n".join(lines_of(document_of(answered(**nothing))))
    assert "connect: 400" in text
    assert "validity: invalid" in text


def test_the_first_token_of_the_answer_is_shown_where_reasoning_came_before_it() -> None:
    plain = document_of(answered())
    assert plain.figures.ttfo_ms is None
    assert not any("ttfo" in line for line in lines_of(plain))
    first_answer_ns = [None] * 399 + [int(399 / 20 * 1e9) + 80_000_000]
    reasoning = document_of(answered(first_answer_ns=first_answer_ns))
    assert any("ttfo" in line for line in lines_of(reasoning))


def test_percentiles_of_too_few_answers_have_their_number_beside_them() -> None:
    (row,) = [line for line in lines_of(document_of(failed(350))) if line.startswith(" ttft  ")]
    assert row.split()[-2:] == ["50.00", "(n=50)"]


def test_a_salted_prefix_cache_is_explained() -> None:
    document = document_of(answered())
    assert "prefix cache at the start: unknown" in lines_of(document)
    salted = replace(document, source=replace(document.source, cache_state="salted"))
    line = "prefix cache at the start: salted (no request finds prompts of an earlier run)"
    assert line in lines_of(salted)


def test_several_levels_have_a_line_each_with_window_lengths_and_cached_tokens() -> None:
    first = at_rate(document_of(answered(cached_tokens=[3] * 400)), 20.0)
    counted_by_chunks = document_of(answered(token_count_source=["chunks"] * 400))
    lines = list(runs_text([first, at_rate(counted_by_chunks, 40.0)]))
    measured = "window: from 0.0 s, 20.0 s long; tokens a request: 100 in, 10 out"
    cached = "1,200 prompt tokens came from the prefix cache"
    assert f"20 req/s: {measured} (counted by: token_ids), {cached}" in lines
    assert f"40 req/s: {measured} (counted by: chunks)" in lines


def test_several_levels_show_the_share_of_requests_that_met_the_limits() -> None:
    slo = parse_slo("ttft<=500ms,attainment>=0.95")
    document = document_of(answered(), [slo])
    lines = [click.unstyle(line) for line in runs_text([document, at_rate(document, 40.0)])]
    (row,) = [line for line in lines if line.startswith(" 40 req/s")]
    assert any("attain-" in line for line in lines)
    assert row.endswith(" 1.000  0.987-1.000  ✓")
    assert "limits: ttft<=500ms,attainment>=0.95" in lines


def test_a_window_that_was_found_says_why_it_begins_there() -> None:
    document = document_of(
        table(600, 20.0, 3.0), load=replace(POINT, warmup_s=None, duration_s=30.0)
    )
    start = f"{document.window_start_s:.1f} s (in flight steady)"
    length = f"{document.figures.window_s:.1f} s long"
    assert f"window: from {start}, {length}" in lines_of(document)


def test_the_end_says_how_to_send_the_same_requests_again() -> None:
    assert "seed: 7 (--seed 7 sends the same requests again)" in lines_of(document_of(answered()))
    repeated = document_of(answered(), source=replace(SOURCE, repeat=1))
    assert "seed: 7, of which each repeat draws requests of its own" in lines_of(repeated)


def test_the_end_names_where_the_run_is_stored() -> None:
    stored = document_of(answered(), source=replace(SOURCE, results="my runs", name="before"))
    command = "orchestrator results 'my runs' shows all runs there"
    assert f"stored as before: {command}" in lines_of(stored)


def test_no_line_of_one_level_is_wider_than_a_terminal() -> None:
    lines = lines_of(document_of(table(), [parse_slo("ttft<=500ms,tpot<=50ms,attainment>=0.95")]))
    table_begins = next(at for at, line in enumerate(lines) if "p50" in line)
    assert max(map(len, lines[table_begins:])) <= 80
    assert any(line.startswith("  attainment ") for line in lines)
    assert any(line.startswith("  goodput ") for line in lines)


@pytest.mark.parametrize("width", [80, 110, 160])
def test_a_table_of_levels_has_a_line_each_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    slo = parse_slo("ttft<=500ms,attainment>=0.95")
    document = document_of(answered(), [slo])
    lines = [click.unstyle(line) for line in runs_text([document, at_rate(document, 40.0)])]
    rule = next(at for at, line in enumerate(lines) if line.startswith(" ─"))
    rows = lines[rule + 1 : rule + 3]
    assert [row.split()[0] for row in rows] == ["20", "40"]
    assert all(len(line) <= width for line in lines[: rule + 4])
    left_out = [line for line in lines if line.startswith("not shown: ")]
    assert len(left_out) == (0 if width == 160 else 1)
