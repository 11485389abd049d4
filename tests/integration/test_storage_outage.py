"""A sweep whose bucket goes away in the middle: rows wait, the engine stays up, and nothing is lost
or doubled.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import (
    MODEL,
    assert_rows_equal_schedule,
    exit_status,
    full,
    orchestrator,
    rows,
    start,
    wait_for,
    write_experiment,
)
from tests.integration.test_results_s3 import credentials, processes, s3, through, uri  # noqa: F401  (fixtures)

EXPERIMENT = f"""
version: 1
name: outage
model: {{id: {MODEL}}}
deployments: {{engine: emulator}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2, 3]}}, duration: 3s, warmup: 0s}}
"""
LONG = pytest.mark.long


@contextmanager
def sweep(results: str, folder: Path) -> Iterator[Callable[[], str]]:
    """A sweep that has measured its first point when the block begins, and ends well after it; what
    it says.
    """
    log = folder / "log"
    experiment = write_experiment(folder, EXPERIMENT)
    driver = start("run", str(experiment), "--results", results, "--address", "local", log=log)
    try:
        wait_for(lambda: "measured short 1 in flight" in log.read_text(), 120, "the first point")
        yield log.read_text
        assert exit_status(driver, 120, log) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()


def assert_nothing_lost(results: str) -> None:
    """Three points, each committed once, valid and whole, of one start."""
    assert [row["status"] for row in rows(results, "launches")] == ["ok"]
    points = rows(results, "points")
    assert [row["status"] for row in points] == ["ok"] * 3
    assert len({row["measurement_id"] for row in points}) == 3
    assert assert_rows_equal_schedule(results)
    assert orchestrator("verify", results).returncode == 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("fault", "away_s"),
    [
        ("reset", 20),
        pytest.param("all_503", 60, marks=pytest.mark.long),
        pytest.param("hang", 60, marks=pytest.mark.long),
        pytest.param("reset", 600, marks=pytest.mark.long),
    ],
)
def test_a_bucket_that_goes_away_in_the_middle_costs_nothing(
    fault: str,
    away_s: float,
    through: Callable[[str], int],  # noqa: F811
    s3: int,  # noqa: F811
    tmp_path: Path,
) -> None:
    port, name = through("third_503"), f"outage-{fault}-{away_s}"

    def mode(name: str) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/mode/{name}", timeout=10):
            pass

    with sweep(uri(port, name), tmp_path) as said:
        mode(fault)
        began_s = time.monotonic()
        wait_for(
            lambda: "the storage refuses" in said() or "the storage has not answered" in said(),
            90,
            "no word",
        )
        time.sleep(max(0.0, away_s - (time.monotonic() - began_s)))
        mode("third_503")
    assert "the storage answers again" in (tmp_path / "log").read_text()
    assert_nothing_lost(uri(s3, name))


def test_a_full_disk_is_waited_for_and_costs_nothing(tmp_path: Path, disk: Path) -> None:
    with sweep(str(disk / "results"), tmp_path) as said, full(disk):
        wait_for(lambda: "No space left" in said(), 60, "nothing is said")
        time.sleep(5)
    assert "the storage answers again" in (tmp_path / "log").read_text()
    assert_nothing_lost(str(disk / "results"))
