"""Answers of servers as bug reports describe them: 16 tokens, one each 10 ms, the first after 12 ms.

So the right figures of every answer are TTFT 12 ms, TPOT 10 ms, E2E 162 ms, 16 tokens. An answer is a
list of steps; the bytes of a step are written together. ``ANSWERS`` is what the loopback server of
tests/integration/hostile_server.py speaks; the property test makes its own from ``Stream``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

TOKENS = 16
PROMPT_TOKENS = 8
FIRST_MS, GAP_MS = 12.0, 10.0
ROLE_MS = 2.0
LAST_MS = FIRST_MS + GAP_MS * (TOKENS - 1)
AFTER_MS = 1.0  # from the last token to what ends the answer

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes that are written together. ``at_ms``: since the request."""

    at_ms: float
    data: bytes


def sse(payload: Any, name: str | None = None) -> bytes:
    text = payload if isinstance(payload, bytes) else compact(payload)
    named = b"" if name is None else b"event: %b\n" % name.encode()
    return named + b"data: " + text + b"\n\n"


def compact(payload: Any) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def usage_of(total: Any) -> Event:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": total}


@dataclass(slots=True)
class Stream:
    """The events of one answer, to be changed before they are written. ``usage``: the last one;
    ``after``: what follows the [DONE].
    """

    role: Event | None
    tokens: list[Event]
    finish: Event | None
    usage: Event | None
    done: bool = True
    after: list[Event] = field(default_factory=list)

    def steps(self) -> list[Step]:
        made = [] if self.role is None else [Step(ROLE_MS, sse(self.role))]
        made += [Step(FIRST_MS + GAP_MS * at, sse(one)) for at, one in enumerate(self.tokens)]
        tail = [sse(one) for one in (self.finish, self.usage) if one is not None]
        tail += [b"data: [DONE]\n\n"] if self.done else []
        tail += map(sse, self.after)
        return [*made, *(Step(LAST_MS + AFTER_MS, data) for data in tail)]


