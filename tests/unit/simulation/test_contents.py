"""Which tokens prompts share, and what a cache keeps of them."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.emulator.prefix import PrefixCache
from orchestrator.simulation.contents import (
    Cache,
    NameOfDraw,
    PromptContents,
    Segment,
    share_tokens,
)
from orchestrator.spec.load import WORKLOADS
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from orchestrator.workloads.file import FileWorkload


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


def test_a_cache_hits_as_the_emulators_does() -> None:
    """Where segments are whole blocks and nothing is evicted, both find the same tokens."""
    cache, blocks = Cache(10_000), PrefixCache(10_000)
    prompts = [[1, 2], [1, 2, 3], [1, 4], [5, 2], [1, 2, 3]]
    for prompt in prompts:
        segments = [Segment(name, 32) for name in prompt]
        tokens = [name * 1000 + index for name in prompt for index in range(32)]
        held = cache.take(segments, 0)
        held_blocks = blocks.take(tokens, "", 0)
        # an engine computes the last token, and so its block, in any case
        most = (len(tokens) - 1) // 16 * 16
        assert min(held.hit_tokens, most) == held_blocks.hit_tokens
        cache.give_back(held, None, 0)
        blocks.give_back(held_blocks, [], 0)


def test_a_cache_forgets_the_oldest_when_running_sequences_need_the_room() -> None:
    cache = Cache(100)
    for name in ("a", "b"):
        cache.give_back(cache.take([Segment(name, 48)], 0), None, 0)
    assert cache.take([Segment("c", 16)], 40).hit_tokens == 0
    assert cache.take([Segment("b", 48)], 40).hit_tokens == 48
    assert cache.take([Segment("a", 48)], 40).hit_tokens == 0


def test_running_requests_keep_their_segments() -> None:
    cache = Cache(64)
    held = cache.take([Segment("a", 64)], 0)
    assert cache.take([Segment("a", 64)], 64).hit_tokens == 64
    cache.give_back(held, None, 64)
    assert cache.take([Segment("a", 64)], 64).hit_tokens == 64
