"""A plan in virtual time: what is stored, that it is the same each time, and what is left out."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import orchestrator
from orchestrator.base.errors import FailureKind, ProblemsError
from orchestrator.cli.shortlist import ShortlistRequest, limited
from orchestrator.emulator import step_tables
from orchestrator.plan import checks
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.records import LaunchRow, PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.simulation.refusals import check
from orchestrator.spec.assumptions import Assumptions
from tests.unit.cli.commands import invoke
from tests.unit.emulator.test_step_tables import Kernels
from tests.unit.simulation.builders import EXPERIMENT, files_of, planned, simulated

ONE_DEPLOYMENT = EXPERIMENT.replace("{tensor_parallel_size: 1}, ", "")


def points(store: Store) -> list[PointRow]:
    return rows_of(store.read("points", include_failed=True), PointRow)


def launches(store: Store) -> list[LaunchRow]:
    return rows_of(store.read("launches", include_failed=True), LaunchRow)


def test_all_of_a_plan_is_stored_and_marked(tmp_path: Path) -> None:
    plan = planned(repeats="repeats: 2")
    store, report = simulated(plan, tmp_path)
    assert report.counts.measured == 8
    assert report.left_by_stop == 0
    rows = points(store)
    assert {(row.level, row.repeat) for row in rows} == {(2, 0), (2, 1), (8, 0), (8, 1)}
    assert all(row.simulated and not row.emulated and row.status == "ok" for row in rows)
    assert {row.validity for row in rows} == {"valid"}
    assert all(row.simulated for row in launches(store))
    assert all(manifest.simulated for manifest in store.manifests())
    assert store.simulated() is True
    requests = store.read("requests")
    assert requests.num_rows == sum(row.requests_scheduled for row in rows) > 0
    assert set(requests["status"].to_pylist()) == {"ok"}


def test_figures_of_emulators_without_hardware_are_per_core_as_in_a_run(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("engine: vllm\n  hardware: h100", "engine: emulator")
    simulated(planned(text), tmp_path)
    answer = invoke("best", str(tmp_path)).stdout
    assert "output tokens/s per core" in answer
    assert "per GPU" not in answer


def test_all_deployments_get_the_same_requests(tmp_path: Path) -> None:
    store, _ = simulated(planned(), tmp_path)
    by_deployment: dict[str, list[tuple[int, int]]] = {}
    of_attempt = {row.attempt_id: row for row in points(store)}
    for row in store.read("requests").to_pylist():
        point = of_attempt[row["attempt_id"]]
        if point.level == 8:
            request = (row["scheduled_ns"], row["output_tokens_asked"])
            by_deployment.setdefault(point.deployment_id, []).append(request)
    first, second = by_deployment.values()
    assert first == second


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    plan = planned(load="load: {levels: {request_rate: [4], concurrency: [3]}, requests: 40}")
    for name in ("a", "b"):
        simulated(plan, tmp_path / name)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert len(files_of(tmp_path / "a")) > 20


@pytest.mark.parametrize("ended_after", [1, 3, 5])
def test_one_that_was_ended_goes_on_and_has_the_same_rows(tmp_path: Path, ended_after: int) -> None:
    plan = planned(repeats="repeats: 2", starts="starts: 2")
    simulated(plan, tmp_path / "whole")
    stop = threading.Event()
    measured = 0

    def listen(item: Event | Phase) -> None:
        nonlocal measured
        measured += isinstance(item, Event) and item.kind == "measured"
        if measured == ended_after:
            stop.set()

    _, report = simulated(plan, tmp_path / "ended", listen, stop)
    assert report.interrupted
    _, report = simulated(plan, tmp_path / "ended")
    assert report.left_by_stop == 0
    whole, ended = files_of(tmp_path / "whole"), files_of(tmp_path / "ended")
    # the cache of what is computed is divided otherwise
    committed = {name: data for name, data in whole.items() if "/computed/" not in name}
    assert committed == {name: data for name, data in ended.items() if "/computed/" not in name}
    assert len([name for name in committed if "/requests/" in name]) == 8


def test_a_stop_after_the_last_measurement_leaves_nothing_out(tmp_path: Path) -> None:
    plan = planned()
    stop = threading.Event()
    measured = 0

    def listen(item: Event | Phase) -> None:
        nonlocal measured
        measured += isinstance(item, Event) and item.kind == "measured"
        if measured == 4:
            stop.set()

    store, report = simulated(plan, tmp_path, listen, stop)
    assert not report.interrupted
    assert len(launches(store)) == 2
    _, report = simulated(plan, tmp_path)
    assert (report.counts.measured, report.counts.skipped) == (0, 4)


def test_nothing_is_simulated_twice(tmp_path: Path) -> None:
    plan = planned()
    simulated(plan, tmp_path)
    before = files_of(tmp_path)
    _, report = simulated(plan, tmp_path)
    assert report.counts.measured == 0
    assert report.counts.skipped == 4
    assert files_of(tmp_path) == before


def test_what_the_model_does_not_know_is_stored_as_failed(tmp_path: Path) -> None:
    drafts = "{speculative: {method: ngram, num_speculative_tokens: 2}}"
    text = EXPERIMENT.replace("{tensor_parallel_size: 2}", f"{{cpu_offload_gb: 1}}, {drafts}")
    store, report = simulated(planned(text), tmp_path)
    assert report.counts.measured == 2
    assert report.counts.failed == 4
    failed = [row for row in points(store) if row.status == "failed"]
    assert {row.failure_kind for row in failed} == {FailureKind.NOT_SIMULATED}
    assert all(row.simulated for row in failed)
    assert {(row.reason or "").partition("has no term for ")[2] for row in failed} == {
        "weights offloaded to the host.",
        "speculative decoding, unless --assume drafts_accepted=SHARE.",
    }
    assert [row.status for row in launches(store)].count("failed") == 2
    _, report = simulated(planned(text), tmp_path)
    assert report.counts.refused == 4


def test_a_budget_of_gpu_hours_ends_it(tmp_path: Path) -> None:
    whole, _ = simulated(planned(), tmp_path / "whole")
    held_s = [row.held_s or 0.0 for row in launches(whole)]
    hours = (min(held_s) + 1) / 3600
    told: list[str] = []

    def listen(item: Event | Phase) -> None:
        if isinstance(item, Event):
            told.append(item.kind)

    plan = planned(budget=f"budget: {{gpu_hours: {hours}}}")
    _, report = simulated(plan, tmp_path / "part", listen)
    assert report.counts.over_budget > 0
    assert report.counts.measured < 4
    assert "budget" in told
    _, report = simulated(plan, tmp_path / "part")
    assert report.counts.measured == 0  # what was used stays used


def test_more_load_is_slower(tmp_path: Path) -> None:
    levels = "load: {levels: {request_rate: [1, 40]}, duration: 20s, warmup: 5s}"
    store, _ = simulated(planned(load=levels), tmp_path)
    of_attempt = {row.attempt_id: row.level for row in points(store)}
    e2e_s: dict[float, list[float]] = {1.0: [], 40.0: []}
    for row in store.read("requests").to_pylist():
        seconds = (row["last_token_ns"] - row["scheduled_ns"]) / 1e9
        e2e_s[of_attempt[row["attempt_id"]]].append(seconds)
    slow, fast = (sum(e2e_s[level]) / len(e2e_s[level]) for level in (40.0, 1.0))
    assert slow > 1.05 * fast


@pytest.mark.parametrize(
    ("arrivals", "late_share", "spread"),
    [
        ("constant", 0.5, 0.0),
        ("{process: gamma, burstiness: 0.25}", 0.5, 2.0),
        ("{process: ramp, to: 30}", 0.625, 1.1),
        ("{process: steps, steps: [[1.5, 5s], [0.5, 5s]]}", 0.25, 1.3),
    ],
)
def test_requests_are_due_as_the_arrivals_say(
    tmp_path: Path, arrivals: str, late_share: float, spread: float
) -> None:
    """``late_share``: the share of requests in the second half. ``spread``: the standard deviation
    of the gaps between them over their mean. The more they spread, the more the share is chance.
    """
    load = f"load: {{levels: {{request_rate: [10]}}, arrivals: {arrivals}, duration: 10s}}"
    store, report = simulated(planned(ONE_DEPLOYMENT, load=load), tmp_path)
    assert (report.counts.measured, report.counts.failed) == (1, 0)
    (point,) = points(store)
    assert point.arrivals in arrivals
    due_s = store.read("requests")["scheduled_ns"].to_numpy() / 1e9
    gaps_s = np.diff(due_s)
    assert np.mean(due_s >= 5) == pytest.approx(late_share, abs=0.01 + 0.1 * spread)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(spread, abs=0.25)


@pytest.mark.parametrize("levels", ["search: curve", "levels: auto"])
def test_a_curve_goes_up_until_twice_the_load_gives_no_more(tmp_path: Path, levels: str) -> None:
    text = ONE_DEPLOYMENT.replace("{tensor_parallel_size: 2}", "{max_num_seqs: 2}")
    load = f"load: {{{levels}, control: concurrency, requests: 40, warmup: 0s}}"
    store, report = simulated(planned(text, load=load), tmp_path)
    assert report.counts.failed == 0
    assert sorted(point.level for point in points(store)) == [1, 2, 3, 4]
    frame = orchestrator.points(str(tmp_path), columns=["level", "output_token_throughput"])
    tokens_per_s = frame.set_index("level")["output_token_throughput"]
    assert tokens_per_s[2] > 1.7 * tokens_per_s[1]
    assert tokens_per_s[4] < 1.1 * tokens_per_s[2]


def test_steps_come_from_tables_of_kernels_where_the_file_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode of few tokens takes 5 ms in these tables, and 7 ms by the formula."""
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    monkeypatch.setattr(step_tables, "_compiled", lambda *_: Kernels())
    text = EXPERIMENT.replace(", {tensor_parallel_size: 2}", "")
    load = "load: {levels: {request_rate: [1]}, duration: 10s, warmup: 0s}"
    tpot_ms: dict[str, float] = {}
    for wanted in ("false", "true"):
        folder = tmp_path / wanted
        plan = planned(text, load=load, predictions=f"predictions: {{tables: {wanted}}}")
        simulated(plan, folder)
        frame = orchestrator.points(str(folder), columns=["tpot_ms.p50"])
        tpot_ms[wanted] = frame["tpot_ms.p50"].item()
    assert 5 < tpot_ms["true"] < 5.5
    assert tpot_ms["false"] > 6.5


