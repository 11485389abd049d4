"""Requests as bytes, written before they are due, and the conversations they continue.

As many first turns as the bounds allow are written before the start, the rest while the client has
nothing to read. Later turns are written once the answer before them is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from orchestrator import __version__
from orchestrator.base.errors import InputError
from orchestrator.load.in_flight import InFlight
from orchestrator.load.kept_answers import KeptAnswer, KeptAnswers, parts_with_answers
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.request_record import RequestRecord
from orchestrator.load.schedule import PlannedRequest, Schedule, kind_of
from orchestrator.load.wire.parsed import Parsed
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.address import Origin
from orchestrator.spec.constraint import Constraint
from orchestrator.workloads.content import prompter
from orchestrator.workloads.kind import (
    PROMPT_STREAM,
    Content,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)

AHEAD_BYTES = 128 * 1024 * 1024  # most bytes of requests written and not yet sent, per client
AHEAD_REQUESTS = 20_000  # most requests; a small one costs more than its bytes
# most requests per slot where a closed loop by time does not know how many it will need
AHEAD_PER_SLOT = 8
DRAWN_REPLIES = 2  # keeps the ids of drawn replies apart from what else PROMPT_STREAM draws


@dataclass(frozen=True, slots=True)
class Assignment:
    """A client's share of a point: which requests are its own, and what they contain."""

    point: LoadPoint
    client: int
    prompter: Prompter
    kind: WorkloadKind
    schedule: Schedule
    clients: int = 1  # that share the point

    @classmethod
    def of(cls, point: LoadPoint, client: int, clients: int) -> Assignment:
        """The share of client ``client`` of ``clients``. Raises InputError where the point cannot
        be run.
        """
        point_prompter = prompter(
            takes_ids=point.dialect.prompt_token_ids,
            tokenizer=point.tokenizer,
            id_range=point.id_range,
        )
        kind = kind_of(point, point_prompter)
        _check_options(point)
        schedule = Schedule(point, kind, client, clients)
        return cls(point, client, point_prompter, kind, schedule, clients)

    def target(self, session: int) -> int:
        """The index of a session's target. Sessions go round the replicas; all turns of a session
        go to the same replica, as a cache-aware router would send them.
        """
        return session % len(self.point.targets)

    def record(
        self,
        planned: PlannedRequest,
        target: int,
        phase: str,
        input_tokens: int,
        output_tokens: int,
    ) -> RequestRecord:
        """The record of a planned request, before anything is sent."""
        return RequestRecord(
            request_index=planned.index,
            client=self.client,
            replica=self.point.targets[target].replica,
            phase=phase,
            session=planned.session if self.kind.has_sessions else None,
            turn=planned.turn if self.kind.has_sessions else None,
            part=self.kind.part(planned.session),
            adapter=self.kind.adapter(planned.session),
            scheduled_ns=planned.due_ns,
            input_tokens_asked=input_tokens,
            output_tokens_asked=output_tokens,
        )

    def unsent_record(self, planned: PlannedRequest, done_ns: int) -> RequestRecord:
        """The record of a request that was never sent. ``done_ns``: since the point's start."""
        input_tokens = self.kind.input_tokens(planned.session, planned.turn)
        output_tokens = self.kind.output_tokens(planned.session, planned.turn)
        target = self.target(planned.session)
        phase = self.schedule.phase(planned.due_ns)
        record = self.record(planned, target, phase, input_tokens, output_tokens)
        record.done_ns = done_ns
        return record


def _check_options(point: LoadPoint) -> None:
    """Raises InputError where the server's API has no field for what requests ask for. Of an
    endpoint that is known only once it was asked who it is.
    """
    dialect = point.dialect
    for workload in point.workload.with_parts():
        if workload.sends_token_ids() and not dialect.prompt_token_ids:
            raise InputError(f"the API at {dialect.path} takes no token ids as a prompt")
        for kind in workload.constraint_kinds() - dialect.constraints.keys():
            known = ", ".join(dialect.constraints) or "none"
            raise InputError(
                f"the API at {dialect.path} has no field that is known for a {kind} "
                f"(known: {known})"
            )
        if workload.tools_at() is not None and not dialect.tool_choices:
            raise InputError(f"the API at {dialect.path} takes no tools")
        choices = workload.asked_tool_choices().keys()
        for choice in choices - dialect.tool_choices:
            known = ", ".join(sorted(dialect.tool_choices))
            raise InputError(
                f"the server at {dialect.path} does not take the tool_choice {choice} (known: {known})"
            )
        if choices - {"none"}:
            for kind in workload.constraint_kinds() & dialect.free_beside_tools:
                raise InputError(
                    f"the server at {dialect.path} takes no {kind} beside tools: leave one of them "
                    "out, or set tool_choice to none"
                )
        if workload.adapter_names() and dialect.adapter_field is None:
            raise InputError(
                f"the API at {dialect.path} has no field that is known for LoRA adapters"
            )


