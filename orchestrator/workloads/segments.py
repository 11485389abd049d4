"""Says which tokens prompts have in common, without their text: a prompt is a row of segments, and
equal segments stand for equal tokens.

``EndlessCache`` says how many tokens of prompts a prefix cache would have that forgets nothing: the
upper bound of prefix hits, without any engine.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from orchestrator.spec.assumptions import Assumptions
from orchestrator.spec.load import Workload
from orchestrator.workloads.drawn import Drawn, DrawnRequests
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import Message, Part, WorkloadKind
from orchestrator.workloads.mix import MixRequests, MixWorkload
from orchestrator.workloads.trace import TraceRequests


class Segment(NamedTuple):
    """A row of ``tokens`` tokens. Segments of the same name and length have the same tokens."""

    name: Hashable
    tokens: int


class EndlessCache:
    """A prefix cache that forgets nothing and is shared by all requests. ``block_tokens``: an engine
    keeps and finds whole blocks of so many tokens.
    """

    def __init__(self, block_tokens: int = 1) -> None:
        self._block_tokens = block_tokens
        # Tokens by a hash of a segment's name and of everything before it: the most that were seen.
        self._held: dict[int, int] = {}

    def take(self, segments: Sequence[Segment]) -> int:
        """How many tokens of a prompt are held already. From now on all of them are.

        The last token of a prompt is computed in any case, because the answer begins with it.
        """
        hit_tokens = self._add(segments)
        prompt_tokens = sum(segment.tokens for segment in segments)
        most = max(0, min(hit_tokens, prompt_tokens - 1))
        return most // self._block_tokens * self._block_tokens

    def keep(self, segments: Sequence[Segment], answer: Segment) -> None:
        """Holds an answer to a prompt, too. Its last token was never computed into the cache."""
        if answer.tokens > 1:
            self._add([*segments, Segment(answer.name, answer.tokens - 1)])

    def hold(self, segments: Sequence[Segment]) -> None:
        """Holds all these tokens from now on."""
        self._add(segments)

    def _add(self, segments: Sequence[Segment]) -> int:
        """Adds segments; returns how many of their tokens, from the first on, were held before.
        Segments of one name begin with the same tokens, however long they are.
        """
        hit_tokens = 0
        is_hit = True
        before = 0
        for segment in segments:
            name = hash((before, segment.name))
            held_tokens = self._held.get(name, 0)
            if is_hit:
                hit_tokens += min(held_tokens, segment.tokens)
                is_hit = held_tokens >= segment.tokens
            if segment.tokens > held_tokens:
                self._held[name] = segment.tokens
            before = hash((name, segment.tokens))
        return hit_tokens


class NameOfDraw:
    """A prompter that makes a name for random tokens instead of the tokens themselves."""

    def make(self, rng: np.random.Generator, tokens: int) -> Part:
        return np.array([*rng.integers(0, 2**31, 2), tokens], dtype=np.int32)

    def count(self, text: str) -> int | None:
        return None

    def words(self) -> NameOfDraw:
        return self

    def slices(self, text: str) -> NameOfDraw:
        return self


class PromptContents:
    """The segments of the prompts of one point, as far as they are known (``are_known``)."""

    def __init__(self, kind: WorkloadKind) -> None:
        self._kind = kind
        self._history: dict[int, list[Segment]] = {}  # by session, until its last turn
        self._of_parts: dict[str, PromptContents] = {}  # of a mix
        if isinstance(kind, MixRequests):
            self._of_parts = {name: PromptContents(part) for name, part in kind.kinds.items()}

    def segments(self, session: int, turn: int, phase: str) -> list[Segment]:
        """The segments of a prompt; the turns before it must be over. LoRA adapters compute other
        values for the same tokens, so they have no segments in common.
        """
        segments = self._segments(session, turn, phase)
        adapter = self._kind.adapter(session)
        if adapter is None:
            return segments
        return [_of_part(adapter, segment) for segment in segments]

    def _segments(self, session: int, turn: int, phase: str) -> list[Segment]:
        if isinstance(self._kind, MixRequests):
            place = self._kind.place(session)
            of_part = self._of_parts[place.part].segments(place.session, turn, phase)
            return [_of_part(place.part, segment) for segment in of_part]
        if isinstance(self._kind, FileRequests):
            return [Segment(*part) for part in self._kind.parts(session)]
        if isinstance(self._kind, TraceRequests):
            return [Segment(*part) for part in self._kind.parts(session, turn)]
        prompt = self._kind.prompt(session, turn, phase, ())
        shared = _segments_of(prompt.messages[:-1])
        user = _segments_of(prompt.messages[-1:])
        if not self._kind.has_sessions:
            return shared + user
        if session not in self._history:
            self._history[session] = _segments_of(self._kind.history(session))
        segments = shared + self._history[session] + user
        self._history[session] += user
        return segments

    def answered(self, session: int, turn: int, tokens: int) -> Segment | None:
        """The segment of an answer, which the next turn contains; None if there is no next turn."""
        answer = self._answered(session, turn, tokens)
        adapter = self._kind.adapter(session)
        if answer is None or adapter is None:
            return answer
        return _of_part(adapter, answer)

    def _answered(self, session: int, turn: int, tokens: int) -> Segment | None:
        if isinstance(self._kind, MixRequests):
            place = self._kind.place(session)
            answer = self._of_parts[place.part].answered(place.session, turn, tokens)
            return None if answer is None else _of_part(place.part, answer)
        if not self._kind.has_sessions or isinstance(self._kind, FileRequests | TraceRequests):
            return None  # what a file or a trace says next is in its own prompts
        if turn + 1 >= self._kind.turns(session):
            self._history.pop(session, None)
            return None
        answer = Segment((session, turn), tokens)
        self._history[session].append(answer)
        return answer

    def forget(self, session: int) -> None:
        """Forgets a session that has no more turns."""
        if isinstance(self._kind, MixRequests):
            place = self._kind.place(session)
            self._of_parts[place.part].forget(place.session)
        self._history.pop(session, None)

    def turns_shared_by_others(self, session: int) -> range:
        """The turns whose prompts may have tokens in common with other sessions: of conversations
        the first, because what follows has answers of its own.
        """
        if isinstance(self._kind, MixRequests):
            place = self._kind.place(session)
            return self._of_parts[place.part].turns_shared_by_others(place.session)
        first = self._kind.first_turn(session)
        if isinstance(self._kind, FileRequests | TraceRequests):
            return range(first, self._kind.turns(session))
        return range(first, first + 1)


def _of_part(part: str, segment: Segment) -> Segment:
    """A segment of a part of a mix, or of a LoRA adapter: these have no tokens in common."""
    return Segment((part, segment.name), segment.tokens)


def _segments_of(messages: Sequence[Message]) -> list[Segment]:
    """The segments of messages whose parts are names that ``NameOfDraw`` made."""
    segments: list[Segment] = []
    for message in messages:
        for part in message.content:
            assert isinstance(part, np.ndarray)
            tokens = int(part[-1])
            segments.append(Segment(part.tobytes(), tokens))
    return segments


def are_known(workload: Workload, kind: WorkloadKind) -> bool:
    """Whether the segments of all prompts are known: not where they are texts of a file, or have
    pictures or tools, whose tokens nobody counted, or are slices of a text. ``kind``: makes the
    requests of the workload.
    """
    sends_tools = any(part.tools is not None for part in workload.with_parts())
    return not sends_tools and not has_slices(workload) and _are_counted(kind)


def known_parts(workload: Workload, kind: WorkloadKind) -> frozenset[str | None]:
    """The parts of a mix whose prompts have known segments (``are_known``). Of a workload that is no
    mix: None, as its requests name no part, where its segments are known.
    """
    if not isinstance(kind, MixRequests) or not isinstance(workload, MixWorkload):
        return frozenset({None}) if are_known(workload, kind) else frozenset()
    return frozenset(
        content.name
        for content in workload.contents
        if are_known(content, kind.kinds[content.name])
    )


def other_parts(workload: Workload, kind: WorkloadKind) -> frozenset[str | None]:
    """The parts of a mix whose prompts have no known segments, as ``known_parts``."""
    names: set[str | None] = {None}
    if isinstance(kind, MixRequests) and isinstance(workload, MixWorkload):
        names = {content.name for content in workload.contents}
    return frozenset(names) - known_parts(workload, kind)


class Uncounted(StrEnum):
    """What prompts hold where their segments are not known."""

    SLICES = "slices of a text"
    FILE_TEXTS = "texts of a file"
    IMAGES = "images"
    TOOLS = "tools"


def uncounted(workload: Workload) -> list[Uncounted]:
    """Why the segments of prompts, or of those of a part, are not known. Empty where they are known.

    A file that can no longer be read raises ProblemsError, or the result is empty, too: only some
    workloads have to open their file here.
    """
    contents: set[Uncounted] = set()
    for part in workload.with_parts():
        source = part.content_source()
        if source is None:
            return []
        if source == "text":
            contents.add(Uncounted.SLICES)
        if source == "file":
            contents.add(Uncounted.FILE_TEXTS)
        if part.sends_images():
            contents.add(Uncounted.IMAGES)
        if part.tools_at() is not None:
            contents.add(Uncounted.TOOLS)
    return [content for content in Uncounted if content in contents]


def count_images(kind: WorkloadKind, assumptions: Assumptions) -> None:
    """Makes a kind count its drawn pictures as is assumed, those of the parts of a mix too. Its
    prompter makes names (``NameOfDraw``), or is asked for lengths alone.
    """
    if isinstance(kind, MixRequests):
        for of_part in kind.kinds.values():
            count_images(of_part, assumptions)
    if isinstance(kind, DrawnRequests):
        kind.image_patch = assumptions.image_patch


def has_slices(workload: Workload) -> bool:
    """Whether prompts are slices of a text. Slices that begin at the same word (or token) begin
    alike, and only the tokenizer of the client knows which these are.
    """
    return any(part.content_source() == "text" for part in workload.with_parts())


def _are_counted(kind: WorkloadKind) -> bool:
    if isinstance(kind, MixRequests):
        return all(_are_counted(of_part) for of_part in kind.kinds.values())
    if isinstance(kind, FileRequests):
        return kind.has_lengths
    return isinstance(kind, DrawnRequests | TraceRequests) and not kind.has_images


def share_tokens(workload: Workload) -> bool:
    """Whether prompts of a workload may have more than a few tokens in common. Slices of a text
    are taken to have none, although some may begin alike (``has_slices``).
    """
    if isinstance(workload, MixWorkload):
        return any(share_tokens(content) for content in workload.contents)
    if isinstance(workload, Drawn):
        has_shared_parts = workload.shared_prefix_tokens > 0 or workload.documents is not None
        return workload.converses or has_shared_parts
    return True
