"""Real engines for tests: they are started with EngineProcess, waited for until they are ready, and
asked over plain HTTP.
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
from orchestrator.node.shared_memory import SharedSegment, mapped
from orchestrator.spec.settings import EngineSettings, Hardware

ROOT = Path(__file__).parents[2]
CPU = Hardware(name="cpu")
INSTALL_LIMIT_S = 1200
UNSUPPORTED = 4  # status of scripts/install_engines.py
# a tool that a model may call
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
# vLLM's kernels for 4-bit weights on CPUs are compiled for AVX512 alone
HAS_AVX512 = Path("/proc/cpuinfo").exists() and "avx512f" in Path("/proc/cpuinfo").read_text()
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


def vision_model(folder: Path) -> Path:
    """A tiny model that sees, made in ``folder``. Without Pillow in the environment of transformers
    the test is skipped.
    """
    python = home_of("transformers") / "bin" / "python"
    if subprocess.run([python, "-c", "import PIL"], capture_output=True).returncode != 0:
        pytest.skip("this environment has no Pillow: install it anew (scripts/install_engines.py)")
    script("make_tiny_model").make(folder / "text")
    maker = ROOT / "tests/integration/tiny_vision_model.py"
    subprocess.run([python, maker, folder / "text", folder / "vision"], check=True)
    return folder / "vision"


def home_of(engine: str) -> Path:
    """The environment of a real engine; the test is skipped where there is none.

    An installation that is under way is waited for, and one that was cut off is finished.
    """
    home = ROOT / ".engines" / engine
    if home.exists() and not (home / "engine.json").exists():
        installer = str(ROOT / "scripts" / "install_engines.py")
        completed = subprocess.run(
            [sys.executable, installer, engine, "--into", str(home)],
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
        )
        if completed.returncode == UNSUPPORTED:
            pytest.skip(completed.stderr.strip())
        assert completed.returncode == 0, completed.stderr
    if not home.exists():
        pytest.skip(
            f"{engine} is not installed: python scripts/install_engines.py {engine} --into "
            f".engines/{engine}"
        )
    return home


# without it an idle SGLang takes a whole core
SGLANG_IDLE = {"--sleep-on-idle": True}


def settings(engine: str, **given: Any) -> EngineSettings:
    """Settings of an installed engine for the tiny model, with the ``given`` ones beside them."""
    defaults: dict[str, Any] = {
        "engine": engine,
        "executable": str(home_of(engine)),
        "model": "tiny",
        "dtype": "float32",
    }
    if engine == "sglang":
        defaults["extra_args"] = SGLANG_IDLE
    return EngineSettings.model_validate(defaults | given)


@dataclass
class Running:
    """A started engine: the processes of its ranks, and requests to it."""

    engine: Engine
    settings: EngineSettings
    node: Node
    key: str
    processes: list[EngineProcess] = field(default_factory=list)
    ready: Ready | None = None
    # shared memory that it was seen to use
    segments: set[SharedSegment] = field(default_factory=set)

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
        """Notes the shared memory that the engine uses now: after a test has killed it, that can no
        longer be found out.
        """
        processes = ownership.tagged({ownership.LAUNCH: self.node.launch_id})
        self.segments |= mapped(process.pid for process, _ in processes)

    def ask(
        self, method: str, path: str, body: object = None, key: str | None = "ours"
    ) -> tuple[int, str]:
        """Status and body of an answer. ``key`` is ``ours``, another key, or None for none."""
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
    settings: EngineSettings,
    folder: Path,
    model: Path,
    cores: tuple[tuple[int, ...], ...] = (CORES[:1],),
    port: int | None = None,
) -> Iterator[Running]:
    """Starts a rank for each entry of ``cores``, which are its CPU cores, and stops them all;
    nothing of them may be left.
    """
    engine = ENGINES[settings.engine]
    launch_id = f"test-{secrets.token_hex(6)}"
    lease = Lease(launch_id)
    http_port, master_port = lease.take_ports(2, np.random.default_rng())
    node = Node(
        port=port or http_port,
        master_port=master_port,
        workdir=str(folder),
        launch_id=launch_id,
        model_path=str(model),
    )
    started = Running(engine, settings, node, secrets.token_hex(16))
    try:
        for rank, rank_cores in enumerate(cores):
            workdir = folder / str(rank)
            rank_node = replace(node, rank=rank, cores=rank_cores, workdir=str(workdir))
            command = engine.command(settings, CPU, rank_node, started.key)
            process = EngineProcess(command, workdir, launch_id)
            started.processes.append(process)
            process.start()
        yield started
    finally:
        started.look()
        for process in started.processes:
            process.stop()
        lease.release()
        left = [segment.path for segment in started.segments if Path(segment.path).exists()]
        assert not left, "its shared memory is left"
        assert list(ownership.tagged({ownership.LAUNCH: launch_id})) == [], (
            "processes of the engine are left"
        )


def died(process: EngineProcess, limit_s: float) -> bool:
    """Waits until the engine has ended. False if it still runs after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return process.poll() is not None
