"""A host's readings: from files whose content is known, and from this host while it works."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from orchestrator.results.schemas import TABLES
from orchestrator.telemetry.host import HostReader
from orchestrator.telemetry.processes import TICKS, SweepProcesses
from tests.unit.telemetry.test_processes import burn, burner

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth0: 1000 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0
  eth1:200 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
docker0: 1000 1 0 0 0 0 0 0 50 1 0 0 0 0 0 0
"""


class FakeHost:
    """A /proc of two cores without processes, and a clock."""

    def __init__(self, folder: Path, *physical: str) -> None:
        self.proc = folder / "proc"
        self.network = folder / "network"
        (self.proc / "net").mkdir(parents=True)
        (self.proc / "net/dev").write_text(NETWORK)
        (self.proc / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:   300 kB\n")
        for name in physical:
            (self.network / name / "device").mkdir(parents=True)
        self.now_s = 100.0
        self.work(0.0)

    def work(self, busy_s: float) -> None:
        """What both cores have used since boot."""
        ticks = round(busy_s * TICKS)
        (self.proc / "stat").write_text(f"cpu {ticks} 0 0 77 5 9 9 0\ncpu0 1 2\ncpu1 1 2\nintr 3\n")

    def reader(self) -> HostReader:
        processes = SweepProcesses([], proc=self.proc)
        return HostReader(processes, self.proc, self.network, lambda: self.now_s)


def test_shares_of_cpu_are_of_all_cores_since_the_last_reading(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    reader = host.reader()
    assert "cpu_share" not in reader.read().values
    host.work(1.5)
    host.now_s += 2.0
    values = reader.read().values
    assert values["cpu_share"] == pytest.approx(1.5 / 4)
    assert values["foreign_cpu_share"] == values["cpu_share"], "none of it is ours"


def test_the_share_of_other_programs_is_since_the_last_reading_that_has_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    reader = host.reader()
    reader.read()
    host.work(1.0)
    host.now_s += 1.0
    between = reader.read(with_foreign=False).values
    assert between["cpu_share"] == pytest.approx(1.0 / 2)
    assert "foreign_cpu_share" not in between
    host.work(4.0)
    host.now_s += 4.0
    values = reader.read().values
    assert values["cpu_share"] == pytest.approx(3.0 / 8)
    assert values["foreign_cpu_share"] == pytest.approx(4.0 / 10)


def test_memory_that_is_free_is_what_programs_can_get(tmp_path: Path) -> None:
    assert FakeHost(tmp_path).reader().read().values["free_bytes"] == 300 * 1024


@pytest.mark.parametrize(
    ("physical", "received", "sent"), [(("eth0", "eth1"), 1200, 55), ((), 2200, 105)]
)
def test_bytes_of_bridges_do_not_count_twice(
    physical: tuple[str, ...], received: int, sent: int, tmp_path: Path
) -> None:
    values = FakeHost(tmp_path, *physical).reader().read().values
    assert (values["network_rx_bytes"], values["network_tx_bytes"]) == (received, sent)


def test_a_host_without_these_files_has_only_its_processes(tmp_path: Path) -> None:
    processes = SweepProcesses([], proc=tmp_path)
    assert set(HostReader(processes, tmp_path).read().values) == {
        "engine_cpu_s",
        "engine_rss_bytes",
    }


def test_this_host_is_read_while_a_process_works() -> None:
    """A launch of one process that uses 0.3 s of CPU and holds 64 MiB."""
    with burner(64 << 20) as process:
        processes = SweepProcesses([process.pid], [os.getpid()])
        processes.look()
        reader = HostReader(processes)
        before = reader.read()
        burn(process, 0.3)
        after = reader.read()
    assert set(after.values) <= set(TABLES["hosts"].names)
    assert after.values["engine_cpu_s"] == pytest.approx(0.3, abs=0.04)
    assert after.values["engine_rss_bytes"] > 64 << 20
    cores = os.cpu_count() or 1
    took_s = (after.unix_ns - before.unix_ns) / 1e9
    own_share = 0.3 / took_s / cores
    assert after.values["cpu_share"] >= own_share * 0.9
    foreign = after.values["cpu_share"] - after.values["foreign_cpu_share"]
    assert foreign == pytest.approx(own_share, rel=0.2)
    available = psutil.virtual_memory().available
    assert after.values["free_bytes"] == pytest.approx(available, rel=0.2)
