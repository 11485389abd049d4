"""Judges facts about nodes (cluster/node_checks.py): what would make a sweep fail, or spoil its
figures.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.cluster.base import NODE_GROUP, Growth, Machine
from orchestrator.node.leases import FIRST_PORT, LAST_PORT
from orchestrator.plan.model import Deployment
from orchestrator.spec.load import counted
from orchestrator.sweep.examine import REPORT_S, Finding, Kinds, Level, Node
from orchestrator.sweep.need import need_of

GIB = 2**30
# open files that an engine needs, and a client with many streams: both raise their own soft limit
# as far as the hard one allows
LEAST_FILES, GOOD_FILES = 4096, 16_384
LEAST_PROCESSES = 4096
LEAST_DISK, GOOD_DISK = GIB, 20 * GIB
CLOCK_WARNING_S, CLOCK_FAIL_S = 0.005, 0.1
# need no system call
FAST_CLOCKS = {"", "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"}
USED_GPU = GIB


# -- checks of one node; each yields: level, what is wrong, why it matters, what to do

Told = Iterator[tuple[Level, str, str, str]]


def _limits(node: Node) -> Told:
    limits = node.facts["limits"]
    if (files := limits["nofile"]) is not None and files < GOOD_FILES:
        level: Level = "fail" if files < LEAST_FILES else "warning"
        what, do = (
            f"at most {files} open files per process",
            "raise `ulimit -Hn` before starting Ray",
        )
        yield level, what, "every stream of a load client takes one", do
    if (processes := limits["nproc"]) is not None and processes < LEAST_PROCESSES:
        yield (
            "warning",
            f"at most {processes} processes",
            "engines start hundreds of threads",
            "raise `ulimit -Hu`",
        )
    if node.facts["infiniband"] and limits["memlock"] is not None:
        what = f"it has InfiniBand, but only {limits['memlock']} bytes of memory may be locked"
        yield (
            "fail",
            what,
            "RDMA locks its buffers, so NCCL fails",
            "set `ulimit -l unlimited` before starting Ray",
        )


def _cgroup(node: Node) -> Told:
    cgroup, machine = node.facts["cgroup"], node.machine
    cores = min(cgroup.get("cpu", node.facts["cores"]), node.facts["cores"])
    if machine.cpus > cores + 0.5:
        what = f"the cluster counts {counted(machine.cpus, 'CPU')}, but the node may use only {cores:g}"
        yield (
            "warning",
            what,
            "engines and clients are promised the same cores",
            "start Ray with --num-cpus",
        )
    if (pids := cgroup.get("pids")) is not None and pids < LEAST_PROCESSES:
        yield (
            "warning",
            f"its cgroup allows {pids:g} processes",
            "engines start hundreds of threads",
            "raise pids.max",
        )
    gpu_bytes = sum(one.get("memory_bytes") or 0 for one in node.facts["gpus"].get("gpus", ()))
    if (memory := cgroup.get("memory", gpu_bytes)) < gpu_bytes / 2:
        what = f"its cgroup allows {memory / GIB:.0f} GiB of memory, but its GPUs have {gpu_bytes / GIB:.0f}"
        yield (
            "warning",
            what,
            "weights pass through it: an engine may be killed while it loads",
            "raise memory.max",
        )
    if node.facts["swapped_bytes"] > GIB:
        what = f"{node.facts['swapped_bytes'] / GIB:.1f} GiB are swapped out"
        yield (
            "warning",
            what,
            "an engine that is swapped out is slow, whatever its settings",
            "free memory, or swapoff",
        )


def _scheduling(node: Node) -> Told:
    if (niceness := node.facts["niceness"]) > 0:
        what = f"engines start at niceness {niceness}, and this user may not lower it"
        yield (
            "warning",
            what,
            "everything else on the node comes first",
            "run Ray as root, or raise RLIMIT_NICE to 20",
        )
    if slow := set(node.facts["governors"]) - {"performance"}:
        what = f"the CPU governor is {', '.join(sorted(slow))}"
        yield (
            "warning",
            what,
            "clock rates change with the load",
            "cpupower frequency-set -g performance",
        )


def _shared_memory(node: Node) -> Told:
    free, gpus = node.facts["shm"]["free"], node.machine.gpus
    needed = max(16, gpus) * GIB if gpus else GIB
    if free < needed:
        what = f"only {free / GIB:.1f} GiB are free in /dev/shm; engines may need {needed / GIB:g}"
        yield (
            "fail" if gpus > 1 else "warning",
            what,
            "ranks exchange data there",
            "raise --shm-size, or remount it",
        )
    if number := node.facts["segments"]:
        what = f"{number} shared memory segments of dead engines are in /dev/shm"
        yield "warning", what, "they take memory", "remove them: no process uses them"


def _ports(node: Node) -> Told:
    facts = node.facts
    first, last = facts["outgoing_ports"] or (LAST_PORT + 1, LAST_PORT + 1)
    if first <= LAST_PORT and last >= FIRST_PORT:
        what = (
            f"outgoing connections use ports {first} to {last}, engines {FIRST_PORT} to {LAST_PORT}"
        )
        do = f"sysctl net.ipv4.ip_local_port_range='{LAST_PORT + 1} 60999'"
        yield "warning", what, "an engine's port may be taken when it starts", do
    if facts["somaxconn"] < 4096:
        what = f"net.core.somaxconn is {facts['somaxconn']}"
        yield (
            "warning",
            what,
            "of many connections at once, some are dropped",
            "sysctl net.core.somaxconn=4096",
        )
    if facts["taken_ports"] > 25:
        what = f"{facts['taken_ports']} of 50 ports that were tried are taken"
        yield (
            "fail",
            what,
            "engines may find no port",
            f"stop what listens on {FIRST_PORT} to {LAST_PORT}",
        )


def _disk(node: Node) -> Told:
    for what, space in node.facts["disk"].items():
        if not space["writable"]:
            said, do = f"the folder of {what} cannot be written to", "let this user write there"
            yield "fail", said, "engines need it", do
        elif space["free"] < GOOD_DISK:
            level: Level = "fail" if space["free"] < LEAST_DISK else "warning"
            said = f"only {space['free'] / GIB:.1f} GiB are free for {what} ({space['kind']})"
            do = "free some space, or put it elsewhere (TMPDIR, HF_HOME)"
            yield level, said, "logs, caches and weights fill it", do


def _clock(node: Node) -> Told:
    if node.clock_s > CLOCK_WARNING_S:
        level: Level = "fail" if node.clock_s > CLOCK_FAIL_S else "warning"
        what = f"its clock is at least {1e3 * node.clock_s:.0f} ms off the driver's"
        yield (
            level,
            what,
            "clients start at the same time, and rows carry wall clocks",
            "run chrony or ntpd",
        )
    if (source := node.facts["clock_source"]) not in FAST_CLOCKS:
        what = f"its clock source is {source}"
        yield (
            "warning",
            what,
            "reading the time takes microseconds",
            "boot with tsc=reliable, if its TSC is",
        )


def _leftovers(node: Node) -> Told:
    if left := node.facts["leftovers"]:
        what = f"{len(left)} processes or containers of dead launches: {', '.join(left[:3])}"
        yield (
            "warning",
            what,
            "they hold cores and GPUs",
            "the next launch on the node ends them; or kill them",
        )


def _network(node: Node) -> Told:
    for port, state in node.facts["infiniband"].items():
        if "ACTIVE" not in state:
            what, do = f"InfiniBand {port} is {state}", "look at the cable and the subnet manager"
            yield "warning", what, "NCCL falls back to TCP", do
    for setting in node.facts["unknown_interfaces"]:
        yield (
            "fail",
            f"{setting} names no interface of this node",
            "NCCL and Gloo fail",
            "name one of `ip link`",
        )


def _gpus(node: Node) -> Told:
    found = node.facts["gpus"].get("gpus", [])
    of_amd = 0 if found else node.facts["amd_gpus"]  # beside NVIDIA's it is part of the processor
    tool = "amd-smi" if of_amd else "nvidia-smi"
    sliced = any(gpu.get("mig") for gpu in found)  # Ray may be told to count the slices
    if node.machine.gpus > len(found) + of_amd and not sliced:
        sees = f"NVML sees {len(found)}" + f" and AMD's driver {of_amd}" * bool(of_amd)
        what = f"the cluster counts {counted(node.machine.gpus, 'GPU')}, but {sees}"
        yield (
            "fail",
            what,
            "an engine may be given one that is not there",
            f"look at {tool}; restart Ray there",
        )
    elif of_amd and node.machine.gpus:
        what = f"nothing is known of the state of its {counted(of_amd, 'GPU')} of AMD"
        yield (
            "warning",
            what,
            "one that is in use, too hot or failing is not found out",
            "look at amd-smi there",
        )
    for gpu in found:
        yield from (
            (level, f"GPU {gpu['index']}: {what}", why, do) for level, what, why, do in _gpu(gpu)
        )


def _gpu(gpu: Mapping[str, Any]) -> Told:
    if gpu.get("lost"):
        yield "fail", "it is lost", "whatever runs on it dies", "reset it, or take the node out"
        return
    if (gpu["used_bytes"] or 0) > USED_GPU:
        users = f"pids {gpu['pids']}" if gpu["pids"] else "processes that NVML does not name"
        what = f"{gpu['used_bytes'] / GIB:.1f} GiB are in use, by {users}"
        yield "fail", what, "an engine has no room, or has to share the GPU", "end what runs there"
    if gpu["mig"]:
        yield (
            "warning",
            "MIG is on",
            "an engine sees a slice, not the whole device",
            "nvidia-smi -mig 0",
        )
    if gpu["ecc_errors"]:
        what = f"{gpu['ecc_errors']} uncorrected memory errors"
        yield (
            "fail",
            what,
            "answers may be wrong, and the GPU may fail",
            "drain the node and reset the GPU",
        )
    if gpu["slowed"]:
        what, do = ", ".join(gpu["slowed"]), "cool it, or nvidia-smi --reset-gpu-clocks"
        yield "warning", what, "it is slower than others of its kind", do
    if gpu["power_lowered"]:
        what, why = "its power limit is below the default", "it is slower than others of its kind"
        yield "warning", what, why, "nvidia-smi -pl"
    if gpu["persistent"] == 0:
        yield (
            "warning",
            "persistence mode is off",
            "the first start waits for the driver to load",
            "nvidia-smi -pm 1",
        )
    if gpu["fabric"] is False:
        yield (
            "fail",
            "the fabric manager has not joined it",
            "CUDA fails with error 802",
            "start nvidia-fabricmanager",
        )
    if gpu["unreachable"]:
        what = f"it cannot read the memory of GPUs {gpu['unreachable']}"
        yield (
            "warning",
            what,
            "tensor parallelism goes through the host",
            "look at nvidia-smi topo -p2p r, IOMMU, ACS",
        )


NODE_CHECKS: Mapping[str, Callable[[Node], Told]] = {
    "limits": _limits,
    "cgroup": _cgroup,
    "scheduling": _scheduling,
    "shared memory": _shared_memory,
    "ports": _ports,
    "disk": _disk,
    "clock": _clock,
    "leftovers": _leftovers,
    "network": _network,
    "gpus": _gpus,
}


def diagnose(
    nodes: Sequence[Node], here: Mapping[str, str], kinds: Kinds, growth: Growth
) -> list[Finding]:
    """Everything wrong with these nodes, and with running the plan on them. ``here``: the driver's
    versions.
    """
    found = [
        Finding(level, check, node.name, what, why, do)
        for node in nodes
        for check, told in NODE_CHECKS.items()
        for level, what, why, do in told(node)
    ]
    found += [*_versions(nodes, here), *_hosts(nodes), *_unset_clocks(nodes), *_drivers(nodes)]
    found += [*_mtus(nodes), *_fabric(nodes, kinds)]
    found += dict.fromkeys(_engines(nodes, kinds))  # roles often lack the same
    return [*found, *_autoscaler(growth, kinds), *_room(nodes, kinds, growth)]


def _versions(nodes: Sequence[Node], here: Mapping[str, str]) -> Iterator[Finding]:
    why, do = "actors do not start", "install the driver's version"
    for node in nodes:
        for what, version in here.items():
            if (there := node.facts["versions"].get(what)) != version:
                said = f"{what} {there or 'is missing'}, but the driver has {version}"
                yield Finding("fail", "versions", node.name, said, why, do)


def _hosts(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Nodes that share a host must not promise more cores than it has."""
    for address, count in Counter(node.machine.address for node in nodes).items():
        shared = [node for node in nodes if node.machine.address == address]
        promised, cores = (
            sum(node.machine.cpus for node in shared),
            max(node.facts["cores"] for node in shared),
        )
        if count > 1 and promised > cores:
            what = (
                f"{count} nodes on one host count as {promised:g} CPUs together, but it has {cores}"
            )
            why = "engines side by side share cores, but are measured as if each had its own"
            yield Finding(
                "warning",
                "cgroup",
                address,
                what,
                why,
                "start Ray with --num-cpus, or one node per host",
            )