@dataclass(frozen=True, slots=True)
class _Written:
    """A request as bytes. ``phase``: the one it was written for. ``body_bytes``: how many of the
    bytes are its body.
    """

    wire_bytes: bytes
    body_bytes: int
    images: int
    phase: str
    input_tokens: int
    output_tokens: int
    prompt: Prompt | None  # kept only where it will be needed
    constraint: Constraint | None
    ends_naturally: bool


class RequestWriter:
    """Writes the requests of one client. ``origins``: of the targets, in their order;
    ``ahead_bytes``: most bytes of requests written and not yet sent.
    """

    def __init__(
        self, assignment: Assignment, origins: list[Origin], ahead_bytes: int = AHEAD_BYTES
    ) -> None:
        point = assignment.point
        self._assignment = assignment
        self._ahead_bytes = ahead_bytes
        self._kind = assignment.kind
        self._wire = WIRES[point.dialect.wire]
        # min_tokens and ignore_eos would force a constrained answer to go on after its end
        self._natural_dialect = replace(point.dialect, length_control="natural")
        self._heads = [
            request_head(origin, point.dialect.path, target)
            for origin, target in zip(origins, point.targets, strict=True)
        ]
        schedule = assignment.schedule
        self._upcoming = schedule.own_sessions()
        self._ahead_requests = AHEAD_REQUESTS
        if schedule.sessions is None:
            self._ahead_requests = AHEAD_PER_SLOT * schedule.slots
        self._ready: dict[int, _Written] = {}
        self._ready_bytes = 0
        self._history: dict[int, list[Message]] = {}  # by session, while it has turns to come
        self.answers = KeptAnswers()
        # whose prefix hits are expected from what was answered
        self._parts_with_answers: frozenset[str | None] = frozenset()
        if point.cache_block_tokens is not None:
            self._parts_with_answers = parts_with_answers(point.workload, assignment.kind)
        self._has_unwritten = True  # some first turns are not written yet
        self.wants_more = True  # there is something to write, and room for it

    def prewrite(self, limit: int | None = None) -> None:
        """Writes the next ``limit`` first turns; None: all that fit, before the load begins."""
        if limit is None:
            self._kind.prepare()
        for _ in count() if limit is None else range(limit):
            if self._full():
                break
            session = next(self._upcoming, None)
            if session is None:
                self._has_unwritten = False
                break
            written = self._write_first(session, self._likely_phase(session))
            self._ready[session] = written
            self._ready_bytes += len(written.wire_bytes)
        self.wants_more = self._has_unwritten and not self._full()

    def take(self, planned: PlannedRequest) -> InFlight:
        """A planned request, ready to be sent. Written now if it was not written before, or if the
        phase changes its prompt.
        """
        phase = self._assignment.schedule.phase(planned.due_ns)
        written = self._written(planned, phase)
        target = self._assignment.target(planned.session)
        record = self._assignment.record(
            planned, target, phase, written.input_tokens, written.output_tokens
        )
        record.body_bytes = written.body_bytes
        record.images = written.images or None
        constraint = written.constraint
        if constraint is not None:
            record.constraint = constraint.kind
        return InFlight(
            planned,
            record,
            target,
            written.wire_bytes,
            written.prompt,
            constraint,
            written.ends_naturally,
        )

    def _written(self, planned: PlannedRequest, phase: str) -> _Written:
        session = planned.session
        if planned.turn != self._kind.first_turn(session):
            earlier = self._history.get(session) or self._kind.history(session)
            return self._write(session, planned.turn, phase, tuple(earlier))
        written = self._ready.pop(session, None)
        if written is None:
            return self._write_first(session, phase)
        self._ready_bytes -= len(written.wire_bytes)
        self.wants_more = self._has_unwritten
        if written.phase != phase and self._kind.warmup_differs:
            return self._write_first(session, phase)
        return written

    def answered(self, request: InFlight) -> None:
        """Keeps a turn whose answer was read, for the prompt of the next turn. After its last turn
        a session is forgotten.
        """
        assert request.prompt is not None, "prompts are kept where the next turn needs them"
        planned = request.planned
        parsed = request.parsed
        if planned.turn + 1 == self._kind.turns(planned.session):
            self._history.pop(planned.session, None)
            return
        user = request.prompt.messages[-1]
        reply_tokens = request.record.output_tokens or 0
        reply = self._reply(planned, user.content, parsed, reply_tokens)
        if isinstance(user.content[0], str):
            reply_tokens = max(0, reply_tokens - parsed.thought_tokens)
        if self._kind.part(planned.session) in self._parts_with_answers:
            ids = None if parsed.ids is None else np.array(parsed.ids, dtype=np.int32)
            self.answers.keep(planned.session, planned.turn, KeptAnswer(reply, ids))
        answer = Message("assistant", reply, reply_tokens)
        if planned.session not in self._history:
            self._history[planned.session] = list(self._kind.history(planned.session))
        self._history[planned.session] += (user, answer)

    def _reply(
        self, planned: PlannedRequest, user: Content, parsed: Parsed, reply_tokens: int
    ) -> Content:
        """The answer in the form of the prompt: text, without its reasoning, or ids. Ids that the
        engine did not send are drawn at random.
        """
        if isinstance(user[0], str):
            return ("".join(parsed.answer_texts),)
        ids = parsed.ids
        if ids is not None:
            return (np.array(ids, dtype=np.int32),)
        rng = stream(self._assignment.point.seed, PROMPT_STREAM, DRAWN_REPLIES, planned.index)
        return (self._assignment.prompter.make(rng, reply_tokens),)

    def _likely_phase(self, session: int) -> str:
        """The phase in which a request will probably be sent. A closed loop knows it only when it
        sends the request, and most requests are measured.
        """
        schedule = self._assignment.schedule
        if not schedule.open_loop:
            return "measure"
        return schedule.phase(int(schedule.due_ns[session]))

    def _full(self) -> bool:
        return self._ready_bytes >= self._ahead_bytes or len(self._ready) >= self._ahead_requests

    def _write_first(self, session: int, phase: str) -> _Written:
        """The request with which a session is met, after what was said in it before."""
        return self._write(
            session, self._kind.first_turn(session), phase, self._kind.history(session)
        )

    def _write(self, session: int, turn: int, phase: str, earlier: tuple[Message, ...]) -> _Written:
        prompt = self._kind.request(session, turn, phase, earlier)
        adapter = self._kind.adapter(session)
        if adapter is not None:
            prompt = replace(prompt, adapter=adapter)
        output_tokens = self._kind.output_tokens(session, turn)
        point = self._assignment.point
        target = self._assignment.target(session)
        dialect = self._natural_dialect if prompt.ends_naturally else point.dialect
        body = self._wire.body(prompt, output_tokens, point.targets[target].model, dialect)
        kept = prompt if self._kind.needs_reply or point.keep_replies else None
        wire_bytes = with_body(self._heads[target], body)
        return _Written(
            wire_bytes,
            len(body),
            prompt.images,
            phase,
            prompt.tokens,
            output_tokens,
            kept,
            prompt.constraint,
            prompt.ends_naturally,
        )


