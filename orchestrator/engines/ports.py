"""Free ports for engines on this node."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Collection

import numpy as np

from orchestrator.errors import PlacementError

# Ray takes 10002-19999 for its workers, Linux gives 32768 and up to outgoing connections.
FIRST, LAST = 21000, 31999


def free_ports(count: int, given: Collection[int], rng: np.random.Generator) -> list[int]:
    """``count`` ports that nobody listens on, none of ``given``. Raises PlacementError when there are not that many.

    ``rng`` decides where the search begins, so that what just ended is seldom met again.
    """
    first = int(rng.integers(FIRST, LAST + 1))
    ring = itertools.chain(range(first, LAST + 1), range(FIRST, first))
    found = list(itertools.islice((port for port in ring if port not in given and is_free(port)), count))
    if len(found) < count:
        raise PlacementError(f"this node has fewer than {count} free ports between {FIRST} and {LAST}")
    return found


def is_free(port: int) -> bool:
    """Whether nobody listens on ``port`` on any address of this node, IPv4 or, where it has that, IPv6."""
    dual = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual
        ).close()
    except OSError:
        return False
    return True
