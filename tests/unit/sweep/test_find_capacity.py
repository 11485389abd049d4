"""Sweeps that look for capacities, of engines that are queues: 8 slots, each busy for 0.4 s with a
request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.base.clock import Clock, UnixSpan
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.cluster.base import ClientReport
from orchestrator.load.point import ClientStats, LoadPoint, OpenRequests, SoFar, Target
from orchestrator.load.request_record import EndedRequest
from orchestrator.load.validity import PointVerdict
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report.documents.capacity import capacity_documents
from orchestrator.report.words import remedy_texts
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Slo
from orchestrator.sweep.attempt import Attempt, Loaded
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.find_capacity import CapacitySearch
from tests.in_flight import record_of
from tests.unit.results.builders import part_of, request, requests
from tests.unit.sweep import simulation
from tests.unit.sweep.simulation import EngineDeath, FakeRun, World, steps, sweep, world_of

SLOTS, SERVICE_S = 8, 0.4
MOST = SLOTS / SERVICE_S  # requests/s
SEARCH = """
version: 1
name: x
model: some-org/some-model
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3.6}}}}
deployments: {{engine: vllm, hardware: h100}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 1}}]
load: {{search: capacity, control: {control}, duration: 60s}}
slos: {slos}
"""


def searching(
    slos: str = "{fast: {ttft: 500ms, attainment: 0.8}}",
    control: str = "request_rate",
    more: str = "",
) -> Plan:
    return make_plan(parse_experiment(SEARCH.format(slos=slos, control=control) + more, "x.yaml"))


class QueueRun(FakeRun):
    """Every request of a point through the queue, as far as it went."""

    def __post_init__(self) -> None:
        self._start_s, self._told = self.world.clock.now_s(), 0
        self.end_s, self.drain = self.point.duration_s or 1.0, True
        rng, level = np.random.default_rng(self.point.seed), self.point.level
        self._free = [0.0] * self.slots
        self._served: list[tuple[float, float]] = []  # due, done
        if level.control == "request_rate":
            due_s = np.cumsum(rng.exponential(1 / level.value, round(level.value * self.end_s * 2)))
            self._served = [(one, self._serve(one)) for one in due_s if one < self.end_s]
        else:
            slots = [0.0] * round(level.value)
            while (due := heapq.heappop(slots)) < self.end_s:
                self._served.append((due, self._serve(due)))
                heapq.heappush(slots, self._served[-1][1])
        self._served.sort(key=lambda one: one[1])

    @property
    def slots(self) -> int:
        return SLOTS

    def _serve(self, due_s: float) -> float:
        done_s = max(due_s, heapq.heappop(self._free)) + SERVICE_S
        heapq.heappush(self._free, done_s)
        return done_s

    @property
    def _now_s(self) -> float:
        return self.world.clock.now_s() - self._start_s

    @property
    def _over_s(self) -> float:
        last = max((done for due, done in self._served if due < self.end_s), default=0.0)
        return max(self.end_s, last) if self.drain else self.end_s

    def wait(self, wait_s: float) -> bool:
        self.world.clock.sleep(min(wait_s, max(0.0, self._over_s - self._now_s)))
        return self._now_s >= self._over_s - 1e-9

    def so_far(self) -> list[SoFar]:
        now_s = self._now_s
        over = sum(done <= now_s for _, done in self._served)
        fresh, self._told = self._served[self._told : over], over
        ended = tuple(EndedRequest(record_of(row), None) for row in self._rows(fresh))
        still_open = tuple(round(due * 1e9) for due, _ in self._served[over:] if due <= now_s)
        return [SoFar(round(now_s * 1e9), ended, silent=OpenRequests(still_open))]

    def finish(self, at_s: float, drain: bool) -> None:
        self.end_s, self.drain = min(at_s, self.end_s), drain

    def reports(self) -> dict[int, ClientReport]:
        due = [served for served in self._served if served[0] < self.end_s]
        rows, reports = self._rows(due), dict[int, ClientReport]()
        for client in range(self.count):
            stats = ClientStats(client, 1.0, 0.1, 0.1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0)
            mine = requests(*(row for row in rows if row["request_index"] % self.count == client))
            reports[client] = ClientReport(stats, (), part_of("requests", mine), None)
        return reports

    def _rows(self, served: list[tuple[float, float]]) -> list[dict[str, Any]]:
        keys = {"measurement_id": self.point.measurement_id, "attempt_id": self.point.attempt_id}
        return [
            self._row(index, due, done) | keys
            for index, (due, done) in enumerate(served, self._told)
        ]

    def _row(self, index: int, due: float, done: float) -> dict[str, Any]:
        row = request(index, 1e3 * due, first_ms=1e3 * done)
        aborted = not self.drain and done > self.end_s
        nothing = {"first_token_ns": None, "last_token_ns": None, "output_tokens": None}
        return row | nothing | {"status": "aborted", "error_class": "aborted"} if aborted else row


@pytest.fixture(autouse=True)
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        simulation,
        "FakeRun",
        lambda *args: FakeRun(*args) if args[1].keep_replies else QueueRun(*args),
    )


def probes(store: Store) -> list[tuple[float, int]]:
    return [(row["level"], row["repeat"]) for row in store.read("points").to_pylist()]


def last_claims(world: World) -> dict[str, dict[str, Any]]:
    return [
        dict(one.data) for one in world.events if isinstance(one, Event) and one.kind == "search"
    ][-1]


def test_the_claim_is_below_the_capacity_and_a_level_above_fails(
    tmp_path: Path,
) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    text = SEARCH.format(slos="{fast: {ttft: 500ms, attainment: 0.8}}", control="request_rate")
    text = text.replace("duration: 60s", "duration: 60s, precision: 0.3")
    report = sweep(world, make_plan(parse_experiment(text, "x.yaml")), store)
    claim = last_claims(world)["fast"]
    assert (report.counts.failed, steps(world)["start"]) == (0, 1)
    assert claim["status"] in ("converged", "cliff")
    assert 0.65 * MOST <= claim["claim"] < claim["high"] <= 1.1 * MOST
    assert claim["estimate.lower"] <= claim["estimate"] <= claim["estimate.upper"]
    assert 0 < claim["safe"] <= claim["high"]
    early = {row["level"]: row["ended_early"] for row in store.read("points").to_pylist()}
    assert early[max(early)] == "fails"
    assert "holds" in early.values()


@pytest.mark.parametrize("precision", [0.5, 0.02])
def test_what_is_stored_is_judged_at_the_precision_of_the_search(
    tmp_path: Path, precision: float
) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    text = SEARCH.format(slos="{fast: {ttft: 500ms, attainment: 0.8}}", control="request_rate")
    text = text.replace("duration: 60s", f"duration: 60s, precision: {precision}")
    sweep(world, make_plan(parse_experiment(text, "x.yaml")), store)
    told, experiment = last_claims(world)["fast"], StoredExperiment(store)
    assert told["status"] in (("unresolved",) if precision < 0.1 else ("converged", "cliff"))
    assert (told["high"] / told["claim"] <= 1 + precision) == (precision == 0.5)
    (stored,) = capacity_documents(
        experiment, experiment.points(*experiment.slos).current, experiment.slos
    )
    assert [getattr(stored.claim, name) for name in ("claim", "high", "status")] == [
        told[name] for name in ("claim", "high", "status")
    ]


@pytest.mark.long
def test_of_several_slos_each_has_its_claim_by_the_same_probes(tmp_path: Path) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    sweep(
        world,
        searching("{fast: {ttft: 420ms, attainment: 0.8}, slow: {ttft: 2s, attainment: 0.8}}"),
        store,
    )
    claims = last_claims(world)
    assert 0 < claims["fast"]["claim"] < claims["slow"]["claim"] <= 1.1 * MOST


def test_a_closed_loop_holds_as_many_in_flight_as_there_are_slots(tmp_path: Path) -> None:
    world = world_of()
    sweep(world, searching("{fast: {ttft: 410ms}}", "concurrency"), Store.open(str(tmp_path), "x"))
    claim = last_claims(world)["fast"]
    assert (claim["claim"], claim["high"]) == (SLOTS, SLOTS + 1)


@pytest.mark.long
def test_a_killed_search_goes_on_without_repeating_a_probe(tmp_path: Path) -> None:
    whole, killed = (Store.open(str(tmp_path / name), "x") for name in ("whole", "killed"))
    sweep(world_of(), searching(), whole)
    while sweep(world_of(), searching(), killed, interrupt_s=90.0).interrupted:
        assert set(probes(killed)) <= set(probes(whole))
    assert sorted(probes(killed)) == sorted(probes(whole))
    assert (
        max(Counter(row["measurement_id"] for row in killed.read("points").to_pylist()).values())
        == 1
    )
    assert sweep(world_of(), searching(), killed).counts.measured == 0


def test_an_engine_that_does_not_start_is_one_row(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path), "x")
    wrong = Failure(FailureKind.BAD_FLAG, "It does not know this flag.")
    report = sweep(world_of(fails={"ready": [wrong]}), searching(), store)
    assert (report.counts.failed, len(store.manifests("point"))) == (1, 1)
    again = world_of()
    assert sweep(again, searching(), store).counts.refused == 1
    assert steps(again)["start"] == 0


def test_a_budget_ends_a_search_with_what_is_known(tmp_path: Path) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    report = sweep(world, searching(more="budget: {wall: 3min}"), store)
    assert report.counts.over_budget >= 1  # as many probes as are expected
    assert last_claims(world)["fast"]["status"] == "budget"


def test_a_level_is_confirmed_on_the_second_start(
    tmp_path: Path,
) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    sweep(world, searching(more="repeats: 2\nstarts: 2"), store)
    rows = sorted(store.read("points").to_pylist(), key=lambda row: row["started_unix_ns"])
    claim = last_claims(world)["fast"]
    assert steps(world)["start"] == 2
    assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)
    held, claimed = ([row["level"] for row in rows if row["start"] == start] for start in (0, 1))
    assert claimed[0] in held
    assert claim["claim"] in claimed
    assert len({row["launch_id"] for row in rows}) == 2
    again = world_of()
    assert sweep(again, searching(more="repeats: 2\nstarts: 2"), store).counts.measured == 0
    assert steps(again)["start"] == 0


def test_by_default_a_probe_lasts_ten_minutes_at_most() -> None:
    text = SEARCH.format(slos="{fast: {ttft: 500ms}}", control="request_rate").replace(
        ", duration: 60s", ""
    )
    listed = text.replace("search: capacity, control: request_rate", "levels: {request_rate: [1]}")
    lasts = [
        make_plan(parse_experiment(one, "x.yaml")).loads[0].duration_s for one in (text, listed)
    ]
    assert lasts == [600, 60]


class BoundMeasurer:
    """Its clients are too slow the first time; the second time the user stops it."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.clients = SimpleNamespace(addresses=["a"], release=lambda: None)

    def measure(self, load: LoadPoint, more_clients: bool, watch: ProbeWatch | None) -> Attempt:
        self.seeds.append(load.seed)
        if len(self.seeds) > 1:
            return Attempt()
        slow = Failure(FailureKind.CLIENT_BOUND, "The client was slow.")
        return Attempt(
            failure=slow, loaded=Loaded(span=UnixSpan(1, 2), requests=requests(request(0, 1.0)))
        )