# -- HTTP/1.1


def header_problem(name: str, value: str) -> str | None:
    """Why a header cannot be added to requests; None where it can. Never shows the value, which may
    be a secret.
    """
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        return "what precedes its first colon is not a header name; give NAME: VALUE"
    if name.lower() in ("content-length", "transfer-encoding", "connection", "accept-encoding"):
        return f"the header {name!r} is set by the client itself"
    if not re.fullmatch(r"[\t\x20-\x7e\x80-\xff]*", value):
        return f"the value of {name!r} holds characters that no HTTP header may hold"
    return None


def request_head(origin: Origin, path: str, target: Target) -> bytes:
    """The head of a request, up to the value of Content-Length; see ``with_body``.

    The target's own headers replace ours. Raises InputError for a header that cannot be sent.
    """
    headers = {
        "host": ("Host", origin.authority),
        "user-agent": ("User-Agent", f"llm-serving-orchestrator/{__version__}"),
        "content-type": ("Content-Type", "application/json"),
        "accept": ("Accept", "text/event-stream, application/json"),
        "accept-encoding": ("Accept-Encoding", "identity"),
    }
    if target.api_key:
        headers["authorization"] = ("Authorization", f"Bearer {target.api_key}")
    for name, value in target.headers:
        problem = header_problem(name, value)
        if problem:
            raise InputError(problem)
        headers[name.lower()] = (name, value)
    lines = [f"POST {origin.prefix}{path} HTTP/1.1"]
    for name, value in headers.values():
        lines.append(f"{name}: {value}")
    lines.append("Content-Length: ")
    return "\r\n".join(lines).encode("latin-1")


def with_body(head: bytes, body: bytes) -> bytes:
    """The whole request."""
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)
