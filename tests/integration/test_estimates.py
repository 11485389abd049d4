"""The estimate of ``load --find-capacity`` against a server whose capacity is known: 8 slots, each for
one request at a time, which takes 400 ms (M/D/8).

TTFT has a limit of 500 ms, so a request may wait for 100 ms. The capacity is that of a simulation
of 300,000 requests. A machine that is busy adds to each request: the estimate may be that of a
server whose requests take ``ALLOWANCE_S`` longer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.search.servers import Server, slots
from tests.harness import AGAINST_THE_CLOCK
from tests.integration import test_early_end
from tests.integration.load_server import serving

pytestmark = [AGAINST_THE_CLOCK, pytest.mark.timeout(300)]

SERVICE_S, LIMIT_S, ALLOWANCE_S = 0.4, 0.5, 0.03
BUDGET_S = 60


def capacity(service_s: float) -> float:
    name = f"M/D/8: {service_s} s"
    return Server(
        name, slots(test_early_end.SLOTS, service_s, LIMIT_S), LIMIT_S, (4.0, 20.0)
    ).capacity


def search(port: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestrator", "load", f"http://127.0.0.1:{port}"]
    command += ["--model", "m1", "--find-capacity", "--slo", "ttft<=500ms,attainment>=0.95"]
    command += ["--input-tokens", "1", "--output-tokens", "1", *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )


def is_of_the_server(document: dict[str, Any]) -> bool:
    """Whether the interval reaches the capacity, or that of a machine as busy as is allowed."""
    lower, upper = document["estimate.lower"], document["estimate.upper"]
    return bool(lower <= capacity(SERVICE_S) and upper >= capacity(SERVICE_S + ALLOWANCE_S))


def test_when_the_budget_ends_the_interval_holds_the_capacity_of_the_server() -> None:
    with serving(test_early_end.slots(SERVICE_S)) as server:
        options = ("--budget", f"{BUDGET_S}s", "--duration", "15s", "--format", "json")
        process = search(server.port, *options)
        output, progress = process.communicate()
    assert process.returncode == 0, progress
    assert "slo: estimate " in progress, "it is said while the search runs"
    document = json.loads(output)
    assert document["status"] == "budget"
    assert is_of_the_server(document), document
    assert document["safe"] is None or document["safe"] <= capacity(SERVICE_S)


def test_after_ctrl_c_the_last_line_has_the_estimate() -> None:
    with serving(test_early_end.slots(SERVICE_S)) as server:
        process = search(server.port, "--duration", "8s")
        assert process.stderr is not None
        for line in process.stderr:
            if "slo: estimate " in line:
                break
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130
    (answer,) = [line for line in output.splitlines() if line.startswith("estimate ")]
    assert answer.endswith("(budget)")
