"""Reads AMD's GPUs through amdsmi, what they are and what they do while a point runs, where ROCm's
package of that name is installed.

Columns that amdsmi has no like of are null: event reasons, and shares of DRAM and tensor cores.
Throttling is counted since the MI300.
"""

import importlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any

from orchestrator.telemetry.gpu_sample import GpuLost, GpuReader

MIB = 2**20
PREFIX = "amd-"  # of the names
# codes of amdsmi_status_t
LACKING = frozenset({2, 3})  # AMDSMI_STATUS_NOT_SUPPORTED, _NOT_YET_IMPLEMENTED
PASSING = frozenset({8, 9, 11, 30})  # AMDSMI_STATUS_TIMEOUT, _RETRY, _INTERRUPT, _BUSY


class _Gap(Enum):
    """Why a question to a GPU has no answer."""

    LACKING = auto()  # the GPU does not support it
    PASSING = auto()  # the driver is busy: the next reading may succeed
    FAILED = auto()  # another error, or an answer without a number


# column -> the firmware's counters of readings in which that held clocks down; causes of one column
# may come together, so the one that grew most counts
THROTTLING = {
    "throttled_ns_power": ("ppt_residency_acc",),
    "throttled_ns_thermal": (
        "socket_thm_residency_acc",
        "vr_thm_residency_acc",
        "hbm_thm_residency_acc",
    ),
    "throttled_ns_hw": ("prochot_residency_acc",),
}
ALL_READINGS = "accumulation_counter"  # of the firmware
# The counters come with some hundred other figures, and lose nothing if they are read rarely.
THROTTLING_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class _ThrottlingReading:
    """The counters of THROTTLING and ALL_READINGS, as far as the GPU has them, at an instant."""

    at_s: float
    counters: Mapping[str, int]

    def grown(self, name: str, before: "_ThrottlingReading") -> int:
        """How much a counter grew; 0 where it was reset, or is missing."""
        if name not in self.counters or name not in before.counters:
            return 0
        return max(0, self.counters[name] - before.counters[name])


class _Throttling:
    """The time in which a GPU's clocks were held down, by cause, since the first reading.

    amdsmi's own function for it (amdsmi_get_violation_status) waits for 100 ms between two readings
    of the same counters. A share of the time is the growth of a cause's counter over that of
    ALL_READINGS, as it is there.
    """

    def __init__(self) -> None:
        self._last: _ThrottlingReading | None = None
        self._throttled_ns = dict.fromkeys(THROTTLING, 0.0)

    @property
    def has_counted(self) -> bool:
        """Whether the GPU had counters at a reading."""
        return self._last is not None

    def is_due(self, now_s: float) -> bool:
        return self._last is None or now_s - self._last.at_s >= THROTTLING_EVERY_S

    def add(self, now_s: float, metrics: Mapping[str, Any]) -> dict[str, int]:
        """The columns after a further reading of ``metrics``; empty where the GPU counts nothing."""
        names = [ALL_READINGS, *(name for causes in THROTTLING.values() for name in causes)]
        counters = {name: metrics.get(name) for name in names}
        known = {name: count for name, count in counters.items() if isinstance(count, int)}
        if ALL_READINGS not in known:
            return {}
        reading, before = _ThrottlingReading(now_s, known), self._last
        self._last = reading
        columns = {
            column: causes
            for column, causes in THROTTLING.items()
            if not known.keys().isdisjoint(causes)
        }
        if before is not None:
            for column, causes in columns.items():
                self._throttled_ns[column] += _throttled_ns(causes, reading, before)
        return {column: round(self._throttled_ns[column]) for column in columns}


def _throttled_ns(
    causes: Sequence[str], reading: _ThrottlingReading, before: _ThrottlingReading
) -> float:
    """The time between two readings in which one of these causes held clocks down."""
    readings = reading.grown(ALL_READINGS, before)
    if readings == 0:
        return 0.0
    grown = max(reading.grown(cause, before) for cause in causes)
    return min(1.0, grown / readings) * (reading.at_s - before.at_s) * 1e9


