"""What requests contain; one file per kind.

A kind is a pure function of (workload, seed, session, turn): every client can write any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from orchestrator.errors import ProblemsError
from orchestrator.load.tokens import Content, Prompter
from orchestrator.registry import Registry
from orchestrator.spec.load import Workload


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A turn that is over: what the user sent, what the engine answered (its length in tokens beside it)."""

    user: Content
    user_tokens: int
    reply: Content
    reply_tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's input: a shared prefix, earlier turns, the new message. ``tokens``: length meant, 0 if unknown."""

    prefix: Content | None
    earlier: tuple[Exchanged, ...]
    user: Content
    user_tokens: int
    tokens: int

    def flat(self) -> Content:
        """All parts as one text or one int32 array of token ids."""
        turns = [part for turn in self.earlier for part in (turn.user, turn.reply)]
        parts = [part for part in (self.prefix, *turns, self.user) if part is not None]
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate([np.asarray(part) for part in parts])
        return "".join(str(part) for part in parts)


class Kind(Protocol):
    """One kind of workload, bound to a point's seed."""

    turns: int  # requests of one session
    sessions: bool  # rows name session and turn
    needs_reply: bool  # later turns hold the engine's answers

    def __init__(self, workload: Workload, prompter: Prompter, seed: int) -> None: ...

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Exchanged]) -> Prompt: ...

    def output_tokens(self, session: int, turn: int) -> int: ...

    def input_tokens(self, session: int, turn: int) -> int:
        """The length asked for when no turn before it is known to have answered; 0 where nobody knows it."""
        ...


WORKLOADS: Registry[type[Kind]] = Registry(
    "workloads",
    {
        "random": "orchestrator.load.workloads.random:Random",
        "conversations": "orchestrator.load.workloads.conversations:Conversations",
        "file": "orchestrator.load.workloads.file:File",
    },
)


def problems(workload: Workload) -> list[str]:
    """What keeps a workload of a known kind from being sent; reads its file where it has one."""
    if (workload.kind == "file") != (workload.prompts is not None):
        return ["'prompts' belongs to kind 'file', and kind 'file' needs it"]
    if workload.prompts is not None:
        from orchestrator.load.workloads.file import digest_problem, summary

        try:
            wrong = digest_problem(workload, summary(workload.prompts).digest)
        except ProblemsError as error:
            return [str(problem) for problem in error.problems]
        return [wrong] if wrong else []
    return []


def pinned(workload: Workload) -> Workload:
    """With the digest of its file, where it has one: every client sends the same prompts, or none.

    Raises ProblemsError for a file that cannot be sent.
    """
    if workload.prompts is None:
        return workload
    from orchestrator.load.workloads.file import summary

    return workload.model_copy(update={"prompts_digest": summary(workload.prompts).digest})