def test_a_trace_is_sent_at_its_times_and_finds_its_blocks_again(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 500 * index, "input_length": 1024, "output_length": 9}
        | {"hash_ids": [index % 2, 10 + index]}
        for index in range(12)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)))
    arrivals = f"arrivals: {{process: trace, trace: {trace}, speed_up: 1000}}"
    plan = planned(
        workloads=f"workloads: [{{kind: file, name: w, prompts: {trace}}}]",
        load=f"load: {{{arrivals}, requests: 12}}",
    )
    store, report = simulated(plan, tmp_path / "results")
    assert report.counts.measured == 2
    rows = store.read("requests").to_pylist()
    assert [row["scheduled_ns"] for row in rows[:12]] == [
        index * 500_000_000 for index in range(12)
    ]
    assert [row["cached_tokens"] for row in rows[:12]] == [0, 0] + [512] * 10


def test_requests_that_no_engine_takes_fail_the_point_and_are_not_tried_again(
    tmp_path: Path,
) -> None:
    text = EXPERIMENT.replace("input_tokens: 256", "input_tokens: {uniform: {min: 100, max: 9000}}")
    store, report = simulated(
        planned(text, load="load: {levels: {request_rate: [4]}, requests: 40}"), tmp_path
    )
    assert report.counts.measured == 2
    requests = store.read("requests")
    assert set(requests["status"].to_pylist()) == {"ok", "error"}
    refused = {error for error in requests["error"].to_pylist() if error}
    assert all("maximum context length" in error for error in refused)


