"""A node's sampler with fake GPUs: rows, a GPU that vanishes, one that blocks, and who pays."""

from __future__ import annotations

import os
import threading
import time

import pyarrow as pa

from orchestrator.analysis.counters import TimeWindow
from orchestrator.analysis.energy import EnergyNote, device_side
from orchestrator.results.schemas import TABLES
from orchestrator.telemetry.gpu_sample import GpuGroup
from orchestrator.telemetry.node_sampler import NodeSampler, NodeTelemetry
from orchestrator.telemetry.nvidia import NvidiaGpus
from orchestrator.telemetry.processes import SweepProcesses
from tests.unit.telemetry.fake_nvml import GIB, LOST, FakeGpu, FakeNvml


class Counted(FakeNvml):
    """Says when its first GPU has been read so many times."""

    def __init__(self, *gpus: FakeGpu, until: int = 3) -> None:
        super().__init__(*gpus)
        self.until = until
        self.enough = threading.Event()

    def nvmlDeviceGetFieldValues(self, gpu, keys):
        answers = super().nvmlDeviceGetFieldValues(gpu, keys)
        if self.gpus[0].calls["nvmlDeviceGetFieldValues"] >= self.until:
            self.enough.set()
        return answers


def own_processes() -> SweepProcesses:
    return SweepProcesses([os.getpid()])


def sampled(nvml: Counted, watches_host: bool = True) -> NodeTelemetry:
    groups: list[GpuGroup] = [NvidiaGpus([gpu.uuid for gpu in nvml.gpus], nvml)]
    sampler = NodeSampler(groups, own_processes, watches_host, interval_s=0.002)
    sampler.start()
    assert nvml.enough.wait(10)
    return sampler.stop()


def test_every_gpu_and_the_host_are_sampled_in_order_of_time() -> None:
    before_ns = time.time_ns()
    telemetry = sampled(Counted(FakeGpu("GPU-a"), FakeGpu("GPU-b")))
    for uuid in ("GPU-a", "GPU-b"):
        times = [sample.unix_ns for sample in telemetry.gpu_samples if sample.gpu_uuid == uuid]
        assert len(times) >= 3
        assert times == sorted(times)
        assert before_ns <= times[0] and times[-1] <= time.time_ns()
    assert len(telemetry.host_samples) * 2 == len(telemetry.gpu_samples)
    assert telemetry.lost_gpus == []


def test_a_gpu_that_stands_still_reports_what_it_reported() -> None:
    telemetry = sampled(Counted(FakeGpu("GPU-a")))
    assert {sample.values["energy_mj"] for sample in telemetry.gpu_samples} == {1_000_000}


def test_a_counter_that_was_reset_stays_visible_and_gives_no_energy() -> None:
    class Reloaded(Counted):
        def nvmlDeviceGetFieldValues(self, gpu, keys):
            if gpu.calls["nvmlDeviceGetFieldValues"] == 2:
                gpu.reset_energy()
            return super().nvmlDeviceGetFieldValues(gpu, keys)

    telemetry = sampled(Reloaded(FakeGpu("GPU-a", energy_step_mj=500), until=4))
    samples = telemetry.gpu_samples
    energies_mj = [sample.values["energy_mj"] for sample in samples]
    assert energies_mj[:4] == [1_000_000, 1_000_500, 0, 500]
    keys = {"measurement_id": "m", "attempt_id": "a", "host": "h", "gpu_uuid": "GPU-a"}
    rows = [{**keys, "unix_ns": sample.unix_ns, **sample.values} for sample in samples]
    table = pa.Table.from_pylist(rows, schema=TABLES["telemetry"])
    window = TimeWindow(samples[0].unix_ns / 1e9, samples[-1].unix_ns / 1e9)
    side = device_side(table, window, devices=1)
    assert side is not None
    assert side.energy_j is None
    assert EnergyNote.RESET in side.energy_notes


def test_a_lost_gpu_has_no_more_samples_and_the_others_go_on() -> None:
    good, bad = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    nvml = Counted(good, bad, until=6)
    groups: list[GpuGroup] = [NvidiaGpus(["GPU-a", "GPU-b"], nvml)]
    sampler = NodeSampler(groups, own_processes, watches_host=False, interval_s=0.002)
    sampler.start()
    while good.calls["nvmlDeviceGetFieldValues"] < 2:
        nvml.enough.wait(0.001)
    bad.errors = {"nvmlDeviceGetFieldValues": LOST}
    assert nvml.enough.wait(10)
    telemetry = sampler.stop()
    assert [gpu.gpu_uuid for gpu in telemetry.lost_gpus] == ["GPU-b"]
    samples_of_bad = [one for one in telemetry.gpu_samples if one.gpu_uuid == "GPU-b"]
    assert 1 <= len(samples_of_bad) < len(telemetry.gpu_samples) / 2
    assert bad.calls["nvmlDeviceGetFieldValues"] == len(samples_of_bad) + 1, "not asked again"
    assert (nvml.open, nvml.gpm_samples) == (0, 0)


