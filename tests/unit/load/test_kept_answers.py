"""The answers that are kept for what is expected of later prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.load import kept_answers
from orchestrator.load.kept_answers import KeptAnswer, KeptAnswers, parts_with_answers
from orchestrator.spec.load import Workload
from orchestrator.workloads.content import Words

TALK = {"kind": "conversations", "turns": 2, "input_tokens": 4, "output_tokens": 3}


def workload(**given: Any) -> Workload:
    return Workload.model_validate({"name": "w", **given})


def parts_of(content: Workload) -> frozenset[str | None]:
    return parts_with_answers(content, content.requests(Words(), 0))


def test_only_answers_that_are_kept_come_back() -> None:
    answers = KeptAnswers()
    answer = KeptAnswer(("yes",), None)
    answers.keep(3, 0, answer)
    assert answers.of(3, 0) is answer
    assert answers.of(3, 1) is None


def test_without_room_for_all_answers_none_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MOST_ANSWERS", 7)
    answers = KeptAnswers()
    answers.keep(0, 0, KeptAnswer(("yes",), np.array([5, 6], np.int32)))
    assert answers.is_complete
    answers.keep(1, 0, KeptAnswer(("yes",), None))
    assert not answers.is_complete
    assert answers.of(0, 0) is None


def test_answers_are_kept_where_later_prompts_are_written_with_them(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three")
    slices = {"content": {"text": str(text)}}
    assert parts_of(workload(**TALK)) == frozenset(), "drawn tokens are known by their names"
    assert parts_of(workload(**TALK, **slices)) == {None}
    alone = workload(input_tokens=4, output_tokens=3, **slices)
    assert parts_of(alone) == frozenset(), "no prompt follows"


def test_of_a_mix_the_answers_of_those_parts_are_kept(tmp_path: Path) -> None:
    said = [("user", "a"), ("assistant", "b"), ("user", "c")]
    messages = [{"role": role, "content": content} for role, content in said]
    file = tmp_path / "sessions.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    of_file = {"kind": "file", "prompts": str(file), "use": "sessions", "output_tokens": 3}
    contents = {
        name: Workload.model_validate({"name": name, **given})
        for name, given in (("talk", TALK), ("file", of_file))
    }
    mix = {"kind": "mix", "parts": [{"workload": name} for name in contents]}
    assert parts_of(workload(**mix).with_contents(contents)) == {"file"}
