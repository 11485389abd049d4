"""Asks every LoRA adapter the first of the fixed prompts, before it is measured: one that answers
like the model itself changes nothing, whatever its requests cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np

from orchestrator.load.point import LoadPoint, Reply
from orchestrator.spec.load import Level
from orchestrator.spec.request_options import Adapters
from orchestrator.sweep.attempt import Loaded
from orchestrator.sweep.fixed_prompts import fixed_prompts

PROMPTS = 4  # of the fixed ones that each adapter is asked
MOST_TRIED = 32  # adapters, the most popular ones: each takes as long as an answer
# Batches of other sizes compute the same log-probabilities a little differently.
SAME_LOGPROB = 0.01


class AdapterFinding(Enum):
    """What is wrong with an adapter's answers."""

    LIKE_BASE = auto()  # the answers of the model itself
    NO_ANSWER = auto()


@dataclass(frozen=True, slots=True)
class AdapterTrial:
    """An adapter that was asked, and what is wrong with its answers. ``error``: why it did not
    answer, as the server says.
    """

    adapter: str
    finding: AdapterFinding
    error: str = ""


Load = Callable[[LoadPoint], Loaded]


def failed_adapter_trials(load: Load, point: LoadPoint) -> list[AdapterTrial]:
    """Asks the adapters of a point's workload. Returns those whose answers are missing, or are those
    of the model itself.

    ``load``: sends a point and stores nothing.
    """
    names = point.workload.adapter_names()
    if not names:
        return []
    logprobs = True
    base = load(_trial(point, None, logprobs))
    if not base.replies:  # the API may have refused to give log-probabilities
        logprobs = False
        base = load(_trial(point, None, logprobs))
    if not base.replies:
        return []
    findings: list[AdapterTrial] = []
    for name in names[:MOST_TRIED]:
        answered = load(_trial(point, name, logprobs))
        if answered.interrupted:
            return findings
        if not answered.replies:
            errors = answered.requests["error"].drop_null().to_pylist()
            error = errors[0] if errors else ""
            findings.append(AdapterTrial(name, AdapterFinding.NO_ANSWER, error))
        elif _are_alike(answered.replies, base.replies):
            findings.append(AdapterTrial(name, AdapterFinding.LIKE_BASE))
    return findings


def _trial(point: LoadPoint, adapter: str | None, logprobs: bool) -> LoadPoint:
    """A point that sends the first fixed prompts to one adapter; None: to the model itself."""
    fixed = fixed_prompts(point, logprobs)
    workload = fixed.workload
    if adapter is not None:
        workload = workload.model_copy(update={"adapters": Adapters(names=(adapter,))})
    level = Level(control="concurrency", value=PROMPTS)
    return replace(fixed, workload=workload, level=level, requests=PROMPTS)


def _are_alike(replies: Sequence[Reply], base: Sequence[Reply]) -> bool:
    """Whether all answers are those of the model itself, with the same log-probabilities as far as
    these are known. False where no prompt was answered by both.
    """
    base_by_prompt = {reply.request_index: reply for reply in base}
    are_alike = False
    for reply in replies:
        base_reply = base_by_prompt.get(reply.request_index)
        if base_reply is None:
            continue
        if not _is_alike(reply, base_reply):
            return False
        are_alike = True
    return are_alike


def _is_alike(reply: Reply, other: Reply) -> bool:
    """Whether two answers to one prompt are the same."""
    if (reply.text, reply.token_ids) != (other.text, other.token_ids):
        return False
    if reply.logprobs is None or other.logprobs is None:
        return True
    if len(reply.logprobs) != len(other.logprobs):
        return False
    return bool(np.allclose(reply.logprobs, other.logprobs, 0.0, SAME_LOGPROB, equal_nan=True))
