"""``orchestrator compare`` on sweeps of emulators and of real vLLM: some slower, some not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import AGAINST_THE_CLOCK, ROOT, orchestrator, rows, write_experiment

PROFILE = """
accelerator: {{name: steady, memory_gb: 80, bandwidth_gb_s: 1.0e+6, tflops: {{bfloat16: 1.0e+6}}}}
constants: {{step_overhead_s: {step_s}, sequence_overhead_s: 0, layer_overhead_s: 0, jitter: 0}}
"""
EXPERIMENT = """
version: 1
name: x
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  profile: ./device.yaml
  max_model_len: 2048
  max_num_seqs: 8
workloads: [{name: chat, input_tokens: 32, output_tokens: 32}]
load: {levels: {concurrency: [4]}, duration: 3s, warmup: 500ms}
repeats: 2
starts: 2
slos: {fast: {ttft: 1s, attainment: 0.9}}
"""


@AGAINST_THE_CLOCK
def test_an_emulator_that_is_8_percent_slower_is_found_with_two_starts(tmp_path: Path) -> None:
    experiment, profile = write_experiment(tmp_path, EXPERIMENT), tmp_path / "device.yaml"
    stores = {"before": 0.02, "again": 0.02, "slower": 0.0216}
    for name, step_s in stores.items():
        profile.write_text(PROFILE.format(step_s=step_s))
        results = str(tmp_path / name)
        done = orchestrator("run", str(experiment), "--results", results, "--address", "local")
        assert done.returncode == 0, done.stderr
    before = str(tmp_path / "before")
    gate = ["--fail-on", "output_token_throughput,tpot_ms.p50", "--format", "json"]

    same = orchestrator("compare", before, str(tmp_path / "again"), *gate)
    assert same.returncode == 0, same.stdout
    counts = json.loads(same.stdout)["counts"]
    assert counts["worse"] == counts["better"] == 0

    slower = orchestrator("compare", before, str(tmp_path / "slower"), *gate)
    assert slower.returncode == 4, slower.stdout
    comparison = json.loads(slower.stdout)
    assert comparison["counts"]["worse"] == 2
    for change in comparison["changes"]:
        assert change["emulated"]
        assert change["base_starts"] == change["new_starts"] == 2
        assert abs(abs(change["change"]) - 0.08) < 0.02


ON_VLLM = f"""
version: 1
name: x
model: {ROOT / ".demo" / "model"}
deployments:
  engine: vllm
  executable: {ROOT / ".engines" / "vllm"}
  hardware: cpu
  dtype: float32
  max_model_len: 1024
  max_num_seqs: SEQUENCES
  enforce_eager: true
  env: {{VLLM_CPU_KVCACHE_SPACE: "1", HF_HUB_OFFLINE: "1"}}
workloads: [{{name: chat, input_tokens: 64, output_tokens: 32}}]
load: {{levels: {{concurrency: [8]}}, duration: 10s, warmup: 3s}}
repeats: 2
starts: 2
"""


MOST_FOREIGN_CPU = 0.1  # share of the machine's time; an engine that computes on it loses as much


def has_lost_cores(results: str) -> bool:
    """Whether other work took much of the CPU from an engine of these results."""
    evidence = [json.loads(row["evidence_json"]) for row in rows(results, "points")]
    return any(each["foreign_cpu_share"] > MOST_FOREIGN_CPU for each in evidence)


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_vllm_is_not_worse_than_itself_and_worse_with_one_sequence(tmp_path: Path) -> None:
    for name, sequences in (("before", 16), ("again", 16), ("slower", 1)):
        experiment = write_experiment(tmp_path, ON_VLLM.replace("SEQUENCES", str(sequences)))
        done = orchestrator(
            "run",
            str(experiment),
            *("--results", str(tmp_path / name), "--address", "local"),
            timeout_s=1500,
        )
        if has_lost_cores(str(tmp_path / name)):
            pytest.skip("other work held the cores, so the sweeps say nothing of the engine")
        assert done.returncode == 0, done.stderr

    def compared(new: str, *options: str) -> dict[str, Any]:
        sides = [str(tmp_path / "before"), str(tmp_path / new)]
        gate = ["--fail-on", "output_token_throughput", "--format", "json", *options]
        done = orchestrator("compare", *sides, *gate)
        comparison: dict[str, Any] = json.loads(done.stdout)
        print(f"before and {new}: status {done.returncode}", comparison["changes"])
        assert done.returncode == (4 if comparison["regression"] else 0), done.stderr
        (change,) = comparison["changes"]
        return change

    assert compared("again")["verdict"] != "worse"
    slower = compared("slower", "--across", "max_num_seqs")
    assert slower["verdict"] == "worse"
    assert slower["change"] < -0.3  # one sequence at a time, where eight are in flight
