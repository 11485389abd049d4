"""CPU of a host: what others used is told from what our processes did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from orchestrator.telemetry.host_cpu import (
    CpuTimes,
    ForeignCpu,
    ProcessKey,
    Snapshot,
    foreign,
    snapshot,
)


def used(alone: dict[tuple[int, float], float]) -> dict[ProcessKey, CpuTimes]:
    """CPU times of processes without children. ``alone``: pid, when it began -> seconds."""
    return {
        ProcessKey(pid, began_s): CpuTimes(seconds, seconds)
        for (pid, began_s), seconds in alone.items()
    }


def used_with_children(
    pid: int, alone_s: float, with_children_s: float
) -> dict[ProcessKey, CpuTimes]:
    return {ProcessKey(pid, 0.0): CpuTimes(alone_s, with_children_s)}


STAT = """cpu  200 0 100 900 50 0 100 7 0 0
cpu0 100 0 50 450 25 0 50 0 0 0
cpu1 100 0 50 450 25 0 50 7 0 0
intr 1
"""


def test_idle_time_waiting_for_disks_interrupts_and_time_stolen_are_no_use(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    found = snapshot(tmp_path / "stat")
    assert (found.busy_s * os.sysconf("SC_CLK_TCK"), found.cores) == (300, 2)


def test_use_counts_since_the_first_snapshot_or_a_later_start() -> None:
    before = Snapshot(0.0, 100.0, 4, used({(1, 0.0): 5.0, (2, 0.0): 50.0}))
    after = Snapshot(10.0, 120.0, 4, used({(1, 0.0): 9.0, (2, 0.0): 60.0, (3, 5.0): 2.0}))
    assert foreign(before, after, {1, 3}) == ForeignCpu(14.0, 0.35)
    assert foreign(before, after, {1, 2, 3}) == ForeignCpu(4.0, 0.1)
    again = Snapshot(10.0, 120.0, 4, used({(1, 7.0): 3.0}))
    assert foreign(before, again, {1}) == ForeignCpu(17.0, 0.425), "the same pid, another process"


def test_children_of_ours_are_ours_and_what_they_ended_with_counts() -> None:
    before = Snapshot(0.0, 100.0, 2, used_with_children(9, 1.0, 1.0))
    after = Snapshot(
        10.0,
        118.0,
        2,
        used({(7, 1.0): 2.0, (8, 1.0): 3.0, (5, 1.0): 4.0}) | used_with_children(9, 1.5, 7.0),
    )
    tree = replace(after, parents={9: 1, 8: 9, 7: 8, 5: 1})
    assert foreign(before, tree, {9}) == ForeignCpu(7.0, 0.35)
    assert foreign(before, tree, ()) == ForeignCpu(18.0, 0.9)
    assert foreign(before, tree, {1}) == ForeignCpu(18.0, 0.9)


def test_use_of_our_ended_processes_is_not_that_of_others() -> None:
    before = Snapshot(0.0, 100.0, 2, used({(1, 0.0): 5.0, (2, 0.0): 50.0, (3, 0.0): 1.0}))
    # 3 waited for 2, which was ours
    after = Snapshot(10.0, 118.0, 2, used({(1, 0.0): 9.0}) | used_with_children(3, 2.5, 14.0))
    assert foreign(before, after, {1}) == ForeignCpu(14.0, 0.7)
    assert foreign(before, after, {1}, some_ended=True) == ForeignCpu(1.5, 0.075)
    busy = replace(after, processes=after.processes | used({(4, 2.0): 16.0}))
    assert foreign(before, busy, {1}, some_ended=True) == ForeignCpu(14.0, 0.7), (
        "never more than all but ours"
    )


def test_nothing_is_known_where_it_cannot_be_read(tmp_path: Path) -> None:
    none = snapshot(tmp_path / "missing")
    assert foreign(none, none, ()) == ForeignCpu(0.0, 0.0)


def test_a_process_that_burns_a_core_is_seen_and_told_from_ours() -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = snapshot()
        used_s, end_s = 0.0, time.monotonic() + 30
        while used_s < 0.3 and time.monotonic() < end_s:  # others may be busy too
            time.sleep(0.1)
            after = snapshot()
            all_used = foreign(before, after, ())
            without_burning = foreign(before, after, {burning.pid})
            used_s = all_used.seconds - without_burning.seconds
        assert used_s >= 0.3
        assert foreign(before, after, ()).share > 0.0
        assert after.parents[burning.pid] == os.getpid()
    finally:
        burning.kill()
        burning.wait()
