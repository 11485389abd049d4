"""Prefill and decode replicas of real vLLM behind vLLM's router: KV caches travel over NIXL, here
on CPUs and TCP.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.harness import (
    ROOT,
    assert_nothing_left,
    assert_rows_equal_schedule,
    orchestrator,
    rows,
    write_experiment,
)
from tests.integration.engine_real import home_of

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(1200)]
# The same model twice: by roles, and in one engine, whose answers are the right ones.
EXPERIMENT = """
version: 1
name: roles
model: MODEL
deployments:
  engine: vllm
  hardware: cpu
  executable: VLLM
  dtype: float32
  max_model_len: 512
  enforce_eager: true
  env: {PYTHONPATH: NIXL, UCX_TLS: "tcp,self"}
  vary:
    - cases:
        - roles: {prefill: {}, decode: {}}
          router: {engine: vllm_router, executable: ROUTER, extra_args: {"--policy": round_robin}}
        - {}
hardware: {cpu: {accelerator: cpu}}
workloads: [{name: short, input_tokens: 200, output_tokens: 8}]
load: {levels: {concurrency: [2]}, requests: 12, warmup: 0s}
"""


NIXL = ROOT / ".engines" / "nixl"  # 240 MB, so no part of any installation


@pytest.mark.skipif(
    not NIXL.exists(),
    reason="no NIXL: pip install --no-deps --target .engines/nixl nixl==1.5.1 nixl-cu12==1.5.1",
)
def test_what_one_replica_prefills_another_goes_on_with_as_one_engine_would(tmp_path: Path) -> None:
    given = {"MODEL": ROOT / ".demo" / "model", "NIXL": NIXL}
    given |= {"VLLM": home_of("vllm"), "ROUTER": home_of("vllm_router")}
    text = re.sub("|".join(given), lambda match: str(given[match[0]]), EXPERIMENT)
    experiment, results = write_experiment(tmp_path, text), tmp_path / "results"
    done = orchestrator(
        "run", str(experiment), "--results", str(results), "--address", "local", timeout_s=1000
    )
    assert done.returncode == 0, done.stderr
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    asked = rows(results, "requests")
    assert {(row["status"], row["output_tokens"]) for row in asked} == {("ok", 8)} and len(
        asked
    ) == 24
    answers: dict[str, dict[int, str]] = {}
    for row in rows(results, "answers"):
        answers.setdefault(row["deployment_id"], {})[row["prompt_index"]] = row["text"]
    by_roles, alone = answers.values()
    assert by_roles == alone and any(alone.values())
    logs = [
        log.read_text(errors="replace") for log in (results / "roles" / "logs").glob("*/rank*.log")
    ]
    assert sum("NIXL compatibility check passed" in log for log in logs) == 1, (
        "the decode replica fetched KV caches"
    )
    reported = [json.loads(row["engine_reported_json"]) for row in rows(results, "launches")]
    assert sorted(one.get("kv_transport", "") for one in reported) == ["", "tcp/lo"], (
        "what the caches travelled over"
    )
    assert "network" in {row["kind"] for row in rows(results, "events")}
