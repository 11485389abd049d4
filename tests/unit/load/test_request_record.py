"""The record of a request: its failure, and what its gaps are between."""

from __future__ import annotations

from array import array

import pytest

from orchestrator.load.request_record import ERROR_CHARACTERS, TokenGaps
from orchestrator.results.outcomes import ErrorClass, RequestStatus, TokenCounts
from tests.in_flight import sent_request

ONE_EACH = TokenGaps(0, array("i", [10, 10]), None)
SEVERAL = TokenGaps(0, array("i", [10, 10]), array("h", [2, 1, 1]))


def test_the_first_failure_counts() -> None:
    record = sent_request().record
    record.fail(ErrorClass.TIMEOUT, "too late")
    record.fail(ErrorClass.GARBAGE, "what")
    assert (record.error_class, record.error) == (ErrorClass.TIMEOUT, "too late")
    assert record.status is RequestStatus.TIMEOUT


def test_a_long_error_is_cut() -> None:
    record = sent_request().record
    record.fail(ErrorClass.GARBAGE, "x" * 3 * ERROR_CHARACTERS)
    assert record.error == "x" * ERROR_CHARACTERS


@pytest.mark.parametrize(
    ("gaps", "output_tokens", "hidden_tokens", "kind"),
    [
        (ONE_EACH, 3, None, "token"),
        (ONE_EACH, 8, 5, "token"),
        (ONE_EACH, 8, None, "chunk"),
        (SEVERAL, 3, None, "chunk"),
        (None, 3, None, None),
    ],
)
def test_gaps_are_between_tokens_only_if_each_chunk_held_one(
    gaps: TokenGaps | None, output_tokens: int, hidden_tokens: int | None, kind: str | None
) -> None:
    record = sent_request().record
    record.chunks = 3
    record.output_tokens = output_tokens
    record.hidden_tokens = hidden_tokens
    record.set_itl_kind(gaps)
    assert record.itl_kind == kind


def test_a_count_of_the_tokenizer_replaces_that_of_chunks() -> None:
    record = sent_request().record
    record.chunks = 3
    record.output_tokens = 3
    record.first_chunk_tokens = 1
    record.token_count_source = TokenCounts.CHUNKS
    record.set_tokenizer_count(7, ONE_EACH)
    assert (record.output_tokens, record.output_tokens_counted) == (7, 7)
    assert record.token_count_source is TokenCounts.TOKENIZER
    assert record.first_chunk_tokens is None
    assert record.itl_kind == "chunk"
