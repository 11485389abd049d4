"""Judges facts about nodes (cluster/machine_facts.py): what would make a sweep fail, or make its
figures wrong, and what the user can do about it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, listed
from orchestrator.cluster.base import NODE_GROUP, Growth, Machine
from orchestrator.cluster.model_downloads import AbsenceCause
from orchestrator.node.leases import FIRST_PORT, LAST_PORT
from orchestrator.plan.model import Deployment
from orchestrator.sweep.examine import REPORT_S, ExaminedNode, Finding, Requirements, Severity
from orchestrator.sweep.resource_request import AmbiguousTypes, resources_of

GIB = 2**30
# Open files that an engine needs, or a client with many streams. Both raise their own soft limit as
# far as the hard one allows.
LEAST_FILES = 4096
GOOD_FILES = 16_384
LEAST_DISK_BYTES = GIB
GOOD_DISK_BYTES = 20 * GIB
CLOCK_WARNING_S = 0.005
CLOCK_FAIL_S = 0.1
USED_GPU_BYTES = GIB  # the driver of an idle GPU takes less than this
MOST_TAKEN_PORTS = 25  # of the 50 ports that are tried

MODEL_REMEDIES: Mapping[AbsenceCause, str] = {
    AbsenceCause.NO_PATH: "put it there on every node, or mend the path",
    AbsenceCause.OFFLINE: (
        "download it into the cache of every node, or a shared one; or leave HF_HUB_OFFLINE unset "
        "where Ray is started (without Ray: where the sweep is)"
    ),
    AbsenceCause.OFFLINE_BY_FILE: (
        "download it into the cache of every node, or a shared one; or take HF_HUB_OFFLINE out of "
        "the file's env"
    ),
    AbsenceCause.NO_ROOM: "free some space, or put the cache elsewhere (HF_HOME)",
    AbsenceCause.NOT_FOUND: (
        "mend its name; of a private model, set the HF_TOKEN of a user who may read it where Ray is "
        "started (without Ray: where the sweep is)"
    ),
    AbsenceCause.NO_REVISION: "mend its revision",
    AbsenceCause.GATED: (
        "accept its terms on its page at the hub, and set that user's HF_TOKEN where Ray is started "
        "on each node (without Ray: where the sweep is)"
    ),
    AbsenceCause.BAD_TOKEN: (
        "the token is wrong or has expired: set a new HF_TOKEN where Ray is started (without Ray: "
        "where the sweep is), or none if the model is public"
    ),
    AbsenceCause.NO_ANSWER: (
        "let the node reach the hub (HTTPS_PROXY, HF_ENDPOINT), or download it into the cache of "
        "every node, or a shared one"
    ),
}


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A finding of one check on one node: what is wrong, why that matters, and what to do."""

    level: Severity
    what: str
    why: str
    do: str


# -- checks of one node


def _limits(node: ExaminedNode) -> Iterator[NodeFault]:
    limits = node.facts["limits"]
    files = limits["nofile"]
    if files is not None and files < GOOD_FILES:
        yield NodeFault(
            "fail" if files < LEAST_FILES else "warning",
            f"at most {files} open files per process",
            "every stream of a load client takes one",
            "raise `ulimit -Hn` before starting Ray",
        )
    if node.facts["infiniband"] and limits["memlock"] is not None:
        yield NodeFault(
            "fail",
            f"it has InfiniBand, but only {limits['memlock']} bytes of memory may be locked",
            "RDMA locks its buffers, so NCCL fails",
            "set `ulimit -l unlimited` before starting Ray",
        )


