"""Free ports for engines on this node."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import numpy as np

from orchestrator.engines.ownership import FileLock, node_folder
from orchestrator.errors import PlacementError

# Ray takes 10002-19999 for its workers, Linux gives 32768 and up to outgoing connections.
FIRST, LAST = 21000, 31999


class Ports:
    """Hands out free ports: none twice, and none that another of this user's processes holds for as long as it lives.

    ``rng`` decides where the search begins, so that owners on one node seldom try the same ports.
    """

    def __init__(self, rng: np.random.Generator, folder: Path | None = None) -> None:
        self._next = FIRST + int(rng.integers(0, LAST - FIRST + 1))
        self._folder = folder or node_folder("ports")
        self._given: dict[int, FileLock] = {}

    def take(self, count: int = 1) -> list[int]:
        """``count`` ports that nobody listens on. Raises PlacementError when there are not that many."""
        taken: list[int] = []
        for _ in range(LAST - FIRST + 1):
            if len(taken) == count:
                break
            port, self._next = self._next, self._next + 1 if self._next < LAST else FIRST
            if port not in self._given and is_free(port) and self._reserve(port):
                taken.append(port)
        if len(taken) < count:
            raise PlacementError(f"this node has fewer than {count} free ports between {FIRST} and {LAST}")
        return taken

    def release(self) -> None:
        """Others on this node may have them now."""
        while self._given:
            self._given.popitem()[1].release()

    def _reserve(self, port: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._given[port] = FileLock(str(port), self._folder, exclusive=True)
        return port in self._given


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
