"""Accelerators: memory, bandwidth, dense FLOP/s, compute capability, links, price; each figure with its source.

Figures are vendors' dense peaks (headline figures "with sparsity" are twice as high). Sources disagree by a few
percent (B200: 7.7 or 8.0 TB/s), so a ratio against a peak is printed with the peak. A user's ``Hardware`` fields win.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from functools import cache

from orchestrator.spec.settings import Hardware

_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. ``memory_bytes`` is what the driver shows, not the headline; FLOP/s are dense, by compute type."""

    name: str
    memory_bytes: int
    bandwidth_bytes_s: float
    flops: dict[str, float]  # float32 (tensor core TF32 where there is one) | bfloat16 | float16 | fp8 | int8 | fp4
    capability: tuple[int, int] | None  # CUDA compute capability; None: not CUDA
    link_bytes_s: float  # to its peers in the node, one direction
    network_bytes_s: float  # to other nodes, one direction, a typical figure
    usd_per_hour: float | None  # from PRICE_SOURCE; the experiment file's figure wins
    source: str  # where its maker (or who measured it) publishes the figures above
    as_of: str
    aliases: tuple[str, ...] = field(default=())

    def flops_for(self, compute: str) -> float:
        """Peak for a compute type; the next wider one where the device has no units for it (fp4 on Hopper: fp8)."""
        wider = {"fp4": "fp8", "fp8": "bfloat16", "int8": "bfloat16", "bfloat16": "float16", "float16": "float32"}
        while compute not in self.flops and compute in wider:
            compute = wider[compute]
        return self.flops.get(compute, min(self.flops.values()))


_NV = "https://www.nvidia.com/en-us/data-center/"
_AS_OF = "2026-11-21"
# The lowest listed price of one large provider on 2026-03-10: an order of magnitude for people who give none.
PRICE_SOURCE = "https://deploybase.ai/articles/runpod-gpu-pricing"


def _gpu(
    name: str,
    mib: int,
    tb_s: float,
    tflops: tuple[float, float, float | None, float | None],
    capability: tuple[int, int] | None,
    link_gb_s: float,
    usd: float | None,
    source: str,
    *aliases: str,
    network_gb_s: float = 50.0,
) -> Accelerator:
    """``tflops``: float32 (TF32), bfloat16/float16, fp8, fp4. Pre-Ampere parts have no bfloat16 units."""
    kinds = ("float32", "float16", "fp8", "fp4")
    flops = {kind: value * 1e12 for kind, value in zip(kinds, tflops, strict=True) if value}
    if capability is None or capability >= (8, 0):
        flops["bfloat16"] = flops["float16"]
    if "fp8" in flops:
        flops["int8"] = flops["fp8"]
    return Accelerator(
        name,
        mib * _MIB,
        tb_s * 1e12,
        flops,
        capability,
        link_gb_s * 1e9,
        network_gb_s * 1e9,
        usd,
        source,
        _AS_OF,
        aliases,
    )


