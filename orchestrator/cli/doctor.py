"""``orchestrator doctor``: finds, before a sweep, what would make it fail or its numbers wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.grouping import values_by_key
from orchestrator.base.redaction import redact, redact_all
from orchestrator.base.text import counted
from orchestrator.cli.command import CHECK_OF_THE_CLIENT, CliCommand

if TYPE_CHECKING:
    from orchestrator.plan.model import Plan
    from orchestrator.report.formats import JsonObject
    from orchestrator.sweep.examine import ExaminedNode, Finding

EXAMPLES = """
\b
Examples:
  orchestrator doctor
  orchestrator doctor --address auto --experiment experiments/x.yaml \\
      --results s3://bucket/sweeps
  orchestrator doctor --address head:6379 --format json
"""
DETAILS = """
Without --address it checks only this machine, without Ray. --experiment also checks that engines, models and enough
GPUs for its deployments are there, and asks its endpoints for two tokens; --results also checks that every node can
write there, and leaves nothing behind. It starts nothing but one actor without CPUs or GPUs on each node.

Exit status: 0 all well, 3 warnings (numbers may be wrong), 2 a sweep would fail.
"""
GIB = 2**30
OTHER_NAMES = {"--selfcheck": CHECK_OF_THE_CLIENT}


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS, other_names=OTHER_NAMES)
@click.option(
    "--address", help="Ray cluster, or local: this machine without Ray.  [default: local]"
)
@click.option(
    "--experiment",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The experiment to be run.",
)
@click.option("--results", "results_uri", metavar="URI", help="Where its results will be stored.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor(address: str | None, experiment: Path | None, results_uri: str | None, form: str) -> int:
    """Check every node before a sweep.

    Finds what would make the sweep fail or distort its numbers, with the reason and a remedy.
    """
    from orchestrator.plan.make import load_plan
    from orchestrator.report.formats import json_text
    from orchestrator.results.location import check_answers
    from orchestrator.results.store import Store

    plan = load_plan(experiment) if experiment else None
    if results_uri:
        check_answers(results_uri)
        # bad input is refused before the cluster is joined, and a path becomes absolute
        results_uri = Store.open(results_uri, "x").uri
    checked = _checked(plan, address, results_uri)
    if form == "json":
        document = {
            "nodes": [_node_json(node) for node in checked.nodes],
            "findings": [asdict(finding) for finding in checked.findings],
        }
        click.echo(json_text(redact_all(document)))
    else:
        click.echo(redact(findings_text(checked)))
    levels = {finding.level for finding in checked.findings}
    if "fail" in levels:
        return 2
    return 3 if levels else 0


@dataclass(frozen=True, slots=True)
class ExaminedCluster:
    """The nodes that were asked, and what was found on them. ``not_checked``: what nobody asked
    for, with the option that does.
    """

    nodes: Sequence[ExaminedNode]
    findings: Sequence[Finding]
    not_checked: Sequence[str] = ()


def _checked(plan: Plan | None, address: str | None, results_uri: str | None) -> ExaminedCluster:
    """Joins the cluster, asks every node and leaves again."""
    from orchestrator.cluster.machine_facts import versions
    from orchestrator.cluster.open_cluster import LOCAL, open_cluster
    from orchestrator.sweep.default_hardware import on_this_cluster
    from orchestrator.sweep.doctor import diagnose
    from orchestrator.sweep.endpoint_trial import endpoint_findings
    from orchestrator.sweep.examine import examine, growth_of, requirements_of

    deployments = plan.runnable() if plan else []
    cluster = open_cluster(None, address or LOCAL)
    try:
        requirements = requirements_of(on_this_cluster(deployments, cluster.machines()))
        cluster.growth()  # a first look, so that the autoscaler may report while nodes are asked
        probes = cluster.probes()
        try:
            nodes, findings = examine(probes, requirements, results_uri)
            findings += diagnose(nodes, versions(), requirements, growth_of(cluster))
            if plan:
                findings += endpoint_findings(plan)
        finally:
            probes.close()
    finally:
        cluster.close()
    not_checked = []
    if plan is None:
        not_checked.append("engines and models (--experiment)")
    if not results_uri:
        not_checked.append("access to the results (--results)")
    return ExaminedCluster(nodes, findings, not_checked)


def _node_json(node: ExaminedNode) -> JsonObject:
    """The facts of a node, and where it is."""
    return {**node.facts, "node_id": node.machine.node_id, "address": node.machine.address}


def _is_warning(finding: Finding) -> bool:
    return finding.level != "fail"


def findings_text(checked: ExaminedCluster) -> str:
    """The findings, failures first; a finding on several nodes is printed once."""
    failures_first = sorted(checked.findings, key=_is_warning)
    places_by_finding = values_by_key(
        (replace(finding, where=""), finding.where) for finding in failures_first
    )
    lines = []
    failures = 0
    for finding, places in places_by_finding.items():
        if finding.level == "fail":
            failures += 1
        lines += [
            f"{finding.level}: {finding.check}: {finding.what}",
            f"  where: {', '.join(places)}",
            f"  why it matters: {finding.why}",
            f"  what to do: {finding.do}",
        ]
    lines += _kinds_of_nodes(checked.nodes)
    if checked.not_checked:
        lines.append(f"not checked: {', '.join(checked.not_checked)}")
    nodes = counted(len(checked.nodes), "node")
    warnings = counted(len(places_by_finding) - failures, "warning")
    findings = counted(failures, "finding")
    lines.append(f"{nodes}: {findings} that would fail a sweep, {warnings}")
    return "\n".join(lines)


def _kinds_of_nodes(nodes: Sequence[ExaminedNode]) -> list[str]:
    """What the nodes have, a line for each kind of them."""
    numbers = Counter(_equipment(node) for node in nodes)
    return [
        f"seen: {counted(number, 'node')} with {equipment}" for equipment, number in numbers.items()
    ]


def _equipment(node: ExaminedNode) -> str:
    """The cores, memory and GPUs of a node: ``2 cores, 24 GiB, no GPU``."""
    facts = node.facts
    parts = [counted(facts["cores"], "core"), f"{facts['memory_bytes'] / GIB:.0f} GiB"]
    names = Counter(gpu.get("name") or "lost GPU" for gpu in facts["gpus"].get("gpus", ()))
    parts += [f"{number} x {name}" for name, number in names.items()]
    if facts["amd_gpus"] and not names:
        parts.append(f"{facts['amd_gpus']} x AMD GPU")
    elif not names:
        parts.append("no GPU")
    return ", ".join(parts)
