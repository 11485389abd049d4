"""The first sweep of the documentation runs on one machine, without an engine and without a model,
and its answer is certain.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.harness import AGAINST_THE_CLOCK, ROOT, orchestrator
from tests.in_this_process import judged_as_if_idle, run_here

FILE = ROOT / "experiments" / "quickstart-emulated.yaml"


# A level that only the larger batch holds, and one that neither holds, decide the answer as those of
# the whole file do. On a machine that stands still for a while, answers may be late.
@AGAINST_THE_CLOCK
def test_a_shorter_run_fails_nowhere_and_its_answer_is_certain(tmp_path: Path) -> None:
    content = yaml.safe_load(FILE.read_text())
    content["load"] |= {"levels": {"concurrency": [16, 64]}, "warmup": "500ms", "duration": "2s"}
    content["workloads"][0]["output_tokens"] = 64  # answers take half a second
    shortened = tmp_path / "x.yaml"
    shortened.write_text(yaml.safe_dump(content))
    results = str(tmp_path / "results")
    with judged_as_if_idle():
        done = run_here("run", str(shortened), "--results", results, "--address", "local")
    assert done.returncode == 0, done.stderr
    assert "8 measured" in done.stderr
    assert ", 0 failed" in done.stderr
    assert "best: emulator seqs=32 at 16 in flight" in done.stderr
    assert "not certain" not in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_answer_of_the_whole_file_is_certain(tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    done = orchestrator("run", str(FILE), "--results", results, "--address", "local", timeout_s=800)
    assert done.returncode == 0, done.stderr
    assert "best: emulator seqs=32 at 16 in flight" in done.stderr
    assert "not certain" not in done.stderr
