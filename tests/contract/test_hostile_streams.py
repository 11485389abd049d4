"""Streams of servers that are not as the standard says: figures are right, or the point says so.

Every optional field, in each of its forms, is crossed with every place of a stream, and every way
to send usage with every API. Both decoders must find the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.analysis.metrics import figures, observe
from orchestrator.analysis.slo import judge as judge_limits
from orchestrator.analysis.slo import limit_values
from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint
from orchestrator.load.requests import Assignment
from orchestrator.load.response.http import END_MARK
from orchestrator.load.rows import RowCollector, tables
from orchestrator.load.validity import judge
from orchestrator.results.records import Figures
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Level, Slo
from tests.hostile_streams import (
    ANSWERS,
    FIRST_MS,
    GAP_MS,
    LAST_MS,
    TOKENS,
    USAGES,
    Event,
    Step,
    Stream,
    chat,
    completions,
    reasoning,
    sglang_generate,
    tgi,
    tool_calls,
)
from tests.in_flight import finish, sent_request, tokens_per_chunk
from tests.integration.load_server import END, HEAD, chunk
from tests.unit.load.test_schedule import point
from tests.unit.load.test_validity import CALM

NATURAL = Dialect("", "", length_control="natural")
FIXED = Dialect("", "")
WINDOW_NS = (0, 10**9)
POINT = replace(
    point(duration_s=None, requests=1), level=Level(control="concurrency", value=1), watched=True
)
CHAT, COMPLETIONS = "openai_chat", "openai_completions"
STREAMS: dict[str, tuple[str, Callable[[], Stream]]] = {
    "chat": (CHAT, chat),
    "completions": (COMPLETIONS, completions),
    "reasoning": (CHAT, reasoning),
    "tool calls": (CHAT, tool_calls),
    "sglang generate": ("sglang_generate", sglang_generate),
    "tgi": ("tgi", tgi),
}


def in_flight(steps: list[Step]) -> InFlight:
    made = sent_request(output_tokens=TOKENS)
    made.parts, made.times = [HEAD], [0]
    made.read_head()
    for step in steps:
        made.parts.append(chunk(step.data))
        made.times.append(round(step.at_ms * 1e6))
    made.parts.append(END)
    made.times.append(made.times[-1])
    made.end_marker = END_MARK
    made.sent_ns = made.started_ns = 0
    made.ended_ns = made.times[-1]
    return made


def read(steps: list[Step], wire: str, dialect: Dialect = NATURAL) -> InFlight:
    """What the general decoder finds; the one that counts ahead must find the same."""
    whole, short = in_flight(steps), in_flight(steps)
    whole.parsed.texts = []
    fast_path = fast_path_of(wire)
    while fast_path is not None and fast_path.can_count(short, 1):
        fast_path.count(short)
    finish(short, wire, dialect)
    finish(whole, wire, dialect, with_fast_path=False)
    assert short.record == whole.record, steps
    assert short.gaps == whole.gaps, steps
    assert short.done_marker_ns == whole.done_marker_ns
    return whole


def measured(flight: InFlight, of: LoadPoint = POINT) -> tuple[Figures, str, list[str]]:
    """The figures of a point of this one answer, its verdict and its reasons."""
    rows = RowCollector(Assignment.of(of, 0, 1))
    rows.add(flight)
    requests, gaps = tables(of, rows.unreported())
    rows.close()
    said = judge(requests, (CALM,), of, 0)
    return figures(observe(requests, gaps, WINDOW_NS)), said.validity, said.reasons


def are_right(found: Figures) -> bool:
    """Whether the figures are those of 16 tokens, one each 10 ms, the first after 12 ms."""
    wanted = {
        "ttft_ms": FIRST_MS,
        "tpot_ms": GAP_MS,
        "e2e_ms": LAST_MS,
        "itl_ms": GAP_MS,
        "output_tokens": TOKENS,
    }
    for name, value in wanted.items():
        shown = getattr(found, name)
        if shown is None or abs(shown.p50 - value) > 0.01 * value or shown.mean > 1.01 * value:
            return False
    return True


def assert_right_or_marked(steps: list[Step], wire: str) -> None:
    found, validity, reasons = measured(read(steps, wire))
    assert are_right(found) or validity != "valid" or reasons, (found, steps)


def assert_right(steps: list[Step], wire: str) -> None:
    for dialect in (NATURAL, FIXED):
        flight = read(steps, wire, dialect)
        assert flight.record.error is None, steps
        found, validity, reasons = measured(flight)
        assert are_right(found), (found, steps)
        assert validity == "valid", reasons


# -- usage


NATIVE_USAGE = ["at the end"]
# without a role event, a first event without text that counts a token is one with half a character
CASES = [
    (api, usage)
    for api, (wire, _) in STREAMS.items()
    for usage in (USAGES if wire in (CHAT, COMPLETIONS) else NATIVE_USAGE)
    if (api, usage) != ("completions", "leading")
]


@pytest.mark.parametrize(("api", "usage"), CASES)
def test_whatever_usage_says_an_event_with_text_is_content(api: str, usage: str) -> None:
    wire, stream = STREAMS[api]
    steps = USAGES[usage](stream()).steps()
    if usage != "leading":  # its total is one too large
        assert_right(steps, wire)
    flight = read(steps, wire)
    assert (flight.record.first_token_ns, flight.record.last_token_ns) == (
        round(FIRST_MS * 1e6),
        round(LAST_MS * 1e6),
    )
    found, validity, reasons = measured(flight)
    assert are_right(found) or reasons or validity != "valid"


@pytest.mark.parametrize(
    ("usage", "source"),
    [
        ("running", "continuous_usage"),
        ("running, no last", "continuous_usage"),
        ("repeated", "usage"),
        ("lagging", "usage"),
        ("zero", "usage"),
        ("every fourth", "usage"),
        ("zero, no last", "chunks"),
        ("lagging, no last", "chunks"),
        ("every third", "chunks"),
        ("opening", "chunks"),
        ("one each", "chunks"),
    ],
)
def test_only_a_running_count_tells_of_single_events(usage: str, source: str) -> None:
    assert read(USAGES[usage](chat()).steps(), CHAT).record.token_count_source == source


def test_tokens_counted_before_the_first_text_are_hidden() -> None:
    """As of a server that thinks unseen, and counts it in events without text."""
    made = USAGES["running"](chat())
    for one in made.tokens:
        one["usage"]["completion_tokens"] += 100
    made.role = copy.deepcopy(made.tokens[0])
    made.role["choices"][0]["delta"] = {"content": ""}
    made.role["usage"]["completion_tokens"] = 100
    assert made.usage is not None
    made.usage["usage"]["completion_tokens"] = 100 + TOKENS
    found, validity, reasons = measured(read(made.steps(), CHAT))
    assert found.ttft_ms and found.tpot_ms and found.output_tokens
    assert (found.ttft_ms.p50, found.tpot_ms.p50) == pytest.approx((FIRST_MS, GAP_MS))
    assert found.output_tokens.p50 == 100 + TOKENS
    assert validity == "valid" and any("never streamed" in reason for reason in reasons)


def test_a_token_whose_text_comes_later_is_still_a_token() -> None:
    """The first bytes of a character show nothing; a running count tells of their token."""
    made = USAGES["running"](chat())
    for at in (0, 5, 15):
        made.tokens[at]["choices"][0]["delta"] = {"content": ""}
    assert_right(made.steps(), CHAT)


# -- optional fields

PLACES = ("role", "first", "middle", "last", "finish", "usage", "after")
ABSENT = object()
NOTHING: list[Any] = [ABSENT, None]
SOME: list[Any] = [ABSENT, None, {}, "x"]
OTHERS: list[Any] = [{}, [], "", 0, False, "x", 7, 1.5, True, [None], ["x"], {"x": "y"}, [[1]]]
FIELDS = {
    CHAT: (
        "choices", "usage", "id", "object", "error", "choices.0", "choices.0.delta", "choices.0.index",
        "choices.0.finish_reason", "choices.0.logprobs", "choices.0.token_ids", "choices.0.text",
        "choices.0.delta.role", "choices.0.delta.content", "choices.0.delta.refusal",
        "choices.0.delta.reasoning_content", "choices.0.delta.reasoning", "choices.0.delta.tool_calls",
        "choices.0.delta.function_call", "usage.prompt_tokens", "usage.completion_tokens",
        "usage.prompt_tokens_details", "usage.completion_tokens_details",
    ),
    COMPLETIONS: (
        "choices", "usage", "error", "choices.0", "choices.0.text", "choices.0.delta",
        "choices.0.finish_reason", "choices.0.logprobs", "choices.0.token_ids",
        "usage.completion_tokens",
    ),
    "sglang_generate": (
        "text", "meta_info", "output_ids", "error", "meta_info.completion_tokens",
        "meta_info.prompt_tokens", "meta_info.finish_reason", "meta_info.cached_tokens",
        "meta_info.output_token_logprobs",
    ),
    "tgi": (
        "token", "token.text", "token.id", "token.logprob", "generated_text", "details", "error",
        "details.generated_tokens", "details.finish_reason", "details.input_length",
    ),
}  # fmt: skip
# what an event can do without where it is null or absent: what it holds is told elsewhere, or is
# no text
NEEDED = ("0", "text", "content", "delta", "choices", "choices.0", "token", "finish_reason", "usage",
          "meta_info", "completion_tokens", "details", "tool_calls", "reasoning_content", "id",
          "generated_text", "generated_tokens")  # fmt: skip


def at_place(made: Stream, place: str) -> Event | None:
    """The event at a place; after the [DONE], one more with text."""
    if place == "after":
        made.after.append(copy.deepcopy(made.tokens[0]))
        return made.after[0]
    if place in ("role", "finish", "usage"):
        found: Event | None = getattr(made, place)
        return found
    return made.tokens[{"first": 0, "middle": TOKENS // 2, "last": -1}[place]]


def change(event: Event, path: str, value: Any) -> bool:
    """Sets a field. False: the event does not hold what it would be in."""
    *parents, name = path.split(".")
    holder: Any = event
    for parent in parents:
        try:
            holder = holder[int(parent) if parent.isdigit() else parent]
        except (KeyError, IndexError, TypeError):
            return False
    if isinstance(holder, list):
        if not holder:
            return False
        holder[int(name)] = None if value is ABSENT else copy.deepcopy(value)
    elif not isinstance(holder, dict):
        return False
    elif value is ABSENT:
        holder.pop(name, None)
    else:
        holder[name] = copy.deepcopy(value)
    return True


def changed(api: str, usage: str, places: tuple[str, ...], path: str, value: Any) -> Stream | None:
    """A stream of an API with a field of some of its events changed."""
    _, stream = STREAMS[api]
    made = stream()
    if api in ("sglang generate", "tgi"):
        assert usage == "at the end"
    else:
        made = USAGES[usage](made)
    done = False
    for place in places:
        event = at_place(made, place)
        done = (event is not None and change(event, path, value)) or done
    return made if done else None


# fields without which an event of a token has no text
TEXT_FIELDS = {
    "choices", "choices.0", "choices.0.text", "choices.0.delta", "choices.0.delta.content",
    "choices.0.delta.tool_calls", "choices.0.delta.reasoning_content", "text", "token",
    "token.text", "token.id",
}  # fmt: skip


def crossed(api: str, values: list[Any]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    for path in FIELDS[STREAMS[api][0]]:
        for places in [*((place,) for place in PLACES), ("role", "finish", "usage")]:
            for value in values:
                yield places, path, value


def is_right(flight: InFlight) -> bool:
    """Whether its figures must be right, without working them out."""
    record = flight.record
    instants = (record.first_token_ns, record.last_token_ns)
    one_each = record.chunks == TOKENS and tokens_per_chunk(flight) is None
    return (
        record.status == "ok"
        and instants == (round(FIRST_MS * 1e6), round(LAST_MS * 1e6))
        and one_each
        and (record.output_tokens, record.hidden_tokens or 0) == (TOKENS, 0)
    )


def are_near(found: Figures) -> bool:
    """Whether they are those of an answer of which an event has lost its text."""
    if not (found.ttft_ms and found.tpot_ms and found.e2e_ms and found.output_tokens):
        return False
    return (
        found.ttft_ms.p50 in (FIRST_MS, FIRST_MS + GAP_MS)
        and found.e2e_ms.p50 in (LAST_MS, LAST_MS - GAP_MS)
        and TOKENS - 1 <= found.output_tokens.p50 <= TOKENS
        and abs(found.tpot_ms.p50 - GAP_MS) <= GAP_MS / (TOKENS - 1) * 1.01
    )


@pytest.mark.parametrize(
    ("api", "usage"),
    [case for case in CASES if case[0] == "chat" or case[1] in ("at the end", "running")],
)
def test_a_field_of_any_form_at_any_place_gives_right_figures_or_a_mark(
    api: str, usage: str
) -> None:
    wrong = []
    values = [*NOTHING, *OTHERS] if usage in ("at the end", "running") else SOME
    for places, path, value in crossed(api, values):
        made = changed(api, usage, places, path, value)
        if made is None:
            continue
        flight = read(made.steps(), STREAMS[api][0])
        if is_right(flight):
            continue
        found, validity, reasons = measured(flight)
        if validity != "valid" or reasons or are_right(found):
            continue
        if not (path in TEXT_FIELDS and len(places) == 1 and are_near(found)):
            wrong.append((path, value, places))
    assert not wrong


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("api", STREAMS)
def test_what_is_absent_or_null_and_not_needed_changes_nothing(api: str, place: str) -> None:
    wire = STREAMS[api][0]
    paths = [path for path in FIELDS[wire] if path.rpartition(".")[2] not in NEEDED]
    if place in ("role", "usage"):
        paths = [path for path in FIELDS[wire] if not path.startswith("usage")]
        paths = [path for path in paths if place == "role" or path != "usage"]
    for path in paths:
        for value in NOTHING:
            made = changed(api, "at the end", (place,), path, value)
            if made is not None:
                assert_right(made.steps(), wire)


# -- whole answers

ONE_EVENT = ("in one event", "in one event, usage at the end", "two halves, usage at the end")
FAILS = {
    "error beside choices": "502 the backend went away",
    "error first": "502 the backend went away",
    "error as text": "went away",
    "named error": "went away",
}


@pytest.mark.parametrize(
    "name", [name for name in ANSWERS if not name.startswith(("usage ", "in one", "two", "four"))]
)
def test_heartbeats_hold_nothing_and_errors_fail_with_their_words(name: str) -> None:
    if name in FAILS:
        flight = read(ANSWERS[name](), CHAT, FIXED)
        assert flight.record.status != "ok"
        assert FAILS[name] in (flight.record.error or "")
        return
    assert_right(ANSWERS[name](), CHAT)


@pytest.mark.parametrize("name", ONE_EVENT)
def test_an_answer_in_one_event_has_no_time_between_tokens_and_meets_no_limit_on_it(
    name: str,
) -> None:
    flight = read(ANSWERS[name](), CHAT)
    rows = RowCollector(Assignment.of(POINT, 0, 1))
    rows.add(flight)
    requests, gaps = tables(POINT, rows.unreported())
    rows.close()
    found, validity, reasons = measured(read(ANSWERS[name](), CHAT))
    assert (found.tpot_ms, found.itl_ms, found.decode_throughput) == (None, None, None)
    assert validity == "stream_buffered" and "in one event or a few" in reasons[0]
    values = limit_values(requests, gaps, WINDOW_NS)
    assert not judge_limits(values, Slo(tpot=10.0)).met.any()
    assert not judge_limits(values, Slo(itl_p99=10.0)).met.any()
    assert judge_limits(values, Slo(ttft=10.0)).met.all()


def test_a_first_event_of_several_tokens_does_not_make_the_others_faster() -> None:
    for name in ("four, then single", "two halves"):
        found, _, _ = measured(read(ANSWERS[name](), CHAT))
        assert found.tpot_ms and found.itl_ms
        assert (found.tpot_ms.p50, found.itl_ms.p50) == pytest.approx((GAP_MS, GAP_MS))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("insufficient_system_resource", "invalid"),
        ("abort", "invalid"),
        ("content_filter", "ok"),
        ("STOP", "ok"),
        ({"type": "stop"}, "ok"),
    ],
)
def test_a_reason_that_means_failure_fails_and_an_unknown_one_is_shown(
    reason: object, status: str
) -> None:
    made = chat()
    assert made.finish is not None
    made.finish["choices"][0]["finish_reason"] = reason
    flight = read(made.steps(), CHAT)
    assert flight.record.status == status
    _, _, reasons = measured(flight)
    assert any("content_filter" in said for said in reasons) == (reason == "content_filter")


@pytest.mark.parametrize(("events", "status"), [(TOKENS, "ok"), (TOKENS - 3, "invalid")])
def test_a_fixed_length_is_judged_where_only_the_trial_request_was_counted(
    events: int, status: str
) -> None:
    made = USAGES["none"](chat())
    made.tokens = made.tokens[:events]
    dialect = replace(FIXED, reports_counts=True)
    assert read(made.steps(), CHAT, dialect).record.status == status


def test_content_in_parts_is_text_and_reasoning_is_no_part_of_the_answer() -> None:
    made = reasoning()
    for one in made.tokens[6:]:
        one["choices"][0]["delta"]["content"] = [{"type": "text", "text": " b"}]
    parsed = read(made.steps(), CHAT).parsed
    assert "".join(parsed.answer_texts) == " b" * 10
    assert "".join(parsed.texts or ()) == " hm" * 6 + " b" * 10
    assert parsed.thought_tokens == 6