def test_a_node_whose_driver_is_gone_says_that_its_gpus_are_lost() -> None:
    nvml = FakeNvml(FakeGpu("GPU-a"), has_driver=False)
    sampler = NodeSampler([NvidiaGpus(["GPU-a"], nvml)], own_processes, watches_host=False)
    sampler.start()
    telemetry = sampler.stop()
    assert [gpu.gpu_uuid for gpu in telemetry.lost_gpus] == ["GPU-a"]
    assert telemetry.gpu_samples == [] and telemetry.host_samples == []


def test_a_driver_that_blocks_for_20_ms_costs_no_cpu_and_its_time_is_in_the_middle() -> None:
    gpu = FakeGpu("GPU-a", has_gpm=False, block_s=0.02)
    telemetry = sampled(Counted(gpu))
    first, second, *_ = telemetry.gpu_samples
    assert second.unix_ns - first.unix_ns >= 0.02 * 1e9
    assert telemetry.gpu_samples[-1].values["sampler_cpu_s"] < 0.1


def test_foreign_memory_is_asked_for_now_and_then() -> None:
    gpu = FakeGpu("GPU-a", processes=[(os.getpid(), GIB), (1, 2 * GIB)])
    telemetry = sampled(Counted(gpu, until=5))
    foreign = [sample.values.get("foreign_bytes") for sample in telemetry.gpu_samples]
    assert foreign[0] == 2 * GIB
    assert set(foreign[1:-1]) == {None}, "the next look for processes is in 5 s"
    assert foreign[-1] == 2 * GIB, "a point may be over before"


def test_what_other_programs_used_is_known_at_the_end() -> None:
    telemetry = sampled(Counted(FakeGpu("GPU-a"), until=5))
    has_share = ["foreign_cpu_share" in sample.values for sample in telemetry.host_samples]
    assert has_share == [False] * (len(has_share) - 1) + [True]


def test_a_node_without_gpus_has_only_its_host() -> None:
    sampler = NodeSampler([], own_processes, watches_host=True, interval_s=60)
    sampler.start()
    telemetry = sampler.stop()
    assert telemetry.gpu_samples == []
    assert len(telemetry.host_samples) == 2
    costs = [sample.values["sampler_cpu_s"] for sample in telemetry.host_samples]
    assert 0 < costs[0] <= costs[1]


def test_gpus_whose_driver_hangs_are_lost() -> None:
    goes_on = threading.Event()
    hangs = threading.Event()

    class Hanging(Counted):
        def nvmlDeviceGetMemoryInfo(self, gpu):
            if gpu.calls["nvmlDeviceGetMemoryInfo"] == 1:
                hangs.set()
                goes_on.wait(30)
            return super().nvmlDeviceGetMemoryInfo(gpu)

    nvml = Hanging(FakeGpu("GPU-a"))
    groups: list[GpuGroup] = [NvidiaGpus(["GPU-a"], nvml)]
    sampler = NodeSampler(groups, own_processes, True, interval_s=0.002, stop_limit_s=0.01)
    sampler.start()
    assert hangs.wait(10)
    telemetry = sampler.stop()
    goes_on.set()
    assert [gpu.reason for gpu in telemetry.lost_gpus] == ["its driver has not answered for 0.01 s"]
    assert len(telemetry.gpu_samples) == 1, "what was read before is kept"


def test_gpus_whose_driver_hangs_while_it_is_loaded_are_lost() -> None:
    goes_on = threading.Event()
    hangs = threading.Event()

    class Loading(FakeNvml):
        def nvmlInit(self):
            hangs.set()
            goes_on.wait(30)

    groups: list[GpuGroup] = [NvidiaGpus(["GPU-a"], Loading(FakeGpu("GPU-a")))]
    sampler = NodeSampler(groups, own_processes, watches_host=False, stop_limit_s=0.01)
    sampler.start()
    assert hangs.wait(10)
    telemetry = sampler.stop()
    goes_on.set()
    assert [gpu.gpu_uuid for gpu in telemetry.lost_gpus] == ["GPU-a"]
