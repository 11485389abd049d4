"""``orchestrator schema``: the JSON schema of experiment files, for editors."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.command import CliCommand

EXAMPLES = """
\b
Examples:
  orchestrator schema --output experiment.schema.json
"""
DETAILS = """
\b
Then the first line of an experiment file tells an editor where it is:
  # yaml-language-server: $schema=experiment.schema.json

VS Code needs the extension YAML (redhat.vscode-yaml). What needs engines, models or other files is checked by
orchestrator plan alone.
"""


@click.command(
    cls=CliCommand,
    examples=EXAMPLES,
    details=DETAILS,
    short_help="Print the JSON schema of experiment files, for editors.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the schema to this file, whole or not at all. Default: stdout.",
)
def schema(output: Path | None) -> None:
    """Print the JSON schema of experiment files: completion, descriptions and errors in an editor."""
    if output is None:
        click.echo(schema_text(), nl=False)
        return
    from orchestrator.cli.output_file import check_folder, write_whole

    check_folder(output)
    write_whole(output, schema_text().encode())


def schema_text() -> str:
    """The schema as a file has it, with the engines, routers and searches that are installed."""
    import json

    from orchestrator.capacity.registry import STRATEGIES
    from orchestrator.engines.registry import ENGINES, ROUTERS
    from orchestrator.spec.schema import Names, experiment_schema

    names = Names(engines=ENGINES.names(), routers=ROUTERS.names(), searches=STRATEGIES.names())
    return json.dumps(experiment_schema(names), indent=1, ensure_ascii=False) + "\n"
