"""A small experiment, and what a sweep of it leaves in a store, without running it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from click.testing import CliRunner, Result

from orchestrator.cli.main import cli
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan, Point
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.commit import deployment_row
from tests.unit.results.builders import commit_measurement, failed_request, request

EXPERIMENT = """
version: 1
name: {name}
model: some-org/{model}
deployments: {{engine: emulator, hardware: cpu, vary: [{{grid: {{max_num_seqs: {max_num_seqs}}}}}]}}
workloads: [{{name: {workload}, input_tokens: 16, output_tokens: {tokens}}}]
load: {{levels: {{concurrency: {levels}}}, duration: {duration}, warmup: 0s, request_timeout: {timeout}}}
slos: {{interactive: {{ttft: 150ms, attainment: 0.9}}, tight: {{ttft: 1ms, attainment: 0.9}}}}
"""
MIX = (
    "workloads: [{name: chat, input_tokens: 16, output_tokens: 8}, "
    "{name: rag, input_tokens: 64, output_tokens: 8}, "
    "{name: office, kind: mix, parts: [{workload: chat}, {workload: rag}]}]"
)
LIMITS_OF_PARTS = (
    "slos: {interactive: {parts: {chat: {ttft: 150ms}, rag: {ttft: 1s}}, attainment: 0.9}}"
)
SEARCH = "search: capacity, control: concurrency"
VALUES = {
    "name": "exp",
    "model": "m",
    "workload": "chat",
    "tokens": 8,
    "levels": [2],
    "max_num_seqs": [8, 16],
    "duration": "10s",
    "timeout": "600s",
}


def planned(**values: Any) -> Plan:
    """The plan of the experiment, with some of its VALUES replaced."""
    return make_plan(parse_experiment(EXPERIMENT.format(**VALUES | values)))


def planned_mix(**values: Any) -> Plan:
    """The plan of the same experiment with ``office``, a mix of chat and rag, with limits on both."""
    text = EXPERIMENT.format(**VALUES | values)
    text = re.sub("workloads: .*", MIX, text)
    return make_plan(parse_experiment(re.sub("slos: .*", LIMITS_OF_PARTS, text)))


def store_sweep(store: Store, plan: Plan, tokens: int = 8, **columns: Any) -> None:
    """Stores what a sweep of this plan leaves: one attempt at each point that is not measured yet.

    ``tokens``, ``columns``: as in ``store_attempt``.
    """
    store.write_plan(plan.to_json())
    for point in plan.points:
        if plan.measurement(point, 0).measurement_id not in store.winners():
            store_attempt(store, plan, point, tokens=tokens, **columns)


def store_attempt(
    store: Store,
    plan: Plan,
    point: Point,
    repeat: int = 0,
    ttft_ms: float | Mapping[str, float] = 100,
    tokens: int = 8,
    failed: int = 0,
    error_class: str = "http_5xx",
    **columns: Any,
) -> None:
    """Stores an attempt at a point: ten seconds with a request each 100 ms.

    ``ttft_ms``: of all requests; or by part of a mix, whose requests take turns. ``tokens``: of each
    answer; they take 90 ms after the first. ``failed``: so many requests fail, with
    ``error_class``. ``columns``: values of the row in ``points`` that differ from those of a valid
    attempt.
    """
    ttft_by_part: dict[str | None, float]
    if isinstance(ttft_ms, Mapping):
        ttft_by_part = {**ttft_ms}
    else:
        ttft_by_part = {None: ttft_ms}
    parts = cycle(ttft_by_part)
    rows = []
    for number in range(100):
        part = next(parts)
        due_ms = number * 100
        first_ms = due_ms + ttft_by_part[part]
        if number < failed:
            rows.append(failed_request(number, due_ms, error_class, part=part))
            continue
        rows.append(
            request(
                number,
                due_ms,
                first_ms=first_ms,
                last_ms=first_ms + 90,
                tokens=tokens,
                part=part,
            )
        )
    row = deployment_row(plan.deployment(point.deployment_id), plan.name)
    request_columns = {
        "workload_json": point.workload.model_dump_json(exclude_defaults=True),
        "load_json": json.dumps(point.load.rules(point.level)),
        "repeat": repeat,
    }
    commit_measurement(
        store,
        plan.measurement(point, repeat).measurement_id,
        rows,
        deployment={name: getattr(row, name) for name in row.__slots__},
        point_id=point.point_id,
        deployment_id=point.deployment_id,
        experiment=plan.name,
        control=point.level.control,
        level=point.level.value,
        **request_columns | columns,
    )


def invoke(*argv: str, status: int = 0) -> Result:
    """Runs a command of the program in this process, and checks its exit status."""
    result = CliRunner().invoke(cli, argv, standalone_mode=False, catch_exceptions=False)
    assert result.return_value == status
    return result
