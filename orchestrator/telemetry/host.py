"""Reads a host while a point runs: its CPU, memory and network, in all and of the launch's
processes.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.proc_files import ProcFiles
from orchestrator.telemetry.processes import PROC, TICKS, SweepProcesses

NETWORK = Path("/sys/class/net")
_CORE = re.compile(rb"^cpu[0-9]", re.MULTILINE)  # of /proc/stat
_AVAILABLE = re.compile(rb"^MemAvailable: *([0-9]+) kB", re.MULTILINE)  # of /proc/meminfo


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of a host. ``values``: column of the table ``hosts`` -> value, without columns
    that are unknown.
    """

    unix_ns: int
    values: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class _CpuUse:
    """CPU seconds until ``at_s``: of the whole host since its boot, and of the sweep's processes as
    they were last read.
    """

    at_s: float
    cores: int
    busy_s: float
    sweep_s: float

    def busy_share_since(self, before: "_CpuUse") -> float:
        """The part of all cores' time that anything used since ``before``."""
        # the kernel counts whole ticks, so a full host may seem to be a little more than full
        return min(1.0, (self.busy_s - before.busy_s) / self._all_cores_s(before))

    def foreign_share_since(self, before: "_CpuUse") -> float:
        """The part of all cores' time that other programs than the sweep's used since ``before``."""
        sweep_share = (self.sweep_s - before.sweep_s) / self._all_cores_s(before)
        return max(0.0, self.busy_share_since(before) - sweep_share)

    def _all_cores_s(self, before: "_CpuUse") -> float:
        return (self.at_s - before.at_s) * self.cores


@dataclass(frozen=True, slots=True)
class _InterfaceCounters:
    """Bytes through a network interface since the host's boot."""

    name: str
    received: int
    sent: int


class HostReader:
    """Reads this host again and again. ``processes``: those of the launch and its sweep."""

    def __init__(
        self,
        processes: SweepProcesses,
        proc: Path = PROC,
        network: Path = NETWORK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processes = processes
        self._files = ProcFiles(proc)
        self._clock = clock
        self._cores: int | None = None  # None before the first reading
        # Bridges and tunnels, which are virtual, carry the bytes of other interfaces once more.
        self._physical = {path.parent.name for path in network.glob("*/device")}
        self._last: _CpuUse | None = None
        self._last_with_foreign: _CpuUse | None = None

    def read(self, with_foreign: bool = True) -> HostSample:
        """A reading of the host and of the launch's processes. The first one has no shares of CPU
        time. ``with_foreign``: the sweep's other processes were just read, so that the share of
        other programs is known.
        """
        launch = self._processes.launch
        launch.read()
        values: dict[str, int | float] = {
            "engine_cpu_s": round(launch.cpu_s, 3),
            "engine_rss_bytes": launch.rss_bytes,
        }
        unix_ns = time.time_ns()
        values |= self._cpu_shares(with_foreign)
        values |= self._free_bytes()
        values |= self._network_bytes()
        return HostSample(unix_ns, values)

    def _cpu_shares(self, with_foreign: bool) -> dict[str, float]:
        try:
            if self._cores is None:
                self._cores = len(_CORE.findall(self._files.whole("stat")))
            words = self._files.beginning("stat").split(maxsplit=4)
        except OSError:
            return {}
        # without interrupts: our own packets cause some
        ticks = [int(word) for word in words[1:4]]  # user, nice, system
        now = _CpuUse(self._clock(), self._cores, sum(ticks) / TICKS, self._processes.cpu_s)
        shares: dict[str, float] = {}
        before = self._last
        if before is not None and now.at_s > before.at_s:
            shares["cpu_share"] = now.busy_share_since(before)
        self._last = now
        if with_foreign:
            before = self._last_with_foreign
            if before is not None and now.at_s > before.at_s:
                shares["foreign_cpu_share"] = now.foreign_share_since(before)
            self._last_with_foreign = now
        return shares

    def _free_bytes(self) -> dict[str, int]:
        try:
            available = _AVAILABLE.search(self._files.beginning("meminfo"))
        except OSError:
            return {}
        return {} if available is None else {"free_bytes": int(available[1]) * 1024}

    def _network_bytes(self) -> dict[str, int]:
        interfaces = list(self._interfaces())
        if not interfaces:
            return {}
        physical = [interface for interface in interfaces if interface.name in self._physical]
        counted = physical or interfaces  # a container has only virtual ones
        return {
            "network_rx_bytes": sum(interface.received for interface in counted),
            "network_tx_bytes": sum(interface.sent for interface in counted),
        }

    def _interfaces(self) -> Iterator[_InterfaceCounters]:
        try:
            lines = self._files.whole("net/dev").decode().splitlines()
        except OSError:
            return
        for line in lines[2:]:  # below two lines of headings
            name, _, counts = line.partition(":")
            words = counts.split()
            if name.strip() != "lo":
                yield _InterfaceCounters(name.strip(), int(words[0]), int(words[8]))

    def close(self) -> None:
        """Ends the reading."""
        self._files.close()
