"""One measurement: a mock server on core 0, one tool on core 1, what the server knows and what the
tool cost.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
SERVER_CORE, CLIENT_CORE = 0, 1
SAMPLE_S = 0.5  # between looks at the client's CPU time; a look costs about 1 ms
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Truth:
    """What the server recorded. ``stats``: its /stats document, times in ms; arrays in ns, one
    entry per request.
    """

    stats: dict
    arrival: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    outcome: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Run:
    """One tool's run. ``samples``: (monotonic ns, CPU seconds of its process tree so far)."""

    returncode: int | None  # None: it ran past its time
    started_ns: int
    wall_s: float
    cpu_s: float
    samples: list[tuple[int, float]]
    truth: Truth
    tail: str  # the end of its output, for the reason of a failure

    def cpu_between(self, start_ns: int, end_ns: int) -> float:
        """CPU seconds of the process tree between two instants, interpolated between samples."""
        at, cpu = zip(*self.samples, strict=True)
        return float(np.interp(end_ns, at, cpu) - np.interp(start_ns, at, cpu))


def build() -> None:
    """Compile the C parts. Raises CalledProcessError."""
    subprocess.run(["make", "-s", "-C", str(HERE)], check=True)


@contextmanager
def server(port: int, flags: list[str], folder: Path) -> Iterator[None]:
    """A mock server pinned to its core; it leaves stats.json and log.csv in ``folder`` when it
    stops.
    """
    command = [
        "taskset",
        "-c",
        str(SERVER_CORE),
        str(HERE / "build/mock_server"),
        "--port",
        str(port),
        *flags,
    ]
    command += [
        "--stats",
        str(folder / "stats.json"),
        "--log",
        str(folder / "log.csv"),
        "--text",
        " shopa",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if not line.startswith("mock_server on"):
            raise RuntimeError(f"the mock server did not start: {line.strip()}")
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def read_truth(folder: Path) -> Truth:
    """What ``server`` left behind."""
    stats = json.loads((folder / "stats.json").read_text())
    rows = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()[1:]]
    numbers = np.array([[int(value) for value in row[:3]] for row in rows], dtype=np.int64).reshape(
        -1, 3
    )
    return Truth(
        stats, numbers[:, 0], numbers[:, 1], numbers[:, 2], np.array([row[-1] for row in rows])
    )


def _tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                todo += [
                    int(child)
                    for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                ]
        except OSError:
            continue
    return found


class CpuMeter:
    """CPU time of a process and all its descendants, those that ended included."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen: dict[int, float] = {}
        self.samples: list[tuple[int, float]] = [(time.monotonic_ns(), 0.0)]

    def sample(self) -> None:
        """Add one sample."""
        for pid in _tree(self.pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            self.seen[pid] = (int(fields[11]) + int(fields[12])) * TICK_S
        self.samples.append((time.monotonic_ns(), sum(self.seen.values())))


def _wait(process: subprocess.Popen[bytes], meter: CpuMeter, timeout_s: float) -> int | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            return process.wait(SAMPLE_S)
        except subprocess.TimeoutExpired:
            meter.sample()
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        try:
            process.wait(3)
            break
        except subprocess.TimeoutExpired:
            continue
    return None


def _remove(group: Path) -> None:
    """A cgroup whose last process is just ending is busy for a moment."""
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    group.rmdir()


@contextmanager
def cpu_limit(cores: float | None) -> Iterator[list[str]]:
    """What to put before a command so that it and its children get so many cores (a CPU cgroup,
    which needs root).

    Raises OSError where there is no such cgroup. The period is 5 ms, so that the limit is no stop
    of its own.
    """
    if cores is None:
        yield []
        return
    old = Path("/sys/fs/cgroup/cpu")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"benchmark-{os.getpid()}"
    quota, period = str(round(cores * 5000)), "5000"
    settings = (
        {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
        if old.is_dir()
        else {"cpu.max": f"{quota} {period}"}
    )
    group.mkdir()
    try:
        for name, value in settings.items():
            (group / name).write_text(value)
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        _remove(group)


def run(
    command: list[str],
    env: dict[str, str],
    port: int,
    flags: list[str],
    folder: Path,
    timeout_s: float,
    cores: float | None = None,
) -> Run:
    """Run one tool against a fresh server. ``folder`` receives logs; the tool's own results are its
    affair.

    ``cores``: how much CPU the tool may use; None: all of its core.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.txt"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with server(port, flags, folder), cpu_limit(cores) as limited, output.open("wb") as sink:
        started = time.monotonic_ns()
        pinned = ["taskset", "-c", str(CLIENT_CORE), *limited, *command]
        process = subprocess.Popen(
            pinned,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | env,
            cwd=folder,
            start_new_session=True,
        )
        meter = CpuMeter(process.pid)
        returncode = _wait(process, meter, timeout_s)
        wall_s = (time.monotonic_ns() - started) / 1e9
        # before the server is reaped: the tool alone
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    meter.samples.append((started + int(wall_s * 1e9), max(cpu_s, meter.samples[-1][1])))
    tail = output.read_bytes()[-2000:].decode(errors="replace")
    return Run(returncode, started, wall_s, cpu_s, meter.samples, read_truth(folder), tail)
