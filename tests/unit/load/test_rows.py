"""Rows and chunk gaps in the schemas; rows of clients that died."""

from __future__ import annotations

import tracemalloc
from array import array
from contextlib import closing
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.load.http import BadHttp, parse_head
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import Target
from orchestrator.load.request_record import RequestRecord, TokenGaps
from orchestrator.load.requests import Assignment
from orchestrator.load.rows import POINT_IDS, RowCollector, lost_requests
from orchestrator.load.schedule import PlannedRequest, Schedule
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS
from orchestrator.spec.load import Workload
from tests.in_flight import sent_request
from tests.unit.load.test_schedule import Each, point


def filled() -> RowCollector:
    assignment = Assignment.of(point(measurement_id="m1", attempt_id="a1", warmup_s=20e-9), 3, 4)
    rows = RowCollector(assignment)
    for index in (7, 2, 5):
        planned = PlannedRequest(index, index, 0, 10 * index)
        record = assignment.record(planned, 0, "measure", 100, 4)
        record.sent_ns = 20 * index
        record.done_ns = 1000 * index
        record.chunks = 4
        request = InFlight(planned, record, 0, b"")
        if index != 5:
            tokens_per_chunk = array("h", [1, 2, 1, 1]) if index == 2 else None
            gaps_us = array("i", range(index, index + 3))
            request.gaps = TokenGaps(index, gaps_us, tokens_per_chunk)
        rows.add(request)
    rows.add_unsent(PlannedRequest(4, 4, 0, 10), 99, ErrorClass.TIMEOUT, "never sent")
    return rows


@pytest.mark.parametrize("letters", range(40, 60))
def test_a_secret_is_hidden_before_the_error_is_cut(letters: int) -> None:
    with pytest.raises(BadHttp) as no_http:
        parse_head(f"{'x' * letters} hf_Pl4ntedT0kenQwErTyUiOpAsDf".encode())
    request = sent_request()
    request.record.fail(ErrorClass.GARBAGE, str(no_http.value))
    rows = RowCollector(Assignment.of(point(), 0, 1))
    rows.add(request)
    (row,) = tables(rows)[0].to_pylist()
    assert "***" in row["error"] and "Pl" not in row["error"]


def tables(rows: RowCollector) -> list[pa.Table]:
    with closing(rows):
        return [part.read().sort_by("request_index") for part in rows.parts()]


def test_tables_have_the_schemas_and_are_ordered_by_request() -> None:
    requests, events = tables(filled())
    assert requests.schema.equals(REQUESTS, check_metadata=True)
    assert events.schema.equals(TOKEN_EVENTS, check_metadata=True)
    assert requests["request_index"].to_pylist() == [2, 4, 5, 7]
    assert events["request_index"].to_pylist() == [2, 7]
    assert events["gaps_us"].to_pylist() == [[2, 3, 4], [7, 8, 9]]
    assert events["tokens_per_chunk"].to_pylist() == [[1, 2, 1, 1], None]
    requests.validate(full=True)
    events.validate(full=True)


def test_a_row_has_the_ids_of_its_point_and_its_record() -> None:
    row = tables(filled())[0].to_pylist()[0]
    assert (row["measurement_id"], row["attempt_id"]) == ("m1", "a1")
    assert (row["client"], row["phase"], row["session"]) == (3, "measure", None)
    assert (row["scheduled_ns"], row["sent_ns"], row["done_ns"]) == (20, 40, 2000)
    assert (row["input_tokens_asked"], row["output_tokens_asked"]) == (100, 4)


def test_a_record_has_the_columns_of_requests_except_the_point_ids() -> None:
    names = {field.name for field in fields(RequestRecord)}
    assert names == {*REQUESTS.names} - {*POINT_IDS}


def test_a_request_that_was_never_sent_says_so() -> None:
    row = tables(filled())[0].to_pylist()[1]
    assert (row["status"], row["error_class"]) == ("timeout", "timeout")
    assert (row["sent_ns"], row["done_ns"]) == (None, 99)
    assert (row["input_tokens_asked"], row["output_tokens_asked"], row["chunks"]) == (4, 4, 0)


def test_rows_written_step_by_step_are_the_same_and_leave_memory() -> None:
    assignment = Assignment.of(point(), 0, 1)
    requests = [PlannedRequest(index, index, 0, index) for index in range(2_000)]
    memory_bytes = []
    stepwise = RowCollector(assignment, rows_at_once=100)
    at_once = RowCollector(assignment)
    with closing(stepwise), closing(at_once):
        for planned in requests:
            at_once.add_unsent(planned, 99, ErrorClass.TIMEOUT, f"never sent: {planned.index}")
        tracemalloc.start()
        for planned in requests:
            stepwise.add_unsent(planned, 99, ErrorClass.TIMEOUT, f"never sent: {planned.index}")
            if stepwise.full:
                assert len(list(stepwise.flush())) > 10  # each is far shorter than all of it
                memory_bytes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(memory_bytes) == 20
        growth_bytes = memory_bytes[-1] - memory_bytes[1]
        assert growth_bytes < 30 * 1_800, "a row in memory takes ten times as much"
        assert stepwise.parts()[0].read().equals(at_once.parts()[0].read())


