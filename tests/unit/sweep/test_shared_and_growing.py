"""Sweeps on clusters that grow and that others use: the autoscaler packs what is asked for as Ray's
does.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind, Occupied, ResultsError
from orchestrator.cluster.base import (
    Bundle,
    Footprint,
    Growth,
    Machine,
    NodeType,
    PlacementDeadline,
    RefusedNodes,
)
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results import blobs
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.admission import Queue, Spending, Waiting, worth_adding
from orchestrator.sweep.budget import SweepBudget
from orchestrator.sweep.resource_request import ResourceRequest
from tests.unit.sweep.simulation import (
    EXPERIMENT,
    Placed,
    VirtualClock,
    World,
    node,
    outcomes,
    plan_of,
    sweep,
)
from tests.unit.sweep.sweeps import event_texts

JOINS_S = 180.0
ON_CORES = """
version: 1
name: x
model: some-org/some-model
hardware: {mine: {accelerator: cpu}}
deployments: {engine: vllm, hardware: mine, vary: [{cases: [CASES]}]}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [1, 2, 4, 8]}, duration: 60s, warmup: 10s}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "x")


@dataclass
class Packing(World):
    """Its autoscaler adds nodes of one type, as few as hold what is asked for beside the nodes that
    are ``taken``. Others hold ``others`` in Ray until ``freed_s``.
    """

    gpus: int = 8
    cpus: float = 96.0
    others: frozenset[str] = frozenset()
    freed_s: float = 1e9
    joined_s: list[float] = field(default_factory=list)
    kept_off: list[set[str]] = field(default_factory=list)  # while something was asked for

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self.kept_off += [set(taken)] if footprints else []
        self.desired = list(footprints)
        coming = [[self.gpus, self.cpus] for _ in range(self._coming)]
        free = [[one.gpus, one.cpus] for one in self.nodes if one.node_id not in taken] + coming
        for footprint in sorted(self.desired, key=lambda one: -len(one.bundles)):
            used: set[int] = set()
            for bundle in footprint.bundles:
                fits = (
                    at
                    for at, (gpus, cpus) in enumerate(free)
                    if gpus >= bundle.gpus and cpus >= bundle.cpus
                )
                if (at := next((at for at in fits if at not in used), None)) is None:
                    at = len(free)
                    free.append([self.gpus, self.cpus])
                    self._coming += 1
                    made = node(f"grown{len(self.joined_s) + self._coming}", self.gpus, self.cpus)
                    self.clock.at(self.clock.now_s() + JOINS_S, partial(self._join, made))
                free[at][0] -= bundle.gpus
                free[at][1] -= bundle.cpus
                used.add(at)

    def _join(self, machine: Machine) -> None:
        super()._join(machine)
        self.joined_s.append(self.clock.now_s())

    def place(
        self, launch_id: str, footprint: Footprint, nodes: Sequence[str] | None, patience: object
    ) -> Placed:
        assert isinstance(patience, PlacementDeadline)
        began_s = self.clock.now_s()
        while (held := self.others.intersection(nodes or ())) and self.clock.now_s() < self.freed_s:
            self.clock.sleep(1.0)
            patience.check(self.clock.now_s() - began_s, footprint, partial(frozenset, held))
        return super().place(launch_id, footprint, nodes, patience)


def packing(nodes: Sequence[Machine] = (), **given: Any) -> Packing:
    return Packing(VirtualClock(), [node("head", 0, 0.0), *nodes], **({"autoscaler": True} | given))


def cases(count: int, gpus: int = 1) -> str:
    return ", ".join(
        f"{{tensor_parallel_size: {gpus}, max_num_seqs: {one}}}" for one in range(1, count + 1)
    )


def on_cores(count: int) -> Plan:
    cases = ", ".join(f"{{max_num_seqs: {sequences}}}" for sequences in range(1, count + 1))
    return make_plan(parse_experiment(ON_CORES.replace("CASES", cases), "x.yaml"))


@pytest.mark.parametrize("labels", [{}, None])
def test_exclusive_launches_on_cores_get_all_their_nodes_at_once(
    labels: dict[str, str] | None, store: Store
) -> None:
    """One core each: asked for as that, all would go to one node."""
    world = packing(
        gpus=0,
        cpus=8.0,
        known_growth=Growth(types=(NodeType("c8", 0, 8.0, 9, labels), NodeType("g", 8, 96.0, 9))),
    )
    assert sweep(world, on_cores(6), store).counts.measured == 24
    assert world.joined_s == [JOINS_S] * 6


