"""Whether a higher load met clearly more than a lower one, which no server does by itself.

A search takes a server to be the same from its first probe to its last. Where other work takes its
machine for a while, the probes of that while miss, and the estimate and its interval are of no
server that exists.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from orchestrator.capacity.design_effect import PRIOR_EFFECT

# Near its capacity, a server that stays the same has runs of misses that the next level happens not
# to have, so levels nearer than this are not compared.
LEAST_DISTANCE = 0.07  # as a share of the lower level
LEAST_GAIN = 0.2  # of the share that met the limits
STANDARD_ERRORS = 3.3  # by which the shares must differ, at ``PRIOR_EFFECT``


@dataclass(frozen=True, slots=True)
class ProbeShare:
    """The share of a probe's requests that met the limits."""

    level: float
    share: float
    requests: int


@dataclass(frozen=True, slots=True)
class Inversion:
    """A probe at a lower level that met clearly less than one at a higher level."""

    lower: ProbeShare
    higher: ProbeShare


def clearest_inversion(probes: Sequence[ProbeShare]) -> Inversion | None:
    """The pair of probes that contradict each other most; None: no two of them do."""
    inversions = [
        Inversion(lower, higher)
        for lower, higher in product(probes, repeat=2)
        if higher.level >= lower.level * (1 + LEAST_DISTANCE)
    ]
    clear = [inversion for inversion in inversions if _is_clear(inversion)]
    return max(clear, key=_standard_errors, default=None)


def _is_clear(inversion: Inversion) -> bool:
    gain = inversion.higher.share - inversion.lower.share
    return gain >= LEAST_GAIN and _standard_errors(inversion) >= STANDARD_ERRORS


def _standard_errors(inversion: Inversion) -> float:
    """The difference of both shares, in standard errors.

    Both probes are taken to have the share in the middle: by its own few requests or by all of
    them, one run of misses in a short probe would look certain.
    """
    lower = inversion.lower
    higher = inversion.higher
    middle = (lower.share + higher.share) / 2
    variance_of_one = PRIOR_EFFECT * middle * (1 - middle)
    variance = variance_of_one * (1 / lower.requests + 1 / higher.requests)
    return (higher.share - lower.share) / math.sqrt(variance) if variance > 0 else 0.0
