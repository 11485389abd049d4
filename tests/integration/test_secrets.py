"""Secrets that engines, servers and people say aloud are found nowhere afterwards: a sweep against
servers that do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import MODEL, orchestrator, write_experiment
from tests.planted_secrets import (
    PLANTED,
    contents,
    echoing_endpoint,
    leaks,
    write_echoing_program,
)

EXPERIMENT = """
version: 1
name: planted
model: {{id: {model}, tokenizer: {model}}}
hardware: {{}}
deployments:
  - {{engine: vllm, executable: {program}, hardware: cpu, env: {{DIE_AT: "70"}}}}
  - {{engine: vllm, executable: {program}, hardware: cpu, env: {{DIE_AT: "0"}}}}
  - {{engine: endpoint, url: "http://127.0.0.1:{port}", api_key_env: PLANTED_KEY, served_model_name: planted}}
  - {{engine: endpoint, url: "http://127.0.0.1:{port}", api_key_env: PLANTED_KEY, served_model_name: unknown}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, requests: 60, warmup: 0s, request_timeout: 20s}}
isolation: shared
"""


@pytest.mark.skipif(not MODEL.exists(), reason="needs the tiny model: make model")
def test_a_secret_said_aloud_in_every_place_is_found_nowhere(tmp_path: Path) -> None:
    program = tmp_path / "program"
    write_echoing_program(program)
    results = str(tmp_path / "results")
    frozen = tmp_path / "plan.json"
    environment = {**PLANTED, "HF_HUB_OFFLINE": "1"}
    with echoing_endpoint() as port:
        file = write_experiment(
            tmp_path, EXPERIMENT.format(model=MODEL, program=program, port=port)
        )
        to_frozen = ("--output", str(frozen), "--format", "json")
        plan = orchestrator("plan", str(file), *to_frozen, **environment)
        to_results = ("--results", results, "--address", "local")
        run = orchestrator("run", str(frozen), *to_results, **environment)
    assert plan.returncode == 0, plan.stderr[-2000:]
    assert run.returncode == 3, run.stderr[-2000:]
    commands = {
        "plan": plan,
        "run": run,
        "results as JSON": orchestrator("results", results, "--format", "json"),
        "results as CSV": orchestrator("results", results, "--format", "csv"),
        "launches": orchestrator("results", results, "--all", "--launches"),
        "logs": orchestrator("logs", results),
    }
    stored = dict(contents(tmp_path / "results")) | {str(frozen): frozen.read_bytes()}
    printed = {
        f"output of {name}": (command.stdout + command.stderr).encode()
        for name, command in commands.items()
    }
    assert any(b"***" in content for content in stored.values())
    logs = [content for name, content in stored.items() if "rank0.log" in name]
    assert any(b"PLANTED_PASSWORD=***" in log for log in logs)
    found = leaks(stored | printed, PLANTED.values())
    assert not found, found[:20]
