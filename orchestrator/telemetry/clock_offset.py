"""How far the wall clock of another host is from the driver's."""

import time
from collections.abc import Callable
from dataclasses import dataclass

ROUNDS = 8


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A host's wall clock minus the driver's, and the bound of its error."""

    ns: int
    error_ns: int


SAME_CLOCK = ClockOffset(0, 0)


def clock_offset(
    read_clock: Callable[[], int],
    rounds: int = ROUNDS,
    own_clock: Callable[[], int] = time.time_ns,
) -> ClockOffset:
    """How far a host's wall clock is off, by Cristian's algorithm: half of the fastest round trip
    bounds the error. ``read_clock``: asks the host for its Unix time in nanoseconds. ``own_clock``:
    the driver's.
    """
    offsets = []
    for _ in range(rounds):
        before_ns = own_clock()
        host_ns = read_clock()
        after_ns = own_clock()
        middle_ns = (before_ns + after_ns) // 2
        offsets.append(ClockOffset(host_ns - middle_ns, (after_ns - before_ns) // 2))
    return min(offsets, key=lambda offset: offset.error_ns)
