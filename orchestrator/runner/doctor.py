"""What would fail a sweep on a cluster, or spoil its numbers, told from facts of its nodes (cluster/node_checks.py)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.cluster.base import Machine, NoAnswer, Probes
from orchestrator.cluster.node_checks import facts, results_problem
from orchestrator.engines import ENGINES
from orchestrator.engines.ports import FIRST, LAST
from orchestrator.errors import OrchestratorError
from orchestrator.plan.model import Deployment
from orchestrator.redaction import redacted
from orchestrator.results.blobs import Blobs, Retry
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.runner.launch import need_of
from orchestrator.runner.selfcheck import MAX_TTFT_ERROR_MS, selfcheck

Level = Literal["fail", "warning"]
GIB = 2**30
CLIENT_LIMIT_S = 120.0
ROUNDS = 10  # by which a clock is read
LEAST_FILES, GOOD_FILES = 4096, 65_536  # open files: of an engine, of a client with many streams
LEAST_PROCESSES = 4096
LEAST_DISK, GOOD_DISK = GIB, 20 * GIB
CLOCK_WARNING_S, CLOCK_FAIL_S = 0.005, 0.1
USED_GPU = GIB
NODE_GROUP = "ray.io/node-group"  # the label of nodes that an autoscaler knows


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong where, why that matters, and what to do."""

    level: Level
    check: str
    where: str
    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node, as Ray believes it to be and as it is. ``clock_s``: its wall clock minus the driver's, at least."""

    machine: Machine
    facts: Mapping[str, Any]
    clock_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.facts['hostname']} ({self.machine.address}, {self.machine.node_id[:8]})"


# What a plan needs of nodes: deployments that share an engine, where it is, and a model
Kinds = Mapping[tuple[Any, ...], Sequence[Deployment]]


def kinds_of(deployments: Iterable[Deployment]) -> Kinds:
    """Those that are launched, by what they need of a node."""
    kinds: dict[tuple[Any, ...], list[Deployment]] = {}
    for one in deployments:
        settings = one.settings
        if ENGINES[settings.engine].launches:
            place = (settings.engine, settings.executable, settings.image, settings.container_runtime, settings.model)
            kinds.setdefault(place, []).append(one)
    return kinds


def examine(probes: Probes, kinds: Kinds, uri: str | None) -> tuple[list[Node], list[Finding]]:
    """Ask every node, all at once; the nodes that answered, and what was found by asking."""
    machines = {one.node_id: one for one in probes.machines}
    said = probes.ask(facts, [(one[0].settings, one[0].hardware) for one in kinds.values()])
    nodes, found = [], []
    for node_id, answer in said.items():
        if isinstance(answer, NoAnswer):
            do = "install the program there with the driver's version of Python, or submit with --working-dir"
            do = do if answer.wrong else "look at its raylet's log; take it out of the cluster"
            where = f"{machines[node_id].address}, {node_id[:8]}"
            found.append(Finding("fail", "node", where, answer.why, "nothing can run there", do))
        else:
            nodes.append(Node(machines[node_id], answer))
    if not nodes:
        return [], found
    offsets = _clocks(probes, [one.machine.node_id for one in nodes])
    nodes = [Node(one.machine, one.facts, offsets.get(one.machine.node_id, 0.0)) for one in nodes]
    return nodes, found + (_results(probes, nodes, uri) if uri else [])


def _clocks(probes: Probes, nodes: Sequence[str]) -> dict[str, float]:
    """How far each node's wall clock is off, by the fastest of several round trips, less what that leaves open."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        before_s = time.time()
        said = probes.ask(time.time, nodes=nodes)  # one that is silent would make every round trip a minute
        took_s = time.time() - before_s
        for node, there_s in said.items():
            if not isinstance(there_s, NoAnswer):
                best[node] = min(best.get(node, (took_s, 0.0)), (took_s, there_s - before_s - took_s / 2))
    return {node: max(0.0, abs(offset_s) - took_s / 2) for node, (took_s, offset_s) in best.items()}


def _results(probes: Probes, nodes: Sequence[Node], uri: str) -> list[Finding]:
    """A file of the driver's that all read, and one of each that the driver sees."""
    blobs, nonce, wrong = Blobs(parse_location(uri), Retry(tries=2)), new_ulid(), dict[str, str]()
    written, names = [f".doctor-{nonce}-driver"], {one.machine.node_id: one.name for one in nodes}
    try:
        blobs.put(written[0], b"seen")
        for node, one in probes.ask(results_problem, uri, nonce, nodes=list(names)).items():
            problem, key = (one.why, "") if isinstance(one, NoAnswer) else one
            written += [key] * (not problem)
            seen = problem or any(blobs.exist([key]))
            wrong |= {} if seen is True else {node: problem or "the driver does not see what it wrote"}
        for key in written:
            blobs.delete(key)
    except (OSError, OrchestratorError) as error:
        wrong[""] = redacted(str(error))
    why = "clients write their rows there, from any node"
    do = "give a folder that all nodes share, or s3://...; every node needs credentials of its own"
    return [Finding("fail", "results", names.get(node, "driver"), what, why, do) for node, what in wrong.items()]


