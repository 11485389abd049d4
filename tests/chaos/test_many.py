"""Two hundred emulated deployments in one sweep over twelve Ray nodes on one machine. Prints the
time, CPU time and memory that it took.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    assert_rows_equal_schedule,
    manifests,
    rows,
    start,
    write_experiment,
)

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(7200)]

NODES, DEPLOYMENTS, POINTS = 12, 200, 400
SWEEP = f"""
version: 1
name: many
model: {{id: {MODEL}}}
hardware: {{h100: {{accelerator: H100-80GB, gpus_per_node: 8, cpus_per_device: 0.1}}}}
isolation: shared            # all these nodes are one host: else its launches would run one after another
deployments:
  engine: emulator
  hardware: h100
  tensor_parallel_size: 8
  vary: [{{cases: CASES}}]
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2]}}, requests: 20, warmup: 0s}}
"""


def test_two_hundred_deployments_on_twelve_nodes_in_one_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        {"max_num_seqs": number + 1, "pipeline_parallel_size": 2 if number % 4 == 3 else 1}
        for number in range(DEPLOYMENTS)
    ]
    experiment = write_experiment(tmp_path, SWEEP.replace("CASES", json.dumps(cases)))
    results, log = tmp_path / "results", tmp_path / "log"
    with RayOnThisMachine(NODES, cpus=4, gpus=8) as cluster:
        began_s = time.monotonic()
        driver = start(
            "run", str(experiment), "--results", str(results), "--address", cluster.address, log=log
        )
        try:
            _, status, used = os.wait4(driver.pid, 0)
        finally:
            driver.kill()
        took_s = time.monotonic() - began_s
        assert os.waitstatus_to_exitcode(status) == 0, log.read_text()
        assert_nothing_left()
    attempts = manifests(results)
    ok = Counter(attempt["measurement_id"] for attempt in attempts if attempt["status"] == "ok")
    assert len(ok) == POINTS and set(ok.values()) == {1}
    # a client may be late, since others use this machine
    assert {attempt["failure_class"] for attempt in attempts} <= {None, "client_bound"}
    assert_rows_equal_schedule(results)
    launches = rows(results, "launches")
    nodes = [{seat["node_id"] for seat in json.loads(row["placement_json"])} for row in launches]
    assert len(set.union(*nodes)) == NODES
    assert Counter(map(len, nodes)) == {1: 150, 2: 50}
    driver_s = used.ru_utime + used.ru_stime
    with capsys.disabled():
        print(
            f"\n{took_s:.0f} s, of the driver {driver_s:.0f} s of CPU and "
            f"{used.ru_maxrss / 1024:.0f} MiB at most; "
            f"{len(attempts)} attempts at {POINTS} points"
        )
