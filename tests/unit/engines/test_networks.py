"""What logs say of the network between nodes and between roles, and what is told of it."""

from __future__ import annotations

import pytest

from orchestrator.engines.networks import NOT_SAID, doubt, of_kv_caches

AT = "I1123 18:16:57.678692  5222 transfer_engine_impl.cpp"
# Mooncake 0.3.13 on a machine without InfiniBand, asked for RDMA, and with MC_FORCE_TCP=1 (the last line)
NO_ADAPTER = f"""
W1123 18:16:57.678675  5222 topology.cpp:201] No RDMA devices found, check your device installation
{AT}:274] Topology discovery complete. Found 0 HCAs.
I1123 18:16:57.678717  5222 tcp_transport.cpp:391] TcpTransport: listen on port 15829
"""
FORCED = f"{AT}:219] MC_FORCE_TCP is set, using TCP transport only"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (NO_ADAPTER, "tcp"),
        (NO_ADAPTER + FORCED, "tcp"),
        # from its source (3b5a594), with adapters
        (f"{AT}:274] Topology discovery complete. Found 8 HCAs.\n{AT}:429] installTransport, type=rdma", "rdma"),
        (f"{AT}:387] Using RDMA transport (RoCE/iWARP)", "rdma"),
        (f"{AT}:378] Using NVLink transport (forced or no HCA detected)", "nvlink"),
        (f"{AT}:253] Using cross-node NVLink transport (MC_FORCE_MNNVL set)", "nvlink"),
        ("x.cpp:9] Installing EFA transport as requested by protocol parameter", "efa"),
        ("Topology discovery complete. Found 8 HCAs.", NOT_SAID),
        ("", NOT_SAID),
    ],
)
def test_mooncake_names_its_transport_when_it_starts(log: str, said: str) -> None:
    assert of_kv_caches(log) == said


@pytest.mark.parametrize(
    ("network", "on_cpu", "told"),
    [
        ("Socket", False, "over TCP (Socket)"),
        ("tcp/eth0 tcp/lo", True, "over TCP (tcp/eth0 tcp/lo)"),
        ("rc_mlx5/mlx5_0:1 tcp/eth0", False, ""),
        ("IB", False, ""),
        (NOT_SAID, False, "over a network that its log does not name"),
        (NOT_SAID, True, ""),
    ],
)
def test_tcp_and_what_has_no_name_is_told(network: str, on_cpu: bool, told: str) -> None:
    assert doubt(network, on_cpu) == told
