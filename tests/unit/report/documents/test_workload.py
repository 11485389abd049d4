"""What the page says of the workloads of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.report.documents import workload as documents
from orchestrator.report.documents.workload import workload_documents
from orchestrator.spec.load import Workload

KEYS_OF_TALK = {
    "name": "talk",
    "preset": "chat",
    "turns": 2,
    "input_tokens": 100,
    "output_tokens": 60,
}
TALK = Workload.model_validate(KEYS_OF_TALK)


def test_lengths_turns_and_reuse_of_the_first_requests() -> None:
    (document,) = workload_documents([TALK], seed=3)
    facts = document.facts
    assert facts is not None
    assert facts.requests == documents.LOOKED_AT
    assert facts.turns is not None
    assert facts.turns.mean == 2
    # of prompts of 100 and 260 tokens, 159 of the second are known: 9 blocks of 16
    assert document.reuse.of_all.share == pytest.approx(144 / 360)


def test_each_part_of_a_mix_has_its_own_lengths_turns_and_pauses() -> None:
    talk = Workload.model_validate(KEYS_OF_TALK | {"think_time": "3s"})
    rag = Workload.model_validate(
        {"name": "rag", "api": talk.api, "input_tokens": 900, "output_tokens": 5}
    )
    keys = {"name": "office", "kind": "mix", "parts": [{"workload": "talk"}, {"workload": "rag"}]}
    mix = Workload.model_validate(keys).with_contents({"talk": talk, "rag": rag})
    (document,) = workload_documents([mix], seed=3)
    of_talk, of_rag = (part.facts for part in document.parts)
    assert of_talk is not None and of_rag is not None
    assert (of_talk.turns.mean, of_talk.pauses_s.mean) == (2, 3)
    assert (of_rag.turns.mean, of_rag.prompt_tokens.p50) == (1, 900)
    assert document.reuse.of_part(talk).of_all.share == pytest.approx(144 / 360)
    assert document.reuse.of_part(rag).of_all.share == 0
    assert document.facts.requests == of_talk.requests + of_rag.requests


def test_texts_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    keys = {"name": "w", "kind": "file", "prompts": str(path), "output_tokens": 3}
    (document,) = workload_documents([Workload.model_validate(keys).resolved(str)], seed=0)
    assert document.facts is not None
    assert document.facts.prompt_tokens is None
    assert document.reuse is not None
    assert document.reuse.of_all is None
    path.write_text("another\n")
    (changed,) = workload_documents(
        [Workload.model_validate(keys | {"prompts_digest": "0" * 16})], 0
    )
    assert changed.facts is None


def test_nothing_is_downloaded_for_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dataset: object) -> None:
        raise AssertionError(f"{dataset} was asked for")

    monkeypatch.setattr("orchestrator.workloads.file.local_files", refuse)
    keys = {"name": "w", "kind": "file", "dataset": {"id": "me/one"}, "output_tokens": 3}
    (document,) = workload_documents([Workload.model_validate(keys)], seed=0)
    assert document.facts is None
