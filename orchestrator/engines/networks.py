"""What an engine's log says of the network between its nodes, and of the one between prefill and decode replicas."""

import re

NOT_SAID = "not said"
# init.cc of NCCL and RCCL, under NCCL_DEBUG=INFO
NCCL = re.compile(r"NCCL INFO (?:Using network|Assigned NET plugin) (\w+)")
# UCX prints a table of the ways that it chose for NIXL's transfers, before the first one: the last is for long ones
# ("| 8K..inf | zero-copy | rc_mlx5/mlx5_0:1 |"). Other operations are not "multi": tests of itself, notifications.
UCX = {"UCX_PROTO_INFO": "*remote memory*(multi)*"}
CHOSEN = re.compile(r"remote memory [^|\n]*\(multi\)(?:.*\n)+?.*\.\.inf *\|[^|\n]*\|([^|\n]*)\|")
DEVICE = re.compile(r"\w+/[\w.:-]+")
# transfer_engine_impl.cpp, transfer_engine_py.cpp and tcp_transport.cpp of Mooncake
MOONCAKE = re.compile(
    r"installTransport, type=(\w+)|[Uu]sing (?:[\w-]+ )?(\w+) transport\b|Installing (\w+) transport"
    r"|(Tcp)Transport: listen on port"
)


def between_nodes(log: str) -> str:
    """The network that NCCL uses between the nodes of a replica: IB, AWS Libfabric, …, or Socket, which is TCP."""
    found = NCCL.search(log)
    return found[1] if found else NOT_SAID


def of_kv_caches(log: str) -> str:
    """What KV caches travel over: UCX's transports and devices once one has travelled, or Mooncake's transport."""
    if chosen := CHOSEN.findall(log):
        return " ".join(dict.fromkeys(DEVICE.findall(" ".join(chosen))))
    return " ".join(dict.fromkeys("".join(groups).lower() for groups in MOONCAKE.findall(log))) or NOT_SAID


def doubt(network: str, on_cpu: bool) -> str:
    """What to tell of a network that is only TCP, or has no name where a faster one is usual; else empty."""
    if {name.partition("/")[0] for name in network.split()} <= {"Socket", "tcp"}:
        return f"over TCP ({network})"
    return "over a network that its log does not name" if network == NOT_SAID and not on_cpu else ""
