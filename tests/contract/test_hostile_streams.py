"""Streams that are not as the standard has them: a point's figures are right, or it says that they
are not.

Every optional field, in each of its forms, is tried at every place of a stream, and every way to
send usage with every API. Both decoders must find the same.
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
from orchestrator.load.http import END_MARK
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint
from orchestrator.load.requests import Assignment
from orchestrator.load.rows import RowCollector, tables
from orchestrator.load.validity import judge
from orchestrator.results.records import Figures
from orchestrator.results.window import MeasuredWindow
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
WINDOW = MeasuredWindow(0, 10**9)
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
    """A request whose answer arrived in these steps."""
    request = sent_request(output_tokens=TOKENS)
    request.parts, request.times = [HEAD], [0]
    request.read_head()
    for step in steps:
        request.parts.append(chunk(step.data))
        request.times.append(round(step.at_ms * 1e6))
    request.parts.append(END)
    request.times.append(request.times[-1])
    request.end_marker = END_MARK
    request.sent_ns = request.started_ns = 0
    request.ended_ns = request.times[-1]
    return request


def read(steps: list[Step], wire: str, dialect: Dialect = NATURAL) -> InFlight:
    """The request as the general decoder reads it; the fast path must find the same."""
    general = in_flight(steps)
    general.parsed.texts = []
    fast = in_flight(steps)
    fast_path = fast_path_of(wire)
    while fast_path is not None and fast_path.can_count(fast, 1):
        fast_path.count(fast)
    finish(fast, wire, dialect)
    finish(general, wire, dialect, with_fast_path=False)
    assert fast.record == general.record, steps
    assert fast.gaps == general.gaps, steps
    assert fast.done_marker_ns == general.done_marker_ns
    return general


def measured(flight: InFlight, load_point: LoadPoint = POINT) -> tuple[Figures, str, list[str]]:
    """Figures, verdict and reasons of a point with this request only."""
    rows = RowCollector(Assignment.of(load_point, 0, 1))
    rows.add(flight)
    requests, gaps = tables(load_point, rows.unreported())
    rows.close()
    verdict = judge(requests, (CALM,), load_point, 0)
    return figures(observe(requests, gaps, WINDOW)), verdict.validity, verdict.reasons


def are_right(point_figures: Figures) -> bool:
    """Whether the figures are those of 16 tokens, one every 10 ms, the first after 12 ms."""
    expected = {
        "ttft_ms": FIRST_MS,
        "tpot_ms": GAP_MS,
        "e2e_ms": LAST_MS,
        "itl_ms": GAP_MS,
        "output_tokens": TOKENS,
    }
    for name, value in expected.items():
        summary = getattr(point_figures, name)
        if summary is None:
            return False
        if abs(summary.p50 - value) > 0.01 * value or summary.mean > 1.01 * value:
            return False
    return True


def assert_right_or_marked(steps: list[Step], wire: str) -> None:
    point_figures, validity, reasons = measured(read(steps, wire))
    assert are_right(point_figures) or validity != "valid" or reasons, (point_figures, steps)


def assert_right(steps: list[Step], wire: str) -> None:
    for dialect in (NATURAL, FIXED):
        flight = read(steps, wire, dialect)
        assert flight.record.error is None, steps
        point_figures, validity, reasons = measured(flight)
        assert are_right(point_figures), (point_figures, steps)
        assert validity == "valid", reasons


# -- usage


NATIVE_USAGE = ["at the end"]
# Completions have no role event: there a first event without text that counts a token is one that
# has half a character, so their usage is not sent ahead.
CASES = [
    (api, usage)
    for api, (wire, _) in STREAMS.items()
    for usage in (USAGES if wire in (CHAT, COMPLETIONS) else NATIVE_USAGE)
    if (api, usage) != ("completions", "leading")
]


@pytest.mark.parametrize(("api", "usage"), CASES)
def test_an_event_with_text_is_content_however_usage_is_sent(api: str, usage: str) -> None:
    wire, stream = STREAMS[api]
    steps = USAGES[usage](stream()).steps()
    if usage != "leading":  # whose total is one too large
        assert_right(steps, wire)
    flight = read(steps, wire)
    assert (flight.record.first_token_ns, flight.record.last_token_ns) == (
        round(FIRST_MS * 1e6),
        round(LAST_MS * 1e6),
    )
    point_figures, validity, reasons = measured(flight)
    assert are_right(point_figures) or reasons or validity != "valid"


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
def test_tokens_are_taken_from_usage_of_each_event_only_where_it_is_a_running_count(
    usage: str, source: str
) -> None:
    assert read(USAGES[usage](chat()).steps(), CHAT).record.token_count_source == source


def test_tokens_counted_before_the_first_text_are_hidden() -> None:
    """So does a server that hides its reasoning and counts it in events without text."""
    altered = USAGES["running"](chat())
    for event in altered.tokens:
        event["usage"]["completion_tokens"] += 100
    altered.role = copy.deepcopy(altered.tokens[0])
    altered.role["choices"][0]["delta"] = {"content": ""}
    altered.role["usage"]["completion_tokens"] = 100
    assert altered.usage is not None
    altered.usage["usage"]["completion_tokens"] = 100 + TOKENS
    point_figures, validity, reasons = measured(read(altered.steps(), CHAT))
    assert point_figures.ttft_ms and point_figures.tpot_ms and point_figures.output_tokens
    assert (point_figures.ttft_ms.p50, point_figures.tpot_ms.p50) == pytest.approx(
        (FIRST_MS, GAP_MS)
    )
    assert point_figures.output_tokens.p50 == 100 + TOKENS
    assert validity == "valid" and any("never streamed" in reason for reason in reasons)


def test_a_token_whose_text_comes_later_is_still_a_token() -> None:
    """The first bytes of a character are no text yet, but a running count counts their token."""
    altered = USAGES["running"](chat())
    for number in (0, 5, 15):
        altered.tokens[number]["choices"][0]["delta"] = {"content": ""}
    assert_right(altered.steps(), CHAT)


# -- optional fields

PLACES = ("role", "first", "middle", "last", "finish", "usage", "after")
ABSENT = object()
ABSENT_OR_NULL: list[Any] = [ABSENT, None]
FEW_VALUES: list[Any] = [ABSENT, None, {}, "x"]
OTHER_VALUES: list[Any] = [
    {},
    [],
    "",
    0,
    False,
    "x",
    7,
    1.5,
    True,
    [None],
    ["x"],
    {"x": "y"},
    [[1]],
]
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
# Last parts of the fields without which figures may differ: they hold text, or counts that no other
# event has.
NEEDED = ("0", "text", "content", "delta", "choices", "choices.0", "token", "finish_reason", "usage",
          "meta_info", "completion_tokens", "details", "tool_calls", "reasoning_content", "id",
          "generated_text", "generated_tokens")  # fmt: skip


def at_place(altered: Stream, place: str) -> Event | None:
    """The event at a place. ``after`` adds an event with text after the [DONE]."""
    if place == "after":
        altered.after.append(copy.deepcopy(altered.tokens[0]))
        return altered.after[0]
    if place in ("role", "finish", "usage"):
        event: Event | None = getattr(altered, place)
        return event
    return altered.tokens[{"first": 0, "middle": TOKENS // 2, "last": -1}[place]]


def change(event: Event, path: str, value: Any) -> bool:
    """Sets a field of an event. False if the event has no such place."""
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
    """A stream of an API with a field changed in the events at some places. None if none has it."""
    _, stream = STREAMS[api]
    altered = stream()
    if api in ("sglang generate", "tgi"):
        assert usage == "at the end"
    else:
        altered = USAGES[usage](altered)
    changes = 0
    for place in places:
        event = at_place(altered, place)
        if event is not None and change(event, path, value):
            changes += 1
    return altered if changes else None


# fields without which an event of a token has no text
TEXT_FIELDS = {
    "choices", "choices.0", "choices.0.text", "choices.0.delta", "choices.0.delta.content",
    "choices.0.delta.tool_calls", "choices.0.delta.reasoning_content", "text", "token",
    "token.text", "token.id",
}  # fmt: skip


def crossed(api: str, values: list[Any]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Places, field and value of every change of an API's stream."""
    for path in FIELDS[STREAMS[api][0]]:
        for places in [*((place,) for place in PLACES), ("role", "finish", "usage")]:
            for value in values:
                yield places, path, value


