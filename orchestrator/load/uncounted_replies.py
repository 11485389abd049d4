"""Replies that came without token counts: kept on disk while a point runs, counted afterwards."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from orchestrator.load.request_record import EndedRequest
from orchestrator.results.temporary_files import disk_errors, nameless_file, path_of
from orchestrator.workloads.content import load_tokenizer

REPLIES_AT_ONCE = 1_000  # tokenized together; an encoding takes about 100 bytes per token


@dataclass(frozen=True, slots=True)
class UncountedReply:
    """A reply that came without token counts, and its text."""

    ended: EndedRequest
    text: str


class UncountedReplies:
    """Replies that wait for a tokenizer's count. To be closed with ``close``.

    ``tokenizer``: its folder or file. ``file``: where the replies are kept, pickled, one after the
    other; by default a nameless file.
    """

    def __init__(self, tokenizer: str, file: IO[bytes] | None = None) -> None:
        self._tokenizer = tokenizer
        self._file = nameless_file() if file is None else file
        self._end = 0  # of the last whole reply: a full disk may cut one off

    def keep(self, reply: UncountedReply) -> None:
        """Writes a reply to disk. Raises ResultsError where there is no room."""
        with disk_errors():
            self._file.write(pickle.dumps(reply))
            self._end = self._file.tell()

    def counted(self) -> Iterator[list[EndedRequest]]:
        """The requests of all replies, some at a time, with the tokenizer's counts."""
        encode = load_tokenizer(self._tokenizer).encode_batch_fast
        with open(path_of(self._file), "rb") as file:
            while file.tell() < self._end:
                replies = self._read_some(file)
                texts = [reply.text for reply in replies]
                encodings = encode(texts, add_special_tokens=False)
                for reply, encoding in zip(replies, encodings, strict=True):
                    ended = reply.ended
                    ended.record.set_tokenizer_count(len(encoding.ids), ended.gaps)
                yield [reply.ended for reply in replies]

    def _read_some(self, file: IO[bytes]) -> list[UncountedReply]:
        replies: list[UncountedReply] = []
        while len(replies) < REPLIES_AT_ONCE and file.tell() < self._end:
            replies.append(pickle.load(file))  # noqa: S301  this process wrote it
        return replies

    def close(self) -> None:
        self._file.close()
