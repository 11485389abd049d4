"""Replies without token counts: kept on disk, and counted by a tokenizer afterwards."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import ResultsError
from orchestrator.load.request_record import EndedRequest
from orchestrator.load.uncounted_replies import UncountedReplies, UncountedReply
from orchestrator.results.outcomes import TokenCounts
from orchestrator.results.temporary_files import nameless_file
from tests.in_flight import sent_request


def reply(text: str, index: int = 0) -> UncountedReply:
    record = sent_request(index=index, output_tokens=9).record
    record.token_count_source = TokenCounts.CHUNKS
    return UncountedReply(EndedRequest(record, None), text)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """One token a word."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    words.save(str(file))
    return str(file)


def test_replies_are_counted_in_the_order_in_which_they_were_kept(tokenizer: str) -> None:
    with closing(UncountedReplies(tokenizer)) as replies:
        replies.keep(reply("a b c", index=4))
        replies.keep(reply("a", index=2))
        (counted,) = replies.counted()
    assert [ended.record.request_index for ended in counted] == [4, 2]
    assert [ended.record.output_tokens for ended in counted] == [3, 1]
    assert {ended.record.token_count_source for ended in counted} == {TokenCounts.TOKENIZER}


def test_without_replies_there_is_nothing_to_count(tokenizer: str) -> None:
    with closing(UncountedReplies(tokenizer)) as replies:
        assert list(replies.counted()) == []


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
    with closing(UncountedReplies(tokenizer, file)) as replies:
        replies.keep(reply("a b"))
        with pytest.raises(ResultsError, match="No space left on device.*TMPDIR"):
            replies.keep(reply("c"))
        (counted,) = replies.counted()
    assert [ended.record.output_tokens for ended in counted] == [2]