def endpoint_plan(more: str = "") -> Plan:
    file = SEARCH.replace(
        "engine: vllm, hardware: h100", "engine: endpoint, url: 'http://127.0.0.1:9'"
    )
    file = file.replace(
        "hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3.6}}}}\n",
        "",
    )
    text = file.format(slos="{fast: {ttft: 500ms, attainment: 0.8}}", control="request_rate")
    return make_plan(parse_experiment(text + more, "x.yaml"))


def test_a_client_bound_probe_is_repeated_with_other_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store, seeds = endpoint_plan(), Store.open(str(tmp_path), "x"), list[int]()
    for _ in range(2):
        measurer = BoundMeasurer()
        monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_, one=measurer: one)
        detected = EndpointDialect(Dialect("openai_completions", "/v1/completions"), None)
        CapacitySearch(
            plan=plan, target=Target("http://127.0.0.1:9", "m"), detected=detected, store=store
        ).run()
        seeds += measurer.seeds[:1]
        assert len(set(measurer.seeds)) == 2
    assert len(set(seeds)) == 2


class Hours(Clock):
    """Each probe takes 100 s of it."""

    seconds = 0.0

    def now_s(self) -> float:
        return self.seconds


class SlowMeasurer(BoundMeasurer):
    """Every probe holds, and ends when its search does or after 100 s."""

    def __init__(self, clock: Hours) -> None:
        super().__init__()
        self.clock, self.over = clock, list[bool]()

    def measure(self, load: LoadPoint, more_clients: bool, watch: ProbeWatch | None) -> Attempt:
        assert watch is not None
        self.clock.seconds += 100.0
        self.over.append(watch.over())
        rows = requests(*(request(index, 10.0 * index) for index in range(400)))
        return Attempt(
            verdict=PointVerdict("valid", [], {}), loaded=Loaded(span=UnixSpan(1, 2), requests=rows)
        )


