"""What ``orchestrator simulate`` costs for a grid, with its rows, its answer and its page: CPU
seconds of one core, and memory.

    taskset -c 0 python -m benchmarks.simulate.grid [--deployments 200] [--levels 10]
        [--requests 2000]

Deployments of Llama-3.1-8B on H100 differ in tensor parallelism, sequences and tokens of a batch,
which all change the steps. Levels are request rates from idle to far more than the smallest
deployment can do.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXPERIMENT = """
version: 1
name: grid
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8}}}}
deployments:
  engine: vllm
  hardware: h100
  max_model_len: 8192
  vary:
    - grid:
        tensor_parallel_size: [1, 2, 4, 8]
        max_num_seqs: [{seqs}]
        max_num_batched_tokens: [2048, 4096, 8192, 16384, 32768]
workloads:
  - name: chat
    input_tokens: {{lognormal: {{mean: 600, sigma: 0.8, max: 4096}}}}
    output_tokens: {{lognormal: {{mean: 250, sigma: 0.6, max: 1024}}}}
load: {{levels: {{request_rate: [{rates}]}}, requests: {requests}}}
slos: {{interactive: {{ttft: 500ms, tpot: 50ms, attainment: 0.95}}}}
"""
PER_SEQS = 4 * 5  # deployments for each number of sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--levels", type=int, default=10)
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    seqs = ", ".join(str(16 * (step + 1)) for step in range(options.deployments // PER_SEQS))
    rates = ", ".join(str(2 * (step + 1)) for step in range(options.levels))
    text = EXPERIMENT.format(seqs=seqs, rates=rates, requests=options.requests)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grid.yaml"
        file.write_text(text)
        results = Path(folder) / "results"
        command = ["orchestrator", "simulate", str(file), "--results", str(results)]
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-m", *command], check=True)
        took_s = time.monotonic() - began_s
        files = [path for path in results.rglob("*") if path.is_file()]
        megabytes = sum(path.stat().st_size for path in files) / 1e6
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{used.ru_utime + used.ru_stime:.1f} s CPU, {took_s:.1f} s, "
        f"{used.ru_maxrss / 1e3:.0f} MB of memory, {len(files)} files of {megabytes:.0f} MB"
    )


if __name__ == "__main__":
    main()
