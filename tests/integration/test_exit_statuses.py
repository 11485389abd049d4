"""Exit statuses of the real command line: 3 where something asked for has no valid measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.results.store import Store
from tests.in_this_process import Completed, run_here
from tests.unit.plan.stored_sweeps import planned, store_sweep

FILE = """
version: 1
name: nothing
model: some-org/some-model
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8}}
deployments: [{engine: emulator, hardware: h100, extra_args: {--no: true}}]
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, duration: 5s}
"""


def command(*argv: str) -> Completed:
    return run_here(*argv, COLUMNS="80")


def test_a_file_in_which_nothing_can_run_says_so_first_and_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    done = command("plan", str(tmp_path / "x.yaml"))
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("nothing in this file can run: ")
    results = tmp_path / "results"
    ran = command("run", str(tmp_path / "x.yaml"), "--results", str(results), "--address", "local")
    assert ran.returncode == 3, ran.stderr
    assert not results.exists()
    assert ran.stderr.startswith("nothing can run: ")
    assert "next:" not in ran.stderr


@pytest.mark.parametrize(
    ("validity", "status"), [("valid", 0), ("engine_bound_backlog", 0), ("disturbed", 3)]
)
def test_a_ranking_of_nothing_valid_ends_with_3(tmp_path: Path, validity: str, status: int) -> None:
    store_sweep(Store.open(str(tmp_path), "exp"), planned(levels=[2]), validity=validity)
    done = command("best", str(tmp_path), "--slo", "ttft<=10s")
    assert done.returncode == status, f"{done.stdout}{done.stderr}"
