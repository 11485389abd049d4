"""How often prompts of a file were sent, over levels and warm-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.spec.load import Workload
from orchestrator.workloads.repeats import PromptRepeats

ANSWERS: dict[str, Any] = {"name": "w", "output_tokens": 4}
TRACE = "".join(
    f'{{"timestamp": {at}, "input_length": 30, "output_length": 5}}\n' for at in (1, 2, 3)
)


def of_file(folder: Path, content: str, name: str) -> Workload:
    file = folder / name
    file.write_text(content)
    workload = Workload.model_validate(ANSWERS | {"kind": "file", "prompts": str(file)})
    return workload.resolved(str)


def three_texts(folder: Path) -> Workload:
    return of_file(folder, "a\nb\nc\n", "texts.txt")


def test_warm_ups_end_with_the_last_prompt_levels_begin_with_the_first(
    tmp_path: Path,
) -> None:
    repeats = PromptRepeats(three_texts(tmp_path))
    repeats.add_warm_up(1)
    assert repeats.add_level(2) == []


def test_prompts_that_earlier_levels_sent_are_reported(tmp_path: Path) -> None:
    repeats = PromptRepeats(three_texts(tmp_path))
    repeats.add_level(2)
    assert repeats.add_level(3) == [
        "3 requests of 3 prompts, also sent before (warm-up, earlier levels): each sent up to 2 "
        "times; a prefix cache answers faster"
    ]
    (note,) = repeats.add_level(4)
    assert "up to 4 times" in note


def test_a_level_that_sends_its_own_prompts_again_says_so(tmp_path: Path) -> None:
    (note,) = PromptRepeats(three_texts(tmp_path)).add_level(4)
    assert note == (
        "4 requests of 3 prompts: each sent up to 2 times; a prefix cache answers faster"
    )


def test_a_salted_level_has_a_cache_of_its_own(tmp_path: Path) -> None:
    repeats = PromptRepeats(three_texts(tmp_path), salted=True)
    assert repeats.add_level(3) == []
    assert repeats.add_level(3) == []


def test_drawn_prompts_are_not_counted(tmp_path: Path) -> None:
    drawn = Workload.model_validate(ANSWERS | {"input_tokens": 8})
    for workload in (drawn, of_file(tmp_path, TRACE, "trace.jsonl")):
        repeats = PromptRepeats(workload)
        repeats.add_warm_up(3)
        assert repeats.add_level(3) == []
