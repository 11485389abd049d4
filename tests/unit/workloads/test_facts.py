"""What a workload holds, in numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from orchestrator.spec.load import Workload
from orchestrator.workloads.content import RandomIds, Words
from orchestrator.workloads.facts import NumberSummary, facts_of, sampled, sessions_within
from orchestrator.workloads.images import image_part, png
from orchestrator.workloads.kind import IdRange
from orchestrator.workloads.segments import NameOfDraw
from tests.unit.workloads import traces
from tests.unit.workloads.traces import trace

IDS = RandomIds(IdRange(1000, 2000))
TALK = {
    "name": "w",
    "kind": "conversations",
    "turns": 3,
    "think_time": 2.0,
    "input_tokens": 10,
    "output_tokens": 5,
}


class CountedWords(Words):
    """A tokenizer that counts words."""

    def count(self, text: str) -> int | None:
        return len(text.split())


def test_numbers_are_summarized_by_mean_extremes_and_percentiles() -> None:
    assert NumberSummary.of(range(101)) == NumberSummary(
        count=101, mean=50.0, least=0.0, p50=50.0, p90=90.0, p99=99.0, most=100.0
    )


def test_no_numbers_have_no_summary() -> None:
    assert NumberSummary.of([]) is None


def test_prompts_with_images_have_no_length_where_there_is_no_text_to_count() -> None:
    """As in the page, which draws no tokens."""
    seen = {"name": "w", "api": "chat", "images": {"sizes": ["8x8"]}}
    workload = Workload.model_validate(seen | {"input_tokens": 10, "output_tokens": 5})
    facts = facts_of(workload, NameOfDraw(), seed=0, requests=3)
    assert (facts.prompt_tokens, facts.prompt_characters) == (None, None)
    assert facts.answer_tokens is not None and facts.answer_tokens.count == 3


def test_images_are_counted_by_request_and_by_content(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    picture = png(pixels)
    for name in ("a.png", "copy.png"):
        (tmp_path / name).write_bytes(picture)
    (tmp_path / "b.png").write_bytes(png(pixels + 1))
    lines = [
        {"prompt": "x", "images": ["a.png", "b.png"]},
        {"prompt": "y", "image": "copy.png"},
        {"prompt": "z"},
    ]
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    keys = {"name": "w", "kind": "file", "api": "chat", "output_tokens": 5}
    workload = Workload.model_validate(keys | {"prompts": str(tmp_path / "p.jsonl")})
    images = facts_of(workload, Words(), seed=0, requests=3).images
    assert images is not None
    assert (images.per_request.mean, images.per_request.most, images.distinct) == (1.0, 2, 2)
    assert images.body_bytes.count == 2
    assert images.body_bytes.least == len(image_part(picture))


def test_drawn_images_differ_as_often_as_the_workload_says() -> None:
    seen = {"name": "w", "api": "chat", "images": {"sizes": ["8x8"], "count": 2, "distinct": 3}}
    workload = Workload.model_validate(seen | {"input_tokens": 10, "output_tokens": 5})
    images = facts_of(workload, NameOfDraw(), seed=0, requests=50).images
    assert images is not None
    assert (images.per_request.mean, images.distinct) == (2.0, 3)


def test_conversations_have_turns_and_pauses() -> None:
    facts = facts_of(Workload.model_validate(TALK), IDS, seed=0, requests=10)
    assert (facts.sessions, facts.requests, facts.requests_in_all) == (4, 12, None)
    assert facts.turns is not None and facts.turns.mean == 3
    assert facts.pauses_s is not None
    assert (facts.pauses_s.count, facts.pauses_s.most) == (8, 2.0)
    assert facts.prompt_tokens is not None
    assert facts.prompt_tokens.mean == pytest.approx((10 + 25 + 40) / 3)


def test_texts_are_counted_only_with_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one two\nthree\n")
    texts = Workload.model_validate(
        {"name": "w", "kind": "file", "prompts": str(tmp_path / "p.txt"), "output_tokens": 7}
    )
    facts = facts_of(texts, Words(), seed=0, requests=100)
    assert (facts.requests, facts.requests_in_all) == (2, 2)
    assert facts.prompt_tokens is None
    assert facts.prompt_characters is not None and facts.prompt_characters.mean == 6
    counted = facts_of(texts, CountedWords(), seed=0, requests=100)
    assert counted.prompt_tokens is not None and counted.prompt_tokens.mean == 1.5


def test_a_trace_has_its_rate_and_what_it_leaves_out(tmp_path: Path) -> None:
    # three rows are used, from 5 s to 118 s; the fourth has no answer
    facts = facts_of(trace(tmp_path / "t.csv", traces.BURSTGPT_1), IDS, seed=0, requests=3)
    assert facts.recorded_rate == pytest.approx((3 - 1) / (118 - 5))
    assert facts.left_out == 1
    assert facts.notes


def test_later_sampled_turns_contain_the_earlier_prompts_and_made_up_answers() -> None:
    requests = list(sampled(Workload.model_validate(TALK), IDS, seed=0, requests=4))
    assert [(request.session, request.turn) for request in requests] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]
    third = requests[2].messages
    assert [message.role for message in third] == ["user", "assistant"] * 2 + ["user"]
    assert [len(np.asarray(message.content[0])) for message in third] == [10, 5, 10, 5, 10]


def test_sessions_end_with_the_file_or_with_the_requests(tmp_path: Path) -> None:
    talk = Workload.model_validate(TALK)
    assert sessions_within(talk, talk.requests(IDS, 0), 7) == [0, 1, 2]


SHAREGPT = """[{"conversations": [
  {"from": "human", "value": "one two"}, {"from": "gpt", "value": "a b c d"},
  {"from": "human", "value": "three"}, {"from": "gpt", "value": "e"}]}]"""


def test_later_turns_of_a_recorded_session_have_the_earlier_prompts_and_answers(
    tmp_path: Path,
) -> None:
    (tmp_path / "s.json").write_text(SHAREGPT)
    session = {"name": "w", "kind": "file", "api": "chat", "use": "sessions", "output_tokens": 9}
    workload = Workload.model_validate(session | {"prompts": str(tmp_path / "s.json")})
    facts = facts_of(workload, CountedWords(), seed=0, requests=2)
    assert facts.prompt_tokens is not None
    assert (facts.prompt_tokens.least, facts.prompt_tokens.most) == (2, 2 + 9 + 1)
