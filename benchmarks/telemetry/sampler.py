"""What sampling a node costs: 8 fake GPUs and the host, twice a second, beside many processes.

    python benchmarks/telemetry/sampler.py [--seconds 60] [--gpus 8] [--processes 100]

The GPUs answer at once, so the time that a driver takes for a call is missing. The launch is a
family of sleeping processes. Prints one JSON document; exit status 1 when the sampler takes more
than 1 % of a core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from orchestrator.telemetry.node_sampler import INTERVAL_S, NodeSampler
from orchestrator.telemetry.nvidia import NvidiaGpus
from orchestrator.telemetry.processes import SweepProcesses
from tests.unit.telemetry.fake_nvml import FakeGpu, FakeNvml

MOST_CORE_SHARE = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--processes", type=int, default=100)
    options = parser.parse_args()
    launch = [subprocess.Popen(["sleep", "3600"]) for _ in range(options.processes)]
    pids = [process.pid for process in launch]
    gpus = [FakeGpu(f"GPU-{index}", processes=[(pids[0], 1)]) for index in range(options.gpus)]
    group = NvidiaGpus([gpu.uuid for gpu in gpus], FakeNvml(*gpus))
    sampler = NodeSampler([group], lambda: SweepProcesses(pids), watches_host=True)
    began_s = time.monotonic()
    sampler.start()
    time.sleep(options.seconds)
    telemetry = sampler.stop()
    took_s = time.monotonic() - began_s
    for process in launch:
        process.kill()
        process.wait()
    cpu_s = telemetry.host_samples[-1].values["sampler_cpu_s"]
    result = {
        "gpus": options.gpus,
        "processes_of_the_launch": options.processes,
        "seconds": round(took_s, 1),
        "interval_s": INTERVAL_S,
        "samples": len(telemetry.host_samples),
        "gpu_rows": len(telemetry.gpu_samples),
        "cpu_ms_per_sample": round(1e3 * cpu_s / len(telemetry.host_samples), 2),
        "core_share": round(cpu_s / took_s, 4),
    }
    print(json.dumps(result, indent=1))
    return int(result["core_share"] > MOST_CORE_SHARE)


if __name__ == "__main__":
    sys.exit(main())