def test_gaps_between_tokens_are_stored_where_a_limit_needs_them(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("tpot: 50ms", "itl_p99: 50ms")
    store, report = simulated(planned(text), tmp_path)
    assert report.counts.measured == 4
    gaps = store.read("token_events")
    requests = store.read("requests")
    assert gaps.num_rows == requests.num_rows
    assert set(requests["itl_kind"].to_pylist()) == {"token"}
    frame = orchestrator.points(str(tmp_path), columns=["itl_ms.p99", "attainment"])
    assert (frame["itl_ms.p99"] > 3).all()
    assert (frame["attainment"] > 0.9).all()


CONSTRAINED = """workloads:
  - {name: free, api: chat, input_tokens: 64, output_tokens: 16, request: {top_p: 0.9}}
  - {name: forced, api: chat, input_tokens: 64, output_tokens: 16, constrain: {json_schema: {type: object}}}
  - {name: part, api: chat, input_tokens: 64, output_tokens: 16, constrain: {choice: [yes, no]}}
  - {name: both, kind: mix, api: chat, parts: [{workload: part}, {workload: other}]}
  - {name: other, api: chat, input_tokens: 64, output_tokens: 16}"""


def test_constrained_answers_are_not_simulated_and_free_ones_beside_them_are(
    tmp_path: Path,
) -> None:
    store, report = simulated(planned(workloads=CONSTRAINED), tmp_path)
    assert (report.counts.measured, report.counts.failed) == (4, 8)
    by_workload = {row.workload: row for row in points(store)}
    assert by_workload["free"].status == "ok"
    for name in ("forced", "both"):
        assert by_workload[name].failure_kind == FailureKind.NOT_SIMULATED
        reason = by_workload[name].reason or ""
        assert reason.endswith("answers are, unless --assume constrained_answers=asked.")


def test_constrained_answers_are_simulated_where_their_length_is_assumed(tmp_path: Path) -> None:
    assumptions = Assumptions(constrained_answers="asked", adapters="free")
    plan = with_predictions(planned(workloads=CONSTRAINED).assuming(assumptions))
    assert plan.assumptions.stated() == {"constrained_answers": "asked"}  # no adapters in it
    assert Plan.from_json(plan.to_json()) == plan
    store, report = simulated(plan, tmp_path)
    assert (report.counts.measured, report.counts.failed) == (12, 0)
    check(plan, store)
    with pytest.raises(ProblemsError, match="under other assumptions.*another --results"):
        check(planned(workloads=CONSTRAINED), store)
    said = invoke("results", str(tmp_path)).stdout.splitlines()
    assumed = "assumed: constrained answers are as long as output_tokens asks, and the constraint costs nothing"
    assert [line for line in said if line.startswith("assumed:")] == [assumed]
    shortlist = ShortlistRequest(size=1, simulated=str(tmp_path))
    assert limited(planned(workloads=CONSTRAINED), shortlist, earlier=None).lines[-1] == assumed


def test_tools_are_not_simulated(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    workload = {"name": "agent", "api": "chat", "input_tokens": 64, "output_tokens": 16}
    options = {"tools": [tool], "tool_choice": "none"}
    text = f"workloads: {json.dumps([workload | options])}"
    store, _ = simulated(planned(workloads=text), tmp_path)
    assert {row.failure_kind for row in points(store)} == {FailureKind.NOT_SIMULATED}