# -- what is told from one node: level, what, why it matters, what to do

Told = Iterator[tuple[Level, str, str, str]]


def _limits(node: Node) -> Told:
    limits = node.facts["limits"]
    if (files := limits["nofile"]) is not None and files < GOOD_FILES:
        level: Level = "fail" if files < LEAST_FILES else "warning"
        yield (
            level,
            f"at most {files} open files",
            "each stream of a client is one",
            "raise `ulimit -Hn` before ray start",
        )
    if (processes := limits["nproc"]) is not None and processes < LEAST_PROCESSES:
        yield "warning", f"at most {processes} processes", "engines start hundreds of threads", "raise `ulimit -Hu`"
    if node.facts["infiniband"] and limits["memlock"] is not None:
        what = f"at most {limits['memlock']} bytes of locked memory, with InfiniBand"
        yield "fail", what, "RDMA registers its buffers: NCCL fails", "set `ulimit -l unlimited` before ray start"


def _cgroup(node: Node) -> Told:
    cgroup, machine = node.facts["cgroup"], node.machine
    cores = min(cgroup.get("cpu", node.facts["cores"]), node.facts["cores"])
    if machine.cpus > cores + 0.5:
        what = f"the cluster counts {machine.cpus:g} CPUs, the node may use {cores:g}"
        yield "warning", what, "engines and clients share cores that were promised twice", "start Ray with --num-cpus"
    if (pids := cgroup.get("pids")) is not None and pids < LEAST_PROCESSES:
        yield "warning", f"its cgroup allows {pids:g} processes", "engines start hundreds of threads", "raise pids.max"
    if node.facts["swapped_bytes"] > GIB:
        what = f"{node.facts['swapped_bytes'] / GIB:.1f} GiB are swapped out"
        yield "warning", what, "an engine that is swapped is slow for no reason of its own", "free memory, or swapoff"


def _scheduling(node: Node) -> Told:
    if (niceness := node.facts["niceness"]) > 0:
        what = f"engines start at niceness {niceness}, and this user may not lower it"
        yield "warning", what, "everything else on the node comes first", "run Ray as root, or raise RLIMIT_NICE to 20"
    if slow := set(node.facts["governors"]) - {"performance"}:
        what = f"the CPU governor is {', '.join(sorted(slow))}"
        yield "warning", what, "clocks change with the load that is measured", "cpupower frequency-set -g performance"


def _shared_memory(node: Node) -> Told:
    free, gpus = node.facts["shm"]["free"], node.machine.gpus
    needed = max(16, gpus) * GIB if gpus else GIB
    if free < needed:
        what = f"{free / GIB:.1f} GiB are free in /dev/shm, of {needed / GIB:g} that engines may want"
        yield "fail" if gpus > 1 else "warning", what, "ranks exchange data there", "raise --shm-size, or remount it"
    if number := node.facts["segments"]:
        what = f"{number} segments of engines lie in /dev/shm"
        yield "warning", what, "what dead engines left takes memory", "remove them where no engine runs"


def _ports(node: Node) -> Told:
    facts = node.facts
    first, last = facts["outgoing_ports"] or (LAST + 1, LAST + 1)
    if first <= LAST and last >= FIRST:
        what = f"outgoing connections use ports {first} to {last}, engines {FIRST} to {LAST}"
        yield (
            "warning",
            what,
            "an engine's port may be taken when it starts",
            f"sysctl net.ipv4.ip_local_port_range='{LAST + 1} 60999'",
        )
    if facts["somaxconn"] < 4096:
        what = f"net.core.somaxconn is {facts['somaxconn']}"
        yield "warning", what, "connections that come at once are dropped", "sysctl net.core.somaxconn=4096"
    if facts["taken_ports"] > 25:
        what = f"{facts['taken_ports']} of 50 ports that were tried are taken"
        yield "fail", what, "engines find no port", f"end what listens on {FIRST} to {LAST}"


def _disk(node: Node) -> Told:
    for what, space in node.facts["disk"].items():
        if not space["writable"]:
            yield "fail", f"the folder of {what} cannot be written", "engines write there", "give this user the folder"
        elif space["free"] < GOOD_DISK:
            level: Level = "fail" if space["free"] < LEAST_DISK else "warning"
            said = f"{space['free'] / GIB:.1f} GiB are free for {what} ({space['kind']})"
            yield level, said, "logs, caches and weights fill it", "free some, or put it elsewhere (TMPDIR, HF_HOME)"


