"""Requests written ahead of time: bounded, the same as written late, with the right history."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import (
    AHEAD_BYTES,
    Assignment,
    RequestWriter,
    header_problem,
    request_head,
    with_body,
)
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.parsed import Parsed
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.address import parse_url
from orchestrator.spec.constraint import ConstraintForm, ConstraintKind, all_kinds
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Lengths, Level, Workload
from orchestrator.spec.request_options import Adapters
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from orchestrator.workloads.mix import MixRequests
from tests.unit.load.test_schedule import point

TARGETS = (Target("http://a:1", "ma"), Target("http://b:2", "mb", api_key="k"))


def writer_of(load_point: LoadPoint, ahead_bytes: int = AHEAD_BYTES) -> RequestWriter:
    origins = [parse_url(target.url) for target in load_point.targets]
    return RequestWriter(Assignment.of(load_point, 0, 1), origins, ahead_bytes)


def ids_point(**fields: Any) -> LoadPoint:
    return point(
        dialect=Dialect("openai_completions", "/v1/completions", prompt_token_ids=True),
        targets=TARGETS,
        **fields,
    )


def content(written: InFlight) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(written.wire_bytes.partition(b"\r\n\r\n")[2])
    return body


def planned(session: int, turn: int = 0, turns: int = 1, due_ns: int = 0) -> PlannedRequest:
    return PlannedRequest(session * turns + turn, session, turn, due_ns)


def test_written_ahead_or_late_a_request_is_the_same() -> None:
    ahead, late = writer_of(ids_point()), writer_of(ids_point())
    ahead.prewrite()
    assert not ahead.wants_more
    for session in range(40):
        first, second = ahead.take(planned(session)), late.take(planned(session))
        assert first.record == second.record
        assert first.wire_bytes == second.wire_bytes


# -- the same bodies, whoever sends them

PLAIN = {"name": "plain", "input_tokens": 8, "output_tokens": 4}
CHATS = {**PLAIN, "name": "chats", "kind": "conversations", "turns": 3}
PICTURES = {"sizes": ["16x16"], "count": {"uniform": {"min": 1, "max": 2}}, "distinct": 5}
MIXED = [{"workload": "plain", "content": PLAIN}, {"workload": "chats", "content": CHATS}]
PROMPTS = "".join(f'{{"prompt": "line {line}", "output_tokens": {line}}}\n' for line in range(1, 9))
TRACE = "timestamp,input_length,output_length\n" + "".join(f"{at},9,3\n" for at in range(40))
COLUMNS = {"time": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length"}
# keys of a workload, and what is in the body of some of its requests
SENT: dict[str, tuple[dict[str, Any], bytes]] = {
    "random": (PLAIN, b'"prompt"'),
    "conversations": (CHATS, b'"prompt"'),
    "chat": ({**CHATS, "api": "chat"}, b'"assistant"'),
    "mix": ({"name": "w", "kind": "mix", "parts": MIXED}, b'"prompt"'),
    "file": ({"name": "w", "kind": "file", "prompts": "prompts.jsonl"}, b"line 8"),
    "trace": (
        {"name": "w", "kind": "trace", "trace": "trace.csv", "unit": "ms", "columns": COLUMNS},
        b'"prompt"',
    ),
    "text": ({**PLAIN, "content": {"text": "prompts.jsonl"}}, b"line"),
    "constrain": (
        {**PLAIN, "constrain": {"json_schema": {"type": "object"}, "share": 0.5, "variants": 4}},
        b"variant 3 of 4",
    ),
    "adapters": ({**CHATS, "adapters": {"names": ["sql", "law"], "base_share": 0.3}}, b'"law"'),
    "images": ({**PLAIN, "api": "chat", "images": PICTURES}, b"image_url"),
}


def bodies(load_point: LoadPoint, clients: int) -> dict[int, bytes]:
    """By request_index, the body of every request of a point that ``clients`` clients share. Each
    client has a copy of its own, and every second one writes ahead.
    """
    sent = {}
    for client in range(clients):
        assignment = Assignment.of(pickle.loads(pickle.dumps(load_point)), client, clients)
        writer = RequestWriter(assignment, [parse_url(TARGETS[0].url)])
        if client % 2:
            writer.prewrite()
        for session in assignment.schedule.own_sessions():
            for turn in range(assignment.schedule.turns(session)):
                request = assignment.schedule.request(session, turn, due_ns=0)
                assert request is not None
                written = writer.take(request)
                assert request.index not in sent
                sent[request.index] = written.wire_bytes.partition(b"\r\n\r\n")[2]
                if written.prompt is not None:
                    written.parsed = Parsed(answer_texts=[f"answer {request.index}"])
                    written.record.output_tokens = 3
                    writer.answered(written)
    return sent


@pytest.mark.parametrize("sent", SENT)
def test_any_number_of_clients_sends_the_same_bodies(
    sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text(PROMPTS)
    Path("trace.csv").write_text(TRACE)
    keys, in_some_body = SENT[sent]
    workload = Workload.model_validate(keys).resolved(str)
    dialect = Dialect(
        f"openai_{workload.api}",
        "/",
        prompt_token_ids=workload.api == "completions",
        images=True,
        adapter_field="model",
        constraints=all_kinds(ConstraintForm.STRUCTURED_OUTPUTS),
    )
    load_point = point(
        dialect=dialect, targets=TARGETS[:1], workload=workload, requests=30, duration_s=None
    )
    of_one = bodies(load_point, 1)
    assert sorted(of_one) == list(range(30))
    assert any(in_some_body in body for body in of_one.values())
    assert len(set(of_one.values())) > 5
    assert bodies(load_point, 4) == of_one


# -- who is asked, and what waits


def test_sessions_go_round_the_replicas_each_with_its_own_name_and_key() -> None:
    writer = writer_of(ids_point())
    first, second = writer.take(planned(0)), writer.take(planned(1))
    assert (content(first)["model"], content(second)["model"]) == ("ma", "mb")
    assert b"Authorization" not in first.wire_bytes
    assert b"Authorization: Bearer k\r\n" in second.wire_bytes
    assert second.wire_bytes.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: b:2\r\n")


def test_memory_for_requests_written_ahead_is_bounded() -> None:
    long_prompts = RandomWorkload(
        name="w", input_tokens=Lengths(fixed=500), output_tokens=Lengths(fixed=1)
    )
    writer = writer_of(ids_point(workload=long_prompts), ahead_bytes=20_000)
    writer.prewrite()
    assert not writer.wants_more
    taken = 0
    while not writer.wants_more:
        writer.take(planned(taken))
        taken += 1
    assert taken < 5  # as soon as there is room again
    writer.prewrite(1)
    assert content(writer.take(planned(150)))["max_tokens"] == 1  # one that was never written ahead


def test_a_closed_loop_by_time_writes_a_few_for_each_slot() -> None:
    writer = writer_of(ids_point(control="concurrency", value=3.0))
    writer.prewrite()
    assert not writer.wants_more
    writer.take(planned(0))
    assert writer.wants_more


def test_a_request_of_another_phase_is_written_again_with_its_prefix() -> None:
    shared = RandomWorkload(
        name="w",
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=1),
        shared_prefix_tokens=8,
    )
    writer = writer_of(ids_point(control="concurrency", value=3.0, workload=shared, warmup_s=1.0))
    writer.prewrite()
    warm = content(writer.take(planned(0)))["prompt"]
    measured = content(writer.take(planned(1, due_ns=2_000_000_000)))["prompt"]
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
    writer = writer_of(ids_point(workload=talk))
    first = writer.take(planned(0, 0, 2))
    first.parsed = Parsed(token_ids=given_ids)
    first.record.output_tokens = 3
    writer.answered(first)
    second = content(writer.take(planned(0, 1, 2)))["prompt"]
    assert second[:5] == content(first)["prompt"]
    assert len(second) == 13
    assert given_ids != [7, 8, 9] or second[5:8] == given_ids
    unrelated = content(writer.take(planned(1, 1, 2)))["prompt"]
    assert len(unrelated) == 5  # its first turn never answered


def test_a_chat_holds_its_earlier_answers_until_its_last_turn() -> None:
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=2,
        input_tokens=Lengths(fixed=5),
        output_tokens=Lengths(fixed=3),
    )
    writer = writer_of(point(dialect=Dialect("openai_chat", "/v1/chat/completions"), workload=talk))
    first = writer.take(planned(0, 0, 2))
    first.parsed = Parsed(answer_texts=["he", "llo"])
    writer.answered(first)
    second = writer.take(planned(0, 1, 2))
    assert [message["content"] for message in content(second)["messages"]][1] == "hello"
    writer.answered(second)
    assert len(content(writer.take(planned(0, 1, 2)))["messages"]) == 1


def test_what_was_said_in_a_turn_that_failed_stays_in_later_prompts() -> None:
    keys = {"kind": "conversations", "turns": 3, "input_tokens": 5, "output_tokens": 3}
    talk = Workload.model_validate({"name": "w", **keys})
    writer = writer_of(point(dialect=Dialect("openai_chat", "/v1/chat/completions"), workload=talk))
    first = writer.take(planned(0, 0, 3))
    first.record.fail(ErrorClass.TIMEOUT, "no end")
    writer.answered(first)
    (said,) = content(first)["messages"]
    messages = content(writer.take(planned(0, 1, 3)))["messages"]
    assert messages[:2] == [said, {"role": "assistant", "content": ""}]
    assert len(messages) == 3


def test_answers_that_later_slices_follow_are_kept_as_the_engine_made_them(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four")
    keys = {"kind": "conversations", "turns": 2, "input_tokens": 5, "output_tokens": 3}
    slices = {"content": {"text": str(text)}}
    for given, is_kept in (({}, False), (slices, True)):
        talk = Workload.model_validate({"name": "w", **keys, **given})
        chat = Dialect("openai_chat", "/v1/chat/completions")
        writer = writer_of(point(dialect=chat, workload=talk))
        first = writer.take(planned(0, 0, 2))
        first.parsed = Parsed(answer_texts=["he", "llo"], token_ids=[7, 8, 9])
        writer.answered(first)
        answer = writer.answers.of(0, 0)
        assert (answer is not None) == is_kept
        if answer is not None:
            assert answer.content == ("hello",)
            assert answer.ids is not None
            assert answer.ids.tolist() == [7, 8, 9]


def test_a_conversation_that_has_begun_is_sent_with_what_was_said_before() -> None:
    talk = ConversationsWorkload.model_validate(
        {
            "name": "w",
            "kind": "conversations",
            "turns": 9,
            "start": "anywhere",
            "input_tokens": 5,
            "output_tokens": 3,
        }
    )
    met = point(
        workload=talk,
        level=Level(control="concurrency", value=40.0),
        dialect=Dialect("openai_chat", "/v1/chat/completions"),
    )
    writer = writer_of(met)
    schedule = Assignment.of(met, 0, 1).schedule
    session = next(session for session in range(40) if schedule.first_turn(session) > 1)
    first_turn = schedule.first_turn(session)
    request = schedule.first_request(session, due_ns=0)
    assert request is not None and request.turn == first_turn
    first = writer.take(request)
    messages = content(first)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * first_turn + [
        "user"
    ]
    assert first.record.input_tokens_asked == first_turn * 8 + 5
    first.parsed = Parsed(answer_texts=["hello"])
    writer.answered(first)
    following = schedule.request(session, first_turn + 1, due_ns=1)
    if following is not None:
        later = content(writer.take(following))["messages"]
        assert later[: len(messages)] == messages
        assert later[len(messages)]["content"] == "hello"


# -- HTTP


def test_a_request_says_its_length_and_asks_for_no_compression() -> None:
    raw = with_body(
        request_head(parse_url("http://h:81/p"), "/v1/completions", Target("", "m", api_key="key")),
        b'{"a":1}',
    )
    text = raw.decode()
    assert text.startswith("POST /p/v1/completions HTTP/1.1\r\nHost: h:81\r\n")
    assert text.endswith('\r\nContent-Length: 7\r\n\r\n{"a":1}')
    assert "Authorization: Bearer key\r\n" in text
    assert "Accept-Encoding: identity\r\n" in text
    assert "Authorization" not in request_head(parse_url("http://h"), "/", Target("", "m")).decode()


def test_headers_of_the_user_are_added_and_replace_ours() -> None:
    target = Target(
        "",
        "m",
        api_key="k",
        headers=(("X-Team", "a b"), ("authorization", "Basic zz"), ("Accept", "*/*")),
    )
    head = request_head(parse_url("http://h"), "/", target).decode()
    assert "\r\nX-Team: a b\r\n" in head and "\r\nauthorization: Basic zz\r\n" in head
    assert "Bearer" not in head and head.count("Accept:") == 1
    assert "zz" not in repr(target)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a secret", "x"),
        ("", "x"),
        ("X", "secret\r\nY: z"),
        ("X", "secret\0"),
        ("Content-Length", "3"),
        ("X", "\u20ac"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(name: str, value: str) -> None:
    problem = header_problem(name, value)
    assert problem is not None and "secret" not in problem
    with pytest.raises(InputError):
        request_head(parse_url("http://h"), "/", Target("", "m", headers=((name, value),)))


def test_the_turns_of_a_session_ask_for_its_adapter_and_rows_name_it() -> None:
    adapters = Adapters(names=("sql", "law"), base_share=0.4)
    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=2,
        input_tokens=Lengths(fixed=4),
        output_tokens=Lengths(fixed=2),
        adapters=adapters,
    )
    dialect = Dialect("openai_completions", "/v1/completions", adapter_field="model")
    writer = writer_of(point(dialect=dialect, targets=TARGETS[:1], workload=talk))
    asked = set()
    for session in range(20):
        first = writer.take(planned(session, 0, turns=2))
        first.parsed = Parsed(texts=["hi"], answer_texts=["hi"])
        first.record.output_tokens = 1
        writer.answered(first)
        second = writer.take(planned(session, 1, turns=2))
        adapter = first.record.adapter
        assert content(first)["model"] == content(second)["model"] == (adapter or "ma")
        assert second.record.adapter == adapter
        asked.add(adapter)
    assert asked == {None, "sql", "law"}


def test_pictures_and_texts_of_a_rare_part_are_made_before_the_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one two three")
    lengths = {"input_tokens": 8, "output_tokens": 4, "api": "chat"}
    rare = {"images": {"sizes": ["16x16"], "distinct": 1}, "content": {"text": str(corpus)}}
    parts = [
        {"workload": "often", "content": {"name": "often", **lengths}},
        {"workload": "rare", "weight": 1e-9, "content": {"name": "rare", **lengths, **rare}},
    ]
    mix = Workload.model_validate({"name": "w", "kind": "mix", "api": "chat", "parts": parts})
    chat = Dialect("openai_chat", "/v1/chat/completions", images=True)
    load_point = replace(point(workload=mix), dialect=chat)
    assignment = Assignment.of(load_point, 0, 1)
    writer = RequestWriter(assignment, [parse_url(target.url) for target in load_point.targets])
    writer.prewrite()
    monkeypatch.setattr("orchestrator.workloads.images.png", None)
    monkeypatch.setattr("orchestrator.workloads.drawn.read_text", None)
    assert isinstance(assignment.kind, MixRequests)
    assert assignment.kind.kinds["rare"].request(0, 0, "measure", ()).images == 1


def test_token_ids_of_a_file_are_sent_as_they_are_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": [5, 6, 70000]}\n')
    keys = {"name": "w", "kind": "file", "prompts": str(file), "output_tokens": 4}
    sent = ids_point(workload=Workload.model_validate(keys))
    assert content(writer_of(sent).take(planned(0)))["prompt"] == [5, 6, 70000]
    as_text = replace(sent, dialect=replace(sent.dialect, prompt_token_ids=False))
    with pytest.raises(InputError, match="takes no token ids as a prompt"):
        writer_of(as_text)


def test_a_record_has_the_bytes_of_the_body() -> None:
    written = writer_of(ids_point()).take(planned(0))
    body = written.wire_bytes.partition(b"\r\n\r\n")[2]
    assert written.record.body_bytes == len(body) > 0


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"constrain": {"regex": "a"}}, "no field that is known for a regex"),
        ({"tools": [{}], "tool_choice": {"name": "f"}}, "does not take the tool_choice named"),
        ({"tools": [{}], "constrain": {"choice": ["a"]}}, "takes no choice beside tools"),
        ({"adapters": {"names": ["sql"]}}, "no field that is known for LoRA adapters"),
    ],
)
def test_what_a_server_has_no_field_for_is_not_sent(keys: dict[str, Any], reason: str) -> None:
    """Of an endpoint that shows only when it is asked, so that plans cannot refuse it."""
    dialect = Dialect(
        "openai_chat",
        "/v1/chat/completions",
        constraints={ConstraintKind.CHOICE: ConstraintForm.GBNF},
        tool_choices=frozenset({"auto"}),
        free_beside_tools=frozenset({ConstraintKind.CHOICE}),
    )
    lengths = {"name": "w", "api": "chat", "input_tokens": 5, "output_tokens": 5}
    workload = Workload.model_validate({**lengths, **keys})
    with pytest.raises(InputError, match=reason):
        Assignment.of(point(dialect=dialect, targets=TARGETS, workload=workload), 0, 1)
