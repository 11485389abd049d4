"""The image is built, and a sweep runs in pods of the KubeRay file; one of them is taken back in
the middle.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.pods import Pods, podman, pods, program_image, why_not
from tests.harness import ROOT, assert_rows_equal_schedule, manifests, rows, wait_for

pytestmark = [
    *(pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800)),
    pytest.mark.skipif(bool(why_not()), reason=f"NOT RUN: {why_not()}"),
]

SWEEP = """
version: 1
name: pods
model: {id: /shared/model}
hardware: {spot: {accelerator: cpu, labels: {market: spot}}}
deployments: {engine: emulator, hardware: spot, vary: [{cases: [CASES]}]}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [LEVELS]}, duration: 5s, warmup: 0s}
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with program_image() as found:
        yield found


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    """The RayJob of the file."""
    documents = yaml.safe_load_all((ROOT / "clusters" / "kuberay-rayjob.yaml").read_text())
    (found,) = [one for one in documents if one["kind"] == "RayJob"]
    return dict(found["spec"])


@pytest.fixture
def two(image: str, job: dict[str, Any]) -> Iterator[Pods]:
    """The head of the RayJob, and two pods of its first group."""
    cluster = job["rayClusterSpec"]
    with pods(image, cluster, cluster["workerGroupSpecs"][0], workers=2, cpus=2) as found:
        yield found


def submit(two: Pods, job: dict[str, Any], cases: str, levels: str) -> str:
    (two.shared / "sweep.yaml").write_text(SWEEP.replace("CASES", cases).replace("LEVELS", levels))
    argv = (
        job["entrypoint"]
        .replace("/experiment/", "/shared/")
        .replace("s3://BUCKET/sweeps", "/shared/results")
    )
    return two.job(*argv.split())


def ended(two: Pods, job: str) -> None:
    """Wait until it has succeeded."""
    over = re.compile(f"'{job}' (succeeded|failed|was stopped)")
    found = wait_for(lambda: over.search(two.ray_job("status", job)), 240, "the job ended")
    assert found[1] == "succeeded", two.ray_job("logs", job)


def measured(results: Path) -> list[str]:
    """The ids of what was measured, each once; some tries may have failed because this machine is
    busy.
    """
    ok = [one["measurement_id"] for one in manifests(results) if one["status"] == "ok"]
    assert len(ok) == len(set(ok))
    assert {one["failure_class"] for one in manifests(results) if one["status"] != "ok"} <= {
        "client_bound"
    }
    return ok


def placed(results: Path) -> list[set[str]]:
    return [
        {seat["address"] for seat in json.loads(row["placement_json"])}
        for row in rows(results, "launches")
    ]


def test_a_sweep_measures_in_pods_also_over_two_of_them(two: Pods, job: dict[str, Any]) -> None:
    ended(
        two,
        submit(two, job, "{tensor_parallel_size: 1}, {tensor_parallel_size: 2, nnodes: 2}", "2, 4"),
    )
    results = two.shared / "results"
    assert len(measured(results)) == 4
    assert sorted(map(len, placed(results))) == [1, 2]
    assert_rows_equal_schedule(results)


def test_a_pod_that_is_taken_back_ends_its_point_and_the_rest_is_measured_on_the_other(
    two: Pods, job: dict[str, Any]
) -> None:
    number, results = (
        submit(two, job, "{tensor_parallel_size: 1}", "1, 2, 3, 4, 5, 6"),
        two.shared / "results",
    )
    wait_for(lambda: manifests(results), 120, "a point is measured")
    (engine,) = [
        name for name in two.names[1:] if "orchestrator.emulator" in podman("top", name, "args")
    ]
    (container,) = job["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    hook = container["lifecycle"]["preStop"]["exec"]["command"]
    subprocess.run(["podman", "exec", engine, *hook], check=True, timeout=100)
    podman("stop", "--time=60", engine)
    ended(two, number)
    assert len(measured(results)) == 6
    first, second = sorted(rows(results, "launches"), key=lambda row: row["started_unix_ns"])
    assert (first["failure_kind"], second["status"]) == ("preempted", "ok")
    assert first["log_uri"], "it was not stopped in order"
    assert placed(results)[0] != placed(results)[1]
    assert_rows_equal_schedule(results)
