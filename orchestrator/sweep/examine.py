"""Asks the nodes of a cluster for facts, and tests their clocks, the network between them and
access to the results.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.base.errors import OrchestratorError
from orchestrator.base.redaction import redacted
from orchestrator.cluster.base import Cluster, Growth, Machine, NoAnswer, Probes
from orchestrator.cluster.node_checks import facts, results_problem
from orchestrator.cluster.node_models import hub_cache, wanted_by
from orchestrator.cluster.node_network import listen, unreached
from orchestrator.engines import ENGINES
from orchestrator.plan.model import Deployment
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.patience import Retry
from orchestrator.spec.stages import PlannedSettings

Level = Literal["fail", "warning"]
ROUNDS = 10  # readings of each clock
CALL_LIMIT_S = 10.0  # for a node that has answered before
# for which hosts listen: until the last one has begun and all connections were tried
LISTEN_S = 60.0
SILENT = "look at its raylet's log, or take it out of the cluster"
REPORT_S = 20.0  # for an autoscaler, which normally reports every 5 s
GOOD_WRITE_BYTES_S = 5e6  # to the results, by each node while all write


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, why that matters, and what to do."""

    level: Level
    check: str
    where: str
    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node as Ray describes it (``machine``) and as it is (``facts``).

    ``clock_s``: its wall clock differs from the driver's by at least this.
    """

    machine: Machine
    facts: Mapping[str, Any]
    clock_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.facts['hostname']} ({self.machine.address}, {self.machine.node_id[:8]})"


@dataclass(frozen=True, slots=True)
class Kind:
    """Deployments that need the same of a node: an engine or router, how it is installed, its
    models, and their cache.

    ``settings``: those of that part of the first of them.
    """

    settings: PlannedSettings
    deployments: list[Deployment]


Kinds = Sequence[Kind]


def kinds_of(deployments: Iterable[Deployment]) -> Kinds:
    """The deployments that are launched, by what each of their roles and their routers need on a
    node.
    """
    kinds: dict[tuple[Any, ...], Kind] = {}
    for one in deployments:
        for part in one.settings.parts.values() if ENGINES[one.settings.engine].launches else ():
            place = (
                part.engine,
                part.executable,
                part.image,
                part.container_runtime,
                part.nnodes > 1,
            )
            wanted = wanted_by(part)
            cache = hub_cache(part.env) if wanted else None
            kind = kinds.setdefault((*place, *wanted, cache), Kind(part, []))
            kind.deployments.append(one)
    return list(kinds.values())


def examine(probes: Probes, kinds: Kinds, uri: str | None) -> tuple[list[Node], list[Finding]]:
    """Ask all nodes in parallel; the nodes that answered, and what was found by asking. ``uri``:
    results to test.
    """
    machines = {one.node_id: one for one in probes.machines}
    said = probes.ask(facts, [(kind.settings, kind.deployments[0].hardware) for kind in kinds])
    nodes, found = [], []
    for node_id, answer in said.items():
        if isinstance(answer, NoAnswer):
            do = "install this program there, with the driver's version of Python, or submit with --working-dir"
            do = do if answer.wrong else SILENT
            where = f"{machines[node_id].address}, {node_id[:8]}"
            found.append(Finding("fail", "node", where, answer.why, "nothing can run there", do))
        else:
            nodes.append(Node(machines[node_id], answer))
    if not nodes:
        return [], found
    offsets = _clocks(probes, [one.machine.node_id for one in nodes])
    nodes = [Node(one.machine, one.facts, offsets.get(one.machine.node_id, 0.0)) for one in nodes]
    return nodes, found + _network(probes, nodes) + (_results(probes, nodes, uri) if uri else [])


def growth_of(cluster: Cluster) -> Growth:
    """What the cluster's autoscaler says once it has reported anew: the first report may be that of
    a dead one.
    """
    until_s = time.monotonic() + REPORT_S
    while (growth := cluster.growth()).reports in (0, 1) and time.monotonic() < until_s:
        time.sleep(1.0)
    return growth


def _clocks(probes: Probes, nodes: Sequence[str]) -> dict[str, float]:
    """Node id -> seconds by which its clock is off: by the fastest of several round trips, minus
    half of that one.
    """
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        before_s = time.time()
        said = probes.ask(time.time, limit_s=CALL_LIMIT_S, nodes=nodes)
        took_s = time.time() - before_s
        # each round waits for all
        nodes = [node for node in nodes if not isinstance(said[node], NoAnswer)]
        if not nodes:
            break
        for node in nodes:
            best[node] = min(
                best.get(node, (took_s, 0.0)), (took_s, said[node] - before_s - took_s / 2)
            )
    return {node: max(0.0, abs(offset_s) - took_s / 2) for node, (took_s, offset_s) in best.items()}


def _network(probes: Probes, nodes: Sequence[Node]) -> list[Finding]:
    """Hosts that cannot reach others the way clients reach engines and ranks reach each other."""
    hosts = {node.machine.address: node for node in nodes}
    if len(hosts) < 2:
        return []
    asked = {node.machine.node_id: address for address, node in hosts.items()}
    said = probes.ask(listen, list(hosts), LISTEN_S, limit_s=CALL_LIMIT_S, nodes=list(asked))
    listening = {node: port for node, port in said.items() if not isinstance(port, NoAnswer)}
    if listening:
        peers = [(asked[node], port) for node, port in listening.items()]
        said |= probes.ask(unreached, peers, nodes=list(listening))
    why, do = (
        "clients and ranks talk to engines there",
        "open the ports between nodes; use one MTU on the whole path",
    )
    found = list[Finding]()
    for node, answer in said.items():
        where = hosts[asked[node]].name
        if isinstance(answer, NoAnswer):
            found.append(Finding("fail", "network", where, answer.why, why, SILENT))
            continue
        for at, what in answer.items():
            found.append(Finding("fail", "network", where, f"{hosts[at].name}: {what}", why, do))
    return found


def _results(probes: Probes, nodes: Sequence[Node], uri: str) -> list[Finding]:
    """Nodes that cannot use the results: each must read a file of the driver, and the driver must
    see one of each.
    """
    location, nonce = parse_location(uri), new_ulid()
    blobs = Blobs(location, Retry(tries=2))
    made = _missing_folders(location.path) if location.is_local else []
    wrong, slow = dict[str, str](), dict[str, float]()
    written, names = [f".doctor-{nonce}-driver"], {one.machine.node_id: one.name for one in nodes}
    try:
        try:
            blobs.put(written[0], b"seen")
            said = probes.ask(results_problem, uri, nonce, nodes=list(names))
            written += [one[1] for one in said.values() if not isinstance(one, NoAnswer)]
            for node, one in said.items():
                problem, key, bytes_s = (one.why, "", 0.0) if isinstance(one, NoAnswer) else one
                seen = problem or any(blobs.exist([key]))
                wrong |= (
                    {}
                    if seen is True
                    else {node: problem or "the driver does not see what it wrote"}
                )
                slow |= {node: bytes_s} if seen is True and bytes_s < GOOD_WRITE_BYTES_S else {}
        finally:
            for key in written:
                blobs.delete(key)
            for folder in made:
                with suppress(OSError):  # somebody uses it meanwhile
                    os.rmdir(folder)
    except (OSError, OrchestratorError) as error:
        wrong[""] = redacted(str(error))
    why = "clients write their rows there, from any node"
    do = "give a folder that all nodes share, or s3://...; every node needs credentials of its own"
    found = [
        Finding("fail", "results", names.get(node, "driver"), what, why, do)
        for node, what in wrong.items()
    ]
    for node, bytes_s in slow.items():
        what, why = (
            f"it writes {bytes_s / 1e6:.1f} MB/s to the results",
            "clients' rows and the next point wait for it",
        )
        found.append(
            Finding(
                "warning", "results", names[node], what, why, "give a faster place, or a nearer one"
            )
        )
    return found


def _missing_folders(path: str) -> list[str]:
    """The folders that a write below ``path`` would make, the innermost first."""
    missing: list[str] = []
    folder = path
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing
