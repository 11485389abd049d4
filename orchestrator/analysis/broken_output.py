"""Whether what a launch answered to fixed prompts is output at all."""

import math
import re
from collections.abc import Sequence

from orchestrator.base.text import grouped
from orchestrator.results.records import AnswerRow

FEW = 4  # fewer answers or tokens than this may be alike by chance
# one piece again and again; more often where a first token comes before it, since words may end in
# "...."
_REPEATED = re.compile(r"(.+?)\1{3,}|.{1,32}?(.+?)\2{5,}", re.DOTALL)


def broken(answers: Sequence[AnswerRow]) -> list[str]:
    """Why the answers are no output: a sentence per broken replica, empty where all is well or
    answers are too few.
    """
    by_replica = grouped((answer.replica, answer) for answer in answers)
    reasons = []
    for replica, replica_answers in sorted(by_replica.items()):
        reason = _reason(replica_answers)
        if reason is not None:
            reasons.append(f"replica {replica}: {reason}")
    if reasons and len(by_replica) > 1:
        return reasons
    reason = _reason(answers)  # of all together: each replica may have few
    return [] if reason is None else [reason]


def _reason(answers: Sequence[AnswerRow]) -> str | None:
    number = len(answers)
    with_nan = _answers_with_nan(answers)
    if with_nan:
        return f"in {with_nan} of {number} answers to fixed prompts a log-probability is NaN"
    if number < FEW:
        return None
    if not any(answer.text or answer.token_ids for answer in answers):
        return f"all {number} answers to fixed prompts are empty"
    return _same_token(answers) or _same_text(answers)


def _answers_with_nan(answers: Sequence[AnswerRow]) -> int:
    """How many answers have a log-probability that is NaN; 0 where so few may be nulls that the API
    gave.
    """
    is_nan = [[math.isnan(value) for value in answer.logprobs or ()] for answer in answers]
    with_nan = sum(any(flags) for flags in is_nan)
    some_are_all_nan = any(len(flags) > 1 and all(flags) for flags in is_nan)
    return with_nan if with_nan >= FEW or some_are_all_nan else 0


def _same_token(answers: Sequence[AnswerRow]) -> str | None:
    # the first token of each answer may still be right
    for skipped, tokens in ((0, "tokens"), (1, "tokens after the first")):
        ids = [token for answer in answers for token in (answer.token_ids or ())[skipped:]]
        if len(set(ids)) == 1 and len(ids) >= FEW * len(answers):
            return (
                f"all {len(ids)} {tokens} of {len(answers)} answers to different prompts are the"
                f" same (id {ids[0]})"
            )
    return None


def _same_text(answers: Sequence[AnswerRow]) -> str | None:
    """Of answers without token ids."""
    if any(answer.token_ids for answer in answers):
        return None
    pieces = {_repeated_piece(answer.text) for answer in answers}
    if len(pieces) > 1 or None in pieces:
        return None
    return f"all {len(answers)} answers to different prompts repeat {pieces.pop()!r}"


def _repeated_piece(text: str) -> str | None:
    """The piece that a text repeats, perhaps after a first token; None where it does not only
    repeat.
    """
    match = _REPEATED.fullmatch(text)
    return (match[1] or match[2]) if match else None
