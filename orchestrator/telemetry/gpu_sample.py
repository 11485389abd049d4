"""What one reading of a GPU is, whoever made the GPU."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One reading of a GPU. ``values``: column of the table ``telemetry`` -> value, without columns
    that the GPU does not report.
    """

    gpu_uuid: str
    unix_ns: int
    values: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class LostGpu:
    """A GPU that stopped answering, and how its driver said so."""

    gpu_uuid: str
    unix_ns: int
    reason: str


class GpuLost(Exception):
    """The GPU does not answer any more: it fell off the bus, or must be reset."""


class GpuReader(Protocol):
    """Reads one GPU again and again. What it does not report is asked for once."""

    @property
    def uuid(self) -> str: ...

    def read(self) -> dict[str, int | float]:
        """The columns of ``telemetry`` that it reports now. Raises GpuLost."""
        ...

    def foreign_bytes(self, own_pids: Collection[int]) -> int | None:
        """Memory of processes other than these; None if the driver does not say. Raises GpuLost."""
        ...

    def close(self) -> None: ...


class GpuGroup(Protocol):
    """GPUs of one maker that an agent watches."""

    @property
    def uuids(self) -> tuple[str, ...]: ...

    def open(self) -> None:
        """Loads the driver's library. Raises GpuLost if it does not work."""
        ...

    def reader(self, uuid: str) -> GpuReader:
        """Raises GpuLost if the driver does not list the GPU."""
        ...

    def close(self) -> None: ...
