"""Shells complete commands and options, by the lines that the documentation has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.blocks import blocks
from tests.harness import ROOT

PAGE = "docs/start/install.md"


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
        ("orchestrator emulator --po", ["--port"]),
        ("orchestrator emulator --port 8000 --pro", ["--profile"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, offered: list[str]) -> None:
    assert sorted(completed(words)) == offered


# What each shell does when Tab is pressed after "orchestrator lo", once it has read the page's line.
TAB = {
    "bash": """
COMP_WORDS=(orchestrator lo)
COMP_CWORD=1
_orchestrator_completion orchestrator
printf '%s\\n' "${COMPREPLY[@]}"
""",
    # what zsh's own functions would show is printed here
    "zsh": """
_describe() { print -l ${${(P)3}%%:*} }
words=(orchestrator lo)
CURRENT=2
_orchestrator_completion
""",
    "fish": "complete --do-complete 'orchestrator lo' | string replace --regex '\\t.*' ''",
}
READY = {"bash": "", "zsh": "autoload -Uz compinit; compinit -D\n", "fish": ""}
WITHOUT_FILES_OF_THE_USER = {"bash": "--norc", "zsh": "-f", "fish": "--no-config"}


def page_line(shell: str) -> str:
    """The one line of the page that makes this shell complete."""
    lines = [line for block in blocks(ROOT / PAGE) for line in block.text.splitlines()]
    (line,) = [line for line in lines if f"{shell}_source" in line]
    return line


@pytest.mark.parametrize("shell", TAB)
def test_a_shell_completes_after_its_line_of_the_page(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"NOT RUN: {shell} is not installed")
    script = f"{READY[shell]}{page_line(shell)}\n{TAB[shell]}"
    done = subprocess.run(
        [shell, WITHOUT_FILES_OF_THE_USER[shell], "-c", script],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(done.stdout.split()) == ["load", "logs"], done.stderr
