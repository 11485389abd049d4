"""Which tokens prompts share, and what a cache that forgets nothing has of them."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.emulator.prefix import PrefixCache
from orchestrator.spec.assumptions import Assumptions
from orchestrator.spec.load import WORKLOADS
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.segments import (
    EndlessCache,
    NameOfDraw,
    PromptContents,
    Segment,
    are_known,
    count_images,
    share_tokens,
)

NAMES = st.sampled_from("abc")
PROMPTS = st.lists(st.lists(st.tuples(NAMES, st.integers(1, 40)), min_size=1, max_size=4))


def test_only_shared_prefixes_conversations_and_files_share_tokens() -> None:
    alone = RandomWorkload(name="w", input_tokens=8, output_tokens=4)
    assert not share_tokens(alone)
    assert share_tokens(alone.model_copy(update={"shared_prefix_tokens": 16}))
    talk = {"kind": "conversations", "name": "w", "input_tokens": 8, "output_tokens": 4, "turns": 2}
    assert share_tokens(ConversationsWorkload.model_validate(talk))


def test_a_turn_contains_what_was_said_before() -> None:
    talk = {"kind": "conversations", "name": "w", "input_tokens": 8, "output_tokens": 4, "turns": 3}
    kind = ConversationsWorkload.model_validate(talk).requests(NameOfDraw(), 7)
    contents = PromptContents(kind)
    first = contents.segments(5, 0, "measure")
    answer = contents.answered(5, 0, 4)
    second = contents.segments(5, 1, "measure")
    assert answer is not None
    assert second[:2] == [*first, answer]
    assert sum(segment.tokens for segment in second) == kind.input_tokens(5, 1)
    other = contents.segments(6, 0, "measure")
    assert other != first


def test_a_warm_up_has_another_prefix() -> None:
    workload = RandomWorkload(name="w", input_tokens=8, output_tokens=4, shared_prefix_tokens=32)
    contents = PromptContents(workload.requests(NameOfDraw(), 7))
    one, two = contents.segments(0, 0, "measure"), contents.segments(1, 0, "measure")
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert contents.segments(0, 0, "warmup")[0] != one[0]


def test_equal_blocks_of_a_trace_are_equal_segments(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 9, "input_length": 1536, "output_length": 5, "hash_ids": [1, 2, 4]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    workload = FileWorkload(kind="file", name="w", prompts=str(path))
    contents = PromptContents(workload.requests(NameOfDraw(), 0))
    one, two = contents.segments(0, 0, "measure"), contents.segments(1, 0, "measure")
    assert one[:2] == two[:2]
    assert [segment.tokens for segment in one] == [512, 512, 76]
    assert two[2] != one[2]
    assert "file" in WORKLOADS


def tokens_of(segments: list[tuple[str, int]]) -> list[int]:
    """Token ids of segments: those of one name begin alike, whatever their length."""
    return [ord(name) * 1000 + place for name, tokens in segments for place in range(tokens)]


@given(PROMPTS, st.integers(1, 20))
def test_an_endless_cache_finds_what_comparing_all_tokens_finds(
    prompts: list[list[tuple[str, int]]], block: int
) -> None:
    cache = EndlessCache(block)
    # prompts of one trie: a segment follows only segments of full length, as in traces
    seen: list[list[int]] = []
    for prompt in prompts:
        whole = [(name, 40) for name, _ in prompt[:-1]] + prompt[-1:]
        tokens = tokens_of(whole)
        longest = max((common(tokens, earlier) for earlier in seen), default=0)
        expected = min(longest, len(tokens) - 1) // block * block
        assert cache.take([Segment(*part) for part in whole]) == expected
        seen.append(tokens)


def common(first: list[int], second: list[int]) -> int:
    """How many tokens two prompts have in common from the beginning."""
    for place, (token, other) in enumerate(zip(first, second, strict=False)):
        if token != other:
            return place
    return min(len(first), len(second))


def test_an_endless_cache_hits_as_the_emulators_does_while_nothing_is_forgotten() -> None:
    cache, blocks = EndlessCache(16), PrefixCache(1_000_000)
    for prompt in ([("a", 100)], [("a", 100), ("b", 30)], [("a", 60), ("c", 9)], [("a", 100)]):
        held = blocks.take(tokens_of(prompt), "", 0)
        assert cache.take([Segment(*part) for part in prompt]) == held.hit_tokens
        blocks.give_back(held, [], 0)


def test_the_last_token_of_an_answer_is_in_no_cache() -> None:
    cache = EndlessCache()
    prompt, answer = [Segment("p", 10)], Segment("a", 6)
    cache.take(prompt)
    cache.keep(prompt, answer)
    assert cache.take([*prompt, answer, Segment("q", 4)]) == 15


def test_texts_of_a_file_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n")
    keys = {"kind": "file", "name": "w", "prompts": str(path), "output_tokens": 3}
    file = FileWorkload.model_validate(keys)
    random = RandomWorkload.model_validate({"name": "w", "input_tokens": 8, "output_tokens": 4})
    assert not are_known(file, file.requests(NameOfDraw(), 0))
    assert are_known(random, random.requests(NameOfDraw(), 0))


def test_pictures_are_tokens_where_it_is_assumed_how_many() -> None:
    talk = {
        "kind": "conversations",
        "name": "w",
        "api": "chat",
        "input_tokens": 8,
        "output_tokens": 4,
        "turns": 2,
        "images": {"sizes": ["56x28"], "count": 2, "distinct": 3},
    }
    kind = ConversationsWorkload.model_validate(talk).requests(NameOfDraw(), 7)
    assert kind.input_tokens(0, 0) == 0  # nobody knows
    count_images(kind, Assumptions(image_patch=28))
    assert kind.input_tokens(0, 0) == 2 * 2 + 8
    contents = PromptContents(kind)
    first = contents.segments(0, 0, "measure")
    assert [segment.tokens for segment in first] == [2, 2, 8]
    contents.answered(0, 0, 4)
    second = contents.segments(0, 1, "measure")
    assert [segment.tokens for segment in second] == [2, 2, 8, 4, 2, 2, 8]
    assert kind.input_tokens(0, 1) == sum(segment.tokens for segment in second)
    # the three pictures come again in other sessions, before the text
    seen = {PromptContents(kind).segments(session, 0, "measure")[0] for session in range(50)}
    assert len(seen) == 3
    warm = {PromptContents(kind).segments(session, 0, "warmup")[0] for session in range(50)}
    assert not seen & warm


def test_pictures_of_a_part_are_counted_too() -> None:
    plain = {"name": "plain", "api": "chat", "input_tokens": 8, "output_tokens": 4}
    seen = plain | {"name": "seen", "images": {"sizes": ["56x28"]}}
    parts = [{"workload": part["name"], "content": part} for part in (plain, seen)]
    mix = WORKLOADS["mix"].model_validate({"name": "both", "kind": "mix", "parts": parts})
    kind = mix.requests(NameOfDraw(), 7)
    count_images(kind, Assumptions(image_patch=28))
    tokens = {(kind.part(session), kind.input_tokens(session, 0)) for session in range(40)}
    assert tokens == {("plain", 8), ("seen", 10)}
