"""``orchestrator doctor``: what would make a sweep on a cluster fail, or its numbers wrong, before
it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.base.redaction import redact, redact_all
from orchestrator.base.text import grouped
from orchestrator.spec.load import counted

if TYPE_CHECKING:
    from orchestrator.sweep.examine import ExaminedNode, Finding

EXAMPLES = """
\b
Examples:
  orchestrator doctor
  orchestrator doctor --address auto --experiment experiments/x.yaml --results s3://bucket/sweeps
  orchestrator doctor --address head:6379 --format json

\b
Without --address it checks only this machine, without Ray. --experiment also checks that engines, models and enough
GPUs for its deployments are there, and asks its endpoints for two tokens; --results also checks that every node can
write there, and leaves nothing behind. It starts nothing but one actor without CPUs or GPUs on each node.
Exit status: 0 all well, 3 warnings (numbers may be wrong), 2 a sweep would fail.
"""


@click.command(epilog=EXAMPLES)
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
    from orchestrator.cluster.node_checks import versions
    from orchestrator.cluster.open_cluster import LOCAL, open_cluster
    from orchestrator.plan.make import load_plan
    from orchestrator.report.formats import json_text
    from orchestrator.results.location import check_answers
    from orchestrator.results.store import Store
    from orchestrator.sweep.default_hardware import on_this_cluster
    from orchestrator.sweep.doctor import diagnose
    from orchestrator.sweep.endpoint_trial import endpoint_findings
    from orchestrator.sweep.examine import examine, growth_of, requirements_of

    plan = load_plan(experiment) if experiment else None
    deployments = plan.runnable() if plan else []
    if results_uri:
        check_answers(results_uri)
        # bad input is told before anything is joined; a path is whole
        results_uri = Store.open(results_uri, "x").uri
    cluster = open_cluster(None, address or LOCAL)
    try:
        requirements = requirements_of(on_this_cluster(deployments, cluster.machines()))
        cluster.growth()  # the first look: its autoscaler may report while the nodes are asked
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
    if form == "json":
        document = {
            "nodes": [_node_document(node) for node in nodes],
            "findings": [asdict(finding) for finding in findings],
        }
        click.echo(json_text(redact_all(document)))
    else:
        click.echo(redact(_text(findings, len(nodes))))
    levels = {finding.level for finding in findings}
    if "fail" in levels:
        return 2
    return 3 if levels else 0


def _node_document(node: ExaminedNode) -> dict[str, Any]:
    """A node's facts and where it is, as JSON has them."""
    return {**node.facts, "node_id": node.machine.node_id, "address": node.machine.address}


def _text(findings: Sequence[Finding], nodes: int) -> str:
    """The findings, failures first; what is wrong on several nodes is said once."""
    ordered = sorted(findings, key=lambda finding: finding.level)
    places_of = grouped((replace(finding, where=""), finding.where) for finding in ordered)
    lines = [
        f"{finding.level}: {finding.check}: {finding.what}\n"
        f"  where: {', '.join(places)}\n"
        f"  why it matters: {finding.why}\n"
        f"  what to do: {finding.do}"
        for finding, places in places_of.items()
    ]
    failures = sum(finding.level == "fail" for finding in places_of)
    warnings = len(places_of) - failures
    summary = (
        f"{counted(nodes, 'node')}: {counted(failures, 'finding')} that would fail a sweep, "
        f"{counted(warnings, 'warning')}"
    )
    return "\n".join([*lines, summary])
