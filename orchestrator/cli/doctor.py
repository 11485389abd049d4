"""``orchestrator doctor``: what would fail a sweep on a cluster, or spoil its numbers, before it
starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.redaction import all_redacted, redacted
from orchestrator.base.text import grouped
from orchestrator.spec.load import counted

if TYPE_CHECKING:
    from orchestrator.sweep.examine import Finding

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
Exit status: 0 all well, 3 warnings (numbers may be distorted), 2 a sweep would fail.
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
    from orchestrator.cluster import LOCAL, open_cluster
    from orchestrator.cluster.node_checks import versions
    from orchestrator.plan.make import load_plan
    from orchestrator.report.documents import json_text
    from orchestrator.results.location import check_answers
    from orchestrator.results.store import Store
    from orchestrator.sweep.default_hardware import on_this_cluster
    from orchestrator.sweep.doctor import diagnose
    from orchestrator.sweep.endpoint_trial import endpoint_findings
    from orchestrator.sweep.examine import examine, growth_of, kinds_of

    plan = load_plan(experiment) if experiment else None
    deployments = plan.runnable() if plan else []
    if results_uri:
        check_answers(results_uri)
        # bad input is told before anything is joined; a path is whole
        results_uri = Store.open(results_uri, "x").uri
    cluster = open_cluster(None, address or LOCAL)
    try:
        kinds = kinds_of(on_this_cluster(deployments, cluster.machines()))
        cluster.growth()  # the first look: its autoscaler may report while the nodes are asked
        probes = cluster.probes()
        try:
            nodes, found = examine(probes, kinds, results_uri)
            found += diagnose(nodes, versions(), kinds, growth_of(cluster))
            found += endpoint_findings(plan) if plan else []
        finally:
            probes.close()
    finally:
        cluster.close()
    levels = {one.level for one in found}
    if form == "json":
        said = [
            dict(one.facts) | {"node_id": one.machine.node_id, "address": one.machine.address}
            for one in nodes
        ]
        document = {
            "nodes": said,
            "findings": [asdict(one) for one in found],
        }
        click.echo(json_text(all_redacted(document)))
    else:
        click.echo(redacted(_text(found, len(nodes))))
    return 2 if "fail" in levels else 3 if levels else 0


def _text(found: Sequence[Finding], nodes: int) -> str:
    """What is wrong on several nodes is said once."""
    ordered = sorted(found, key=lambda one: one.level)
    same = grouped(
        ((one.level, one.check, one.what, one.why, one.do), one.where) for one in ordered
    )
    lines = [
        f"{level}: {check}: {what}\n  where: {', '.join(where)}\n  why it matters: {why}\n  what to do: {do}"
        for (level, check, what, why, do), where in same.items()
    ]
    counts = {level: sum(key[0] == level for key in same) for level in ("fail", "warning")}
    fails = counted(counts["fail"], "finding")
    summary = f"{counted(nodes, 'node')}: {fails} that would fail a sweep, {counted(counts['warning'], 'warning')}"
    return "\n".join([*lines, summary])
