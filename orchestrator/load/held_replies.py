"""Replies whose rows wait for the end of a point: those without token counts are counted with the
model's tokenizer then, and those of constrained requests are checked. Until then they lie on disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from orchestrator.load.answer_check import ConstrainedAnswer
from orchestrator.load.answer_process import AnswerProcess
from orchestrator.load.request_record import EndedRequest, RequestRecord
from orchestrator.results.temporary_files import disk_errors, nameless_file, path_of
from orchestrator.spec.constraint import Constraint
from orchestrator.workloads.content import load_tokenizer

REPLIES_AT_ONCE = 1_000  # tokenized together; an encoding takes about 100 bytes per token


@dataclass(frozen=True, slots=True)
class HeldReply:
    """A reply that is held back. ``text``: all of it, where it came without token counts; None: it
    is not to be counted. ``answer``: the text without reasoning, where it is to be checked.
    ``constraint``: the number of its constraint.
    """

    ended: EndedRequest
    text: str | None
    answer: str = ""
    constraint: int | None = None


class HeldReplies:
    """Replies that wait for a count or a check. To be closed with ``close``.

    ``tokenizer``: its folder or file; None where nothing is counted. ``file``: where the replies are
    kept, pickled, one after the other; by default a nameless file.
    """

    def __init__(self, tokenizer: str | None, file: IO[bytes] | None = None) -> None:
        self._tokenizer = tokenizer
        self._file = nameless_file() if file is None else file
        self._end = 0  # of the last whole reply: a full disk may cut one off
        self._answer_process = AnswerProcess()
        self._constraints: list[Constraint] = []
        self._numbers: dict[int, int] = {}  # of constraints, by identity: requests share them

    def keep(self, ended: EndedRequest, text: str | None) -> None:
        """Writes a reply that is to be counted to disk. Raises ResultsError where there is no
        room.
        """
        self._write(HeldReply(ended, text))

    def keep_constrained(
        self, ended: EndedRequest, text: str | None, answer: str, constraint: Constraint
    ) -> None:
        """Writes a reply that is to be checked, and counted unless ``text`` is None. Raises
        ResultsError where there is no room.
        """
        number = self._numbers.get(id(constraint))
        if number is None:
            number = len(self._constraints)
            self._constraints.append(constraint)
            self._numbers[id(constraint)] = number
        self._write(HeldReply(ended, text, answer, number))

    def _write(self, reply: HeldReply) -> None:
        with disk_errors():
            self._file.write(pickle.dumps(reply))
            self._end = self._file.tell()

    def settled(self) -> Iterator[list[EndedRequest]]:
        """The requests of all replies, some at a time, counted and checked."""
        with open(path_of(self._file), "rb") as file:
            while file.tell() < self._end:
                replies = self._read_some(file)
                self._count([reply for reply in replies if reply.text is not None])
                self._check(replies)
                yield [reply.ended for reply in replies]

    def _count(self, replies: Sequence[HeldReply]) -> None:
        """Sets the tokenizer's counts of replies that came without any."""
        if not replies:
            return
        assert self._tokenizer is not None
        encode = load_tokenizer(self._tokenizer).encode_batch_fast
        texts = [reply.text or "" for reply in replies]
        encodings = encode(texts, add_special_tokens=False)
        for reply, encoding in zip(replies, encodings, strict=True):
            ended = reply.ended
            ended.record.set_tokenizer_count(len(encoding.ids), ended.gaps)

    def _check(self, replies: Sequence[HeldReply]) -> None:
        """Sets whether the answers of constrained requests are what they had to be."""
        answers: list[ConstrainedAnswer] = []
        records: list[RequestRecord] = []
        for reply in replies:
            if reply.constraint is None:
                continue
            record = reply.ended.record
            answers.append(ConstrainedAnswer(reply.constraint, reply.answer, record.finish_reason))
            records.append(record)
        if not answers:
            return
        verdicts = self._answer_process.check(self._constraints, answers)
        for record, verdict in zip(records, verdicts, strict=True):
            record.constraint_met = verdict

    def _read_some(self, file: IO[bytes]) -> list[HeldReply]:
        replies: list[HeldReply] = []
        while len(replies) < REPLIES_AT_ONCE and file.tell() < self._end:
            replies.append(pickle.load(file))  # noqa: S301  this process wrote it
        return replies

    def close(self) -> None:
        self._answer_process.close()
        self._file.close()
