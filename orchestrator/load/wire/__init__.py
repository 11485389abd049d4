"""Wires, one per API: a prompt becomes a request body, and the events of a stream become token
counts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from orchestrator.base.registry import Registry
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads import Prompt

MOST_COUNTED = 2**31 - 1  # tokens of a request that a column can hold
UNKNOWN = -1  # tokens of an event with content where the stream does not say how many


# a character of several tokens shows its text with the last of them
MOST_HELD_BACK = 3
# ends that every answer may have; others are counted and shown (load/tally.py)
GOOD_ENDS = frozenset(
    (
        *("stop", "eos", "eos_token", "eot_token", "end_turn", "end_of_text", "stop_token"),
        *("stop_token_id", "stop_sequence", "stop_string", "done", "finished", "complete"),
        *("completed", "length", "max_tokens", "max_new_tokens", "max_length", "model_length"),
        *("max_output_tokens", "tool_call", "tool_calls", "tool_use", "function_call"),
    )
)
_FAILED_END = re.compile(
    "abort|error|fail|cancel|insufficient|unavailable|time_?d?_?out|overload|exhaust|resource|"
    "interrupt|kill|crash|exception|disconnect|evict|preempt|out_of_memory|oom|shutdown",
    re.IGNORECASE,
)


def is_good_end(reason: str) -> bool:
    """Whether a finish reason is one of a whole answer."""
    return reason.lower() in GOOD_ENDS


def is_failed_end(reason: str) -> bool:
    """Whether a finish reason says that the server did not finish the answer."""
    return not is_good_end(reason) and _FAILED_END.search(reason) is not None


@dataclass(slots=True)
class RunningCount:
    """The total that each event of a stream carries, while it behaves like a running count.

    Every event with text must make it grow, and it must never fall. Where it does not (a total
    that is repeated, that comes only at the end, that is one event late) it is void: it tells
    nothing about single events, and its last value may still be the answer's length.

    ``growth``: by how much it grew, by the index of the event. ``text_events``: how many events of
    otherwise unknown count are among these. ``early``: growth before the first text.
    """

    total: int = 0
    is_void: bool = False
    growth: dict[int, int] = field(default_factory=dict)
    text_events: int = 0
    early: dict[int, int] = field(default_factory=dict)
    # whether early growth may be the first tokens of a character
    early_is_content: bool = True

    def add(self, event: int, total: int, has_text: bool, may_hold_back: bool) -> None:
        """Adds an event's total. ``may_hold_back``: its text may be withheld, as that of an
        incomplete character is.
        """
        grown = total - self.total
        self.total = total
        if grown < 0 or (has_text and grown == 0):
            self.is_void = True
        elif grown and not has_text and not self.text_events:
            self.early[event] = grown
            self.early_is_content = self.early_is_content and may_hold_back
        elif grown:
            self.growth[event] = grown
        self.text_events += has_text

    def tokens(self, is_thought_hidden: bool) -> dict[int, int]:
        """The tokens of each event with content, by index. ``is_thought_hidden``: the engine counts
        reasoning that it does not stream, so that what came before the first text is no content.
        """
        may_be_a_character = not self.text_events or sum(self.early.values()) <= MOST_HELD_BACK
        if self.early_is_content and may_be_a_character and not is_thought_hidden:
            return self.early | self.growth
        return self.growth


@dataclass(slots=True)
class Parsed:
    """What a stream said, filled event by event.

    ``tokens``: one entry per event, the number of tokens it carried; UNKNOWN where it had content
    of unknown count. ``settle`` puts in what a running count tells.
    """

    tokens: list[int] = field(default_factory=list)
    # where counts come from: token_ids | continuous_usage | native; void when any is UNKNOWN
    source: str | None = None
    input_tokens: int | None = None  # as the engine reported them
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    running: RunningCount | None = None
    total_event: int = -1  # index of the event that told output_tokens
    unseen_tokens: int = 0  # counted by the engine before the first text, and never streamed
    thoughts: list[int] = field(default_factory=list)  # indices of events with reasoning only
    finish_reason: str | None = None
    error: str | None = None  # an error object within the stream
    error_class: ErrorClass = ErrorClass.STREAM_ERROR
    ended: bool = False  # the end marker came
    garbage: str | None = None  # the first thing that does not belong to this API
    ignored: str | None = None  # the first event that held nothing of this API, like a heartbeat
    # the reply, reasoning included; collected only where it is a list, because it is needed
    texts: list[str] | None = None
    answer_texts: list[str] = field(default_factory=list)  # the same without the reasoning
    token_ids: list[int] | None = None
    # the text, and the number of ids, of the last event of an API that repeats all so far
    last_text: str = ""
    last_ids: int = 0
    # of the reply's tokens, where asked for; NaN where a token has none
    logprobs: list[float] | None = None

    @property
    def ids(self) -> tuple[int, ...] | None:
        """``token_ids``; None also where one of them cannot be a token id: a server may send
        anything.
        """
        told = self.token_ids
        return (
            tuple(told)
            if told is not None and all(count(one) is not None for one in told)
            else None
        )

    @property
    def thought_tokens(self) -> int:
        """Tokens of reasoning: as the engine reports them, else those of the events that held it."""
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        return sum(abs(self.tokens[event]) for event in self.thoughts)

    @property
    def has_content(self) -> bool:
        """Whether any event held a token so far."""
        return any(self.tokens) or (self.running is not None and self.running.text_events > 0)

    def fail(self, error: str, error_class: ErrorClass = ErrorClass.STREAM_ERROR) -> None:
        """Records an error object of the stream; the first one counts."""
        if self.error is None:
            self.error, self.error_class = error, error_class

    def finish(self, reason: Any) -> None:
        """Records a finish reason of any type; one that means failure stays."""
        if isinstance(reason, dict):
            reason = reason.get("type") or reason.get("reason") or reason
        if not reason or (self.finish_reason and is_failed_end(self.finish_reason)):
            return
        self.finish_reason = reason if isinstance(reason, str) else json.dumps(reason)

    def add_total(self, total: int | None, has_text: bool, may_hold_back: bool) -> None:
        """Records the running total of the event that is read now, before its entry in ``tokens``."""
        if total is None:
            return
        if self.running is None:
            self.running = RunningCount()
        self.running.add(len(self.tokens), total, has_text, may_hold_back)

    def settle(self, running_source: str) -> None:
        """Decides, once all is read, what the events held. ``running_source``: the name of a
        running count as a source.
        """
        running = self.running
        unknown = self.tokens.count(UNKNOWN)
        if self.source is not None and not unknown:
            return
        self.source = None  # some events told their count and others did not
        if running is None or running.is_void:
            return
        if running.text_events != sum(map(bool, self.tokens)):
            return  # some events with content had no total
        told = running.tokens(bool(self.reasoning_tokens) and not self.thoughts)
        if not told:
            return
        for event, tokens in told.items():
            self.tokens[event] = tokens
        self.source = running_source
        self.unseen_tokens = running.total - sum(told.values())


class Wire(Protocol):
    """One API. Stateless. ``running_source``: what a running count of it is called."""

    @property
    def running_source(self) -> str: ...

    def body(self, prompt: Prompt, output_tokens: int, model: str, dialect: Dialect) -> bytes:
        """The JSON body of one request for a stream of ``output_tokens`` tokens."""
        ...

    def read(self, payloads: list[bytes], parsed: Parsed) -> None:
        """Adds events to ``parsed``, one entry in ``parsed.tokens`` for each. A payload may be
        anything.
        """
        ...

    def count(self, payloads: list[bytes], parsed: Parsed) -> bool:
        """Counts events that hold nothing but tokens without decoding them. False: nothing was
        added, they must be read. The order of events does not matter.
        """
        ...


WIRES: Registry[Wire] = Registry(
    "wires",
    {
        "openai_completions": "orchestrator.load.wire.openai:COMPLETIONS",
        "openai_chat": "orchestrator.load.wire.openai:CHAT",
        "tgi": "orchestrator.load.wire.tgi:WIRE",
        "sglang_generate": "orchestrator.load.wire.sglang_generate:WIRE",
    },
)


# -- what several wires share: fields of a request, error objects, usage


def encode(
    fields: Mapping[str, Any], dialect: Dialect, of_the_prompt: Mapping[str, Any] | None = None
) -> bytes:
    """The body: the fields that the engine accepts, then the user's own for all requests and those
    of this prompt, always; a null there removes a field.
    """
    allowed = dialect.allowed_fields
    kept = {name: value for name, value in fields.items() if allowed is None or name in allowed}
    kept |= dialect.extra_body
    kept |= of_the_prompt or {}
    return orjson.dumps(
        {name: value for name, value in kept.items() if value is not None},
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def length_fields(output_tokens: int, dialect: Dialect) -> dict[str, Any]:
    """The fields that tell an engine to answer with exactly ``output_tokens`` tokens."""
    if dialect.length_control == "generation_config":
        config = {
            "max_new_tokens": output_tokens,
            "min_new_tokens": output_tokens,
            "do_sample": False,
        }
        return {"generation_config": json.dumps(config)}
    if dialect.length_control in ("none", "natural"):
        return {}
    fields: dict[str, Any] = {"ignore_eos": True}
    if dialect.min_tokens_field:
        fields[dialect.min_tokens_field] = output_tokens
    return fields


def error_text(event: Any) -> str | None:
    """The message of an error object, whatever stands beside it; None where there is none, or where
    all of it is empty.

    OpenAI's ``{"error": {"message", "code"}}``, TGI's ``{"error": "...", "error_type"}``, vLLM's
    older ``{"object": "error", "message"}``, ``{"type": "error", "message"}``.
    """
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if not error and "error" in (event.get("object"), event.get("type")):
        error = {name: value for name, value in event.items() if name not in ("object", "error")}
    if isinstance(error, dict):
        if not any(error.values()):
            return None
        inner = error_text(error)
        if inner is not None:
            return inner
        said = [
            str(error[key])
            for key in ("code", "type", "message")
            if error.get(key) not in (None, "")
        ]
        return " ".join(said) or json.dumps(error)
    if not error:
        return None
    kind = event.get("error_type")
    return f"{kind}: {error}" if kind else str(error)


def error_class(event: Any, said: str, status: int = 0) -> ErrorClass:
    """The class of an error object. ``said``: its message; ``status``: of HTTP, where it tells.

    A server that answered 200 before it examined the request refuses it in the stream: the status
    in the error object then counts like an HTTP status. TGI says 422 also when it is overloaded;
    only the words tell.
    """
    inner = event.get("error") if isinstance(event, dict) else None
    innermost = inner.get("error") if isinstance(inner, dict) else None
    objects = [one for one in (innermost, inner, event) if isinstance(one, dict)]
    names = ("http_status_code", "status_code", "code", "status")
    codes = {str(one[name]) for one in objects for name in names if name in one}
    status = next(
        (int(code) for code in sorted(codes) if re.fullmatch("[45][0-9][0-9]", code)), status
    )
    words = said.lower()
    if status == 429 or any(
        said in words for said in ("overloaded", "too many requests", "queue is full")
    ):
        return ErrorClass.HTTP_429
    if 400 <= status < 500 or "input validation" in words:
        return ErrorClass.HTTP_4XX
    return ErrorClass.STREAM_ERROR


def refuse(event: Any, said: str, parsed: Parsed) -> None:
    """Records an error object of a stream; it is a refusal where no token came before it."""
    parsed.fail(said, ErrorClass.STREAM_ERROR if parsed.has_content else error_class(event, said))


def decode(payloads: list[bytes]) -> list[Any]:
    """The JSON value of each payload; the bytes themselves where they are no JSON."""
    try:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(payloads))
    except orjson.JSONDecodeError:
        values = []
    # where a payload such as `1,2` shifted all that follow, each is decoded by itself
    return (
        values if len(values) == len(payloads) else [_decode_one(payload) for payload in payloads]
    )


def _decode_one(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:  # invalid UTF-8 in a string spoils a character, not the event
        return orjson.loads(payload.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return payload


def count(value: Any) -> int | None:
    """A token count or id from a server; None where it is not a whole number that a column can
    hold.
    """
    # a bool is an int too, and no count
    return value if type(value) is int and 0 <= value <= MOST_COUNTED else None


def read_usage(usage: Any, parsed: Parsed) -> int | None:
    """Records an OpenAI usage object. Returns its completion_tokens, None where it has none."""
    if not isinstance(usage, dict):
        return None
    prompt_tokens, total = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    if prompt_tokens is not None:
        parsed.input_tokens = prompt_tokens
    if (cached := _detail(usage, "prompt_tokens_details", "cached_tokens")) is not None:
        parsed.cached_tokens = cached
    if (thought := _detail(usage, "completion_tokens_details", "reasoning_tokens")) is not None:
        parsed.reasoning_tokens = thought
    if total is not None:
        parsed.output_tokens, parsed.total_event = total, len(parsed.tokens)
    return total


def text_of(value: Any) -> str:
    """The text of a field that should be a string: also of a list of parts, and of a part. Empty
    where it holds none.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(text_of, value))
    if isinstance(value, dict):
        return text_of(value.get("text") or value.get("content") or value.get("value"))
    if value is None or isinstance(value, bool):
        return ""
    return str(value)


