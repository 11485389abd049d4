"""``orchestrator schema`` prints the schema of experiment files and nothing else."""

from __future__ import annotations

import json

from orchestrator.cli.schema import schema_text
from tests.unit.cli.commands import invoke


def test_it_prints_a_schema() -> None:
    done = invoke("schema")
    assert done.status == 0
    assert done.stdout == schema_text()
    assert done.stderr == ""
    assert json.loads(done.stdout)["required"][:2] == ["version", "name"]
