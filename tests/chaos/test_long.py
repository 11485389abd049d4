"""What takes too long for every day: a storage that is away for ten minutes, two sweeps at once,
processes of a real vLLM killed and stopped.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.results.root import open_results
from tests.chaos.marked_cluster import QUICK_LIMITS, MarkedCluster, kill
from tests.chaos.rounds import (
    EXPERIMENT,
    Strike,
    check,
    comparable_tables,
    prepared,
    run_round,
    run_undisturbed,
    sweep_arguments,
)
from tests.chaos.s3 import KEYS, FaultyS3
from tests.harness import MODEL, ROOT, exit_status, manifests, orchestrator, rows, start, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(3600)]

OUTAGE_S = 600.0
VLLM = f"""
version: 1
name: chaos
model: {{id: {MODEL}}}
deployments:
  engine: vllm
  hardware: cpu
  executable: {ROOT / ".engines" / "vllm"}
  dtype: float32
  max_model_len: 1024
  enforce_eager: true
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2, 4]}}, requests: 200, warmup: 0s}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[MarkedCluster]:
    marked = MarkedCluster(QUICK_LIMITS | KEYS)
    try:
        yield marked
    finally:
        marked.close()


@pytest.mark.vllm
def test_real_vllm_is_struck(cluster: MarkedCluster, tmp_path: Path) -> None:
    reference = run_undisturbed(cluster, prepared(tmp_path / "reference", VLLM))
    in_the_second_point = (reference.commits_s[0] + 1.0) / reference.took_s
    for role, stopped_s in itertools.product(("vllm", "vllm's core", "guard", "agent"), (0.0, 6.0)):
        strike = Strike(0, (role,), stopped_s > 0, in_the_second_point, stopped_s, 0.0)
        experiment = prepared(tmp_path / f"{role} {stopped_s:g}", VLLM)
        outcome = run_round(cluster, experiment, strike, reference)
        assert outcome.struck == [role], f"{strike}: {outcome}"
        check(cluster, experiment, strike, outcome, reference)


def test_two_sweeps_at_once_and_one_driver_dies(cluster: MarkedCluster, tmp_path: Path) -> None:
    """Both run on one cluster. The one whose driver lives ends by itself, without a failed attempt."""
    cluster.ensure_complete()
    experiments = [prepared(tmp_path / name) for name in ("first", "second")]
    first, second = experiments
    logs = [experiment.with_suffix(".log") for experiment in experiments]
    address = ("--address", cluster.address)
    drivers = [
        start(*sweep_arguments(experiment), *address, log=log, **cluster.environment)
        for experiment, log in zip(experiments, logs, strict=True)
    ]
    try:
        wait_for(
            lambda: manifests(first.parent / "results"), 240, "the first sweep commits nothing"
        )
        kill(drivers[0], signal.SIGKILL)
        assert exit_status(drivers[1], 300, logs[1]) == 0, logs[1].read_text()
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait(10)
    again = orchestrator(*sweep_arguments(first), *address, **cluster.environment)
    assert again.returncode == 0, again.stderr
    tables = [comparable_tables(experiment.parent / "results") for experiment in experiments]
    assert tables[0] == tables[1]
    assert set(tables[1]["ok"].values()) == {1}
    assert {manifest["status"] for manifest in manifests(second.parent / "results")} == {"ok"}
    launches = [
        row["launch_id"]
        for experiment in experiments
        for row in rows(experiment.parent / "results", "launches")
    ]
    cluster.assert_nothing_left(launches)


def test_the_storage_is_away_for_ten_minutes(cluster: MarkedCluster, tmp_path: Path) -> None:
    """The storage refuses every third request; then it answers nothing for half of the ten minutes,
    and for the rest nobody listens.

    One run measures everything once, and starts no engine twice.
    """
    cluster.ensure_complete()
    experiment = prepared(
        tmp_path, EXPERIMENT.replace("concurrency: [1, 2]", "concurrency: [1, 2, 3, 4]")
    )
    log = tmp_path / "driver.log"
    with FaultyS3() as storage:
        argv = ("run", str(experiment), "--results", storage.uri, "--address", cluster.address)
        driver = start(*argv, log=log, **cluster.environment)
        try:
            wait_for(lambda: "measured" in log.read_text(), 240, "the first measurement")
            storage.hang()
            time.sleep(OUTAGE_S / 2)
            storage.vanish()
            time.sleep(OUTAGE_S / 2)
            assert driver.poll() is None, log.read_text()
            storage.come_back()
            assert exit_status(driver, 600, log) == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait(10)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            results = open_results(storage.uri)
            points = results.read("points", include_failed=True).to_pylist()
            request_rows = results.read("requests", include_failed=True).to_pylist()
            requests = Counter(row["attempt_id"] for row in request_rows)
            launches = results.read("launches").to_pylist()
    ok = Counter(row["measurement_id"] for row in points if row["status"] == "ok")
    assert len(ok) == 8 and set(ok.values()) == {1}, log.read_text()
    # a client may be late on a busy machine, whatever the storage does
    assert {row["failure_class"] for row in points} <= {None, "client_bound"}, log.read_text()
    assert dict(requests) == {row["attempt_id"]: row["requests_scheduled"] for row in points}
    assert [row["status"] for row in launches] == ["ok", "ok"]
    cluster.assert_nothing_left([row["launch_id"] for row in launches])
