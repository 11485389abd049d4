"""The first sweep of the documentation runs on one machine, without an engine and without a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.harness import AGAINST_THE_CLOCK, ROOT, orchestrator

FILE = ROOT / "experiments" / "quickstart-emulated.yaml"


# An answer takes a second; within a window of a few of them, a machine that stands still for a while
# may have none to start.
@AGAINST_THE_CLOCK
def test_it_runs_on_one_machine_and_fails_nowhere(tmp_path: Path) -> None:
    content = yaml.safe_load(FILE.read_text())
    content["load"] |= {"levels": {"concurrency": [4]}, "warmup": "500ms", "duration": "5s"}
    content |= {"repeats": 1, "starts": 1}
    shortened = tmp_path / "x.yaml"
    shortened.write_text(yaml.safe_dump(content))
    results = str(tmp_path / "results")
    done = orchestrator("run", str(shortened), "--results", results, "--address", "local")
    assert done.returncode == 0, done.stderr
    assert "2 measured" in done.stderr
    assert ", 0 failed" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_answer_of_the_whole_file_is_certain(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    done = orchestrator("run", str(FILE), "--results", results, "--address", "local", timeout_s=800)
    assert done.returncode == 0, done.stderr
    assert "best: emulator seqs=32 at 16 in flight" in done.stderr
    assert "not certain" not in done.stderr
