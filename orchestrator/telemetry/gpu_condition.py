"""What disturbed a GPU while a point ran, from its samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.base.text import grouped
from orchestrator.telemetry.gpu_sample import GpuSample
from orchestrator.telemetry.node_sampler import NodeTelemetry

# bits of nvmlDeviceGetCurrentClocksEventReasons
POWER_LIMIT = 0x4  # the software's limit on power
BRAKES = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, heat (software, hardware), power brake


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """How a GPU fared while a point ran. Shares are of the time from its first sample to its last.

    ``power_limited_share``: its power limit held clocks down. ``braked_share``: heat did, or a
    power brake. ``foreign_bytes``: the most memory that processes of others used. ``ecc_errors``:
    uncorrected memory errors. ``is_lost``: it stopped to answer.
    """

    gpu_uuid: str
    host: str
    power_limited_share: float = 0.0
    braked_share: float = 0.0
    foreign_bytes: int = 0
    ecc_errors: int = 0
    is_lost: bool = False


def gpu_conditions(telemetry: Iterable[NodeTelemetry]) -> list[GpuCondition]:
    """One for each GPU that was sampled, or that was lost before it could be."""
    conditions: list[GpuCondition] = []
    for node in telemetry:
        lost = {gpu.gpu_uuid for gpu in node.lost_gpus}
        samples_of = grouped((sample.gpu_uuid, sample) for sample in node.gpu_samples)
        for uuid in sorted(lost | samples_of.keys()):
            samples = samples_of.get(uuid, [])
            conditions.append(_condition(uuid, node.host, samples, is_lost=uuid in lost))
    return conditions


def _condition(uuid: str, host: str, samples: Sequence[GpuSample], is_lost: bool) -> GpuCondition:
    foreign = [int(sample.values.get("foreign_bytes", 0)) for sample in samples]
    return GpuCondition(
        gpu_uuid=uuid,
        host=host,
        power_limited_share=_throttled_share(samples, ("throttled_ns_power",), POWER_LIMIT),
        braked_share=_throttled_share(samples, ("throttled_ns_thermal", "throttled_ns_hw"), BRAKES),
        foreign_bytes=max(foreign, default=0),
        ecc_errors=int(_growth(samples, "ecc_uncorrected") or 0),
        is_lost=is_lost,
    )


def _throttled_share(samples: Sequence[GpuSample], counters: Sequence[str], bits: int) -> float:
    """The share of the time in which clocks were held down, by the counter that grew most; without
    counters the share of samples whose event reasons have one of ``bits``.
    """
    if len(samples) < 2:
        return 0.0
    growths = [_growth(samples, counter) for counter in counters]
    throttled_ns = [growth for growth in growths if growth is not None]
    if throttled_ns:
        took_ns = samples[-1].unix_ns - samples[0].unix_ns
        return min(1.0, max(throttled_ns) / max(1, took_ns))
    reasons = [int(sample.values.get("event_reasons", 0)) for sample in samples]
    return sum(bool(reason & bits) for reason in reasons) / len(reasons)


def _growth(samples: Sequence[GpuSample], counter: str) -> float | None:
    """How much a counter grew; None without two readings, and if it was reset meanwhile."""
    readings = [sample.values[counter] for sample in samples if counter in sample.values]
    if len(readings) < 2 or readings != sorted(readings):
        return None
    return readings[-1] - readings[0]
