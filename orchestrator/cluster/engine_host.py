"""One rank's engine on its node: its files, its ports, its process. No Ray in here."""

import ctypes
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.base.errors import EngineFailure, Failure
from orchestrator.base.folders import node_folder
from orchestrator.base.http import HttpResponse, ask
from orchestrator.base.redaction import redact, secrets_of
from orchestrator.base.retry import RetryPolicy, retried
from orchestrator.cluster import machine_facts
from orchestrator.cluster.base import Allocation, DeadLog, Stopped
from orchestrator.cluster.calls import in_thread
from orchestrator.cluster.model_downloads import downloaded_bytes
from orchestrator.engines.command import Node
from orchestrator.engines.container import image_query, is_docker
from orchestrator.engines.networks import NOT_SAID, of_kv_caches
from orchestrator.engines.registry import program_of
from orchestrator.load.point import HostLoad
from orchestrator.node.failures import EnginePhase, LastWords, classify
from orchestrator.node.leases import Holding, Lease, Wish, living
from orchestrator.node.process import LOG_NAME, EngineProcess
from orchestrator.node.readiness import LOG_LINES, Expected, Ready, wait_ready
from orchestrator.node.reaper import dead_work, output_of, processes_of, reap
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import PlannedSettings
from orchestrator.telemetry.amd import amd_group
from orchestrator.telemetry.core_wait import CoreUse, core_use, core_wait
from orchestrator.telemetry.engine_metrics import INTERVAL_S, READ_LIMIT_S, Sample, read
from orchestrator.telemetry.environment import host_environment
from orchestrator.telemetry.gpu_sample import GpuGroup
from orchestrator.telemetry.gpus import await_release, chosen
from orchestrator.telemetry.gpus import gpus as list_gpus
from orchestrator.telemetry.host_cpu import Snapshot, foreign, snapshot
from orchestrator.telemetry.node_sampler import NodeSampler, NodeTelemetry
from orchestrator.telemetry.nvidia import NvidiaGpus
from orchestrator.telemetry.processes import SweepProcesses
from orchestrator.telemetry.sampler import Sampler

# What is stored of a log: its start, which names sizes, and its end.
LOG_HEAD_BYTES, LOG_TAIL_BYTES = 2**20, 31 * 2**20
LOG_MOST_BYTES = 4 * (LOG_HEAD_BYTES + LOG_TAIL_BYTES)  # on the node's disk while the engine runs
KEEP_S = 10.0  # how often leases are refreshed and the log is trimmed
ORIGIN = "origin"  # file in a work folder: which sweep and rank it belongs to
MOST_DEAD_LOGS = 4  # fetched from one node per launch
CACHE_LIMIT_S = 0.5  # for a look into the hub cache
RESET_LIMIT_S = 10.0
RESET = RetryPolicy(tries=3, first_pause_s=0.5, longest_pause_s=0.5)