def _clock(node: Node) -> Told:
    if node.clock_s > CLOCK_WARNING_S:
        level: Level = "fail" if node.clock_s > CLOCK_FAIL_S else "warning"
        what = f"its clock is at least {1e3 * node.clock_s:.0f} ms off the driver's"
        yield level, what, "clients start at one instant; rows carry wall clocks", "run chrony or ntpd"


def _leftovers(node: Node) -> Told:
    if left := node.facts["leftovers"]:
        what = f"{len(left)} processes or containers of dead launches: {', '.join(left[:3])}"
        yield "warning", what, "they hold cores and GPUs", "the next launch on the node ends them; else kill them"


def _network(node: Node) -> Told:
    for port, state in node.facts["infiniband"].items():
        if "ACTIVE" not in state:
            yield (
                "warning",
                f"InfiniBand {port} is {state}",
                "NCCL falls back to TCP",
                "look at the cable and the subnet manager",
            )


def _gpus(node: Node) -> Told:
    found = node.facts["gpus"].get("gpus", [])
    if node.machine.gpus > len(found):
        what = f"the cluster counts {node.machine.gpus} GPUs, NVML sees {len(found)}"
        yield "fail", what, "an engine would be given one that is not there", "look at nvidia-smi; restart Ray there"
    for gpu in found:
        yield from ((level, f"GPU {gpu['index']}: {what}", why, do) for level, what, why, do in _gpu(gpu))


def _gpu(gpu: Mapping[str, Any]) -> Told:
    if gpu.get("lost"):
        yield "fail", "it is lost", "whatever runs on it dies", "reset it, or take the node out"
        return
    if (gpu["used_bytes"] or 0) > USED_GPU:
        what = f"{gpu['used_bytes'] / GIB:.1f} GiB are in use, by pids {gpu['pids'] or 'that are not told'}"
        yield "fail", what, "an engine has no room, or shares it", "end what runs there"
    if gpu["mig"]:
        yield "warning", "MIG is on", "an engine sees a slice, not the device in the catalogue", "nvidia-smi -mig 0"
    if gpu["ecc_errors"]:
        what = f"{gpu['ecc_errors']} uncorrected memory errors"
        yield "fail", what, "results may be wrong, and it will fail", "drain the node and reset the GPU"
    if gpu["slowed"]:
        yield (
            "warning",
            ", ".join(gpu["slowed"]),
            "it is slower than its kind",
            "cool it, or nvidia-smi --reset-gpu-clocks",
        )
    if gpu["power_lowered"]:
        yield "warning", "its power limit is below its default", "it is slower than its kind", "nvidia-smi -pl"
    if gpu["persistent"] == 0:
        yield "warning", "persistence mode is off", "the first start waits for the driver", "nvidia-smi -pm 1"
    if gpu["fabric"] is False:
        yield "fail", "the fabric manager has not joined it", "CUDA fails with error 802", "start nvidia-fabricmanager"
    if gpu["unreachable"]:
        what = f"it cannot read the memory of GPUs {gpu['unreachable']}"
        yield "warning", what, "tensor parallelism goes through the host", "look at nvidia-smi topo -p2p r; IOMMU, ACS"


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
    nodes: Sequence[Node], here: Mapping[str, str], kinds: Kinds, types: Sequence[tuple[dict[str, float], int]]
) -> list[Finding]:
    """Everything wrong with these nodes, and with the plan on them. ``here``: the driver's versions."""
    found = [
        Finding(level, check, node.name, what, why, do)
        for node in nodes
        for check, told in NODE_CHECKS.items()
        for level, what, why, do in told(node)
    ]
    found += [*_versions(nodes, here), *_hosts(nodes), *_drivers(nodes), *_engines(nodes, kinds)]
    return found + list(_room(nodes, kinds, types))


def _versions(nodes: Sequence[Node], here: Mapping[str, str]) -> Iterator[Finding]:
    for node in nodes:
        for what, version in here.items():
            if (there := node.facts["versions"].get(what)) != version:
                said = f"{what} {there or 'is not there'}, the driver has {version}"
                yield Finding(
                    "fail", "versions", node.name, said, "actors do not start", "install the driver's version"
                )


