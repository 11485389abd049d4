"""The answers that later prompts of their sessions contain, kept until the load is over: only then
are prefix hits expected (expected.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.load.prompt_tokens import MOST_CHARACTERS
from orchestrator.spec.load import Workload
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import Content, TokenIds, WorkloadKind
from orchestrator.workloads.mix import MixRequests
from orchestrator.workloads.segments import other_parts

MOST_ANSWERS = MOST_CHARACTERS  # characters or token ids of all of them


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """``content``: as the next prompt has it. ``ids``: its tokens as the engine made them; None: it
    did not send them.
    """

    content: Content
    ids: TokenIds | None


class KeptAnswers:
    """The answers of one client's sessions, by session and turn."""

    def __init__(self) -> None:
        self.is_complete = True
        self._answers: dict[tuple[int, int], KeptAnswer] = {}
        self._room = MOST_ANSWERS

    def keep(self, session: int, turn: int, answer: KeptAnswer) -> None:
        """Keeps an answer; drops all once there is no room for more."""
        if not self.is_complete:
            return
        self._room -= sum(map(len, answer.content))
        self._room -= 0 if answer.ids is None else len(answer.ids)
        if self._room < 0:
            self.is_complete = False
            self._answers.clear()
            return
        self._answers[session, turn] = answer

    def of(self, session: int, turn: int) -> KeptAnswer | None:
        return self._answers.get((session, turn))


@dataclass(frozen=True, slots=True)
class SessionOfKind:
    """A session as the kind knows it that makes its requests: of a mix, that of its part."""

    kind: WorkloadKind
    number: int
    part: str | None = None

    @classmethod
    def of(cls, kind: WorkloadKind, session: int) -> SessionOfKind:
        if not isinstance(kind, MixRequests):
            return cls(kind, session)
        place = kind.place(session)
        return cls(kind.kinds[place.part], place.session, place.part)

    @property
    def has_live_answers(self) -> bool:
        """Whether later prompts of the session contain what the engine answered before."""
        if isinstance(self.kind, FileRequests):
            return self.kind.has_live_answers
        return self.kind.needs_reply


def parts_with_answers(workload: Workload, kind: WorkloadKind) -> frozenset[str | None]:
    """The parts of a mix whose prompts contain live answers, and have no segments that are known
    without them. None stands for a workload that is no mix.
    """
    parts: set[str | None] = set()
    for part in other_parts(workload, kind):
        of_part = kind.kinds[part] if part is not None and isinstance(kind, MixRequests) else kind
        if SessionOfKind(of_part, 0).has_live_answers:
            parts.add(part)
    return frozenset(parts)
