"""What hosts were found to be when engines started on them, by titles that people read."""

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.results.stored_json import HostEnvironment

IMAGE = "image"


@dataclass(frozen=True, slots=True)
class HostFact:
    """Something about a host, and what it was at its launches."""

    title: str
    values: tuple[str, ...]


def host_facts(environments: Iterable[HostEnvironment]) -> tuple[HostFact, ...]:
    """What one host was at several launches, or several hosts were. What is not known is left out."""
    hosts = list(environments)
    facts = (
        HostFact("CPU", _texts(host.cpu for host in hosts)),
        HostFact("CPU cores", _texts(_text(host.cores) for host in hosts)),
        HostFact("kernel", _texts(host.kernel for host in hosts)),
        HostFact("system", _texts(host.system for host in hosts)),
        HostFact("GPU", _texts(name for host in hosts for name in host.gpus)),
        HostFact("GPU driver", _texts(host.driver for host in hosts)),
        HostFact("CUDA", _texts(host.cuda for host in hosts)),
        HostFact("power limit", _power_limits(hosts)),
        HostFact(IMAGE, _texts(host.image for host in hosts)),
    )
    return tuple(fact for fact in facts if fact.values)


def _texts(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value}))


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _power_limits(hosts: Iterable[HostEnvironment]) -> tuple[str, ...]:
    limits_w: set[float] = set()
    for host in hosts:
        limits_w.update(host.power_limits_w)
    return _texts(f"{limit_w:g} W" for limit_w in limits_w)
