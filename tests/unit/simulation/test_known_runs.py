"""Which runs of the step model stand for others, and which are forgotten."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from orchestrator.emulator.model import RankLimits
from orchestrator.load.point import LoadPoint, Target
from orchestrator.predict.limit_ranges import LimitRange, LimitRanges
from orchestrator.predict.simulate import RequestTimes
from orchestrator.simulation import point as point_module
from orchestrator.simulation.known_runs import DrawnLoad, KnownRun, KnownRuns, RunKey
from orchestrator.simulation.point import PointSimulator, SimulatedEngines
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Level
from orchestrator.workloads.drawn import RandomWorkload
from tests.unit.emulator.builders import IDEAL, a_replica

LIMITS = RankLimits(max_model_len=900, max_num_seqs=8, max_num_batched_tokens=512, kv_tokens=4000)
SEQS = LimitRange(4, float("inf"))


def a_point(**changes: object) -> LoadPoint:
    values: dict[str, object] = {
        "targets": (Target("", "m"),),
        "dialect": openai()["completions"],
        "workload": RandomWorkload(name="w", input_tokens=50, output_tokens=8),
        "level": Level(control="request_rate", value=5.0),
        "measurement_id": "m",
        "attempt_id": "a",
        "duration_s": 10.0,
        "warmup_s": 0.0,
    }
    return LoadPoint(**values | changes)  # type: ignore[arg-type]


def a_run(requests: int = 3, same_under: LimitRanges | None = None) -> KnownRun:
    ints = np.zeros(requests, np.int64)
    floats = np.zeros(requests)
    load = DrawnLoad(ints, floats, ints, ints, None)
    return KnownRun(load, RequestTimes(floats, floats, floats, ints, same_under))


def key_of(**changes: object) -> RunKey:
    return RunKey.of(a_replica(), 1, a_point(**changes))


def wide() -> LimitRanges:
    return replace(LimitRanges.exactly(LIMITS), max_num_seqs=SEQS)


def test_a_run_is_found_for_limits_that_change_nothing() -> None:
    runs = KnownRuns()
    known = a_run(same_under=wide())
    runs.add(key_of(), known)
    assert runs.find(key_of(), replace(LIMITS, max_num_seqs=256)) is known
    assert runs.find(key_of(), replace(LIMITS, max_num_seqs=3)) is None


@pytest.mark.parametrize(
    "changes", [{"seed": 9}, {"level": Level(control="request_rate", value=6.0)}]
)
def test_another_load_has_other_runs(changes: dict[str, object]) -> None:
    runs = KnownRuns()
    runs.add(key_of(), a_run(same_under=wide()))
    assert runs.find(key_of(**changes), LIMITS) is None


def test_other_costs_have_other_runs() -> None:
    slower = a_replica(IDEAL.model_copy(update={"step_overhead_s": 1e-3}))
    assert RunKey.of(slower, 1, a_point()) != key_of()


def test_a_run_under_unknown_limits_is_not_kept() -> None:
    runs = KnownRuns()
    runs.add(key_of(), a_run())
    assert runs.find(key_of(), LIMITS) is None


def test_the_first_runs_are_kept_where_there_are_too_many_requests() -> None:
    runs = KnownRuns(most_requests=5)
    for seed in (1, 2):
        runs.add(key_of(seed=seed), a_run(requests=3, same_under=wide()))
    assert runs.find(key_of(seed=1), LIMITS) is not None
    assert runs.find(key_of(seed=2), LIMITS) is None


@pytest.mark.parametrize("control", ["request_rate", "concurrency"])
def test_deployments_that_differ_in_limits_out_of_reach_are_simulated_once(control: str) -> None:
    simulator = PointSimulator()
    point = a_point(level=Level(control=control, value=4.0))
    tables = []
    name = "run" if control == "request_rate" else "serve"
    with patch.object(point_module, name, wraps=getattr(point_module, name)) as computed:
        for seqs in (64, 128, 2):  # two are reached, the others are not
            engines = SimulatedEngines(a_replica(max_num_seqs=seqs), 1, 1, False)
            made = simulator.attempt(engines, point, None, 10**18).attempt
            assert made.loaded is not None
            tables.append(made.loaded.requests)
    assert computed.call_count == 2
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])
