"""Cores of engines: disjoint on a host, given back, none on GPU hardware."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from orchestrator.cluster.base import Seat
from orchestrator.errors import PlacementError
from orchestrator.plan.model import Deployment
from orchestrator.runner.cores import CoreBook
from orchestrator.spec.settings import EngineSettings, Hardware


@dataclass
class Sitting:
    """Stands for an agent, of which only its seat is asked."""

    seat: Seat


@dataclass
class Placed:
    agents: list[Sitting]

    def release(self) -> None: ...


def placed(*hosts: str, cores: int = 4) -> Placed:
    return Placed([Sitting(Seat(f"n{at}", host, host, (), tuple(range(cores)), 1)) for at, host in enumerate(hosts)])


def deployment(accelerator: str = "cpu", **settings: int) -> Deployment:
    hardware = Hardware(name="h", accelerator=accelerator)
    return Deployment(
        id="d",
        label="d",
        settings=EngineSettings(engine="vllm", model="m", **settings),
        hardware=hardware,
        status="planned",
    )


def test_ranks_on_one_host_get_disjoint_cores() -> None:
    shares = CoreBook().share("a", [placed("x", "x")], deployment(tensor_parallel_size=2, nnodes=2))  # type: ignore[list-item]
    assert shares == [[(0,), (1,)]]


def test_launches_that_share_a_host_never_share_a_core_and_give_them_back() -> None:
    book = CoreBook()
    book.share("a", [placed("x")], deployment(tensor_parallel_size=2))  # type: ignore[list-item]
    assert book.share("b", [placed("x")], deployment()) == [[(2,)]]  # type: ignore[list-item]
    assert book.taken() == {"x": frozenset({0, 1, 2})}
    book.release("a")
    assert book.taken() == {"x": frozenset({2})}


def test_a_host_with_too_few_cores_is_no_place() -> None:
    with pytest.raises(PlacementError, match="2 more are needed"):
        CoreBook().share("a", [placed("x", cores=1)], deployment(tensor_parallel_size=2))  # type: ignore[list-item]


def test_engines_on_gpus_are_not_bound() -> None:
    book = CoreBook()
    assert book.share("a", [placed("x")], deployment("H100-80GB", tensor_parallel_size=2)) == [[()]]  # type: ignore[list-item]
    assert book.taken() == {}
