"""Functions that run on nodes and find out whether hosts reach each other on the engines' ports. No
Ray in here.
"""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Semaphore, Thread

import numpy as np
import psutil

from orchestrator.node.leases import free_ports

BYTES = 256 * 1024  # each way, enough for full-size packets
PATIENCE_S = 5.0
PEERS = 3  # hosts that each host tries: all pairs would be too many
AT_ONCE = 2 * PEERS  # connections served at once: PEERS hosts try this one, and some room
FULL = b"\0" * BYTES


def listen(addresses: Sequence[str], limit_s: float) -> int:
    """Listen for ``limit_s`` on a port from the engines' range, which firewalls must let through;
    returns the port.

    Each connection is read for BYTES bytes and sent as many back. ``addresses``: those of all
    hosts. Listens on this host's own one, or on all interfaces where it is not among them (NAT).
    """
    (port,) = free_ports(1, (), np.random.default_rng())
    here = _own().intersection(addresses)
    address = here.pop() if len(here) == 1 else ""
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family, dualstack_ipv6=dual)
    Thread(target=_serve, args=(server, time.monotonic() + limit_s), daemon=True).start()
    return port


def _serve(server: socket.socket, until_s: float) -> None:
    free = Semaphore(AT_ONCE)
    with server, suppress(OSError):
        while (left_s := until_s - time.monotonic()) > 0 and free.acquire(timeout=left_s):
            server.settimeout(max(0.0, until_s - time.monotonic()))
            Thread(target=_answer, args=(server.accept()[0], free), daemon=True).start()


def _answer(connection: socket.socket, free: Semaphore) -> None:
    with connection, suppress(OSError):
        connection.settimeout(PATIENCE_S)
        _take(connection)
        connection.sendall(FULL)
    free.release()


def _own() -> set[str]:
    return {
        interface.address for addresses in psutil.net_if_addrs().values() for interface in addresses
    }


def _take(connection: socket.socket) -> None:
    """Read BYTES bytes. Raises TimeoutError when fewer come."""
    left = BYTES
    while left:
        if not (got := connection.recv(1 << 16)):
            raise TimeoutError
        left -= len(got)


def unreached(hosts: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Address -> why this host cannot reach it, for the next PEERS of ``hosts`` (address, port of
    ``listen``).
    """
    own = _own()
    here = next((index for index, (address, _) in enumerate(hosts) if address in own), 0)
    others = [host for host in (*hosts[here:], *hosts[:here]) if host[0] not in own]
    return {address: why for address, port in others[:PEERS] if (why := _problem(address, port))}


def _problem(address: str, port: int) -> str:
    try:
        connection = socket.create_connection((address, port), PATIENCE_S)
    except OSError as error:
        return f"no connection to its port {port}: {error.strerror or 'no answer'}"
    try:
        with connection:
            connection.sendall(FULL)
            _take(connection)
    except OSError:
        return (
            f"it takes connections, but {BYTES >> 10} KiB do not get through: full packets are lost"
        )
    return ""


def unknown_interfaces() -> list[str]:
    """Environment variables of NCCL and Gloo that name a network interface which does not exist."""
    there, found = list(psutil.net_if_addrs()), list[str]()
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        said = os.environ.get(name, "")
        names = said.removeprefix("=").split(",") if said and not said.startswith("^") else []
        if names and not any(interface.startswith(tuple(names)) for interface in there):
            found.append(f"{name}={said}")
    return found
