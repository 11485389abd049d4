"""Requests as bytes, written before they are due, and the conversations they continue.

As many first turns as fit into the memory bound are written before the start, the rest while the client has nothing
to read. Later turns are written when the answer before them is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from orchestrator.load.http import Origin, request, request_head
from orchestrator.load.point import LoadPoint
from orchestrator.load.schedule import PROMPT_STREAM, Entry, Schedule, stream
from orchestrator.load.tokens import Content, Prompter
from orchestrator.load.wire import Parsed, Wire
from orchestrator.load.workloads import Exchanged, Kind, Prompt

AHEAD_BYTES = 128 * 1024 * 1024  # of requests written and not yet sent, per client
AHEAD_PER_SLOT = 8  # requests; a closed loop by time does not know how many it will need


@dataclass(frozen=True, slots=True)
class Written:
    """One request ready to send; ``prompt`` is kept where the next turn will need it."""

    wire_bytes: bytes
    phase: str
    prompt_tokens: int
    output_tokens: int
    prompt: Prompt | None


class Bodies:
    """Writes the requests of one client."""

    def __init__(
        self,
        point: LoadPoint,
        schedule: Schedule,
        stripe: tuple[int, int],
        kind: Kind,
        wire: Wire,
        prompter: Prompter,
        origins: list[Origin],
    ) -> None:
        self._point = point
        self._schedule = schedule
        self._kind = kind
        self._wire = wire
        self._prompter = prompter
        self._heads = [
            request_head(origin, point.dialect.path, target.api_key)
            for origin, target in zip(origins, point.targets, strict=True)
        ]
        self._upcoming: Iterator[int] = schedule.stripe(*stripe)
        self._limit = None if schedule.sessions is not None else AHEAD_PER_SLOT * schedule.slots
        self._ready: dict[int, Written] = {}
        self._ready_bytes = 0
        self._history: dict[int, list[Exchanged]] = {}  # by session, while it has turns to come
        self._more = True  # first turns not written yet
        self.hungry = True  # there is something to write, and room for it

    def target(self, session: int) -> int:
        """Sessions go round the replicas; all turns of one stay together, as a router that knows caches would do."""
        return session % len(self._point.targets)

    def ahead(self, limit: int | None = None) -> None:
        """Writes the next ``limit`` first turns (None: all that fit)."""
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

    def take(self, entry: Entry, phase: str) -> Written:
        """The request of an entry; written now if it was not, or was for the other phase."""
        if entry.turn:
            return self._write(entry.session, entry.turn, phase, tuple(self._history.get(entry.session, ())))
        made = self._ready.pop(entry.session, None)
        if made is None:
            return self._write(entry.session, 0, phase, ())
        self._ready_bytes -= len(made.wire_bytes)
        self.hungry = self._more
        same = made.phase == phase or not self._point.workload.shared_prefix_tokens
        return made if same else self._write(entry.session, 0, phase, ())

    def answered(self, entry: Entry, prompt: Prompt, parsed: Parsed, reply_tokens: int) -> None:
        """Keeps a turn for the next one; the last turn of a session forgets it."""
        if entry.turn + 1 == self._kind.turns:
            self._history.pop(entry.session, None)
            return
        reply = self._reply(entry, prompt, parsed, reply_tokens)
        turn = Exchanged(prompt.user, prompt.user_tokens, reply, reply_tokens)
        self._history.setdefault(entry.session, []).append(turn)

    def _reply(self, entry: Entry, prompt: Prompt, parsed: Parsed, reply_tokens: int) -> Content:
        """The answer in the form of the prompt. Ids the engine did not give are replaced by as many random ones."""
        if isinstance(prompt.user, str):
            return "".join(parsed.texts or ())
        if parsed.token_ids is not None:
            return np.array(parsed.token_ids, dtype=np.int32)
        return self._prompter.make(stream(self._point.seed, PROMPT_STREAM, 2, entry.index), reply_tokens)

    def _likely_phase(self, session: int) -> str:
        """Closed loop: the phase is known when a slot is free; most requests are measured ones."""
        return self._schedule.phase(int(self._schedule.due_ns[session])) if self._schedule.open_loop else "measure"

    def _full(self) -> bool:
        return self._ready_bytes >= AHEAD_BYTES or (self._limit is not None and len(self._ready) >= self._limit)

    def _write(self, session: int, turn: int, phase: str, earlier: tuple[Exchanged, ...]) -> Written:
        prompt = self._kind.prompt(session, turn, phase, earlier)
        output_tokens = self._kind.output_tokens(session, turn)
        target = self.target(session)
        body = self._wire.body(prompt, output_tokens, self._point.targets[target].model, self._point.dialect)
        kept = prompt if self._kind.needs_reply else None
        return Written(request(self._heads[target], body), phase, prompt.tokens, output_tokens, kept)
