"""The verdict on a point: each kind of dishonest measurement is found, and an honest one is not
accused.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.base.arrays import Floats
from orchestrator.load.point import ClientStats, HostLoad, LoadPoint
from orchestrator.load.validity import PointVerdict, Surroundings, judge
from orchestrator.results.records import EngineSide
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.load import Arrivals, Level, Workload
from orchestrator.telemetry.core_wait import CoreWait
from orchestrator.telemetry.gpu_condition import GpuCondition
from tests.unit.load.test_schedule import point
from tests.unit.workloads import traces
from tests.unit.workloads.test_mix import mix
from tests.unit.workloads.traces import trace

CALM = ClientStats(
    client=0, wall_s=70.0, cpu_s=20.0, cpu_share=0.3, loop_lag_p99_ms=0.3, loop_lag_max_ms=2.0, send_lag_p50_ms=0.1,
    send_lag_p99_ms=0.4,
    sockets_opened=8, sockets_max=8, reads=1000, coalesced_reads=0, in_flight_max=8, start_error_ms=0.1,
)  # fmt: skip


def table(
    rows: int = 400, rate: float = 20.0, service_s: Any = 1.0, warmup: int = 0, **columns: Any
) -> pa.Table:
    """Requests one after another at a rate, each over after ``service_s`` (one value or one per
    row).
    """
    scheduled = (np.arange(rows) / rate * 1e9).astype(np.int64)
    sent = scheduled + 100_000
    done = scheduled + (np.broadcast_to(service_s, rows) * 1e9).astype(np.int64)
    columns = {
        "measurement_id": ["m"] * rows, "attempt_id": ["a"] * rows, "request_index": range(rows), "client": [0] * rows,
        "replica": [0] * rows, "phase": ["warmup"] * warmup + ["measure"] * (rows - warmup),
        "scheduled_ns": scheduled, "sent_ns": sent, "done_ns": done, "input_tokens_asked": [100] * rows,
        "input_tokens": [100] * rows, "output_tokens_asked": [10] * rows, "output_tokens": [10] * rows,
        "output_tokens_counted": [10] * rows, "token_count_source": ["token_ids"] * rows, "chunks": [10] * rows,
        "coalesced_chunks": [0] * rows, "status": ["ok"] * rows,
    } | columns  # fmt: skip
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in REQUESTS]
    return pa.Table.from_arrays(arrays, schema=REQUESTS)


OPEN = point(value=20.0, duration_s=20.0)
WARM = replace(OPEN, warmup_s=5.0, duration_s=15.0)


def verdict(requests: pa.Table, *stats: ClientStats, of: LoadPoint = OPEN) -> PointVerdict:
    return judge(requests, stats or (CALM,), of, round((of.warmup_s or 0.0) * 1e9))


def test_an_honest_point_is_valid_and_its_evidence_is_there() -> None:
    judged = verdict(table(warmup=100), of=WARM)
    assert (judged.validity, judged.reasons) == ("valid", [])
    assert judged.evidence["offered_rate"] == pytest.approx(20.0)
    assert judged.evidence["achieved_over_offered"] == 1.0
    assert judged.evidence["client_cpu_share"] == 0.3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"send_lag_p99_ms": 30.0}, "sent - due"),
        ({"loop_lag_p99_ms": 30.0}, "loop lag"),
        ({"cpu_share": 0.99}, "99% of its core"),
    ],
)
def test_one_slow_client_of_two_makes_a_point_client_bound(
    change: dict[str, float], sentence: str
) -> None:
    judged = verdict(table(), CALM, replace(CALM, client=1, **change))
    assert judged.validity == "client_bound"
    assert sentence in judged.reasons[0]


def test_coalesced_events_are_the_fault_of_a_busy_client_only() -> None:
    shared = table(coalesced_chunks=[5] * 400)
    judged = verdict(shared)
    assert judged.validity == "stream_buffered"
    assert "50% of events" in judged.reasons[0]
    assert verdict(shared, replace(CALM, cpu_share=0.8)).validity == "client_bound"
    assert verdict(table(coalesced_chunks=[1] * 400)).validity == "valid"


def test_a_client_without_sockets_bounds_the_point() -> None:
    broken = table(status=["error"] * 4 + ["ok"] * 396, error_class=["client"] * 4 + [None] * 396)
    assert verdict(broken).validity == "client_bound"


def test_a_growing_backlog_bounds_the_point_by_its_engine() -> None:
    falling_behind = np.linspace(1.0, 11.0, 400)  # each answer takes longer than the one before
    judged = verdict(table(service_s=falling_behind))
    assert judged.validity == "engine_bound_backlog"
    assert "does not keep up" in judged.reasons[0]


def test_requests_that_fail_at_once_do_not_make_answers_look_slow() -> None:
    """The first 40 are refused; the others take 5 s as ever."""
    service_s = np.where(np.arange(400) < 40, 0.001, 5.0)
    refused = table(service_s=service_s, status=["error"] * 40 + ["ok"] * 360)
    assert verdict(refused).validity == "valid"
    assert verdict(table(service_s=service_s)).validity == "engine_bound_backlog"


def test_requests_that_are_all_due_at_the_start_have_no_backlog() -> None:
    at_once = table(8, scheduled_ns=[0] * 8, sent_ns=[0] * 8)
    assert verdict(at_once, of=point(value=20.0, requests=8, duration_s=None)).validity == "valid"


def test_a_full_pipe_is_no_backlog() -> None:
    """Long answers: open requests grow while the first ones run, then stay."""
    assert verdict(table(service_s=5.0)).validity == "valid"


@pytest.mark.parametrize("warmup", [0, 40])
def test_a_window_shorter_than_its_answers_is_a_note_and_no_backlog(warmup: int) -> None:
    """An infinitely fast server whose answers take 10 s, at 10 requests/s for 12 s."""
    long = point(value=10.0, warmup_s=warmup / 10, duration_s=12.0)
    judged = verdict(table(120 + warmup, 10.0, 10.1, warmup), of=long)
    assert judged.validity == "valid"
    sentence = "; ".join(judged.reasons)
    assert "the window (12 s) is shorter than 3 end-to-end times (p95 10.1 s)" in sentence
    assert ("in flight were not steady" in sentence) == ("no warm-up" in sentence) == (warmup == 0)


def test_a_swell_within_the_window_is_said_with_its_height() -> None:
    """Answers take 1 s, but from the tenth to the twelfth second 6 s."""
    due_s = np.arange(400) / 20.0
    is_slow = (due_s >= 10) & (due_s < 12)
    reasons = verdict(table(service_s=np.where(is_slow, 6.0, 1.0))).reasons
    (sentence,) = [reason for reason in reasons if "not steady" in reason]
    assert sentence == (
        "requests in flight were not steady: from 20 via 47 to 33 within the window"
    )


@pytest.mark.parametrize(("requests", "lost"), [(12, 0.25), (4, 0.5), (16, 0.0), (400, 0.0)])
def test_the_throughput_that_the_end_of_a_run_costs_is_known(requests: int, lost: float) -> None:
    """Eight in flight, answers of 10 s: 12 requests take 20 s and come out as 0.6/s where 0.8/s is
    true.
    """
    due_ns = (np.arange(requests) // 8 * 10e9).astype(np.int64)
    rows = table(
        requests,
        service_s=10.0,
        scheduled_ns=due_ns,
        sent_ns=due_ns,
        done_ns=due_ns + 10_000_000_000,
    )
    judged = verdict(
        rows, of=point(control="concurrency", value=8, requests=requests, duration_s=None)
    )
    assert judged.validity == "valid"
    assert judged.evidence["lost_at_the_end"] == pytest.approx(lost)
    note = f"throughput is {lost:.0%} too low"
    notes = [reason for reason in judged.reasons if reason.startswith(note)]
    assert len(notes) == (lost > 0)
    assert all("--duration" in reason and "more requests" in reason for reason in notes)


def test_the_last_answers_of_an_open_loop_cost_their_own_time() -> None:
    judged = verdict(table(40, 20.0, 1.0), of=point(value=20.0, requests=40, duration_s=None))
    assert judged.evidence["lost_at_the_end"] == pytest.approx(1.0 / 2.95)
    at_once = table(8, scheduled_ns=[0] * 8, sent_ns=[0] * 8)
    of = point(value=float("inf"), requests=8, duration_s=None)
    assert verdict(at_once, of=of).evidence["lost_at_the_end"] == 0


def test_an_interrupted_point_has_no_note_on_lost_throughput() -> None:
    rows = table(40, 20.0, 1.0)
    of = point(value=20.0, requests=40, duration_s=None)
    judged = judge(rows, (CALM,), of, 0, was_interrupted=True)
    assert not any("too low" in reason for reason in judged.reasons)
    assert any("too low" in reason for reason in judge(rows, (CALM,), of, 0).reasons)


@pytest.mark.parametrize("capacity", [18.0, 10.0, 2.0])
@pytest.mark.parametrize("warmup", [0, 100])
def test_a_queue_is_found_however_fast_it_grows(capacity: float, warmup: int) -> None:
    """One server that answers so many per second, one after another."""
    rows = 2400
    over = 1.0 + np.arange(rows) / capacity - np.arange(rows) / 20.0
    judged = verdict(
        table(rows, 20.0, over, warmup),
        of=replace(OPEN, warmup_s=warmup / 20, duration_s=120 - warmup / 20),
    )
    assert judged.validity == "engine_bound_backlog"
    assert "does not keep up" in judged.reasons[0]


def of_a_run(due_s: Floats, done_s: Floats, warmup_s: float, window_s: float) -> PointVerdict:
    due_ns, done_ns = ((instants * 1e9).astype(np.int64) for instants in (due_s, done_s))
    rows = table(
        len(due_s),
        warmup=int(np.sum(due_s < warmup_s)),
        scheduled_ns=due_ns,
        sent_ns=due_ns + 100_000,
        done_ns=done_ns,
    )
    return verdict(rows, of=replace(OPEN, warmup_s=warmup_s, duration_s=window_s))


def poisson(rate: float, until_s: float, seed: int) -> Floats:
    due_s = np.cumsum(
        np.random.default_rng(seed).exponential(1 / rate, int(2 * rate * until_s) + 50)
    )
    return due_s[due_s < until_s]


def processor_sharing(due_s: Floats, rng: np.random.Generator | None = None) -> Floats:
    """When requests are done whose engine makes a step for all: alone one takes 5.12 s, each other
    one adds 0.2 s. At 5/s it is full; at 4/s requests take 25.6 s.
    """
    work = np.ones(len(due_s)) if rng is None else rng.exponential(1.0, len(due_s))
    # the work that all of them had when it is done
    done_s, running = np.empty(len(due_s)), list[tuple[float, int]]()
    now_s, worked, coming = 0.0, 0.0, 0
    while coming < len(due_s) or running:
        step_s = 5.12 + 0.2 * len(running)
        ends_s = now_s + (running[0][0] - worked) * step_s if running else np.inf
        if coming < len(due_s) and due_s[coming] <= ends_s:
            now_s, worked = due_s[coming], worked + (due_s[coming] - now_s) / step_s
            heapq.heappush(running, (worked + work[coming], coming))
            coming += 1
        else:
            worked, at = heapq.heappop(running)
            now_s = done_s[at] = ends_s
    return done_s


def slots(due_s: Floats, count: int = 64, service_s: Any = 6.4) -> Floats:
    """When requests are done that wait for one of so many places, first come, first served: 10 in a
    second.
    """
    done_s, free_s = np.empty(len(due_s)), [0.0] * count
    for at, (due, takes) in enumerate(
        zip(due_s, np.broadcast_to(service_s, len(due_s)), strict=True)
    ):
        done_s[at] = max(due, heapq.heappop(free_s)) + takes
        heapq.heappush(free_s, done_s[at])
    return done_s


def batches(due_s: Floats, size: int = 16, service_s: float = 1.6) -> Floats:
    """When requests are done that are answered so many at a time, once those before them are: 10 in
    a second.
    """
    done_s, free_s, at = np.empty(len(due_s)), 0.0, 0
    while at < len(due_s):
        free_s = max(free_s, due_s[at])
        end = min(at + size, int(np.searchsorted(due_s, free_s, side="right")))
        free_s += service_s
        done_s[at:end], at = free_s, end
    return done_s


# requests per second when full, seconds a request takes at 80 % of that, when requests are done
ENGINES = {
    "M/M/64": (10.0, 6.4, lambda due_s, rng: slots(due_s, 64, rng.exponential(6.4, len(due_s)))),
    "M/M/8": (10.0, 1.0, lambda due_s, rng: slots(due_s, 8, rng.exponential(0.8, len(due_s)))),
    "M/D/1": (10.0, 0.3, lambda due_s, rng: slots(due_s, 1, 0.1)),
    "shared, even": (5.0, 25.6, lambda due_s, rng: processor_sharing(due_s)),
    "shared, exponential": (5.0, 25.6, processor_sharing),
    "batches": (10.0, 2.5, lambda due_s, rng: batches(due_s)),
}


def accused(engine: str, load: float, window: float, warm: float, seeds: int) -> list[bool]:
    """Whether each of so many runs is said to have a backlog. ``window``, ``warm``: in end-to-end times of the engine at 80 %
    load.
    """
    full, e2e_s, serve = ENGINES[engine]
    verdicts = []
    for seed in range(seeds):
        due_s = poisson(load * full, (window + warm) * e2e_s, seed)
        done_s = serve(due_s, np.random.default_rng([seed, 1]))
        verdicts.append(
            of_a_run(due_s, done_s, warm * e2e_s, window * e2e_s).validity == "engine_bound_backlog"
        )
    return verdicts


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_that_keep_up_are_hardly_ever_accused(engine: str) -> None:
    """Half of the runs without a warm-up; windows of 5 end-to-end times are short for an engine
    that is 80 % full.
    """
    seeds = {5: 8, 10: 8, 20: 4, 50: 2}
    runs = [(load, window, warm) for load in (0.5, 0.8) for window in seeds for warm in (0, 3)]
    verdicts: list[bool] = []
    for load, window, warm in runs:
        verdicts += accused(engine, load, window, warm, seeds[window])
    assert len(verdicts) == 88
    assert sum(verdicts) <= 1


@pytest.mark.parametrize("engine", ENGINES)
def test_an_overload_of_half_is_found_from_300_requests_on(engine: str) -> None:
    full, e2e_s, _ = ENGINES[engine]
    least = max(10.0, 330 / (1.5 * full * e2e_s))  # end-to-end times
    verdicts: list[bool] = []
    for window in (least, 2 * least):
        for warm in (0, 3):
            verdicts += accused(engine, 1.5, window, warm, 5)
    assert sum(verdicts) >= 0.95 * len(verdicts)


@pytest.mark.parametrize(
    ("warmup_s", "window_s"), [(0, 15), (0, 20), (0, 30), (10, 20), (10, 30), (0, 60), (0, 300)]
)
def test_a_batch_that_still_fills_up_is_no_backlog(warmup_s: float, window_s: float) -> None:
    """The first requests see an empty batch: those after them are slower, however well the engine
    keeps up.
    """
    for seed in range(4):
        due_s = poisson(4.0, warmup_s + window_s, seed)
        judged = of_a_run(due_s, processor_sharing(due_s), warmup_s, window_s)
        assert judged.validity == "valid", judged.reasons


@pytest.mark.parametrize(
    ("warmup_s", "window_s"), [(0, 90), (10, 80), (60, 30), (120, 60), (300, 60)]
)
def test_a_backlog_is_found_however_long_it_grew_before(warmup_s: float, window_s: float) -> None:
    """20 % more than the engine can do. After a long warm-up the last requests hardly wait longer
    than the first.
    """
    for seed in range(3):
        due_s = poisson(12.0, warmup_s + window_s, seed)
        judged = of_a_run(due_s, slots(due_s), warmup_s, window_s)
        assert judged.validity == "engine_bound_backlog", judged.reasons


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"status": ["error"] * 40 + ["ok"] * 360}, "10.0% of requests failed"),
        (
            {
                "status": ["error"] * 240 + ["ok"] * 160,
                "error_class": ["http_429"] * 240 + [None] * 160,
            },
            "60.0% of requests were refused",
        ),
        (
            {
                "status": ["aborted"] * 100 + ["ok"] * 300,
                "error_class": ["aborted"] * 100 + [None] * 300,
            },
            "25.0% of requests were cut off when the point was ended",
        ),
        (
            {"token_count_source": ["chunks"] * 400},
            "100.0% of answers came without a usable token count",
        ),
        (
            {"output_tokens": [40] * 400, "hidden_tokens": [30] * 400},
            "75.0% of output tokens were never streamed",
        ),
        (
            {"cached_tokens": [50] * 400},
            "50.0% of prompt tokens came from the engine's prefix cache",
        ),
    ],
)
def test_notes_tell_what_a_reader_must_know(columns: dict[str, Any], sentence: str) -> None:
    judged = verdict(table(warmup=0, **columns))
    assert judged.validity == "valid"
    assert any(sentence in reason for reason in judged.reasons), judged.reasons


def test_wrong_answer_lengths_of_uncontrolled_engines_are_a_note() -> None:
    free = replace(OPEN, dialect=replace(OPEN.dialect, length_control="none"))
    assert any(
        "answers were off by 50.0%" in sentence
        for sentence in verdict(table(output_tokens=[5] * 400), of=free).reasons
    )
    assert not any("answers" in sentence for sentence in verdict(table(), of=free).reasons)


def test_answers_of_another_length_than_asked_for_are_a_note() -> None:
    judged = verdict(table(output_tokens=[30] * 400, token_count_source=["tokenizer"] * 400))
    assert "answers were off by 200.0% from the length asked for" in judged.reasons
    # the length was kept without them
    hidden = verdict(table(output_tokens=[14] * 400, hidden_tokens=[4] * 400))
    assert not any("answers were off" in sentence for sentence in hidden.reasons)


def test_noise_of_a_stable_queue_is_no_backlog() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert verdict(table(service_s=rng.exponential(1.0, 400))).validity == "valid"


def test_a_closed_loop_has_no_backlog() -> None:
    closed = point("concurrency", 8.0, duration_s=20.0)
    assert verdict(table(service_s=np.linspace(1.0, 11.0, 400)), of=closed).validity == "valid"


def test_requests_that_wait_for_max_in_flight_are_a_note() -> None:
    scheduled = (np.arange(400) / 20.0 * 1e9).astype(np.int64)
    late = table(sent_ns=scheduled + np.linspace(0, 10e9, 400).astype(np.int64))
    capped = replace(OPEN, max_in_flight=8)
    judged = verdict(late, of=capped)
    assert judged.validity == "valid"
    assert "max_in_flight is 8, as asked" in judged.reasons[0]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"status": ["lost"] * 10 + ["ok"] * 390}, "10 requests were lost"),
        ({"status": ["error"] * 400}, "not one request succeeded"),
        ({"output_tokens_counted": [9] * 8 + [10] * 392}, "2.0% of requests"),
    ],
)
def test_a_point_that_is_not_what_was_asked_for_is_invalid(
    columns: dict[str, Any], sentence: str
) -> None:
    judged = verdict(table(**columns))
    assert judged.validity == "invalid"
    assert sentence in judged.reasons[0]


def test_wrong_prompt_lengths_are_invalid_only_for_token_ids() -> None:
    wrong = table(input_tokens=[100, 104] * 200)
    ids = replace(OPEN, dialect=replace(OPEN.dialect, prompt_token_ids=True))
    assert verdict(wrong, of=ids).validity == "invalid"
    noted = verdict(wrong)
    assert noted.validity == "valid"
    assert "off by 2.0%" in noted.reasons[0]


@pytest.mark.parametrize("sends_ids", [True, False])
def test_failed_requests_have_no_other_notes(sends_ids: bool) -> None:
    """A refusal may come with a usage object; what it counts is no prompt that was worked on."""
    dialect = replace(OPEN.dialect, prompt_token_ids=sends_ids)
    point = replace(OPEN, warmup_s=1e-9, dialect=dialect)
    usage = {"input_tokens": [50] * 400, "cached_tokens": [50] * 400, "hidden_tokens": [4] * 400}
    judged = verdict(table(status=["error"] * 400, **usage), of=point)
    assert judged.validity == "invalid"
    assert judged.reasons == ["not one request succeeded"]


def test_prompts_of_failed_requests_do_not_make_the_others_wrong() -> None:
    status, prompts = ["error"] * 4 + ["ok"] * 396, [0] * 4 + [100] * 396
    judged = verdict(table(status=status, input_tokens=prompts))
    assert not any("prompts were off" in sentence for sentence in judged.reasons)


def test_tokens_that_a_template_adds_to_every_prompt_are_no_error() -> None:
    turns = [0, 1] * 200
    templated = table(input_tokens=[125, 143] * 200, turn=turns, session=range(400))
    assert verdict(templated, of=replace(OPEN, warmup_s=1e-9)).reasons == []


def test_a_template_adds_other_tokens_to_the_prompts_of_each_part_of_a_mix() -> None:
    of_parts = table(input_tokens=[111, 116] * 200, part=["chat", "rag"] * 200)
    of = replace(OPEN, warmup_s=1e-9)
    assert verdict(of_parts, of=of).reasons == []
    (reason,) = verdict(table(input_tokens=[111, 116] * 200), of=of).reasons
    assert "off by 2.5%" in reason


def of_ids_and_words() -> LoadPoint:
    """A point whose requests are in turns token ids and words, of an API that takes ids."""
    ids = {"name": "ids", "input_tokens": 100, "output_tokens": 10}
    words = {**ids, "name": "words", "content": "words"}
    dialect = replace(OPEN.dialect, prompt_token_ids=True)
    return replace(OPEN, warmup_s=1e-9, dialect=dialect, workload=mix((1, ids), (1, words)))


def test_a_token_that_the_server_adds_to_text_alone_is_no_error_of_a_mix() -> None:
    lengths = table(input_tokens=[100, 101] * 200, part=["ids", "words"] * 200)
    assert verdict(lengths, of=of_ids_and_words()).reasons == []


def test_words_of_a_mix_may_be_off_and_token_ids_may_not() -> None:
    of = of_ids_and_words()
    parts = ["ids", "words"] * 200
    words_off = verdict(table(input_tokens=[100, 101, 100, 111] * 100, part=parts), of=of)
    assert words_off.validity == "valid"
    assert words_off.reasons == [
        "prompts were off by 5.0% from the length asked for (engine's count); they were sent as text"
    ]
    ids_off = verdict(table(input_tokens=[100, 101, 110, 101] * 100, part=parts), of=of)
    assert ids_off.validity == "invalid"


def test_only_the_measured_part_is_judged() -> None:
    failing_warmup = table(warmup=100, status=["error"] * 100 + ["ok"] * 300)
    assert (
        verdict(failing_warmup, of=replace(OPEN, warmup_s=5.0, duration_s=15.0)).validity == "valid"
    )
    assert verdict(table(warmup=400), of=replace(OPEN, warmup_s=20.0)).validity == "invalid"


def test_a_dead_client_without_stats_does_not_stop_the_verdict() -> None:
    assert judge(table(status=["lost"] * 400), [], OPEN, 0).validity == "invalid"


def test_requests_due_at_once_are_not_counted_as_late() -> None:
    zeros = np.zeros(400, np.int64)
    sent = np.arange(400) * 100_000
    rows = table(scheduled_ns=zeros, sent_ns=sent, done_ns=sent + 10**9)
    judged = verdict(
        rows,
        replace(CALM, send_lag_p99_ms=40.0, loop_lag_p99_ms=40.0),
        of=point(value=float("inf"), requests=400, duration_s=None),
    )
    assert judged.validity == "valid"
    assert "at once" in judged.reasons[0]
    assert np.isfinite(list(judged.evidence.values())).all()


@pytest.mark.parametrize(
    ("stats", "reason"),
    [
        ({"network_silent_max_s": 7.8}, "nothing came from a server's host for 7.8 s"),
        ({"tcp_retransmits": 41}, "resend 0.10 segments per request"),
    ],
)
def test_a_network_that_was_silent_or_lost_much_is_found(
    stats: dict[str, Any], reason: str
) -> None:
    judged = verdict(table(), replace(CALM, **stats))
    assert judged.validity == "network_bound"
    assert reason in judged.reasons[0]
    late = verdict(table(), replace(CALM, send_lag_p99_ms=30.0, **stats))
    assert late.validity == "network_bound", "more clients would not help"


def test_a_network_that_is_there_is_not_accused() -> None:
    judged = verdict(
        table(warmup=100), replace(CALM, network_silent_max_s=1.3, tcp_retransmits=20), of=WARM
    )
    assert (judged.validity, judged.reasons) == ("valid", [])
    assert judged.evidence["network_silent_max_s"] == 1.3
    assert judged.evidence["tcp_retransmits"] == 20.0


def test_a_short_silence_of_the_network_is_a_note() -> None:
    short = verdict(table(warmup=100), replace(CALM, network_silent_max_s=1.5), of=WARM)
    assert short.validity == "valid"
    assert short.reasons == [
        "nothing came from a server's host for 1.5 s: the highest latencies are the network's"
    ]


def test_a_long_silence_of_the_network_has_one_reason() -> None:
    long = verdict(table(warmup=100), replace(CALM, network_silent_max_s=2.1), of=WARM)
    assert len(long.reasons) == 1


@pytest.mark.parametrize(("retransmits", "per_request"), [(3, 0.0), (4, 0.5)])
def test_a_few_lost_segments_are_chance(retransmits: int, per_request: float) -> None:
    judged = verdict(table(8), replace(CALM, tcp_retransmits=retransmits))
    assert judged.evidence["tcp_retransmits_per_request"] == per_request


QUIET_HOST = HostLoad("a", 3.0, 0.04, 0)


@pytest.mark.parametrize(
    "host",
    [QUIET_HOST, HostLoad("b", 4.0, 0.9, 0), HostLoad("b", 60.0, 0.3, 0)],
    ids=["quiet", "a burst", "a small share"],
)
def test_a_little_load_of_others_does_not_disturb(host: HostLoad) -> None:
    assert shared_with(host).validity == "valid"


def test_others_that_take_most_of_an_engines_host_disturb() -> None:
    judged = shared_with(QUIET_HOST, HostLoad("b", 60.0, 0.7, 0))
    assert judged.validity == "disturbed"
    assert judged.reasons == ["other processes took 70% of the CPU of an engine's host (limit 50%)"]


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "validity"),
    [(18.0, 9.0, "disturbed"), (180.0, 9.0, "valid"), (1.0, 2.9, "valid"), (18.0, 0.0, "valid")],
    ids=["lost much", "a small share", "a moment", "idle cores"],
)
def test_others_for_whose_work_an_engine_waits_disturb(
    ran_s: float, waited_s: float, validity: str
) -> None:
    wait = CoreWait(ran_s, waited_s, others_s=30.0)
    shared = HostLoad(
        "b", foreign_cpu_s=8.0, foreign_cpu_share=0.3, foreign_launches=0, core_wait=wait
    )
    judged = shared_with(replace(QUIET_HOST, core_wait=CoreWait(5.0, 0.1, 0.1)), shared)
    assert judged.validity == validity
    if validity == "disturbed":
        assert judged.reasons == [
            "an engine waited for cores that other processes used: up to 31% of the CPU time that it "
            "needed (limit 10%)"
        ]
        assert judged.evidence["core_wait_s"] == 9.0
        assert judged.evidence["lost_cpu_s"] == 8.0
        assert judged.evidence["lost_cpu_share"] == pytest.approx(8 / 26)


def test_a_host_with_hardly_any_work_does_not_hide_one_that_lost_much() -> None:
    idle_rank = replace(QUIET_HOST, core_wait=CoreWait(0.5, 2.0, others_s=9.0))
    busy_rank = HostLoad("b", 8.0, 0.3, 0, CoreWait(18.0, 9.0, others_s=30.0))
    for hosts in ((idle_rank, busy_rank), (busy_rank, idle_rank)):
        judged = shared_with(*hosts)
        assert judged.validity == "disturbed"
        assert judged.evidence["lost_cpu_s"] == 8.0
    assert shared_with(idle_rank).evidence["lost_cpu_share"] == pytest.approx(2 / 2.5)


def test_a_kernel_that_counts_no_waits_gives_no_evidence_of_them() -> None:
    assert "lost_cpu_share" not in shared_with(QUIET_HOST).evidence


def test_launches_of_others_on_an_engines_host_are_a_note() -> None:
    judged = shared_with(QUIET_HOST, HostLoad("b", 1.0, 0.01, 2))
    assert judged.validity == "valid"
    assert judged.reasons == ["2 launches or load clients of other sweeps were on its hosts"]


def shared_with(*hosts: HostLoad) -> PointVerdict:
    return judge(table(warmup=100), [CALM], WARM, 5_000_000_000, (), Surroundings(hosts))


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ({"is_lost": True}, "GPUs that stopped answering while the point ran: 1"),
        ({"foreign_bytes": 3 << 30}, "processes of others used 3.0 GiB of a GPU (limit 0.5)"),
        (
            {"braked_share": 0.2},
            "heat or a power brake held down a GPU's clocks 20% of the time (limit 5%)",
        ),
    ],
)
def test_a_gpu_that_is_lost_shared_or_braked_disturbs(
    condition: dict[str, Any], reason: str
) -> None:
    judged = on_gpus(GpuCondition("GPU-a", "a"), GpuCondition("GPU-b", "b", **condition))
    assert (judged.validity, judged.reasons) == ("disturbed", [reason])


def test_the_power_limit_of_a_gpu_and_its_memory_errors_are_notes() -> None:
    judged = on_gpus(GpuCondition("GPU-a", "a", power_limited_share=0.9, ecc_errors=2))
    assert judged.validity == "valid"
    assert judged.reasons == [
        "its power limit held down a GPU's clocks 90% of the time: another limit, other figures",
        "GPUs had 2 uncorrected memory errors",
    ]
    assert judged.evidence["gpu_power_limited_share"] == 0.9


def test_what_gpus_do_not_report_is_no_evidence() -> None:
    names = [name for name in on_gpus(GpuCondition("GPU-a", "a")).evidence if "gpu" in name]
    assert names == ["gpus_lost"]


def test_points_without_gpus_have_no_figures_of_gpus() -> None:
    assert not [name for name in on_gpus().evidence if name.startswith("gpu")]


def on_gpus(*gpus: GpuCondition) -> PointVerdict:
    return judge(table(warmup=100), [CALM], WARM, 5_000_000_000, (), Surroundings(gpus=gpus))


def hits(measured: list[int | None], expected: list[int | None], **columns: Any) -> PointVerdict:
    """The verdict on prompts of 100 tokens with these prefix hits, repeated."""
    times = 400 // len(measured)
    requests = table(
        warmup=100,
        cached_tokens=measured * times,
        expected_cached_tokens=expected * times,
        **columns,
    )
    return verdict(requests, of=WARM)


def test_hits_that_are_expected_are_told_and_not_doubted() -> None:
    judged = hits([80, None], [80, 0])  # engines leave 0 out
    assert judged.validity == "valid"
    assert judged.evidence["cached_share"] == judged.evidence["expected_cached_share"] == 0.4
    assert judged.reasons == [
        "40.0% of prompt tokens came from the engine's prefix cache; 40.0% were expected of an "
        "unlimited cache"
    ]


def test_hits_of_what_was_never_sent_are_pollution() -> None:
    judged = hits([48], [0])
    assert judged.validity == "valid"
    assert "than this run had sent before (0.0%)" in judged.reasons[-1]
    # a template that all prompts have in common is no pollution
    assert not any(
        "sent before" in reason for reason in hits([16], [0], input_tokens=[120] * 400).reasons
    )


def test_hits_of_texts_that_were_never_sent_are_pollution() -> None:
    """Nobody asks for a text's length, and what is expected of it has the template's tokens."""
    judged = hits([48], [0], input_tokens_asked=[0] * 400, input_tokens=[100] * 400)
    assert "than this run had sent before (0.0%)" in judged.reasons[-1]


def test_failed_requests_may_have_filled_the_cache() -> None:
    assert hits([48], [0]).reasons[-1].endswith("prompts of earlier runs")
    failed = {"status": ["ok"] * 399 + ["timeout"]}
    assert hits([48], [0], **failed).reasons[-1].endswith("or of requests that failed")


def test_few_of_the_expected_hits_are_noted() -> None:
    assert "only 16.0% of prompt tokens" in hits([16], [80]).reasons[-1]
    assert not any("only" in reason for reason in hits([48], [80]).reasons)
    assert not any("only" in reason for reason in hits([0], [1]).reasons), "too few to say anything"


def test_hits_that_nobody_reports_are_not_judged() -> None:
    judged = hits([None], [80])
    assert judged.reasons == []
    assert judged.evidence["expected_cached_share"] == 0.8
    assert "cached_share" not in judged.evidence


def test_hits_without_an_expectation_say_why() -> None:
    why = "how many prefix hits to expect is not known: there is no tokenizer"
    stats = [replace(CALM, no_expected_hits="there is no tokenizer")] * 2
    nothing = table(warmup=100, cached_tokens=[30] * 400)
    judged = verdict(nothing, *stats, of=WARM)
    assert judged.reasons == [f"30.0% of prompt tokens came from the engine's prefix cache; {why}"]
    assert verdict(table(warmup=100), *stats, of=WARM).reasons == [why]
    a_part = table(
        warmup=100, cached_tokens=[80, 48] * 200, expected_cached_tokens=[None, 16] * 200
    )
    judged = verdict(a_part, *stats, of=WARM)
    assert "expected_cached_share" not in judged.evidence
    assert judged.reasons[-2].endswith(
        "no tokenizer; of the other parts 16.0% were expected of an unlimited cache"
    )
    assert "(48.0%) than this run had sent before (16.0%)" in judged.reasons[-1]


def drafts(workload: Workload, **dialect: Any) -> list[str]:
    """What a point with drafts says of them."""
    names = [field.name for field in fields(EngineSide)]
    reported = {"spec_accepted_share": 0.4, "spec_accepted_length": 2.2}
    side = EngineSide(**(dict.fromkeys(names) | reported))
    changed = replace(WARM, workload=workload, dialect=replace(WARM.dialect, **dialect))
    surroundings = Surroundings(engine_side=side)
    judged = judge(table(warmup=100), [CALM], changed, 5_000_000_000, (), surroundings)
    assert judged.validity == "valid"
    assert judged.evidence["spec_accepted_length"] == 2.2
    return judged.reasons


def test_accepted_drafts_are_flagged_where_prompts_are_random(tmp_path: Path) -> None:
    accepted = "40.0% of drafted tokens were accepted, 2.20 tokens a step"
    keys = {"name": "w", "input_tokens": 100, "output_tokens": 10}
    random = Workload.model_validate(keys)
    text = Workload.model_validate({**keys, "content": {"text": str(tmp_path / "corpus.txt")}})
    assert drafts(random) == [
        f"{accepted}: this says nothing about real text, because prompts are random"
    ]
    assert drafts(text, length_control="natural") == [accepted]
    (forced,) = drafts(text, length_control="ignore_eos")
    assert forced.endswith("lengths are forced")


def test_accepted_drafts_of_a_mix_name_the_parts_that_are_random(tmp_path: Path) -> None:
    keys = {"input_tokens": 100, "output_tokens": 10}
    text = {"content": {"text": str(tmp_path / "corpus.txt")}}

    def mix(**contents: dict[str, Any]) -> Workload:
        parts = [
            {"workload": name, "content": keys | content | {"name": name}}
            for name, content in contents.items()
        ]
        return Workload.model_validate({"name": "office", "kind": "mix", "parts": parts})

    (one,) = drafts(mix(code=text, chat={}), length_control="natural")
    assert one.endswith("not the share of real text, because chat sends random prompts")
    (two,) = drafts(mix(code=text, chat={}, rag={}), length_control="natural")
    assert two.endswith("because chat, rag send random prompts")
    (all_random,) = drafts(mix(chat={}, rag={}))
    assert all_random.endswith("says nothing about real text, because prompts are random")


def test_a_trace_at_another_rate_says_how(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.csv", traces.AZURE_2023)
    recorded = workload.recorded_rate()
    assert recorded is not None
    sent = replace(
        WARM,
        workload=workload,
        level=Level(control="request_rate", value=recorded / 4),
        arrivals=Arrivals.model_validate({"process": "trace", "scale": "thin"}),
    )
    judged = verdict(table(warmup=100), of=sent)
    assert judged.evidence["thinned_share"] == pytest.approx(0.75)
    assert any("75.0% of sessions left out" in reason for reason in judged.reasons)


def notes_on_a_trace(
    path: Path, requests: pa.Table, over_recorded: float, asked: float = 20.0
) -> list[str]:
    """The notes on the rate of a trace that is stretched to so many times its recorded rate.
    ``asked``: the requests/s of which ``requests`` were due.
    """
    last_s = 2 / (asked / over_recorded)  # a third request after two mean gaps
    rows = f"at,prompt,answer\n0,9,9\n{last_s / 2},9,9\n{last_s},9,9\n"
    columns = {"time": "at", "input_tokens": "prompt", "output_tokens": "answer"}
    sent = replace(
        OPEN,
        workload=trace(path / "t.csv", rows, unit="s", columns=columns),
        level=Level(control="request_rate", value=asked),
        arrivals=Arrivals.model_validate({"process": "trace", "scale": "stretch"}),
    )
    reasons = verdict(requests, of=sent).reasons
    return [reason for reason in reasons if "recorded" in reason or "fewer" in reason]


def test_of_a_stretched_trace_with_sessions_only_the_gaps_between_these_are_called_stretched(
    tmp_path: Path,
) -> None:
    alone = notes_on_a_trace(tmp_path, table(turn=[0] * 400), over_recorded=2.0)
    assert alone == ["all gaps stretched alike, for 2 times the recorded 10 requests/s"]
    turns = notes_on_a_trace(tmp_path, table(turn=[0, 1] * 200), over_recorded=2.0)
    assert turns == [
        "gaps between sessions stretched alike, pauses within them kept, for 2 times the recorded "
        "10 requests/s"
    ]


def test_a_trace_that_sent_far_less_than_its_rate_says_so(tmp_path: Path) -> None:
    fewer = "25% fewer requests were due than the rate asks for, 15 of 20 a second: "
    here = "this part of the trace has fewer"
    alone = notes_on_a_trace(tmp_path, table(300, 15.0), over_recorded=1.0)
    assert alone == [f"{fewer}{here}"]
    turns = notes_on_a_trace(tmp_path, table(300, 15.0, turn=[0, 1] * 150), over_recorded=1.0)
    assert turns == [
        f"{fewer}{here} or later turns waited for answers and pauses (a longer warmup gives them "
        "time)"
    ]


def test_a_trace_that_is_gone_at_the_verdict_leaves_its_fidelity_unknown(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    workload = trace(file, traces.AZURE_2023)
    recorded = workload.recorded_rate()
    assert recorded is not None
    sent = replace(
        WARM,
        workload=workload,
        level=Level(control="request_rate", value=recorded),
        arrivals=Arrivals(process="trace"),
    )
    file.unlink()
    judged = verdict(table(warmup=100), of=sent)
    assert judged.validity == "valid"
    assert "recorded_rate" not in judged.evidence
    assert judged.reasons[-1] == (
        f"how near this load came to its recorded times is unknown: trace '{file}' cannot be read: "
        "No such file or directory"
    )


def constrained(violated: int, cut: int = 0, rows: int = 400, cut_end: str = "length") -> pa.Table:
    """Half of the requests are constrained, and so many of their answers are not as they had to be,
    or were cut. ``cut_end``: how the latter ended.
    """
    half = rows // 2
    met = [False] * violated + [None] * cut + [True] * (half - violated - cut) + [None] * half
    return table(
        rows,
        constraint=["json_schema"] * half + [None] * half,
        constraint_met=met,
        finish_reason=["stop"] * violated + [cut_end] * cut + ["stop"] * (rows - violated - cut),
        output_tokens=[3] * half + [10] * half,
        output_tokens_counted=[3] * half + [10] * half,
    )


def test_a_constraint_that_was_not_applied_makes_a_point_invalid() -> None:
    judged = verdict(constrained(violated=6))
    assert judged.validity == "invalid"
    assert judged.reasons[0] == (
        "the constraint was not applied: 3.0% of the answers that were checked are not what they "
        "had to be (6 of 200: at least 1.3%, with 95% confidence)"
    )
    # the answers that were cut tell nothing
    assert verdict(constrained(violated=3, cut=150)).validity == "invalid"


@pytest.mark.parametrize(
    ("violated", "checked", "is_invalid"),
    [
        (1, 1, True),
        (1, 20, False),  # 18 % of such samples have one or more if 1 % of all answers violate
        (2, 20, True),
        (10, 1000, False),
        (15, 1000, False),
        (16, 1000, True),
    ],
)
@pytest.mark.parametrize("part", [None, "forms"])
def test_as_many_answers_must_violate_as_chance_does_not_explain(
    part: str | None, violated: int, checked: int, is_invalid: bool
) -> None:
    """The rule of a point is that of a part, which may have few answers."""
    rows = max(400, checked)
    met = [False] * violated + [True] * (checked - violated) + [None] * (rows - checked)
    constraint = ["regex"] * checked + [None] * (rows - checked)
    parts = [part] * checked + [None if part is None else "chat"] * (rows - checked)
    judged = verdict(table(rows, part=parts, constraint=constraint, constraint_met=met))
    assert (judged.validity == "invalid") == is_invalid
    is_noted = any("too few to tell" in reason for reason in judged.reasons)
    assert is_noted == (not is_invalid and violated / checked > 0.01)


def constrained_parts(violated: Mapping[str, int], checked: Mapping[str, int]) -> pa.Table:
    """Constrained answers of the parts of a mix: how many of each were checked, and how many of
    those are not what they had to be.
    """
    part: list[str] = []
    met: list[bool] = []
    for name, answers in checked.items():
        wrong = violated.get(name, 0)
        part += [name] * answers
        met += [False] * wrong + [True] * (answers - wrong)
    rows = len(part)
    return table(rows, part=part, constraint=["regex"] * rows, constraint_met=met)


def test_a_constraint_that_one_small_part_of_a_mix_violates_makes_the_point_invalid() -> None:
    checked = {"chat": 397, "forms": 3}
    of_parts = verdict(constrained_parts({"forms": 3}, checked))
    assert of_parts.evidence["constraint_violated_share"] < 0.01
    assert of_parts.validity == "invalid"
    assert of_parts.reasons[0] == (
        "the constraint was not applied: in part 'forms' 100.0% of the answers that were checked "
        "are not what they had to be (3 of 3: at least 36.8%, with 95% confidence)"
    )


def test_only_the_parts_that_violate_their_constraints_are_named() -> None:
    checked = {"chat": 200, "forms": 100, "tools": 100}
    judged = verdict(constrained_parts({"chat": 2, "forms": 100, "tools": 4}, checked))
    reasons = [reason for reason in judged.reasons if "constraint was" in reason]
    assert [reason.split(" of the answers")[0] for reason in reasons] == [
        "the constraint was not applied: in part 'forms' 100.0%",
        "the constraint was not applied: in part 'tools' 4.0%",
    ]


def test_constrained_answers_have_the_length_that_they_have() -> None:
    judged = verdict(constrained(violated=2))
    assert judged.validity == "valid"
    assert [reason for reason in judged.reasons if "length" in reason or "constr" in reason] == []
    assert judged.evidence["constraint_violated_share"] == 0.01
    assert judged.evidence["output_length_error"] == 0.0


def test_constrained_answers_that_were_cut_are_noted() -> None:
    judged = verdict(constrained(violated=0, cut=100))
    assert judged.validity == "valid"
    assert judged.reasons[0] == (
        "50.0% of constrained answers were cut at their output_tokens before they were complete"
    )


def test_constrained_answers_that_took_too_long_to_check_are_called_unchecked() -> None:
    judged = verdict(constrained(violated=0, cut=100, cut_end="stop"))
    assert judged.validity == "valid"
    assert judged.evidence["constraint_cut_share"] == 0
    assert judged.reasons[0].startswith("50.0% of constrained answers are unchecked: ")


def test_an_overload_that_may_be_chance_is_the_first_note() -> None:
    due_s = np.arange(60) / 3.0
    took_s = slots(due_s, count=8, service_s=4.0) - due_s  # 2 of 3 a second are answered
    judged = verdict(table(60, 3.0, took_s), of=point(value=4.0, duration_s=20.0))
    assert judged.validity == "valid"
    first, *others = judged.reasons
    assert first == (
        "overloaded: in flight grew from 14 to 25 within the window; requests ended at 1.65 of 3 a "
        "second offered"
    )
    assert not any("not steady" in reason for reason in others)


def test_a_rate_that_was_not_offered_is_noted() -> None:
    judged = verdict(table(300, rate=15.0), of=point(value=20.0, duration_s=20.0))
    assert judged.validity == "valid"
    assert judged.evidence["offered_below_asked"] == pytest.approx(0.25)
    assert any(
        reason.endswith("15 of 20 a second: arrivals came in bursts") for reason in judged.reasons
    )


def test_a_rate_that_was_missed_by_chance_is_not_noted() -> None:
    judged = verdict(table(390), of=point(value=20.0, duration_s=20.0))
    assert judged.evidence["offered_below_asked"] == 0
    assert not any("fewer requests" in reason for reason in judged.reasons)


def test_calls_of_tools_are_as_long_as_they_are() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    keys = {"name": "w", "api": "chat", "input_tokens": 9, "output_tokens": 10, "tools": [tool]}
    short = table(output_tokens=[6] * 400, output_tokens_counted=[6] * 400)
    for tool_choice, is_noted in (("required", False), ("auto", True)):
        workload = Workload.model_validate({**keys, "tool_choice": tool_choice})
        reasons = verdict(short, of=replace(OPEN, workload=workload, warmup_s=1e-9)).reasons
        assert any("answers were off" in reason for reason in reasons) is is_noted


def test_requests_that_were_cut_off_are_not_counted_as_failed() -> None:
    status = ["aborted"] * 100 + ["error"] * 4 + ["ok"] * 296
    judged = verdict(table(warmup=0, status=status))
    assert judged.evidence["cut_off_share"] == 0.25
    assert judged.evidence["failed_share"] == 0.01
    assert not any("of requests failed" in reason for reason in judged.reasons)
