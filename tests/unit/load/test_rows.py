"""Rows and chunk gaps in the schemas; rows of clients that died."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.load.digest import Digest
from orchestrator.load.exchange import Exchange
from orchestrator.load.lost import lost_requests
from orchestrator.load.outcome import OK, Outcome
from orchestrator.load.rows import Rows
from orchestrator.load.schedule import Entry, Schedule
from orchestrator.load.wire import Parsed
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS
from orchestrator.spec.load import Lengths, Workload
from tests.unit.load.test_schedule import point

START = 5_000_000_000


def filled() -> Rows:
    rows = Rows(point(measurement_id="m1", attempt_id="a1"), 3, START, sessions=False)
    for index in (7, 2, 5):
        exchange = Exchange(Entry(index, index, 0, 10 * index), 0, b"", 100, 4)
        exchange.sent_ns, exchange.ended_ns = START + 20 * index, START + 1000 * index
        digest = Digest(OK, Parsed([1] * 4, "token_ids", 100, 4, 60, "length"))
        digest.first_token_ns, digest.chunks, digest.output_tokens, digest.http_status = START + 50 * index, 4, 4, 200
        if index != 5:
            digest.gaps_us = array("i", range(index, index + 3))
            digest.tokens_per_chunk = array("h", [1, 2, 1, 1]) if index == 2 else None
        rows.add(exchange, digest, "measure")
    rows.add_unsent(Entry(4, 4, 0, 40), 0, "warmup", 99, (100, 4), Outcome("timeout", "timeout", "never sent"))
    return rows


def test_tables_have_the_schemas_and_are_ordered_by_request() -> None:
    requests, events = filled().tables()
    assert requests.schema.equals(REQUESTS, check_metadata=True)
    assert events.schema.equals(TOKEN_EVENTS, check_metadata=True)
    assert requests["request_index"].to_pylist() == [2, 4, 5, 7]
    assert events["request_index"].to_pylist() == [2, 7]
    assert events["gaps_us"].to_pylist() == [[2, 3, 4], [7, 8, 9]]
    assert events["tokens_per_chunk"].to_pylist() == [[1, 2, 1, 1], None]
    requests.validate(full=True)
    events.validate(full=True)


def test_times_count_from_the_points_start_and_keys_are_the_points() -> None:
    row = filled().tables()[0].to_pylist()[0]
    assert (row["measurement_id"], row["attempt_id"], row["client"], row["phase"]) == ("m1", "a1", 3, "measure")
    assert (row["scheduled_ns"], row["sent_ns"], row["first_token_ns"], row["done_ns"]) == (20, 40, 100, 2000)
    assert (row["input_tokens"], row["cached_tokens"], row["finish_reason"]) == (100, 60, "length")
    assert row["session"] is None


def test_a_request_that_was_never_sent_says_so() -> None:
    row = filled().tables()[0].to_pylist()[1]
    assert (row["status"], row["error_class"], row["sent_ns"], row["done_ns"]) == ("timeout", "timeout", None, 99)
    assert (row["input_tokens_asked"], row["output_tokens_asked"], row["chunks"]) == (100, 4, 0)


def test_no_rows_make_empty_tables() -> None:
    requests, events = Rows(point(), 0, START, sessions=True).tables()
    assert (len(requests), len(events)) == (0, 0)
    assert requests.schema.equals(REQUESTS)


@settings(max_examples=30, deadline=None)
@given(requests=st.integers(1, 60), turns=st.integers(1, 3), clients=st.integers(1, 5), open_loop=st.booleans())
def test_what_dead_clients_had_to_do_is_known_without_them(
    requests: int, turns: int, clients: int, open_loop: bool
) -> None:
    kind = "conversations" if turns > 1 else "random"
    lengths = {"input_tokens": Lengths(fixed=10), "output_tokens": Lengths(fixed=5)}
    fields: dict[str, Any] = {
        "workload": Workload(name="w", kind=kind, turns=turns, **lengths),
        "requests": requests,
        "duration_s": None,
    }
    control = ("request_rate", 9.0) if open_loop else ("concurrency", 4.0)
    given_point = point(*control, **fields)
    rows = [row for index in range(clients) for row in lost_requests(given_point, index, clients, "gone").to_pylist()]
    assert sorted(row["request_index"] for row in rows) == list(range(requests))
    assert {(row["status"], row["error"]) for row in rows} == {("lost", "gone")}


def test_a_lost_client_of_a_closed_loop_by_time_leaves_a_row_per_slot() -> None:
    closed = point("concurrency", 7.0)
    rows = lost_requests(closed, 1, 2, "gone").to_pylist()
    assert [row["request_index"] for row in rows] == [1, 3, 5]
    assert [row["scheduled_ns"] for row in rows] == Schedule(closed, 1).slot_starts(1, 2)


@pytest.mark.parametrize("rate", [0.5, 30.0])
def test_lost_requests_of_an_open_loop_are_those_of_the_schedule(rate: float) -> None:
    given_point = point(value=rate, warmup_s=2.0)
    rows = lost_requests(given_point, 0, 1, "gone").to_pylist()
    assert [row["scheduled_ns"] for row in rows] == Schedule(given_point, 1).due_ns.tolist()
    assert {row["phase"] for row in rows} == {"warmup", "measure"}
