"""A sweep from its queue to its rows on a simulated cluster: order, failures, retries, resume,
budget, nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cluster.base import (
    ACCELERATOR_LABEL,
)
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.sweep import sweep as sweep_module
from orchestrator.sweep.admission import choose
from tests.unit.sweep.simulation import (
    node,
    outcomes,
    plan_of,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    TWO,
    growing,
    launches,
    points,
)


def test_named_hardware_runs_where_the_clusters_label_does_not_deny_it(store: Store) -> None:
    others = {
        name: node(name, **{ACCELERATOR_LABEL: kind})
        for name, kind in (("a", "A100"), ("b", "H100"))
    }
    report = sweep(world_of(list(others.values())), plan_of("{}, {tensor_parallel_size: 2}"), store)
    assert (report.counts.measured, report.counts.failed) == (2, 0)
    assert all('"node_id": "b"' in str(row.placement_json) for row in launches(store))


@pytest.mark.parametrize(("interrupt_s", "files", "points"), [(None, 4, 12), (200.0, 3, 8)])
def test_figures_of_points_that_end_together_are_one_file(
    store: Store, tmp_path: Path, interrupt_s: float | None, files: int, points: int
) -> None:
    cases = ", ".join(f"{{max_num_seqs: {most}}}" for most in range(1, 5))
    sweep(
        world_of([node(name) for name in "abcd"]),
        plan_of(cases, levels="1, 2, 4"),
        store,
        interrupt_s,
    )
    assert len(list((tmp_path / "x" / "computed").glob("*/attempts/*.parquet"))) == files
    assert sum(rows.num_rows for rows in Store.open(store.uri, "x").computed.scan([])) == points


def test_a_sweep_ends_with_what_the_cluster_raises_while_launches_are_chosen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(footprints: object, taken: object) -> None:
        if footprints:
            raise RuntimeError("the cluster is gone")

    world = growing(1, 1)
    monkeypatch.setattr(world, "desire", refuse)
    with pytest.raises(RuntimeError, match="the cluster is gone"):
        sweep(world, plan_of(TWO), store)


def test_nobody_is_looked_for_while_nothing_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def counted(*given: Any) -> Any:
        looks.append(given)
        return choose(*given)

    monkeypatch.setattr(sweep_module, "choose", counted)
    sweep(world_of([node("a")]), plan_of(TWO), store)
    # who starts first, and that nobody else can; the same when it ended, and when nobody is left
    assert len(looks) <= 6


def test_two_launches_never_share_a_node_unless_the_file_says_so(
    store: Store, tmp_path: Path
) -> None:
    world = world_of([node("a")])
    sweep(world, plan_of(TWO), store)
    assert world.most_held == 1
    shared = world_of([node("a")])
    sweep(shared, plan_of(TWO, more="isolation: shared"), Store.open(str(tmp_path / "shared"), "x"))
    assert shared.most_held == 2


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_a_wall_clock_that_is_set_meanwhile_costs_no_point(
    step_s: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    real = world.clock.unix_ns
    monkeypatch.setattr(
        world.clock, "unix_ns", lambda: real() + (step_s * 10**9 if world.clock.now_s() > 40 else 0)
    )
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert (outcomes(store), len(launches(store))) == ([("ok", None)] * 2, 1)
    assert report.wall_s == pytest.approx(155, abs=3)


def test_waiting_for_nodes_that_never_come_is_no_overhead_of_the_program(store: Store) -> None:
    report = sweep(world_of([]), plan_of(), store)
    assert report.wall_s >= 5
    assert report.overhead < 0.05


def test_the_overhead_is_what_was_neither_start_nor_load(store: Store) -> None:
    report = sweep(world_of(), plan_of(), store)
    # 1 s to place, 10 s to start, 1 s first answers, 70 s of load, 1 s to stop, and a look a second
    # later
    assert report.wall_s == pytest.approx(84.5, abs=2)
    assert 0 < report.overhead < 0.1


def test_each_point_tells_its_outcome_and_the_time_left(store: Store) -> None:
    world, slos = world_of(), "slos: {interactive: {ttft: 500ms}, strict: {ttft: 1us}}"
    sweep(world, plan_of(TWO, levels="1, 2", more=slos), store)
    told = [one for one in world.events if isinstance(one, Event) and one.kind == "measured"]
    assert [one.text.split(":")[0] for one in told] == [
        "measured w 1 in flight",
        "measured w 2 in flight",
    ] * 2
    assert "TTFT p99 " in told[0].text
    assert told[0].text.endswith("100 % interactive, 0 % strict")
    # the second point, then a launch that will start in 11 s like the first one, and two points;
    # each took 70 s
    assert [one.data["left_s"] for one in told] == [221, 151, 70, 0]


def test_whoever_watches_hears_what_is_waited_for(store: Store) -> None:
    world = growing(0, 1)
    sweep(world, plan_of(), store)
    phases = [one for one in world.events if isinstance(one, Phase)]
    names = list(dict.fromkeys(one.name for one in phases if one.deployment != "sweep"))
    assert names == [
        "wait for nodes",
        "place",
        "start",
        "answers",
        "write requests",
        "warm-up",
        "measure",
        "store",
        "stop",
        "store the launch",
        "ended",
    ]
    waits = [one for one in phases if one.name == "wait for nodes"]
    assert {one.detail for one in waits} == {"one node with 1 GPU (H100-80GB)"}
    assert max(one.elapsed_s for one in waits) > 50
    assert "loading weights" in {one.says for one in phases if one.name == "start"}
    before = [one.name for one in phases if one.deployment == "sweep"]
    assert before[:4] == [
        "read what is measured already",
        "store the plan",
        "check the nodes",
        "ended",
    ]


def test_impossible_deployments_run_last_where_the_user_asks_for_them(
    store: Store, tmp_path: Path
) -> None:
    eight = "model: meta-llama/Llama-3.1-8B-Instruct"
    plan = plan_of(
        f"{{{eight}, max_model_len: 200000}}, {{{eight}, quantization: gguf}}, {{{eight}}}"
    )
    assert [one.status for one in plan.deployments] == ["impossible", "impossible", "planned"]
    too_long, _, fits = (one.id for one in plan.deployments)
    assert sweep(world_of(), plan, store).counts.measured == 1
    assert [row.deployment_id for row in points(store)] == [fits]
    assert sweep(world_of(), plan.allowing(), store).counts.measured == 1, (
        "the other one is there already"
    )
    assert [row.deployment_id for row in launches(store)] == [fits, too_long]
    other = Store.open(str(tmp_path / "other"), "x")
    assert sweep(world_of(), plan.allowing(), other).counts.measured == 2
    assert [row.deployment_id for row in launches(other)] == [fits, too_long], "those go last"