def _cgroup(node: ExaminedNode) -> Iterator[NodeFault]:
    cgroup = node.facts["cgroup"]
    cores = min(cgroup.get("cpu", node.facts["cores"]), node.facts["cores"])
    if node.machine.cpus > cores + 0.5:
        cpus = counted(node.machine.cpus, "CPU")
        yield NodeFault(
            "warning",
            f"the cluster counts {cpus}, but the node may use only {cores:g}",
            "engines and clients are promised the same cores",
            "start Ray with --num-cpus",
        )
    gpus = node.facts["gpus"].get("gpus", ())
    gpu_bytes = sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    memory_bytes = cgroup.get("memory", gpu_bytes)
    if memory_bytes < gpu_bytes / 2:
        yield NodeFault(
            "warning",
            f"its cgroup allows {memory_bytes / GIB:.0f} GiB of memory, "
            f"but its GPUs have {gpu_bytes / GIB:.0f}",
            "weights pass through it: an engine may be killed while it loads",
            "raise memory.max",
        )


def _shared_memory(node: ExaminedNode) -> Iterator[NodeFault]:
    free_bytes = node.facts["shm"]["free"]
    gpus = node.machine.gpus
    needed_bytes = max(16, gpus) * GIB if gpus else GIB
    if free_bytes < needed_bytes:
        yield NodeFault(
            "fail" if gpus > 1 else "warning",
            f"only {free_bytes / GIB:.1f} GiB are free in /dev/shm; "
            f"engines may need {needed_bytes / GIB:g}",
            "ranks exchange data there",
            "raise --shm-size, or remount it",
        )


def _ports(node: ExaminedNode) -> Iterator[NodeFault]:
    outgoing_ports = node.facts["outgoing_ports"]
    if outgoing_ports:
        first, last = outgoing_ports
        if first <= LAST_PORT and last >= FIRST_PORT:
            yield NodeFault(
                "warning",
                (
                    f"outgoing connections use ports {first} to {last}, engines {FIRST_PORT} to "
                    f"{LAST_PORT}"
                ),
                "an engine's port may be taken when it starts",
                f"sysctl net.ipv4.ip_local_port_range='{LAST_PORT + 1} 60999'",
            )
    taken = node.facts["taken_ports"]
    if taken > MOST_TAKEN_PORTS:
        yield NodeFault(
            "fail",
            f"{taken} of 50 ports that were tried are taken",
            "engines may find no port",
            f"stop what listens on {FIRST_PORT} to {LAST_PORT}",
        )


def _disk(node: ExaminedNode) -> Iterator[NodeFault]:
    for what, space in node.facts["disk"].items():
        if not space["writable"]:
            yield NodeFault(
                "fail",
                f"the folder of {what} cannot be written to",
                "engines need it",
                "let this user write there",
            )
        elif space["free"] < GOOD_DISK_BYTES:
            yield NodeFault(
                "fail" if space["free"] < LEAST_DISK_BYTES else "warning",
                f"only {space['free'] / GIB:.1f} GiB are free for {what} ({space['kind']})",
                "logs, caches and weights fill it",
                "free some space, or put it elsewhere (TMPDIR, HF_HOME)",
            )


def _clock(node: ExaminedNode) -> Iterator[NodeFault]:
    if node.clock_s > CLOCK_WARNING_S:
        yield NodeFault(
            "fail" if node.clock_s > CLOCK_FAIL_S else "warning",
            f"its clock is at least {1e3 * node.clock_s:.0f} ms off the driver's",
            "clients start at the same time, and rows carry wall clocks",
            "run chrony or ntpd",
        )


def _interfaces(node: ExaminedNode) -> Iterator[NodeFault]:
    for setting in node.facts["unknown_interfaces"]:
        yield NodeFault(
            "fail",
            f"{setting} names no interface of this node",
            "NCCL and Gloo fail",
            "name one of `ip link`",
        )


def _gpus(node: ExaminedNode) -> Iterator[NodeFault]:
    gpus = node.facts["gpus"].get("gpus", [])
    # beside NVIDIA's GPUs, one of AMD's is part of the processor
    of_amd = 0 if gpus else node.facts["amd_gpus"]
    sliced = any(gpu.get("mig") for gpu in gpus)  # Ray may be told to count the slices
    if node.machine.gpus > len(gpus) + of_amd and not sliced:
        seen = f"NVML sees {len(gpus)}"
        tool = "nvidia-smi"
        if of_amd:
            seen += f" and AMD's driver {of_amd}"
            tool = "amd-smi"
        yield NodeFault(
            "fail",
            f"the cluster counts {counted(node.machine.gpus, 'GPU')}, but {seen}",
            "an engine may be given one that is not there",
            f"look at {tool}; restart Ray there",
        )
    for gpu in gpus:
        for fault in _gpu(gpu):
            what = f"GPU {gpu['index']}: {fault.what}"
            yield NodeFault(fault.level, what, fault.why, fault.do)


