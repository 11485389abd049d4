"""What logs say of the network between nodes and between roles, and the doubts that it raises."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from orchestrator.engines.networks import GLOO, NOT_SAID, doubt, for_gloo, of_kv_caches

AT = "I1123 18:16:57.678692  5222 transfer_engine_impl.cpp"
# Mooncake 0.3.13 on a machine without InfiniBand, asked for RDMA, and with MC_FORCE_TCP=1 (the last
# line)
NO_ADAPTER = f"""
W1123 18:16:57.678675  5222 topology.cpp:201] No RDMA devices found, check your device installation
{AT}:274] Topology discovery complete. Found 0 HCAs.
I1123 18:16:57.678717  5222 tcp_transport.cpp:391] TcpTransport: listen on port 15829
"""
FORCED = f"{AT}:219] MC_FORCE_TCP is set, using TCP transport only"


# UCX 1.23 of NIXL 1.5.1 between two processes of one host, with UCX_PROTO_INFO as roles get it (and
# UCX_TLS=tcp,self)
NIXL = """
[1795458368.5] [vm:1790 :0]   +--------+-------------+-------------------------------------------+
[1795458368.5] [vm:1790 :0]   | init intra-node cfg#1                                            |
[1795458368.5] [vm:1790 :0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1795458368.5] [vm:1790 :0]   +--------+-------------+-------------------------------------------+
[1795458368.5] [vm:1790 :0]   | Range  | Description |                  Config                   |
[1795458368.5] [vm:1790 :0]   +--------+-------------+-------------------------------------------+
[1795458368.5] [vm:1790 :0]   | 0..inf | zero-copy   | cma/memory                                |
[1795458368.5] [vm:1790 :0]   +--------+-------------+-------------------------------------------+
"""
OVER_TCP = NIXL.replace("zero-copy  ", "software emulation").replace("cma/memory", "tcp/lo    ")
RAILS = "50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1"  # as its source (9466d10) writes it
LONG = NIXL.replace(
    "0..inf | zero-copy   | cma/memory",
    f"0..2038 | short | ud_mlx5/mlx5_0:1 |\n| 2039..inf | zero-copy | {RAILS}",
)


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        (NIXL, "cma/memory"),
        (OVER_TCP, "tcp/lo"),
        (NIXL + OVER_TCP + NIXL, "cma/memory tcp/lo"),
        (LONG, "rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1"),
        # a table without "(multi)" is of a test that UCX makes of itself, not of a transfer
        (NIXL.replace("(multi)", ""), NOT_SAID),
        # what UCX has, which is no choice for a transfer
        (
            (
                "[1795458093.9] [vm:1:0] ucp_worker.c:1997 UCX  INFO  a intra-node cfg#1 "
                "rma_am(tcp/lo)  ka(tcp/lo)"
            ),
            NOT_SAID,
        ),
    ],
)
def test_ucx_names_what_it_chose_for_a_transfer_not_what_it_has(log: str, transport: str) -> None:
    assert of_kv_caches(log) == transport


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        (NO_ADAPTER, "tcp"),
        (NO_ADAPTER + FORCED, "tcp"),
        # from its source (3b5a594), with adapters
        (
            (
                f"{AT}:274] Topology discovery complete. Found 8 HCAs.\n{AT}:429] installTransport, "
                "type=rdma"
            ),
            "rdma",
        ),
        (f"{AT}:387] Using RDMA transport (RoCE/iWARP)", "rdma"),
        (f"{AT}:378] Using NVLink transport (forced or no HCA detected)", "nvlink"),
        (f"{AT}:253] Using cross-node NVLink transport (MC_FORCE_MNNVL set)", "nvlink"),
        ("x.cpp:9] Installing EFA transport as requested by protocol parameter", "efa"),
        ("Topology discovery complete. Found 8 HCAs.", NOT_SAID),
        ("", NOT_SAID),
    ],
)
def test_mooncake_names_its_transport_when_it_starts(log: str, transport: str) -> None:
    assert of_kv_caches(log) == transport


@pytest.mark.parametrize(
    ("network", "on_cpu", "expected"),
    [
        ("Socket", False, "over TCP (Socket)"),
        ("tcp/eth0 tcp/lo", True, "over TCP (tcp/eth0 tcp/lo)"),
        ("rc_mlx5/mlx5_0:1 tcp/eth0", False, ""),
        ("IB", False, ""),
        (NOT_SAID, False, "over a network that its log does not name"),
        (NOT_SAID, True, ""),
    ],
)
def test_tcp_and_networks_without_a_name_raise_a_doubt(
    network: str, on_cpu: bool, expected: str
) -> None:
    assert doubt(network, on_cpu) == expected


@pytest.mark.parametrize(
    ("address_of_name", "address", "expected"),
    [
        ("127.0.1.1", "10.0.0.7", {GLOO: "eth1"}),
        (socket.gaierror(), "10.0.0.7", {GLOO: "eth1"}),
        (UnicodeError("label too long"), "10.0.0.7", {GLOO: "eth1"}),
        ("10.0.0.7", "10.0.0.7", {}),
        ("127.0.1.1", "127.0.0.1", {}),
        ("127.0.1.1", "10.9.9.9", {}),
    ],
)
def test_gloo_is_told_the_interface_where_the_hosts_name_is_loopback(
    address_of_name: str | Exception,
    address: str,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(_: str) -> str:
        if isinstance(address_of_name, Exception):
            raise address_of_name
        return address_of_name

    interfaces = {
        "lo": [SimpleNamespace(address="127.0.0.1")],
        "eth1": [SimpleNamespace(address="10.0.0.7")],
    }
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    assert for_gloo(address) == expected