def assigned_gpus() -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES gives this process (HIP_VISIBLE_DEVICES on AMD); -1 means
    none.

    Sorted, because Ray lists them in the order of a set.
    """
    cuda_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    hip_devices = os.environ.get("HIP_VISIBLE_DEVICES")
    names = (cuda_devices or hip_devices or "").split(",")
    gpus = [name for name in names if name.strip() and not name.strip().startswith("-")]
    return tuple(sorted(gpus, key=lambda name: (len(name), name)))


def amd_gpus(devices: Sequence[str]) -> list[str]:
    """The names under which AMD's GPUs are leased; empty for other devices.

    NVML does not list them, so they are named after the indices that Ray gives (``devices``). HIP
    counts only what ROCR_VISIBLE_DEVICES leaves, which may be another part of the host for another
    Ray.
    """
    if not os.environ.get("HIP_VISIBLE_DEVICES"):
        return []
    names = os.environ.get("ROCR_VISIBLE_DEVICES", "").split(",")
    visible = [name.strip() for name in names if name.strip()]
    gpus = []
    for index in devices:
        name = visible[int(index)] if int(index) < len(visible) else index
        gpus.append(f"amd-{name}")
    return gpus


class EngineHost:
    """The agent of a placement: runs one rank of a replica on this node. ``devices``: the GPUs it
    may use.
    """

    def __init__(
        self, launch_id: str, node_id: str, address: str, devices: tuple[str, ...] = ()
    ) -> None:
        reap()  # end what a dead owner left running before its devices and ports are used again
        self._launch_id = launch_id
        self._devices = chosen(devices, list_gpus()) if devices else []
        self._workdir = Path(tempfile.mkdtemp(prefix=f"{launch_id}-", dir=node_folder("work")))
        self._lease = Lease(launch_id)
        self._sweep = ""  # that holds the lease
        # whether the launch has waited for this host since the memory of the GPUs was read
        self._has_waited = False
        self._has_stopped = threading.Event()
        self._process: EngineProcess | None = None
        self._last_words: LastWords | None = None
        self._server: Expected | None = None  # what was started
        self._ready: Future[Ready | Failure] | None = None
        self._counting: Future[int] | None = None
        # bytes of the model in this node's hub cache, and in the caches of other ranks' nodes
        self._downloaded_here = 0
        self._downloaded_elsewhere = 0
        self._metrics_sampler: Sampler[Sample] | None = None
        self._node_sampler: NodeSampler | None = None
        # CPU use and leases of this host when the point began
        self._cpu_at_begin: Snapshot | None = None
        self._cores_at_begin: CoreUse | None = None
        self._leases_at_begin: list[Holding] = []
        self._phase = EnginePhase.START
        self._stopped: Stopped | None = None
        self.allocation = Allocation(
            node_id,
            address,
            socket.gethostname(),
            devices,
            tuple(sorted(os.sched_getaffinity(0))),
            os.getpid(),
            tuple(f"{gpu.name} {gpu.uuid}" for gpu in self._devices),
            str(self._workdir / LOG_NAME),
        )

    def lease(self, wish: Wish) -> tuple[int, ...]:
        """Leases this host for the launch, its GPUs, and as many of its cores as are wished. Returns
        those cores. The driver calls this every second while the launch waits.

        Raises Occupied when others hold the host or have waited for longer, PlacementError.
        """
        self._sweep = wish.owner.sweep
        cores = self._lease.take(self._with_gpus(wish), self.allocation.cores)
        if self._has_waited and self._devices:
            # read again, because engines of others still used their memory the first time
            self._devices = chosen(self.allocation.devices, list_gpus())
        self._has_waited = False
        return cores

    def queue(self, wish: Wish, since_ns: int = 0) -> int:
        """Puts the launch in line for this host (``Lease.queue``). ``lease`` succeeds when it is its
        turn.
        """
        self._has_waited = True
        return self._lease.queue(self._with_gpus(wish), since_ns)

    def put_back(self) -> None:
        """Undoes ``lease``, because the launch did not get its other hosts."""
        self._lease.put_back()

    def _with_gpus(self, wish: Wish) -> Wish:
        """The wish with this agent's GPUs: by UUID, or as MIG devices or AMD's GPUs are named."""
        uuids = [gpu.uuid for gpu in self._devices]
        # NVML does not list parts of a GPU
        parts = [device for device in self.allocation.devices if not device.isdecimal()]
        gpus = uuids or parts or amd_gpus(self.allocation.devices)
        return replace(wish, gpus=tuple(gpus))

    def dead_logs(self) -> list[DeadLog]:
        """Logs left on this node by agents of this sweep that died before they returned them, at
        most MOST_DEAD_LOGS.
        """
        logs: list[DeadLog] = []
        # an agent that is ending releases its launch's lock first and its lease last
        alive = {holding.launch for holding in living()}
        for work in dead_work(node_folder("locks"), node_folder("work")):
            launch = work.name.rpartition("-")[0]
            with suppress(OSError, ValueError):
                sweep, rank = (work / ORIGIN).read_text().split()
                if sweep != self._sweep or launch in alive:
                    continue
                log = stored_log(work / LOG_NAME).decode(errors="replace")
                log = redact(log, secrets_of(os.environ))
                logs.append(DeadLog(work.name, f"{launch}/rank{rank}.log", log.encode()))
            if len(logs) == MOST_DEAD_LOGS:
                break
        return logs

    def drop_dead(self, folder: str) -> None:
        """Removes the work folder of a dead launch, once its log is stored."""
        shutil.rmtree(node_folder("work") / Path(folder).name, ignore_errors=True)

    def reserve_ports(self, count: int) -> list[int]:
        """Free ports from the engines' range."""
        return self._lease.take_ports(count, np.random.default_rng())

    def start(
        self, settings: PlannedSettings, hardware: Hardware, node: Node, api_key: str
    ) -> tuple[str, ...]:
        """Starts the engine. Returns its argv."""
        engine = program_of(settings.engine)
        node = replace(node, workdir=str(self._workdir))
        command = engine.command(settings, hardware, node, api_key)
        self._process = EngineProcess(command, self._workdir, self._launch_id)
        self._last_words = LastWords(engine.log)
        self._server = Expected(
            engine, settings, node, f"http://{node.bind}:{node.port}", api_key, self._process
        )
        own_cores = os.sched_getaffinity(0)
        try:
            if node.cores:
                os.sched_setaffinity(0, set(node.cores))  # the engine inherits it
            (self._workdir / ORIGIN).write_text(f"{self._sweep} {node.rank}")
            self._process.start()
        finally:
            os.sched_setaffinity(0, own_cores)
        threading.Thread(target=self._keep_files, args=(self._process,), daemon=True).start()
        return command.argv

    def _keep_files(self, process: EngineProcess) -> None:
        """Until the engine is stopped, keeps its files from looking old, so that a cleaner of /tmp
        does not remove them, and its log from filling the disk.
        """
        while not self._has_stopped.wait(KEEP_S):
            with suppress(OSError):
                self._lease.touch()
                process.touch()
                free_middle(process.log_path, process.log_bytes_at_ready + LOG_HEAD_BYTES)

    def begin_ready(self, timeout_s: float) -> None:
        """Begins to wait, in a thread, until rank 0 serves. ``poll_ready`` returns the outcome."""
        self._ready = in_thread(self._wait_ready, timeout_s)

    def poll_ready(self, wait_s: float) -> Ready | Failure | None:
        """Ready if the engine serves, or a Failure that says why it never will. None where that is
        not decided within ``wait_s``.
        """
        assert self._ready
        try:
            return self._ready.result(wait_s)
        except TimeoutError:
            return None

    def _wait_ready(self, timeout_s: float) -> Ready | Failure:
        assert self._server
        try:
            ready = wait_ready(self._server, timeout_s, downloaded=self._downloaded_everywhere)
        except EngineFailure as error:
            return error.failure
        self._phase = EnginePhase.SERVING
        return ready

    def _downloaded_everywhere(self) -> int:
        return self.downloaded() + self._downloaded_elsewhere

    def downloaded(self) -> int:
        """Bytes of the model in this node's hub cache: the last known number, where a cache on a file
        server does not answer in time.
        """
        assert self._server
        if self._counting is None or self._counting.done():
            self._counting = in_thread(downloaded_bytes, self._server.settings, self._server.node)
        with suppress(TimeoutError):
            self._downloaded_here = self._counting.result(CACHE_LIMIT_S)
        return self._downloaded_here

    def hear_downloaded(self, elsewhere: int) -> None:
        """Notes how many bytes of the model the nodes of other ranks have. Rank 0 waits for those
        ranks, and time in which these bytes increase does not count.
        """
        self._downloaded_elsewhere = elsewhere

    def saying(self) -> str:
        """The last line of the engine's log that is not empty."""
        lines = self._process.log_tail(10).splitlines() if self._process else []
        for line in reversed(lines):
            if line.strip():
                return line.strip()
        return ""

    def kv_transport(self) -> str:
        """The transport of KV caches between this role and the other. The log names it once a cache
        has travelled.
        """
        if self._process is None:
            return NOT_SAID
        return of_kv_caches(self._process.log_tail(LOG_LINES))

    def failure(self) -> Failure | None:
        """Why the engine ended, or why it is about to end according to its log. None while it lives."""
        if self._process is None or self._last_words is None:
            return None
        status = self._process.poll()
        if status is None and not self._last_words.spoken(self._phase, self._process.new_lines()):
            return None
        assert self._server
        return classify(
            self._server.engine.log, self._phase, self._process.log_since_ready(), status
        )

    def empty_cache(self) -> bool:
        """Empties the prefix cache. Returns whether the engine did so; it may refuse while a request
        still holds blocks.
        """
        assert self._server
        if self._server.engine.reset_path is None:
            return False
        url = self._server.base_url + self._server.engine.reset_path
        api_key = self._server.api_key
        answer = retried(
            lambda: ask(url, "POST", api_key, RESET_LIMIT_S), RESET, is_refused=_is_refused_for_now
        )
        return _is_reset(answer)

    def metrics_url(self) -> str | None:
        """Where this rank serves /metrics; None if it does not."""
        assert self._server
        engine = self._server.engine
        node = self._server.node
        if not engine.metrics_path:
            return None
        if node.rank and not engine.metrics_on_every_rank(self._server.settings):
            return None
        return f"http://{node.bind}:{node.http_port}{engine.metrics_path}"

    def begin_metrics(self, urls_of_other_ranks: Sequence[str] = ()) -> None:
        """Reads the engine's /metrics from now on, if it has any, together with these pages."""
        self.end_metrics()  # of a point that was cut short
        read_metrics = self._metrics_reader(urls_of_other_ranks)
        if read_metrics is not None:
            self._metrics_sampler = Sampler(read_metrics, INTERVAL_S, "engine-metrics")
            self._metrics_sampler.start_with_sample()

    def _metrics_reader(
        self, urls_of_other_ranks: Sequence[str] = ()
    ) -> Callable[[], Sample | None] | None:
        """Reads this rank's /metrics once, together with these pages; None if it has none."""
        assert self._server
        url = self.metrics_url()
        if url is None:
            return None
        urls = (url, *urls_of_other_ranks)
        return partial(read, urls, self._server.engine.metrics, self._server.api_key)

    def has_work(self) -> bool:
        """Whether this rank's /metrics say that it has running or waiting requests."""
        read_metrics = self._metrics_reader()
        sample = read_metrics() if read_metrics is not None else None
        if sample is None:
            return False
        return sample.values.get("running", 0.0) + sample.values.get("waiting", 0.0) > 0

    def end_metrics(self) -> list[Sample]:
        """Stops reading /metrics. Returns the samples since ``begin_metrics``, in order of time."""
        sampler = self._metrics_sampler
        self._metrics_sampler = None
        # the reading under way, and the last one
        return sampler.stop(limit_s=3 * READ_LIMIT_S) if sampler else []

    def environment(self) -> dict[str, Any]:
        """What this host is, as found: kernel, CPU, driver, its GPUs of this launch, and ``image``,
        the digest of the engine's image.
        """
        uuids = [gpu.uuid for gpu in self._devices] or amd_gpus(self.allocation.devices)
        environment = host_environment(uuids)
        if self._server is not None and self._server.settings.image is not None:
            environment["image"] = image_digest(self._server.settings)
        return environment

    def host_facts(self) -> dict[str, Any]:
        """The facts of this host that ``doctor`` judges, without those of engines and models."""
        return machine_facts.facts(())

    def wall_ns(self) -> int:
        """This host's wall clock, in Unix nanoseconds."""
        return time.time_ns()

    def begin_telemetry(self, ours: Collection[int], watches_host: bool) -> None:
        """Samples this agent's GPUs from now on and, if it ``watches_host``, the host.

        ``ours``: pids of this sweep's driver and clients on this host.
        """
        self.end_telemetry()  # of a point that was cut short
        find_processes = partial(self._sweep_processes, frozenset(ours))
        self._node_sampler = NodeSampler(self._gpu_groups(), find_processes, watches_host)
        self._node_sampler.start()

    def _gpu_groups(self) -> list[GpuGroup]:
        groups: list[GpuGroup] = []
        if self._devices:
            groups.append(NvidiaGpus([gpu.uuid for gpu in self._devices]))
        of_amd = amd_group(amd_gpus(self.allocation.devices))
        if of_amd is not None:
            groups.append(of_amd)
        return groups

    def _sweep_processes(self, ours: Collection[int]) -> SweepProcesses:
        in_docker = self._server is not None and is_docker(self._server.settings)
        launch_pids = processes_of({self._launch_id}, in_docker)
        other_launches = self._own_launches(living()) - {self._launch_id}
        other_pids = {*ours, os.getpid()}
        if other_launches:
            other_pids |= processes_of(other_launches, in_docker)
        return SweepProcesses(launch_pids, other_pids)

    def end_telemetry(self) -> NodeTelemetry:
        """Ends ``begin_telemetry`` and returns what was sampled since."""
        sampler = self._node_sampler
        self._node_sampler = None
        return sampler.stop() if sampler is not None else NodeTelemetry()

    def begin_host(self) -> None:
        """Remembers this host's CPU use and leases, for ``end_host``."""
        self._cpu_at_begin = snapshot()
        self._cores_at_begin = core_use(self._launch_processes())
        self._leases_at_begin = []  # so that none of an earlier point remain if the next line raises
        self._leases_at_begin = living()

    def end_host(self, ours: Collection[int]) -> HostLoad:
        """What other programs did on this host since ``begin_host``.

        ``ours``: pids of this sweep's driver and clients on this host.
        """
        leases = living()
        launches_then = self._own_launches(self._leases_at_begin)
        launches = self._own_launches(leases)
        has_launch_left = bool(launches_then - launches)
        in_docker = self._server is not None and is_docker(self._server.settings)
        assert self._cpu_at_begin and self._cores_at_begin
        wait = core_wait(self._cores_at_begin, core_use(self._launch_processes()))
        own_pids = {*processes_of(launches, in_docker), *ours, os.getpid()}
        used = foreign(self._cpu_at_begin, snapshot(), own_pids, has_launch_left)
        foreign_launches = set()
        for holding in (*self._leases_at_begin, *leases):
            if holding.sweep != self._sweep:
                foreign_launches.add(holding.launch)
        return HostLoad(
            host=self.allocation.hostname,
            foreign_cpu_s=used.seconds,
            foreign_cpu_share=used.share,
            foreign_launches=len(foreign_launches),
            core_wait=wait,
        )

    def _launch_processes(self) -> set[int]:
        """The pids of this launch on this host, with all that descends from them."""
        in_docker = self._server is not None and is_docker(self._server.settings)
        processes = SweepProcesses(processes_of({self._launch_id}, in_docker))
        processes.look(at_once=True)
        processes.close()
        return processes.launch.pids

    def _own_launches(self, holdings: Sequence[Holding]) -> set[str]:
        """The launches of this sweep that hold this host, without its clients."""
        own = [holding for holding in holdings if holding.sweep == self._sweep]
        return {holding.launch for holding in own if not holding.client}

    def stop(self) -> Stopped:
        """Ends the engine and everything that it started. Returns its log; further calls return the
        same.
        """
        self._stopped = self._stopped or self._stop()
        return self._stopped

    def _stop(self) -> Stopped:
        left_over = 0
        log = b""
        if self._process is not None:
            left_over = len(self._process.stop().left_over)
            with suppress(OSError):
                text = stored_log(self._process.log_path).decode(errors="replace")
                log = self._process.redact(text).encode()
        # metrics and telemetry are still being read where a point was cut short
        self.end_metrics()
        self.end_telemetry()
        self._has_stopped.set()
        shutil.rmtree(self._workdir, ignore_errors=True)
        dirty: Sequence[str] = ()
        # NVML raises for a GPU that is lost; the engine is gone all the same
        with suppress(Exception):
            if self._devices:
                dirty = await_release({gpu.uuid: gpu.used_bytes for gpu in self._devices})
        self._lease.release()  # only now: the next launch on these GPUs needs their memory
        return Stopped(left_over, log, tuple(dirty))


