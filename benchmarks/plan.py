"""How long planning takes: an experiment of 10,000 combinations, read, checked, planned and
written, on one core.

    python benchmarks/plan.py [--combinations 10000 [--all-run]] [--levels 4] [--predict [--tables]]
    [--limit-s 10]
        [--limit-mb 400]

Prints one JSON document with the seconds of each part: of the processor, and of the clock in all.
Exit status 1 when the processor was busy for longer than the limit, the command that writes and
shows this plan took more memory than its limit, or the plan read back differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

# the catalogue knows the model; a network would only add noise
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.spec.experiment import parse_experiment

EXPERIMENT = """
version: 1
name: ten-thousand
model: {{id: {model}}}
hardware:
  h100: {{accelerator: H100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 2.99}}
  h200: {{accelerator: H200-141GB, gpus_per_node: 8, usd_per_gpu_hour: 3.79}}
  a100: {{accelerator: A100-80GB, gpus_per_node: 8, usd_per_gpu_hour: 1.79}}
deployments:
  engine: vllm
  vary:
    - grid: {{hardware: [h100, {other}], tensor_parallel_size: [1, 2, 4, 8{more}], pipeline_parallel_size: {stages}}}
    - zip: {{quantization: [null, fp8_per_tensor], kv_cache_dtype: [auto, fp8]}}
    - grid: {{max_model_len: [4096, 8192, 16384, 32768, 65536], max_num_seqs: {sequences}}}
  derive: {{gpus: tensor_parallel_size * pipeline_parallel_size}}
  exclude: ["gpus > 64", "hardware == 'a100' and kv_cache_dtype == 'fp8'"]
workloads:
  - {{name: chat, input_tokens: {{lognormal: {{mean: 600, sigma: 0.8, max: 3000}}}}, output_tokens: 250}}
load:
  levels: {{request_rate: {levels}}}
predictions: {{tables: {tables}}}
"""
# What varies, and the combinations for each value of max_num_seqs.
SOME_RUN = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "other": "a100",
    "more": ", 16",
    "stages": [1, 2, 4, 8],
}
SOME_PER_SEQUENCES = 2 * 5 * 4 * 2 * 5
ALL_RUN = {"model": "meta-llama/Llama-3.1-8B-Instruct", "other": "h200", "more": "", "stages": [1]}
ALL_PER_SEQUENCES = 2 * 4 * 1 * 2 * 5


def command_rss_bytes(source: str, options: list[str]) -> int:
    """Most memory that ``orchestrator plan`` takes for this experiment, with the plan written and
    shown as JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(source)
        said = ["--format", "json", "--output", str(path.with_suffix(".json")), *options]
        command = [sys.executable, "-m", "orchestrator", "plan", str(path), *said]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--combinations", type=int, default=10_000)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument(
        "--all-run", action="store_true", help="a model and GPUs that leave no combination out"
    )
    parser.add_argument(
        "--predict", action="store_true", help="what each is predicted to hold, too"
    )
    parser.add_argument(
        "--tables", action="store_true", help="predicted from tables of kernels (extra [tables])"
    )
    parser.add_argument("--limit-s", type=float, default=10.0)
    parser.add_argument("--limit-mb", type=float, default=400.0)
    arguments = parser.parse_args()
    varied, each = (
        (ALL_RUN, ALL_PER_SEQUENCES) if arguments.all_run else (SOME_RUN, SOME_PER_SEQUENCES)
    )
    sequences = [16 + 8 * index for index in range(-(-arguments.combinations // each))]
    levels, tables = list(range(1, arguments.levels + 1)), json.dumps(arguments.tables)
    source = EXPERIMENT.format(sequences=sequences, levels=levels, tables=tables, **varied)
    # before anything is planned here: a new process begins with the memory of its parent, as the
    # kernel counts it
    rss_bytes = command_rss_bytes(source, ["--predict"] if arguments.predict else [])
    began = time.perf_counter()
    marks = [time.process_time()]
    experiment = parse_experiment(source)
    marks.append(time.process_time())
    combinations = len(experiment.combinations)
    plan = make_plan(experiment)
    marks.append(time.process_time())
    if arguments.predict:
        plan = with_predictions(plan)
    marks.append(time.process_time())
    text = plan.to_json()
    marks.append(time.process_time())
    again = Plan.from_json(text)
    marks.append(time.process_time())
    parts_s = [end - begin for begin, end in itertools.pairwise(marks)]
    whole_s = sum(parts_s)
    wall_s = time.perf_counter() - began
    result = {
        "combinations": combinations,
        **asdict(PlanEstimate(plan).totals()),
        **dict(
            zip(("read_s", "plan_s", "predict_s", "write_s", "read_plan_s"), parts_s, strict=True)
        ),
        "whole_s": whole_s,
        "wall_s": wall_s,
        "plan_bytes": len(text),
        "peak_rss_bytes": rss_bytes,
        "round_trip_exact": again == plan,
    }
    print(json.dumps(result, indent=2))
    within = whole_s <= arguments.limit_s and rss_bytes <= arguments.limit_mb * 1e6
    return 0 if within and again == plan else 1


if __name__ == "__main__":
    sys.exit(main())
