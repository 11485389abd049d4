"""Tests marked ``long`` run only where ``-m`` names them (``make chaos``); what was left out is
said at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness import TEST_RUN

LEFT_OUT = pytest.StashKey[int]()
# Other tests keep the machine busy: how long one example takes says nothing.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
# Leases of this run alone: else an engine of any other run on this machine would keep those of its
# tests waiting.
_LEASES = tempfile.TemporaryDirectory(prefix="orch-leases-")
os.environ["ORCHESTRATOR_LEASES"] = os.environ[TEST_RUN] = _LEASES.name
# What a shell starts in the background ignores SIGINT, and so would all that tests start and
# interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # after -k and -m: only what would have run counts
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    items[:] = [item for item in items if item not in long]
    config.hook.pytest_deselected(items=long)
    config.stash[LEFT_OUT] = len(long)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        line = f"{count} LONG TESTS WERE NOT RUN (make chaos runs them)"
        terminalreporter.write_sep("!", line, yellow=True, bold=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    if os.geteuid():
        pytest.skip("only root mounts a file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
