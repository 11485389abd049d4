"""What tests do that install packages as a page says: they need an index with these packages, wheels
for this platform, and a network that brings them in time.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.harness import ROOT, environment


def installed_by(
    argv: Sequence[str], limit_s: float, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs an installation to its end; its output has both streams. Skips if it takes longer than
    ``limit_s``. The next run goes on with what was installed by then.
    """
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that whatever it started can be ended, too
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                pytest.skip(f"NOT RUN: not installed within {limit_s:g} s: {argv}")
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, output)


def skip_unless_installable(*packages: str) -> None:
    """Skips where an installation of these packages that failed could not have succeeded. Elsewhere
    the page is wrong.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        pytest.skip(f"NOT RUN: there may be no wheels for {system} on {machine}")
    for package in packages:
        asked = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", package],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if asked.returncode != 0:
            reason = asked.stderr[-300:]
            pytest.skip(f"NOT RUN: pip's index has no {package} for this Python: {reason}")