def token_ids(value: Any) -> list[int] | None:
    """A list of token ids; None where it is anything else."""
    if isinstance(value, list) and all(count(one) is not None for one in value):
        return value
    return None


def collect_logprobs(said: Any, parsed: Parsed) -> None:
    """Records a list of log-probabilities. JSON has no NaN: servers write null for it."""
    values = [
        float(one) if isinstance(one, int | float) else float("nan")
        for one in (said if isinstance(said, list) else ())
    ]
    if values:
        parsed.logprobs = [*(parsed.logprobs or []), *values]


def _detail(usage: dict[str, Any], name: str, of: str) -> int | None:
    details = usage.get(name)
    return count(details.get(of)) if isinstance(details, dict) else None


# what a server says to keep a connection open
_HEARTBEAT = re.compile(
    rb"[\W_]*(ping|pong|heart[-_ ]?beat|keep[-_ ]?alive|processing|waiting)?[\W_]*", re.IGNORECASE
)
# fields of an event without choices that would hold text or the reason of a failure
_TELLING = frozenset(
    (
        *("content", "text", "delta", "message", "response", "output", "token", "generated_text"),
        *("meta_info", "detail", "details", "msg", "reason", "exception", "traceback"),
    )
)
_FAILING = ("error", "fail", "exception", "abort")


