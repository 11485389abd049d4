"""A workload on a screen of 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.workload_text import WIDTH, sample_lines, workload_lines
from orchestrator.spec.load import PRESETS, Workload
from orchestrator.workloads.content import RandomIds, Words
from orchestrator.workloads.facts import facts_of, sampled


@pytest.mark.parametrize("preset", PRESETS.names())
def test_no_line_is_wider_than_80_columns(preset: str) -> None:
    workload = Workload.model_validate({"name": "w", "preset": preset})
    ids = RandomIds((1000, 2000))
    lines = list(workload_lines(workload, facts_of(workload, ids, 0, 300), 0.5))
    lines += sample_lines(list(sampled(workload, ids, 0, 4)))
    assert max(map(len, lines)) <= WIDTH
    assert "reuse: an unlimited prefix cache would hold 50.0% of prompt tokens" in lines


def test_texts_without_a_tokenizer_have_characters_and_are_shown_safely(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("bell \a and " + "word " * 40 + "\n")
    keys = {"name": "w", "kind": "file", "prompts": str(tmp_path / "p.txt"), "output_tokens": 3}
    workload = Workload.model_validate(keys)
    lines = list(workload_lines(workload, facts_of(workload, Words(), 0, 9), None))
    assert lines[0] == "w: file, api completions; 1 request"
    assert any(line.startswith("prompt characters") for line in lines)
    assert "texts are not counted: give the model's --tokenizer" in lines
    (_, _, shown) = sample_lines(list(sampled(workload, Words(), 0, 1)))
    assert "bell ? and word" in shown
    assert shown.endswith(" word…")
