"""Asks the nodes of a cluster for facts, and tests their clocks, the network between them and
access to the results.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.base.errors import OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.cluster.base import Growth, Machine, NoAnswer
from orchestrator.cluster.machine_facts import facts, try_results
from orchestrator.cluster.model_downloads import lookups_of
from orchestrator.cluster.protocol import Cluster, Probes
from orchestrator.cluster.reachability import listen, unreached
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.storage_retry import CHECK, Retry
from orchestrator.spec.stages import PlannedSettings

Severity = Literal["fail", "warning"]
ROUNDS = 10  # readings of each clock
CALL_LIMIT_S = 10.0  # seconds that a node gets to answer once it has answered before
# Seconds that hosts listen: long enough for the last host to begin and for all connections to be
# tried.
LISTEN_S = 60.0
REMEDY_FOR_SILENCE = "look at its raylet's log, or take it out of the cluster"
REPORT_S = 20.0  # seconds to wait for an autoscaler's report, which normally comes every 5 s


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, why that matters, and what to do."""

    level: Severity
    check: str
    where: str
    what: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class ExaminedNode:
    """A node as Ray describes it (``machine``) and as it is (``facts``).

    ``clock_s``: the least by which its wall clock differs from the driver's, in seconds.
    """

    machine: Machine
    facts: Mapping[str, Any]
    clock_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.facts['hostname']} ({self.machine.address}, {self.machine.node_id[:8]})"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What several deployments need of a node in the same way: an engine or router, how it is
    installed, its models, and their cache. ``settings``: those of that engine or router in the
    first of the deployments.
    """

    settings: PlannedSettings
    deployments: list[Deployment]


Requirements = Sequence[Requirement]


def requirements_of(deployments: Iterable[Deployment]) -> Requirements:
    """What the deployments that are launched need on a node, for each of their roles and routers.
    Deployments that need the same share a requirement.
    """
    requirements: dict[tuple[Any, ...], Requirement] = {}
    for deployment in deployments:
        if not ENGINES[deployment.settings.engine].launches:
            continue
        for part in deployment.settings.parts.values():
            key = (
                part.engine,
                part.executable,
                part.image,
                part.container_runtime,
                *lookups_of(part),
            )
            requirement = requirements.setdefault(key, Requirement(part, []))
            requirement.deployments.append(deployment)
    return list(requirements.values())


def examine(
    probes: Probes, requirements: Requirements, uri: str | None
) -> tuple[list[ExaminedNode], list[Finding]]:
    """Ask all nodes in parallel. Returns the nodes that answered, and what was found by asking.

    ``uri``: the results that every node must be able to use; None if that is not tested.
    """
    machines = {machine.node_id: machine for machine in probes.machines}
    launched = [
        (requirement.settings, requirement.deployments[0].hardware) for requirement in requirements
    ]
    nodes: list[ExaminedNode] = []
    findings: list[Finding] = []
    for node_id, answer in probes.ask(facts, launched).items():
        if isinstance(answer, NoAnswer):
            where = f"{machines[node_id].address}, {node_id[:8]}"
            findings.append(_silent_node(where, answer))
        else:
            nodes.append(ExaminedNode(machines[node_id], answer))
    if not nodes:
        return [], findings
    offsets = _clock_offsets_s(probes, [node.machine.node_id for node in nodes])
    nodes = [replace(node, clock_s=offsets.get(node.machine.node_id, 0.0)) for node in nodes]
    findings += _network(probes, nodes)
    if uri:
        findings += _results(probes, nodes, uri)
    return nodes, findings


def _silent_node(where: str, answer: NoAnswer) -> Finding:
    if answer.cannot_run:
        remedy = (
            "install this program there, with the driver's version of Python, "
            "or submit with --working-dir"
        )
    else:
        remedy = REMEDY_FOR_SILENCE
    return Finding("fail", "node", where, answer.why, "nothing can run there", remedy)


def growth_of(cluster: Cluster) -> Growth:
    """What the cluster's autoscaler says once it has reported anew, or after REPORT_S seconds. The
    first report may have been left by an autoscaler that is dead.
    """
    until_s = time.monotonic() + REPORT_S
    growth = cluster.growth()
    while growth.may_be_dead and time.monotonic() < until_s:
        time.sleep(1.0)
        growth = cluster.growth()
    return growth


def _clock_offsets_s(probes: Probes, node_ids: Sequence[str]) -> dict[str, float]:
    """Node id -> the least by which its clock is off, in seconds: the offset at the fastest of
    several round trips, less half of that round trip.
    """
    fastest: dict[str, tuple[float, float]] = {}  # seconds of the round trip, offset
    for _ in range(ROUNDS):
        before_s = time.time()
        answers = probes.ask(time.time, limit_s=CALL_LIMIT_S, nodes=node_ids)
        took_s = time.time() - before_s
        # each round waits for all: a node that fell silent is not asked again
        node_ids = [node_id for node_id in node_ids if not isinstance(answers[node_id], NoAnswer)]
        if not node_ids:
            break
        for node_id in node_ids:
            reading = (took_s, answers[node_id] - before_s - took_s / 2)
            fastest[node_id] = min(fastest.get(node_id, reading), reading)
    return {
        node_id: max(0.0, abs(offset_s) - took_s / 2)
        for node_id, (took_s, offset_s) in fastest.items()
    }


def _network(probes: Probes, nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Hosts that cannot reach others the way clients reach engines and ranks reach each other."""
    hosts = {node.machine.address: node for node in nodes}
    if len(hosts) < 2:
        return []
    address_of = {node.machine.node_id: address for address, node in hosts.items()}
    answers = probes.ask(
        listen, list(hosts), LISTEN_S, limit_s=CALL_LIMIT_S, nodes=list(address_of)
    )
    ports = {node_id: port for node_id, port in answers.items() if not isinstance(port, NoAnswer)}
    if ports:
        peers = [(address_of[node_id], port) for node_id, port in ports.items()]
        answers |= probes.ask(unreached, peers, nodes=list(ports))
    why = "clients and ranks talk to engines there"
    remedy = "open the ports between nodes; use one MTU on the whole path"
    findings: list[Finding] = []
    for node_id, answer in answers.items():
        where = hosts[address_of[node_id]].name
        if isinstance(answer, NoAnswer):
            findings.append(Finding("fail", "network", where, answer.why, why, REMEDY_FOR_SILENCE))
            continue
        for address, problem in answer.items():
            what = f"{hosts[address].name}: {problem}"
            findings.append(Finding("fail", "network", where, what, why, remedy))
    return findings