def odd_event(event: Any, parsed: Parsed) -> None:
    """Records an event without this API's fields: an error object, something that holds nothing
    (a heartbeat), or something that does not belong there.
    """
    said = error_text(event)
    if said is not None:
        refuse(event, said, parsed)
    elif _holds_nothing(event):
        parsed.ignored = parsed.ignored or str(event)[:1_000]
    elif parsed.garbage is None:
        parsed.garbage = f"not an event of this API: {str(event)[:1_000]}"
    parsed.tokens.append(0)


def is_heartbeat(name: bytes) -> bool:
    """Whether these bytes are nothing, or one of the words that keep a connection open."""
    return _HEARTBEAT.fullmatch(name) is not None


def _holds_nothing(event: Any) -> bool:
    if isinstance(event, str):
        event = event.encode()
    if isinstance(event, bytes):
        return is_heartbeat(event)
    if not isinstance(event, dict):
        return event is None or event == []
    for name, value in event.items():
        if value and name in _TELLING:
            return False
        if name in ("code", "status") and _says_failure(value):
            return False
    return not _says_failure(event.get("type")) and not _says_failure(event.get("event"))


def _says_failure(value: Any) -> bool:
    """Whether a code, a status or a type tells of a failure."""
    if isinstance(value, str) and not value.isdigit():
        return any(word in value.lower() for word in _FAILING)
    try:
        return int(value) >= 400
    except (TypeError, ValueError):
        return False
