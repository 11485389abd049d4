"""What the page says of the workloads of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.documents import workload as documents
from orchestrator.report.documents.workload import workload_documents
from orchestrator.spec.load import Workload

TALK = Workload.model_validate(
    {"name": "talk", "preset": "chat", "turns": 2, "input_tokens": 100, "output_tokens": 60}
)


def test_lengths_turns_and_reuse_of_the_first_requests() -> None:
    (document,) = workload_documents([TALK], seed=3)
    facts = document.facts
    assert facts is not None
    assert facts.requests == documents.LOOKED_AT
    assert facts.turns is not None
    assert facts.turns.mean == 2
    # of prompts of 100 and 260 tokens, 159 of the second are known: 9 blocks of 16
    assert document.cached_share == pytest.approx(144 / 360)


def test_texts_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    keys = {"name": "w", "kind": "file", "prompts": str(path), "output_tokens": 3}
    (document,) = workload_documents([Workload.model_validate(keys).resolved(str)], seed=0)
    assert document.facts is not None
    assert document.facts.prompt_tokens is None
    assert document.cached_share is None
    path.write_text("another\n")
    (changed,) = workload_documents(
        [Workload.model_validate(keys | {"prompts_digest": "0" * 16})], 0
    )
    assert changed.facts is None


def test_nothing_is_downloaded_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dataset: object) -> None:
        raise AssertionError(f"{dataset} was asked for")

    monkeypatch.setattr("orchestrator.workloads.file.local_file", refuse)
    keys = {"name": "w", "kind": "file", "dataset": {"id": "me/one"}, "output_tokens": 3}
    (document,) = workload_documents([Workload.model_validate(keys)], seed=0)
    assert document.facts is None
