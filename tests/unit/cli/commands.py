"""Runs a command in this process, as ``main`` does."""

from __future__ import annotations

from dataclasses import dataclass

from click.testing import CliRunner

from orchestrator.cli.main import cli


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


def invoke(*argv: str) -> Done:
    """Errors that ``main`` makes sentences of are raised."""
    result = CliRunner().invoke(cli, argv, standalone_mode=False, catch_exceptions=False)
    return Done(result.return_value or 0, result.stdout, result.stderr)
