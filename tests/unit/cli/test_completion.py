"""Shells complete commands and options, by the lines that the documentation has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

PAGE = ROOT / "docs" / "start" / "install.md"


def completed(words: str) -> list[str]:
    """What bash offers for the last of these words."""
    env = os.environ | {
        "_ORCHESTRATOR_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    command = [sys.executable, "-m", "orchestrator"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("orchestrator lo", ["load", "logs"]),
        ("orchestrator load --find", ["--find-capacity"]),
        ("orchestrator best --per j", ["joule"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, offered: list[str]) -> None:
    assert sorted(completed(words)) == offered


# reads the page's line, and does what bash does when Tab is pressed after "orchestrator lo"
TAB = """
{line}
COMP_WORDS=(orchestrator lo)
COMP_CWORD=1
_orchestrator_completion orchestrator
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_bash_completes_after_the_line_of_the_page() -> None:
    (line,) = re.findall(r"^eval .*bash_source orchestrator\)\"", PAGE.read_text(), re.MULTILINE)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    command = ["bash", "-c", TAB.format(line=line)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["load", "logs"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_of_each_shell_gives_its_script(shell: str) -> None:
    variable = f"_ORCHESTRATOR_COMPLETE={shell}_source"
    assert f"{variable} orchestrator" in PAGE.read_text()
    env = os.environ | {"_ORCHESTRATOR_COMPLETE": f"{shell}_source"}
    command = [sys.executable, "-m", "orchestrator"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "orchestrator" in done.stdout
    assert re.search(rf"_ORCHESTRATOR_COMPLETE={shell}_complete", done.stdout)