def of_endpoint(
    tmp_path: Path, clock: Clock, told: list[Any], more: str = "", **given: Any
) -> CapacitySearch:
    return CapacitySearch(
        plan=endpoint_plan(more),
        target=Target("http://127.0.0.1:9", "m"),
        detected=EndpointDialect(Dialect("openai_completions", "/v1/completions"), None),
        store=Store.open(str(tmp_path), "x"),
        tell=told.append,
        clock=clock,
        **given,
    )


@pytest.mark.parametrize("by_user", [False, True])
def test_the_budget_or_the_user_ends_the_search_of_an_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_user: bool
) -> None:
    clock, told = Hours(), list[Any]()
    measurer = SlowMeasurer(clock)
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    more = "" if by_user else "budget: {wall: 250s}"
    outcome = of_endpoint(
        tmp_path, clock, told, more, stopped=lambda: by_user and clock.seconds > 250
    ).run()
    assert measurer.over == [False, False, True]
    assert len(outcome.probes) == 3
    assert outcome.claim.status == "budget"
    assert outcome.interrupted == by_user
    assert outcome.next is not None
    if by_user:
        assert outcome.next.words in told[-1].text
    else:  # 300 s of 250 s are over
        assert outcome.next.seconds <= 250
        assert "; next " not in told[-1].text


