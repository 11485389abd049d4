"""``orchestrator schema``: the JSON schema of experiment files, for editors."""

import click

from orchestrator.cli.command import CliCommand

EXAMPLES = """
\b
Examples:
  orchestrator schema > experiment.schema.json
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
def schema() -> None:
    """Print the JSON schema of experiment files: completion, descriptions and errors in an editor."""
    click.echo(schema_text(), nl=False)


def schema_text() -> str:
    """The schema as a file has it, with the engines, routers and searches that are installed."""
    import json

    from orchestrator.capacity.registry import STRATEGIES
    from orchestrator.engines.registry import ENGINES, ROUTERS
    from orchestrator.spec.schema import Names, experiment_schema

    names = Names(engines=ENGINES.names(), routers=ROUTERS.names(), searches=STRATEGIES.names())
    return json.dumps(experiment_schema(names), indent=1, ensure_ascii=False) + "\n"