class AmdGpu:
    """One GPU (``GpuReader``). ``uuid``: the name under which it is leased, ``amd-<index>``.

    A column is not asked for again once the GPU does not support it, or where the first answer was
    no number. A failure of a column that was reported before is a gap in one reading.
    """

    def __init__(
        self, uuid: str, handle: Any, amdsmi: Any, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.uuid = uuid
        self._handle = handle
        self._amdsmi = amdsmi
        self._clock = clock
        self._throttling: _Throttling | None = _Throttling()  # None: the GPU does not count it
        self._unsupported: set[str] = set()
        self._reported: set[str] = set()

    def read(self) -> dict[str, int | float]:
        """The columns that it reports now. Raises GpuLost where every question fails, although it
        reported something before.
        """
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
        gaps: dict[str, _Gap] = {}
        for column, question in questions.items():
            if column in self._unsupported:
                continue
            answer = self._answer(question)
            if isinstance(answer, _Gap):
                gaps[column] = answer
            else:
                values[column] = answer
        self._reported |= values.keys()
        is_busy = _Gap.PASSING in gaps.values()
        if self._reported and not values and not is_busy:
            raise GpuLost("amdsmi answers no question about it any more")
        for column, gap in gaps.items():
            has_never_answered = gap is _Gap.FAILED and column not in self._reported
            if gap is _Gap.LACKING or has_never_answered:
                self._unsupported.add(column)
        return values | self._throttled()

    def _throttled(self) -> dict[str, int]:
        """The columns of throttling; empty between two readings of its counters."""
        now_s = self._clock()
        if self._throttling is None or not self._throttling.is_due(now_s):
            return {}
        metrics = self._asked(lambda: self._amdsmi.amdsmi_get_gpu_metrics_info(self._handle))
        if metrics is _Gap.PASSING:
            return {}
        columns = {} if isinstance(metrics, _Gap) else self._throttling.add(now_s, metrics)
        if not columns and (metrics is _Gap.LACKING or not self._throttling.has_counted):
            self._throttling = None
        return columns

    def _answer(self, question: Callable[[], Any]) -> int | float | _Gap:
        """The number that amdsmi answers, or why there is none."""
        value = self._asked(question)
        return value if isinstance(value, int | float | _Gap) else _Gap.FAILED

    def _asked(self, question: Callable[[], Any]) -> Any:
        """What amdsmi answers, or a _Gap."""
        try:
            return question()
        except self._amdsmi.AmdSmiLibraryException as error:
            code = error.get_error_code()
            if code in LACKING:
                return _Gap.LACKING
            return _Gap.PASSING if code in PASSING else _Gap.FAILED
        # a field may have another name in another release, and "N/A" in place of a number
        except (self._amdsmi.AmdSmiException, AttributeError, KeyError, TypeError, ValueError):
            return _Gap.FAILED

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


class AmdsmiLibrary:
    """amdsmi in this process, initialized from its first user to its last.

    amdsmi itself does not count its users: one that shuts it down ends the readings of all others.
    """

    def __init__(self, amdsmi: Any) -> None:
        self.amdsmi = amdsmi
        self._lock = threading.Lock()
        self._users = 0

    def open(self) -> Sequence[Any]:
        """Adds a user. Returns a handle of each GPU. Raises GpuLost if the driver does not answer."""
        with self._lock:
            try:
                if not self._users:
                    self.amdsmi.amdsmi_init()
                handles: Sequence[Any] = self.amdsmi.amdsmi_get_processor_handles()
            except self.amdsmi.AmdSmiException as error:
                raise GpuLost(str(error)) from error
            self._users += 1
            return handles

    def close(self) -> None:
        """Removes a user."""
        with self._lock:
            self._users -= 1
            if not self._users:
                with suppress(self.amdsmi.AmdSmiException):
                    self.amdsmi.amdsmi_shut_down()


class AmdGpus:
    """GPUs by the names under which they are leased, ``amd-<index>`` (``GpuGroup``)."""

    def __init__(self, uuids: Sequence[str], library: AmdsmiLibrary) -> None:
        self.uuids = tuple(uuids)
        self._library = library
        self._handles: Sequence[Any] = ()

    def open(self) -> None:
        """Initializes amdsmi. Raises GpuLost if the driver does not answer."""
        self._handles = self._library.open()

    def reader(self, uuid: str) -> GpuReader:
        """Raises GpuLost if the driver does not list the GPU."""
        return AmdGpu(uuid, self._handle(uuid), self._library.amdsmi)

    def health(self) -> dict[str, Any]:
        """``driver`` and ``gpus``, as gpus.py: health has them of NVIDIA's; without GPUs that the
        driver does not list. What a GPU does not report is None.
        """
        driver = None
        gpus: list[dict[str, Any]] = []
        for uuid in self.uuids:
            with suppress(GpuLost):
                handle = self._handle(uuid)
                driver = driver or self._driver(handle)
                gpus.append({"uuid": uuid, **self._facts(handle)})
        return {"driver": driver, "gpus": gpus}

    def _driver(self, handle: Any) -> Any:
        amdsmi = self._library.amdsmi
        return self._fact(lambda: amdsmi.amdsmi_get_gpu_driver_info(handle)["driver_version"])

    def _facts(self, handle: Any) -> dict[str, Any]:
        amdsmi = self._library.amdsmi
        return {
            "name": self._fact(lambda: amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"]),
            "memory_bytes": self._fact(
                lambda: int(amdsmi.amdsmi_get_gpu_vram_usage(handle)["vram_total"]) * MIB
            ),
            # amdsmi has it in microwatts
            "power_limit_w": self._fact(
                lambda: int(amdsmi.amdsmi_get_power_cap_info(handle)["power_cap"]) / 1e6
            ),
            "mig": None,  # of NVIDIA's alone
        }

    def _fact(self, question: Callable[[], Any]) -> Any:
        """What amdsmi answers; None where it does not say it."""
        try:
            answer = question()
        except self._library.amdsmi.AmdSmiException:
            return None
        except (AttributeError, KeyError, TypeError, ValueError):  # another release, or "N/A"
            return None
        return None if answer == "N/A" else answer

    def _handle(self, uuid: str) -> Any:
        index = int(uuid.removeprefix(PREFIX))
        if index >= len(self._handles):
            raise GpuLost("its driver does not list it")
        return self._handles[index]

    def close(self) -> None:
        self._library.close()


@cache
def _installed() -> AmdsmiLibrary | None:
    """amdsmi; None where it or its library is not installed."""
    try:
        return AmdsmiLibrary(importlib.import_module("amdsmi"))
    except (ImportError, OSError, KeyError):  # the package looks for its library when imported
        return None


def amd_group(
    names: Sequence[str], find_library: Callable[[], AmdsmiLibrary | None] = _installed
) -> AmdGpus | None:
    """These GPUs; None where amdsmi or its library is not installed, and for GPUs that were given
    to the agent by UUID, which amdsmi counts otherwise.
    """
    if not names or not all(is_amd(name) for name in names):
        return None
    library = find_library()
    return None if library is None else AmdGpus(names, library)


def is_amd(name: str) -> bool:
    """Whether a GPU is leased under this name as one of AMD's that amdsmi counts."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).isdecimal()


def amd_health(
    names: Sequence[str], find_library: Callable[[], AmdsmiLibrary | None] = _installed
) -> dict[str, Any]:
    """``driver`` and ``gpus`` of these GPUs; empty for other GPUs and where amdsmi does not answer."""
    group = amd_group(names, find_library)
    if group is None:
        return {}
    try:
        group.open()
    except GpuLost:
        return {}
    try:
        return group.health()
    finally:
        group.close()
