"""Samples a node while a point runs, twice a second: the GPUs of an agent, and the host itself."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.telemetry.clock_offset import ClockOffset
from orchestrator.telemetry.gpu_sample import GpuGroup, GpuLost, GpuReader, GpuSample, LostGpu
from orchestrator.telemetry.host import HostReader, HostSample
from orchestrator.telemetry.processes import SweepProcesses
from orchestrator.telemetry.sampler import STOP_LIMIT_S, Sampler

INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    """What one agent sampled while a point ran, in order of time. ``host``: the host's name.
    ``clock``: how far its wall clock is off; None if that is unknown.
    """

    host_samples: Sequence[HostSample] = ()
    gpu_samples: Sequence[GpuSample] = ()
    lost_gpus: Sequence[LostGpu] = ()
    host: str = ""
    clock: ClockOffset | None = None


@dataclass(frozen=True, slots=True)
class _NodeSample:
    host: HostSample | None
    gpus: Sequence[GpuSample]


class NodeSampler:
    """Samples the GPUs of ``groups`` and, if it ``watches_host``, the host.

    ``find_processes``: called once, before the first sample. The use of GPU memory by other
    processes than the launch's is foreign.
    """

    def __init__(
        self,
        groups: Sequence[GpuGroup],
        find_processes: Callable[[], SweepProcesses],
        watches_host: bool,
        interval_s: float = INTERVAL_S,
        stop_limit_s: float = STOP_LIMIT_S,
    ) -> None:
        self._groups = groups
        self._find_processes = find_processes
        self._watches_host = watches_host
        self._stop_limit_s = stop_limit_s
        self._sampler = Sampler(self._take, interval_s, "telemetry")
        self._processes: SweepProcesses | None = None  # None before the first sample
        self._host_reader: HostReader | None = None
        self._open_groups: list[GpuGroup] = []
        self._readers: list[GpuReader] = []
        self._lost: list[LostGpu] = []
        self._cpu_s = 0.0  # used by the readings so far
        self._is_ending = False  # the next sample is the last one

    def start(self) -> None:
        """Begins, and does not wait for the first sample: a driver may take a second to load."""
        self._sampler.start()

    def stop(self) -> NodeTelemetry:
        """Ends, and returns what was sampled."""
        self._is_ending = True
        samples = self._sampler.stop(self._stop_limit_s)
        if self._sampler.hangs():  # inside a driver, which then cannot be closed either
            self._give_up_gpus()
        else:
            self._close()
        host_samples = [sample.host for sample in samples if sample.host is not None]
        gpu_samples = [gpu for sample in samples for gpu in sample.gpus]
        return NodeTelemetry(host_samples, gpu_samples, self._lost)

    def _give_up_gpus(self) -> None:
        error = GpuLost(f"its driver has not answered for {self._stop_limit_s:g} s")
        already_lost = {gpu.gpu_uuid for gpu in self._lost}
        for group in self._groups:
            for uuid in group.uuids:
                if uuid not in already_lost:
                    self._lost.append(_lost(uuid, error))

    def _close(self) -> None:
        for reader in self._readers:
            reader.close()
        for group in self._open_groups:
            group.close()
        if self._processes is not None:
            self._processes.close()
        if self._host_reader is not None:
            self._host_reader.close()
        self._readers = []
        self._open_groups = []

    def _take(self) -> _NodeSample:
        began_s = time.thread_time()
        if self._processes is None:
            self._processes = self._find_processes()
            if self._watches_host:
                self._host_reader = HostReader(self._processes)
            self._open()
        read_all_processes = self._processes.look(at_once=self._is_ending)
        host = None
        if self._host_reader is not None:
            host = self._host_reader.read(with_foreign=read_all_processes)
        launch_pids = self._processes.launch.pids if read_all_processes else None
        gpus = list(self._read_gpus(launch_pids))
        self._cpu_s += time.thread_time() - began_s
        cost = {"sampler_cpu_s": self._cpu_s}
        if host is not None:
            host = replace(host, values={**host.values, **cost})
        return _NodeSample(host, [replace(gpu, values={**gpu.values, **cost}) for gpu in gpus])

    def _open(self) -> None:
        for group in self._groups:
            try:
                group.open()
            except GpuLost as error:
                self._lost += [_lost(uuid, error) for uuid in group.uuids]
                continue
            self._open_groups.append(group)
            for uuid in group.uuids:
                try:
                    self._readers.append(group.reader(uuid))
                except GpuLost as error:
                    self._lost.append(_lost(uuid, error))

    def _read_gpus(self, launch_pids: Collection[int] | None) -> Iterator[GpuSample]:
        """Reads every GPU that is not lost. ``launch_pids``: the launch's processes, to read the
        memory that others use too; None: this is not read, because the driver looks at every
        process for it.
        """
        for reader in list(self._readers):
            try:
                before_ns = time.time_ns()
                values = reader.read()
                after_ns = time.time_ns()
                if launch_pids is not None:
                    foreign_bytes = reader.foreign_bytes(launch_pids)
                    if foreign_bytes is not None:
                        values["foreign_bytes"] = foreign_bytes
            except GpuLost as error:
                self._readers.remove(reader)
                reader.close()
                self._lost.append(_lost(reader.uuid, error))
                continue
            yield GpuSample(reader.uuid, (before_ns + after_ns) // 2, values)


def _lost(uuid: str, error: GpuLost) -> LostGpu:
    return LostGpu(uuid, time.time_ns(), str(error))
