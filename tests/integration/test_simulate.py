"""``orchestrator simulate`` from the command line: an answer, a page, and the same again."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.harness import exit_status, orchestrator, start
from tests.unit.simulation.builders import EXPERIMENT, files_of


def committed(folder: Path) -> dict[str, bytes]:
    """All files that count; caches may be divided otherwise."""
    return {name: data for name, data in files_of(folder).items() if "/computed/" not in name}


def test_an_experiment_is_answered_without_engines_and_read_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    results = str(tmp_path / "results")
    done = orchestrator("simulate", str(tmp_path / "x.yaml"), "--results", results)
    assert done.returncode == 0, done.stderr
    assert "4 simulated, 0 already done, 0 failed" in done.stderr
    assert "under fast" in done.stderr
    assert "page: " in done.stderr
    assert (tmp_path / "results" / "x" / "report.html").stat().st_size > 10_000
    assert not list((tmp_path / "results" / "x").glob("runs/*"))
    best = orchestrator("best", results, "--format", "json")
    assert json.loads(best.stdout)["comparisons"][0]["ranking"]
    points = orchestrator("results", results, "--format", "json")
    assert len([row for row in json.loads(points.stdout) if row["row"] == "point"]) == 4
    refused = orchestrator(
        "run", str(tmp_path / "x.yaml"), "--results", results, "--address", "local"
    )
    assert refused.returncode == 2
    assert "has simulated results" in refused.stderr


def test_one_that_is_killed_goes_on_and_ends_with_the_same_files(tmp_path: Path) -> None:
    text = EXPERIMENT.replace(
        "{tensor_parallel_size: 1}",
        ", ".join(f"{{tensor_parallel_size: {size}}}" for size in (1, 4, 8)),
    )
    (tmp_path / "x.yaml").write_text(text + "repeats: 6\n")
    argv = ("simulate", str(tmp_path / "x.yaml"), "--no-report", "--results")
    whole = orchestrator(*argv, str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    killed = start(*argv, str(tmp_path / "killed"), log=tmp_path / "log")
    commits = tmp_path / "killed" / "x" / "commits"
    while killed.poll() is None and len(list(commits.rglob("*.json"))) < 10:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    again = orchestrator(*argv, str(tmp_path / "killed"))
    assert again.returncode == 0, again.stderr
    left = {
        name: data
        for name, data in committed(tmp_path / "killed").items()
        if not name.endswith(".tmp")
    }
    assert left == committed(tmp_path / "whole")


def test_ctrl_c_ends_it_in_order(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT + "repeats: 200\n")
    results = tmp_path / "results"
    driver = start(
        "simulate",
        str(tmp_path / "x.yaml"),
        "--no-report",
        "--results",
        str(results),
        log=tmp_path / "log",
    )
    while driver.poll() is None and len(list((results / "x" / "commits").rglob("*.json"))) < 5:
        time.sleep(0.01)
    driver.send_signal(signal.SIGINT)
    assert exit_status(driver, 60, tmp_path / "log") == 130
    assert "run the same command again to continue" in (tmp_path / "log").read_text()
