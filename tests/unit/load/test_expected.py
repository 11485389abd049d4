"""The prefix hits that a client expects of what it sent."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.load.expected import with_expected_hits
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import Assignment
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Level, Workload

IDS = Dialect(
    "openai_completions",
    "/v1/completions",
    prompt_token_ids=True,
    return_token_ids=True,
    adapter_field="model",
)


def point_of(block: int | None = 16, dialect: Dialect = IDS, **keys: Any) -> LoadPoint:
    content = {"name": "w", "input_tokens": 32, "output_tokens": 16, **keys}
    return LoadPoint(
        targets=(Target("http://127.0.0.1:1", "m"),),
        dialect=dialect,
        workload=Workload.model_validate(content),
        level=Level(control="request_rate", value=10.0),
        duration_s=None,
        requests=12,
        warmup_s=0.0,
        cache_block_tokens=block,
    )


def expected(
    point: LoadPoint, client: int = 0, clients: int = 1, failed: tuple[int, ...] = ()
) -> dict[int, int | None]:
    """By request_index, what a client expects after it sent its share of a point."""
    assignment = Assignment.of(point, client, clients)
    rows: list[dict[str, Any]] = []
    for session in assignment.schedule.own_sessions():
        for turn in range(assignment.schedule.turns(session)):
            planned = assignment.schedule.request(session, turn)
            assert planned is not None
            record = assignment.unsent_record(planned, 5)
            if planned.index in failed:
                record.fail(ErrorClass.TIMEOUT, "no end")
            else:
                record.output_tokens = record.output_tokens_asked
            rows.append({"measurement_id": "m", "attempt_id": "a", **asdict(record)})
    rows.reverse()  # the order in which requests end is any order
    table = pa.Table.from_pylist(rows, schema=REQUESTS)
    filled = with_expected_hits(RowFile("requests", len(rows), table), assignment).read()
    assert filled.drop(["expected_cached_tokens"]) == table.drop(["expected_cached_tokens"])
    indices = filled["request_index"].to_pylist()
    return dict(zip(indices, filled["expected_cached_tokens"].to_pylist(), strict=True))


def test_requests_that_share_nothing_expect_nothing() -> None:
    assert set(expected(point_of()).values()) == {0}


def test_all_but_the_first_expect_the_whole_blocks_of_their_prefix() -> None:
    hits = expected(point_of(shared_prefix_tokens=100))
    assert hits.pop(0) == 0
    assert set(hits.values()) == {96}
    assert expected(point_of(block=1, shared_prefix_tokens=100))[11] == 100


def test_a_warm_up_shares_no_prefix_with_what_is_measured() -> None:
    point = replace(point_of(shared_prefix_tokens=64), warmup_s=0.5)
    hits = expected(point)
    assert list(hits.values()).count(0) == 2, "the first of either phase"


def test_nothing_is_expected_of_prompts_with_tools_whose_tokens_nobody_counted() -> None:
    chat = Dialect("openai_chat", "/v1/chat/completions", tool_choices=frozenset({"auto"}))
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    point = point_of(dialect=chat, api="chat", tools=[tool])
    assert set(expected(point).values()) == {None}


def test_nothing_is_expected_of_slices_of_a_text_that_may_begin_alike(tmp_path: Path) -> None:
    """Of a short text many slices begin at the same word: an engine finds these again."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six\n" * 20)
    slices = point_of(content={"text": str(text)}, shared_prefix_tokens=64)
    assert set(expected(slices).values()) == {None}
    assert None not in expected(point_of(content="words")).values()


