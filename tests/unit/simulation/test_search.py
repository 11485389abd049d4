"""Capacity searches and races in virtual time.

No client is slow in a simulation, and no engine changes its mind or answers noise: for the statuses
that say so see ``tests/unit/capacity/test_claim.py``.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchestrator
from orchestrator.capacity.first_change import FirstChange, LongerProbes, WidestMiss
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Plan
from orchestrator.predict.simulate import Trace, run
from orchestrator.report.selection import answers, ranking_limits
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.records import PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.simulation.models import EngineModels
from tests.unit.simulation.builders import EXPERIMENT, files_of, planned, simulated

SEARCH = (
    EXPERIMENT.replace(
        "{tensor_parallel_size: 1}, {tensor_parallel_size: 2}",
        "{max_num_seqs: 2}, {max_num_seqs: 6}",
    )
    .replace(
        "{levels: {request_rate: [2, 8]}, duration: 20s, warmup: 5s}",
        "{search: capacity, control: request_rate, precision: 0.3}",
    )
    .replace("ttft: 500ms, tpot: 50ms, attainment: 0.95", "ttft: 300ms, attainment: 0.8")
    .replace("uniform: {min: 16, max: 64}", "uniform: {min: 8, max: 24}")
)

ONE_ENGINE = SEARCH.replace("{max_num_seqs: 2}, {max_num_seqs: 6}", "{max_num_seqs: 2}")

BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
RECORDED_RATE = 0.5  # requests/s of the trace below


def points(store: Store) -> list[PointRow]:
    return rows_of(store.read("points", include_failed=True), PointRow)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned(SEARCH)


@pytest.fixture(scope="module")
def whole(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    simulated(plan, folder)
    return folder


def claims(folder: Path) -> dict[str, dict[str, Any]]:
    """What the searches claim, by deployment."""
    frame = orchestrator.capacities(str(folder))
    return {row["deployment"]: row for row in frame.to_dict("records")}


def committed(folder: Path) -> dict[str, bytes]:
    """All files but the cache of what is computed, which is divided otherwise."""
    return {name: data for name, data in files_of(folder).items() if "/computed/" not in name}


def attainment(plan: Plan, label: str, rate: float) -> float:
    """The share of requests that meet the limits in an hour at this rate."""
    deployment = next(each for each in plan.deployments if label in each.label)
    rank = EngineModels(plan).step_model(deployment).rank
    rng = np.random.default_rng(5)
    count = int(3600 * rate)
    outputs = rng.integers(8, 25, count)
    arrivals_s = np.cumsum(rng.exponential(1 / rate, count))
    times = run(rank, Trace(arrivals_s, np.full(count, 256), outputs))
    return float(np.mean(times.first_token_s - arrivals_s <= 0.3))


def test_claims_lie_below_the_truth_and_near_it(plan: Plan, whole: Path) -> None:
    claim = claims(whole)["vllm seqs=6"]
    assert claim["status"] in ("converged", "cliff")
    assert attainment(plan, "seqs=6", claim["claim"]) >= 0.8
    assert attainment(plan, "seqs=6", 1.5 * claim["claim"]) < 0.8


def test_probes_end_early_and_the_weaker_one_is_beaten(whole: Path) -> None:
    rows = points(Store.open(str(whole), "x"))
    assert {row.ended_early for row in rows} >= {"holds", "fails"}
    assert claims(whole)["vllm seqs=2"]["status"] == "outraced"
    probes = Counter(row.deployment_id for row in rows)
    assert min(probes.values()) < max(probes.values())


def test_a_search_that_was_ended_comes_to_the_same(plan: Plan, whole: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    measured = 0

    def listen(item: Event | Phase) -> None:
        nonlocal measured
        measured += isinstance(item, Event) and item.kind == "measured"
        if measured == 4:
            stop.set()

    _, report = simulated(plan, tmp_path, listen, stop)
    assert report.interrupted
    simulated(plan, tmp_path)
    assert committed(whole) == committed(tmp_path)


def changes_of(store: Store) -> list[FirstChange | None]:
    """What is to be changed first, of each search that ended without an answer."""
    rankings = answers(ranking_limits(None, [StoredExperiment(store)]))
    (comparison,) = rankings.comparisons
    changes: list[FirstChange | None] = []
    for doubt in comparison.doubts:
        for deployment in doubt.claims:
            changes += [searched.change for searched in deployment.claims]
    return changes


def test_where_nothing_holds_the_limit_is_named_with_what_requests_took(tmp_path: Path) -> None:
    load = "load: {search: capacity, control: concurrency, duration: 5s, warmup: 0s}"
    plan = planned(ONE_ENGINE.replace("ttft: 300ms", "ttft: 1ms"), load=load)
    store, _ = simulated(plan, tmp_path)
    (claim,) = claims(tmp_path).values()
    assert (claim["status"], claim["high"]) == ("nothing_holds", 1)
    (change,) = changes_of(store)
    assert isinstance(change, WidestMiss)
    assert change.limit.seconds == 0.001
    assert change.value_s > 0.001


def test_probes_too_brief_to_decide_leave_a_search_unresolved(tmp_path: Path) -> None:
    load = "load: {search: capacity, control: concurrency, duration: 2s, warmup: 0s}"
    store, _ = simulated(planned(ONE_ENGINE, load=load), tmp_path)
    (claim,) = claims(tmp_path).values()
    assert claim["status"] == "unresolved"
    (change,) = changes_of(store)
    assert isinstance(change, LongerProbes)
    assert change.seconds > 2


def test_a_search_that_was_stopped_has_used_its_budget(tmp_path: Path) -> None:
    stop = threading.Event()

    def listen(item: Event | Phase) -> None:
        if isinstance(item, Event) and item.kind == "measured":
            stop.set()

    simulated(planned(ONE_ENGINE), tmp_path, listen, stop)
    (claim,) = claims(tmp_path).values()
    assert claim["status"] == "budget"


def test_a_search_stretches_a_trace_to_rates_above_the_recorded_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{at},x,256,{8 + at % 17},{264 + at % 17},y" for at in range(0, 400, 2)]
    trace.write_text(BURSTGPT + "\n".join(rows))
    one_deployment = SEARCH.replace("{max_num_seqs: 2}, {max_num_seqs: 6}", "{max_num_seqs: 6}")
    plan = planned(
        one_deployment.replace("load: {", "load: {arrivals: {process: trace, scale: stretch}, "),
        workloads=f"workloads: [{{kind: trace, name: w, trace: {trace}}}]",
    )
    simulated(plan, tmp_path / "results")
    (claim,) = claims(tmp_path / "results").values()
    assert claim["status"] in ("converged", "cliff")
    assert claim["claim"] > 2 * RECORDED_RATE
    store = Store.open(str(tmp_path / "results"), plan.name)
    assert {row.status for row in points(store)} == {"ok"}


def test_a_race_goes_on_where_it_stood_and_stores_no_event_twice(tmp_path: Path) -> None:
    cases = "{max_num_seqs: 4}, {max_num_seqs: 6}, {max_num_seqs: 6, max_num_batched_tokens: 4096}"
    text = SEARCH.replace("{max_num_seqs: 2}, {max_num_seqs: 6}", cases)
    plan = planned(text, repeats="repeats: 2", starts="starts: 2")
    stop = threading.Event()
    outraced = 0

    def listen(item: Event | Phase) -> None:
        nonlocal outraced
        outraced += isinstance(item, Event) and item.kind == "outraced"
        if outraced == 2:  # one deployment twice: in between, the race had moved
            stop.set()

    simulated(plan, tmp_path / "whole", listen)
    stop.clear()
    outraced = 0
    _, report = simulated(plan, tmp_path / "ended", listen, stop)
    assert report.interrupted
    _, report = simulated(plan, tmp_path / "ended")
    assert report.left_by_stop == 0
    assert committed(tmp_path / "whole") == committed(tmp_path / "ended")


def test_with_another_plan_what_was_simulated_before_still_counts(tmp_path: Path) -> None:
    levels = "load: {levels: {request_rate: [2]}, duration: 20s, warmup: 5s}"
    simulated(planned(EXPERIMENT, load=levels), tmp_path)
    store, report = simulated(planned(EXPERIMENT), tmp_path)
    assert (report.counts.measured, report.counts.skipped) == (2, 2)
    assert sorted(row.level for row in points(store)) == [2, 2, 8, 8]
    launches = store.manifests("launch")
    assert len(launches) == 4
    assert launches[1].created_unix_ns < launches[2].created_unix_ns


def test_a_search_over_concurrency_runs_too(tmp_path: Path) -> None:
    text = SEARCH.replace("control: request_rate", "control: concurrency")
    simulated(planned(text), tmp_path)
    found = claims(tmp_path)
    assert {row["status"] for row in found.values()} <= {"converged", "cliff"}
    assert 2 <= found["vllm seqs=6"]["claim"] <= 30


def test_no_more_deployments_are_started_than_allowed(tmp_path: Path) -> None:
    text = SEARCH.replace("search: capacity", "search: capacity, max_deployments: 1")
    told: list[str] = []

    def listen(item: Event | Phase) -> None:
        if isinstance(item, Event):
            told.append(item.kind)

    store, report = simulated(planned(text), tmp_path, listen)
    assert len({row.deployment_id for row in points(store)}) == 1
    assert "not_started" in told
    assert report.left_by_stop == 0


def test_a_search_under_limits_on_parts_claims_what_holds_for_every_part(tmp_path: Path) -> None:
    workloads = (
        "workloads: [{name: short, input_tokens: 64, output_tokens: 8}, "
        "{name: long, input_tokens: 256, output_tokens: {uniform: {min: 16, max: 48}}}, "
        "{name: both, kind: mix, parts: [{weight: 2, workload: short}, {workload: long}]}]"
    )
    limits = (
        "slos: {of_short: {parts: {short: {ttft: 300ms}}, attainment: 0.8}, "
        "of_both: {parts: {short: {ttft: 300ms}, long: {ttft: 100ms}}, attainment: 0.8}}"
    )
    plan = planned(
        SEARCH.replace("{max_num_seqs: 2}, {max_num_seqs: 6}", "{max_num_seqs: 6}"),
        workloads=workloads,
        slos=limits,
    )
    simulated(plan, tmp_path)
    found = orchestrator.capacities(str(tmp_path)).set_index("slo_name")
    assert 0 < found["claim"]["of_both"] < found["claim"]["of_short"]
    parts = orchestrator.parts(str(tmp_path), slo="of_both")
    at_claim = parts[parts["level"] == found["claim"]["of_both"]]
    assert sorted(at_claim["part"]) == ["long", "short"]
    assert (at_claim["attainment"] >= 0.8).all()
    above = parts[(parts["level"] >= found["high"]["of_both"]) & (parts["part"] == "long")]
    assert (above["attainment"] < 0.8).any(), "it is the long requests that miss"
