"""All requests at once: planned, simulated, shown, and ranked by throughput without any limit."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

import orchestrator
from tests.unit.cli.commands import invoke

FILE = """
version: 1
name: offline
model: {id: meta-llama/Llama-3.1-8B-Instruct}
hardware:
  h100: {accelerator: H100-80GB, gpus_per_node: 8}
deployments:
  engine: vllm
  hardware: h100
  max_model_len: 4096
  vary:
    - cases: [{max_num_seqs: 8}, {max_num_seqs: 256}]
workloads:
  - {name: batch, input_tokens: 256, output_tokens: 64}
load:
  levels: {request_rate: [LEVELS]}
  requests: 300
"""


@pytest.fixture
def results(tmp_path: Path) -> str:
    return simulated(tmp_path, "inf")


def simulated(tmp_path: Path, levels: str) -> str:
    path = tmp_path / "offline.yaml"
    path.write_text(FILE.replace("LEVELS", levels))
    folder = str(tmp_path / "results")
    done = invoke("simulate", str(path), "--results", folder, "--no-report")
    assert done.status == 0, done.stderr
    return folder


def test_a_plan_says_when_requests_fail(tmp_path: Path) -> None:
    path = tmp_path / "offline.yaml"
    path.write_text(FILE.replace("LEVELS", "inf"))
    done = invoke("plan", str(path))
    assert "one that is not answered within 10 min fails (request_timeout)" in done.stdout


def test_best_ranks_by_throughput_alone(results: str) -> None:
    done = invoke("best", results)
    assert done.status == 0
    first, second = done.stdout.splitlines()[:2]
    assert "under no latency limits (attainment>=0.95)" in first
    assert second.startswith("best: vllm seqs=256 at inf req/s: ")
    assert "limit not reached" not in done.stdout, "nothing is above all requests at once"
    ranked = orchestrator.best(results, library="arrow")
    for row in ranked.to_pylist():  # the engine is the limit, so it may also be faster
        assert row["value.lower"] < row["value"] < row["value.upper"]
    assert ranked["deployment"].to_pylist() == ["vllm seqs=256", "vllm seqs=8"]


def test_the_throughput_is_that_of_all_tokens_until_the_last_answer(results: str) -> None:
    points = orchestrator.points(results, columns="all", library="arrow").to_pylist()
    assert len(points) == 2
    for point in points:
        (requests,) = orchestrator.requests(results, point=point["point_id"])
        ends_ns = requests["done_ns"].to_pylist()
        assert len(ends_ns) == 300
        last_s = max(ends_ns) / 1e9
        assert point["output_token_throughput"] == pytest.approx(300 * 64 / last_s, rel=1e-6)
        assert point["total_token_throughput"] == pytest.approx(300 * 320 / last_s, rel=1e-6)
        assert point["validity"] == "valid"


def test_other_loads_still_need_limits(tmp_path: Path) -> None:
    folder = simulated(tmp_path, "2, inf")
    with pytest.raises(click.UsageError, match="no experiment there names limits"):
        invoke("best", folder)