def _hosts(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Nodes that share a host promise its cores together."""
    for address, count in Counter(node.machine.address for node in nodes).items():
        shared = [node for node in nodes if node.machine.address == address]
        promised, cores = sum(node.machine.cpus for node in shared), max(node.facts["cores"] for node in shared)
        if count > 1 and promised > cores:
            what = f"{count} nodes on one host are counted as {promised:g} CPUs, it has {cores}"
            why = "engines side by side share cores, and are measured as if they had them"
            yield Finding("warning", "cgroup", address, what, why, "start Ray with --num-cpus, or one node per host")


def _drivers(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Of one kind of GPU one driver: figures of a deployment are compared wherever it ran."""
    kinds: dict[str, dict[tuple[str, str], list[str]]] = {}
    for node in nodes:
        gpus = node.facts["gpus"]
        for name in {gpu.get("name") for gpu in gpus.get("gpus", ())} - {None}:
            kinds.setdefault(name, {}).setdefault((gpus["driver"], gpus["cuda"]), []).append(node.name)
    for name, by_version in kinds.items():
        if len(by_version) > 1:
            said = ("driver {}, CUDA {} on {}".format(*version, ", ".join(on)) for version, on in by_version.items())
            why, do = "the same deployment is another one there", "bring them to one version"
            yield Finding("warning", "gpus", name, f"differ: {'; '.join(said)}", why, do)


def _engines(nodes: Sequence[Node], kinds: Kinds) -> Iterator[Finding]:
    """Programs, images and models, on the nodes that can hold what needs them."""
    for index, wanted in enumerate(kinds.values()):
        versions: dict[str, list[str]] = {}
        for node in (node for node in nodes if any(_holds(node.machine, one) for one in wanted)):
            one, why = node.facts["engines"][index], f"{wanted[0].label} fails there"
            if not one["path"] or one["missing"]:
                do = "install it, or name where it is (executable:)"
                yield Finding("fail", "engines", node.name, f"{one['name']} is not installed", why, do)
            elif one["image"] is False:
                do, slow = "pull it before the sweep", "the first start pulls it"
                yield Finding("warning", "engines", node.name, f"{one['name']} is not there", slow, do)
            if one["model"]:
                do = "download it once per node or shared cache; a gated one needs HF_TOKEN where Ray was started"
                yield Finding("fail", "models", node.name, f"{wanted[0].settings.model}: {one['model']}", why, do)
            versions.setdefault(one["version"] or "", []).append(node.name)
        if len(versions) > 1:
            said = "; ".join(f"{version or 'not known'} on {', '.join(on)}" for version, on in versions.items())
            why, do = "the same deployment is another engine there", "install one version"
            yield Finding("fail", "engines", wanted[0].settings.engine, f"its version differs: {said}", why, do)


def _room(nodes: Sequence[Node], kinds: Kinds, types: Sequence[tuple[dict[str, float], int]]) -> Iterator[Finding]:
    """Deployments that neither a node of now nor one that the autoscaler may add can hold."""
    grows = any(NODE_GROUP in node.machine.labels for node in nodes)
    for one in (one for wanted in kinds.values() for one in wanted):
        need = need_of(one, exclusive=False)
        widest = max(map(len, need.replicas), default=0)
        places = sum(_holds(node.machine, one) for node in nodes)
        for resources, most in types:
            places += most * (resources.get("GPU", 0) >= need.gpus and resources.get("CPU", 0) >= need.cpus)
        if places < widest:
            what = f"{widest} node(s) for {one.label} are needed, {places} can ever hold it"
            do = "add such nodes, a node type, or leave it out"
            told = "; what its autoscaler may add is not told" if not types and grows else ""
            level: Level = "warning" if told else "fail"
            yield Finding(level, "room", "cluster", what + told, "it ends as no_room", do)


def _holds(machine: Machine, one: Deployment) -> bool:
    need = need_of(one, exclusive=False)
    fits = machine.gpus >= need.gpus and machine.cpus >= need.cpus
    return fits and all(machine.labels.get(name) == value for name, value in need.labels)


def clients(probes: Probes, nodes: Sequence[Node]) -> tuple[dict[str, Any], list[Finding]]:
    """What the load client can do on each host, by address; one host after the other, 20 s each."""
    said, found = dict[str, Any](), list[Finding]()
    for address, node in {node.machine.address: node for node in nodes}.items():
        answer = probes.ask(selfcheck, limit_s=CLIENT_LIMIT_S, nodes=(node.machine.node_id,))[node.machine.node_id]
        if isinstance(answer, NoAnswer):
            found.append(Finding("warning", "client", node.name, answer.why, "its client is not known", "run it there"))
            continue
        said[address] = answer
        if abs(answer["ttft_error_ms"]["mean"]) > MAX_TTFT_ERROR_MS:
            what = f"its client adds {answer['ttft_error_ms']['mean']:.1f} ms to the mean TTFT"
            do = "free its cores, or keep clients off it"
            found.append(Finding("warning", "client", node.name, what, "latencies of points are wrong by that", do))
    return said, found