def _results(probes: Probes, nodes: Sequence[ExaminedNode], uri: str) -> list[Finding]:
    """Nodes that cannot use the results: each node must read a file of the driver, and the driver
    must see a file of each node. No file or folder of this test is left behind.
    """
    location = parse_location(uri)
    folders = _missing_folders(location.path) if location.is_local else []
    blobs = Blobs(location, Retry(CHECK))
    names = {node.machine.node_id: node.name for node in nodes}
    problems: dict[str, str] = {}  # by the node's name
    try:
        for node_id, problem in _results_problems(probes, list(names), uri, blobs).items():
            problems[names[node_id]] = problem
    except (OSError, OrchestratorError) as error:
        problems["driver"] = redact(str(error))
    finally:
        for folder in folders:
            with suppress(OSError):  # another program uses the folder meanwhile
                os.rmdir(folder)
    why = "clients write their rows there, from any node"
    remedy = (
        "give a folder that all nodes share, or s3://...; every node needs credentials of its own"
    )
    return [
        Finding("fail", "results", where, what, why, remedy) for where, what in problems.items()
    ]


def _results_problems(
    probes: Probes, node_ids: Sequence[str], uri: str, blobs: Blobs
) -> dict[str, str]:
    """Node id -> why that node cannot use the results. Raises OSError or OrchestratorError if the
    driver itself cannot use them.
    """
    nonce = new_ulid()
    written = [f".doctor-{nonce}-driver"]
    problems: dict[str, str] = {}
    try:
        blobs.put(written[0], b"seen")
        trials = probes.ask(try_results, uri, nonce, nodes=node_ids)
        # added before any is looked at, so that all are removed even if the driver fails halfway
        written += [trial.key for trial in trials.values() if not isinstance(trial, NoAnswer)]
        for node_id, trial in trials.items():
            if isinstance(trial, NoAnswer):
                problems[node_id] = trial.why
            elif trial.problem:
                problems[node_id] = trial.problem
            elif not any(blobs.exist([trial.key])):
                problems[node_id] = "the driver does not see what it wrote"
    finally:
        for key in written:
            blobs.delete(key)
    return problems


def _missing_folders(path: str) -> list[str]:
    """The folders that a write below ``path`` would make, the innermost first."""
    missing: list[str] = []
    folder = path
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing
