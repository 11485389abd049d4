"""``orchestrator compare`` on sweeps of emulators: one that is 8 % slower, and one that is not."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness import AGAINST_THE_CLOCK, orchestrator, write_experiment

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
load: {levels: {concurrency: [2, 4]}, duration: 3s, warmup: 1s}
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
    assert json.loads(same.stdout)["counts"]["same"] == 4

    slower = orchestrator("compare", before, str(tmp_path / "slower"), *gate)
    assert slower.returncode == 4, slower.stdout
    comparison = json.loads(slower.stdout)
    assert comparison["counts"]["worse"] == 4
    for change in comparison["changes"]:
        assert change["emulated"]
        assert change["base_starts"] == change["new_starts"] == 2
        assert abs(abs(change["change"]) - 0.08) < 0.02
