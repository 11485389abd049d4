"""How long ``orchestrator simulate`` takes for a trace in Mooncake's format, over eight replicas.

    python -m benchmarks.simulate.trace [--trace FILE] [--requests 23608] [--replicas 8]

Without a file a trace of that size is made: an hour, sessions whose prompts begin with what was
said before. Prompts have 12,700 tokens on average, 86 % of them seen before, and answers 180. In
the tool and agent trace of Mooncake it is 8,600, 59 % and 180 (Qin et al., FAST 2025). The prefix
caches of eight replicas, which take requests in turn, still have 29 % of the prompts' tokens.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import orjson

from orchestrator.plan.make import make_plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.results.pandas_hook import leave_pandas_out
from orchestrator.results.store import Store
from orchestrator.simulation.sweep import SimulatedSweep
from orchestrator.spec.experiment import parse_experiment

EXPERIMENT = """
version: 1
name: trace
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8}}}}
deployments: {{engine: vllm, hardware: h100, replicas: {replicas}}}
workloads: [{{kind: file, name: trace, prompts: {trace}}}]
load: {{arrivals: {{process: trace, trace: {trace}, speed_up: 1000}}, requests: {requests}}}
slos: {{interactive: {{ttft: 2s, tpot: 50ms, attainment: 0.9}}}}
"""
HOUR_MS = 3_600_000
BLOCK = 512  # tokens
SYSTEM_BLOCKS = 4  # that all prompts of a system begin with
SYSTEMS = 8


def made_trace(requests: int, path: Path) -> None:
    """Writes a trace of so many requests."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, HOUR_MS, requests))
    next_block = SYSTEMS * SYSTEM_BLOCKS
    sessions: list[list[int]] = []
    lines: list[bytes] = []
    for time_ms in times.tolist():
        if sessions and rng.random() < 0.85:
            session = sessions.pop(int(rng.integers(max(0, len(sessions) - 200), len(sessions))))
        else:
            system = int(rng.integers(SYSTEMS)) * SYSTEM_BLOCKS
            session = list(range(system, system + SYSTEM_BLOCKS))
        new_blocks = int(rng.geometric(1 / 4))
        session = session + list(range(next_block, next_block + new_blocks))
        next_block += new_blocks
        if len(session) < 60:
            sessions.append(session)
        tokens = len(session) * BLOCK - int(rng.integers(0, BLOCK))
        line = {
            "timestamp": time_ms,
            "input_length": tokens,
            "output_length": int(rng.lognormal(4.8, 0.9)) + 1,
            "hash_ids": session,
        }
        lines.append(orjson.dumps(line))
    path.write_bytes(b"\n".join(lines))


def main() -> None:
    leave_pandas_out()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=23_608)
    parser.add_argument("--replicas", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace
        if trace is None:
            trace = Path(folder) / "trace.jsonl"
            made_trace(options.requests, trace)
        began_s, cpu_s = time.monotonic(), time.process_time()
        text = EXPERIMENT.format(trace=trace, requests=options.requests, replicas=options.replicas)
        plan = with_predictions(make_plan(parse_experiment(text, "trace.yaml")))
        planned_s = time.process_time() - cpu_s
        store = Store.open(f"{folder}/results", plan.name, survives_power_loss=False)
        report = SimulatedSweep(plan, store, lambda item: None, threading.Event()).run()
        spent_s, took_s = time.process_time() - cpu_s, time.monotonic() - began_s
        rows = store.read("requests")
    inputs = rows["input_tokens_asked"].to_numpy()
    cached = rows["cached_tokens"].fill_null(0).to_numpy()
    ok = rows["status"].to_pylist().count("ok")
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{rows.num_rows} requests, {ok} ok, {report.virtual_s / 60:.0f} min of virtual time, "
        f"{inputs.mean():.0f} tokens of prompt, {cached.sum() / inputs.sum():.0%} of them cached: "
        f"{spent_s:.1f} s CPU ({planned_s:.1f} s of it to plan), {took_s:.1f} s, {most_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