def test_what_comes_next_is_said_to_take_what_is_left_of_the_budget_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, told = Hours(), list[Any]()
    measurer = SlowMeasurer(clock)
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    of_endpoint(tmp_path, clock, told, "budget: {wall: 101s}").run()
    measured = [event for event in told if event.kind == "measured"]
    assert measured[0].text.endswith(", about 1 s")


def test_the_next_probe_is_the_first_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, levels = Hours(), list[float]()
    measurer = SlowMeasurer(clock)

    def measure(load: LoadPoint, more_clients: bool, watch: ProbeWatch | None) -> Attempt:
        clock.seconds += 100.0
        levels.append(load.level.value)
        late = np.random.default_rng(load.seed).random(2000) < 0.2 * (levels[-1] / 20) ** 3
        rows = (
            request(at, 10.0 * at, first_ms=10.0 * at + (900 if one else 5))
            for at, one in enumerate(late)
        )
        return Attempt(
            verdict=PointVerdict("valid", [], {}),
            loaded=Loaded(span=UnixSpan(1, 2), requests=requests(*rows)),
        )

    monkeypatch.setattr(measurer, "measure", measure)
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    outcome = of_endpoint(tmp_path, clock, [], "budget: {wall: 450s}").run()
    before = len(levels)
    of_endpoint(tmp_path, clock, [], "budget: {wall: 450s}").run()
    assert outcome.next is not None
    assert outcome.next.level.value == levels[before]


