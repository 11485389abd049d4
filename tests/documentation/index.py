"""What tests do that install packages as a page says: they need the index, and wheels for this
platform.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.harness import environment


def skip_unless_installable() -> None:
    """Skips where an installation that failed could not have succeeded. Elsewhere the page is
    wrong.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        pytest.skip(f"NOT RUN: there may be no wheels for {system} on {machine}")
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "packaging"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if asked.returncode != 0:
        pytest.skip(f"NOT RUN: pip reaches no index: {asked.stderr[-300:]}")
