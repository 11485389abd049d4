"""Requests written ahead of time: bounded, the same as written late, with the right history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.load import requests as module
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import Assignment, RequestWriter, parse_url
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.parsed import Parsed
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from tests.unit.load.test_schedule import point

TARGETS = (Target("http://a:1", "ma"), Target("http://b:2", "mb", api_key="k"))


def make(given: LoadPoint) -> RequestWriter:
    return RequestWriter(
        Assignment.of(given, 0, 1), [parse_url(target.url) for target in given.targets]
    )


def ids_point(**fields: Any) -> LoadPoint:
    return point(
        dialect=Dialect("openai_completions", "/v1/completions", prompt_token_ids=True),
        targets=TARGETS,
        **fields,
    )


def content(written: InFlight) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written.wire_bytes.partition(b"\r\n\r\n")[2])
    return found


def planned(session: int, turn: int = 0, turns: int = 1, due_ns: int = 0) -> PlannedRequest:
    return PlannedRequest(session * turns + turn, session, turn, due_ns)


def test_written_ahead_or_late_a_request_is_the_same() -> None:
    ahead, late = make(ids_point()), make(ids_point())
    ahead.prewrite()
    assert not ahead.wants_more
    for session in range(40):
        first, second = ahead.take(planned(session)), late.take(planned(session))
        assert first.record == second.record
        assert first.wire_bytes == second.wire_bytes


def test_sessions_go_round_the_replicas_each_with_its_own_name_and_key() -> None:
    made = make(ids_point())
    first, second = made.take(planned(0)), made.take(planned(1))
    assert (content(first)["model"], content(second)["model"]) == ("ma", "mb")
    assert b"Authorization" not in first.wire_bytes
    assert b"Authorization: Bearer k\r\n" in second.wire_bytes
    assert second.wire_bytes.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: b:2\r\n")


def test_memory_for_requests_written_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 20_000)
    made = make(
        ids_point(
            workload=RandomWorkload(
                name="w", input_tokens=Lengths(fixed=500), output_tokens=Lengths(fixed=1)
            )
        )
    )
    made.prewrite()
    assert not made.wants_more
    taken = 0
    while not made.wants_more:
        made.take(planned(taken))
        taken += 1
    assert taken < 5  # as soon as there is room again
    made.prewrite(1)
    assert content(made.take(planned(150)))["max_tokens"] == 1  # one that was never written ahead


def test_a_closed_loop_by_time_writes_a_few_for_each_slot() -> None:
    made = make(ids_point(control="concurrency", value=3.0))
    made.prewrite()
    assert not made.wants_more
    made.take(planned(0))
    assert made.wants_more


def test_a_request_written_for_the_wrong_phase_is_written_again_when_the_prefix_differs() -> None:
    shared = RandomWorkload(
        name="w",
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=1),
        shared_prefix_tokens=8,
    )
    made = make(ids_point(control="concurrency", value=3.0, workload=shared, warmup_s=1.0))
    made.prewrite()
    warm = content(made.take(planned(0)))["prompt"]
    measured = content(made.take(planned(1, due_ns=2_000_000_000)))["prompt"]
    assert len(warm) == len(measured) == 12
    assert warm[:8] != measured[:8]


@pytest.mark.parametrize("given_ids", [[7, 8, 9], None, [7, 8, 2**40], [7, "8", 9], [-1, 8, 9]])
def test_the_next_turn_holds_the_answer_or_as_many_tokens(given_ids: Any) -> None:
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=2,
        input_tokens=Lengths(fixed=5),
        output_tokens=Lengths(fixed=3),
    )
    made = make(ids_point(workload=talk))
    first = made.take(planned(0, 0, 2))
    first.parsed = Parsed(token_ids=given_ids)
    first.record.output_tokens = 3
    made.answered(first)
    second = content(made.take(planned(0, 1, 2)))["prompt"]
    assert second[:5] == content(first)["prompt"]
    assert len(second) == 13
    assert given_ids != [7, 8, 9] or second[5:8] == given_ids
    unrelated = content(made.take(planned(1, 1, 2)))["prompt"]
    assert len(unrelated) == 5  # its first turn never answered


def test_chat_keeps_the_answer_as_text_and_forgets_a_session_after_its_last_turn() -> None:
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=2,
        input_tokens=Lengths(fixed=5),
        output_tokens=Lengths(fixed=3),
    )
    made = make(point(dialect=Dialect("openai_chat", "/v1/chat/completions"), workload=talk))
    first = made.take(planned(0, 0, 2))
    first.parsed = Parsed(answer_texts=["he", "llo"])
    made.answered(first)
    second = made.take(planned(0, 1, 2))
    assert [message["content"] for message in content(second)["messages"]][1] == "hello"
    made.answered(second)
    assert len(content(made.take(planned(0, 1, 2)))["messages"]) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://münchen.example:8000", r"host .* punycode \(xn--…\)"),
        ("http://a:8000/größe", "path .* percent-encode"),
        ("http://a:0/v1", "port 0"),
    ],
)
def test_what_no_request_can_be_sent_to_is_refused_with_what_to_write(url: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_url(url)
