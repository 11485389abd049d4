"""The prefix cache: whole blocks from the start, answers too, no more than running sequences leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.emulator.prefix import PrefixCache, Prompt


def hits_of(cache: PrefixCache, prompt: Prompt, answer: Prompt = b"", used: int = 0) -> int:
    """Hits of a request that comes, answers and goes."""
    held = cache.take(prompt, "", used)
    cache.give_back(held, answer or prompt[:0], used)
    return held.hit_tokens


def test_whole_blocks_from_the_start_are_found() -> None:
    cache = PrefixCache(10_000)
    assert hits_of(cache, list(range(100))) == 0
    assert hits_of(cache, list(range(100))) == 96
    assert hits_of(cache, [*range(40), *range(500, 560)]) == 32
    assert hits_of(cache, [7, *range(1, 100)]) == 0
    cache.clear()
    assert hits_of(cache, list(range(100))) == 0
    assert (cache.queried_tokens, cache.hit_tokens) == (500, 128)


def test_text_shares_prefixes_too() -> None:
    cache = PrefixCache(1000)
    hits_of(cache, b"x" * 128)
    assert hits_of(cache, b"x" * 128 + b"y" * 64) == 32


def test_a_conversation_finds_what_was_answered_before() -> None:
    cache = PrefixCache(10_000)
    hits_of(cache, list(range(40)), answer=list(range(40, 100)))
    assert hits_of(cache, [*range(100), 7, 8, 9]) == 96
    hits_of(cache, b"user: hello", answer=b"\nassistant: " + b"words" * 40)
    assert hits_of(cache, b"user: hello\nassistant: " + b"words" * 40 + b"\nuser: more") == 48


def test_running_requests_keep_their_blocks_and_free_ones_give_way_to_them() -> None:
    cache = PrefixCache(128)
    held = cache.take(list(range(64)), "", used_tokens=0)
    # 28 tokens are left: one block of it stays
    assert hits_of(cache, list(range(100, 164)), used=100) == 0
    assert hits_of(cache, list(range(64)), used=128) == 48  # nothing is left, but it is in use
    cache.give_back(held, [], used_tokens=0)
    assert hits_of(cache, list(range(100, 164))) == 0
    # the last token of a prompt is computed, and with it its block
    assert hits_of(cache, list(range(64))) == 48


def test_the_last_blocks_of_a_prompt_give_way_first() -> None:
    cache = PrefixCache(96)
    prompt = list(range(96))
    hits_of(cache, prompt)
    cache.take([7] * 16, "", used_tokens=16)  # 80 tokens are left: one block has to go
    assert hits_of(cache, prompt[:81], used=16) == 80


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=80), st.integers(0, 100)), max_size=30)
)
def test_free_blocks_never_outgrow_what_running_sequences_leave(
    requests: list[tuple[list[int], int]],
) -> None:
    cache = PrefixCache(64)
    for prompt, used in requests:
        assert hits_of(cache, prompt, used=used) <= len(prompt)
        assert len(cache._free) * 16 <= max(0, 64 - used)
        assert not cache._holders
    hits_of(cache, [9] * 32)
    assert hits_of(cache, [9] * 32) == 16


def test_requests_with_another_salt_share_no_prefix() -> None:
    cache = PrefixCache(10_000)
    prompt = list(range(64))
    salts = ("", "", "one", "one", "two")
    hits = [cache.take(prompt, salt, 0).hit_tokens for salt in salts]
    assert hits == [0, 48, 0, 48, 0]
