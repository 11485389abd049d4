"""What a simulated prefix cache keeps."""

from __future__ import annotations

from orchestrator.emulator.prefix import PrefixCache
from orchestrator.simulation.contents import Cache
from orchestrator.workloads.segments import Segment


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


def test_the_last_token_of_an_answer_is_in_no_cache_until_a_prompt_repeats_it() -> None:
    cache = Cache(1000)
    prompt, answer, question = Segment("prompt", 40), Segment("answer", 8), Segment("question", 16)
    cache.give_back(cache.take([prompt], 0), answer, 0)
    held = cache.take([prompt, answer, question], 0)
    assert held.hit_tokens == 32
    assert cache.take([prompt, answer, question], 64).hit_tokens == 64


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
