"""One simulated point: what is sent when, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.capacity.sequential_test import EarlierProbes, ProbeSize
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.emulator.drafts import Drafts
from orchestrator.emulator.step_costs import Costs
from orchestrator.load.point import LoadPoint, Target
from orchestrator.predict.simulate import Trace, run
from orchestrator.simulation.point import PointSimulator, SimulatedEngines
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Level, Slo
from orchestrator.spec.sessions import ContentSource
from orchestrator.sweep.attempt import Attempt
from orchestrator.workloads.drawn import ConversationsWorkload, RandomWorkload
from tests.unit.emulator.builders import IDEAL, a_replica

WORKLOAD = RandomWorkload(name="w", input_tokens=8, output_tokens=5)


def engines(
    replicas: int = 1, ranks: int = 1, caches: bool = False, **limits: Any
) -> SimulatedEngines:
    return SimulatedEngines(a_replica(**limits), replicas, ranks, caches)


def attempt(
    used: SimulatedEngines,
    level: float,
    control: str = "request_rate",
    watch: ProbeWatch | None = None,
    gaps: bool = False,
    **more: Any,
) -> Attempt:
    rules: dict[str, Any] = {"workload": WORKLOAD, "duration_s": 10.0, "warmup_s": 0.0} | more
    point = LoadPoint(
        targets=tuple(Target("", "m", replica) for replica in range(used.replicas)),
        dialect=openai()["completions"],
        level=Level(control=control, value=level),
        measurement_id="m",
        attempt_id="a",
        **rules,
    )
    return PointSimulator(gaps).attempt(used, point, watch, 10**18).attempt


def rows(made: Attempt) -> pa.Table:
    assert made.loaded is not None
    return made.loaded.requests


def column(made: Attempt, name: str) -> Any:
    return rows(made)[name].to_numpy(zero_copy_only=False)


def seconds(made: Attempt, name: str) -> Any:
    return column(made, name).astype(np.float64) / 1e9


def test_an_open_loop_is_what_the_step_model_says() -> None:
    made = attempt(engines(), 20.0)
    due_s = seconds(made, "scheduled_ns")
    asked = [column(made, f"{name}_tokens_asked").astype(np.int64) for name in ("input", "output")]
    times = run(a_replica(), Trace(due_s, *asked))
    assert np.allclose(seconds(made, "first_token_ns"), times.first_token_s, atol=1e-8)
    assert np.allclose(seconds(made, "done_ns"), times.last_token_s, atol=1e-8)
    assert made.verdict.validity == "valid"
    assert made.failure is None


def test_a_client_that_looks_at_each_request_gets_the_same_times() -> None:
    """A limit that is never reached changes nothing, but for which code simulates the point."""
    fast = attempt(engines(replicas=2), 30.0)
    used = engines(replicas=2, max_num_queued_reqs=1000)
    slow = attempt(used, 30.0)
    for name in ("request_index", "replica", "scheduled_ns", "sent_ns"):
        assert np.array_equal(column(fast, name), column(slow, name))
    for name in ("first_token_ns", "last_token_ns"):
        # by how much a jump over steps that an arrival ends may differ
        assert np.allclose(column(fast, name), column(slow, name), atol=1e6)


def test_a_closed_loop_keeps_as_many_in_flight_as_asked_for() -> None:
    made = attempt(engines(replicas=2), 6, "concurrency", requests=200, duration_s=None)
    sent_s, done_s = seconds(made, "sent_ns"), seconds(made, "done_ns")
    assert len(sent_s) == 200
    for instant_s in np.linspace(0.1, sent_s.max(), 20):
        in_flight = np.sum((sent_s <= instant_s) & (done_s > instant_s))
        assert in_flight == pytest.approx(6, abs=1)
    # sessions go to the replicas in turn
    assert np.bincount(column(made, "replica")).tolist() == [100, 100]


def test_no_more_than_max_in_flight_are_sent() -> None:
    used = engines(max_num_seqs=1)
    made = attempt(used, 50.0, max_in_flight=3, duration_s=5.0)
    free = attempt(used, 50.0, duration_s=5.0)
    sent_s, due_s, done_s = (seconds(made, f"{name}_ns") for name in ("sent", "scheduled", "done"))
    for instant_s in sent_s:
        assert np.sum((sent_s <= instant_s) & (done_s > instant_s)) <= 3
    assert (sent_s > due_s).any()
    assert np.allclose(seconds(free, "sent_ns"), seconds(free, "scheduled_ns"))
    assert len(rows(made)) == len(rows(free))


def test_what_does_not_end_in_time_is_a_timeout() -> None:
    used = engines(max_num_seqs=1, kv_cache_tokens=5000)
    slow = RandomWorkload(name="w", input_tokens=8, output_tokens=400)
    made = attempt(used, 2.0, workload=slow, request_timeout_s=8.0, drain_timeout_s=1.0)
    statuses = set(rows(made)["status"].to_pylist())
    assert statuses == {"ok", "timeout"}
    errors = {error for error in rows(made)["error"].to_pylist() if error}
    assert errors == {"no end within 8 s", "still open 1 s after the last was due (time to drain)"}
    took_s = seconds(made, "done_ns") - seconds(made, "sent_ns")
    assert took_s.max() <= 8.0 + 1e-6
    assert seconds(made, "done_ns").max() <= 11.0 + 1e-6


def test_requests_that_no_engine_can_serve_are_refused() -> None:
    long = RandomWorkload(name="w", input_tokens=9000, output_tokens=5)
    made = attempt(engines(), 5.0, workload=long)
    assert set(rows(made)["error_class"].to_pylist()) == {"http_4xx"}
    assert made.failure is not None
    assert made.failure.kind == "requests_refused"
    assert "maximum context length" in made.failure.sentence


def test_a_closed_loop_of_refused_requests_ends() -> None:
    long = RandomWorkload(name="w", input_tokens=9000, output_tokens=5)
    made = attempt(engines(), 2, "concurrency", workload=long)
    assert 4 < len(rows(made)) < 400


def test_a_shared_prefix_is_computed_once_on_each_replica() -> None:
    shared = WORKLOAD.model_copy(update={"shared_prefix_tokens": 64})
    made = attempt(engines(replicas=2, caches=True), 5.0, workload=shared)
    cached = column(made, "cached_tokens")
    assert np.sum(cached == 0) == 2
    assert set(cached) == {0, 64}
    assert column(made, "expected_cached_tokens").tolist() == cached.tolist()
    without = attempt(engines(replicas=2), 5.0, workload=shared)
    for name in ("cached_tokens", "expected_cached_tokens"):
        assert rows(without)[name].null_count == len(rows(without))


def test_nothing_is_expected_of_slices_of_a_text(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four\n")
    content = ContentSource(text=str(text))
    slices = WORKLOAD.model_copy(update={"shared_prefix_tokens": 64, "content": content})
    made = attempt(engines(caches=True), 5.0, workload=slices)
    assert rows(made)["cached_tokens"].null_count == 0
    assert rows(made)["expected_cached_tokens"].null_count == len(rows(made))


def test_a_small_cache_finds_less_than_was_to_be_expected() -> None:
    shared = WORKLOAD.model_copy(update={"shared_prefix_tokens": 64, "shared_prefix_count": 50})
    made = attempt(engines(caches=True, kv_cache_tokens=2_000), 20.0, workload=shared)
    found = column(made, "cached_tokens").sum()
    expected = column(made, "expected_cached_tokens").sum()
    assert 0 < found < 0.9 * expected


def test_turns_of_a_conversation_follow_one_another() -> None:
    talk = ConversationsWorkload.model_validate(
        {"kind": "conversations", "name": "w", "input_tokens": 40, "output_tokens": 8, "turns": 3}
        | {"think_time": "2s"}
    )
    made = attempt(
        engines(replicas=2, caches=True), 4.0, workload=talk, requests=30, duration_s=None
    )
    table = rows(made).to_pylist()
    assert len(table) == 30
    by_session: dict[int, list[dict[str, Any]]] = {}
    for row in table:
        by_session.setdefault(row["session"], []).append(row)
    for turns in by_session.values():
        assert len({turn["replica"] for turn in turns}) == 1
        for before, after in zip(turns, turns[1:], strict=False):
            assert after["scheduled_ns"] - before["done_ns"] == pytest.approx(2e9, abs=10)
            whole = before["input_tokens"] + before["output_tokens"]
            # the last token of an answer was never computed into a cache
            assert after["cached_tokens"] == (whole - 1) // 16 * 16
            assert after["expected_cached_tokens"] == after["cached_tokens"]


def test_data_parallel_ranks_share_the_requests_of_a_replica() -> None:
    one = attempt(engines(max_num_seqs=1), 200.0)
    two = attempt(engines(max_num_seqs=1, ranks=2), 200.0)
    assert seconds(two, "done_ns").max() < seconds(one, "done_ns").max()


def test_jitter_differs_between_repeats() -> None:
    varied = SimulatedEngines(a_replica(IDEAL.model_copy(update={"jitter": 0.2})), 1, 1, False)
    once, again = attempt(varied, 5.0), attempt(varied, 5.0)
    other = attempt(varied, 5.0, seed=1)
    assert rows(once).equals(rows(again))
    tpot = [
        seconds(made, "done_ns")[:9] - seconds(made, "first_token_ns")[:9] for made in (once, other)
    ]
    assert not np.allclose(*tpot)


def test_drafts_come_in_the_chunk_of_their_step_and_shorten_answers() -> None:
    workload = RandomWorkload(name="w", input_tokens=8, output_tokens=41)
    plain = engines(max_num_seqs=4)
    assert isinstance(plain.rank.costs, Costs)
    drafts = Drafts(4, 1.0, plain.rank.costs, drafter=None)  # all are accepted
    drafting = replace(plain, rank=replace(plain.rank, drafts=drafts))
    wanted: dict[str, Any] = {"control": "concurrency", "workload": workload, "gaps": True}
    made, without = attempt(drafting, 4, **wanted), attempt(plain, 4, **wanted)
    is_ok = column(made, "status") == "ok"
    assert set(column(made, "chunks")[is_ok]) == {9}  # one token, then eight times five
    assert set(column(made, "itl_kind")[is_ok]) == {"chunk"}
    assert made.loaded is not None
    file = made.loaded.reports[0].token_events
    assert file is not None
    events: Any = file.file
    assert events["tokens_per_chunk"][0].as_py() == [1, *[5] * 8]
    assert len(events["gaps_us"][0]) == 8
    tpot_s = [
        np.nanmean(seconds(of, "last_token_ns") - seconds(of, "first_token_ns")) / 40
        for of in (made, without)
    ]
    assert tpot_s[0] == pytest.approx(tpot_s[1] / 5, rel=0.1)
    again = attempt(drafting, 4, control="concurrency", workload=workload)
    assert column(again, "itl_kind").tolist() == [None] * len(rows(again))
    assert (column(again, "last_token_ns") == column(made, "last_token_ns")).all()


def watch(**limits: Any) -> ProbeWatch:
    return ProbeWatch(
        (Slo(name="slo", attainment=0.9, **limits),),
        ((EarlierProbes(),),),
        ProbeSize(expected=1000.0),
    )


def test_a_probe_that_holds_ends_early_and_waits_for_what_is_open() -> None:
    made = attempt(engines(), 20.0, watch=watch(e2e=5.0), duration_s=600.0)
    assert made.loaded is not None
    early = made.loaded.early
    assert early is not None
    assert early.outcome == "holds"
    assert early.at_s < 60.0
    assert set(rows(made)["status"].to_pylist()) == {"ok"}
    assert seconds(made, "scheduled_ns").max() < early.at_s


def test_a_probe_that_diverges_ends_early_and_aborts_what_is_open() -> None:
    made = attempt(engines(max_num_seqs=1), 400.0, watch=watch(ttft=0.05), duration_s=600.0)
    assert made.loaded is not None
    early = made.loaded.early
    assert early is not None
    assert early.outcome == "fails"
    assert "faster than they are answered" in early.sentence
    assert rows(made)["status"].to_pylist().count("aborted") > 50
    assert seconds(made, "done_ns").max() <= early.at_s + 1e-6


@pytest.mark.parametrize("rules", [{"requests": 300, "duration_s": None}, {"duration_s": 5.0}])
def test_a_closed_loop_is_the_same_with_a_client_that_looks_at_each_request(
    rules: dict[str, Any],
) -> None:
    fast = attempt(engines(), 7, "concurrency", **rules)
    slow = attempt(engines(max_num_queued_reqs=1000), 7, "concurrency", **rules)
    assert len(rows(fast)) == len(rows(slow)) > 100
    for name in ("scheduled_ns", "first_token_ns", "done_ns"):
        assert np.allclose(column(fast, name), column(slow, name), atol=1e3)


def test_a_closed_loop_whose_first_requests_end_before_all_slots_start_is_the_same_too() -> None:
    one_token = RandomWorkload(name="w", input_tokens=8, output_tokens=1)
    rules = {"workload": one_token, "requests": 3000, "duration_s": None}
    fast = attempt(engines(), 2000, "concurrency", **rules)
    slow = attempt(engines(max_num_queued_reqs=100_000), 2000, "concurrency", **rules)
    for name in ("scheduled_ns", "first_token_ns", "done_ns"):
        assert np.allclose(column(fast, name), column(slow, name), atol=1e3)