_ALL = (
    _gpu("H100-80GB", 81559, 3.35, (494.7, 989.4, 1978.9, None), (9, 0), 450, 2.69,
         _NV + "h100/", "H100", "H100-SXM", "H100-SXM5-80GB"),
    _gpu("H100-PCIe-80GB", 81559, 2.0, (378, 756, 1513, None), (9, 0), 64, 1.99, _NV + "h100/", "H100-PCIe"),
    _gpu("H100-NVL-94GB", 95830, 3.9, (417.5, 835, 1670, None), (9, 0), 300, None, _NV + "h100/", "H100-NVL"),
    _gpu("H200-141GB", 143771, 4.8, (494.7, 989.4, 1978.9, None), (9, 0), 450, 3.59, _NV + "h200/", "H200", "H200-SXM"),
    _gpu("H20-96GB", 97871, 4.0, (74, 148, 296, None), (9, 0), 450, None,
         "https://willitrunai.com/gpus/h20-96gb", "H20"),
    _gpu("GH200-96GB", 97871, 4.0, (494.7, 989.4, 1978.9, None), (9, 0), 450, None,
         _NV + "grace-hopper-superchip/", "GH200"),
    _gpu("B200-180GB", 183359, 8.0, (1125, 2250, 4500, 9000), (10, 0), 900, 5.98,
         _NV + "dgx-b200/", "B200", "B200-192GB", "B200-SXM"),
    _gpu("GB200-186GB", 189471, 8.0, (1250, 2500, 5000, 10000), (10, 0), 900, None, _NV + "gb200-nvl72/", "GB200"),
    _gpu("B300-288GB", 275040, 8.0, (1125, 2250, 4500, 13500), (10, 3), 900, None, _NV + "dgx-b300/", "B300"),
    _gpu("A100-80GB", 81920, 2.039, (156, 312, None, None), (8, 0), 300, 1.39,
         _NV + "a100/", "A100", "A100-SXM4-80GB", "A100-SXM-80GB"),
    _gpu("A100-40GB", 40960, 1.555, (156, 312, None, None), (8, 0), 300, None, _NV + "a100/", "A100-SXM4-40GB"),
    _gpu("A100-PCIe-80GB", 81920, 1.935, (156, 312, None, None), (8, 0), 32, 1.19, _NV + "a100/", "A100-PCIe"),
    _gpu("A10G-24GB", 23028, 0.6, (35, 70, None, None), (8, 6), 32, None,
         "https://aws.amazon.com/ec2/instance-types/g5/", "A10G"),
    _gpu("A10-24GB", 23028, 0.6, (62.5, 125, None, None), (8, 6), 32, None, _NV + "products/a10-gpu/", "A10"),
    _gpu("A40-48GB", 46068, 0.696, (74.8, 149.7, None, None), (8, 6), 56, None, _NV + "a40/", "A40"),
    _gpu("L4-24GB", 23034, 0.3, (60, 121, 242, None), (8, 9), 32, 0.44, _NV + "l4/", "L4"),
    _gpu("L40S-48GB", 46068, 0.864, (183, 362, 733, None), (8, 9), 32, 0.79, _NV + "l40s/", "L40S"),
    _gpu("L40-48GB", 46068, 0.864, (90.5, 181, 362, None), (8, 9), 32, 0.69, _NV + "l40/", "L40"),
    _gpu("T4-16GB", 15360, 0.32, (8.1, 65, None, None), (7, 5), 16, None, _NV + "tesla-t4/", "T4"),
    _gpu("V100-16GB", 16384, 0.9, (15.7, 125, None, None), (7, 0), 150, None, _NV + "v100/", "V100"),
    _gpu("V100-32GB", 32768, 0.9, (15.7, 125, None, None), (7, 0), 150, None, _NV + "v100/", "V100-SXM2-32GB"),
    _gpu("RTX-3090-24GB", 24576, 0.936, (35.6, 71, None, None), (8, 6), 28, 0.22,
         "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/rtx-3090-3090ti/", "RTX3090"),
    _gpu("RTX-4090-24GB", 24564, 1.008, (82.6, 165.2, 330.3, None), (8, 9), 32, 0.34,
         "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/rtx-4090/", "RTX4090"),
    _gpu("RTX-5090-32GB", 32607, 1.792, (104.8, 209.5, 419, 1676), (12, 0), 64, 0.69,
         "https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/rtx-5090/", "RTX5090"),
    _gpu("RTX-PRO-6000-96GB", 97887, 1.792, (251.9, 503.8, 1007.6, 2015), (12, 0), 64, 0.89,
         _NV + "rtx-pro-6000-blackwell-server-edition/", "RTX-PRO-6000"),
    _gpu("RTX-A6000-48GB", 49140, 0.768, (77.4, 154.8, None, None), (8, 6), 56, None,
         "https://www.nvidia.com/en-us/design-visualization/rtx-a6000/", "RTX-A6000", "A6000"),
    _gpu("RTX-6000-Ada-48GB", 49140, 0.96, (182.1, 364.2, 728.5, None), (8, 9), 32, None,
         "https://www.nvidia.com/en-us/design-visualization/rtx-6000/", "RTX-6000-Ada"),
    _gpu("MI300X-192GB", 196592, 5.3, (653.7, 1307.4, 2614.9, None), None, 448, None,
         "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html", "MI300X"),
    _gpu("MI325X-256GB", 262128, 6.0, (653.7, 1307.4, 2614.9, None), None, 448, None,
         "https://www.amd.com/en/products/accelerators/instinct/mi300/mi325x.html", "MI325X"),
    _gpu("MI355X-288GB", 294896, 8.0, (1258, 2516, 5033, 10066), None, 538, None,
         "https://www.amd.com/en/products/accelerators/instinct/mi350/mi355x.html", "MI355X"),
)  # fmt: skip

# One core of a current server with its share of memory bandwidth: an order of magnitude for the emulator, never a
# denominator of MFU or MBU (analysis/ asks for a measured peak on cpu).
_CPU = Accelerator(
    "cpu", 4 * _GIB, 10e9, {"float32": 100e9, "bfloat16": 100e9, "float16": 100e9, "int8": 200e9}, None, 5e9, 1e9, None,
    "an order of magnitude for one core, stated here", _AS_OF,
)  # fmt: skip


def _key(name: str) -> str:
    return "".join(
        character for character in name.lower().removeprefix("nvidia").removeprefix("amd") if character.isalnum()
    )


@cache
def _table() -> dict[str, Accelerator]:
    return {_key(name): entry for entry in (*_ALL, _CPU) for name in (entry.name, *entry.aliases)}


def accelerators() -> list[str]:
    """Names in the catalogue, as written in experiment files."""
    return [entry.name for entry in _ALL]


def find(name: str) -> Accelerator | None:
    """An accelerator by name or alias; case and punctuation do not matter. None: not in the catalogue."""
    return _table().get(_key(name))


def nearest(name: str) -> list[str]:
    """Names in the catalogue that look like this one, best first."""
    keys = difflib.get_close_matches(_key(name), list(_table()), n=3, cutoff=0.4)
    return list(dict.fromkeys(_table()[key].name for key in keys))


def of_hardware(hardware: Hardware) -> Accelerator | None:
    """The catalogue's entry with the user's own figures put over it. None: unknown, and the user gave no memory."""
    entry = find(hardware.accelerator)
    if entry is None:
        return None
    memory = int(hardware.memory_gb * 1e9) if hardware.memory_gb else entry.memory_bytes
    bandwidth = hardware.memory_bandwidth_gb_s * 1e9 if hardware.memory_bandwidth_gb_s else entry.bandwidth_bytes_s
    price = hardware.usd_per_gpu_hour if hardware.usd_per_gpu_hour is not None else entry.usd_per_hour
    return replace(entry, memory_bytes=memory, bandwidth_bytes_s=bandwidth, usd_per_hour=price)