def _gpu(gpu: Mapping[str, Any]) -> Iterator[NodeFault]:
    if gpu.get("lost"):
        yield NodeFault(
            "fail", "it is lost", "whatever runs on it dies", "reset it, or take the node out"
        )
        return
    used_bytes = gpu["used_bytes"] or 0
    if used_bytes > USED_GPU_BYTES:
        users = f"pids {gpu['pids']}" if gpu["pids"] else "processes that NVML does not name"
        yield NodeFault(
            "fail",
            f"{used_bytes / GIB:.1f} GiB are in use, by {users}",
            "an engine has no room, or has to share the GPU",
            "end what runs there",
        )
    if gpu["mig"]:
        yield NodeFault(
            "warning",
            "MIG is on",
            "an engine sees a slice, not the whole device",
            "nvidia-smi -mig 0",
        )
    if gpu["ecc_errors"]:
        yield NodeFault(
            "fail",
            f"{gpu['ecc_errors']} uncorrected memory errors",
            "answers may be wrong, and the GPU may fail",
            "drain the node and reset the GPU",
        )
    if gpu["slowed"]:
        yield NodeFault(
            "warning",
            ", ".join(gpu["slowed"]),
            "it is slower than others of its kind",
            "cool it, or nvidia-smi --reset-gpu-clocks",
        )
    if gpu["fabric"] is False:
        yield NodeFault(
            "fail",
            "the fabric manager has not joined it",
            "CUDA fails with error 802",
            "start nvidia-fabricmanager",
        )


NODE_CHECKS: Mapping[str, Callable[[ExaminedNode], Iterator[NodeFault]]] = {
    "limits": _limits,
    "cgroup": _cgroup,
    "shared memory": _shared_memory,
    "ports": _ports,
    "disk": _disk,
    "clock": _clock,
    "network": _interfaces,
    "gpus": _gpus,
}


# -- checks of all nodes together, and of what a plan needs of them


def diagnose(
    nodes: Sequence[ExaminedNode],
    driver_versions: Mapping[str, str],
    requirements: Requirements,
    growth: Growth,
) -> list[Finding]:
    """All findings about these nodes, and about running a plan with these requirements there."""
    findings: list[Finding] = []
    for node in nodes:
        for check, faults_of in NODE_CHECKS.items():
            for fault in faults_of(node):
                findings.append(
                    Finding(fault.level, check, node.name, fault.what, fault.why, fault.do)
                )
    findings += _versions(nodes, driver_versions)
    findings += _shared_hosts(nodes)
    findings += _unset_clocks(nodes)
    findings += _gpu_drivers(nodes)
    findings += _fabric(nodes, requirements)
    for finding in _engines(nodes, requirements):
        if finding not in findings:  # several roles often lack the same program or model
            findings.append(finding)
    findings += _autoscaler(growth, requirements)
    findings += _room(nodes, requirements, growth)
    return findings


def _versions(
    nodes: Sequence[ExaminedNode], driver_versions: Mapping[str, str]
) -> Iterator[Finding]:
    for node in nodes:
        for package, driver_version in driver_versions.items():
            version = node.facts["versions"].get(package)
            if version != driver_version:
                yield Finding(
                    "fail",
                    "versions",
                    node.name,
                    f"{package} {version or 'is missing'}, but the driver has {driver_version}",
                    "actors do not start",
                    "install the driver's version",
                )