def is_right(flight: InFlight) -> bool:
    """Whether a request's record shows that its figures are right, so they need not be computed."""
    record = flight.record
    instants = (record.first_token_ns, record.last_token_ns)
    has_token_per_chunk = record.chunks == TOKENS and tokens_per_chunk(flight) is None
    return (
        record.status == "ok"
        and instants == (round(FIRST_MS * 1e6), round(LAST_MS * 1e6))
        and has_token_per_chunk
        and (record.output_tokens, record.hidden_tokens or 0) == (TOKENS, 0)
    )


def are_near(point_figures: Figures) -> bool:
    """Whether the figures are those of an answer of which one event has lost its text."""
    if not (
        point_figures.ttft_ms
        and point_figures.tpot_ms
        and point_figures.e2e_ms
        and point_figures.output_tokens
    ):
        return False
    return (
        point_figures.ttft_ms.p50 in (FIRST_MS, FIRST_MS + GAP_MS)
        and point_figures.e2e_ms.p50 in (LAST_MS, LAST_MS - GAP_MS)
        and TOKENS - 1 <= point_figures.output_tokens.p50 <= TOKENS
        and abs(point_figures.tpot_ms.p50 - GAP_MS) <= GAP_MS / (TOKENS - 1) * 1.01
    )


@pytest.mark.parametrize(
    ("api", "usage"),
    [case for case in CASES if case[0] == "chat" or case[1] in ("at the end", "running")],
)
def test_a_field_of_any_form_at_any_place_gives_right_figures_or_a_mark(
    api: str, usage: str
) -> None:
    wrong = []
    values = [*ABSENT_OR_NULL, *OTHER_VALUES] if usage in ("at the end", "running") else FEW_VALUES
    for places, path, value in crossed(api, values):
        altered = changed(api, usage, places, path, value)
        if altered is None:
            continue
        flight = read(altered.steps(), STREAMS[api][0])
        if is_right(flight):
            continue
        point_figures, validity, reasons = measured(flight)
        if validity != "valid" or reasons or are_right(point_figures):
            continue
        if not (path in TEXT_FIELDS and len(places) == 1 and are_near(point_figures)):
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
        for value in ABSENT_OR_NULL:
            altered = changed(api, "at the end", (place,), path, value)
            if altered is not None:
                assert_right(altered.steps(), wire)


