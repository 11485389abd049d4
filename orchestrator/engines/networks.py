"""The network between an engine's nodes, and the one between prefill and decode replicas: what
engines are told of it, and what their logs say of it.
"""

import ipaddress
import re
import socket

import psutil

NOT_SAID = "not said"
GLOO = "GLOO_SOCKET_IFNAME"
# init.cc of NCCL and RCCL, under NCCL_DEBUG=INFO
NCCL = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (\w+)")
# UCX prints a table of the ways that it chose for NIXL's transfers, before the first one: the last
# is for long ones ("| 8K..inf | zero-copy | rc_mlx5/mlx5_0:1 |"). Other operations are not "multi":
# tests of itself, notifications.
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
    """The variable that names the interface of this node's ``address``, where Gloo would not find
    it.

    Gloo listens at the address of the host's name. Where that is loopback, as Debian's /etc/hosts
    has it, ranks on other hosts cannot connect.
    """
    try:
        found = socket.gethostbyname(socket.gethostname())
    except (OSError, UnicodeError):
        # no address, or no name that DNS could have: Gloo then takes loopback
        found = "127.0.0.1"
    if not ipaddress.ip_address(found).is_loopback or address.startswith("127."):
        return {}
    names = [
        name
        for name, given in psutil.net_if_addrs().items()
        if any(one.address == address for one in given)
    ]
    return {GLOO: names[0]} if names else {}


def between_nodes(log: str) -> str:
    """The network that NCCL uses between the nodes of a replica: IB, AWS Libfabric, …, or Socket,
    which is TCP.
    """
    found = NCCL.search(log)
    return found[1] if found else NOT_SAID


def of_kv_caches(log: str) -> str:
    """What KV caches travel over: UCX's transports and devices once one has travelled, or
    Mooncake's transport.
    """
    if chosen := CHOSEN.findall(log):
        return " ".join(dict.fromkeys(DEVICE.findall(" ".join(chosen))))
    return (
        " ".join(dict.fromkeys("".join(groups).lower() for groups in MOONCAKE.findall(log)))
        or NOT_SAID
    )


def doubt(network: str, on_cpu: bool) -> str:
    """What to tell of a network that is only TCP, or has no name where a faster one is usual; else
    empty.
    """
    if {name.partition("/")[0] for name in network.split()} <= {"Socket", "tcp"}:
        return f"over TCP ({network})"
    return "over a network that its log does not name" if network == NOT_SAID and not on_cpu else ""
