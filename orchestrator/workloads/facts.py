"""What a workload holds: how long its prompts and answers are, its sessions and pauses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count as counting

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.base.grouping import values_by_key
from orchestrator.spec.load import Workload
from orchestrator.workloads.adapters import adapters_of
from orchestrator.workloads.file import FileRequests
from orchestrator.workloads.kind import Message, Prompt, Prompter, WorkloadKind
from orchestrator.workloads.mix import MixRequests, MixWorkload
from orchestrator.workloads.request_options import options_of
from orchestrator.workloads.trace import TraceWorkload


@dataclass(frozen=True, slots=True)
class NumberSummary:
    """How many numbers there are, and how they are distributed."""

    count: int
    mean: float
    least: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> NumberSummary | None:
        """None where there are no values."""
        if not len(values):
            return None
        array = np.asarray(values, np.float64)
        p50, p90, p99 = np.percentile(array, [50, 90, 99]).tolist()
        return cls(
            count=len(array),
            mean=float(array.mean()),
            least=float(array.min()),
            p50=p50,
            p90=p90,
            p99=p99,
            most=float(array.max()),
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """The whole of a trace. ``span_s``: from its first session to its last; None: it has no times."""

    requests: int
    sessions: int
    span_s: float | None


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The pictures of requests. ``distinct``: how many of them differ. ``body_bytes``: what they add
    to the body of a request that has any, as base64.
    """

    per_request: NumberSummary
    distinct: int
    body_bytes: NumberSummary

    @classmethod
    def of(cls, images_of_requests: Sequence[tuple[bytes, ...]]) -> ImageFacts | None:
        """``images_of_requests``: the pictures of each request. None where no request has any."""
        per_request = NumberSummary.of([len(images) for images in images_of_requests])
        body_bytes = [sum(map(len, images)) for images in images_of_requests if images]
        summary = NumberSummary.of(body_bytes)
        if per_request is None or summary is None:
            return None
        different: set[bytes] = set()
        different.update(*images_of_requests)
        return cls(per_request, len(different), summary)


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """What the first sessions of a workload hold. ``prompt_tokens``: None where nobody counted
    them; ``prompt_characters`` then has their texts. ``requests_in_all``: None where they never
    come again.
    """

    sessions: int
    requests: int
    requests_in_all: int | None
    prompt_tokens: NumberSummary | None
    prompt_characters: NumberSummary | None
    images: ImageFacts | None  # None: no request has any
    answer_tokens: NumberSummary | None
    turns: NumberSummary | None
    pauses_s: NumberSummary | None
    recording: Recording | None  # of a trace
    recorded_rate: float | None  # requests/s
    left_out: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampledRequest:
    """One request as it is sent, but for its prompt's earlier answers, which are made up."""

    session: int
    turn: int
    part: str | None  # of the mix; None: it is no mix
    answer_tokens: int
    prompt: Prompt

    @property
    def prompt_tokens(self) -> int:
        """0 where nobody counted them."""
        return self.prompt.tokens

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.prompt.messages


def sessions_within(workload: Workload, kind: WorkloadKind, requests: int) -> list[int]:
    """The first sessions, with at least so many requests where there are as many."""
    most = workload.distinct_requests()
    sessions: list[int] = []
    total = 0
    for session in counting():
        if total >= requests or (most is not None and total >= most):
            return sessions
        if isinstance(kind, FileRequests) and kind.comes_again(session):
            return sessions
        sessions.append(session)
        total += kind.turns(session)
    raise AssertionError("counting does not end")


def facts_of(workload: Workload, prompter: Prompter, seed: int, requests: int) -> WorkloadFacts:
    """The facts of a workload, from its first ``requests`` requests."""
    kind: WorkloadKind = workload.requests(prompter, seed)
    sessions = sessions_within(workload, kind, requests)
    facts = _facts_of_sessions(workload, kind, sessions, prompter, seed)
    notes = (*workload.notes(timed=True), *_notes_on_filtered(_requests_of_file(workload, kind)))
    return replace(facts, notes=notes)


@dataclass(frozen=True, slots=True)
class PartFacts:
    """One part of a mix. ``facts``: None where none of the sessions is of it."""

    workload: Workload
    share_of_sessions: float
    share_of_requests: float
    facts: WorkloadFacts | None


def facts_by_part(
    workload: Workload, prompter: Prompter, seed: int, requests: int
) -> list[PartFacts]:
    """The facts of each part of a mix, from the first ``requests`` requests of the mix; none for
    other workloads.
    """
    if not isinstance(workload, MixWorkload):
        return []
    kind = workload.requests(prompter, seed)
    sessions = sessions_within(workload, kind, requests)
    by_part = values_by_key((kind.part(session), session) for session in sessions)
    parts: list[PartFacts] = []
    for content in workload.contents:
        of_part = by_part.get(content.name, [])
        facts = _facts_of_sessions(content, kind, of_part, prompter, seed) if of_part else None
        share_of_sessions = workload.shares[content.name]
        share_of_requests = workload.request_shares[content.name]
        parts.append(PartFacts(content, share_of_sessions, share_of_requests, facts))
    return parts