H8 = Growth(types=(NodeType("head", 0, 4.0, 0, {}), NodeType("h8", 8, 96.0, 9, {})))


def unsized(cases: str, more: str = "") -> Plan:
    """On hardware that does not say how many GPUs its nodes have."""
    experiment = EXPERIMENT.replace(", gpus_per_node: 8", "").format(cases=cases, levels="8")
    return make_plan(parse_experiment(experiment + more, "x.yaml"))


def test_gpu_nodes_are_as_large_as_the_type_that_may_be_added(store: Store) -> None:
    """All come at once, and a launch of 8 replicas with a GPU each takes one, not 8."""
    world = packing(known_growth=H8)
    assert sweep(world, unsized(cases(6)), store).counts.measured == 6
    assert world.joined_s == [JOINS_S] * 6
    world = packing(known_growth=H8)
    replicas = unsized("{tensor_parallel_size: 1, replicas: 8}")
    assert (
        sweep(world, replicas, Store.open(f"{store.uri}/one", "x"), most_nodes=1).counts.measured
        == 1
    )
    assert len(world.joined_s) == 1
    world = packing(known_growth=H8)
    shared = unsized(cases(32), more="isolation: shared")
    sweep(world, shared, Store.open(f"{store.uri}/shared", "x"), most_nodes=4)
    assert world.joined_s == [JOINS_S] * 4


def test_larger_nodes_are_asked_for_where_small_ones_would_be_too_many() -> None:
    need = ResourceRequest(((Bundle(1, 1.0),),) * 8)
    small, large = NodeType("g1", 1, 8.0, 99, {}), NodeType("h8", 8, 96.0, 9, {})
    assert [need.least_nodes([], (large, small), most) for most in (8, 2, 0.5)] == [8, 1, 1]
    assert need.nodes_worth_adding([], (large, small)) == [Footprint((Bundle(1, 1.0),))] * 8
    assert need.nodes_worth_adding([], (large, small), 2) == [Footprint((Bundle(8, 8.0),))]
    assert need.least_nodes([node("head", 1)], (large,), 2) == 1, "nor does a small head set it"
    few_cores = (NodeType("h8", 8, 6.0, 9, {}),)
    assert need.nodes_worth_adding([], few_cores) == [
        Footprint((Bundle(8, 6.0),)),
        Footprint((Bundle(8, 2.0),)),
    ]


def test_a_present_node_larger_than_all_types_sets_no_size() -> None:
    need = ResourceRequest(((Bundle(2, 1.0),),))
    standing = [node("large", 16), node("other", 2, pool="a")]
    assert need.nodes_worth_adding(standing[:1], H8.types) == [Footprint((Bundle(8, 1.0),))]
    assert need.nodes_worth_adding(standing[:1]) == [Footprint((Bundle(16, 1.0),))]
    assert need.nodes_worth_adding(standing, H8.types) == [Footprint((Bundle(2, 1.0),))]


def test_node_types_that_are_never_added_set_no_size(
    store: Store,
) -> None:
    types = (NodeType("head", 0, 4.0, 0, {}), NodeType("worker", 0, 8.0, 9, {}))
    world = packing([node("large", 0, 96.0)], gpus=0, cpus=8.0, known_growth=Growth(types=types))
    sweep(world, on_cores(6), store)
    assert world.joined_s == [JOINS_S] * 5
    need = ResourceRequest(((Bundle(0, 4.0),),))
    assert need.nodes_worth_adding([node("large", 0, 96.0)]) == [Footprint((Bundle(0, 4.0),))], (
        "others may not hold more"
    )


def test_launches_that_share_nodes_count_as_the_nodes_they_share(store: Store) -> None:
    """32 with a GPU each are 4 nodes with 8, not 32."""
    world = packing()
    sweep(world, plan_of(cases(32), more="isolation: shared"), store, most_nodes=4)
    assert world.joined_s == [JOINS_S] * 4
    few = packing()
    sweep(
        few,
        plan_of(cases(32), more="isolation: shared"),
        Store.open(f"{store.uri}/few", "x"),
        most_nodes=3,
    )
    assert few.joined_s == [JOINS_S] * 3


def test_launches_for_other_accelerators_count_as_other_nodes() -> None:
    h100, a100 = (
        ResourceRequest(((Bundle(4, 1.0),),), exclusive=False, gpus_per_node=8, accelerator=name)
        for name in ("H100-80GB", "A100-80GB")
    )
    queue = Queue([Waiting("a", h100, 1.0), Waiting("b", a100, 1.0), Waiting("c", h100, 1.0)])
    assert [job.key for job in worth_adding(queue, (), (), Spending(1e9, 1e9), most_nodes=1)] == [
        "a",
        "c",
    ]


