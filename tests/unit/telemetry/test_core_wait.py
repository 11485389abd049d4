"""What the kernel says of an engine's threads: how long they ran, and waited for cores."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from orchestrator.telemetry.core_wait import CoreUse, CoreWait, core_use, core_wait
from orchestrator.telemetry.processes import TICKS


def write_stat(proc: Path, *busy_s: float) -> None:
    """/proc/stat of a host whose cores were busy for so long since its boot, a third of it each in
    user, nice and system.
    """
    lines = ["cpu 1 2 3 4"]
    for number, seconds in enumerate(busy_s):
        ticks = round(seconds * TICKS / 3)
        lines.append(f"cpu{number} {ticks} {ticks} {ticks} 999 7 7 7 0 0 0")
    (proc / "stat").write_text("\n".join([*lines, "intr 5", ""]))


def write_thread(
    proc: Path,
    pid: int,
    thread: int,
    ran_s: float,
    waited_s: float,
    cores: str = "0-1",
    runs: int = 0,
) -> None:
    folder = proc / str(pid) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{round(ran_s * 1e9)} {round(waited_s * 1e9)} {runs}\n")
    (folder / "status").write_text(f"Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{cores}\n")


def test_the_waits_of_all_threads_count(tmp_path: Path) -> None:
    write_stat(tmp_path, 3, 3)
    write_thread(tmp_path, 7, 7, ran_s=1, waited_s=0.5)
    before = core_use([7], tmp_path)
    write_stat(tmp_path, 9, 12)
    write_thread(tmp_path, 7, 7, ran_s=3, waited_s=2)
    write_thread(tmp_path, 7, 8, ran_s=4, waited_s=1)  # began meanwhile
    wait = core_wait(before, core_use([7], tmp_path))
    assert wait == CoreWait(ran_s=6, waited_s=2.5, others_s=pytest.approx(9))


def test_what_waking_takes_on_an_idle_host_is_no_wait(tmp_path: Path) -> None:
    write_stat(tmp_path, 3, 3)
    write_thread(tmp_path, 7, 7, ran_s=1, waited_s=1, runs=1_000)
    write_thread(tmp_path, 7, 8, ran_s=1, waited_s=1, runs=1_000)
    before = core_use([7], tmp_path)
    write_stat(tmp_path, 90, 90)
    # 100 µs of work and 20 µs of waking each time
    write_thread(tmp_path, 7, 7, ran_s=21, waited_s=5, runs=201_000)
    # waits of 5 ms
    write_thread(tmp_path, 7, 8, ran_s=21, waited_s=6, runs=2_000)
    wait = core_wait(before, core_use([7], tmp_path))
    assert wait is not None
    assert wait.ran_s == 40
    assert wait.waited_s == pytest.approx(5 - 1_000 * 50e-6)


def test_a_thread_with_the_id_of_one_that_has_ended_is_another_one(tmp_path: Path) -> None:
    write_stat(tmp_path, 3, 3)
    write_thread(tmp_path, 7, 8, ran_s=50, waited_s=10, runs=1_000_000)
    before = core_use([7], tmp_path)
    write_thread(tmp_path, 7, 8, ran_s=2, waited_s=1, runs=0)
    wait = core_wait(before, core_use([7], tmp_path))
    assert wait == CoreWait(ran_s=2, waited_s=1, others_s=0)


def test_cores_on_which_the_engine_may_not_run_are_not_its_own(tmp_path: Path) -> None:
    write_stat(tmp_path, *[0.0] * 9)
    before = core_use([], tmp_path)
    write_stat(tmp_path, 12, 3, 3, 3, 3, 3, 3, 3, 6)
    write_thread(tmp_path, 7, 7, ran_s=5, waited_s=4, cores="1-2,8")
    wait = core_wait(before, core_use([7], tmp_path))
    assert wait is not None
    assert wait.others_s == pytest.approx(3 + 3 + 6 - 5)


def test_nothing_is_known_without_threads_or_without_the_kernels_counts(tmp_path: Path) -> None:
    write_stat(tmp_path, 3)
    nothing = core_use([7], tmp_path)
    assert core_wait(nothing, nothing) is None
    write_thread(tmp_path, 7, 7, ran_s=1, waited_s=1)
    (tmp_path / "7/task/7/schedstat").unlink()
    assert core_wait(nothing, core_use([7], tmp_path)) is None


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("0::/pod/engine", "pod/engine"),  # version 2
        ("0::/pod/engine", "pod"),
        ("0::/", ""),  # in a container with a name space of its own
        ("4:cpu,cpuacct:/pod/engine", "cpu,cpuacct/pod"),  # version 1
        ("4:cpuacct,cpu:/pod/engine", "cpu/pod"),  # version 1, as RHEL 7 writes it
    ],
)
def test_nothing_is_known_of_an_engine_that_a_limit_on_its_cpu_held_back(
    tmp_path: Path, line: str, folder: str
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write_thread(proc, 7, 7, ran_s=1, waited_s=9)
    write_stat(proc, 3, 3)
    (proc / "7/cgroup").write_text(f"9:memory:/pod/engine\n{line}\n")
    (groups / folder).mkdir(parents=True)
    statistics = groups / folder / "cpu.stat"

    def used(throttles: int) -> CoreUse:
        statistics.write_text(f"nr_periods 50\nnr_throttled {throttles}\n")
        return core_use([7], proc, groups)

    assert core_wait(used(4), used(4)) is not None
    assert core_wait(used(4), used(5)) is None


@pytest.mark.parametrize(
    ("wait", "foreign_s", "lost_s"),
    [
        (CoreWait(ran_s=18, waited_s=9, others_s=8), 7.0, 7.0),
        (CoreWait(ran_s=18, waited_s=0.1, others_s=80), 70.0, 0.1),  # there were idle cores
        (CoreWait(ran_s=18, waited_s=9, others_s=0.2), 70.0, 0.2),  # it waited for itself
        (CoreWait(ran_s=18, waited_s=9, others_s=8), 0.0, 0.0),  # its clients used its cores
    ],
)
def test_what_others_took_is_bounded_by_each_count(
    wait: CoreWait, foreign_s: float, lost_s: float
) -> None:
    assert wait.lost_s(foreign_s) == lost_s
    assert wait.lost_share(foreign_s) == pytest.approx(lost_s / (18 + lost_s))


def test_an_engine_that_never_ran_lost_nothing() -> None:
    assert CoreWait(0.0, 0.0, 5.0).lost_share(5.0) == 0.0


def test_the_real_kernel_counts_a_thread_that_computes() -> None:
    before = core_use([os.getpid()])
    thread = threading.Thread(target=lambda: sum(range(3_000_000)))
    thread.start()
    thread.join()
    sum(range(3_000_000))
    after = core_use([os.getpid()])
    if not after.threads:
        pytest.skip("this kernel does not count how long threads wait for cores")
    wait = core_wait(before, after)
    assert wait is not None
    assert wait.ran_s > 0.01
    assert wait.waited_s >= 0
    assert after.cores == os.sched_getaffinity(0)
