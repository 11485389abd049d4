"""``orchestrator run --address local``: a whole sweep on this machine, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.harness import ROOT, assert_nothing_left, assert_rows_equal_schedule, environment, rows, write_experiment

EXPERIMENT = """
version: 1
name: here
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  vary:
    - cases: [{max_num_seqs: 4}, {nnodes: 2, tensor_parallel_size: 2}]
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: 1s, warmup: 0s}
"""


def test_a_sweep_runs_where_ray_is_not_even_installed_and_what_needs_two_nodes_is_a_failure(tmp_path: Path) -> None:
    experiment, results = write_experiment(tmp_path, EXPERIMENT), tmp_path / "results"
    program = "import sys; sys.modules['ray'] = None; from orchestrator.cli.main import main; main()"
    argv = ["run", str(experiment), "--results", str(results), "--address", "local"]
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3, done.stderr
    assert "1 measured" in done.stderr
    assert "1 failed" in done.stderr
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    points = {row["status"]: row for row in rows(results, "points")}
    assert points["ok"]["validity"] in ("valid", "client_bound")  # a busy test machine may well be too slow
    assert "cannot hold 2 nodes" in points["failed"]["reason"]
    assert {row["status"] for row in rows(results, "requests")} == {"ok"}
