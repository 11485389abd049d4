"""Running the program as users do: its command in a process of its own, its Parquet read back."""

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
# Tests of what the clock says: others may stop the machine for a moment. Each try begins anew and
# is in the summary.
AGAINST_THE_CLOCK = pytest.mark.flaky(reruns=2)


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that points at another cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | more


# What every sweep of a test gets: other tests keep this machine busy, and how often something was
# measured must not depend on them.
MEASURED_ONCE = ("--again", "0")
_BUSY = r"\d+ (?:disturbed|stream_buffered|client_bound|network_bound)"
_ONLY_BUSY = re.compile(rf"^no valid measurement: {_BUSY}(?:, {_BUSY})*$", re.MULTILINE)


def orchestrator(
    *argv: str, timeout_s: float = 240.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """One command to its end; stdout and stderr apart."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *_measured_once(argv)],
        cwd=ROOT,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    done.returncode = undisturbed(done.returncode, done.stderr)
    return done


def start(*argv: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
    """One command in the background, its output in ``log``."""
    with log.open("wb") as out:
        command = [sys.executable, "-m", "orchestrator", *_measured_once(argv)]
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(**env), stdout=out, stderr=subprocess.STDOUT
        )


def ended(driver: subprocess.Popen[bytes], timeout_s: float, log: Path) -> int:
    """The exit status of a command that ``start`` began."""
    return undisturbed(driver.wait(timeout_s), log.read_text(errors="replace"))


def _measured_once(argv: tuple[str, ...]) -> tuple[str, ...]:
    return (*argv, *MEASURED_ONCE) if argv[0] == "run" and "--again" not in argv else argv


def undisturbed(status: int, said: str) -> int:
    """0 in place of 3 where nothing but other tests' use of this machine is amiss."""
    return 0 if status == 3 and only_disturbed(said) else status


def only_disturbed(said: str) -> bool:
    """Whether a sweep that said this ended with 3 for nothing but other tests' use of this machine."""
    return _ONLY_BUSY.search(said) is not None


def write_experiment(folder: Path, text: str, name: str = "experiment.yaml") -> Path:
    """A file with this content, dedented."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Inside the block there is no room on it."""
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
    """Manifests as they lie in the folder."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*/commits/**/*.json"))]
    return [one for one in found if one["kind"] == kind]


GIVEN_PORTS: set[int] = set()


def free_port(row: int = 1) -> int:
    """The first of so many ports in a row on which nobody listens: none is given twice.

    Below what Ray gives to workers (10002 and up), a sweep to engines (21000) and Linux to
    connections (32768): who asks for a port listens there seconds later only.
    """
    while True:
        ports = range(port := random.randrange(3_000, 10_000 - row), port + row)
        with ExitStack() as held:
            try:
                for at in ports:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", at))
            except OSError:
                continue
        if GIVEN_PORTS.isdisjoint(ports):
            GIVEN_PORTS.update(ports)
            return port


def wait_for(what: Callable[[], Any], limit_s: float, why: str) -> Any:
    """Poll until it gives something true."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if value := what():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {limit_s:g} s: {why}")


def engine_processes() -> list[psutil.Process]:
    """Processes that carry a launch's mark, engines and what they started; not those of a test run
    beside this one.
    """
    ours = os.environ[TEST_RUN]
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            mine = "ORCHESTRATOR_LAUNCH" in env and env.get(TEST_RUN) == ours
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_left(limit_s: float = 10.0) -> None:
    """No engine process is left after at most ``limit_s``."""
    wait_for(
        lambda: not engine_processes(), limit_s, f"engine processes are left: {engine_processes()}"
    )


def assert_rows_equal_schedule(results: Path | str) -> Mapping[str, int]:
    """requests rows = scheduled requests for every committed attempt; returns rows by attempt."""
    counts: dict[str, int] = {}
    for row in rows(results, "requests"):
        counts[row["attempt_id"]] = counts.get(row["attempt_id"], 0) + 1
    for point in rows(results, "points"):
        assert counts.get(point["attempt_id"], 0) == point["requests_scheduled"], point["reason"]
    return counts
