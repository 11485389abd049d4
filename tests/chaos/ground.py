"""Where rounds are fought: a Ray cluster whose every process carries a mark, so that of all that
runs on this machine only that is struck, and only that is asked for when nothing may be left.
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

MARK = "CHAOS_GROUND"
NODES, CPUS = 3, 4
START_LIMIT_S, ANSWER_LIMIT_S = 600.0, 180.0  # of a machine that others use
RAY = re.compile(
    r"raylet/raylet|gcs_server|ray/dashboard|ray/_private|ray/autoscaler|ray::(IDLE|DashboardAgent"
    r"|RuntimeEnvAgent)|cluster_process"
)
# a dead node is seen within seconds, a GCS that is gone for good after 15: Ray's own limits are 14
# and 60
QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "15",
}
TITLES = {
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


class Ground:
    """The cluster, made when it is first asked for, and again after something that no cluster
    survives.
    """

    def __init__(self, more: Mapping[str, str] = QUICK) -> None:
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        self.mark, self.scratch = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="chaos-"))
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """Of every process of the ground. Ray's limits hold for drivers, too."""
        kept = {
            MARK: self.mark,
            "TMPDIR": str(self.scratch),
            "SPT_NOENV": "1",
            "PYTHONPATH": str(ROOT),
        }
        return kept | dict(self._more)

    def stand(self) -> None:
        """See that all nodes are there."""
        if self._process is not None and (not self.mend() or self.used().get("nodes") != NODES):
            self.fall()
        if self._process is None:
            command = [sys.executable, "-m", "tests.chaos.cluster_process", str(NODES), str(CPUS)]
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment(**self.environment), stdin=-1, stdout=-1
            )
            self.address = self._answer(START_LIMIT_S) or ""
            assert self.address, "the cluster did not start"

    def mend(self) -> bool:
        """Replace nodes that died; whether the cluster still answers."""
        return self._ask("mend", ANSWER_LIMIT_S) is not None

    def fall(self) -> None:
        """End whatever carries the mark."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        told = " ".join(said for _, said in self._marked())
        while found := self.processes():
            for process in found:
                kill(process, signal.SIGKILL)
            psutil.wait_procs(found, 5)
        # its own folder, and nobody else's: tests of others run beside these
        for folder in {*re.findall(r"/tmp/orch-ray-\w+", told), *self.scratch.iterdir()}:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.fall()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def used(self) -> dict[str, Any]:
        return self._ask("used", ANSWER_LIMIT_S) or {}

    def _ask(self, what: str, limit_s: float) -> Any:
        try:
            self._process.stdin.write(what.encode() + b"\n")
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
        """Those that carry the mark and run, and their command lines."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append((process, " ".join(process.cmdline())))
            except psutil.Error:
                continue
        return found

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Those that carry the mark and run, with this in their command line."""
        return [process for process, said in self._marked() if title in said]

    def victims(self, what: str) -> list[psutil.Process]:
        """In the order of their birth; of the raylets not the head's, which takes the whole cluster
        with it.
        """
        found = sorted(self.processes(TITLES[what]), key=lambda one: one.create_time())
        return found[1:] if what == "raylet" else found

    def assert_nothing_left(self, launches: Collection[str], limit_s: float = 20.0) -> None:
        """No process but Ray's own, and nothing that Ray or a lock holds for anybody."""
        wait_for(lambda: not self.strangers(), limit_s, f"processes are left: {self.strangers()}")
        wait_for(
            lambda: not any(map(self.used().get, ("actors", "groups", "cpus"))),
            limit_s,
            f"Ray: {self.used()}",
        )
        held = [
            path.name
            for path in node_path("locks").glob("*.lock")
            if path.stem in launches and is_locked(path)
        ]
        assert not held, "locks are held"
        assert not [one for one in living() if one.launch in launches or one.client], (
            "leases are held"
        )
        assert not self.listening(), "somebody listens where engines do"

    def listening(self) -> list[tuple[int, int]]:
        """Pids and ports of its processes, Ray's own included, that listen on ports of engines."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                ports = [
                    one.laddr.port
                    for one in process.net_connections("tcp")
                    if one.status == psutil.CONN_LISTEN
                ]
                found += [(process.pid, port) for port in ports if FIRST_PORT <= port <= LAST_PORT]
        return found

    def folders(self, launches: Collection[str]) -> list[Path]:
        """Work folders of these launches, wherever they lie."""
        there = [*self.scratch.iterdir(), *node_path("").glob("*/*")]
        return [
            path for path in there if path.is_dir() and any(one in path.name for one in launches)
        ]

    def strangers(self) -> list[str]:
        """Command lines of what is none of Ray's."""
        return [said[:150] for _, said in self._marked() if said and not RAY.search(said)]


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on a file. It is not made, and not removed."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def kill(process: psutil.Process, number: int) -> bool:
    """Whether it was there to be hit."""
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True