def test_nodes_are_asked_for_beside_one_that_rests(store: Store) -> None:
    """Else the cluster would think that it has what is asked for."""
    bad = Failure(FailureKind.PORT_TAKEN, "A port is taken.")
    world = packing([node("bad")], fails={"ready": [bad, bad, None]})
    assert sweep(world, plan_of(cases(1, gpus=8)), store).counts.measured == 1
    assert all("bad" in taken for taken in world.kept_off)
    assert len(world.joined_s) == 1


def test_nodes_that_others_hold_in_ray_are_no_failure(store: Store) -> None:
    world = packing([node("a"), node("b")], others=frozenset("ab"))
    report = sweep(world, plan_of(cases(2, gpus=8)), store)
    assert (report.counts.measured, outcomes(store)) == (2, [("ok", None)] * 2)
    assert world.joined_s == [pytest.approx(60 + JOINS_S, abs=5)] * 2
    assert all("others hold it" in text for text in event_texts(world, "occupied"))
    assert not event_texts(world, "node_rests")


def test_a_gang_that_waits_for_one_node_keeps_no_others(
    store: Store,
) -> None:
    world = packing(
        [node(name) for name in "abcd"], others=frozenset("d"), freed_s=7200.0, autoscaler=False
    )
    gang = "{tensor_parallel_size: 8, pipeline_parallel_size: 4}"
    report = sweep(world, plan_of(f"{cases(6, gpus=8)}, {gang}"), store)
    assert (report.counts.measured, report.counts.failed) == (7, 0)
    kinds = [one.kind if isinstance(one, Event) else one.name for one in world.events]
    sixth = [at for at, kind in enumerate(kinds) if kind == "measured"][5]
    assert kinds[:sixth].count("place") <= 6 + 6, (
        "it tries again in between, and waits a minute each time"
    )
    waited = kinds.count("occupied")
    assert kinds.count("launch") == 7 + waited, (
        "told when it is admitted first, and again when it has its nodes"
    )


def test_nodes_that_others_hold_in_ray_are_waited_for_without_limit(store: Store) -> None:
    world = packing(
        [node("a"), node("b")], others=frozenset("ab"), freed_s=7200.0, autoscaler=False
    )
    report = sweep(world, plan_of(cases(2, gpus=8)), store)
    assert (report.counts.measured, outcomes(store)) == (2, [("ok", None)] * 2)
    assert event_texts(world, "node_rests") == []
    assert event_texts(world, "paused") == []
    assert len(event_texts(world, "occupied")) == 2
    assert world.clock.now_s() < 7200 + 60 + 120
    assert report.overhead < 0.05, "the waiting is not its own"


def test_each_wait_for_hosts_of_others_is_told_once(store: Store) -> None:
    died = Failure(FailureKind.DIED_AT_START, "it died")
    held = [Occupied("x holds it")] * 3 + [None] + [Occupied("y holds it")] * 4
    world = packing(
        [node("a")], autoscaler=False, fails={"lease": [*held, None], "ready": [died, None]}
    )
    assert sweep(world, plan_of(cases(1, gpus=8)), store).counts.measured == 1
    kinds = ("launch", "occupied", "retry", "measured")
    events = [one for one in world.events if isinstance(one, Event) and one.kind in kinds]
    assert [one.kind for one in events] == [
        *("launch", "occupied", "launch", "retry"),  # the first start
        *("launch", "occupied", "launch", "measured"),
    ]
    assert ["x holds" in one.text for one in events if one.kind == "occupied"] == [True, False]


def test_a_launch_that_waits_when_the_user_stops_is_told_once(store: Store) -> None:
    world = packing([node("a")], others=frozenset("a"), freed_s=7200.0, autoscaler=False)
    # in its second minute in Ray's queue
    sweep(world, plan_of(cases(1, gpus=8)), store, interrupt_s=90.0)
    assert (len(event_texts(world, "launch")), len(event_texts(world, "occupied"))) == (1, 1)


def test_a_host_that_another_sweep_holds_is_none_that_will_do(store: Store) -> None:
    world = packing([node("a")], fails={"lease": [Occupied("held")] * 4 + [None]})
    assert sweep(world, plan_of(cases(1, gpus=8)), store).counts.measured == 1
    assert world.kept_off, "another one was asked for"
    assert all("a" in taken for taken in world.kept_off)


