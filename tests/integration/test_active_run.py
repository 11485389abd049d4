"""One active run per experiment, as users see it: refused, killed and taken over at once, stopped
from elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.report.documents.run import RunDocument
from orchestrator.results.runs import runs_at
from tests.harness import (
    assert_nothing_left,
    manifests,
    orchestrator,
    start,
    wait_for,
    write_experiment,
)

EXPERIMENT = """
version: 1
name: one
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, max_num_seqs: 4}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [1, 2, 3, 4]}, duration: 6s, warmup: 0s}
"""


def test_a_second_run_is_refused_a_killed_one_replaced_a_stopped_one_ended(
    tmp_path: Path,
) -> None:
    experiment, results, log = (
        write_experiment(tmp_path, EXPERIMENT),
        tmp_path / "results",
        tmp_path / "log",
    )
    argv = ["run", str(experiment), "--results", str(results), "--address", "local"]

    def state() -> list[str]:
        (runs,) = runs_at(str(results))
        return [RunDocument("one", record, 0.0).state for record in runs.records()]

    driver = start(*argv, log=log)
    try:
        wait_for(lambda: manifests(results), 90.0, "a measurement")
        second = orchestrator(*argv)
        assert second.returncode == 2, second.stderr
        assert f"another run of 'one' is active at {results}: pid {driver.pid} of" in second.stderr
        shown = orchestrator("status", str(results), "--format", "json")
        assert [run["state"] for run in json.loads(shown.stdout)[0]["runs"]] == ["running"], (
            shown.stderr
        )
        driver.kill()
        driver.wait(10)
        assert state() == ["dead"]
        assert_nothing_left()
        driver = start(*argv, log=log)  # nobody waits for the dead
        wait_for(
            lambda: state() == ["running"] and manifests(results)[1:], 90.0, "the next measurement"
        )
        stopped = orchestrator("stop", str(results))
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
        assert f"asked pid {driver.pid} of" in stopped.stdout
        assert driver.wait(20) == 130, log.read_text()
    finally:
        driver.kill()
        driver.wait(10)
    said = log.read_text()
    assert "asks this run to stop" in said
    assert "run the same command again to continue" in said
    assert state() == ["ended"]
    assert_nothing_left()
