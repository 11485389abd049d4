"""A Ray cluster whose every process carries a mark in its environment.

By the mark the chaos tests find the processes that they kill, and those that are left over, among
everything else that runs on this machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from orchestrator.base.folders import node_path
from orchestrator.cluster.ray.actors import RayClientHost, RayEngineHost
from orchestrator.node.leases import FIRST_PORT, LAST_PORT, living
from tests.harness import ROOT, environment, wait_for

MARK = "CHAOS_CLUSTER"
NODES, CPUS = 3, 4
START_LIMIT_S, ANSWER_LIMIT_S = 600.0, 180.0  # long, since others use this machine
RAY_COMMANDS = re.compile(
    r"raylet/raylet|gcs_server|ray/dashboard|ray/_private|ray/autoscaler|ray::(IDLE|DashboardAgent"
    r"|RuntimeEnvAgent)|cluster_process"
)
# Ray notices a dead node within seconds, not 14, and a GCS that is gone for good after 15, not 60.
QUICK_LIMITS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
TITLES = {  # role -> part of the command lines of its processes
    "engine": "-m orchestrator.emulator",
    "vllm": "/vllm serve",
    "vllm's core": "VLLM::EngineCore",
    "agent": f"ray::{RayEngineHost.__name__}",
    "client": f"ray::{RayClientHost.__name__}",
    "guard": "orchestrator.node.guard",
    "gcs": "gcs_server",
    "raylet": "raylet/raylet",
    "driver": "-m orchestrator run",
}


class MarkedCluster:
    """The cluster. ``ensure_complete`` starts it, and starts another after a blow that no cluster
    survives.
    """

    def __init__(self, variables: Mapping[str, str] = QUICK_LIMITS) -> None:
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self.mark = uuid.uuid4().hex
        self.scratch = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of every process of the cluster and of drivers, for which Ray's limits hold,
        too.
        """
        marked = {
            MARK: self.mark,
            "TMPDIR": str(self.scratch),
            "SPT_NOENV": "1",
            "PYTHONPATH": str(ROOT),
        }
        return marked | dict(self._variables)

    def ensure_complete(self) -> None:
        """Start the cluster, or replace its dead nodes; another cluster if some are still missing."""
        if self._process is not None:
            answers = self.replace_dead_nodes()
            if not answers or self.ray_usage().get("nodes") != NODES:
                self.kill_all()
        if self._process is None:
            command = [sys.executable, "-m", "tests.chaos.cluster_process", str(NODES), str(CPUS)]
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**self.environment), stdin=-1, stdout=-1
            )
            self.address = self._answer(START_LIMIT_S) or ""
            assert self.address, "the cluster did not start"

    def replace_dead_nodes(self) -> bool:
        """Replace nodes that died. False if the cluster no longer answers."""
        return self._ask("replace", ANSWER_LIMIT_S) is not None

    def kill_all(self) -> None:
        """Kill every process that carries the mark, and remove its files."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        command_lines = " ".join(command_line for _, command_line in self._marked())
        while processes := self.processes():
            for process in processes:
                kill(process, signal.SIGKILL)
            psutil.wait_procs(processes, 5)
        # Ray's folder of this cluster only: other tests run beside these
        ray_folders = set(re.findall(r"/tmp/orch-ray-\w+", command_lines))
        for folder in {*ray_folders, *self.scratch.iterdir()}:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.kill_all()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def ray_usage(self) -> dict[str, Any]:
        """What Ray holds for anybody (see cluster_process.py); {} if the cluster does not answer."""
        return self._ask("usage", ANSWER_LIMIT_S) or {}

    def _ask(self, command: str, limit_s: float) -> Any:
        try:
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Any:
        if not select.select([self._process.stdout.fileno()], [], [], limit_s)[0]:
            return None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def _marked(self) -> list[tuple[psutil.Process, str]]:
        """Running processes that carry the mark, and their command lines."""
        marked = []
        for process in psutil.process_iter():
            try:
                has_mark = process.environ().get(MARK) == self.mark
                if has_mark and process.status() != psutil.STATUS_ZOMBIE:
                    marked.append((process, " ".join(process.cmdline())))
            except psutil.Error:
                continue
        return marked

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Running processes that carry the mark and have ``title`` in their command line."""
        return [process for process, command_line in self._marked() if title in command_line]

    def processes_of(self, role: str) -> list[psutil.Process]:
        """The processes of a role of TITLES, the oldest first.

        The raylet of the head node is left out: its death would end the whole cluster.
        """
        processes = sorted(self.processes(TITLES[role]), key=lambda process: process.create_time())
        return processes[1:] if role == "raylet" else processes

    def assert_nothing_left(self, launches: Collection[str], limit_s: float = 20.0) -> None:
        """No process runs but Ray's own, Ray holds nothing for anybody, and nobody holds a lock."""
        wait_for(
            lambda: not self.commands_beside_ray(),
            limit_s,
            f"processes are left: {self.commands_beside_ray()}",
        )
        wait_for(
            lambda: not any(map(self.ray_usage().get, ("actors", "groups", "cpus"))),
            limit_s,
            f"Ray: {self.ray_usage()}",
        )
        held_locks = [
            path.name
            for path in node_path("locks").glob("*.lock")
            if path.stem in launches and is_locked(path)
        ]
        assert not held_locks
        held_leases = [lease for lease in living() if lease.launch in launches or lease.client]
        assert not held_leases
        assert not self.listening_on_engine_ports()

    def listening_on_engine_ports(self) -> list[tuple[int, int]]:
        """Pids and ports of its processes, Ray's own included, that listen on ports of engines."""
        listening = []
        for process in self.processes():
            with suppress(psutil.Error):
                ports = [
                    connection.laddr.port
                    for connection in process.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN
                ]
                listening += [
                    (process.pid, port) for port in ports if FIRST_PORT <= port <= LAST_PORT
                ]
        return listening

    def work_folders(self, launches: Collection[str]) -> list[Path]:
        """Work folders of these launches, wherever they lie."""
        return [
            path
            for path in (*self.scratch.iterdir(), *node_path("").glob("*/*"))
            if path.is_dir() and any(launch_id in path.name for launch_id in launches)
        ]

    def commands_beside_ray(self) -> list[str]:
        """The beginnings of command lines of its processes that are not Ray's own."""
        command_lines = [command_line for _, command_line in self._marked()]
        return [text[:150] for text in command_lines if text and not RAY_COMMANDS.search(text)]


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on a file. The file is neither made nor removed."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def kill(process: psutil.Process, number: int) -> bool:
    """Send a signal. False if the process is gone."""
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True
