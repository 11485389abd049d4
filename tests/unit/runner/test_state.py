"""What launches hold: cores are disjoint and given back, GPU time costs, clients keep off nodes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from orchestrator.cluster.base import Allocation
from orchestrator.errors import PlacementError
from orchestrator.plan.model import Deployment
from orchestrator.runner.admission import Cost, Need, Running
from orchestrator.runner.state import SweepState, left_of, used_up
from orchestrator.spec.experiment import Budget
from orchestrator.spec.settings import EngineSettings, Hardware


@dataclass
class Sitting:
    """Stands for an agent, of which only its allocation is asked."""

    allocation: Allocation


@dataclass
class Placed:
    agents: list[Sitting]

    def release(self) -> None: ...


def placed(*hosts: str, cores: int = 4) -> Placed:
    taken = tuple(range(cores))
    return Placed([Sitting(Allocation(f"n{at}", host, host, (), taken, 1)) for at, host in enumerate(hosts)])


def deployment(accelerator: str = "cpu", name: str = "d", **settings: int) -> Deployment:
    return Deployment(
        id=name,
        label=name,
        settings=EngineSettings(engine="vllm", model="m", **settings),
        hardware=Hardware(name="h", accelerator=accelerator, usd_per_gpu_hour=3.6),
        status="planned",
    )


def test_ranks_on_one_host_get_disjoint_cores() -> None:
    shares = SweepState().share_cores([placed("x", "x")], deployment(tensor_parallel_size=2, nnodes=2))  # type: ignore[list-item]
    assert shares == [[(0,), (1,)]]


def test_launches_that_share_a_host_never_share_a_core_and_give_them_back() -> None:
    state, first = SweepState(), deployment(name="a", tensor_parallel_size=2)
    state.share_cores([placed("x")], first)  # type: ignore[list-item]
    assert state.share_cores([placed("x")], deployment(name="b")) == [[(2,)]]  # type: ignore[list-item]
    assert state.cores_taken() == {"x": frozenset({0, 1, 2})}
    state.released(first, 0.0)
    assert state.cores_taken() == {"x": frozenset({2})}


def test_a_host_with_too_few_cores_is_no_place() -> None:
    with pytest.raises(PlacementError, match="2 more are needed"):
        SweepState().share_cores([placed("x", cores=1)], deployment(tensor_parallel_size=2))  # type: ignore[list-item]


def test_engines_on_gpus_are_not_bound() -> None:
    state = SweepState()
    shares = state.share_cores([placed("x")], deployment("H100-80GB", tensor_parallel_size=2))  # type: ignore[list-item]
    assert shares == [[()]]
    assert state.cores_taken() == {}


def test_gpus_cost_from_their_placement_to_their_release_and_cores_cost_nothing() -> None:
    state, gpus, cores = SweepState(), deployment("H100-80GB", "g", tensor_parallel_size=2), deployment()
    state.placed(gpus, 100.0)
    state.placed(cores, 100.0)
    assert state.spent(150.0) == Cost(100.0, pytest.approx(0.1))
    assert state.released(gpus, 200.0) == 100.0
    assert state.released(cores, 300.0) == 200.0
    assert state.spent(900.0) == Cost(200.0, pytest.approx(0.2))
    assert state.released(gpus, 900.0) is None


def test_clients_keep_off_nodes_of_engines_most_of_all_off_those_of_other_launches() -> None:
    state, need = SweepState(), Need(())
    state.admitted("mine", Running(need, (("a", "b"),), 0.0))
    state.admitted("other", Running(need, (("b",), ("c",)), 0.0))
    assert state.avoid("mine") == {"a": 1, "b": 2, "c": 2}


def test_a_budget_is_used_up_by_whichever_part_is_first() -> None:
    budget = Budget(gpu_hours=2.0, usd=10.0)
    assert used_up(None, Cost(1e9, 1e9), 1e9) is None
    assert used_up(budget, Cost(7199.0, 9.9), 1e9) is None
    assert "2 GPU hours" in str(used_up(budget, Cost(7200.0, 0.0), 0.0))
    assert "10 USD" in str(used_up(budget, Cost(0.0, 10.0), 0.0))
    assert left_of(budget, Cost(3600.0, 4.0)) == Cost(3600.0, 6.0)
    assert left_of(None, Cost(3600.0, 4.0)) == Cost(float("inf"), float("inf"))
