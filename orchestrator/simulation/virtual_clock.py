"""Gives a simulation its time and ids. Both follow from the plan alone, so the same plan gives the
same bytes.
"""

import hashlib

from ulid import ULID

EPOCH_NS = 1_577_836_800 * 10**9  # every simulation begins at 2020-01-01 00:00 UTC
_TIME_BYTES = 6  # the bytes of a ULID that count milliseconds since 1970
_OTHER_BYTES = 10  # the other bytes of a ULID, which are random elsewhere


class VirtualClock:
    """The clock of a simulation, which goes on only when it is told to."""

    def __init__(self, unix_ns: int = EPOCH_NS) -> None:
        self.unix_ns = unix_ns

    @property
    def now_s(self) -> float:
        """Seconds since the simulation began."""
        return (self.unix_ns - EPOCH_NS) / 1e9

    def go_on(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self.unix_ns += round(seconds * 1e9)


def ulid_at(unix_ns: int, *names: object) -> str:
    """A ULID for something with these names that happens at this time. The same time and names
    always give the same ULID.
    """
    text = "\n".join(map(str, names))
    milliseconds = unix_ns // 1_000_000
    other = hashlib.sha256(text.encode()).digest()[:_OTHER_BYTES]
    return str(ULID.from_bytes(milliseconds.to_bytes(_TIME_BYTES, "big") + other))


def launch_id_at(unix_ns: int, deployment_id: str, number: int, rules: str) -> str:
    """The id of the launch of a deployment that begins at this time.

    ``number``: how many launches of the deployment came before. ``rules``: see
    ``EngineModels.rules_digest``. So a launch has another id once its attempts would differ.
    """
    return ulid_at(unix_ns, deployment_id, number, rules)


def began_at(ulid: str) -> int:
    """When something with this ULID happened, in Unix nanoseconds; in whole milliseconds."""
    return ULID.from_str(ulid).milliseconds * 1_000_000