def _unset_clocks(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Clocks of several hosts drift apart during a sweep if nothing keeps them right."""
    several = len({node.machine.address for node in nodes}) > 1
    for node in nodes:
        if several and node.facts["clock_is_set"] is False:
            what, why = (
                "nothing keeps its clock right",
                "it drifts from the others while the sweep runs",
            )
            yield Finding("warning", "clock", node.name, what, why, "run chrony or ntpd")


def _drivers(nodes: Sequence[Node]) -> Iterator[Finding]:
    """GPUs of one kind should have one driver: a deployment's figures are compared wherever it ran."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        gpus = node.facts["gpus"]
        for name in {gpu.get("name") for gpu in gpus.get("gpus", ())} - {None}:
            version = f"driver {gpus['driver']}, CUDA {gpus['cuda']}"
            kinds.setdefault(name, {}).setdefault(version, []).append(node.name)
    for name, by_version in kinds.items():
        if len(by_version) > 1:
            why, do = (
                "a deployment's figures depend on where it ran",
                "install the same version on all",
            )
            yield Finding(
                "warning", "gpus", name, f"drivers differ: {_each_on(by_version)}", why, do
            )


def _each_on(nodes: Mapping[Any, Sequence[str]]) -> str:
    """``1500 on a, b; 9000 on c``: each value and the nodes that have it."""
    return "; ".join(f"{value} on {', '.join(on)}" for value, on in nodes.items())


def _mtus(nodes: Sequence[Node]) -> Iterator[Finding]:
    by_size: dict[int, list[str]] = {}
    for node in nodes:
        if size := node.facts["mtus"].get(node.machine.address):
            by_size.setdefault(size, []).append(node.name)
    if len(by_size) > 1:
        said = f"the MTU differs: {_each_on(dict(sorted(by_size.items())))}"
        why, do = "packets between them are fragmented or lost", "give all of them the same MTU"
        yield Finding("warning", "network", "cluster", said, why, do)


def _fabric(nodes: Sequence[Node], kinds: Kinds) -> Iterator[Finding]:
    """Replicas over several GPU nodes need InfiniBand (or RoCE or EFA, which the kernel lists in
    the same place).
    """
    gangs = [
        one
        for one in _deployments(kinds)
        if (need := need_of(one, exclusive=False)).gang and need.gpus
    ]
    for node in nodes:
        held = [one.label for one in gangs if _holds(node.machine, one)]
        if held and not node.facts["infiniband"]:
            what = f"it has no InfiniBand, and {held[0]} spans nodes"
            do = "look at ibstat and the container's devices, or take nodes with a fabric"
            yield Finding(
                "warning",
                "network",
                node.name,
                what,
                "NCCL falls back to TCP, and ranks wait for it",
                do,
            )


def _engines(nodes: Sequence[Node], kinds: Kinds) -> Iterator[Finding]:
    """Programs of engines and routers, images and models, on the nodes that can hold a deployment
    that needs them.
    """
    for index, kind in enumerate(kinds):
        versions: dict[str, list[str]] = {}
        why = f"{kind.deployments[0].label} fails there"
        for node in (
            node for node in nodes if any(_holds(node.machine, one) for one in kind.deployments)
        ):
            one = node.facts["engines"][index]
            if not one["path"] or one["missing"]:
                do = "install it, or say where it is (executable:)"
                yield Finding(
                    "fail", "engines", node.name, f"{one['name']} is not installed", why, do
                )
            elif one["image"] is False:
                do, slow = "pull it before the sweep", "the first start has to pull it"
                yield Finding(
                    "warning", "engines", node.name, f"{one['name']} is not pulled yet", slow, do
                )
            for name, problem in one["models"].items():
                do = "download it to every node or shared cache; if it is gated, start Ray with HF_TOKEN set"
                yield Finding("fail", "models", node.name, f"{name}: {problem}", why, do)
            versions.setdefault(one["version"] or "not known", []).append(node.name)
        if len(versions) > 1:
            said = f"its version differs: {_each_on(versions)}"
            why, do = (
                "one deployment would run different engines",
                "install the same version on all",
            )
            yield Finding("fail", "engines", kind.settings.engine, said, why, do)


def _autoscaler(growth: Growth, kinds: Kinds) -> Iterator[Finding]:
    """Whether it is at work, and whether it can tell which nodes are meant."""
    silent = (
        f"an autoscaler is configured and has not reported for {REPORT_S:g} s"
        if growth.reports in (0, 1)
        else ""
    )
    if said := str(growth) or silent:
        do = "look at its log on the head (monitor.log), or the operator's"
        yield Finding(
            "warning", "autoscaler", "cluster", said, "nodes that a sweep needs may never come", do
        )
    needs = {need_of(one, exclusive=False) for one in _deployments(kinds)}
    for said in sorted({need.unclear(growth.types) for need in needs} - {""}):
        what, _, do = said.partition("; ")
        yield Finding(
            "warning",
            "autoscaler",
            "cluster",
            what,
            "nodes are paid for that no deployment runs on",
            do,
        )


def _room(nodes: Sequence[Node], kinds: Kinds, growth: Growth) -> Iterator[Finding]:
    """Deployments for which there are too few nodes, even with those that the autoscaler may add."""
    grows = any(NODE_GROUP in node.machine.labels for node in nodes)
    for one in _deployments(kinds):
        need = need_of(one, exclusive=False)
        widest = max(map(len, need.replicas), default=0)
        places: float = sum(_holds(node.machine, one) for node in nodes)
        places += sum(kind.most for kind in growth.types if need.may_be_on(kind))
        if places < widest:
            what = f"{one.label} needs {counted(widest, 'node')}, but {places:g} can ever hold it"
            has_gpus = any(node.machine.gpus for node in nodes)
            may_have_gpus = grows or any(kind.gpus and kind.most > 0 for kind in growth.types)
            if need.gpus and not has_gpus and not may_have_gpus:
                what = f"{one.label} needs {counted(need.gpus, 'GPU')}, and no node has a GPU"
            do = "add such nodes or a node type with its labels, or leave it out"
            told = (
                "; what the autoscaler may add is not known" if not growth.types and grows else ""
            )
            level: Level = "warning" if told else "fail"
            yield Finding(level, "room", "cluster", what + told, "it would end as no_room", do)


def _deployments(kinds: Kinds) -> list[Deployment]:
    """Each once, whatever its parts are."""
    return list({one.id: one for kind in kinds for one in kind.deployments}.values())


def _holds(machine: Machine, one: Deployment) -> bool:
    need = need_of(one, exclusive=False)
    return machine.gpus >= need.gpus and machine.cpus >= need.cpus and need.suits(machine)
