"""``orchestrator schema`` prints the schema of experiment files and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import schema as schema_command
from orchestrator.cli.schema import schema_text
from tests.unit.cli.commands import invoke


def test_it_prints_a_schema() -> None:
    done = invoke("schema")
    assert done.status == 0
    assert done.stdout == schema_text()
    assert done.stderr == ""
    assert json.loads(done.stdout)["required"][:2] == ["version", "name"]


def test_it_writes_a_file_and_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "experiment.schema.json"
    done = invoke("schema", "--output", str(file))
    assert (done.status, done.stdout, done.stderr) == (0, "", "")
    assert file.read_text() == schema_text()


def test_a_schema_that_cannot_be_made_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> str:
        raise ValueError("a field without a type")

    file = tmp_path / "experiment.schema.json"
    file.write_text("earlier")
    monkeypatch.setattr(schema_command, "schema_text", fails)
    with pytest.raises(ValueError, match="a field without a type"):
        invoke("schema", "--output", str(file))
    assert file.read_text() == "earlier"
