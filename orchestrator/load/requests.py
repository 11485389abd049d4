"""Requests as bytes, written before they are due, and the conversations they continue.

As many first turns as the bounds allow are written before the start, the rest while the client has
nothing to read. Later turns are written once the answer before them is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from orchestrator import __version__
from orchestrator.base.errors import InputError
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.schedule import Entry, Schedule
from orchestrator.load.wire.parsed import Parsed
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.address import Origin
from orchestrator.spec.address import parse_url as parse_url  # importers know it here
from orchestrator.workloads.content import prompter
from orchestrator.workloads.kind import (
    PROMPT_STREAM,
    Content,
    Kind,
    Message,
    Prompt,
    Prompter,
    stream,
)

AHEAD_BYTES = 128 * 1024 * 1024  # most bytes of requests written and not yet sent, per client
AHEAD_REQUESTS = 20_000  # most requests; a small one costs more than its bytes
# most requests per slot where a closed loop by time does not know how many it will need
AHEAD_PER_SLOT = 8


@dataclass(frozen=True, slots=True)
class Assignment:
    """A client's share of a point: which requests are its own, and what they contain."""

    point: LoadPoint
    client: int
    prompter: Prompter
    kind: Kind
    schedule: Schedule

    @classmethod
    def of(cls, point: LoadPoint, client: int, clients: int) -> Assignment:
        """The share of client ``client`` of ``clients``. Raises InputError where the point cannot
        be run.
        """
        made = prompter(
            takes_ids=point.dialect.prompt_token_ids,
            tokenizer=point.tokenizer,
            vocabulary=point.vocabulary,
        )
        kind: Kind = point.workload.requests(made, point.seed)
        return cls(point, client, made, kind, Schedule(point, kind, client, clients))

    def target(self, session: int) -> int:
        """The index of the target: sessions go round the replicas; all turns of one go to the same
        replica, as a cache-aware router would send them.
        """
        return session % len(self.point.targets)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to send. ``prompt``: kept only where it will be needed."""

    target: int
    wire_bytes: bytes
    phase: str
    prompt_tokens: int
    output_tokens: int
    prompt: Prompt | None = None


class RequestWriter:
    """Writes the requests of one client."""

    def __init__(self, assignment: Assignment, origins: list[Origin]) -> None:
        point = assignment.point
        self._assignment = assignment
        self._kind = assignment.kind
        self._wire = WIRES[point.dialect.wire]
        self._heads = [
            request_head(origin, point.dialect.path, target)
            for origin, target in zip(origins, point.targets, strict=True)
        ]
        schedule = assignment.schedule
        self._upcoming = schedule.own_sessions()
        self._limit = (
            AHEAD_REQUESTS if schedule.sessions is not None else AHEAD_PER_SLOT * schedule.slots
        )
        self._ready: dict[int, Request] = {}
        self._ready_bytes = 0
        self._history: dict[int, list[Message]] = {}  # by session, while it has turns to come
        self._more = True  # some first turns are not written yet
        self.hungry = True  # there is something to write, and room for it

    def ahead(self, limit: int | None = None) -> None:
        """Writes the next ``limit`` first turns; None: all that fit."""
        for _ in repeat(None) if limit is None else repeat(None, limit):
            if self._full():
                break
            session = next(self._upcoming, None)
            if session is None:
                self._more = False
                break
            made = self._write(session, 0, self._likely_phase(session), ())
            self._ready[session] = made
            self._ready_bytes += len(made.wire_bytes)
        self.hungry = self._more and not self._full()

    def take(self, entry: Entry) -> Request:
        """The request of an entry. Written now if it was not written ahead, or if the phase changes
        its prompt.
        """
        phase = self._assignment.schedule.phase(entry.due_ns)
        if entry.turn:
            return self._write(
                entry.session, entry.turn, phase, tuple(self._history.get(entry.session, ()))
            )
        made = self._ready.pop(entry.session, None)
        if made is None:
            return self._write(entry.session, 0, phase, ())
        self._ready_bytes -= len(made.wire_bytes)
        self.hungry = self._more
        if made.phase == phase:
            return made
        if self._kind.warmup_differs:
            return self._write(entry.session, 0, phase, ())
        return replace(made, phase=phase)

    def answered(self, entry: Entry, request: Request, parsed: Parsed, reply_tokens: int) -> None:
        """Keeps a turn for the next one; after its last turn a session is forgotten."""
        assert request.prompt is not None, "prompts are kept where the next turn needs them"
        if entry.turn + 1 == self._kind.turns(entry.session):
            self._history.pop(entry.session, None)
            return
        user = request.prompt.messages[-1]
        reply = self._reply(entry, user.content, parsed, reply_tokens)
        if isinstance(user.content[0], str):
            reply_tokens = max(0, reply_tokens - parsed.thought_tokens)
        self._history.setdefault(entry.session, []).extend(
            (user, Message("assistant", reply, reply_tokens))
        )

    def _reply(self, entry: Entry, user: Content, parsed: Parsed, reply_tokens: int) -> Content:
        """The answer in the form of the prompt: text, without its reasoning, or ids. Ids that the engine did not send are
        drawn at random.
        """
        if isinstance(user[0], str):
            return ("".join(parsed.answer_texts),)
        if (ids := parsed.ids) is not None:
            return (np.array(ids, dtype=np.int32),)
        rng = stream(self._assignment.point.seed, PROMPT_STREAM, 2, entry.index)
        return (self._assignment.prompter.make(rng, reply_tokens),)

    def _likely_phase(self, session: int) -> str:
        """The phase a request will probably be sent in: a closed loop knows it only then, and most
        are measured.
        """
        schedule = self._assignment.schedule
        return schedule.phase(int(schedule.due_ns[session])) if schedule.open_loop else "measure"

    def _full(self) -> bool:
        return self._ready_bytes >= AHEAD_BYTES or len(self._ready) >= self._limit

    def _write(self, session: int, turn: int, phase: str, earlier: tuple[Message, ...]) -> Request:
        prompt = self._kind.prompt(session, turn, phase, earlier)
        output_tokens = self._kind.output_tokens(session, turn)
        target, point = self._assignment.target(session), self._assignment.point
        body = self._wire.body(prompt, output_tokens, point.targets[target].model, point.dialect)
        kept = prompt if self._kind.needs_reply or point.keep_replies else None
        return Request(
            target, with_body(self._heads[target], body), phase, prompt.tokens, output_tokens, kept
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
        if problem := header_problem(name, value):
            raise InputError(problem)
        headers[name.lower()] = (name, value)
    lines = [
        f"POST {origin.prefix}{path} HTTP/1.1",
        *map(": ".join, headers.values()),
        "Content-Length: ",
    ]
    return "\r\n".join(lines).encode("latin-1")


def with_body(head: bytes, body: bytes) -> bytes:
    """The whole request."""
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)
