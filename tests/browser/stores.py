"""Stores whose points differ in what a judgement depends on."""

from __future__ import annotations

import json
import random
from typing import Any

from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan, Point
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.commit import deployment_row
from tests.unit.results.builders import (
    commit_measurement,
    failed_request,
    gpu_readings,
    request,
)

VARIED = """
version: 1
name: varied
model: some-org/m
deployments: {engine: emulator, vary: [{grid: {hardware: [cpu, h100], max_num_seqs: [8, 16, 32]}}]}
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.5}}
workloads: [{name: chat, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [1, 2, 4, 8, 16]}, duration: 10s, warmup: 0s}
slos: {interactive: {ttft: 150ms, attainment: 0.9}}
"""
# long prompts beside short ones
MIXED = """
version: 1
name: mixed
model: some-org/m
deployments: {engine: emulator, vary: [{grid: {hardware: [cpu, h100], max_num_seqs: [8, 16, 32]}}]}
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.5}}
workloads:
  - {name: chat, input_tokens: 16, output_tokens: 8}
  - {name: rag, input_tokens: 64, output_tokens: 8}
  - {name: office, kind: mix, parts: [{weight: 2, workload: chat}, {weight: 1, workload: rag}]}
load: {levels: {concurrency: [1, 2, 4, 8, 16]}, duration: 10s, warmup: 0s}
slos:
  interactive: {attainment: 0.9, parts: {rag: {ttft: 400ms, attainment: 0.7}, chat: {ttft: 120ms}}}
  together: {ttft: 300ms, attainment: 0.8}
"""
SLOWNESS_OF_PARTS = {"chat": 1.0, "rag": 3.0}
STARTS = 3
REQUESTS = 60
MOST_IN_FLIGHT = 16.0


def varied_plan(text: str = VARIED) -> Plan:
    return make_plan(parse_experiment(text))


def commit_varied(store: Store, plan: Plan, *, has_energy: bool = False, **given: Any) -> None:
    """Latencies grow with the load, starts of one deployment differ, and some requests fail.

    Some points are spoilt, some starts were failed by their engine, some levels were not measured,
    and neither was the last deployment. ``has_energy``: a GPU was read while each point ran.
    ``given``: of each row of points, what differs.
    """
    chance = random.Random(7)
    store.write_plan(plan.to_json())
    *measured, _ = plan.deployments
    for deployment in measured:
        speed = chance.uniform(0.5, 2)
        for point in plan.points:
            if point.deployment_id != deployment.id or chance.random() < 0.15:
                continue
            validity = chance.choice(["valid", "valid", "valid", "valid", "client_bound"])
            if has_energy:
                given["telemetry"] = gpu_readings(chance.uniform(100, 700), 11)
            for start in range(chance.randint(1, STARTS)):
                is_failed = chance.random() < 0.04
                slowness = speed * (1 + _in_flight(point) / 4) * chance.uniform(0.8, 1.3)
                commit_repeat(
                    store, plan, point, start, slowness, validity, is_failed, chance, **given
                )


def commit_repeat(
    store: Store,
    plan: Plan,
    point: Point,
    start: int,
    slowness: float,
    validity: str,
    is_failed: bool,
    chance: random.Random,
    **others: Any,
) -> None:
    """One repeat on a start of its own. ``slowness``: multiplies latencies."""
    given: dict[str, Any] = {"validity": validity, "emulated": True} | others
    if is_failed:
        given |= {"status": "failed", "reason": "it died", "failure_class": "engine_crash"}
    row = deployment_row(plan.deployment(point.deployment_id), plan.name)
    commit_measurement(
        store,
        plan.measurement(point, start).measurement_id,
        [] if is_failed else _requests(point, slowness, chance),
        attempt_id=f"{point.point_id}-{start}",
        deployment={name: getattr(row, name) for name in row.__slots__},
        point_id=point.point_id,
        deployment_id=point.deployment_id,
        experiment=plan.name,
        control=point.level.control,
        level=point.level.value,
        repeat=start,
        start=start,
        launch_id=f"L{start}",
        load_json=json.dumps(point.load.rules(point.level)),
        workload_json=point.workload.model_dump_json(exclude_defaults=True),
        **given,
    )


def _in_flight(point: Point) -> float:
    """About how many requests are under way; where all are due at once, MOST_IN_FLIGHT."""
    return min(point.level.value, MOST_IN_FLIGHT)


def _requests(point: Point, slowness: float, chance: random.Random) -> list[dict[str, Any]]:
    rows = []
    error_share = chance.choice([0.0, 0.0, 0.02, 0.2])
    parts = point.workload.part_names()
    for number in range(REQUESTS):
        due = number * 10_000 / REQUESTS
        part = chance.choice(parts) if parts else None
        if chance.random() < error_share:
            rows.append(failed_request(number, due, part=part))
            continue
        slowness_of_part = SLOWNESS_OF_PARTS.get(part, 1.0)
        first = due + 40 * slowness * slowness_of_part * chance.lognormvariate(0, 0.4)
        last = first + 7 * 10 * slowness * chance.lognormvariate(0, 0.2)
        tokens = round(8 * _in_flight(point))
        rows.append(request(number, due, first_ms=first, last_ms=last, tokens=tokens, part=part))
    return rows
