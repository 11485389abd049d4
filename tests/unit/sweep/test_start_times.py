"""How long starts took becomes what the next starts are expected to take."""

import pytest

from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Deployment
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.start_times import StartTimes


def deployment(name: str, engine: str = "vllm") -> Deployment:
    return Deployment(
        id=name,
        label=name,
        settings=EngineSettings(engine=engine, model="m"),
        hardware=Hardware(name="h", accelerator="cpu"),
        status="planned",
    )


def test_without_any_start_the_estimate_is_expected() -> None:
    times = StartTimes()
    assert times.expected_s(deployment("a"), 60.0) == 60.0
    assert times.factors() == {}


def test_a_deployment_starts_as_long_as_the_last_time() -> None:
    times = StartTimes()
    times.add(deployment("a"), 80.0)
    times.add(deployment("a"), 70.0)
    assert times.expected_s(deployment("a"), 60.0) == 70.0


def test_other_deployments_of_an_engine_start_as_much_longer_than_estimated() -> None:
    times = StartTimes()
    estimate_s = estimated_start_s(deployment("a"))
    times.add(deployment("a"), 2.0 * estimate_s)
    times.add(deployment("b"), 4.0 * estimate_s)
    assert times.expected_s(deployment("c"), 60.0) == pytest.approx(180.0)
    assert times.expected_s(deployment("c", engine="sglang"), 60.0) == 60.0
    assert times.factors() == {"vllm": pytest.approx(3.0)}


def test_an_engine_whose_starts_are_estimated_to_take_no_time_has_no_factor_of_its_own() -> None:
    times = StartTimes()
    times.add(deployment("a", engine="endpoint"), 5.0)
    assert times.factors() == {"endpoint": 1.0}
