"""Reads AMD's GPUs through amdsmi while a point runs, where ROCm's package of that name is installed.

Columns that amdsmi has no like of are null: throttling, event reasons, and shares of DRAM and tensor
cores.
"""

import importlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.telemetry.gpu_sample import GpuLost, GpuReader

MIB = 2**20
PREFIX = "amd-"  # of the names


class AmdGpu:
    """One GPU (``GpuReader``). ``uuid``: the name under which it is leased, ``amd-<index>``."""

    def __init__(self, uuid: str, handle: Any, amdsmi: Any) -> None:
        self.uuid = uuid
        self._handle = handle
        self._amdsmi = amdsmi
        self._unsupported: set[str] = set()

    def read(self) -> dict[str, int | float]:
        """The columns that it reports now."""
        questions: dict[str, Callable[[], Any]] = {
            "power_w": self._power_w,
            "energy_mj": self._energy_mj,
            "sm_mhz": lambda: self._clock_mhz("GFX"),
            "memory_mhz": lambda: self._clock_mhz("MEM"),
            "temperature_c": lambda: self._temperature_c("HOTSPOT"),
            "memory_temperature_c": lambda: self._temperature_c("VRAM"),
            "used_bytes": self._used_bytes,
            "busy_share": self._busy_share,
            "ecc_uncorrected": self._ecc_uncorrected,
        }
        values: dict[str, int | float] = {}
        for column, question in questions.items():
            if column in self._unsupported:
                continue
            value: Any = None
            # a field may have another name in another release, and "N/A" in place of a number
            with suppress(self._amdsmi.AmdSmiException, AttributeError, KeyError, TypeError):
                value = question()
            if isinstance(value, int | float):
                values[column] = value
            else:
                self._unsupported.add(column)
        return values

    def foreign_bytes(self, own_pids: Collection[int]) -> int | None:
        """Memory of processes other than these. None if the driver does not say, or lists none of
        ``own_pids``.
        """
        try:
            processes = self._amdsmi.amdsmi_get_gpu_process_list(self._handle)
            used_by_pid = {
                process["pid"]: process["memory_usage"]["vram_mem"] for process in processes
            }
        except (self._amdsmi.AmdSmiException, AttributeError, KeyError, TypeError):
            return None
        if not used_by_pid.keys() & set(own_pids):
            return None
        foreign = [used for pid, used in used_by_pid.items() if pid not in own_pids]
        known = [used for used in foreign if isinstance(used, int)]
        return sum(known) if len(known) == len(foreign) else None

    def close(self) -> None:
        """Nothing is held for one GPU."""

    def _power_w(self) -> Any:
        power = self._amdsmi.amdsmi_get_power_info(self._handle)
        current_w = power.get("current_socket_power")
        if isinstance(current_w, int | float):
            return float(current_w)
        return float(power["average_socket_power"])  # before MI300

    def _energy_mj(self) -> Any:
        energy = self._amdsmi.amdsmi_get_energy_count(self._handle)
        # before ROCm 6.2 the counter was called power; its unit is counter_resolution microjoules
        ticks = energy["energy_accumulator"] if "energy_accumulator" in energy else energy["power"]
        return round(ticks * energy["counter_resolution"] / 1e3)

    def _clock_mhz(self, name: str) -> Any:
        kind = getattr(self._amdsmi.AmdSmiClkType, name)
        clock = self._amdsmi.amdsmi_get_clock_info(self._handle, kind)
        return clock["clk"] if "clk" in clock else clock["cur_clk"]

    def _temperature_c(self, name: str) -> Any:
        return self._amdsmi.amdsmi_get_temp_metric(
            self._handle,
            getattr(self._amdsmi.AmdSmiTemperatureType, name),
            self._amdsmi.AmdSmiTemperatureMetric.CURRENT,
        )

    def _used_bytes(self) -> Any:
        return self._amdsmi.amdsmi_get_gpu_vram_usage(self._handle)["vram_used"] * MIB

    def _busy_share(self) -> Any:
        return self._amdsmi.amdsmi_get_gpu_activity(self._handle)["gfx_activity"] / 100

    def _ecc_uncorrected(self) -> Any:
        return self._amdsmi.amdsmi_get_gpu_total_ecc_count(self._handle)["uncorrectable_count"]


class AmdGpus:
    """GPUs by the names under which they are leased, ``amd-<index>`` (``GpuGroup``)."""

    def __init__(self, uuids: Sequence[str], amdsmi: Any) -> None:
        self.uuids = tuple(uuids)
        self._amdsmi = amdsmi
        self._handles: Sequence[Any] = ()

    def open(self) -> None:
        """Initializes amdsmi. Raises GpuLost if the driver does not answer."""
        try:
            self._amdsmi.amdsmi_init()
            self._handles = self._amdsmi.amdsmi_get_processor_handles()
        except self._amdsmi.AmdSmiException as error:
            raise GpuLost(str(error)) from error

    def reader(self, uuid: str) -> GpuReader:
        """Raises GpuLost if the driver does not list the GPU."""
        index = int(uuid.removeprefix(PREFIX))
        if index >= len(self._handles):
            raise GpuLost("its driver does not list it")
        return AmdGpu(uuid, self._handles[index], self._amdsmi)

    def close(self) -> None:
        with suppress(self._amdsmi.AmdSmiException):
            self._amdsmi.amdsmi_shut_down()


def amd_group(names: Sequence[str]) -> AmdGpus | None:
    """These GPUs; None where amdsmi or its library is not installed, and for GPUs that were given
    to the agent by UUID, which amdsmi counts otherwise.
    """
    if not names or not all(name.removeprefix(PREFIX).isdecimal() for name in names):
        return None
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError):  # the package looks for its library when imported
        return None
    return AmdGpus(names, amdsmi)