def test_a_budget_that_ends_before_a_repeat_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, measurer = Hours(), BoundMeasurer()

    def release() -> None:
        clock.seconds += 10.0

    measurer.clients.release = release
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    outcome = of_endpoint(tmp_path, clock, [], "budget: {wall: 5s}").run()
    assert len(measurer.seeds) == 1
    assert outcome.failure is None


@pytest.mark.parametrize("kind", [FailureKind.CLIENT_BOUND, FailureKind.NO_REQUEST_OK])
@pytest.mark.parametrize("by_user", [False, True])
def test_a_probe_that_fails_as_its_search_ends_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_user: bool, kind: FailureKind
) -> None:
    clock, told = Hours(), list[Any]()
    measurer = SlowMeasurer(clock)
    whole = measurer.measure

    def measure(load: LoadPoint, more_clients: bool, watch: ProbeWatch | None) -> Attempt:
        attempt = whole(load, more_clients, watch)
        return (
            attempt
            if clock.seconds < 150
            else replace(attempt, failure=Failure(kind, "Too young."))
        )

    monkeypatch.setattr(measurer, "measure", measure)
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    stopped = {"stopped": lambda: clock.seconds > 150} if by_user else {}
    search = of_endpoint(
        tmp_path, clock, told, "" if by_user else "budget: {wall: 150s}", **stopped
    )
    outcome = search.run()
    assert len(outcome.probes) == 1
    assert outcome.failure is None
    assert outcome.interrupted == by_user
    assert [commit.status for commit in search.store.commits()] == ["ok"]
    assert "left out: Too young." in told[-1].text


class SlowClientsRun(QueueRun):
    """Above 10 requests/s every client is late, however many there are."""

    def reports(self) -> dict[int, ClientReport]:
        late_ms = 50.0 if self.point.level.value > 10 else 0.0
        reports = super().reports()
        return {
            index: replace(report, stats=replace(report.stats, loop_lag_p99_ms=late_ms))
            for index, report in reports.items()
        }


def test_a_search_is_client_bound_where_all_clients_are_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {True: FakeRun, False: SlowClientsRun}
    monkeypatch.setattr(simulation, "FakeRun", lambda *args: kinds[args[1].keep_replies](*args))
    world, store = world_of(client_limit=4), Store.open(str(tmp_path), "x")
    sweep(world, searching(), store)
    claim = last_claims(world)["fast"]
    assert claim["status"] == "client_bound"
    assert 8 <= claim["claim"] <= 10
    assert claim["high"] is None
    assert world.client_counts == [1, 2, 4], "more clients are tried first"
    rows = store.read("points", include_failed=True).to_pylist()
    assert {row["validity"] for row in rows if row["level"] > 10} == {"client_bound"}
    (stored,) = capacity_documents(
        of := StoredExperiment(store), of.points(*of.slos).current, of.slos
    )
    assert stored.claim.status == "client_bound"


