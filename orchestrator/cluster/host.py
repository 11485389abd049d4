"""The plain classes behind the actors: one rank's engine on its node, and one load client. No Ray in here.

An actor method is one line that calls these, so that they are tested as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import try_to_load_from_cache

from orchestrator.cluster.base import ClientReport, Ready, Seat, Stopped
from orchestrator.engines import ENGINES
from orchestrator.engines.admin import reset_prefix_cache
from orchestrator.engines.base import Engine, Node
from orchestrator.engines.failures import Phase, classify
from orchestrator.engines.ports import Ports
from orchestrator.engines.process import LOG_NAME, EngineProcess
from orchestrator.engines.readiness import wait_ready
from orchestrator.engines.reaper import reap
from orchestrator.errors import EngineFailure, Failure, OrchestratorError
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.load.priority import lower_niceness
from orchestrator.results.store import Store
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.engine_metrics import Sample, Sampler, read
from orchestrator.telemetry.gpus import await_release, chosen
from orchestrator.telemetry.gpus import gpus as list_gpus

LOG_LIMIT_BYTES = 32 * 2**20
SELFCHECK_SLACK_S = 20.0  # beyond its limit: a host where an engine starts may be slow to start a process


def visible_devices() -> tuple[str, ...]:
    """The GPUs Ray gave this process, sorted: Ray's own order is that of a set."""
    ids = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return tuple(sorted(ids, key=lambda part: (len(part), part)))


class EngineHost:
    """One rank of a replica on this node: its files, its ports, its process."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        lower_niceness(0)  # Ray starts workers at 15, where an engine would come last
        reap()  # what a dead owner left behind, before anything new takes its devices or ports
        self._launch_id = launch_id
        self._gpus = gpus
        self._devices = chosen(visible_devices(), list_gpus()) if gpus else []
        self._workdir = Path(tempfile.mkdtemp(prefix=f"orchestrator-{launch_id}-"))
        self._ports = Ports(np.random.default_rng())
        self._process: EngineProcess | None = None
        self._engine: Engine | None = None
        self._settings: EngineSettings | None = None
        self._node: Node | None = None
        self._key = ""
        self._sampler: Sampler | None = None
        self._phase: Phase = "start"

    def seat(self, node_id: str, address: str) -> Seat:
        """Where this rank sits."""
        devices = visible_devices() if self._gpus else ()
        cores = tuple(sorted(os.sched_getaffinity(0)))
        named = tuple(f"{gpu.name} {gpu.uuid}" for gpu in self._devices)
        log_path = str(self._workdir / LOG_NAME)
        return Seat(node_id, address, socket.gethostname(), devices, cores, os.getpid(), named, log_path)

    def reserve_ports(self, count: int) -> list[int]:
        """Ports that nothing listens on now, from the engines' range."""
        return self._ports.take(count)

    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        """Start the engine's process of this rank; returns its argv."""
        self._engine, self._settings, self._key = ENGINES[settings.engine](), settings, api_key
        self._node = _in_folder(node, str(self._workdir))
        command = self._engine.command(settings, hardware, self._node, api_key)
        self._process = EngineProcess(command, self._workdir, self._launch_id)
        mine = os.sched_getaffinity(0)
        try:
            if node.cores:
                os.sched_setaffinity(0, set(node.cores))  # inherited by the engine, then taken back
            self._process.start()
        finally:
            os.sched_setaffinity(0, mine)
        return command.argv

    def wait_ready(self, timeout_s: float) -> Ready | Failure:
        """Wait until rank 0 serves and is proved to be ours."""
        assert self._engine and self._settings and self._node and self._process
        url = f"http://{self._node.bind}:{self._node.port}"
        try:
            ready = wait_ready(self._engine, self._settings, self._node, url, self._key, self._process, timeout_s)
        except EngineFailure as error:
            return error.failure
        self._phase = "run"
        facts = {"max_model_len": ready.max_model_len} if ready.max_model_len else {}
        return Ready(ready.ready_s, {**ready.reported, **facts, "proofs": " ".join(ready.proofs)}, ready.engine_version)

    def failure(self) -> Failure | None:
        """None while the process lives; else why it ended, by phase and log."""
        if self._process is None or (status := self._process.poll()) is None:
            return None
        return classify(self._phase, self._process.log_tail(), status)

    def between_points(self) -> None:
        """Empty the prefix cache where the engine has a way to."""
        assert self._engine and self._node
        if self._engine.reset_path:
            reset_prefix_cache(f"http://{self._node.bind}:{self._node.port}", self._engine.reset_path, self._key)

    def begin_metrics(self) -> None:
        """Read the engine's /metrics from now on, where it has them."""
        assert self._engine and self._node
        if not self._engine.metrics_path:
            return
        url = f"http://{self._node.bind}:{self._node.port}{self._engine.metrics_path}"
        names = {metric.column: metric.name for metric in self._engine.metrics}
        self._sampler = Sampler(lambda: read(url, names, self._key))
        self._sampler.start()

    def end_metrics(self) -> list[Sample]:
        """What was read since ``begin_metrics``, in order of time."""
        sampler, self._sampler = self._sampler, None
        return sampler.stop() if sampler else []

    def stop(self) -> Stopped:
        """End the process and everything it started; the log comes along."""
        started = time.monotonic()
        left_over, log = 0, b""
        if self._process is not None:
            left_over = len(self._process.stop().left_over)
            with suppress(OSError):
                log = self._process.redact(_end_of(self._process.log_path).decode(errors="replace")).encode()
        shutil.rmtree(self._workdir, ignore_errors=True)
        dirty = await_release({gpu.uuid: gpu.used_bytes for gpu in self._devices}) if self._devices else []
        return Stopped(time.monotonic() - started, left_over, log, tuple(dirty))


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_LIMIT_BYTES))
        return file.read()