def image_digest(settings: EngineSettings) -> str | None:
    """The digest of the settings' image; None if its runtime does not say."""
    for command in image_query(settings):
        digest = output_of(*command).strip()
        if digest:
            return digest
    return None


def stored_log(path: Path, head: int = LOG_HEAD_BYTES, tail: int = LOG_TAIL_BYTES) -> bytes:
    """What is stored of a log: all of it; of a long log only the first and the last whole lines, with
    a note of how much is left out.
    """
    with path.open("rb") as file:
        text = file.read(head + tail)
        left_out = path.stat().st_size - len(text)
        if not left_out:
            return text
        start = text[:head].rpartition(b"\n")[0]
        file.seek(-tail, os.SEEK_END)
        end = file.read().partition(b"\n")[2]
    return b"%b\n# ... about %d bytes are left out here ...\n%b" % (start, left_out, end)


def free_middle(
    path: Path, head: int, most: int = LOG_MOST_BYTES, tail: int = LOG_TAIL_BYTES
) -> None:
    """Frees the disk space of a log's middle while the log is being written. The hole reads as
    zeros.

    Does nothing on a file system without holes.
    """
    facts = path.stat()
    length = facts.st_size - tail - head
    if facts.st_blocks * 512 <= most or length <= 0:
        return
    with path.open("r+b") as file:
        punch = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        ctypes.CDLL(None).fallocate64(
            file.fileno(), punch, ctypes.c_int64(head), ctypes.c_int64(length)
        )


def _is_reset(answer: HttpResponse) -> bool:
    """Whether an engine says that its prefix cache is empty."""
    document = answer.json()
    refuses = isinstance(document, dict) and document.get("success") is False
    return answer.status == 200 and not refuses


def _is_refused_for_now(answer: HttpResponse) -> bool:
    """Whether an engine did not empty its prefix cache, but may do so when it is asked again."""
    return answer.status != 404 and not _is_reset(answer)
