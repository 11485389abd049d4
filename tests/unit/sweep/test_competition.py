"""Which deployments race against each other, and which of them are started."""

from __future__ import annotations

import pytest

from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.competition import race_of, shortlist_of
from tests.unit.sweep.simulation import plan_of

SEARCH = """
version: 1
name: x
model: some-org/some-model
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 3}}}}
deployments: {{engine: vllm, hardware: h100, vary: [{{cases: [{cases}]}}]}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 1}}]
load: {{search: capacity, control: {control}, duration: 60s{load}}}
slos: {{fast: {{ttft: 500ms, attainment: 0.8}}}}
"""
TWO_SIZES = "{tensor_parallel_size: 1}, {tensor_parallel_size: 4}"


def searching(load: str = "", control: str = "request_rate") -> Plan:
    text = SEARCH.format(cases=TWO_SIZES, control=control, load=load)
    return make_plan(parse_experiment(text, "x.yaml"))


@pytest.mark.parametrize(
    ("objective", "divisors"),
    [("", [1, 4]), (", objective: usd", [3, 12]), (", objective: deployment", [1, 1])],
)
def test_deployments_are_compared_per_unit_of_the_objective(
    objective: str, divisors: list[float]
) -> None:
    race = race_of(searching(objective))
    assert race is not None
    assert sorted(entrant.divisor for entrant in race.entrants.values()) == divisors


def test_concurrency_levels_do_not_race() -> None:
    race = race_of(searching(control="concurrency"))
    assert race is not None
    assert race.full_grid


def test_a_plan_that_searches_for_no_capacity_has_no_race() -> None:
    assert race_of(plan_of()) is None


def test_without_a_limit_all_deployments_are_on_the_shortlist() -> None:
    plan = searching()
    shortlist = shortlist_of(plan, race_of(plan), {})
    assert all(shortlist.has(deployment.id) for deployment in plan.deployments)


def test_a_limited_shortlist_begins_empty() -> None:
    plan = searching(", max_deployments: 1")
    shortlist = shortlist_of(plan, race_of(plan), {})
    assert shortlist.left == 1
    assert not any(shortlist.has(deployment.id) for deployment in plan.deployments)
