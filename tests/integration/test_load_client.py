"""The client against a real server on loopback: what is due is sent when it is due, and the rows
tell the truth.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.load.client import LoadClient
from orchestrator.load.point import Target
from orchestrator.load.schedule import Schedule
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.schemas import REQUESTS, TOKEN_EVENTS
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.sweep.endpoint import measure_here
from orchestrator.workloads.drawn import ConversationsWorkload
from tests.harness import AGAINST_THE_CLOCK
from tests.integration.load_server import (
    DONE,
    END,
    HEAD,
    Behaviour,
    Request,
    answer_well,
    chunk,
    serving,
    stream,
    token,
)
from tests.integration.test_load_hostile import point, run
from tests.unit.load.test_schedule import Each

pytestmark = AGAINST_THE_CLOCK

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


def rate(value: float, process: str = "poisson", **fields: Any) -> dict[str, Any]:
    level = Level(control="request_rate", value=value)
    return {
        "level": level,
        "arrivals": Arrivals(process=process),
        "requests": None,
        "duration_s": 1.0,
        **fields,
    }


def timed(ttft_s: float, itl_s: float, slots: int = 10_000) -> Behaviour:
    """Tokens at known times; at most ``slots`` requests are served at once, the others wait."""
    places: list[asyncio.Semaphore] = []

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        places or places.append(asyncio.Semaphore(slots))
        async with places[0]:
            await asyncio.sleep(ttft_s)
            *tokens, usage, done = stream(request)
            writer.write(HEAD)
            for event in tokens:
                writer.write(chunk(event))
                await asyncio.sleep(itl_s)
            writer.write(chunk(usage) + chunk(done) + END)

    return behave


def column(rows: list[dict[str, Any]], name: str) -> Any:
    return np.array([row[name] for row in rows], dtype=float)


def test_ttft_and_itl_are_those_of_the_server() -> None:
    with serving(timed(0.05, 0.01)) as server:
        result = run(point(server.port, 20, concurrency=4, tokens=10))
    rows = result.requests.to_pylist()
    ttft_ms = (column(rows, "first_token_ns") - column(rows, "sent_ns")) / 1e6
    assert 50 <= np.median(ttft_ms) < 60
    gaps_ms = np.concatenate(result.token_events["gaps_us"].to_pylist()) / 1e3
    assert len(gaps_ms) == 20 * 9
    assert 10 <= np.median(gaps_ms) < 13
    for row, gaps in zip(rows, result.token_events["gaps_us"].to_pylist(), strict=True):
        assert sum(gaps) * 1000 == pytest.approx(
            row["last_token_ns"] - row["first_token_ns"], abs=1000
        )
    assert {(row["itl_kind"], row["token_count_source"], row["output_tokens"]) for row in rows} == {
        ("token", "usage", 10)
    }


def test_tables_have_the_schemas_and_every_entry_one_row() -> None:
    with serving(answer_well) as server:
        given = point(server.port, **rate(300.0, measurement_id="m", attempt_id="a"))
        client = LoadClient()
        known = client.prepare(given)
        result = client.run(time.monotonic_ns() + 10_000_000)
    assert result.requests.schema.equals(REQUESTS)
    assert result.token_events.schema.equals(TOKEN_EVENTS)
    assert len(result.requests) == known == len(Schedule(given, Each(1)).due_ns)
    assert result.requests["scheduled_ns"].to_pylist() == Schedule(given, Each(1)).due_ns.tolist()
    assert client.progress().done == known


def test_the_open_loop_sends_on_time_whatever_the_server_does() -> None:
    with serving(timed(0.4, 0.0)) as server:
        result = run(point(server.port, **rate(200.0)))
    rows = result.requests.to_pylist()
    lag_ms = (column(rows, "sent_ns") - column(rows, "scheduled_ns")) / 1e6
    assert lag_ms.min() >= 0
    assert np.median(lag_ms) < 2.0
    assert result.stats.in_flight_max > 40  # 200/s that take 0.4 s each
    assert result.stats.sockets_max <= result.stats.in_flight_max + 5


def as_rows(requests: Rows) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(
        {name: requests[name] for name in REQUESTS.names}
    ).to_pylist()
    return found


def test_a_full_engine_behind_a_cap_shows_in_latency_from_the_schedule() -> None:
    """8 slots at twice their rate with 16 in flight: from sent it looks like two service times, for
    users it grows.
    """
    service_s, cap = 0.1, 16
    with serving(timed(service_s, 0.0, slots=8)) as server:
        given = point(
            server.port,
            **rate(160.0, "constant", duration_s=1.5, max_in_flight=cap, drain_timeout_s=30.0),
        )
        attempt = measure_here(given, 1, lambda item: None)  # not in the server's process
    requests, stats, verdict = attempt.loaded.requests, attempt.loaded.stats, attempt.verdict
    rows = as_rows(requests)
    assert len(rows) == 240  # nothing is skipped
    assert {row["status"] for row in rows} == {"ok"}
    assert stats[0].in_flight_max <= cap
    from_sent = column(rows, "first_token_ns") - column(rows, "sent_ns")
    from_schedule = column(rows, "first_token_ns") - column(rows, "scheduled_ns")
    assert np.median(from_sent[40:]) / 1e9 == pytest.approx(2 * service_s, rel=0.35)
    expected_s = 240 / 80 - 1.5  # the last one is due at 1.5 s and served when 240 are, 80 a second
    assert from_schedule[-10:].mean() / 1e9 == pytest.approx(expected_s, rel=0.25)
    assert any("does not keep up" in reason for reason in verdict.reasons)
    assert any("max_in_flight is 16, as asked" in reason for reason in verdict.reasons)
    # the cap is the user's, not our slowness
    assert not any("sent - due" in reason for reason in verdict.reasons)


def test_a_stop_in_the_engine_is_felt_by_those_who_came_during_it() -> None:
    """Coordinated omission: a stall of 0.5 s must appear in the latencies of all requests due in
    it.
    """
    began = time.monotonic()

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if 0.3 < time.monotonic() - began < 0.8:
            await asyncio.sleep(0.8 - (time.monotonic() - began))
        await answer_well(request, reader, writer)

    with serving(behave) as server:
        given = point(server.port, **rate(100.0, "constant"))
        client = LoadClient()
        client.prepare(given)
        began = time.monotonic() + 0.01
        rows = client.run(time.monotonic_ns() + 10_000_000).requests.to_pylist()
    ttft_s = (column(rows, "first_token_ns") - column(rows, "scheduled_ns")) / 1e9
    assert np.sum(ttft_s > 0.05) == pytest.approx(45, abs=6)
    assert np.quantile(ttft_s, 0.99) == pytest.approx(0.5, abs=0.06)


def test_warm_up_and_measured_part_are_marked_and_never_share_a_prompt() -> None:
    with serving(answer_well) as server:
        result = run(point(server.port, **rate(100.0, warmup_s=0.3, duration_s=0.5)))
        prompts = [tuple(request.json["prompt"]) for request in server.requests]
    rows = result.requests.to_pylist()
    assert [row["phase"] for row in rows] == [
        "warmup" if row["scheduled_ns"] < 3e8 else "measure" for row in rows
    ]
    assert {"warmup", "measure"} == {row["phase"] for row in rows}
    assert len(set(prompts)) == len(rows)


def test_an_abort_from_another_thread_ends_the_run_and_names_every_request() -> None:
    with serving(timed(30.0, 0.0)) as server:
        given = point(server.port, **rate(50.0, duration_s=60.0))
        client = LoadClient()
        known = client.prepare(given)
        threading.Timer(0.3, client.abort).start()
        began = time.monotonic()
        result = client.run(time.monotonic_ns())
    assert time.monotonic() - began < 3.0
    rows = result.requests.to_pylist()
    assert len(rows) == known
    assert {row["status"] for row in rows} == {"aborted"}
    assert 5 < sum(row["sent_ns"] is not None for row in rows) < 30
    assert client.progress().failed == known


def test_an_abort_of_who_has_enough_leaves_what_was_over_and_no_failure() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if request.number % 2:
            await asyncio.sleep(30)
        await answer_well(request, reader, writer)

    with serving(behave) as server:
        client = LoadClient()
        client.prepare(point(server.port, **rate(50.0, duration_s=60.0)))
        threading.Timer(0.5, client.abort, (False,)).start()
        result = client.run(time.monotonic_ns())
    statuses = result.requests["status"].to_pylist()
    assert set(statuses) == {"ok"}
    assert 3 < len(statuses) < 30
    assert len(result.token_events) == len(statuses)
    assert (client.progress().failed, client.progress().in_flight) == (0, 0)


def test_an_abort_before_the_run_counts_too() -> None:
    with serving(answer_well) as server:
        client = LoadClient()
        client.prepare(point(server.port, 5))
        client.abort()
        result = client.run(time.monotonic_ns() + 60_000_000_000)
    assert {row["status"] for row in result.requests.to_pylist()} == {"aborted"}


def test_a_client_runs_point_after_point() -> None:
    client = LoadClient()
    with serving(answer_well) as server:
        for requests in (3, 5):
            client.prepare(point(server.port, requests))
            assert len(client.run(time.monotonic_ns()).requests) == requests
    with pytest.raises(RuntimeError, match="prepare"):
        client.run(time.monotonic_ns())


def test_progress_counts_what_happened() -> None:
    with serving(timed(0.2, 0.0)) as server:
        client = LoadClient()
        client.prepare(point(server.port, 8, concurrency=4))
        seen = []
        watch = threading.Timer(0.1, lambda: seen.append(client.progress()))
        watch.start()
        client.run(time.monotonic_ns())
        watch.join()
    assert (seen[0].in_flight, seen[0].sent, seen[0].done) == (4, 4, 0)
    after = client.progress()
    assert (after.done, after.failed, after.in_flight) == (8, 0, 0)


def test_replicas_share_the_requests() -> None:
    with serving(answer_well) as one, serving(answer_well) as two:
        targets = (
            Target(f"http://127.0.0.1:{one.port}", "m", 0),
            Target(f"http://127.0.0.1:{two.port}", "m", 1),
        )
        result = run(point(one.port, 20, targets=targets))
        assert (len(one.requests), len(two.requests)) == (10, 10)
    assert Counter(result.requests["replica"].to_pylist()) == {0: 10, 1: 10}


def test_a_conversation_sends_what_was_answered() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        asked = request.json["max_tokens"]
        events = [
            token(" a", token_ids=[90 + i], finish="length" if i == asked - 1 else None)
            for i in range(asked)
        ]
        writer.write(HEAD + b"".join(map(chunk, [*events, DONE])) + END)

    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=3,
        input_tokens=Lengths(fixed=5),
        output_tokens=Lengths(fixed=2),
    )
    with serving(behave) as server:
        result = run(point(server.port, 6, concurrency=1, workload=talk))
        prompts = [request.json["prompt"] for request in server.requests]
    rows = result.requests.to_pylist()
    assert [(row["session"], row["turn"]) for row in rows] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert [row["input_tokens_asked"] for row in rows] == [5, 12, 19] * 2
    assert prompts[1][:7] == [*prompts[0], 90, 91]
    assert prompts[2][:14] == [*prompts[1], 90, 91]
    assert all(a["done_ns"] <= b["scheduled_ns"] for a, b in zip(rows[:2], rows[1:3], strict=True))


def test_a_failed_turn_does_not_end_its_conversation() -> None:
    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        if request.number == 0:
            writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
        else:
            await answer_well(request, reader, writer)

    talk = ConversationsWorkload(
        name="w",
        kind="conversations",
        turns=2,
        input_tokens=Lengths(fixed=5),
        output_tokens=Lengths(fixed=4),
    )
    with serving(behave) as server:
        result = run(point(server.port, 2, concurrency=1, workload=talk))
    assert result.requests["status"].to_pylist() == ["error", "ok"]


def test_a_finished_token_costs_few_bytes() -> None:
    """The raw bytes of a response are gone when it is counted; 24 bytes per token is the promise,
    about 4 are used.
    """
    tokens, requests = 2000, 20

    async def behave(request: Request, reader: Reader, writer: Writer) -> None:
        writer.write(HEAD)
        for event in stream(request):
            writer.write(chunk(event))
            await writer.drain()
        writer.write(END)

    with serving(behave) as server:
        result = run(
            point(
                server.port,
                requests,
                concurrency=2,
                tokens=tokens,
                drain_timeout_s=60.0,
                request_timeout_s=60.0,
            )
        )
    assert result.requests["status"].to_pylist() == ["ok"] * requests
    assert result.token_events.nbytes / (tokens * requests) < 24


# -- several client processes


def test_two_processes_send_the_same_schedule_as_one() -> None:
    def sent(clients: int) -> tuple[list[tuple[Any, ...]], set[str]]:
        with serving(answer_well) as server:
            given = point(
                server.port,
                **rate(60.0, dialect=Dialect("openai_completions", "/", prompt_token_ids=True)),
            )
            loaded = measure_here(given, clients).loaded
            bodies = {json.dumps(request.json["prompt"]) for request in server.requests}
        rows = [
            (row["request_index"], row["scheduled_ns"], row["status"])
            for row in as_rows(loaded.requests)
        ]
        assert len(loaded.stats) == clients
        assert loaded.token_events is not None
        assert sorted(loaded.token_events["request_index"].to_pylist()) == sorted(
            row[0] for row in rows
        )
        return sorted(rows), bodies

    assert sent(1) == sent(2)


def test_a_client_process_that_dies_leaves_lost_rows_and_ends_the_point() -> None:
    killed = threading.Event()

    def kill_one(item: Any) -> None:
        if item.requests and item.requests.done > 5 and not killed.is_set():
            killed.set()
            max(multiprocessing.active_children(), key=lambda child: child.pid).kill()

    with serving(timed(0.2, 0.0)) as server:
        given = point(server.port, **rate(30.0, duration_s=6.0))
        attempt = measure_here(given, 2, kill_one)
    rows = as_rows(attempt.loaded.requests)
    assert killed.is_set()
    assert len(rows) == len(Schedule(given, Each(1)).due_ns)
    assert Counter(row["status"] for row in rows if row["request_index"] % 2) == {
        "lost": len(rows) // 2
    }
    assert {row["status"] for row in rows if row["request_index"] % 2 == 0} == {"ok", "aborted"}
    assert attempt.failure.kind is FailureKind.CLIENT_LOST
    assert "exit code -9" in attempt.failure.sentence
    assert (attempt.verdict.validity, len(attempt.loaded.stats)) == ("invalid", 1)
