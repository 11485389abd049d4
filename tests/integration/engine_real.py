"""Real engines for tests: the tiny model, a start through EngineProcess and readiness, one plain
HTTP request.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from orchestrator.engines.command import Node
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ENGINES
from orchestrator.node import ownership
from orchestrator.node.leases import Lease
from orchestrator.node.process import EngineProcess
from orchestrator.node.readiness import Expected, Ready, wait_ready
from orchestrator.node.shared_memory import Segment, mapped
from orchestrator.spec.settings import EngineSettings, Hardware

ROOT = Path(__file__).parents[2]
CPU = Hardware(name="cpu")
INSTALL_LIMIT_S = 1200
UNSUPPORTED = 4  # status of scripts/install_engines.py
CORES = tuple(sorted(os.sched_getaffinity(0))) if sys.platform == "linux" else ()


def script(name: str, folder: str = "scripts") -> ModuleType:
    """A file of scripts/, or of another folder of the repository, as a module."""
    spec = util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def home_of(engine: str) -> Path:
    """The environment of a real engine. Waits for one that is being installed, finishes one that
    was cut off, and skips the test where there is none.
    """
    home = ROOT / ".engines" / engine
    if home.exists() and not (home / "engine.json").exists():
        argv = [
            sys.executable,
            str(ROOT / "scripts" / "install_engines.py"),
            engine,
            "--into",
            str(home),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_LIMIT_S)
        if done.returncode == UNSUPPORTED:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
    if not home.exists():
        pytest.skip(
            f"{engine} is not installed: python scripts/install_engines.py {engine} --into "
            f".engines/{engine}"
        )
    return home


def settings(engine: str, **given: Any) -> EngineSettings:
    usual = {
        "engine": engine,
        "executable": str(home_of(engine)),
        "model": "tiny",
        "dtype": "float32",
    }
    return EngineSettings.model_validate(usual | given)


@dataclass
class Running:
    """A started engine: every rank's process, and how to talk to it."""

    engine: Engine
    settings: EngineSettings
    node: Node
    key: str
    processes: list[EngineProcess] = field(default_factory=list)
    ready: Ready | None = None
    segments: set[Segment] = field(default_factory=set)  # shared memory that it was seen to use

    @property
    def name(self) -> str:
        return self.engine.served_name(self.settings, self.node)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.node.port}"

    def wait(self, timeout_s: float = 300.0) -> Ready:
        expected = Expected(
            self.engine, self.settings, self.node, self.base_url, self.key, self.processes[0]
        )
        ready = wait_ready(expected, timeout_s)
        self.look()
        return ready

    def look(self) -> None:
        """Note its shared memory while it lives: of an engine that a test kills nobody can tell
        later.
        """
        ours = ownership.tagged({ownership.LAUNCH: self.node.launch_id})
        self.segments |= mapped(process.pid for process, _ in ours)

    def ask(
        self, method: str, path: str, body: object = None, key: str | None = "ours"
    ) -> tuple[int, str]:
        """Status and whole body of one request. ``key``: ``ours``, None or another one."""
        connection = http.client.HTTPConnection("127.0.0.1", self.node.port, timeout=120)
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {self.key if key == 'ours' else key}"
        try:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, headers
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Events of a streamed answer, without the end marker."""
        status, text = self.ask("POST", path, {"model": self.name, "stream": True} | body)
        assert status == 200, text
        lines = [
            line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")
        ]
        return [json.loads(line) for line in lines if line != "[DONE]"]


@contextmanager
def running(
    given: EngineSettings,
    folder: Path,
    model: Path,
    cores: tuple[tuple[int, ...], ...] = ((CORES[:1]),),
    port: int | None = None,
) -> Iterator[Running]:
    """Starts every rank (one per entry of ``cores``) and stops them; nothing of them may be left."""
    made, launch_id = ENGINES[given.engine], f"test-{secrets.token_hex(6)}"
    lease = Lease(launch_id)
    http_port, master_port = lease.take_ports(2, np.random.default_rng())
    node = Node(
        port=port or http_port,
        master_port=master_port,
        workdir=str(folder),
        launch_id=launch_id,
        model_path=str(model),
    )
    found = Running(made, given, node, secrets.token_hex(16))
    try:
        for rank, group in enumerate(cores):
            own = replace(node, rank=rank, cores=group, workdir=str(folder / str(rank)))
            process = EngineProcess(
                made.command(given, CPU, own, found.key), Path(own.workdir), launch_id
            )
            found.processes.append(process)
            process.start()
        yield found
    finally:
        found.look()
        for process in found.processes:
            process.stop()
        lease.release()
        assert not [segment.path for segment in found.segments if Path(segment.path).exists()], (
            "its shared memory is left"
        )
        assert list(ownership.tagged({ownership.LAUNCH: launch_id})) == [], (
            "processes of the engine are left"
        )


def died(process: EngineProcess, limit_s: float) -> bool:
    """Waits until the engine has ended."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return process.poll() is not None
