"""Secrets are planted wherever a cluster and a sweep get them from; none is found in the results,
in Ray's files, or on a command line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.harness import MODEL, ROOT, environment, orchestrator, write_experiment
from tests.planted_secrets import PLANTED, contents, echoing_endpoint, leaks, write_echoing_program

pytestmark = pytest.mark.cluster

PROXY_PASSWORD = "pr0xyPassKq7Zw3Yt"
SECRETS = PLANTED | {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED0KEY12345",
    "AWS_SECRET_ACCESS_KEY": "pLaN+ted/SecretQ8rT5yU2iO9pA1sD4fG7hJ0kLz",
    "AWS_SESSION_TOKEN": "pl4ntedSessionMn6Bv3Cx9Zl2Kj5Hg8Fd1Sa4",
    "RAY_AUTH_TOKEN": "c0ffee" * 8 + "0123456789abcdef",
    "HTTPS_PROXY": f"http://planter:{PROXY_PASSWORD}@proxy.invalid:3128",
}
ENVIRONMENT = SECRETS | {"HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "token"}
# of the proxy's URL only the password is secret
SOUGHT = (SECRETS | {"HTTPS_PROXY": PROXY_PASSWORD}).values()
EXPERIMENT = """
version: 1
name: planted
model: {{id: {model}, tokenizer: {model}}}
deployments:
  - {{engine: vllm, executable: {program}, hardware: cpu}}
  - {{engine: endpoint, url: "http://127.0.0.1:{port}", api_key_env: PLANTED_KEY, served_model_name: planted}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, requests: 40, warmup: 0s, request_timeout: 20s}}
isolation: shared
"""
IN_A_URL = """
version: 1
name: planted
model: {model}
deployments: {{engine: endpoint, url: "http://u:{key}@127.0.0.1:9/v1?api_key={key}", served_model_name: planted}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, requests: 4, warmup: 0s}}
"""


@dataclass(frozen=True)
class RunningCluster:
    """A cluster of one node. ``folder``: where Ray keeps its logs and sockets."""

    address: str
    folder: Path


@contextmanager
def cluster_with_secrets() -> Iterator[RunningCluster]:
    """A cluster whose processes have all secrets in their environment."""
    command = [sys.executable, "-m", "tests.chaos.cluster_process", "1", "4"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**ENVIRONMENT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())
        children = psutil.Process(process.pid).children(recursive=True)
        command_lines = " ".join(word for child in children for word in child.cmdline())
        (folder,) = set(re.findall(r"/tmp/orch-ray-\w+", command_lines))
        yield RunningCluster(address, Path(folder))
    finally:
        process.communicate()  # closes its input, with which it ends


class CommandLines:
    """The command lines of all processes of this machine, read again and again."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> CommandLines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(path.read_bytes())
                except OSError:
                    continue


@pytest.mark.skipif(not MODEL.exists(), reason="needs the tiny model: make model")
def test_secrets_of_a_cluster_and_of_a_sweep_on_it_are_found_nowhere(tmp_path: Path) -> None:
    program = tmp_path / "program"
    write_echoing_program(program)
    results = str(tmp_path / "results")
    frozen = tmp_path / "plan.json"
    in_a_url = write_experiment(
        tmp_path, IN_A_URL.format(model=MODEL, key=SECRETS["PLANTED_KEY"]), "url.yaml"
    )
    with (
        echoing_endpoint() as port,
        cluster_with_secrets() as cluster,
        CommandLines() as command_lines,
    ):
        file = write_experiment(
            tmp_path, EXPERIMENT.format(model=MODEL, program=program, port=port)
        )
        to_frozen = ("--output", str(frozen), "--format", "json")
        on_cluster = ("--results", results, "--address", cluster.address)
        commands = [
            orchestrator("plan", str(file), *to_frozen, **ENVIRONMENT),
            orchestrator("run", str(frozen), *on_cluster, **ENVIRONMENT),
            orchestrator("plan", str(in_a_url), **ENVIRONMENT),
            orchestrator("results", results, "--format", "json"),
            orchestrator("logs", results),
        ]
        texts = dict(contents(cluster.folder))
    statuses = [command.returncode for command in commands]
    assert statuses == [0, 0, 2, 0, 0], [command.stderr[-2000:] for command in commands]
    texts |= dict(contents(tmp_path / "results"))
    texts |= {str(frozen): frozen.read_bytes()}
    texts |= {f"command line {line[:200]!r}": line for line in command_lines.seen}
    texts |= {
        f"output of {command.args[3]}": (command.stdout + command.stderr).encode()
        for command in commands
    }
    assert any(name.endswith("raylet.out") for name in texts), "Ray's files were not read"
    assert any("tests.chaos" in name for name in texts), "no command line was read"
    logs = [text for name, text in texts.items() if "rank0.log" in name]
    log_of_variables = next(text for text in logs if b"AWS_SECRET_ACCESS_KEY=" in text)
    assert b"AWS_SECRET_ACCESS_KEY=***" in log_of_variables
    found = leaks(texts, SOUGHT)
    assert not found, found[:20]