def test_the_other_parts_of_a_mix_keep_their_expectation(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six\n" * 20)
    slices = point_of(name="slices", content={"text": str(text)}).workload
    prefixed = point_of(name="prefixed", shared_prefix_tokens=100).workload
    parts = [{"workload": part.name, "content": part, "weight": 1} for part in (slices, prefixed)]
    mixed = Workload.model_validate({"name": "mixed", "kind": "mix", "parts": parts})
    point = replace(point_of(), workload=mixed, requests=40)
    kind = Assignment.of(point, 0, 1).kind
    hits = expected(point)
    by_part: dict[str | None, list[int | None]] = {}
    for session, tokens in sorted(hits.items()):
        by_part.setdefault(kind.part(session), []).append(tokens)
    assert set(by_part["slices"]) == {None}
    first, *later = by_part["prefixed"]
    assert first == 0
    assert set(later) == {96}
    assert expected(point, 0, 2) | expected(point, 1, 2) == hits


TALK = {"kind": "conversations", "turns": 3}


def test_a_turn_expects_everything_before_it_but_the_answers_last_token() -> None:
    hits = expected(point_of(**TALK))
    assert [hits[index] for index in range(6)] == [0, 32, 80, 0, 32, 80]


def test_answers_that_do_not_come_back_are_not_expected() -> None:
    silent = replace(IDS, return_token_ids=False)
    keys = {**TALK, "output_tokens": 33}
    assert expected(point_of(**keys))[1] == 64
    hits = expected(point_of(dialect=silent, **keys))
    # the second prompt has other ids in place of the engine's answer; the third has these, too
    assert [hits[index] for index in range(3)] == [0, 32, 96]


def test_a_failed_turn_is_in_no_later_prompt() -> None:
    hits = expected(point_of(**TALK), failed=(1,))
    # the third prompt has the first turn and its own message alone
    assert [hits[index] for index in range(3)] == [0, None, 32]


@pytest.mark.parametrize("clients", [1, 2])
def test_nothing_is_expected_of_a_prefix_that_was_only_sent_in_vain(clients: int) -> None:
    point = point_of(shared_prefix_tokens=64, shared_prefix_count=3)
    # sessions 4 and 6, both of client 0, are the first with the third prefix
    assert expected(point, 0, clients)[6] == 64
    assert expected(point, 0, clients, failed=(4,))[6] == 0


@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_without_a_single_answer_expects_nothing(clients: int) -> None:
    point = point_of(shared_prefix_tokens=64)
    assert set(expected(point, 0, clients, failed=tuple(range(12))).values()) == {None}


def test_clients_together_expect_what_one_does() -> None:
    point = point_of(shared_prefix_tokens=100, shared_prefix_count=3)
    alone = expected(point)
    together: dict[int, int | None] = {}
    for client in range(3):
        together |= expected(point, client, 3)
    assert together == alone


def test_a_mix_expects_what_its_parts_do() -> None:
    keys = {"input_tokens": 32, "output_tokens": 16}
    talk = Workload.model_validate({"name": "talk", **TALK, **keys})
    prefixed = Workload.model_validate({"name": "prefixed", "shared_prefix_tokens": 100, **keys})
    parts = [{"workload": part.name, "content": part, "weight": 1} for part in (talk, prefixed)]
    mixed = Workload.model_validate({"name": "mixed", "kind": "mix", "parts": parts})
    point = replace(point_of(), workload=mixed, requests=40)
    hits = expected(point)
    assert set(hits.values()) == {0, 32, 80, 96}
    together: dict[int, int | None] = {}
    for client in range(2):
        together |= expected(point, client, 2)
    assert together == hits


def test_each_replica_has_a_cache_of_its_own() -> None:
    point = point_of(shared_prefix_tokens=64)
    target = point.targets[0]
    hits = expected(replace(point, targets=(target, replace(target, replica=1))))
    assert [hits[index] for index in range(4)] == [0, 0, 64, 64]


@pytest.mark.parametrize("block", [None])
def test_an_engine_that_keeps_no_prefixes_has_no_expectation(block: None) -> None:
    assert set(expected(point_of(block=block, shared_prefix_tokens=64)).values()) == {None}


def test_adapters_find_nothing_of_each_others_prompts() -> None:
    shared = {"shared_prefix_tokens": 64}
    adapters = {"names": ["sql", "law"]}
    of_one: dict[int, Any] = expected(point_of(**shared))
    of_two: dict[int, Any] = expected(point_of(**shared, adapters=adapters))
    assert sorted(map(int, of_one.values())) == [0] + [64] * 11
    # each adapter computes the prefix once
    assert sorted(map(int, of_two.values())) == [0, 0] + [64] * 10
