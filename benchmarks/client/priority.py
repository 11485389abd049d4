"""What real-time scheduling of the load thread does to the engine beside it, and to the client's
own figures.

    python benchmarks/client/priority.py URL --pid PID [--model M] [--cores 0,1] [--concurrency 8]
    [--repeats 3]

URL is an engine on this machine with vLLM's metrics (vLLM, or `orchestrator emulator`), PID its
first process. The load thread runs in turn as `normal` (what every process is), `nice` (niceness
-10) and `realtime` (SCHED_RR; needs root), same requests, closed loop. What the engine did is taken
from the engine: CPU time of its process tree from /proc, time per output token from its own
/metrics. Pin the engine with taskset and the client with --cores to see them share a core, or not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import urllib.request

import numpy as np
from measure import CpuMeter

from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import IdRange

MODES = ("normal", "nice", "realtime")
TPOT = "vllm:request_time_per_output_token_seconds"
COLUMNS = (
    "tokens/s", "engine CPU ms/token", "engine TPOT ms", "client CPU µs/token", "TTFT p50 ms", "TTFT p99 ms",
    "ITL p99 ms", "loop lag p99 ms", "send lag p99 ms",
)  # fmt: skip


def engine_tpot(url: str) -> tuple[float, float]:
    """Sum (s) and number of what the engine counted so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [
        sum(float(line.split()[-1]) for line in lines if line.startswith(f"{TPOT}_{kind}"))
        for kind in ("sum", "count")
    ]
    return found[0], found[1]


def run_once(args: argparse.Namespace, mode: str, seed: int) -> dict[str, float]:
    """One load; figures by the names of COLUMNS."""
    point = LoadPoint(
        targets=(Target(args.url, args.model),),
        dialect=Dialect(
            "openai_completions", "/v1/completions", prompt_token_ids=True, return_token_ids=True
        ),
        workload=RandomWorkload(
            name="priority",
            input_tokens=Lengths(fixed=args.input_tokens),
            output_tokens=Lengths(fixed=args.output_tokens),
        ),
        level=Level(control="concurrency", value=args.concurrency),
        arrivals=Arrivals(),
        duration_s=None,
        requests=args.requests,
        seed=seed,
        id_range=IdRange(300, 1500),
    )
    client = LoadClient(priority=mode)
    client.prepare(point)
    meter = CpuMeter(args.pid)
    meter.sample()
    tpot, began = engine_tpot(args.url), time.monotonic_ns()
    result = client.run(time.monotonic_ns())
    wall_s = (time.monotonic_ns() - began) / 1e9
    meter.sample()
    after = engine_tpot(args.url)
    if result.stats.priority != mode:
        raise SystemExit(f"this process may not run as {mode}: it was {result.stats.priority}")
    rows, stats = result.requests, result.stats
    if set(rows["status"].to_pylist()) != {"ok"}:
        raise SystemExit(
            f"not all requests were ok: {next(text for text in rows['error'].to_pylist() if text)}"
        )
    tokens = float(np.sum(rows["output_tokens"].to_numpy()))
    ttft_ms = (rows["first_token_ns"].to_numpy() - rows["scheduled_ns"].to_numpy()) / 1e6
    gaps_ms = result.token_events["gaps_us"].combine_chunks().flatten().to_numpy() / 1e3
    return dict(
        zip(
            COLUMNS,
            (
                tokens / wall_s,
                1e3 * (meter.samples[-1][1] - meter.samples[-2][1]) / tokens,
                1e3 * (after[0] - tpot[0]) / max(after[1] - tpot[1], 1),
                1e6 * stats.cpu_s / tokens,
                float(np.quantile(ttft_ms, 0.5)),
                float(np.quantile(ttft_ms, 0.99)),
                float(np.quantile(gaps_ms, 0.99)),
                stats.loop_lag_p99_ms,
                stats.send_lag_p99_ms,
            ),
            strict=True,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument(
        "--cores", help="of the client, like 0,1; all that this process may use unless given"
    )
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})
    run_once(args, "normal", seed=0)  # the engine's caches and ours
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for repeat in range(args.repeats):
        for mode in MODES if repeat % 2 == 0 else reversed(MODES):
            found[mode].append(run_once(args, mode, seed=1 + repeat))
    print("| load thread | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
    for mode, runs in found.items():
        medians = [statistics.median(run[column] for run in runs) for column in COLUMNS]
        print(f"| {mode} | " + " | ".join(f"{value:.3f}" for value in medians) + " |")


if __name__ == "__main__":
    main()
