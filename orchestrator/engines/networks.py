"""The network between an engine's nodes, and the one between prefill and decode replicas: how
engines are set to use it, and what their logs say about it.
"""

import ipaddress
import re
import socket

import psutil

NOT_SAID = "not said"
GLOO = "GLOO_SOCKET_IFNAME"
# init.cc of NCCL and RCCL, under NCCL_DEBUG=INFO
NCCL = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (\w+)")
# Before the first transfer of NIXL, UCX prints a table of the ways that it chose. The last row is
# for long transfers ("| 8K..inf | zero-copy | rc_mlx5/mlx5_0:1 |"). Only tables of transfers say
# "multi"; UCX prints others for notifications and for tests of itself.
UCX = {"UCX_PROTO_INFO": "*remote memory*(multi)*"}
CHOSEN = re.compile(r"remote memory [^|\n]*\(multi\)(?:.*\n)+?.*\.\.inf *\|[^|\n]*\|([^|\n]*)\|")
DEVICE = re.compile(r"\w+/[\w.:-]+")
# transfer_engine_impl.cpp, transfer_engine_py.cpp and tcp_transport.cpp of Mooncake
MOONCAKE = re.compile(
    r"installTransport, type=(\w+)|[Uu]sing (?:[\w-]+ )?(\w+) transport\b|Installing (\w+) "
    r"transport"
    r"|(Tcp)Transport: listen on port"
)


def for_gloo(address: str) -> dict[str, str]:
    """The environment variable that tells Gloo the interface of this node's ``address``; empty
    where Gloo finds it by itself.

    Gloo listens at the address of the host's name. Where that is loopback, as Debian's /etc/hosts
    has it, ranks on other hosts cannot connect.
    """
    try:
        address_of_name = socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        # no address, or no name that DNS could have: Gloo then takes loopback
        address_of_name = "127.0.0.1"
    if not ipaddress.ip_address(address_of_name).is_loopback or address.startswith("127."):
        return {}
    for interface, addresses in psutil.net_if_addrs().items():
        if address in {own.address for own in addresses}:
            return {GLOO: interface}
    return {}


def between_nodes(log: str) -> str:
    """The network that NCCL uses between the nodes of a replica: IB, AWS Libfabric, …, or Socket,
    which is TCP.
    """
    match = NCCL.search(log)
    return match[1] if match else NOT_SAID


def of_kv_caches(log: str) -> str:
    """What KV caches travel over: UCX's transports and devices once one has travelled, or
    Mooncake's transport.
    """
    choices = CHOSEN.findall(log)
    if choices:
        devices = DEVICE.findall(" ".join(choices))
        return " ".join(dict.fromkeys(devices))
    # each match has one group that is not empty
    transports = ["".join(groups).lower() for groups in MOONCAKE.findall(log)]
    return " ".join(dict.fromkeys(transports)) or NOT_SAID


def doubt(network: str, on_cpu: bool) -> str:
    """A warning about a network that is only TCP, or has no name where a faster one is usual; ""
    without a reason to warn.
    """
    transports = {name.partition("/")[0] for name in network.split()}
    if transports <= {"Socket", "tcp"}:
        return f"over TCP ({network})"
    if network == NOT_SAID and not on_cpu:
        return "over a network that its log does not name"
    return ""