def test_why_nodes_do_not_come_is_told_also_where_some_are_there(store: Store) -> None:
    refused = Growth(refused={"h8": RefusedNodes(3, "VcpuLimitExceeded")})
    world = World(VirtualClock(), [node("a")], autoscaler=True, known_growth=refused)
    assert sweep(world, plan_of(cases(3, gpus=8)), store).counts.measured == 3
    assert event_texts(world, "autoscaler") == [refused.why_no_nodes()]


@pytest.mark.parametrize("homeless", [1, 4])
def test_a_lost_storage_ends_a_sweep_that_finds_no_nodes(
    homeless: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(VirtualClock(), [node("a", 1)])

    write = blobs._write_beside_and_rename

    def refuses(path: str, data: bytes) -> None:
        if world.clock.now_s() > 1:
            raise OSError(errno.EIO, "the storage refuses")
        write(path, data)

    monkeypatch.setattr(blobs, "_write_beside_and_rename", refuses)
    with pytest.raises(ResultsError, match="the same command again"):
        sweep(world, plan_of(cases(homeless, gpus=8)), store, storage_timeout_s=300.0)
    assert world.clock.now_s() < 2 * 300 + 60


def test_what_waits_is_asked_seldom_whether_the_budget_still_pays_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    pays = SweepBudget.over
    world = World(VirtualClock(), [node("a")])

    def counted(budget: SweepBudget, *args: Any, **given: Any) -> str | None:
        asked.append(world.clock.now_s())
        return pays(budget, *args, **given)

    monkeypatch.setattr(SweepBudget, "over", counted)
    sweep(world, plan_of(cases(20, gpus=8), more="budget: {gpu_hours: 1000}"), store)
    assert len(asked) < 20 * world.clock.now_s() / 10


def test_a_request_not_yet_asked_for_is_not_given_up(store: Store) -> None:
    """No more than 64 footprints are asked for at once."""
    world, asked = World(VirtualClock(), [], autoscaler=True), list[int]()
    for at_s in (5.0, 905.0):
        world.clock.at(at_s, lambda: asked.append(len(world.desired)))
    plan = plan_of("{replicas: 40}, {replicas: 41}", more="isolation: shared")
    assert sweep(world, plan, store).counts.failed == 2
    assert sorted(asked) == [40, 41]
    assert 1800 <= world.clock.now_s() < 1810


def test_nodes_are_not_compared_with_one_another_to_ask_for_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,000 of them that took 60 ms each time."""
    compared, equal = list[object](), Machine.__eq__

    def counts(one: Machine, other: object) -> bool:
        compared.append(other)
        return equal(one, other)

    world = packing([node(f"n{at}", 4) for at in range(100)])
    monkeypatch.setattr(Machine, "__eq__", counts)
    assert sweep(world, plan_of(cases(1, gpus=8)), store).counts.measured == 1
    assert len(compared) < 100


@dataclass
class Leased(Packing):
    """Others lease the hosts ``leased`` until ``freed_s``."""

    leased: frozenset[str] = frozenset()

    def lease(self, node: str) -> None:
        super().lease(node)
        if node in self.leased and self.clock.now_s() < self.freed_s:
            raise Occupied(f"host {node} is held")


def leased(*names: str, **given: Any) -> Leased:
    return Leased(VirtualClock(), [node(name) for name in names], **given)


def test_a_gang_in_line_leaves_its_other_nodes_to_its_sweep(
    store: Store,
) -> None:
    world = leased("a", "b", "c", "d", leased=frozenset("d"), freed_s=7200.0)
    gang = "{tensor_parallel_size: 8, pipeline_parallel_size: 4}"
    report = sweep(world, plan_of(f"{cases(6, gpus=8)}, {gang}"), store)
    assert (report.counts.measured, report.counts.failed) == (7, 0)
    kinds = [one.kind if isinstance(one, Event) else one.name for one in world.events]
    sixth = [at for at, kind in enumerate(kinds) if kind == "measured"][5]
    assert kinds[:sixth].count("place") <= 6 + 4
    assert kinds[sixth:].count("place") == 1, "with nothing else to do it stays in line"
    assert 7200 <= world.clock.now_s() < 7200 + 100
    assert report.overhead < 0.05


def test_a_launch_in_line_moves_to_a_node_added_for_it(store: Store) -> None:
    world = leased("a", leased=frozenset("a"), autoscaler=True)
    assert sweep(world, plan_of(cases(1, gpus=8)), store).counts.measured == 1
    assert world.joined_s[0] == pytest.approx(JOINS_S, abs=5)
    assert world.clock.now_s() < JOINS_S + 120
