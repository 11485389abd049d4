"""What a host is: from files and a driver whose content is known, and of this host."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from orchestrator.telemetry.environment import host_environment


def test_kernel_cpu_and_gpus_are_named(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "proc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n')
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    gpu = {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H100",
        "memory_bytes": 80,
        "power_limit_w": 700.0,
        "mig": False,
        "pids": [1],
    }
    health = {
        "driver": "570.86",
        "cuda": "12.8",
        "gpus": [gpu, {**gpu, "uuid": "GPU-b"}, {"index": 2, "lost": True}],
    }
    facts = host_environment(["GPU-a"], tmp_path, lambda: health)
    assert (facts["cpu"], facts["system"]) == ("AMD EPYC 9654", "Ubuntu 24.04 LTS")
    assert (facts["driver"], facts["cuda"]) == ("570.86", "12.8")
    expected = {name: gpu[name] for name in gpu if name not in ("index", "pids")}
    assert facts["gpus"] == [expected], "only those that the launch has"


def test_the_gpus_of_amd_are_those_of_their_own_driver(tmp_path: Path) -> None:
    gpu = {"uuid": "amd-1", "name": "MI300X", "memory_bytes": 192, "power_limit_w": 750.0}
    gpu_facts = {"driver": "6.10.5", "gpus": [{**gpu, "mig": None}]}
    facts = host_environment(["amd-1"], tmp_path, dict, lambda names: gpu_facts)
    assert (facts["driver"], facts["gpus"]) == ("6.10.5", [{**gpu, "mig": None}])
    assert "cuda" not in facts


def test_this_host_has_a_kernel_and_cores_and_no_gpus_without_a_driver() -> None:
    facts = host_environment([], read_gpus=dict)
    assert facts["kernel"] == platform.release()
    assert facts["cores"] == os.cpu_count()
    assert facts["memory_bytes"] > 2**28
    assert facts["cpu"]
    assert "driver" not in facts and "gpus" not in facts


def test_what_cannot_be_read_is_none_or_the_architecture(tmp_path: Path) -> None:
    facts = host_environment([], tmp_path, dict)
    assert (facts["system"], facts["cpu"]) == (None, platform.machine())
