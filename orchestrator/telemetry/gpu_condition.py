"""What disturbed a GPU while a point ran, from its samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.base.grouping import values_by_key
from orchestrator.telemetry.gpu_sample import GpuSample
from orchestrator.telemetry.node_sampler import NodeTelemetry

# Counters of the time in which clocks were held down, and the bits of
# nvmlDeviceGetCurrentClocksEventReasons that mean the same.
POWER_LIMIT = {"throttled_ns_power": 0x4}  # the software's limit on power
BRAKES = {
    "throttled_ns_thermal": 0x20,  # heat, by software
    "throttled_ns_hw": 0x8 | 0x40 | 0x80,  # hardware slowdown, heat by hardware, power brake
}


@dataclass(frozen=True, slots=True)
class GpuCondition:
    """How a GPU fared while a point ran. Shares are of the time from the first reading of what they
    are of to its last.

    ``power_limited_share``: its power limit held clocks down. ``braked_share``: heat did, or a
    power brake. ``foreign_bytes``: the most memory that processes of others used. ``ecc_errors``:
    uncorrected memory errors. None: its driver does not report it. ``is_lost``: it stopped
    answering.
    """

    gpu_uuid: str
    host: str
    power_limited_share: float | None = None
    braked_share: float | None = None
    foreign_bytes: int | None = None
    ecc_errors: int | None = None
    is_lost: bool = False


def gpu_conditions(telemetry: Iterable[NodeTelemetry]) -> list[GpuCondition]:
    """One for each GPU that was sampled, or that was lost before it could be."""
    conditions: list[GpuCondition] = []
    for node in telemetry:
        lost = {gpu.gpu_uuid for gpu in node.lost_gpus}
        samples_of = values_by_key((sample.gpu_uuid, sample) for sample in node.gpu_samples)
        for uuid in sorted(lost | samples_of.keys()):
            samples = samples_of.get(uuid, [])
            conditions.append(_condition(uuid, node.host, samples, is_lost=uuid in lost))
    return conditions


def _condition(uuid: str, host: str, samples: Sequence[GpuSample], is_lost: bool) -> GpuCondition:
    foreign = [
        int(sample.values["foreign_bytes"])
        for sample in samples
        if "foreign_bytes" in sample.values
    ]
    ecc_errors = _growth(samples, "ecc_uncorrected")
    return GpuCondition(
        gpu_uuid=uuid,
        host=host,
        power_limited_share=_throttled_share(samples, POWER_LIMIT),
        braked_share=_throttled_share(samples, BRAKES),
        foreign_bytes=max(foreign, default=None),
        ecc_errors=None if ecc_errors is None else int(ecc_errors),
        is_lost=is_lost,
    )


def _throttled_share(samples: Sequence[GpuSample], bits_of: Mapping[str, int]) -> float | None:
    """The share of the time in which clocks were held down, by the counter that grew most. In place
    of the counters that are missing, the share of samples whose event reasons have one of their
    bits. None: neither is reported, or there are fewer than two samples.

    ``bits_of``: counter -> its bits.
    """
    if len(samples) < 2:
        return None
    missing_bits = 0
    shares: list[float] = []
    for counter, bits in bits_of.items():
        throttled_ns = _growth(samples, counter)
        if throttled_ns is None:
            missing_bits |= bits
        else:
            at_ns = [sample.unix_ns for sample in samples if counter in sample.values]
            shares.append(min(1.0, throttled_ns / max(1, at_ns[-1] - at_ns[0])))
    reasons = [
        int(sample.values["event_reasons"])
        for sample in samples
        if "event_reasons" in sample.values
    ]
    if missing_bits and reasons:
        with_reason = [reason for reason in reasons if reason & missing_bits]
        shares.append(len(with_reason) / len(reasons))
    return max(shares, default=None)


def _growth(samples: Sequence[GpuSample], counter: str) -> float | None:
    """How much a counter grew; None without two readings, and if it was reset meanwhile."""
    readings = [sample.values[counter] for sample in samples if counter in sample.values]
    if len(readings) < 2 or readings != sorted(readings):
        return None
    return readings[-1] - readings[0]
