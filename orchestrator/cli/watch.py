"""``orchestrator watch``: serves the page of ``report`` and metrics while a sweep runs."""

from __future__ import annotations

import os

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator watch results/
  orchestrator watch s3://bucket/sweeps --experiment quickstart --port 9000
  curl -s http://127.0.0.1:8787/metrics
"""
DETAILS = """
The page is that of `report`, and updates itself: what is measured appears within about 2 s from a folder and about
10 s from an object store. The command only reads, so it may run wherever the results can be read, and before the sweep
begins. Ctrl-C ends it. docs/grafana-dashboard.json is a dashboard over /metrics.

With a --host beyond loopback, requests need a token: the one in ORCHESTRATOR_WATCH_TOKEN, else a new one, which
is part of the printed address; Prometheus sends it as a bearer token. It is plain HTTP: who can read the network
can read the token and the results, so serve only trusted networks, or put a proxy that speaks TLS in front.
"""


@click.command(
    cls=CliCommand,
    examples=EXAMPLES,
    details=DETAILS,
    short_help="Serve the page of URI, kept up to date while a sweep runs.",
)
@click.argument("uri", callback=checked_uri)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help=(
        "The address of this machine to serve, over plain HTTP. Any but loopback asks for a token, "
        "which is printed."
    ),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8787,
    show_default=True,
    help="0: any that is free.",
)
def watch(uri: str, experiment: str | None, host: str, port: int) -> None:
    """Serve the page of what is at URI, kept up to date while a sweep runs."""
    from orchestrator.report.text import echo
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.web.server import serve, token_for
    from orchestrator.web.watched import WatchedResults

    leave_pandas_out()
    token = token_for(host, os.environ)
    watched = WatchedResults(uri, experiment)
    absence = watched.absence()
    if absence:
        echo(f"note: {absence}", err=True)
    serve(watched, host, port, token, print_line=echo)
