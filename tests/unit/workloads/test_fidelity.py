"""How near a load comes to a recorded trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.spec.load import Arrivals, Level, Workload
from orchestrator.workloads.fidelity import fidelity_of
from tests.unit.workloads import traces
from tests.unit.workloads.traces import trace

DRAWN = Workload.model_validate({"name": "w", "input_tokens": 8, "output_tokens": 4})


def arrivals(scale: str) -> Arrivals:
    return Arrivals.model_validate({"process": "trace", "scale": scale})


def rate(value: float) -> Level:
    return Level(control="request_rate", value=value)


@pytest.mark.parametrize(
    ("scale", "thinned", "factor"), [("stretch", 0.0, 0.5), ("thin", 0.5, 0.5), ("recorded", 0, 1)]
)
def test_half_the_recorded_rate(tmp_path: Path, scale: str, thinned: float, factor: float) -> None:
    workload = trace(tmp_path / "t.csv", traces.AZURE_2023)
    recorded = workload.recorded_rate()
    assert recorded is not None
    fidelity = fidelity_of(workload, rate(recorded / 2), arrivals(scale))
    assert fidelity is not None
    assert fidelity.recorded_rate == recorded
    assert fidelity.rate_factor == pytest.approx(factor)
    assert fidelity.thinned_share == pytest.approx(thinned)


def test_equal_times_are_counted_once(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.jsonl", traces.MOONCAKE)
    rows = workload.rows()
    fidelity = fidelity_of(workload, rate(1.0), arrivals("stretch"))
    assert fidelity is not None
    assert fidelity.distinct_times_share == rows.distinct_times / rows.requests


def test_other_loads_have_none(tmp_path: Path) -> None:
    workload = trace(tmp_path / "t.csv", traces.AZURE_2023)
    assert fidelity_of(workload, rate(1.0), Arrivals(process="poisson")) is None
    assert fidelity_of(workload, rate(float("inf")), arrivals("stretch")) is None
    assert fidelity_of(workload, Level(control="concurrency", value=2), arrivals("thin")) is None
    assert fidelity_of(DRAWN, rate(1.0), arrivals("stretch")) is None
