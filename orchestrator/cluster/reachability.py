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
AT_ONCE = 2 * PEERS  # connections served at once; PEERS hosts try this one
PAYLOAD = b"\0" * BYTES


def listen(addresses: Sequence[str], limit_s: float) -> int:
    """Listens for ``limit_s`` on a port from the engines' range, which firewalls must let through.
    Returns the port.

    The listener reads BYTES bytes from each connection and sends as many back. It listens on this
    host's own address among ``addresses`` (those of all hosts), or on all interfaces where this
    host has none of them (NAT).
    """
    (port,) = free_ports(1, (), np.random.default_rng())
    own = _own_addresses().intersection(addresses)
    address = own.pop() if len(own) == 1 else ""
    dual = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family, dualstack_ipv6=dual)
    Thread(target=_serve, args=(server, time.monotonic() + limit_s), daemon=True).start()
    return port


def _serve(server: socket.socket, until_s: float) -> None:
    """Answers connections until ``until_s``, at most AT_ONCE at the same time."""
    free = Semaphore(AT_ONCE)
    with server, suppress(OSError):
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not free.acquire(timeout=left_s):
                return
            server.settimeout(max(0.0, until_s - time.monotonic()))
            connection, _ = server.accept()
            Thread(target=_answer, args=(connection, free), daemon=True).start()


def _answer(connection: socket.socket, free: Semaphore) -> None:
    with connection, suppress(OSError):
        connection.settimeout(PATIENCE_S)
        _receive_payload(connection)
        connection.sendall(PAYLOAD)
    free.release()


def _own_addresses() -> set[str]:
    addresses: set[str] = set()
    for interface_addresses in psutil.net_if_addrs().values():
        addresses.update(address.address for address in interface_addresses)
    return addresses


def _receive_payload(connection: socket.socket) -> None:
    """Reads BYTES bytes. Raises TimeoutError when fewer come."""
    missing = BYTES
    while missing:
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise TimeoutError
        missing -= len(chunk)


def unreached(hosts: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Tries the PEERS hosts that follow this one in ``hosts``. Returns those that it cannot reach:
    address -> why.

    ``hosts``: the address of each host and the port of its ``listen``.
    """
    own = _own_addresses()
    here = 0
    for index, (address, _) in enumerate(hosts):
        if address in own:
            here = index
            break
    following = [*hosts[here:], *hosts[:here]]
    peers = [host for host in following if host[0] not in own][:PEERS]
    problems: dict[str, str] = {}
    for address, port in peers:
        problem = _problem(address, port)
        if problem:
            problems[address] = problem
    return problems


def _problem(address: str, port: int) -> str:
    """Why a peer's port cannot be used from this host; empty if it can."""
    try:
        connection = socket.create_connection((address, port), PATIENCE_S)
    except OSError as error:
        return f"no connection to its port {port}: {error.strerror or 'no answer'}"
    try:
        with connection:
            connection.sendall(PAYLOAD)
            _receive_payload(connection)
    except OSError:
        return (
            f"it takes connections, but {BYTES >> 10} KiB do not get through: full packets are lost"
        )
    return ""


def unknown_interfaces() -> list[str]:
    """Environment variables of NCCL and Gloo that name a network interface which does not exist."""
    interfaces = list(psutil.net_if_addrs())
    unknown: list[str] = []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = os.environ.get(variable, "")
        if not value or value.startswith("^"):  # ^ excludes interfaces instead
            continue
        prefixes = tuple(value.removeprefix("=").split(","))
        if not any(interface.startswith(prefixes) for interface in interfaces):
            unknown.append(f"{variable}={value}")
    return unknown