def local_tokenizer(name: str | None) -> str | None:
    """The tokenizer as files on this node: a folder, a file, or what the hub's cache holds of a model.

    None where there is none: prompts are then token ids from a range that every vocabulary has, or plain words.
    """
    if name is None or Path(name).exists():
        return name
    cached = try_to_load_from_cache(name, "tokenizer.json") if name.count("/") == 1 else None
    return cached if isinstance(cached, str) else None


def _in_folder(node: Node, workdir: str) -> Node:
    return replace(node, workdir=workdir)


def reach_problem(store: Store) -> str | None:
    """Why rows written on this node would not arrive: the driver's plan is not seen, or nothing can be written."""
    try:
        if store.plan() is None:
            return (
                f"{store.uri} is a folder of the driver's machine that it does not see; "
                "give --results s3://... or a folder that all nodes share"
            )
        store.check_writable()
    except OrchestratorError as error:
        needs = "" if store.is_local else "; every node needs credentials of its own, none are taken along"
        return f"{error}{needs}"
    return None


class ClientHost:
    """One load client: runs its stripe of a point and writes its own rows to the store."""

    def __init__(self) -> None:
        self._all_cores = os.sched_getaffinity(0)
        self._cores = self._all_cores
        self._client: LoadClient | None = None
        self._point: LoadPoint | None = None
        self._writer = ""

    def wall_ns(self) -> int:
        """This host's wall clock: for the offset to the driver's."""
        return time.time_ns()

    def reach_problem(self, store: Store) -> str | None:
        return reach_problem(store)

    def prepare(self, point: LoadPoint, index: int, count: int, avoid_cores: frozenset[int]) -> int:
        """Build the schedule and the bodies; returns entries known."""
        self._cores = (self._all_cores - avoid_cores) or self._all_cores
        point = replace(point, tokenizer=local_tokenizer(point.tokenizer))
        self._point, self._writer = point, f"client{index}"
        self._client = LoadClient(index, count)
        return self._client.prepare(point)

    def run(self, start_wall_ns: int, offset_ns: int, error_ns: int, store: Store | None) -> ClientReport:
        """Load from that instant of this host's wall clock on; rows go to the store, the report comes back."""
        assert self._client and self._point
        os.sched_setaffinity(0, self._cores)  # the calling thread's, and this is the one that loads
        start_ns = time.monotonic_ns() + (start_wall_ns - time.time_ns())
        result = self._client.run(start_ns)
        keys = {
            "measurement_id": self._point.measurement_id,
            "attempt_id": self._point.attempt_id,
            "writer": self._writer,
        }
        tables = {"requests": result.requests, "token_events": result.token_events} if store else {}
        parts = tuple(store.write_part(table, data, **keys) for table, data in tables.items()) if store else ()
        stats = replace(result.stats, clock_offset_ns=offset_ns, clock_error_ns=error_ns)
        return ClientReport(stats, parts, result.requests)

    def selfcheck(self, limit_s: float) -> dict[str, Any]:
        """What this host's client can do, by the program's own command in a process without Ray."""
        lower_niceness(0)  # the child inherits it, and at Ray's 15 its server would be the limit
        argv = [sys.executable, "-m", "orchestrator", "selfcheck", "--limit", f"{limit_s:g}s", "--format", "json"]
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            done = subprocess.run(
                argv, env=environment, capture_output=True, text=True, timeout=limit_s + SELFCHECK_SLACK_S, check=False
            )
            return dict(json.loads(done.stdout))
        except subprocess.TimeoutExpired:
            return {"error": f"it did not end within {limit_s + SELFCHECK_SLACK_S:g} s"}
        except ValueError:
            said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
            return {"error": f"exit status {done.returncode}, it said: {said[0][:200]}"}

    def progress(self) -> Progress:
        """Counters so far, from any thread."""
        return self._client.progress() if self._client else Progress()

    def abort(self) -> None:
        """Stop sending; what is open or not yet sent becomes rows."""
        if self._client:
            self._client.abort()
