"""The wheel of a release works in an environment that has only what the wheel asks for."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import __version__
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT, free_port, wait_for
from tests.packages.building import (
    Environment,
    Packages,
    build,
    environment_made_by,
    source_tree,
)

pytestmark = pytest.mark.timeout(300)
EXPERIMENT = """
version: 1
name: small
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 1}}
deployments: {engine: vllm, hardware: h100, max_model_len: 2048}
workloads: [{name: chat, input_tokens: 200, output_tokens: 20}]
load: {levels: {request_rate: [1, 2]}, duration: 30s, warmup: 5s}
slos: {interactive: {ttft: 1s, attainment: 0.9}}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return build(ROOT, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def installed(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment that the page on installing makes in the sources of a release."""
    tree = source_tree(packages.sdist, tmp_path_factory.mktemp("environment"))
    (block,) = blocks_run_by(__file__, "docs/start/install.md")
    return environment_made_by(list(command_lines(block)), tree, packages.wheel)


@contextmanager
def emulator(environment: Environment, port: int, folder: Path) -> Iterator[str]:
    """An emulator of this environment's; its URL."""
    command = [str(environment.folder / "bin" / "orchestrator"), "emulator", "--port", str(port)]
    log = folder / "emulator.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            wait_for(lambda: f":{port}" in log.read_text(), 60, "the emulator serves")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def test_a_wheel_of_the_sdist_is_the_same(packages: Packages, tmp_path: Path) -> None:
    tree = source_tree(packages.sdist, tmp_path / "source")
    again = build(tree, tmp_path / "packages")
    names = zipfile.ZipFile(packages.wheel).namelist()
    assert zipfile.ZipFile(again.wheel).namelist() == names
    assert again.wheel.read_bytes() == packages.wheel.read_bytes()
    outside = [name for name in names if not name.startswith(("orchestrator/", "llm_serving_orch"))]
    assert outside == []


def test_the_wheel_asks_for_everything_it_needs(installed: Environment, tmp_path: Path) -> None:
    checked = installed.pip("check")
    assert checked.returncode == 0, checked.stdout
    version = installed.run("orchestrator", "--version", cwd=tmp_path)
    assert version.stdout == f"orchestrator, version {__version__}\n"
    # pytest is one of the development extras alone: the environment is not this one
    other = installed.run("python", "-c", "import pytest", cwd=tmp_path)
    assert "No module named 'pytest'" in other.stderr


def test_the_wheel_simulates_loads_and_reports(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(EXPERIMENT)
    simulated = installed.run(
        "orchestrator", "simulate", "small.yaml", "--results", "simulated", cwd=tmp_path
    )
    assert simulated.returncode == 0, simulated.stderr
    page = installed.run("orchestrator", "report", "simulated", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    assert "<html" in (tmp_path / "report.html").read_text()[:1000]

    with emulator(installed, free_port(), tmp_path) as url:
        loaded = installed.run(
            *("orchestrator", "load", url, "--concurrency", "2", "--requests", "20"),
            *("--input-tokens", "20", "--output-tokens", "5", "--format", "json"),
            *("--results", "measured", "--name", "before"),
            cwd=tmp_path,
        )
    assert loaded.returncode in (0, 3), loaded.stderr  # 3: another test disturbed it
    level = json.loads(loaded.stdout)
    assert level["emulated"]
    shown = installed.run("orchestrator", "results", "measured", "--format", "json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert len(json.loads(shown.stdout)) == 1
