"""The page of an installed wheel: templates, scripts and the chart library are in it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.conftest import quiet_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder that holds the program as its wheel installs it, and nothing else."""
    wheels = tmp_path_factory.mktemp("wheels")
    built = subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], capture_output=True, text=True
    )
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("a wheel is built by hatchling, which is not here")
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    folder = tmp_path_factory.mktemp("installed")
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", folder, wheel]
    subprocess.run(install, check=True)
    return folder


def python(installed: Path, *arguments: str, folder: Path) -> str:
    """What Python prints in ``folder`` with the installed program; other packages are those of this
    environment.
    """
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    completed = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    # 3: nothing has a valid measurement, or files are damaged; the command has done its work
    assert completed.returncode in (0, 3), completed.stderr
    return completed.stdout


def test_the_installed_wheel_renders(browser, installed, uri, tmp_path):
    print_path = "import orchestrator; print(*orchestrator.__path__)"
    imported_from = python(installed, "-c", print_path, folder=tmp_path).strip()
    assert Path(imported_from).is_relative_to(installed)
    output = tmp_path / "report.html"
    python(installed, "-m", "orchestrator", "report", uri, "--output", str(output), folder=tmp_path)
    with quiet_page(browser, output) as page:
        assert page.locator("#ranking-table tbody tr").count() > 0
        assert page.locator("#frontier canvas").count() == 1


def test_the_chart_library_comes_with_its_licences(installed):
    vendor = installed / "orchestrator" / "report" / "page" / "vendor"
    for name in ("LICENSE", "LICENSE-d3", "NOTICE"):
        assert (vendor / name).read_text().strip()
    lock = json.loads((vendor / "LOCK.json").read_text())
    script = (vendor / "echarts.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == lock["sha256"]
