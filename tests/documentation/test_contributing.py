"""The commands for contributors: CI's own script runs them, but for ``make check``, which is run
here with few of its tests and without its lint, which CI runs.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT, outside_of_make

SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
BY_CI = re.findall(r"^make [a-z]+", SCRIPT, re.MULTILINE)


def test_ci_runs_the_commands_for_contributors_or_their_parts() -> None:
    (block,) = blocks_run_by(__file__, "CONTRIBUTING.md")
    commands = [" ".join(words) for words in command_lines(block)]
    assert BY_CI == ["make install", "make lint", "make test"]
    assert [command for command in commands if command not in BY_CI] == ["make check"]
    assert "\ncheck: lint\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_make_check_runs_fast_tests() -> None:
    branch = ["git", "rev-parse", "--verify", "main"]
    if subprocess.run(branch, cwd=ROOT, capture_output=True, check=False).returncode != 0:
        pytest.skip("NOT RUN: there is no branch main here, which make check compares with")
    done = subprocess.run(
        ["make", "check", "--old-file=.venv/installed", "--old-file=lint"],
        cwd=ROOT,
        env=outside_of_make(PYTEST_ADDOPTS="-k test_imported_names"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\b\d+ passed", done.stdout), done.stdout
