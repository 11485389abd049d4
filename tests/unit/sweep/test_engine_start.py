"""What a launch needs, and what it checks before it starts an engine."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import EngineFailure, FailureClass
from orchestrator.catalog.accelerators import find, is_named
from orchestrator.cluster.base import Allocation, DeadLog, HostLost
from orchestrator.results.store import Store
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.engine_start import (
    cache_of,
    check_accelerators,
    endpoint_key,
)
from orchestrator.sweep.replicas import Replicas
from tests.unit.sweep.simulation import (
    FakeAgent,
    node,
    plan_of,
    sweep,
    world_of,
)

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8, labels={"pool": "a"})


ALLOCATION = Allocation(
    node_id="n",
    address="10.0.0.1",
    hostname="host-a",
    devices=("0",),
    cores=(0,),
    pid=1,
    log_path="/tmp/l/engine.log",
)


class LostAgent:
    allocation = ALLOCATION

    def failure(self) -> None:
        raise HostLost("the actor died")


def test_a_lost_agent_leaves_word_of_where_its_log_is() -> None:
    placement: Any = SimpleNamespace(agents=[LostAgent()])
    failure = Replicas([placement], ()).failure()
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRA
    assert "host-a:/tmp/l/engine.log" in failure.sentence


def agent_with(gpu: str) -> Any:
    """An agent of which only its allocation is asked. ``gpu``: name and UUID of its GPU."""
    return SimpleNamespace(allocation=replace(ALLOCATION, gpus=(gpu,)))


def test_the_accelerator_of_the_file_must_be_the_one_that_is_there() -> None:
    check_accelerators(H100, [agent_with("NVIDIA H100 80GB HBM3 GPU-aa")])
    with pytest.raises(EngineFailure, match="host-a has NVIDIA A100") as caught:
        check_accelerators(H100, [agent_with("NVIDIA A100-SXM4-80GB GPU-aa")])
    assert caught.value.failure.kind == "wrong_accelerator"


@pytest.mark.parametrize(
    ("accelerator", "driver_name", "same"),
    [
        ("L4", "NVIDIA L4", True),
        ("L4", "NVIDIA L40S", False),
        ("L40", "NVIDIA L40S", False),
        ("H20", "NVIDIA H20", True),
        ("H20", "NVIDIA H200", False),
        ("B200", "NVIDIA GB200", False),
        ("H100", "NVIDIA H100 PCIe", False),
        ("H100-NVL-94GB", "NVIDIA H100 NVL", True),
        ("A10", "NVIDIA A10G", False),
        ("A100-40GB", "NVIDIA A100-SXM4-80GB", False),
        ("A100-40GB", "NVIDIA A100-PCIE-40GB", True),
        ("GH200", "NVIDIA GH200 480GB", True),
        ("RTX-3090-24GB", "NVIDIA GeForce RTX 4090", False),
        ("RTX-6000-Ada-48GB", "NVIDIA RTX 6000 Ada Generation", True),
        ("V100-16GB", "Tesla V100-SXM2-32GB", False),
        ("RTX-PRO-6000-96GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("T4", "Tesla T4", True),
    ],
)
def test_accelerators_are_told_apart_by_all_words_of_their_names(
    accelerator: str, driver_name: str, same: bool
) -> None:
    known = find(accelerator)
    assert known is not None
    assert is_named(known, driver_name) is same


def test_a_uuid_is_no_part_of_a_name() -> None:
    with pytest.raises(EngineFailure):
        check_accelerators(H100, [agent_with("NVIDIA L4 GPU-0a-h100-80gb")])


def test_an_accelerator_nobody_knows_is_not_judged() -> None:
    hardware = Hardware(name="x", accelerator="prototype-9")
    check_accelerators(hardware, [agent_with("NVIDIA A100 GPU-a")])


def test_the_key_of_an_endpoint_comes_from_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = EngineSettings(engine="endpoint", model="m", url="http://x", api_key_env="SOME_KEY")
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(EngineFailure, match="SOME_KEY"):
        endpoint_key(settings)
    monkeypatch.setenv("SOME_KEY", "secret")
    assert endpoint_key(settings) == "secret"
    assert endpoint_key(settings.model_copy(update={"api_key_env": None})) is None


def test_what_is_known_of_a_prefix_cache_before_anybody_empties_it() -> None:
    settings = EngineSettings(engine="vllm", model="m")
    assert cache_of(settings) == "unknown"
    assert cache_of(settings.model_copy(update={"enable_prefix_caching": False})) == "off"


def test_every_rank_listens_at_its_own_address_and_all_meet_at_that_of_the_first(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    sweep(world, plan_of("{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"), store)
    first, second = world.ranks
    assert (first.bind, second.bind) == (first.host, second.host)
    assert first.bind != second.bind
    assert first.master_host == second.master_host == first.host
    ports = [first.port, first.master_port, first.rpc_port, *first.extra_ports]
    assert len(set(ports)) == len(ports) == 7, "each has a port of its own"
    assert first.master_port == max(ports), "SGLang listens on the ports after it"


def test_the_first_rank_hears_how_the_others_download_and_waits_for_them(store: Store) -> None:
    world = world_of([node("a"), node("b"), node("c")], ready_after_s=40.0)
    of_two_ranks = "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"
    of_one_rank = "{max_num_seqs: 8}"  # which hears nothing
    sweep(world, plan_of(f"{of_two_ranks}, {of_one_rank}"), store)
    first_rank, *_ = world.ranks
    assert {f"10.0.0.{name}" for name, _ in world.heard} == {first_rank.host}
    sizes = [size for _, size in world.heard]
    assert len(sizes) >= 2
    assert all(earlier < later for earlier, later in pairwise(sizes))


def test_a_node_that_hides_its_downloads_ends_no_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: object) -> int:
        raise HostLost("no answer")

    monkeypatch.setattr(FakeAgent, "downloaded", silent)
    world = world_of([node("a"), node("b")], ready_after_s=40.0)
    report = sweep(
        world, plan_of("{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"), store
    )
    assert (report.counts.measured, world.heard) == (1, [])


def test_logs_of_dead_agents_are_stored_and_then_dropped(store: Store) -> None:
    world = world_of(dead_logs=[DeadLog("01ABC-x", "01ABC/rank0.log", b"its last words")])
    sweep(world, plan_of(), store)
    assert store.read_log(store.log_uri("01ABC/rank0.log")) == b"its last words"
    assert "drop 01ABC-x" in world.log