# -- whole answers

ONE_EVENT = ("in one event", "in one event, usage at the end", "two halves, usage at the end")
MESSAGES = {
    "error beside choices": "502 the backend went away",
    "error first": "502 the backend went away",
    "error as text": "went away",
    "named error": "went away",
}


@pytest.mark.parametrize(
    "name", [name for name in ANSWERS if not name.startswith(("usage ", "in one", "two", "four"))]
)
def test_heartbeats_change_nothing_and_errors_fail_with_their_message(name: str) -> None:
    if name in MESSAGES:
        flight = read(ANSWERS[name](), CHAT, FIXED)
        assert flight.record.status != "ok"
        assert MESSAGES[name] in (flight.record.error or "")
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
    point_figures, validity, reasons = measured(read(ANSWERS[name](), CHAT))
    assert (point_figures.tpot_ms, point_figures.itl_ms, point_figures.decode_throughput) == (
        None,
        None,
        None,
    )
    assert validity == "stream_buffered" and "in one event or a few" in reasons[0]
    values = limit_values(requests, gaps, WINDOW)
    assert not judge_limits(values, Slo(tpot=10.0)).met.any()
    assert not judge_limits(values, Slo(itl_p99=10.0)).met.any()
    assert judge_limits(values, Slo(ttft=10.0)).met.all()


def test_a_first_event_of_several_tokens_does_not_make_the_others_faster() -> None:
    for name in ("four, then single", "two halves"):
        point_figures, _, _ = measured(read(ANSWERS[name](), CHAT))
        assert point_figures.tpot_ms and point_figures.itl_ms
        assert (point_figures.tpot_ms.p50, point_figures.itl_ms.p50) == pytest.approx(
            (GAP_MS, GAP_MS)
        )


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
def test_a_finish_reason_that_means_failure_fails_and_an_unknown_one_is_shown(
    reason: object, status: str
) -> None:
    altered = chat()
    assert altered.finish is not None
    altered.finish["choices"][0]["finish_reason"] = reason
    flight = read(altered.steps(), CHAT)
    assert flight.record.status == status
    _, _, reasons = measured(flight)
    assert any("content_filter" in text for text in reasons) == (reason == "content_filter")


@pytest.mark.parametrize(("events", "status"), [(TOKENS, "ok"), (TOKENS - 3, "invalid")])
def test_a_fixed_length_is_judged_where_only_the_trial_request_was_counted(
    events: int, status: str
) -> None:
    altered = USAGES["none"](chat())
    altered.tokens = altered.tokens[:events]
    dialect = replace(FIXED, reports_counts=True)
    assert read(altered.steps(), CHAT, dialect).record.status == status


def test_content_in_parts_is_text_and_reasoning_is_no_part_of_the_answer() -> None:
    altered = reasoning()
    for event in altered.tokens[6:]:
        event["choices"][0]["delta"]["content"] = [{"type": "text", "text": " b"}]
    parsed = read(altered.steps(), CHAT).parsed
    assert "".join(parsed.answer_texts) == " b" * 10
    assert "".join(parsed.texts or ()) == " hm" * 6 + " b" * 10
    assert parsed.thought_tokens == 6
