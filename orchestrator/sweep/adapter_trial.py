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
    """The outcome of asking one adapter. ``error``: why it did not answer, as the server says."""

    adapter: str
    finding: AdapterFinding
    error: str = ""


Load = Callable[[LoadPoint], Loaded]


def tried_adapters(load: Load, point: LoadPoint) -> list[AdapterTrial]:
    """The adapters of a point's workload whose answers are missing or those of the model itself.

    ``load``: sends a point and stores nothing.
    """
    names = point.workload.adapter_names()
    if not names:
        return []
    logprobs = True
    base = load(_trial(point, None, logprobs))
    if not base.replies:  # an API may refuse to say log-probabilities
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
    these are known.
    """
    by_prompt = {reply.request_index: reply for reply in base}
    compared = [
        (reply, by_prompt[reply.request_index])
        for reply in replies
        if reply.request_index in by_prompt
    ]
    return bool(compared) and all(_is_alike(reply, other) for reply, other in compared)


def _is_alike(reply: Reply, other: Reply) -> bool:
    if (reply.text, reply.token_ids) != (other.text, other.token_ids):
        return False
    if reply.logprobs is None or other.logprobs is None:
        return True
    if len(reply.logprobs) != len(other.logprobs):
        return False
    return bool(np.allclose(reply.logprobs, other.logprobs, 0.0, SAME_LOGPROB, equal_nan=True))
