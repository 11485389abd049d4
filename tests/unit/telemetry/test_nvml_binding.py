"""What the reader of NVIDIA's GPUs hands to the real pynvml, by a library with NVML's binary
interface: ids and scopes of fields, types of values, the order of GPM samples.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GIB = 2**30
READINGS = """
import ctypes, json
from itertools import count
import pynvml
from orchestrator.telemetry.gpu_sample import GpuLost
from orchestrator.telemetry.nvidia import NvidiaGpu, NvidiaGpus

group = NvidiaGpus(["GPU-7"])
group.open()
reader = NvidiaGpu("GPU-7", clock=count(step=0.5).__next__)
readings = [reader.read() for _ in range(3)]
foreign_bytes = reader.foreign_bytes({11})
try:
    group.reader("GPU-8")
except GpuLost as error:
    lost = str(error)
reader.close()
group.close()
open_ends = ctypes.CDLL("libnvidia-ml.so.1").open_ends()
print(json.dumps([readings, foreign_bytes, lost, open_ends]))
"""


def test_the_real_pynvml_understands_what_the_reader_asks(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here, so pynvml's calls are not checked")
    source = Path(__file__).with_name("nvml_library.c")
    library = tmp_path / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    read = subprocess.run(
        [sys.executable, "-c", READINGS],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    (first, second, third), foreign_bytes, lost, open_ends = json.loads(read.stdout)
    assert (
        third
        == second
        == {
            "power_w": 650.123,
            "energy_mj": 5_000_000_000,
            "memory_temperature_c": 71,
            "ecc_uncorrected": 2,
            "throttled_ns_power": 5_000_000_000,
            "throttled_ns_thermal": 75,
            "throttled_ns_hw": 15,
            "nvlink_bytes": 2 * 40 * 1024,
            "field_latency_us": 19,
            "sm_mhz": 1755,
            "memory_mhz": 2619,
            "temperature_c": 61,
            "event_reasons": 4,
            "used_bytes": 70 * GIB,
            "busy_share": 0.97,
            "dram_share": 0.6,
            "tensor_share": 0.3,
        }
    )
    assert set(second) - set(first) == {"dram_share", "tensor_share", "throttled_ns_thermal"}
    assert foreign_bytes == 5 * GIB
    assert lost == "its driver does not list it"
    assert open_ends == 0, "what was opened or allocated was closed and freed"
