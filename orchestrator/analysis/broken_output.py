"""Whether what a launch answered to fixed prompts is output at all."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from orchestrator.base.grouping import values_by_key
from orchestrator.results.records import AnswerRow

# Fewer answers than this, or answers with fewer tokens each, may be alike by chance.
FEWEST_ALIKE = 4
# A piece that occurs four times or more and is all of the text. Behind a first token (up to 32
# characters) it must occur six times, since a word may end in "....".
_REPEATED = re.compile(r"(.+?)\1{3,}|.{1,32}?(.+?)\2{5,}", re.DOTALL)


class Sign(Enum):
    """What shows that answers are no output."""

    NAN = auto()  # some answers have a log-probability that is not a number
    EMPTY = auto()  # all answers are empty
    SAME_TOKEN = auto()  # all tokens of all answers are the same one
    SAME_TOKEN_AFTER_FIRST = auto()  # the first token of each answer may still be right
    SAME_TEXT = auto()  # all answers repeat the same piece of text


@dataclass(frozen=True, slots=True)
class BrokenOutput:
    """Answers that are no output, of one replica or of all replicas together.

    ``answers``: how many were judged. ``replica``: None: all replicas together.
    ``answers_with_nan``: set with NAN. ``tokens``, ``token_id``: how many tokens are the same one,
    and its id; set with SAME_TOKEN and SAME_TOKEN_AFTER_FIRST. ``piece``: the text that is
    repeated; set with SAME_TEXT.
    """

    sign: Sign
    answers: int
    replica: int | None = None
    answers_with_nan: int = 0
    tokens: int = 0
    token_id: int | None = None
    piece: str = ""


def broken_output(answers: Sequence[AnswerRow]) -> list[BrokenOutput]:
    """Finds the replicas whose answers are no output; empty: none, or too few answers to tell.

    The answers of all replicas are judged together where there is only one replica, or where no
    replica by itself is found out; the one record for them has ``replica`` None.
    """
    by_replica = values_by_key((answer.replica, answer) for answer in answers)
    broken_replicas = []
    for replica, replica_answers in sorted(by_replica.items()):
        broken = _broken(replica_answers)
        if broken is not None:
            broken_replicas.append(replace(broken, replica=replica))
    if broken_replicas and len(by_replica) > 1:
        return broken_replicas
    # each replica by itself may have answered too few prompts
    broken_together = _broken(answers)
    return [] if broken_together is None else [broken_together]


def _broken(answers: Sequence[AnswerRow]) -> BrokenOutput | None:
    """The first sign that all these answers are no output; None: there is none, or too few of them
    to tell.
    """
    with_nan = _answers_with_nan(answers)
    if with_nan:
        return BrokenOutput(Sign.NAN, len(answers), answers_with_nan=with_nan)
    if len(answers) < FEWEST_ALIKE:
        return None
    if not any(answer.text or answer.token_ids for answer in answers):
        return BrokenOutput(Sign.EMPTY, len(answers))
    return (
        _same_token(answers, Sign.SAME_TOKEN)
        or _same_token(answers, Sign.SAME_TOKEN_AFTER_FIRST)
        or _same_text(answers)
    )


def _answers_with_nan(answers: Sequence[AnswerRow]) -> int:
    """Counts the answers that have a log-probability of NaN.

    A few NaN prove nothing, because an API that sends null for a log-probability is stored as NaN.
    They count where FEWEST_ALIKE answers have one, or where an answer of several tokens has
    nothing else. Returns 0 where they do not count.
    """
    nan_flags = [[math.isnan(value) for value in answer.logprobs or ()] for answer in answers]
    with_nan = sum(any(flags) for flags in nan_flags)
    has_answer_of_nan = any(len(flags) > 1 and all(flags) for flags in nan_flags)
    if with_nan >= FEWEST_ALIKE or has_answer_of_nan:
        return with_nan
    return 0


def _same_token(answers: Sequence[AnswerRow], sign: Sign) -> BrokenOutput | None:
    """Judges answers by their token ids. ``sign``: SAME_TOKEN or SAME_TOKEN_AFTER_FIRST."""
    first = 1 if sign is Sign.SAME_TOKEN_AFTER_FIRST else 0
    ids: list[int] = []
    for answer in answers:
        ids += (answer.token_ids or ())[first:]
    has_enough = len(ids) >= FEWEST_ALIKE * len(answers)
    if len(set(ids)) != 1 or not has_enough:
        return None
    return BrokenOutput(sign, len(answers), tokens=len(ids), token_id=ids[0])


def _same_text(answers: Sequence[AnswerRow]) -> BrokenOutput | None:
    """Judges answers without token ids by their text."""
    if any(answer.token_ids for answer in answers):
        return None
    pieces = {_repeated_piece(answer.text) for answer in answers}
    if len(pieces) > 1:
        return None
    (piece,) = pieces
    return None if piece is None else BrokenOutput(Sign.SAME_TEXT, len(answers), piece=piece)


def _repeated_piece(text: str) -> str | None:
    """The piece that a text repeats, perhaps after a first token; None: it repeats none."""
    match = _REPEATED.fullmatch(text)
    return (match[1] or match[2]) if match else None
