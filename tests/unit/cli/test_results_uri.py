"""What commands that look at results are given."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from click.testing import CliRunner


@pytest.mark.parametrize("form", ["{}", "file://{}"])
@pytest.mark.parametrize("command", ["best", "logs", "results", "status", "stop", "verify"])
def test_a_file_in_place_of_results_is_bad_input_with_a_sentence(
    tmp_path: Path, command: str, form: str
) -> None:
    """And not a storage that does not answer, which is asked three times and ends with status 1."""
    (tmp_path / "good.yaml").write_text("version: 1\n")
    module = importlib.import_module(f"orchestrator.cli.{command}")
    done = CliRunner().invoke(getattr(module, command), [form.format(tmp_path / "good.yaml")])
    assert done.exit_code == 2
    assert "good.yaml is a file, and results are in a folder" in done.stderr