class DeadlyRun(QueueRun):
    """From 10 requests/s on the engine dies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.point.level.value >= 10:
            self.world.engine_death = EngineDeath(
                self.world.clock.now_s(), Failure(FailureKind.DIED, "It died.")
            )


def test_a_level_at_which_the_engine_dies_twice_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {True: FakeRun, False: DeadlyRun}
    monkeypatch.setattr(simulation, "FakeRun", lambda *args: kinds[args[1].keep_replies](*args))
    world, store = world_of(), Store.open(str(tmp_path), "x")
    sweep(world, searching(), store)
    claim, rows = (
        last_claims(world)["fast"],
        store.read_manifests("points", store.manifests("point")).to_pylist(),
    )
    died = Counter(row["level"] for row in rows if row["failure_kind"] == "died")
    assert claim["high"] == min(died) < 16
    assert set(died.values()) == {2}
    again = world_of()
    assert sweep(again, searching(), store).counts.measured == 0
    assert steps(again)["start"] == 0
    sweep(again, searching(), store, retry_failed=True)
    assert steps(again)["start"] > 0


def test_all_workloads_share_the_change_to_the_second_start(tmp_path: Path) -> None:
    text = SEARCH.format(slos="{fast: {ttft: 500ms, attainment: 0.8}}", control="request_rate")
    text = text.replace(
        "output_tokens: 1}]", "output_tokens: 1}, {name: v, input_tokens: 5, output_tokens: 1}]"
    )
    world, store = world_of(), Store.open(str(tmp_path), "x")
    sweep(world, make_plan(parse_experiment(text + "repeats: 2\nstarts: 2", "x.yaml")), store)
    assert steps(world)["start"] == 2
    assert {(row["workload"], row["start"]) for row in store.read("points").to_pylist()} == {
        ("w", 0), ("w", 1), ("v", 0), ("v", 1)
    }  # fmt: skip


class SpoiltMeasurer(BoundMeasurer):
    """Every probe has answers to all requests, and this verdict."""

    def __init__(self, validity: str) -> None:
        super().__init__()
        self.validity, self.probes = validity, 0

    def measure(self, load: LoadPoint, more_clients: bool, watch: ProbeWatch | None) -> Attempt:
        self.probes += 1
        rows = requests(*(request(index, 100.0 * index) for index in range(400)))
        return Attempt(
            verdict=PointVerdict(self.validity, ["something was wrong"], {}),
            loaded=Loaded(span=UnixSpan(1, 2), requests=rows),
        )


@pytest.mark.parametrize("validity", [one for one in Validity if one.ends_search is EndsSearch.YES])
def test_a_search_ends_at_the_first_verdict_that_no_other_load_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validity: Validity
) -> None:
    measurer, told = SpoiltMeasurer(validity), list[Any]()
    monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_: measurer)
    outcome = of_endpoint(tmp_path, Hours(), told).run()
    assert measurer.probes == 1
    assert outcome.claim.status == validity
    assert outcome.claim.claim is None
    assert outcome.next is None
    assert f"the search ends, {validity}: " in told[-1].text
    again = of_endpoint(tmp_path, Hours(), told).run()
    assert (measurer.probes, again.claim.status) == (1, validity), "nothing new is known"


def test_lumps_end_a_search_only_where_times_between_tokens_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, probes in (("ttft: 500ms", 3), ("tpot: 500ms", 1)):
        measurer, told = SpoiltMeasurer(Validity.STREAM_BUFFERED), list[Any]()
        monkeypatch.setattr(CapacitySearch, "_measurer", lambda *_, one=measurer: one)
        search = of_endpoint(
            tmp_path / limit[:4], Hours(), told, stopped=lambda one=measurer: one.probes >= 3
        )
        slo = Slo.model_validate({limit[:4]: 0.5, "attainment": 0.8})
        search.plan = search.plan.model_copy(update={"slos": (slo,)})
        search.run()
        assert measurer.probes == probes


def test_a_sweep_whose_engine_answers_noise_probes_once_per_start(tmp_path: Path) -> None:
    noise = tuple(simulation.reply(at, 7, 7, 7, 7) for at in range(8))
    world, store = world_of(replies=[noise] * 4), Store.open(str(tmp_path), "x")
    report = sweep(world, searching(), store)
    assert (report.counts.measured, len(world.loads)) == (1, 1)
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos)
    (capacity,) = capacity_documents(experiment, points.current, experiment.slos)
    assert (capacity.claim.status, capacity.claim.claim) == ("broken_output", None)
    (comparison,) = experiment.comparisons(points, experiment.slos[0])
    remedies = remedy_texts(comparison)
    assert "change " in remedies[-1]
    assert "search" not in " ".join(remedies), "no further search tells anything"
