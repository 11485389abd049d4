"""Dynamo is tried without a GPU as its page says: its front end with a simulated prefill worker and
a simulated decode worker, loaded by this program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from scripts.install_engines import alone
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.documentation.index import installed_by, skip_unless_installable
from tests.harness import MODEL, ROOT, environment, free_port, wait_for

pytestmark = pytest.mark.timeout(600)

INSTALLATION, TRIAL = blocks_run_by(__file__, "docs/guides/dynamo.md")
HOME = ".engines/dynamo"
PACKAGES = ("ai-dynamo", "ai-dynamo-runtime")
INSTALLATION_LIMIT_S = 400.0
HTTP_PORT, BOOTSTRAP_PORT = "8000", "18402"  # on the page
DISCOVERY = "/tmp/dynamo"
START_LIMIT_S = 120.0  # two to five seconds on an idle machine


@pytest.fixture(scope="module")
def installed() -> None:
    """The environment that the page makes. Skips where its packages cannot be had."""
    for words in command_lines(INSTALLATION):
        assert words[0] == "python3" or words[0].startswith(f"{HOME}/bin/")
    with alone(ROOT / HOME):
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = installed_by(["bash", "-euc", INSTALLATION.text], INSTALLATION_LIMIT_S, PATH=path)
    if done.returncode != 0:
        skip_unless_installable(*PACKAGES)
    assert done.returncode == 0, done.stdout[-3000:]


def trial(folder: Path) -> tuple[dict[str, str], list[list[str]]]:
    """The variables and the commands of the page, with free ports and folders of this test's."""
    port_here = {HTTP_PORT: str(free_port()), BOOTSTRAP_PORT: str(free_port())}
    text = TRIAL.text
    for written, present in {**port_here, DISCOVERY: str(folder / "discovery")}.items():
        assert written in text
        text = text.replace(written, present)
    lines = [line for line in text.splitlines() if line]
    assert lines[0].startswith("export ")
    assignments = lines[0].partition("#")[0].split()[1:]
    variables = dict(assignment.split("=") for assignment in assignments)
    variables["HOME"] = str(folder)  # its front end leaves copies of tokenizers in ~/.cache/dynamo
    return variables, [line.split() for line in lines[1:]]


@contextmanager
def running(argv: list[str], variables: dict[str, str], log: Path) -> Iterator[None]:
    """A server of the page. Its output is in ``log``."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=environment(**variables),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def lists_a_model(url: str) -> bool:
    """Whether a front end has a model to offer."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            return bool(json.load(answer)["data"])
    except OSError:
        return False


def test_prefill_and_decode_workers_are_measured_behind_their_front_end(
    installed: None, tmp_path: Path
) -> None:
    if not MODEL.exists():
        pytest.skip("NOT RUN: there is no model here (make model)")
    variables, commands = trial(tmp_path)
    *servers, load = commands
    assert [server[2] for server in servers] == ["dynamo.frontend", *["dynamo.mocker"] * 2]
    assert load[:2] == ["orchestrator", "load"]
    logs = [tmp_path / f"{number}.log" for number in range(len(servers))]
    with ExitStack() as stack:
        for server, log in zip(servers, logs, strict=True):
            stack.enter_context(running(server, variables, log))
        wait_for(lambda: lists_a_model(load[2]), START_LIMIT_S, f"a model is served: {logs}")
        done = subprocess.run(
            [sys.executable, "-m", *load, "--format", "json"],
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.stdout, done.stderr
    point = json.loads(done.stdout)
    requests = point["requests"]
    assert requests["ok"] == requests["scheduled"] > 0, point["errors"]
    asked = dict(zip(load[3::2], load[4::2], strict=True))
    for tokens, option in (
        ("input_tokens", "--input-tokens"),
        ("output_tokens", "--output-tokens"),
    ):
        counted = {point[tokens]["min"], point[tokens]["max"]}
        assert counted == {float(asked[option])}, "what Dynamo counted is not what was asked for"
