"""What a stream contained, collected event by event by a wire."""

import json
from dataclasses import dataclass, field
from typing import Any

from orchestrator.load.wire.finish_reasons import is_failed_end
from orchestrator.results.outcomes import ErrorClass

MOST_COUNTED = 2**31 - 1  # tokens of a request that a column can hold
UNKNOWN = -1  # tokens of an event with content where the stream does not say how many
# A character of several tokens appears with the last of them: this many tokens may come before it.
MOST_HELD_BACK = 3


def whole_number(value: Any) -> int | None:
    """A token count or id from a server; None where it is not a whole number that a column can
    hold.
    """
    # a bool is an int too, and no count
    if type(value) is int and 0 <= value <= MOST_COUNTED:
        return value
    return None


@dataclass(slots=True)
class RunningCount:
    """The token total that each event of a stream carries, if it behaves like a running count.

    Every event with text must make the total grow, and the total must never fall. Otherwise it is
    void (it was repeated, or came one event late): then it says nothing about single events, but
    its last value may still be the answer's length.

    ``early_growth``: by how much the total grew with events before the first text, by the index of
    the event; ``growth``: the same from the first text on. ``text_events``: how many events with
    text had a total.
    """

    total: int = 0
    is_void: bool = False
    growth: dict[int, int] = field(default_factory=dict)
    text_events: int = 0
    early_growth: dict[int, int] = field(default_factory=dict)
    # whether the early growth may be the first tokens of the first character, whose text comes with
    # the last of them: each event with early growth may hold back a part of a character
    early_may_be_character: bool = True

    def add(self, event: int, total: int, has_text: bool, may_hold_back: bool) -> None:
        """Adds an event's total. ``may_hold_back``: the event may hold a part of a character, whose
        text comes with a later event.
        """
        grown = total - self.total
        self.total = total
        if grown < 0 or (has_text and grown == 0):
            self.is_void = True
        elif grown and not has_text and not self.text_events:  # before the first text
            self.early_growth[event] = grown
            if not may_hold_back:
                self.early_may_be_character = False
        elif grown:
            self.growth[event] = grown
        if has_text:
            self.text_events += 1

    def tokens(self, is_thought_hidden: bool) -> dict[int, int]:
        """The tokens of each event with content, by index. ``is_thought_hidden``: the engine counts
        reasoning that it does not stream, so that growth before the first text is no content.
        """
        if self._early_is_content(is_thought_hidden):
            return self.early_growth | self.growth
        return self.growth

    def _early_is_content(self, is_thought_hidden: bool) -> bool:
        """Whether the growth before the first text is a part of the answer: the first tokens of its
        first character, or all tokens of an answer without text.
        """
        if is_thought_hidden or not self.early_may_be_character:
            return False
        has_text = self.text_events > 0
        return not has_text or sum(self.early_growth.values()) <= MOST_HELD_BACK


@dataclass(slots=True)
class Parsed:
    """What a stream contained, filled event by event.

    ``tokens``: one entry per event, the number of tokens that the event carried; UNKNOWN where it
    had content of unknown count. ``settle`` replaces UNKNOWN by what a running count tells.
    """

    tokens: list[int] = field(default_factory=list)
    # where counts come from: token_ids | continuous_usage | native. While UNKNOWN is among them, they
    # have no source: ``settle`` sees to that.
    source: str | None = None
    input_tokens: int | None = None  # as the engine reported them
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    running: RunningCount | None = None
    total_event: int = -1  # index of the event that reported output_tokens
    unseen_tokens: int = 0  # counted by the engine before the first text, and never streamed
    thoughts: list[int] = field(default_factory=list)  # indices of events with reasoning only
    finish_reason: str | None = None
    error: str | None = None  # an error object within the stream
    error_class: ErrorClass = ErrorClass.STREAM_ERROR
    ended: bool = False  # the end marker came
    garbage: str | None = None  # the first thing that does not belong to this API
    ignored: str | None = None  # the first event that held nothing of this API, like a heartbeat
    # the reply, reasoning included; None: it is not needed, and so not collected
    texts: list[str] | None = None
    answer_texts: list[str] = field(default_factory=list)  # the same without the reasoning
    token_ids: list[int] | None = None
    # where each event repeats the whole reply so far: text and number of ids of the last event
    last_text: str = ""
    last_id_count: int = 0
    # of the reply's tokens, where they were asked for; NaN for a token without one
    logprobs: list[float] | None = None

    @property
    def ids(self) -> tuple[int, ...] | None:
        """``token_ids``; None also where one of them cannot be a token id: a server may send
        anything.
        """
        if self.token_ids is None:
            return None
        if any(whole_number(token_id) is None for token_id in self.token_ids):
            return None
        return tuple(self.token_ids)

    @property
    def thought_tokens(self) -> int:
        """Tokens of reasoning: as the engine reports them, else those of the events with it."""
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        total = 0
        for event in self.thoughts:
            tokens = self.tokens[event]
            total += 1 if tokens == UNKNOWN else tokens  # it held one token at least
        return total

    @property
    def has_content(self) -> bool:
        """Whether any event held a token so far."""
        return any(self.tokens) or (self.running is not None and self.running.text_events > 0)

    def fail(self, error: str, error_class: ErrorClass = ErrorClass.STREAM_ERROR) -> None:
        """Records an error object of the stream; the first one counts."""
        if self.error is None:
            self.error = error
            self.error_class = error_class

    def finish(self, reason: Any) -> None:
        """Records a finish reason of any type; one that means failure stays."""
        if isinstance(reason, dict):
            reason = reason.get("type") or reason.get("reason") or reason
        if not reason or (self.finish_reason and is_failed_end(self.finish_reason)):
            return
        if not isinstance(reason, str):
            reason = json.dumps(reason)
        self.finish_reason = reason

    def add_total(self, total: int | None, has_text: bool, may_hold_back: bool) -> None:
        """Records the running total of the event that is read now, whose entry in ``tokens`` is
        still to come.
        """
        if total is None:
            return
        if self.running is None:
            self.running = RunningCount()
        self.running.add(len(self.tokens), total, has_text, may_hold_back)

    def settle(self, running_source: str) -> None:
        """Decides how many tokens each event held, once all events are read. ``running_source``:
        the name of a running count as a source.
        """
        if self.source is not None and UNKNOWN not in self.tokens:
            return  # every event said how many
        self.source = None
        running = self.running
        if running is None or running.is_void:
            return
        events_with_content = sum(1 for tokens in self.tokens if tokens)  # UNKNOWN is content, too
        if running.text_events != events_with_content:
            return  # some of them had no total
        is_thought_hidden = bool(self.reasoning_tokens) and not self.thoughts
        tokens_by_event = running.tokens(is_thought_hidden)
        if not tokens_by_event:
            return
        for event, tokens in tokens_by_event.items():
            self.tokens[event] = tokens
        self.source = running_source
        self.unseen_tokens = running.total - sum(tokens_by_event.values())
