"""The other load generators that the page of measurements compares are installed as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.blocks import blocks_run_by, command_lines
from tests.documentation.index import installed_by, skip_unless_installable
from tests.harness import ROOT, environment

pytestmark = pytest.mark.timeout(900)

PEERS = ROOT / ".engines" / "peers"
SOURCE = ROOT / "benchmarks" / "client" / "install_peers.py"
VERSIONS = dict(re.findall(r'"([a-z-]+)==([\d.]+)"', SOURCE.read_text(encoding="utf-8")))
INSTALLATION_LIMIT_S = 800.0  # of gigabytes
TOOLS = ["aiperf", "genai-bench", "guidellm", "inference-perf", "sglang"]
VERSION = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """What the command of the page says of each tool."""
    (block,) = blocks_run_by(__file__, "docs/measurements.md")
    (words,) = command_lines(block)
    assert words[0] == "python"
    done = installed_by([sys.executable, *words[1:]], INSTALLATION_LIMIT_S)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_is_installed_in_the_version_that_was_compared(
    answers: dict[str, str], tool: str
) -> None:
    if answers[tool].startswith("needs python"):
        pytest.skip(f"NOT RUN: {tool} {answers[tool]}")
    if answers[tool] != "installed":
        skip_unless_installable(tool, "torch")
    assert answers[tool] == "installed"
    assert version_of(tool) == VERSIONS[tool]


def test_a_python_that_can_make_no_environment_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python3.11"
    # as Debian's without its package python3.11-venv
    python.write_text('#!/bin/sh\ntest "$1" = --version && exit\necho no ensurepip >&2\nexit 1\n')
    python.chmod(0o755)
    (tmp_path / "tiny-llama").mkdir()
    done = subprocess.run(
        [sys.executable, str(SOURCE), "aiperf", "--into", str(tmp_path)],
        env=environment(PATH=f"{tmp_path}:/usr/bin:/bin"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("aiperf: needs python3.11 with ensurepip")
    assert not (tmp_path / "aiperf").exists()


def version_of(tool: str) -> str:
    python: Path = PEERS / tool / "bin" / "python"
    return subprocess.check_output([python, "-c", VERSION, tool], text=True).strip()


def test_all_tools_are_asked_for_and_the_model_is_made(answers: dict[str, str]) -> None:
    assert sorted(answers) == TOOLS
    assert (PEERS / "tiny-llama" / "tokenizer.json").is_file()
