"""``orchestrator selfcheck``: how fast and how exact the client is on this machine."""

from typing import Any

import click

from orchestrator.cli.numbers import WholeNumber
from orchestrator.spec.load import counted

EXAMPLES = """
\b
Examples:
  orchestrator selfcheck
  orchestrator selfcheck --clients 2 --format json

\b
Takes about 20 s. If a point's load comes near these figures, the client limits it, not the engine: use more clients, or
more machines for them. The errors are what this client adds to the true timing of the server.
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--clients",
    type=WholeNumber(min=1),
    default=1,
    show_default=True,
    help="Local client processes.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def selfcheck(clients: int, form: str) -> int:
    """Measure this machine's load client.

    It loads a local server of known timing.
    """
    from orchestrator.report.documents import json_text
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.sweep.selfcheck import selfcheck as check

    leave_pandas_out()
    found = check(clients)
    if form == "json":
        click.echo(json_text(found))
    else:
        click.echo(_sentences(found))
    return 0


def _sentences(found: dict[str, Any]) -> str:
    more = "at least " if found["limited_by"] != "client" else ""
    ttft, itl, cpu = found["ttft_error_ms"], found["itl_error_ms"], found["cpu_us_per_event"]
    paced = f"at {found['open_loop_requests_per_s']:,.0f} requests/s"
    lines = [
        f"{found['host']}, {counted(found['cpus'], 'core')}, {counted(found['clients'], 'client')}",
        f"streamed events sustained   {more}{found['events_per_s']:,.0f}/s (limited by: {found['limited_by']})",
        f"client CPU at that rate     {cpu:.1f} us per event, {found['cpu_share']:.0%} of the busiest client's core",
        f"loop lag p99 at that rate   {found['loop_lag_p99_ms']:.2f} ms",
        f"TTFT error                  mean {ttft['mean']:+.3f} ms, p99 {ttft['p99']:+.3f} ms",
        f"ITL error                   mean {itl['mean']:+.4f} ms, p99 {itl['p99']:+.3f} ms",
        f"send lag p99                {found['send_lag_p99_ms']:.2f} ms {paced}",
    ]
    return "\n".join(lines)
