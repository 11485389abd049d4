"""Sweeps whose searches for capacities race: engines are queues with as many slots as
``max_num_seqs`` says.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.capacity.claim import Claim, claim_of
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.capacity.race import LevelsToEqual
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.sequential_test import Evidence, LevelVerdict
from orchestrator.engines.command import Node
from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report.as_json import answer_json
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.answer import answer_document
from orchestrator.report.documents.capacity import capacity_documents
from orchestrator.report.selection import ExperimentLimits, answers
from orchestrator.report.written_form import TextForm
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.competition import race_of
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.roster import Place
from orchestrator.sweep.sweep import Sweep
from tests.unit.sweep import simulation
from tests.unit.sweep.simulation import FakeAgent, FakeRun, World, node, steps, sweep, world_of
from tests.unit.sweep.test_find_capacity import QueueRun

RACE = """
version: 1
name: x
model: some-org/some-model
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8{price}}}}}
deployments: {{engine: vllm, hardware: h100, vary: [{{cases: [{cases}]}}]}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 1}}]
load: {{search: capacity, control: request_rate, duration: 60s{load}}}
slos: {{fast: {{ttft: 500ms, attainment: 0.8}}}}
"""
SLOTS = "{max_num_seqs: 2}, {max_num_seqs: 8}, {max_num_seqs: 4}"
WINNER = "seqs=8"


class Agent(FakeAgent):
    """Its ports say which node it is on."""

    slots: ClassVar[dict[int, int]] = {}

    def reserve_ports(self, count: int) -> list[int]:
        return list(range(21000 + 100 * ord(self.node), 21000 + 100 * ord(self.node) + count))

    def start(
        self, settings: EngineSettings, hardware: object, node: Node, *more: object
    ) -> tuple[str, ...]:
        self.slots[self.reserve_ports(1)[0]] = settings.max_num_seqs or 1
        return super().start(settings, hardware, node, *more)


class SlotsRun(QueueRun):
    @property
    def slots(self) -> int:
        return Agent.slots[urlsplit(self.point.targets[0].url).port or 0]


@pytest.fixture(autouse=True)
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "FakeAgent", Agent)
    monkeypatch.setattr(
        simulation,
        "FakeRun",
        lambda *args: FakeRun(*args) if args[1].keep_replies else SlotsRun(*args),
    )


def racing(load: str = "", cases: str = SLOTS, price: str = "") -> Plan:
    return make_plan(parse_experiment(RACE.format(load=load, cases=cases, price=price), "x.yaml"))


def probes(store: Store) -> list[tuple[str, float, int]]:
    return [
        (row["deployment_id"], row["level"], row["repeat"])
        for row in store.read("points").to_pylist()
    ]


def last_claims(world: World) -> dict[str, dict[str, Any]]:
    """By deployment, of the last that was told of each."""
    found = [one for one in world.events if isinstance(one, Event) and one.kind == "search"]
    return {one.deployment: dict(one.data)["fast"] for one in found}


def answer_of(experiment: StoredExperiment) -> Any:
    """The JSON of its only comparison."""
    rankings = answers([ExperimentLimits(experiment, experiment.slos)])
    (answer,) = cast("list[Any]", answer_json(answer_document(rankings.comparisons))["comparisons"])
    return answer


def capacities(store: Store) -> str:
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos).current
    documents = list(capacity_documents(experiment, points, experiment.slos))
    return "\n".join(capacities_text(documents, TextForm("--format json")))


def test_the_losers_of_a_race_fail_at_what_the_winner_holds(tmp_path: Path) -> None:
    world, store, plan = world_of(), Store.open(str(tmp_path), "x"), racing()
    report = sweep(world, plan, store)
    found, counted = last_claims(world), Counter(name for name, *_ in probes(store))
    labels = {one.id: one.label for one in plan.deployments}
    winner = next(claim for name, claim in found.items() if WINNER in name)
    assert report.counts.failed == 0
    assert len(counted) == 3  # everybody is probed
    assert winner["claim"] is not None
    assert winner["status"] in ("converged", "cliff", "unresolved")
    losers = {
        labels[name]: number for name, number in counted.items() if WINNER not in labels[name]
    }
    assert sum(losers.values()) < counted[next(name for name in counted if WINNER in labels[name])]
    experiment = StoredExperiment(store)
    answer = answer_of(experiment)
    assert WINNER in answer["ranking"][0]["deployment"]
    assert capacities(store).count("outraced") == 2
    assert sum("outraced" in one["reason"] for one in answer["left_out"]) == 2
    assert not any(label in answer["why"] for label in losers)  # whoever was beaten is no doubt
    assert sweep(world_of(), racing(), store).counts.measured == 0


def test_on_a_full_grid_everybody_is_searched_to_the_end(tmp_path: Path) -> None:
    world, store = world_of(), Store.open(str(tmp_path), "x")
    load = ", full_grid: true, precision: 0.3"
    sweep(world, racing(load, "{max_num_seqs: 4}, {max_num_seqs: 8}"), store)
    assert all(one["claim"] is not None for one in last_claims(world).values())
    assert steps(world)["start"] == 2


def test_side_by_side_they_hear_of_each_other_while_they_run(tmp_path: Path) -> None:
    world, store = world_of([node("a"), node("b"), node("c")]), Store.open(str(tmp_path), "x")
    sweep(world, racing(), store)
    assert capacities(store).count("outraced") == 2
    assert world.most_held == 3
    # nobody waits
    assert not any(isinstance(one, Event) and one.kind == "gives_way" for one in world.events)


def test_a_race_that_is_killed_goes_on_without_repeating_a_probe(tmp_path: Path) -> None:
    store, rounds = Store.open(str(tmp_path), "x"), 0
    while sweep(world_of(), racing(), store, interrupt_s=200.0).interrupted:
        rounds += 1
    assert rounds
    assert max(Counter(probes(store)).values()) == 1
    assert (
        max(Counter(row["measurement_id"] for row in store.read("points").to_pylist()).values())
        == 1
    )
    assert capacities(store).count("outraced") == 2


def launched(world: World) -> list[str]:
    return [
        one.deployment for one in world.events if isinstance(one, Event) and one.kind == "launch"
    ]


def test_who_gives_way_waits_for_the_risky_ones_too(tmp_path: Path) -> None:
    plan, world = racing("", "{max_num_seqs: 8}, {max_num_seqs: 4}"), world_of()
    first, second = plan.deployments
    kinds = (first, "planned"), (second, "risky")
    plan = plan.with_deployments(
        [one.model_copy(update={"status": status}) for one, status in kinds]
    )
    sweep(world, plan, Store.open(str(tmp_path), "x"))
    assert launched(world)[:2] == [first.label, second.label]


def test_those_that_were_beaten_come_back_when_the_leader_is_given_up(tmp_path: Path) -> None:
    cases = "{tensor_parallel_size: 8, max_num_seqs: 16}, {max_num_seqs: 4}"
    plan = racing(", objective: deployment, precision: 0.3", cases)
    store, beaten, world = Store.open(str(tmp_path), "x"), plan.deployments[1].label, world_of()

    # later the leader has a claim, with which it beats others for good
    def told(item: Event | Phase) -> None:
        if isinstance(item, Event) and item.kind == "search" and item.data["fast"]["low"]:
            context.stop.set()

    context = SweepContext(plan, world, store, told, clock=world.clock)  # type: ignore[arg-type]
    assert Sweep(context).run().interrupted
    assert capacities(store).count("outraced") == 1
    world = world_of([node("a", gpus=1)])  # nothing holds the leader any more
    assert sweep(world, plan, store).counts.failed == 1
    assert launched(world) == [beaten]
    assert last_claims(world)[beaten]["claim"] is not None


def level_of(
    level: float, verdict: LevelVerdict | None, share: float, whole: int = 1
) -> LevelEvidence:
    evidence = (Evidence(3000, 0.95, 150.0, 20.0, 0, 0),)
    return LevelEvidence(
        level, whole, verdict, False, share, 3000, evidence, whole, False, False, False, 20.0
    )


def showing(work: DeploymentWork, *levels: LevelEvidence) -> None:
    """As if these had been probed."""
    search = work._searches[0]
    strategy = cast("Capacity", search.strategy)
    search.told_repeats.add((Level(control="request_rate", value=levels[0].level), 0))
    strategy._tiers[0]._claim, strategy._wanted = claim_of(levels, 0.8), None
    strategy._tiers[0]._is_over = None
    work._go_on()


def test_a_deployment_that_only_waits_is_not_called_outraced(
    tmp_path: Path,
) -> None:
    world, plan = world_of(), racing()
    sweeping = Sweep(
        SweepContext(
            plan, world, Store.open(str(tmp_path), "x"), world.events.append, clock=world.clock
        )
    )  # type: ignore[arg-type]
    works = [DeploymentWork(plan, one, {}, race=sweeping._race.race) for one in plan.runnable()]
    for work in works:
        sweeping._roster.put(work, Place.QUEUED)
    for work, high in zip(works, (10.99, 12.34, 15.54), strict=True):
        showing(work, level_of(8.0, "holds", 0.99), level_of(high, "fails", 0.6))
    sweeping._follow_race()
    assert [one.key for one in sweeping._queue.jobs] == [one.deployment.id for one in works[::-1]]
    showing(works[0], level_of(10.08, "holds", 0.99), level_of(10.99, "fails", 0.6))
    sweeping._follow_race()
    assert [one.key for one in sweeping._queue.jobs] == [
        works[at].deployment.id for at in (2, 1, 0)
    ]
    assert not world.events
    # the first could hold more than the second knows it does, and there the second was probed
    # enough; the third fails
    showing(works[0], level_of(8.98, "holds", 0.99), level_of(17.45, None, 0.81))
    showing(
        works[1],
        level_of(8.0, "holds", 0.99),
        level_of(15.54, None, 0.79, whole=8),
        level_of(16.0, "fails", 0.6),
    )
    showing(works[2], level_of(8.0, None, 0.81), level_of(8.98, "fails", 0.6))
    sweeping._follow_race()
    assert list(sweeping._roster.idle) == [one.deployment.id for one in works[1:]]
    assert [(one.kind, one.deployment) for one in world.events] == [
        ("outraced", works[2].deployment.label)
    ]


@pytest.mark.parametrize("calls", range(1, 9))
def test_what_others_tell_in_between_does_not_end_a_sweep(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = racing()
    first, second, _ = plan.runnable()
    race = race_of(plan)
    assert race is not None
    work = DeploymentWork(plan, first, {}, race=race)
    strategy = cast("Capacity", work._searches[0].strategy)
    failing = LevelEvidence(16.0, 1, "fails", False, 0.1, 100, (), 0, False, False, True, 20.0)
    strategy._tiers[0]._claim, strategy._wanted = (
        Claim(None, 0.0, 16.0, "budget", (failing,)),
        None,
    )
    looks, to_equal = itertools.count(1), race.to_equal

    def looked(*of: str) -> LevelsToEqual:
        if next(looks) == calls:
            race.tell(second.id, "w", "fast", Claim(None, 16.0, math.inf, "budget", ()), 16.0)
        return to_equal(*of)

    monkeypatch.setattr(race, "to_equal", looked)
    for level in (1.0, 2.0, 3.0, 4.0):  # each is news
        race.tell(second.id, "w", "fast", Claim(None, level, math.inf, "budget", ()), level)
        work.follow_race()
    assert next(looks) > 3
    race.tell(second.id, "w", "fast", Claim(None, 16.0, math.inf, "budget", ()), 16.0)
    work.follow_race()
    assert work.next is None


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("search: capacity, control: request_rate, objective: usd", "needs the price"),
        ("levels: {request_rate: [1]}, full_grid: true", "has no use for"),
        ("levels: {request_rate: [1]}, max_deployments: 2", "has no use for"),
    ],
)
def test_what_has_no_meaning_is_refused(load: str, said: str) -> None:
    text = RACE.format(load="", cases=SLOTS, price="")
    text = text.replace("search: capacity, control: request_rate", load)
    with pytest.raises(ProblemsError, match=said):
        make_plan(parse_experiment(text, "x.yaml"))


def test_a_limited_race_starts_no_more_when_it_goes_on(tmp_path: Path) -> None:
    world, store, plan = world_of(), Store.open(str(tmp_path), "x"), racing(", max_deployments: 2")
    assert any("2 of 3 deployments are started" in note for note in PlanEstimate(plan).notes())
    assert sweep(world, plan, store, interrupt_s=200.0).interrupted
    later = world_of()
    assert not sweep(later, plan, store).interrupted
    assert {*launched(world), *launched(later)} == {one.label for one in plan.deployments[:2]}
    assert max(Counter(probes(store)).values()) == 1
    assert [
        one.data for one in later.events if isinstance(one, Event) and one.kind == "not_started"
    ] == [{"deployments": 1}]
    answer = answer_of(StoredExperiment(store))
    assert "not measured" in answer["why"]


def test_a_proposer_says_who_is_started_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last(settings: dict[str, Any], known: dict[str, float | None], seed: int) -> str:
        return [name for name in settings if name not in known][-1]

    monkeypatch.setattr("orchestrator.plan.loads.find_spec", lambda name: name)
    monkeypatch.setattr("orchestrator.capacity.proposing.propose", last)
    world, plan = world_of(), racing(", max_deployments: 2, proposer: optuna")
    sweep(world, plan, Store.open(str(tmp_path), "x"))
    assert list(dict.fromkeys(launched(world))) == [one.label for one in plan.deployments[:0:-1]]


def test_a_proposer_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.plan.loads.find_spec", lambda name: None)
    with pytest.raises(ProblemsError, match=r"optuna is not installed .*pip install .optuna>="):
        racing(", proposer: optuna")


def test_of_several_slos_only_those_that_are_asked_for_hold_others_up() -> None:
    text = RACE.format(load="", cases="{max_num_seqs: 2}, {max_num_seqs: 8}", price="")
    text = text.replace("slos: {", "slos: {slow: {ttft: 2s, attainment: 0.8}, ")
    plan = make_plan(parse_experiment(text, "x.yaml"))
    race = race_of(plan)
    assert race is not None
    first, second = plan.runnable()
    race.tell(second.id, "w", "fast", Claim(None, 8.0, math.inf, "budget", ()), 17.45)
    work = DeploymentWork(plan, first, {}, race=race)
    search = work._searches[0]
    strategy = cast("Capacity", search.strategy)
    search.told_repeats.add((Level(control="request_rate", value=8.98), 0))
    fails = level_of(10.99, "fails", 0.6)
    for tier, levels in zip(
        strategy._tiers, ((fails,), (level_of(8.98, None, 0.81), fails)), strict=True
    ):
        tier._claim, tier._is_over = claim_of(levels, 0.8), None
    strategy._wanted, strategy._probes = None, 1
    work._go_on()
    assert strategy.asking() == {"slow"}  # of the other one it waits for what the second holds
    assert race.to_equal(second.id, "w", "fast") == LevelsToEqual()
    race.tell(second.id, "w", "fast", Claim(None, 8.0, 9.0, "budget", ()), 8.0)
    work.follow_race()
    assert work.next is not None
    assert strategy.asking() == {"fast", "slow"}


@pytest.mark.parametrize(
    ("load", "expected"), [("", [12, 2, 2]), (", full_grid: true", [12, 12, 12])]
)
def test_a_race_is_estimated_as_one_search_and_a_few_probes(load: str, expected: list[int]) -> None:
    plan = racing(load)
    race = race_of(plan)
    assert [DeploymentWork(plan, one, {}, race=race).left for one in plan.deployments] == expected
    assert PlanEstimate(plan).totals().measurements == sum(expected)
