"""A sweep of an emulator with a conversation and all requests at once: what is said beside speed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT, environment, rows, write_experiment

EXPERIMENT = """
version: 1
name: facts
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator}
workloads:
  - {name: talk, kind: conversations, turns: 3, input_tokens: 40, output_tokens: 20,
     shared_prefix_tokens: 100, shared_prefix_count: 2}
load: {levels: {request_rate: [inf]}, requests: 120}
"""


def test_a_sweep_expects_the_hits_that_the_engine_has(tmp_path: Path) -> None:
    experiment, results = write_experiment(tmp_path, EXPERIMENT), tmp_path / "results"
    command = [sys.executable, "-m", "orchestrator"]
    run = [*command, "run", str(experiment), "--results", str(results), "--address", "local"]
    done = subprocess.run(
        run, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    requests = rows(results, "requests")
    assert len(requests) == 120
    # a conversation that is sent while its prefix is computed for the first time may find it or not
    later = [row for row in requests if row["turn"]]
    assert all(row["cached_tokens"] == row["expected_cached_tokens"] for row in later)
    assert sum(row["expected_cached_tokens"] == 0 for row in requests) == 2, "one of each prefix"
    (point,) = rows(results, "points")
    assert point["arrivals"] == "at_once"
    assert point["content"] == "random"
    assert abs(point["cached_share"] - point["expected_cached_share"]) < 0.05
    assert not any("sent before" in reason for reason in point["validity_reasons"])
    best = subprocess.run(
        [*command, "best", str(results)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "under no latency limits (attainment>=0.95)" in best.stdout
