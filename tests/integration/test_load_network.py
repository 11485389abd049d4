"""A network that is cut while a point runs: the verdict says so. A host of its own is a network
namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.http import ask
from tests.harness import AGAINST_THE_CLOCK, ROOT, environment, wait_for

pytestmark = AGAINST_THE_CLOCK

NAME, DEVICE = f"orch-{os.getpid()}", f"v{os.getpid()}"
HERE, THERE, PORT = "198.18.77.1", "198.18.77.2", "21077"  # benchmarking addresses (RFC 2544)
URL = f"http://{THERE}:{PORT}"


def ip(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *argv], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[bytes]]:
    """An emulator on a host of its own."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace needs root and iproute2")
    if failed := ip("netns", "add", NAME).stderr:
        pytest.skip(f"no network namespaces here: {failed}")
    process = None
    try:
        ip("link", "add", DEVICE, "type", "veth", "peer", "name", "eth0", "netns", NAME)
        ip("addr", "add", f"{HERE}/30", "dev", DEVICE)
        ip("link", "set", DEVICE, "up")
        for step in (("addr", "add", f"{THERE}/30", "dev", "eth0"), ("link", "set", "eth0", "up")):
            assert ip("-n", NAME, *step).returncode == 0
        command = [
            sys.executable,
            "-m",
            "orchestrator",
            "emulator",
            "--host",
            THERE,
            "--port",
            PORT,
        ]
        process = subprocess.Popen(
            ["ip", "netns", "exec", NAME, *command, "--served-model-name", "x"],
            cwd=ROOT,
            env=environment(),
        )
        wait_for(lambda: ask(f"{URL}/health").status == 200, 60.0, "it serves")
        yield process
    finally:
        if process is not None:
            process.kill()
            process.wait()
        ip("netns", "del", NAME)


CLOSED, OPEN = ("--concurrency", "4"), ("--rate", "20")


def loaded_while(
    server: subprocess.Popen[bytes],
    begin: Callable[[], object],
    end: Callable[[], object],
    level: tuple[str, str] = CLOSED,
) -> Any:
    """What a load for 7 s found, with something between the first second and the fourth."""
    argv = [
        *level,
        "--duration",
        "7s",
        "--warmup",
        "0s",
        "--input-tokens",
        "16",
        "--output-tokens",
        "99",
    ]
    load = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "load", URL, "--model", "x", *argv, "--format", "json"],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE,
    )  # fmt: skip
    sockets = Path(f"/proc/{server.pid}/net/tcp")  # those of its namespace; 01: established
    wait_for(lambda: sockets.read_text().count(" 01 ") >= 4, 60.0, "it is loaded")
    time.sleep(1.0)
    begin()
    time.sleep(3.0)
    end()
    said, _ = load.communicate(timeout=60)
    return json.loads(said)


CUT = (
    partial(ip, "-n", NAME, "link", "set", "eth0", "down"),
    partial(ip, "-n", NAME, "link", "set", "eth0", "up"),
)


def test_a_cut_network_is_told_from_an_engine_that_stands_still(
    server: subprocess.Popen[bytes],
) -> None:
    still = loaded_while(
        server,
        partial(server.send_signal, signal.SIGSTOP),
        partial(server.send_signal, signal.SIGCONT),
    )
    assert still["e2e_ms"]["max"] > 2900, "it stood still"
    assert still["evidence"]["network_silent_max_s"] < 2.0, "its kernel answered"
    assert still["validity"] != "network_bound"
    cut = loaded_while(server, *CUT)
    assert cut["validity"] == "network_bound", cut["evidence"]
    assert cut["evidence"]["network_silent_max_s"] > 2.5
    assert "not even from its kernel" in cut["validity_reasons"][0]


def test_what_was_sent_into_a_cut_network_is_counted_as_sent_again(
    server: subprocess.Popen[bytes],
) -> None:
    # a closed loop waits for answers and has nothing to send
    cut = loaded_while(server, *CUT, level=OPEN)
    assert cut["evidence"]["tcp_retransmits"] > 0
    assert cut["evidence"]["network_silent_max_s"] > 2.5
    assert cut["validity"] == "network_bound", cut["evidence"]
