"""Which finish reasons mean a whole answer, and which a failure."""

from __future__ import annotations

import pytest

from orchestrator.load.wire.finish_reasons import is_failed_end, is_good_end


@pytest.mark.parametrize("reason", ["stop", "STOP", "length", "eos_token", "tool_calls"])
def test_a_known_end_of_a_whole_answer_is_good(reason: str) -> None:
    assert is_good_end(reason)
    assert not is_failed_end(reason)


@pytest.mark.parametrize(
    "reason", ["abort", "Request cancelled", "timed_out", "insufficient_system_resource", "OOM"]
)
def test_a_word_of_failure_makes_a_failed_end(reason: str) -> None:
    assert is_failed_end(reason)
    assert not is_good_end(reason)


@pytest.mark.parametrize("reason", ["content_filter", "repetition", ""])
def test_an_unknown_end_is_neither_good_nor_failed(reason: str) -> None:
    assert not is_good_end(reason)
    assert not is_failed_end(reason)
