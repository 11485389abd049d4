"""What takes too long for every day: a storage that is away for ten minutes, two sweeps at once,
real vLLM struck.
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
from tests.chaos.ground import QUICK, Ground, kill
from tests.chaos.rounds import (
    EXPERIMENT,
    Strike,
    check,
    fight,
    picture,
    prepared,
    sweep,
    undisturbed,
)
from tests.chaos.s3 import KEYS, FaultyS3
from tests.harness import MODEL, ROOT, ended, manifests, orchestrator, rows, start, wait_for

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
def ground() -> Iterator[Ground]:
    made = Ground(QUICK | KEYS)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.vllm
def test_real_vllm_is_struck(ground: Ground, tmp_path: Path) -> None:
    peace = undisturbed(ground, prepared(tmp_path / "peace", VLLM))
    in_the_second_point = (peace.commits_s[0] + 1.0) / peace.took_s
    for victim, stopped_s in itertools.product(
        ("vllm", "vllm's core", "guard", "agent"), (0.0, 6.0)
    ):
        strike = Strike(0, (victim,), stopped_s > 0, in_the_second_point, stopped_s, 0.0)
        experiment = prepared(tmp_path / f"{victim} {stopped_s:g}", VLLM)
        told = fight(ground, experiment, strike, peace)
        assert told.hit == [victim], f"{strike}: {told}"
        check(ground, experiment, strike, told, peace)


def test_two_sweeps_at_once_and_one_driver_dies(ground: Ground, tmp_path: Path) -> None:
    """Both on one cluster. The one that nobody struck ends by itself, without a failed attempt."""
    ground.stand()
    first, second = (prepared(tmp_path / name) for name in ("first", "second"))
    where = ("--address", ground.address)
    drivers = [
        start(*sweep(one), *where, log=one.with_suffix(".log"), **ground.environment)
        for one in (first, second)
    ]
    try:
        wait_for(
            lambda: manifests(first.parent / "results"),
            240,
            first.with_suffix(".log").read_text()[-2000:],
        )
        kill(drivers[0], signal.SIGKILL)
        assert ended(drivers[1], 300, second.with_suffix(".log")) == 0, second.with_suffix(
            ".log"
        ).read_text()
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait(10)
    again = orchestrator(*sweep(first), *where, **ground.environment)
    assert again.returncode == 0, again.stderr
    pictures = [picture(one.parent / "results") for one in (first, second)]
    assert pictures[0] == pictures[1]
    assert set(pictures[1]["ok"].values()) == {1}
    assert {one["status"] for one in manifests(second.parent / "results")} == {"ok"}
    launches = [
        row["launch_id"]
        for one in (first, second)
        for row in rows(one.parent / "results", "launches")
    ]
    ground.assert_nothing_left(launches)


def test_the_storage_is_away_for_ten_minutes(ground: Ground, tmp_path: Path) -> None:
    """Every third request is refused, then nothing answers for half of the time, then nobody
    listens for the rest.

    One run measures everything, once, and no engine is started twice for it.
    """
    ground.stand()
    experiment = prepared(
        tmp_path, EXPERIMENT.replace("concurrency: [1, 2]", "concurrency: [1, 2, 3, 4]")
    )
    log = tmp_path / "driver.log"
    with FaultyS3() as storage:
        argv = ("run", str(experiment), "--results", storage.uri, "--address", ground.address)
        driver = start(*argv, log=log, **ground.environment)
        try:
            wait_for(lambda: "measured" in log.read_text(), 240, "the first measurement")
            storage.hang()
            time.sleep(OUTAGE_S / 2)
            storage.vanish()
            time.sleep(OUTAGE_S / 2)
            assert driver.poll() is None, log.read_text()
            storage.come_back()
            assert ended(driver, 600, log) == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait(10)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            found = open_results(storage.uri)
            points = found.read("points", include_failed=True).to_pylist()
            stored = found.read("requests", include_failed=True).to_pylist()
            requests = Counter(row["attempt_id"] for row in stored)
            launches = found.read("launches").to_pylist()
    ok = Counter(row["measurement_id"] for row in points if row["status"] == "ok")
    assert len(ok) == 8 and set(ok.values()) == {1}, log.read_text()
    # a client that was late on a busy machine is no matter of the storage
    assert {row["failure_class"] for row in points} <= {None, "client_bound"}, log.read_text()
    assert dict(requests) == {row["attempt_id"]: row["requests_scheduled"] for row in points}
    assert [row["status"] for row in launches] == ["ok", "ok"]
    ground.assert_nothing_left([row["launch_id"] for row in launches])
