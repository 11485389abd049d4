"""What a launch needs, and what it checks before it starts an engine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from orchestrator.cluster.base import Allocation, Bundle, HostLost
from orchestrator.errors import EngineFailure, FailureClass
from orchestrator.plan.model import Deployment
from orchestrator.runner.launch import (
    cache_of,
    check_accelerators,
    endpoint_key,
    need_of,
)
from orchestrator.runner.replicas import Replicas
from orchestrator.spec.settings import EngineSettings, Hardware

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8, labels={"pool": "a"})


class LostPlacement:
    """A replica whose agent is gone."""

    class Lost:
        allocation = Allocation("n", "10.0.0.1", "host-a", (), (0,), 1, (), "/tmp/l/engine.log")

        def failure(self) -> None:
            raise HostLost("the actor died")

    agents = (Lost(),)


def test_a_lost_agent_leaves_word_of_where_its_log_is() -> None:
    failure = Replicas([LostPlacement()], ()).failure()  # type: ignore[list-item]
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRA
    assert "host-a:/tmp/l/engine.log" in failure.sentence


@dataclass
class Sitting:
    """Stands for an agent, of which only its allocation is asked."""

    allocation: Allocation


def sitting(*gpus: str) -> Sitting:
    return Sitting(Allocation("n", "10.0.0.1", "host-a", ("0",), (0,), 1, gpus))


def test_the_accelerator_of_the_file_must_be_the_one_that_is_there() -> None:
    check_accelerators(H100, [sitting("NVIDIA H100 80GB HBM3 GPU-aa")])  # type: ignore[list-item]
    with pytest.raises(EngineFailure, match="host-a has NVIDIA A100") as caught:
        check_accelerators(H100, [sitting("NVIDIA A100-SXM4-80GB GPU-aa")])  # type: ignore[list-item]
    assert caught.value.failure.kind == "wrong_accelerator"


def test_an_accelerator_nobody_knows_is_not_judged() -> None:
    check_accelerators(Hardware(name="x", accelerator="prototype-9"), [sitting("NVIDIA A100 GPU-a")])  # type: ignore[list-item]


def test_a_replica_over_two_nodes_needs_a_bundle_on_each() -> None:
    settings = EngineSettings(engine="vllm", model="m", tensor_parallel_size=8, pipeline_parallel_size=2, nnodes=2)
    deployment = Deployment(id="d", label="d", settings=settings, hardware=H100, status="planned")
    need = need_of(deployment, exclusive=True)
    assert need.bundles == (Bundle(8, 8.0),) * 2
    assert need.labels == (("pool", "a"),)


def test_the_key_of_an_endpoint_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
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
