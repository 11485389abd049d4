"""Emulated prefill and decode replicas on two Ray nodes, behind vLLM's router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    assert_rows_equal_schedule,
    orchestrator,
    rows,
    write_experiment,
)
from tests.integration.engine_real import home_of

pytestmark = [pytest.mark.cluster, pytest.mark.vllm]  # the router is installed with vLLM
EXPERIMENT = """
version: 1
name: roles
model: {id: MODEL}
deployments:
  engine: emulator
  roles: {prefill: {}, decode: {}}
  router: {engine: vllm_router, executable: HOME}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: 2s, warmup: 0s}
"""


def test_roles_that_share_no_node_serve_together(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("MODEL", str(MODEL)).replace("HOME", str(home_of("vllm_router")))
    experiment, results = write_experiment(tmp_path, text), tmp_path / "results"
    with RayOnThisMachine(nodes=2, cpus=1) as cluster:
        done = orchestrator(
            "run", str(experiment), "--results", str(results), "--address", cluster.address
        )
    assert done.returncode == 0, done.stderr
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    (launch,) = rows(results, "launches")
    prefill, decode, router = json.loads(launch["placement_json"])
    assert [one["role"] for one in (prefill, decode, router)] == ["prefill", "decode", "router"]
    assert prefill["node_id"] != decode["node_id"], "a node has one CPU"
    assert {(row["status"], row["output_tokens"]) for row in rows(results, "requests")} == {
        ("ok", 8)
    }
    assert {row["role"] for row in rows(results, "engine_metrics")} == {"prefill", "decode"}