def _shared_hosts(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Nodes that share a host and together promise more cores than it has."""
    for address, count in Counter(node.machine.address for node in nodes).items():
        shared = [node for node in nodes if node.machine.address == address]
        promised = sum(node.machine.cpus for node in shared)
        cores = max(node.facts["cores"] for node in shared)
        if count > 1 and promised > cores:
            yield Finding(
                "warning",
                "cgroup",
                address,
                (
                    f"{count} nodes on one host count as {promised:g} CPUs together, but it has "
                    f"{cores}"
                ),
                "engines side by side share cores, but are measured as if each had its own",
                "start Ray with --num-cpus, or one node per host",
            )


def _unset_clocks(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Clocks of several hosts that drift apart during a sweep because nothing keeps them right."""
    addresses = {node.machine.address for node in nodes}
    if len(addresses) < 2:
        return
    for node in nodes:
        if node.facts["clock_is_set"] is False:
            yield Finding(
                "warning",
                "clock",
                node.name,
                "nothing keeps its clock right",
                "it drifts from the others while the sweep runs",
                "run chrony or ntpd",
            )


def _gpu_drivers(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """GPUs of one kind with different drivers. They matter because the figures of a deployment are
    compared wherever they were measured.
    """
    nodes_by_kind: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        gpus = node.facts["gpus"]
        for kind in {gpu.get("name") for gpu in gpus.get("gpus", ())} - {None}:
            version = f"driver {gpus['driver']}, CUDA {gpus['cuda']}"
            nodes_by_kind.setdefault(kind, {}).setdefault(version, []).append(node.name)
    for kind, nodes_by_version in nodes_by_kind.items():
        if len(nodes_by_version) > 1:
            yield Finding(
                "warning",
                "gpus",
                kind,
                f"drivers differ: {_each_on(nodes_by_version)}",
                "a deployment's figures depend on where it ran",
                "install the same version on all",
            )


def _each_on(nodes_by_value: Mapping[str, Sequence[str]]) -> str:
    """Each value and the nodes that have it: ``0.31 on a, b; 0.32 on c``."""
    return "; ".join(f"{value} on {', '.join(names)}" for value, names in nodes_by_value.items())


def _fabric(nodes: Sequence[ExaminedNode], requirements: Requirements) -> Iterator[Finding]:
    """Nodes without a working fabric that may hold a part of a replica which spans several GPU
    nodes. The kernel lists RoCE and EFA where it lists InfiniBand.
    """
    spanning = []
    for deployment in _deployments(requirements):
        need = resources_of(deployment, exclusive=False)
        if need.is_gang and need.gpus_on_a_node:
            spanning.append(deployment)
    for node in nodes:
        if any("ACTIVE" in state for state in node.facts["infiniband"].values()):
            continue
        placeable = [deployment for deployment in spanning if _holds(node.machine, deployment)]
        if placeable:
            yield Finding(
                "warning",
                "network",
                node.name,
                f"it has no active InfiniBand port, and {placeable[0].label} spans nodes",
                "NCCL falls back to TCP, and ranks wait for it",
                "look at ibstat and the container's devices, or take nodes with a fabric",
            )


def _engines(nodes: Sequence[ExaminedNode], requirements: Requirements) -> Iterator[Finding]:
    """Programs of engines and routers, images and models that are missing on the nodes that can
    hold a deployment that needs them.
    """
    for index, requirement in enumerate(requirements):
        nodes_by_version: dict[str, list[str]] = {}
        for node in nodes:
            deployments = requirement.deployments
            if not any(_holds(node.machine, deployment) for deployment in deployments):
                continue
            engine = node.facts["engines"][index]
            yield from _engine(node, engine, f"{requirement.deployments[0].label} fails there")
            nodes_by_version.setdefault(engine["version"] or "not known", []).append(node.name)
        if len(nodes_by_version) > 1:
            yield Finding(
                "fail",
                "engines",
                requirement.settings.engine,
                f"its version differs: {_each_on(nodes_by_version)}",
                "one deployment would run different engines",
                "install the same version on all",
            )


def _engine(node: ExaminedNode, engine: Mapping[str, Any], why: str) -> Iterator[Finding]:
    """What one node lacks of one engine. ``why``: which deployment fails without it."""
    if not engine["path"] or engine["missing"]:
        yield Finding(
            "fail",
            "engines",
            node.name,
            f"{engine['name']} is not installed",
            why,
            "install it, or say where it is (executable:)",
        )
    elif engine["image"] is False:
        yield Finding(
            "warning",
            "engines",
            node.name,
            f"{engine['name']} is not pulled yet",
            "the first start has to pull it",
            "pull it before the sweep",
        )
    for model, absence in engine["models"].items():
        yield Finding(
            "fail",
            "models",
            node.name,
            f"{model}: {absence['problem']}",
            why,
            MODEL_REMEDIES[AbsenceCause(absence["cause"])],
        )


def _autoscaler(growth: Growth, requirements: Requirements) -> Iterator[Finding]:
    """An autoscaler that does not work, or that cannot tell which nodes it is asked for."""
    problem = growth.why_no_nodes()
    if not problem and growth.may_be_dead:  # growth_of has waited for its reports
        problem = f"an autoscaler is configured and has not reported for {REPORT_S:g} s"
    if problem:
        yield Finding(
            "warning",
            "autoscaler",
            "cluster",
            problem,
            "nodes that a sweep needs may never come",
            "look at its log on the head (monitor.log), or the operator's",
        )
    needs = {resources_of(deployment, exclusive=False) for deployment in _deployments(requirements)}
    ambiguities: set[AmbiguousTypes] = set()
    for need in needs:
        ambiguous = need.ambiguous_types(growth.types)
        if ambiguous is not None:
            ambiguities.add(ambiguous)
    for ambiguous in sorted(ambiguities):
        yield Finding(
            "warning",
            "autoscaler",
            "cluster",
            ambiguous.problem,
            "nodes are paid for that no deployment runs on",
            ambiguous.remedy,
        )


def _room(
    nodes: Sequence[ExaminedNode], requirements: Requirements, growth: Growth
) -> Iterator[Finding]:
    """Deployments that have too few nodes, even with those that the autoscaler may add. Those that
    lack the same are one finding.
    """
    has_node_groups = any(NODE_GROUP in node.machine.labels for node in nodes)
    has_gpus = any(node.machine.gpus for node in nodes)
    may_have_gpus = has_node_groups or any(kind.gpus and kind.most > 0 for kind in growth.types)
    lacking: list[tuple[str, str]] = []
    for deployment in _deployments(requirements):
        need = resources_of(deployment, exclusive=False)
        widest = max(map(len, need.replicas), default=0)
        places: float = sum(_holds(node.machine, deployment) for node in nodes)
        places += sum(kind.most for kind in growth.types if need.could_use_type(kind))
        if places >= widest:
            continue
        if need.gpus_on_a_node and not has_gpus and not may_have_gpus:
            gpus = counted(need.gpus_on_a_node, "GPU")
            lack = f"{gpus} on a node, and no node has a GPU"
        else:
            lack = f"{counted(widest, 'node')}, but {places:g} can ever hold it"
        lacking.append((lack, deployment.label))
    for lack, labels in values_by_key(lacking).items():
        needs = "needs" if len(labels) == 1 else "each need"
        what = f"{listed(labels)} {needs} {lack}"
        level: Severity = "fail"
        if has_node_groups and not growth.types:
            level = "warning"
            what += "; what the autoscaler may add is not known"
        yield Finding(
            level,
            "room",
            "cluster",
            what,
            "it would end as no_room",
            "add such nodes or a node type with its labels, or leave it out",
        )


def _deployments(requirements: Requirements) -> list[Deployment]:
    """The deployments of all requirements, each once."""
    by_id: dict[str, Deployment] = {}
    for requirement in requirements:
        for deployment in requirement.deployments:
            by_id.setdefault(deployment.id, deployment)
    return list(by_id.values())


def _holds(machine: Machine, deployment: Deployment) -> bool:
    """Whether a machine has the devices, the cores and the labels for a part of a deployment."""
    need = resources_of(deployment, exclusive=False)
    return (
        machine.gpus >= need.gpus_on_a_node
        and machine.cpus >= need.cpus_on_a_node
        and need.accepts(machine)
    )
