"""Runs the program as users do, as a command in its own process, and reads its Parquet back."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from orchestrator.results.root import open_results

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".demo" / "model"
TEST_RUN = "TEST_RUN"  # the variable with this run's name, which engines inherit
# For tests of durations, since other programs may stop the machine for a moment. A test that fails is
# run again from its beginning, and the summary shows that.
AGAINST_THE_CLOCK = pytest.mark.flaky(reruns=2)


def environment(**more: str) -> dict[str, str]:
    """The variables of this process without Ray's, which may name another cluster, and ``more``."""
    without_ray = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return without_ray | {"PYTHONUNBUFFERED": "1"} | more


def outside_of_make(**more: str) -> dict[str, str]:
    """The variables for a ``make`` that knows nothing of the one that runs the tests."""
    return environment(**dict.fromkeys(("MAKEFLAGS", "MFLAGS", "MAKELEVEL"), ""), **more)


# Options of every sweep of a test: other tests keep this machine busy, and must not change how often
# something is measured.
MEASURED_ONCE = ("--again", "0")
_BUSY = r"\d+ (?:disturbed|stream_buffered|client_bound|network_bound)"
_ONLY_BUSY = re.compile(rf"^no valid measurement: {_BUSY}(?:, {_BUSY})*$", re.MULTILINE)


def orchestrator(
    *argv: str, timeout_s: float = 240.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    completed = subprocess.run(
        [sys.executable, "-m", "orchestrator", *_measured_once(argv)],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    completed.returncode = undisturbed_status(completed.returncode, completed.stderr)
    return completed


def start(*argv: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
    """Starts a command that writes its output to ``log``."""
    with log.open("wb") as out:
        command = [sys.executable, "-m", "orchestrator", *_measured_once(argv)]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(**env), stdout=out, stderr=subprocess.STDOUT
        )


def exit_status(driver: subprocess.Popen[bytes], timeout_s: float, log: Path) -> int:
    """Waits for a command that ``start`` began. Returns its ``undisturbed_status``."""
    return undisturbed_status(driver.wait(timeout_s), log.read_text(errors="replace"))


def _measured_once(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command. A ``run`` gets MEASURED_ONCE unless it says ``--again`` itself."""
    if argv[0] == "run" and "--again" not in argv:
        return (*argv, *MEASURED_ONCE)
    return argv


def undisturbed_status(status: int, output: str) -> int:
    """The exit status that a sweep would have had alone on this machine: 0 in place of 3 if its
    output names no trouble but disturbance by other tests.
    """
    return 0 if status == 3 and only_disturbed(output) else status


def only_disturbed(output: str) -> bool:
    """Whether the output of a sweep names no trouble but disturbance by other tests."""
    return _ONLY_BUSY.search(output) is not None


def write_experiment(folder: Path, text: str, name: str = "experiment.yaml") -> Path:
    """A file with this content, dedented."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fills a disk until the end of the block."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(4096)):
            pass
    yield
    (disk / "filler").unlink()


def rows(results: Path | str, table: str) -> list[dict[str, Any]]:
    """Every committed row of a table, failed attempts included."""
    data: pa.Table = open_results(str(results)).read(table, include_failed=True)
    return data.to_pylist()


def manifests(results: Path, kind: str = "point") -> list[dict[str, Any]]:
    """The manifests of one kind in a folder of results, read without the store."""
    paths = sorted(results.glob("*/commits/**/*.json"))
    all_manifests = [json.loads(path.read_text()) for path in paths]
    return [manifest for manifest in all_manifests if manifest["kind"] == kind]


GIVEN_PORTS: set[int] = set()


def free_port(row: int = 1) -> int:
    """The first of ``row`` consecutive ports on which nobody listens; none is given twice.

    A test listens on its port only seconds later, so ports are taken from below those that Ray
    gives to workers (10002 and up), a sweep to engines (21000) and Linux to connections (32768).
    """
    while True:
        first = random.randrange(3_000, 10_000 - row)
        ports = range(first, first + row)
        with ExitStack() as sockets:
            try:
                for port in ports:
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        if GIVEN_PORTS.isdisjoint(ports):
            GIVEN_PORTS.update(ports)
            return first


def wait_for(what: Callable[[], Any], limit_s: float, why: str) -> Any:
    """Calls ``what`` until it returns something true, and returns that. Fails with ``why`` after
    ``limit_s``.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        value = what()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s:g} s: {why}")


def engine_processes() -> list[psutil.Process]:
    """Engines of this test run and processes that they started, known by the launch in their
    environment.
    """
    test_run = os.environ[TEST_RUN]
    processes = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            is_ours = "ORCHESTRATOR_LAUNCH" in env and env.get(TEST_RUN) == test_run
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def assert_nothing_left(limit_s: float = 10.0) -> None:
    """No engine process is left after at most ``limit_s``."""
    with suppress(AssertionError):
        wait_for(lambda: not engine_processes(), limit_s, "engine processes end")
    left = engine_processes()
    assert not left, f"engine processes are left after {limit_s:g} s: {left}"


def assert_rows_equal_schedule(results: Path | str) -> Mapping[str, int]:
    """Every committed attempt has a row for each scheduled request. Returns the number of rows of
    each attempt.
    """
    counts: dict[str, int] = {}
    for row in rows(results, "requests"):
        counts[row["attempt_id"]] = counts.get(row["attempt_id"], 0) + 1
    for point in rows(results, "points"):
        assert counts.get(point["attempt_id"], 0) == point["requests_scheduled"], point["reason"]
    return counts
