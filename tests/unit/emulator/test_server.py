"""What the emulator's process logs at its start, in vLLM's words, and how it counts text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from orchestrator.emulator.model import replica
from orchestrator.emulator.profile import Constants
from orchestrator.emulator.server import start_failure, start_lines, token_counter
from orchestrator.engines.registry import ENGINES
from tests.unit.emulator.builders import a_replica, device, facts, settings


def test_the_figures_logged_at_start_are_read_from_the_log() -> None:
    model = a_replica(kv_cache_tokens=123_456)
    reported = ENGINES["emulator"].reported("\n".join(start_lines(facts(), device(), model)))
    assert reported["kv_cache_tokens"] == 123_456
    assert reported["max_model_len"] == 8192
    assert reported["max_concurrency"] == pytest.approx(15.07)
    assert reported["weight_bytes"] == pytest.approx(model.estimate.weight_bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("memory_bytes", "words"),
    [
        (8 * 10**9, "CUDA out of memory"),
        (17 * 10**9, "No available memory for the cache blocks"),
        (80 * 10**9, None),
    ],
)
def test_a_model_that_does_not_fit_fails_at_start_in_vllms_words(
    memory_bytes: int, words: str | None
) -> None:
    small = device(memory_bytes=memory_bytes)
    failure = start_failure(small, replica(settings(), facts(), small, Constants()))
    if words is None:
        assert failure is None
    else:
        assert words in (failure or "")


def test_a_sequence_that_does_not_fit_fails_at_start_in_vllms_words() -> None:
    failure = start_failure(device(), a_replica(kv_cache_tokens=1000))
    assert "To serve at least one request with the model's max seq len (8192)" in (failure or "")


def test_text_is_counted_by_its_length_without_a_tokenizer() -> None:
    count_tokens = token_counter("never-heard-of")
    assert count_tokens("x" * 40) == 10
    assert count_tokens("") == 1


def test_text_is_counted_by_the_tokenizer_of_a_local_model(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    count_tokens = token_counter(str(tmp_path))
    assert count_tokens("hello big wide world") == 4
