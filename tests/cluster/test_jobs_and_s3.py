"""On a running cluster: ``ray job submit``, and results in an object store. The engine is emulated."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.documentation.blocks import blocks, blocks_run_by, command_lines
from tests.harness import (
    MEASURED_ONCE,
    MODEL,
    ROOT,
    assert_nothing_left,
    environment,
    free_port,
    manifests,
    only_disturbed,
    orchestrator,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.cluster

EXPERIMENT = f"""
version: 1
name: small
model: {{id: {MODEL}}}
deployments: {{engine: emulator, vary: [{{grid: {{tensor_parallel_size: [1, 2]}}}}]}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, duration: 1s, warmup: 0s}}
"""
README = "README.md"
ONE_DEPLOYMENT = EXPERIMENT.replace("[1, 2]", "[1]")


KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayOnThisMachine]:
    """With a dashboard, which takes jobs, and the bucket's credentials: clients write from the
    nodes.
    """
    programs = str(Path(sys.executable).parent)  # as on nodes that have this environment active
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", programs, prepend=os.pathsep)
        for name, value in KEYS.items():
            patch.setenv(name, value)
        with RayOnThisMachine(nodes=2, dashboard_port=free_port()) as made:
            yield made


def job(
    cluster: RayOnThisMachine, folder: Path, verb: str, *argv: str
) -> subprocess.CompletedProcess[str]:
    """``ray job``, which succeeds; repeated as long as the cluster is still starting."""
    done = tried_job(cluster, folder, verb, *argv)
    said = done.stdout + done.stderr
    assert done.returncode == 0 or only_disturbed(said), said
    return done


def tried_job(
    cluster: RayOnThisMachine, folder: Path, verb: str, *argv: str
) -> subprocess.CompletedProcess[str]:
    """``ray job``, whatever becomes of it."""
    command = [
        str(Path(sys.executable).parent / "ray"),
        "job",
        verb,
        "--address",
        str(cluster.dashboard),
        *argv,
    ]

    def call() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        return None if "No available agent" in done.stdout + done.stderr else done

    done: subprocess.CompletedProcess[str] = wait_for(call, 60, "the cluster takes jobs")
    return done


def submit(cluster: RayOnThisMachine, folder: Path, experiment: str, *how: str) -> tuple[str, Path]:
    """Submits a sweep; its job and where its results go."""
    path, results, name = (
        write_experiment(folder, experiment),
        folder / "results",
        f"sweep-{uuid.uuid4().hex[:8]}",
    )
    # what --working-dir . uploads: the package, without this checkout's environments
    package = folder / "package"
    shutil.copytree(
        ROOT / "orchestrator",
        package / "orchestrator",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    run = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        str(path),
        *MEASURED_ONCE,
        "--results",
        str(results),
    ]
    job(
        cluster,
        folder,
        "submit",
        *how,
        "--submission-id",
        name,
        "--working-dir",
        str(package),
        "--",
        *run,
    )
    return name, results


LOCAL_MODEL = EXPERIMENT.replace(f"model: {{id: {MODEL}}}", "model: {id: ./models/tiny}")


def test_a_model_that_the_upload_left_behind_is_said_and_shown_as_the_user_wrote_it(
    cluster: RayOnThisMachine, tmp_path: Path
) -> None:
    package, results = tmp_path / "package", tmp_path / "results"
    shutil.copytree(
        ROOT / "orchestrator",
        package / "orchestrator",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(MODEL, package / "models" / "tiny")
    (package / ".gitignore").write_text("models/\n")
    (package / "experiment.yaml").write_text(LOCAL_MODEL)
    run = [
        sys.executable,
        "-m",
        "orchestrator",
        "run",
        "experiment.yaml",
        *MEASURED_ONCE,
        "--results",
        str(results),
    ]

    def submitted() -> str:
        how = ("--working-dir", str(package), "--", *run)
        return job(cluster, tmp_path, "submit", *how).stdout

    first = submitted()
    assert "note: models/tiny was not uploaded with the job" in first
    (package / "new.txt").write_text("another upload, in another folder of Ray's")
    assert "0 measurements to do, 2 already done" in submitted()
    table = json.loads(orchestrator("results", str(results), "--format", "json").stdout)
    assert {point["model"] for point in table} == {"models/tiny"}
    best = orchestrator("best", str(results), "--slo", "ttft<=10s")
    assert "models/tiny" in best.stdout, best.stderr
    assert "_ray_pkg_" not in best.stdout + orchestrator("results", str(results)).stdout
    assert_nothing_left()


def test_ray_job_stop_keeps_what_was_measured(cluster: RayOnThisMachine, tmp_path: Path) -> None:
    longer = re.sub(r"duration: \S+,", "duration: 10s,", EXPERIMENT)
    assert longer != EXPERIMENT
    name, results = submit(cluster, tmp_path, longer, "--no-wait")
    wait_for(lambda: manifests(results), 90, "the first measurement")
    job(cluster, tmp_path, "stop", name)
    assert_nothing_left()
    (measured,), launches = manifests(results), manifests(results, "launch")
    assert measured["status"] == "ok"
    assert measured["ids"]["launch_id"] in [one["measurement_id"] for one in launches]
    said = job(cluster, tmp_path, "logs", name).stdout
    assert "stopping: engines are ended, what is complete is kept" in said
    assert "SIGTERM received" not in said  # Ray's own way out


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A local S3 server in a process of its own, with one bucket; the root URI."""
    import boto3

    port = free_port()
    server = subprocess.Popen(
        [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            region_name="us-east-1",
        )
        wait_for(lambda: _answers(port), 30, "moto_server answers")
        client.create_bucket(Bucket="sweeps")
        yield f"s3://sweeps/root?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    finally:
        server.terminate()
        server.wait(10)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_run_of_the_first_page_finds_the_cluster_and_its_results_come_back_from_a_bucket(
    cluster: RayOnThisMachine, s3: str, tmp_path: Path
) -> None:
    in_readme = [
        words for block in blocks_run_by(__file__, README) for words in command_lines(block)
    ]
    (words,) = [words for words in in_readme if words[:2] == ["orchestrator", "run"]]
    _, run, file, results, folder = words
    assert (results, folder) == ("--results", "results/")
    experiment = write_experiment(tmp_path, EXPERIMENT, name=Path(file).name)
    argv = (run, str(experiment), results, s3)
    done = orchestrator(*argv, RAY_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    again = orchestrator(*argv, RAY_ADDRESS=cluster.address)
    assert "2 already done" in again.stderr, again.stderr
    table = json.loads(orchestrator("results", s3, "--format", "json").stdout)
    assert [point["status"] for point in table] == ["ok", "ok"]


def documented_job(page: str, command: str) -> list[str]:
    """The words of the one ``ray job submit`` of a page that starts this command of the program."""
    submit = ["ray", "job", "submit"]
    in_shell = [block for block in blocks(ROOT / page) if block.language == "sh"]
    jobs = [words for block in in_shell for words in command_lines(block) if words[:3] == submit]
    (words,) = [words for words in jobs if command in words]
    return words


def as_documented(page: str, command: str, bucket: str, s3: str, folder: Path) -> list[str]:
    """The page's words after the head's address, with a bucket that exists, in a folder that holds
    the program and, as the file of the words, a small sweep.
    """
    words = documented_job(page, command)
    assert words[3] == "--address"
    argv = [s3 if word == bucket else word for word in words[5:]]
    assert s3 in argv
    (file,) = [folder / word for word in argv if word.endswith(".yaml")]
    file.parent.mkdir(exist_ok=True)
    file.write_text(ONE_DEPLOYMENT.replace("name: small", f"name: {Path(page).stem.lower()}"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "orchestrator", folder / "orchestrator", ignore=ignored)
    return argv


@pytest.mark.parametrize(
    ("page", "bucket"),
    [
        (README, "s3://bucket/sweeps"),
        ("docs/guides/spot.md", "s3://bucket/sweeps"),
        ("docs/guides/kubernetes.md", "s3://BUCKET/sweeps"),
    ],
)
def test_the_job_of_a_page_runs_a_sweep_from_the_uploaded_folder_and_stores_into_the_bucket(
    page: str, bucket: str, cluster: RayOnThisMachine, s3: str, tmp_path: Path
) -> None:
    argv = as_documented(page, "run", bucket, s3, tmp_path)
    job(cluster, tmp_path, "submit", *argv)
    name = Path(page).stem.lower()
    shown = orchestrator("results", s3, "--experiment", name, "--format", "json")
    assert [point["status"] for point in json.loads(shown.stdout)] == ["ok"], shown.stderr
    assert_nothing_left()


def test_the_doctor_of_the_page_on_kubernetes_asks_every_node_of_the_cluster(
    cluster: RayOnThisMachine, s3: str, tmp_path: Path
) -> None:
    argv = as_documented("docs/guides/kubernetes.md", "doctor", "s3://BUCKET/sweeps", s3, tmp_path)
    done = tried_job(cluster, tmp_path, "submit", *argv)
    # a test machine may lack something, of which doctor warns
    assert "2 nodes: 0 findings that would fail a sweep" in done.stdout, done.stdout + done.stderr