def chat(text: str = " a") -> Stream:
    def event(delta: Event, finish: str | None = None) -> Event:
        return {
            "id": "x",
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    return Stream(
        role=event({"role": "assistant", "content": ""}),
        tokens=[event({"content": text}) for _ in range(TOKENS)],
        finish=event({}, "length"),
        usage={"choices": [], "usage": usage_of(TOKENS)},
    )


def completions(text: str = " a") -> Stream:
    def event(text: str, finish: str | None = None) -> Event:
        return {"id": "x", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    return Stream(
        role=event(""),
        tokens=[event(text) for _ in range(TOKENS)],
        finish=event("", "length"),
        usage={"choices": [], "usage": usage_of(TOKENS)},
    )


def reasoning() -> Stream:
    made = chat()
    for one in made.tokens[:6]:
        one["choices"][0]["delta"] = {"reasoning_content": " hm", "content": None}
    return made


def tool_calls() -> Stream:
    made = chat()
    for one in made.tokens:
        calls = [{"index": 0, "function": {"arguments": " a"}}]
        one["choices"][0]["delta"] = {"content": None, "tool_calls": calls}
    assert made.finish is not None
    made.finish["choices"][0]["finish_reason"] = "tool_calls"
    return made


def sglang_generate() -> Stream:
    def event(total: int, finish: Any = None) -> Event:
        meta = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": total,
            "finish_reason": finish,
        }
        return {"text": " a" * total, "meta_info": meta}

    tokens = [event(total) for total in range(1, TOKENS + 1)]
    return Stream(None, tokens, event(TOKENS, {"type": "length"}), None)


def tgi() -> Stream:
    def event(at: int) -> Event:
        token = {"id": 100 + at, "text": " a", "logprob": -1.0, "special": False}
        return {"index": at, "token": token, "generated_text": None, "details": None}

    tokens = [event(at) for at in range(1, TOKENS + 1)]
    details = {
        "finish_reason": "length",
        "generated_tokens": TOKENS,
        "input_length": PROMPT_TOKENS,
    }
    tokens[-1] |= {"generated_text": " a" * TOKENS, "details": details}
    return Stream(None, tokens, None, None, done=False)


# -- what usage each event carries, by the number of tokens so far


def _set(made: Stream, totals: Callable[[int], Any], last: bool = True) -> Stream:
    for at, one in enumerate(made.tokens, start=1):
        total = totals(at)
        if total is not None:
            one["usage"] = usage_of(total)
    if not last:
        made.usage = None
    return made


def _opening(made: Stream) -> Stream:
    opening = {"usage": usage_of(0)}
    made.role = opening if made.role is None else made.role | opening
    made.usage = None
    return made


def _running_from_role(made: Stream) -> Stream:
    """The role event counts the token that comes next."""
    made.role = None if made.role is None else made.role | {"usage": usage_of(1)}
    return _set(made, lambda at: at + 1, last=False)


USAGES: dict[str, Callable[[Stream], Stream]] = {
    "at the end": lambda made: made,
    "none": lambda made: _set(made, lambda at: None, last=False),
    "running": lambda made: _set(made, lambda at: at),
    "running, no last": lambda made: _set(made, lambda at: at, last=False),
    "repeated": lambda made: _set(made, lambda at: TOKENS),
    "repeated, no last": lambda made: _set(made, lambda at: TOKENS, last=False),
    "zero": lambda made: _set(made, lambda at: 0),
    "zero, no last": lambda made: _set(made, lambda at: 0, last=False),
    "one each": lambda made: _set(made, lambda at: 1, last=False),
    "lagging": lambda made: _set(made, lambda at: at - 1),
    "lagging, no last": lambda made: _set(made, lambda at: at - 1, last=False),
    "two late": lambda made: _set(made, lambda at: max(0, at - 2), last=False),
    "leading": _running_from_role,
    "falling": lambda made: _set(made, lambda at: TOKENS - at),
    "falling, no last": lambda made: _set(made, lambda at: TOKENS - at, last=False),
    "every third": lambda made: _set(made, lambda at: at if at % 3 == 0 else None, last=False),
    "every fourth": lambda made: _set(made, lambda at: at if at % 4 == 0 else None),
    "steps of four": lambda made: _set(made, lambda at: at // 4 * 4, last=False),
    "first only": lambda made: _set(made, lambda at: 1 if at == 1 else None, last=False),
    "opening": _opening,
    "texts": lambda made: _set(made, str, last=False),
    "fractions": lambda made: _set(made, lambda at: at + 0.5),
}


# -- whole answers of single servers


def _inserted(made: Stream, at: int, data: bytes) -> list[Step]:
    """A stream with other bytes before its step ``at``."""
    steps = made.steps()
    steps.insert(at, Step(steps[at].at_ms - 1, data))
    return steps


def _everywhere(made: Stream, data: bytes) -> list[Step]:
    return [step for one in made.steps() for step in (Step(one.at_ms - 1, data), one)]


def _joined(sizes: list[int], counted: bool = True) -> list[Step]:
    """The texts of so many tokens in one event each, when the last of them is there."""
    made, at, tokens = chat(), 0, list[Event]()
    steps = []
    for size in sizes:
        at += size
        event = copy.deepcopy(made.tokens[0])
        event["choices"][0]["delta"]["content"] = " a" * size
        if counted:
            event["usage"] = usage_of(at)
        tokens.append(event)
        steps.append(Step(FIRST_MS + GAP_MS * (at - 1), sse(event)))
    made.tokens = []
    return [*steps, *made.steps()[1:]]


def _with_usage(name: str) -> list[Step]:
    return USAGES[name](chat()).steps()


ERROR = {"error": {"message": "the backend went away", "code": 502}}
ANSWERS: dict[str, Callable[[], list[Step]]] = {
    **{f"usage {name}": partial(_with_usage, name) for name in USAGES},
    "in one event": lambda: _joined([TOKENS]),
    "in one event, usage at the end": lambda: _joined([TOKENS], counted=False),
    "four, then single": lambda: _joined([4, *[1] * 12]),
    "two halves": lambda: _joined([8, 8]),
    "two halves, usage at the end": lambda: _joined([8, 8], counted=False),
    "pings": lambda: _everywhere(chat(), sse({"type": "ping"})),
    "named pings": lambda: _everywhere(chat(), sse({"type": "ping"}, "ping")),
    "empty data": lambda: _everywhere(chat(), b"data:\n\n"),
    "blank data": lambda: _everywhere(chat(), b"data:  \n\n"),
    "null data": lambda: _everywhere(chat(), b"data: null\n\n"),
    "keep-alive": lambda: _everywhere(chat(), b"data: keep-alive\n\n"),
    "null deltas": lambda: _everywhere(chat(), sse({"choices": [{"index": 0, "delta": None}]})),
    "bare choices": lambda: _everywhere(chat(), sse({"choices": [{"index": 0}]})),
    "error beside choices": lambda: _inserted(chat(), 3, sse({"choices": [], **ERROR})),
    "error first": lambda: _inserted(chat(), 0, sse({"choices": [], **ERROR})),
    "error as text": lambda: _inserted(chat(), 9, sse({"choices": [], "error": "went away"})),
    "named error": lambda: _inserted(chat(), 9, sse({"message": "went away"}, "error")),
    "empty errors": lambda: _everywhere(chat(), sse({"choices": [], "error": {}})),
}
