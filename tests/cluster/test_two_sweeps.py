"""Two drivers run at once, on one Ray cluster or as two users: neither uses the other's hosts or
cores, and every point is measured once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.node.leases import PREFIX, living
from orchestrator.node.ownership import LAUNCH, tagged
from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MEASURED_ONCE,
    MODEL,
    ROOT,
    assert_rows_equal_schedule,
    environment,
    manifests,
    rows,
    undisturbed_status,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.cluster

SWEEP = f"""
version: 1
name: {{name}}
model: {{{{id: {MODEL}}}}}
isolation: {{isolation}}
deployments: {{{{engine: emulator}}}}
workloads: [{{{{name: w, input_tokens: 16, output_tokens: 4}}}}]
load: {{{{levels: {{{{request_rate: [5]}}}}, duration: {{lasts}}, warmup: 0s}}}}
"""
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which any user may write, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="two-sweeps-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def driver(
    folder: Path, name: str, isolation: str, *more: str, uid: int | None = None, lasts: str = "3s"
) -> subprocess.Popen[bytes]:
    text = SWEEP.format(name=name, isolation=isolation, lasts=lasts)
    experiment = write_experiment(folder, text, f"{name}.yaml")
    as_user: tuple[str, ...] = ()
    if uid is not None:
        # Python may lie in a folder that only its installer may read: the other user may read there,
        # and do nothing else.
        may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        as_user = (*AS_NOBODY, *may_read)
    command = [
        *as_user,
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        str(experiment),
        "--results",
        str(folder / name),
        *MEASURED_ONCE,
        *more,
    ]
    home = folder / f"home-{name}"
    home.mkdir()
    if uid is not None:
        os.chown(home, uid, uid)
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment(HOME=str(home)), stdout=log, stderr=subprocess.STDOUT
        )


def engines() -> dict[str, set[tuple[int, ...]]]:
    """Living launches of this test run and the cores that their engines are bound to."""
    launches = {lease.launch for lease in living()}
    cores_by_launch = {
        launch: {tuple(process.cpu_affinity()) for process, _ in tagged({LAUNCH: launch})}
        for launch in launches
    }
    return {launch: cores for launch, cores in cores_by_launch.items() if cores}


def watched(
    *drivers: subprocess.Popen[bytes], limit_s: float = 400.0
) -> list[dict[str, set[tuple[int, ...]]]]:
    """``engines()`` every 0.1 s until all drivers have ended."""
    samples = []
    end_s = time.monotonic() + limit_s
    try:
        while any(driver.poll() is None for driver in drivers):
            assert time.monotonic() < end_s, "they do not end"
            samples.append(engines())
            time.sleep(0.1)
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    return samples


def occupied_texts(results: Path) -> list[str]:
    """The events of a run that say who holds what it waits for."""
    return [row["text"] for row in rows(results, "events") if row["kind"] == "occupied"]


def assert_both_ended(folder: Path, *drivers: subprocess.Popen[bytes]) -> None:
    """The drivers of ``a`` and ``b`` have measured all of their points."""
    for name, driver in zip("ab", drivers, strict=True):
        log = (folder / f"{name}.log").read_text()
        assert undisturbed_status(driver.returncode, log) == 0, log


def assert_each_point_once(folder: Path, *names: str) -> None:
    for name in names:
        statuses = [manifest["status"] for manifest in manifests(folder / name)]
        assert statuses.count("ok") == 1, (folder / f"{name}.log").read_text()
        assert {row["failure_kind"] for row in rows(folder / name, "launches")} == {None}, (
            "waiting is no failure"
        )
        assert_rows_equal_schedule(folder / name)
    assert living() == []


def test_two_drivers_of_one_cluster_never_measure_on_one_host(
    two_nodes: RayOnThisMachine, folder: Path
) -> None:
    drivers = [
        driver(folder, name, "exclusive_node", "--address", two_nodes.address)
        for name in ("a", "b")
    ]
    samples = watched(*drivers)
    assert_both_ended(folder, *drivers)
    assert max(map(len, samples)) == 1, "both nodes are one host"
    assert len({launch for sample in samples for launch in sample}) == 2
    texts = occupied_texts(folder / "a") + occupied_texts(folder / "b")
    assert texts
    assert "is held by experiment" in texts[0]
    assert_each_point_once(folder, "a", "b")


@pytest.mark.long
def test_two_drivers_that_share_a_host_share_no_core(
    two_nodes: RayOnThisMachine, folder: Path
) -> None:
    drivers = [
        driver(folder, name, "shared", "--address", two_nodes.address) for name in ("a", "b")
    ]
    samples = watched(*drivers)
    assert_both_ended(folder, *drivers)
    for side_by_side in samples:
        bound = [
            cores
            for launch in side_by_side.values()
            for cores in launch
            if len(cores) < psutil.cpu_count()
        ]
        assert len(bound) == len(set(bound)), f"on the same cores: {side_by_side}"
    for name in "ab":
        for row in rows(folder / name, "launches"):
            assert [len(seat["engine_cores"]) for seat in json.loads(row["placement_json"])] == [1]
    assert_each_point_once(folder, "a", "b")


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="becoming another user needs root and setpriv",
)
def test_a_second_user_waits_for_the_first_and_can_neither_read_nor_end_his_engine(
    folder: Path,
) -> None:
    leases = Path(os.environ["ORCHESTRATOR_LEASES"])
    leases.chmod(0o1777)  # as /tmp is
    # long enough that the second driver comes while it runs
    first = driver(folder, "a", "exclusive_node", "--address", "local", lasts="25s")
    (launch,) = wait_for(engines, 180.0, "an engine of the first driver runs")
    engine, _ = next(tagged({LAUNCH: launch}))
    for command in (
        f"kill {engine.pid}",
        f"ls {engine.cwd()}",
        f"rm {next(leases.glob(f'{PREFIX}*'))}",
    ):
        completed = subprocess.run(
            [*AS_NOBODY, "/bin/sh", "-c", command], capture_output=True, text=True, check=False
        )
        message = completed.stderr.lower()
        assert "not permitted" in message or "permission denied" in message, command
    second = driver(folder, "b", "exclusive_node", "--address", "local", uid=NOBODY)
    samples = watched(first, second)
    assert_both_ended(folder, first, second)
    assert max(map(len, samples)) == 1
    texts = occupied_texts(folder / "b")
    assert texts
    assert f"experiment a (user root, pid {first.pid}, results in" in texts[0]
    assert_each_point_once(folder, "a", "b")
