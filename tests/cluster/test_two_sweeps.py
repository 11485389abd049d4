"""Two drivers on one Ray cluster, of one user and of two: never on each other's hosts or cores,
every point once.
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
    undisturbed,
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
    """Where any user may write: tmp_path is its user's alone."""
    path = Path(tempfile.mkdtemp(prefix="two-sweeps-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def driver(
    folder: Path, name: str, isolation: str, *more: str, uid: int | None = None, lasts: str = "3s"
) -> subprocess.Popen[bytes]:
    text = SWEEP.format(name=name, isolation=isolation, lasts=lasts)
    experiment = write_experiment(folder, text, f"{name}.yaml")
    # Python may lie in a folder that is its installer's alone: the other user may read there, and
    # do nothing else
    as_user = (
        ()
        if uid is None
        else (*AS_NOBODY, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    )
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
    ours = {one.launch for one in living()}
    bound = {
        launch: {tuple(one.cpu_affinity()) for one, _ in tagged({LAUNCH: launch})}
        for launch in ours
    }
    return {launch: cores for launch, cores in bound.items() if cores}


def watched(
    *drivers: subprocess.Popen[bytes], limit_s: float = 400.0
) -> list[dict[str, set[tuple[int, ...]]]]:
    """What ran side by side, looked at until all drivers ended."""
    seen, end_s = [], time.monotonic() + limit_s
    try:
        while any(one.poll() is None for one in drivers):
            assert time.monotonic() < end_s, "they do not end"
            seen.append(engines())
            time.sleep(0.1)
    finally:
        for one in drivers:
            one.kill()
            one.wait()
    return seen


def assert_both_ended(folder: Path, *drivers: subprocess.Popen[bytes]) -> None:
    """``a`` and ``b`` measured what they were asked for."""
    for name, one in zip("ab", drivers, strict=True):
        said = (folder / f"{name}.log").read_text()
        assert undisturbed(one.returncode, said) == 0, said


def assert_each_point_once(folder: Path, *names: str) -> None:
    for name in names:
        ok = [one["measurement_id"] for one in manifests(folder / name) if one["status"] == "ok"]
        assert len(ok) == 1, (folder / f"{name}.log").read_text()
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
    seen = watched(*drivers)
    assert_both_ended(folder, *drivers)
    assert max(len(one) for one in seen) == 1, "both nodes are one host"
    assert len({launch for one in seen for launch in one}) == 2
    told = [
        one["text"]
        for name in "ab"
        for one in rows(folder / name, "events")
        if one["kind"] == "occupied"
    ]
    assert told
    assert "is held by experiment" in told[0]
    assert_each_point_once(folder, "a", "b")


@pytest.mark.long
def test_two_drivers_that_share_a_host_share_no_core(
    two_nodes: RayOnThisMachine, folder: Path
) -> None:
    drivers = [
        driver(folder, name, "shared", "--address", two_nodes.address) for name in ("a", "b")
    ]
    seen = watched(*drivers)
    assert_both_ended(folder, *drivers)
    for side_by_side in seen:
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
    # the other has come by then
    first = driver(folder, "a", "exclusive_node", "--address", "local", lasts="25s")
    (launch,) = wait_for(engines, 180.0, "an engine of the first driver runs")
    engine, _ = next(tagged({LAUNCH: launch}))
    for tried in (
        f"kill {engine.pid}",
        f"ls {engine.cwd()}",
        f"rm {next(leases.glob(f'{PREFIX}*'))}",
    ):
        done = subprocess.run(
            [*AS_NOBODY, "/bin/sh", "-c", tried], capture_output=True, text=True, check=False
        )
        assert (
            "not permitted" in done.stderr.lower() or "permission denied" in done.stderr.lower()
        ), tried
    second = driver(folder, "b", "exclusive_node", "--address", "local", uid=NOBODY)
    seen = watched(first, second)
    assert_both_ended(folder, first, second)
    assert max(len(one) for one in seen) == 1
    told = [one["text"] for one in rows(folder / "b", "events") if one["kind"] == "occupied"]
    assert told
    assert f"experiment a (user root, pid {first.pid}, results in" in told[0]
    assert_each_point_once(folder, "a", "b")