def _facts_of_sessions(
    workload: Workload,
    kind: WorkloadKind,
    sessions: Sequence[int],
    prompter: Prompter,
    seed: int,
) -> WorkloadFacts:
    prompts: list[int] = []
    answers: list[int] = []
    characters: list[int] = []
    images: list[tuple[bytes, ...]] = []
    pauses_s: list[float] = []
    for session in sessions:
        turns = kind.turns(session)
        answers += [kind.output_tokens(session, turn) for turn in range(turns)]
        lengths = [kind.input_tokens(session, turn) for turn in range(turns)]
        if all(lengths):
            prompts += lengths
            images += [()] * turns  # the length of a prompt with pictures is not known
        else:
            for prompt in _prompts_of(kind, prompter, seed, session):
                images.append(_images(prompt))
                texts = _texts(prompt)
                if texts is None:
                    lengths_of_ids = [message.tokens for message in prompt.messages]
                    if not prompt.images and all(lengths_of_ids):
                        prompts.append(sum(lengths_of_ids))
                    continue
                characters.append(sum(len(text) for text in texts))
                counts = [prompter.count(text) for text in texts]
                if None not in counts:
                    prompts.append(sum(tokens or 0 for tokens in counts))
        pauses_s += [kind.pause_s(session, turn) for turn in range(turns - 1)]
    of_file = _requests_of_file(workload, kind)
    return WorkloadFacts(
        sessions=len(sessions),
        requests=len(answers),
        requests_in_all=workload.distinct_requests(),
        prompt_tokens=NumberSummary.of(prompts) if len(prompts) == len(answers) else None,
        prompt_characters=NumberSummary.of(characters),
        images=ImageFacts.of(images),
        answer_tokens=NumberSummary.of([tokens for tokens in answers if tokens]),
        turns=NumberSummary.of([kind.turns(session) for session in sessions])
        if kind.has_sessions
        else None,
        pauses_s=NumberSummary.of(pauses_s),
        recording=_recording(workload),
        recorded_rate=workload.recorded_rate(),
        left_out=workload.left_out() + (0 if of_file is None else of_file.filtered),
        notes=(*workload.notes(), *_notes_on_filtered(of_file)),
    )


def _requests_of_file(workload: Workload, kind: WorkloadKind) -> FileRequests | None:
    """What makes the requests of a file, or of a part of a mix that is one; None: it is no file.

    ``kind``: that of the workload, or of the mix.
    """
    if isinstance(kind, MixRequests):
        kind = kind.kinds.get(workload.name, kind)
    return kind if isinstance(kind, FileRequests) else None


def _notes_on_filtered(of_file: FileRequests | None) -> Iterator[str]:
    """How many entries of a file are left out by their lengths, as far as they were looked at."""
    if of_file is not None and of_file.filtered:
        yield (
            f"{of_file.filtered:,} of the first {of_file.looked_at:,} entries are left out: lengths "
            "outside of 'keep'"
        )


def _recording(workload: Workload) -> Recording | None:
    if not isinstance(workload, TraceWorkload):
        return None
    rows = workload.rows()
    span_s = None if rows.starts_ns is None else rows.span_s
    return Recording(rows.requests, rows.sessions, span_s)


def _images(prompt: Prompt) -> tuple[bytes, ...]:
    return tuple(image for message in prompt.messages for image in message.images)


def _texts(prompt: Prompt) -> list[str] | None:
    """The texts of a prompt's messages; None where it is made of token ids or of their names."""
    texts: list[str] = []
    for message in prompt.messages:
        if not all(isinstance(part, str) for part in message.content):
            return None
        texts.append(message.text)
    return texts


def _prompts_of(
    kind: WorkloadKind, prompter: Prompter, seed: int, session: int
) -> Iterator[Prompt]:
    """The prompts of a session, turn by turn. The answers in them are made up."""
    earlier: list[Message] = []
    for turn in range(kind.turns(session)):
        prompt = kind.request(session, turn, "measure", tuple(earlier))
        yield prompt
        if kind.needs_reply:
            answer_tokens = kind.output_tokens(session, turn)
            rng = np.random.default_rng([seed, session, turn])
            made = prompter.make(rng, answer_tokens)
            earlier += (prompt.messages[-1], Message("assistant", (made,), answer_tokens))


def sampled(
    workload: Workload, prompter: Prompter, seed: int, requests: int
) -> Iterator[SampledRequest]:
    """The first requests of a workload, session after session."""
    kind: WorkloadKind = workload.requests(prompter, seed)
    kind.adapters = adapters_of(workload, seed)
    kind.options = options_of(workload, seed)
    written = 0
    for session in sessions_within(workload, kind, requests):
        for turn, prompt in enumerate(_prompts_of(kind, prompter, seed, session)):
            if written == requests:
                return
            answer_tokens = kind.output_tokens(session, turn)
            with_adapter = replace(prompt, adapter=kind.adapter(session))
            yield SampledRequest(session, turn, kind.part(session), answer_tokens, with_adapter)
            written += 1
