"""Facts that a node reports of itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.cluster import machine_facts
from orchestrator.cluster.base import Machine, NoAnswer
from orchestrator.cluster.local import LocalProbes
from orchestrator.cluster.machine_facts import cgroup, try_results

GIB = 2**30


def test_tightest_cgroup_counts(tmp_path: Path) -> None:
    outer, inner = tmp_path / "sys/fs/cgroup/a", tmp_path / "sys/fs/cgroup/a/b"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (outer / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (outer / "memory.max").write_text(f"{4 * GIB}\n")
    (inner / "memory.max").write_text(f"{2 * GIB}\n")
    assert cgroup(tmp_path) == {"cpu": 1.5, "memory": 2 * GIB}
    assert cgroup(tmp_path / "nothing") == {}


def test_limits_of_cgroups_of_version_1_count(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(
        "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/a\n1:pids:/\n0::/\n"
    )
    limits = {
        "memory/a/b/memory.limit_in_bytes": 9223372036854771712, "memory/a/memory.limit_in_bytes": 2 * GIB,
        "cpu/a/cpu.cfs_quota_us": 150_000, "cpu/a/cpu.cfs_period_us": 100_000, "cpu/cpu.cfs_quota_us": -1,
    }  # fmt: skip
    for name, limit in limits.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    assert cgroup(tmp_path) == {"cpu": 1.5, "memory": 2 * GIB}


def test_gpus_of_amd_are_readable_nodes_of_the_kernel_that_compute(
    tmp_path: Path,
) -> None:
    # a processor, two GPUs, and one of another container
    for at, simds in enumerate((0, 1216, 1216, None)):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{at}"
        node.mkdir(parents=True)
        (node / "properties").write_text(
            "" if simds is None else f"cpu_cores_count 0\nsimd_count {simds}\nvendor_id 4098\n"
        )
    assert machine_facts._amd_gpus(tmp_path) == 2
    assert machine_facts._amd_gpus(tmp_path / "nothing") == 0


@pytest.mark.parametrize(("state", "is_set"), [(0, True), (1, True), (5, False), (-1, None)])
def test_the_kernel_knows_whether_a_clock_is_kept_right(
    state: int, is_set: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        machine_facts.ctypes, "CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: state)
    )
    assert machine_facts._clock_is_set() is is_set
    monkeypatch.setattr(machine_facts.ctypes, "CDLL", lambda _: SimpleNamespace())
    assert machine_facts._clock_is_set() is None, "a C library without it"


def test_trial_of_the_results_reads_and_writes_a_file(tmp_path: Path) -> None:
    assert "does not see" in try_results(str(tmp_path), "nonce").problem
    (tmp_path / ".doctor-nonce-driver").write_text("seen")
    trial = try_results(str(tmp_path), "nonce")
    assert trial.problem == ""
    assert (tmp_path / trial.key).stat().st_size == machine_facts.WRITTEN_BYTES
    (tmp_path / "file").write_text("")
    assert try_results(str(tmp_path / "file"), "nonce").problem


def test_check_that_raises_on_this_machine_is_no_answer() -> None:
    said = LocalProbes([Machine("one", "10.0.0.1")]).ask(lambda: [][0])
    assert said == {
        "one": NoAnswer(
            "cannot run this program: IndexError: list index out of range", cannot_run=True
        )
    }