@pytest.mark.parametrize(
    ("gaps", "groups"), [(500, [3, 41]), (0, [3, 3])], ids=["long answers", "answers of one token"]
)
def test_each_table_is_written_when_it_is_full_of_its_own(gaps: int, groups: list[int]) -> None:
    assignment = Assignment.of(point(), 0, 1)
    with closing(RowCollector(assignment, rows_at_once=40, gaps_at_once=1_000)) as rows:
        for index in range(81):
            request = sent_request(index=index)
            request.gaps = TokenGaps(index, array("i", range(gaps)), None)
            rows.add(request)
            rows.flush_full()
        parts = rows.parts()
        assert [pq.read_metadata(part.open()).num_row_groups for part in parts] == groups


@pytest.mark.parametrize("length", [0, 495])
def test_an_error_shows_no_secrets_and_no_control_characters(length: int) -> None:
    secrets = {
        "api_key": "key-of-mine",
        "headers": (("X-Key", "Basic hidden-word"), ("X-Team", "blue")),
    }
    target = Target("http://h", "m", **secrets)  # type: ignore[arg-type]
    error = "x" * length + "\x1b[31mblue key-of-mine, hidden-word\x07"
    request = sent_request()
    request.record.fail(ErrorClass.HTTP_4XX, error)
    rows = RowCollector(Assignment.of(point(targets=(target,)), 0, 1))
    rows.add(request)
    assert tables(rows)[0]["error"].to_pylist() == [("x" * length + "blue ***, ***")[:500]]


def test_an_unsent_request_shows_no_secrets_of_the_target_that_it_waited_for() -> None:
    targets = tuple(Target("http://h", "m", api_key=key) for key in ("key-of-one", "key-of-two"))
    rows = RowCollector(Assignment.of(point(targets=targets), 0, 1))
    of_second = PlannedRequest(1, 1, 0, 10)
    rows.add_unsent(of_second, 99, ErrorClass.ABORTED, "no answer with key-of-two")
    assert tables(rows)[0]["error"].to_pylist() == ["no answer with ***"]


def test_no_rows_make_empty_tables() -> None:
    requests, events = tables(RowCollector(Assignment.of(point(), 0, 1)))
    assert (len(requests), len(events)) == (0, 0)
    assert requests.schema.equals(REQUESTS)


@settings(max_examples=30, deadline=None)
@given(
    requests=st.integers(1, 60),
    turns=st.integers(1, 3),
    clients=st.integers(1, 5),
    open_loop=st.booleans(),
)
def test_the_requests_of_dead_clients_are_known_from_the_schedule(
    requests: int, turns: int, clients: int, open_loop: bool
) -> None:
    workload: dict[str, Any] = {"name": "w", "input_tokens": 10, "output_tokens": 5}
    if turns > 1:
        workload |= {"kind": "conversations", "turns": turns}
    control, value = ("request_rate", 9.0) if open_loop else ("concurrency", 4.0)
    load_point = point(
        control,
        value,
        workload=Workload.model_validate(workload),
        requests=requests,
        duration_s=None,
    )
    rows: list[dict[str, Any]] = []
    for index in range(clients):
        rows += lost_requests(load_point, index, clients, "gone").read().to_pylist()
    assert sorted(row["request_index"] for row in rows) == list(range(requests))
    assert {(row["status"], row["error_class"], row["error"]) for row in rows} == {
        ("lost", "lost", "gone")
    }


def test_a_lost_client_without_a_request_number_leaves_a_row_per_slot() -> None:
    closed = point("concurrency", 7.0)
    rows = lost_requests(closed, 1, 2, "gone").read().to_pylist()
    assert [row["request_index"] for row in rows] == [1, 3, 5]
    assert [row["scheduled_ns"] for row in rows] == Schedule(closed, Each(1), 1, 2).slot_starts


@pytest.mark.parametrize("rate", [0.5, 30.0])
def test_lost_requests_of_an_open_loop_are_those_of_the_schedule(rate: float) -> None:
    load_point = point(value=rate, warmup_s=2.0)
    rows = lost_requests(load_point, 0, 1, "gone").read().to_pylist()
    assert [row["scheduled_ns"] for row in rows] == Schedule(load_point, Each(1)).due_ns.tolist()
    assert {row["phase"] for row in rows} == {"warmup", "measure"}
