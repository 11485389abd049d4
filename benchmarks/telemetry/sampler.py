"""What sampling a node costs: fake GPUs and the host, twice a second, beside many processes.

    python benchmarks/telemetry/sampler.py [--seconds 60] [--gpus 8] [--processes 100]
    python benchmarks/telemetry/sampler.py --launches 8 --gpus 1 --processes 12

``--gpus`` and ``--processes`` are those of each launch. Each launch has a sampler in a process of
its own, as its agent has, and knows the processes of the other launches as those of its sweep.

The GPUs answer at once, so the time that a driver takes for a call is missing. A launch is a
family of sleeping processes. Prints one JSON document; exit status 1 when the samplers together
take more than 1 % of a core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from orchestrator.telemetry.node_sampler import INTERVAL_S, NodeSampler, NodeTelemetry
from orchestrator.telemetry.nvidia import NvidiaGpus
from orchestrator.telemetry.processes import SweepProcesses
from tests.unit.telemetry.fake_nvml import FakeGpu, FakeNvml

MOST_CORE_SHARE = 0.01


def sample_launch(
    seconds: float, gpu_count: int, launch_pids: Sequence[int], other_pids: Sequence[int]
) -> NodeTelemetry:
    """What the sampler of one launch reads in so many seconds."""
    gpus = [FakeGpu(f"GPU-{index}", processes=[(launch_pids[0], 1)]) for index in range(gpu_count)]
    group = NvidiaGpus([gpu.uuid for gpu in gpus], FakeNvml(*gpus))
    sampler = NodeSampler(
        [group], lambda: SweepProcesses(launch_pids, other_pids), watches_host=True
    )
    sampler.start()
    time.sleep(seconds)
    return sampler.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=100)
    options = parser.parse_args()
    total_processes = options.launches * options.processes
    processes = [subprocess.Popen(["sleep", "3600"]) for _ in range(total_processes)]
    pids = [process.pid for process in processes]
    began_s = time.monotonic()
    with ProcessPoolExecutor(options.launches) as pool:
        readings = []
        for first in range(0, total_processes, options.processes):
            launch_pids = pids[first : first + options.processes]
            other_pids = pids[:first] + pids[first + options.processes :]
            readings.append(
                pool.submit(sample_launch, options.seconds, options.gpus, launch_pids, other_pids)
            )
        telemetry = [reading.result() for reading in readings]
    took_s = time.monotonic() - began_s
    for process in processes:
        process.kill()
        process.wait()
    cpu_s = sum(node.host_samples[-1].values["sampler_cpu_s"] for node in telemetry)
    samples = sum(len(node.host_samples) for node in telemetry)
    result = {
        "launches": options.launches,
        "gpus_of_each_launch": options.gpus,
        "processes_of_each_launch": options.processes,
        "seconds": round(took_s, 1),
        "interval_s": INTERVAL_S,
        "samples": samples,
        "gpu_rows": sum(len(node.gpu_samples) for node in telemetry),
        "cpu_ms_per_sample": round(1e3 * cpu_s / samples, 2),
        "core_share": round(cpu_s / took_s, 4),
    }
    print(json.dumps(result, indent=1))
    return int(result["core_share"] > MOST_CORE_SHARE)


if __name__ == "__main__":
    sys.exit(main())
