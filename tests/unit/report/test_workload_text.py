"""A workload on a screen of 80 columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.text import size_text
from orchestrator.report.workload_text import (
    WIDTH,
    beside_texts,
    reuse_text,
    sample_lines,
    workload_lines,
)
from orchestrator.spec.load import PRESETS, Workload
from orchestrator.workloads.content import RandomIds, Words
from orchestrator.workloads.facts import facts_of, sampled
from orchestrator.workloads.kind import IdRange
from orchestrator.workloads.reuse import Reuse, WorkloadReuse
from orchestrator.workloads.segments import Uncounted

UNKNOWN = WorkloadReuse({}, is_complete=False, uncounted=[Uncounted.FILE_TEXTS])


@pytest.mark.parametrize("preset", PRESETS.names())
def test_no_line_is_wider_than_80_columns(preset: str) -> None:
    workload = Workload.model_validate({"name": "w", "preset": preset})
    ids = RandomIds(IdRange(1000, 2000))
    reuse = WorkloadReuse({None: Reuse(100, 50)}, is_complete=True, uncounted=())
    lines = list(workload_lines(workload, facts_of(workload, ids, 0, 300), reuse))
    lines += sample_lines(list(sampled(workload, ids, 0, 4)))
    assert max(map(len, lines)) <= WIDTH
    assert "reuse: an unlimited prefix cache would hold 50.0% of prompt tokens" in lines


def test_reuse_is_said_as_far_as_it_is_known() -> None:
    half = Reuse(100, 50)
    known = WorkloadReuse({"chat": half}, is_complete=False, uncounted=[Uncounted.IMAGES])
    assert reuse_text(known) == (
        "reuse: not known, because prompts hold images; of the other parts an unlimited prefix "
        "cache would hold 50.0% of prompt tokens"
    )
    assert reuse_text(WorkloadReuse({}, is_complete=False, uncounted=())) == "reuse: not known"


def test_what_requests_have_beside_their_texts_is_said() -> None:
    workload = Workload.model_validate(
        {
            "name": "w",
            "api": "chat",
            "input_tokens": 10,
            "output_tokens": 5,
            "images": {"sizes": ["8x8"], "count": 2, "distinct": 3},
            "constrain": {"json_schema": {"type": "object"}, "share": 0.5, "variants": 16},
            "adapters": {"names": ["sql", "law"], "base_share": 0.2},
        }
    )
    facts = facts_of(workload, Words(), 0, 50)
    assert facts.images is not None
    a_body = size_text(facts.images.body_bytes.mean)
    assert list(beside_texts(workload, facts)) == [
        f"images: 2 a request (8x8 pixels); 3 differ; {a_body} of a body that has any",
        "constrained answers: 50.0% of requests, by a json_schema in 16 variants",
        "adapters: 2, asked for by 80.0% of sessions",
    ]


def test_texts_without_a_tokenizer_have_characters_and_are_shown_safely(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("bell \a and " + "word " * 40 + "\n")
    keys = {"name": "w", "kind": "file", "prompts": str(tmp_path / "p.txt"), "output_tokens": 3}
    workload = Workload.model_validate(keys)
    lines = list(workload_lines(workload, facts_of(workload, Words(), 0, 9), UNKNOWN))
    assert lines[0] == "w: file, api completions; 1 request"
    assert any(line.startswith("prompt characters") for line in lines)
    assert "reuse: not known, because prompts hold texts of a file" in lines
    assert "texts are not counted: give the model's --tokenizer" in lines
    (_, _, shown) = sample_lines(list(sampled(workload, Words(), 0, 1)))
    assert "bell ? and word" in shown
    assert shown.endswith(" word…")
