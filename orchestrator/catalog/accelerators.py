"""Accelerators: memory, bandwidth, dense FLOP/s, compute capability, links and price, with the
source of each.

FLOP/s are vendors' dense peaks (headline figures "with sparsity" are twice as high). Sources
disagree by a few percent (B200: 7.7 or 8.0 TB/s), so a ratio to a peak is printed with the peak. A
user's ``Hardware`` fields override these.
"""

import difflib
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from orchestrator.base.data_files import data_beside
from orchestrator.spec.settings import Hardware

_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. ``memory_bytes`` is what the driver reports, below the advertised figure."""

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float
    # dense FLOP/s of float32 (TF32 on tensor cores), bfloat16, float16, fp8, int8, fp4
    flops: dict[str, float]
    capability: tuple[int, int] | None  # CUDA compute capability; None: not CUDA
    link_bytes_s: float  # to its peers in the node, one direction
    network_bytes_s: float  # to other nodes, one direction, a typical figure
    usd_per_hour: float | None  # overridden by the experiment file
    source: str  # of these figures: its maker's data sheet, or a measurement
    aliases: tuple[str, ...] = field(default=())
    as_of: str | None = None  # when the source was read, ISO 8601; None: not known

    def flops_for(self, compute: str) -> float:
        """Peak for a compute type; if the device lacks it, for the next wider one (fp8 for fp4 on
        Hopper).
        """
        wider = {
            "fp4": "fp8",
            "fp8": "bfloat16",
            "int8": "bfloat16",
            "bfloat16": "float16",
            "float16": "float32",
        }
        while compute not in self.flops and compute in wider:
            compute = wider[compute]
        return self.flops.get(compute, min(self.flops.values()))


# One core of a current server and its share of memory bandwidth: an order of magnitude for the
# emulator, never used for MFU or MBU (analysis/ needs a measured peak on cpu).
_CPU = Accelerator(
    name="cpu",
    memory_bytes=4 * _GIB,
    bandwidth_bytes_s=10e9,
    flops={"float32": 100e9, "bfloat16": 100e9, "float16": 100e9, "int8": 200e9},
    capability=None,
    link_bytes_s=5e9,
    network_bytes_s=1e9,
    usd_per_hour=None,
    source="an order of magnitude for one core",
)
NETWORK_BYTES_S = 50e9  # to other nodes, one direction, a typical figure


def _key(name: str) -> str:
    """A name that all spellings of one accelerator share: without its maker, case, punctuation."""
    maker_left_out = name.lower().removeprefix("nvidia").removeprefix("amd")
    return "".join(filter(str.isalnum, maker_left_out))


def _accelerator_of(row: dict[str, Any], as_of: str) -> Accelerator:
    """The accelerator that a row of accelerators.json describes. ``as_of``: its date."""
    flops = {kind: value * 1e12 for kind, value in row["tflops"].items()}
    capability = None
    if row["capability"] is not None:
        major, minor = row["capability"]
        capability = (major, minor)
    if capability is None or capability >= (8, 0):  # before Ampere there are no bfloat16 units
        flops["bfloat16"] = flops["float16"]
    if "fp8" in flops:
        flops["int8"] = flops["fp8"]
    return Accelerator(
        name=row["name"],
        memory_bytes=row["memory_mib"] * _MIB,
        bandwidth_bytes_s=row["bandwidth_tb_s"] * 1e12,
        flops=flops,
        capability=capability,
        link_bytes_s=row["link_gb_s"] * 1e9,
        network_bytes_s=NETWORK_BYTES_S,
        usd_per_hour=row["usd_per_hour"],
        source=row["source"],
        aliases=tuple(row["aliases"]),
        as_of=as_of,
    )


@cache
def _all() -> tuple[Accelerator, ...]:
    """accelerators.json: published figures on its date, with the lowest list price of one large
    provider as an order of magnitude for users who give none.
    """
    document = data_beside(__file__, "accelerators.json")
    return tuple(_accelerator_of(row, document["as_of"]) for row in document["accelerators"])


@cache
def _table() -> dict[str, Accelerator]:
    table: dict[str, Accelerator] = {}
    for entry in (*_all(), _CPU):
        table |= {_key(name): entry for name in (entry.name, *entry.aliases)}
    return table


def accelerators() -> list[str]:
    """Names in the catalogue, as written in experiment files."""
    return [entry.name for entry in _all()]


def find(name: str) -> Accelerator | None:
    """An accelerator by name or alias, ignoring case and punctuation; None: it has no entry."""
    return _table().get(_key(name))


def is_named(entry: Accelerator, driver_name: str) -> bool:
    """Whether a driver's name for a device (NVML's) means this entry: it has all words of the
    entry, and no other entry has more of its words.

    >>> [is_named(find("L4"), name) for name in ("NVIDIA L40S", "NVIDIA L4")]
    [False, True]
    """
    driver_words = _words(driver_name)
    sizes = {word for word in _vocabulary() if word.endswith("gb")}
    # not every driver's name contains the memory size
    left_out = set() if driver_words & sizes else sizes
    entry_words = _words(entry.name) - left_out
    if not entry_words <= driver_words:
        return False
    others = [_words(other.name) - left_out for other in _all()]
    return not any(entry_words < words <= driver_words for words in others)


@cache
def may_be(name: str, label: str) -> bool:
    """Whether a node with this label may have an accelerator. The label is Ray's, which is coarse
    (``A100``). True if the catalogue has no such accelerator or does not know the label.

    >>> [may_be("A100-80GB", label) for label in ("A100", "A10G", "H100", "somebody's")]
    [True, False, False, True]
    """
    entry = find(name)
    if entry is None or is_named(entry, label):
        return True
    return _words(label) & _vocabulary() <= _words(entry.name)


def _vocabulary() -> set[str]:
    """The words of all names in the catalogue."""
    words: set[str] = set()
    for entry in _all():
        words |= _words(entry.name)
    return words


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def nearest(name: str) -> list[str]:
    """Similar names of the catalogue, the most similar first."""
    keys = difflib.get_close_matches(_key(name), list(_table()), n=3, cutoff=0.4)
    return list(dict.fromkeys(_table()[key].name for key in keys))


def of_hardware(hardware: Hardware) -> Accelerator | None:
    """The catalogue's entry with the user's figures in place of its own. None: not in the
    catalogue.
    """
    entry = find(hardware.accelerator)
    if entry is None:
        return None
    memory = int(hardware.memory_gb * 1e9) if hardware.memory_gb else entry.memory_bytes
    bandwidth = entry.bandwidth_bytes_s
    if hardware.memory_bandwidth_gb_s:
        bandwidth = hardware.memory_bandwidth_gb_s * 1e9
    price = entry.usd_per_hour
    if hardware.usd_per_gpu_hour is not None:
        price = hardware.usd_per_gpu_hour
    return replace(entry, memory_bytes=memory, bandwidth_bytes_s=bandwidth, usd_per_hour=price)


def memory_bytes(hardware: Hardware) -> int | None:
    """Memory of one device: the user's figure, else the catalogue's, else None."""
    if hardware.memory_gb:
        return int(hardware.memory_gb * 1e9)
    entry = find(hardware.accelerator)
    return None if entry is None else entry.memory_bytes
