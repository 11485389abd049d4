"""Requests written ahead of time: bounded, the same as written late, with the right history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.load import bodies as module
from orchestrator.load.bodies import Bodies, Written
from orchestrator.load.http import parse_url
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.schedule import Entry, Schedule
from orchestrator.load.tokens import prompter
from orchestrator.load.wire import WIRES, Parsed
from orchestrator.load.workloads import WORKLOADS
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths, Workload
from tests.unit.load.test_schedule import point

TARGETS = (Target("http://a:1", "ma"), Target("http://b:2", "mb", api_key="k"))


def make(given: LoadPoint) -> Bodies:
    prompts = prompter(given)
    kind = WORKLOADS[given.workload.kind](given.workload, prompts, given.seed)
    schedule = Schedule(given, kind.turns)
    origins = [parse_url(target.url) for target in given.targets]
    return Bodies(given, schedule, (0, 1), kind, WIRES[given.dialect.wire], prompts, origins)


def ids_point(**fields: Any) -> LoadPoint:
    return point(
        dialect=Dialect("openai_completions", "/v1/completions", prompt_token_ids=True), targets=TARGETS, **fields
    )


def content(written: Written) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written.wire_bytes.partition(b"\r\n\r\n")[2])
    return found


def entry(session: int, turn: int = 0, turns: int = 1) -> Entry:
    return Entry(session * turns + turn, session, turn, 0)


def test_written_ahead_or_late_a_request_is_the_same() -> None:
    ahead, late = make(ids_point()), make(ids_point())
    ahead.ahead()
    assert not ahead.hungry
    for session in range(40):
        assert ahead.take(entry(session), "measure") == late.take(entry(session), "measure")


def test_sessions_go_round_the_replicas_each_with_its_own_name_and_key() -> None:
    made = make(ids_point())
    first, second = made.take(entry(0), "measure"), made.take(entry(1), "measure")
    assert (content(first)["model"], content(second)["model"]) == ("ma", "mb")
    assert b"Authorization" not in first.wire_bytes
    assert b"Authorization: Bearer k\r\n" in second.wire_bytes
    assert second.wire_bytes.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: b:2\r\n")


def test_memory_for_requests_written_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AHEAD_BYTES", 20_000)
    made = make(ids_point(workload=Workload(name="w", input_tokens=Lengths(fixed=500), output_tokens=Lengths(fixed=1))))
    made.ahead()
    assert not made.hungry
    taken = 0
    while not made.hungry:
        made.take(entry(taken), "measure")
        taken += 1
    assert taken < 5  # as soon as there is room again
    made.ahead(1)
    assert content(made.take(entry(150), "measure"))["max_tokens"] == 1  # one that was never written ahead


def test_a_closed_loop_by_time_writes_a_few_for_each_slot() -> None:
    made = make(ids_point(control="concurrency", value=3.0))
    made.ahead()
    assert not made.hungry
    made.take(entry(0), "measure")
    assert made.hungry


def test_a_request_written_for_the_wrong_phase_is_written_again_when_the_prefix_differs() -> None:
    shared = Workload(name="w", input_tokens=Lengths(fixed=4), output_tokens=Lengths(fixed=1), shared_prefix_tokens=8)
    made = make(ids_point(control="concurrency", value=3.0, workload=shared, warmup_s=1.0))
    made.ahead()
    warm = content(made.take(entry(0), "warmup"))["prompt"]
    measured = content(made.take(entry(1), "measure"))["prompt"]
    assert len(warm) == len(measured) == 12
    assert warm[:8] != measured[:8]


@pytest.mark.parametrize("given_ids", [[7, 8, 9], None])
def test_the_next_turn_holds_the_answer_or_as_many_tokens(given_ids: list[int] | None) -> None:
    talk = Workload(
        name="w", kind="conversations", turns=2, input_tokens=Lengths(fixed=5), output_tokens=Lengths(fixed=3)
    )
    made = make(ids_point(workload=talk))
    first = made.take(entry(0, 0, 2), "measure")
    assert first.prompt is not None
    made.answered(entry(0, 0, 2), first.prompt, Parsed(token_ids=given_ids), 3)
    second = content(made.take(entry(0, 1, 2), "measure"))["prompt"]
    assert second[:5] == content(first)["prompt"]
    assert len(second) == 13
    assert given_ids is None or second[5:8] == given_ids
    unrelated = content(made.take(entry(1, 1, 2), "measure"))["prompt"]
    assert len(unrelated) == 5  # its first turn never answered


def test_chat_keeps_the_answer_as_text_and_forgets_a_session_after_its_last_turn() -> None:
    talk = Workload(
        name="w", kind="conversations", turns=2, input_tokens=Lengths(fixed=5), output_tokens=Lengths(fixed=3)
    )
    made = make(point(dialect=Dialect("openai_chat", "/v1/chat/completions"), workload=talk))
    first = made.take(entry(0, 0, 2), "measure")
    assert first.prompt is not None
    made.answered(entry(0, 0, 2), first.prompt, Parsed(texts=["he", "llo"]), 3)
    second = made.take(entry(0, 1, 2), "measure")
    assert [message["content"] for message in content(second)["messages"]][1] == "hello"
    assert second.prompt is not None
    made.answered(entry(0, 1, 2), second.prompt, Parsed(texts=[]), 3)
    assert len(content(made.take(entry(0, 1, 2), "measure"))["messages"]) == 1
