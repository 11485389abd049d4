"""Replies without token counts, and those of constrained requests: kept on disk, and counted by a
tokenizer and checked afterwards.
"""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import ResultsError
from orchestrator.load.held_replies import HeldReplies
from orchestrator.load.request_record import EndedRequest
from orchestrator.results.outcomes import TokenCounts
from orchestrator.results.temporary_files import nameless_file
from orchestrator.spec.constraint import Constraint, ConstraintKind
from tests.in_flight import sent_request


def ended(index: int = 0, finish_reason: str | None = None) -> EndedRequest:
    record = sent_request(index=index, output_tokens=9).record
    record.token_count_source = TokenCounts.CHUNKS
    record.finish_reason = finish_reason
    return EndedRequest(record, None)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """One token a word."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    words.save(str(file))
    return str(file)


def test_replies_are_counted_in_the_order_in_which_they_were_kept(tokenizer: str) -> None:
    with closing(HeldReplies(tokenizer)) as replies:
        replies.keep(ended(index=4), "a b c")
        replies.keep(ended(index=2), "a")
        (counted,) = replies.settled()
    assert [request.record.request_index for request in counted] == [4, 2]
    assert [request.record.output_tokens for request in counted] == [3, 1]
    assert {request.record.token_count_source for request in counted} == {TokenCounts.TOKENIZER}


def test_answers_are_checked_and_counted_where_both_is_asked(tokenizer: str) -> None:
    choice = Constraint(ConstraintKind.CHOICE, choices=("yes", "no"))
    with closing(HeldReplies(tokenizer)) as replies:
        replies.keep_constrained(ended(0, "stop"), "well yes", "yes", choice)
        replies.keep_constrained(ended(1, "stop"), None, "maybe", choice)
        replies.keep_constrained(ended(2, "length"), None, "n", choice)
        replies.keep(ended(3), "a b c")
        (settled,) = replies.settled()
    assert [request.record.constraint_met for request in settled] == [True, False, None, None]
    assert [request.record.output_tokens for request in settled] == [2, None, None, 3]


def test_without_a_tokenizer_answers_are_only_checked() -> None:
    digits = Constraint(ConstraintKind.REGEX, regex="[0-9]+")
    with closing(HeldReplies(None)) as replies:
        replies.keep_constrained(ended(0, "stop"), None, "12", digits)
        (settled,) = replies.settled()
    assert settled[0].record.constraint_met is True


def test_without_replies_there_is_nothing_to_count(tokenizer: str) -> None:
    with closing(HeldReplies(tokenizer)) as replies:
        assert list(replies.settled()) == []


class FullDisk:
    """A file on a disk that fills up within the second reply."""

    def __init__(self) -> None:
        self._file = nameless_file()
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        self._writes += 1
        if self._writes == 2:
            self._file.write(data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.write(data)


def test_a_full_disk_is_an_error_and_keeps_what_is_whole(tokenizer: str) -> None:
    file: Any = FullDisk()
    with closing(HeldReplies(tokenizer, file)) as replies:
        replies.keep(ended(), "a b")
        with pytest.raises(ResultsError, match="No space left on device.*TMPDIR"):
            replies.keep(ended(), "c")
        (counted,) = replies.settled()
    assert [request.record.output_tokens for request in counted] == [2]
