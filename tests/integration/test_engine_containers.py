"""Real engines in real containers: they become ready, are proven ours, show no secret, and leave
nothing behind.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.base.errors import EngineFailure
from orchestrator.node import reaper
from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    orchestrator,
    rows,
    start,
    wait_for,
    write_experiment,
)
from tests.integration.containers import Host, command_lines, host, wait_until
from tests.integration.engine_real import Running, running, settings

pytestmark = [pytest.mark.vllm, pytest.mark.transformers, pytest.mark.timeout(600)]
GONE_S = 20.0


@pytest.fixture(scope="module", params=["podman", "docker", "apptainer"])
def vllm_host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    with host(request.param, "vllm", tmp_path_factory.mktemp("vllm")) as container_host:
        yield container_host


@pytest.fixture(scope="module", params=["podman", "apptainer"])
def transformers_host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    with host(
        request.param, "transformers", tmp_path_factory.mktemp("transformers")
    ) as container_host:
        yield container_host


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet, as on a new node."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home" / ".cache" / "huggingface"


def inside(container_host: Host, engine: Running, *argv: str) -> str:
    """What a command inside the engine's container prints."""
    return container_host.inside(engine.node.launch_id, *argv)


def test_a_keyless_engine_serves_from_a_container_and_ends_with_its_guard(
    transformers_host: Host, tmp_path: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", transformers_host.path)
    monkeypatch.setenv("CUDA_HOME", "/of/the/node")
    runtime = transformers_host.runtime
    given = settings("transformers", image=transformers_host.image, container_runtime=runtime)
    with running(given, tmp_path, MODEL) as started:
        ready = started.wait()
        assert "socket" in str(ready.reported["proofs"]).split(), (
            "it takes no key, and any server may have its model's name: only the socket proves it"
        )
        body = {"model": started.name, "prompt": "hi", "max_tokens": 2, "stream": True}
        assert started.ask("POST", "/v1/completions", body)[0] == 200
        if runtime == "podman":  # in apptainer it is the node's own
            df = ("/bin/df", "--output=size", "-BG", "/dev/shm")
            assert inside(transformers_host, started, *df).split()[1] == "16G"
        assert "CUDA_HOME" not in inside(transformers_host, started, "/usr/bin/env")
        (private_cache / "seen").write_text("by the node")
        assert (
            inside(transformers_host, started, "/bin/cat", str(private_cache / "seen"))
            == "by the node"
        )
        engine = started.processes[0].pid
        assert engine is not None
        guard = psutil.Process(engine).parent()
        assert guard is not None
        guard.kill()
        assert wait_until(lambda: started.processes[0].poll() is not None, GONE_S)
        # test runs beside this one may have leftovers, too
        leftovers = {leftover.launch_id for leftover in reaper.leftovers()}
        assert started.node.launch_id not in leftovers, (
            "as long as its owner lives, a launch is no leftover"
        )
        started.processes[0].stop()
        reaper.reap()
        assert transformers_host.containers() == []


def test_vllm_serves_from_a_container_shows_no_secret_and_stops_without_a_trace(
    vllm_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", vllm_host.path)
    container = {"image": vllm_host.image, "container_runtime": vllm_host.runtime}
    given = settings(
        "vllm",
        max_model_len=512,
        enforce_eager=True,
        kv_cache_tokens=4096,
        max_num_seqs=4,
        **container,
    )
    with running(given, tmp_path, MODEL) as started:
        ready = started.wait()
        assert ready.reported["proofs"] == (
            "key name" if vllm_host.runtime == "docker" else "socket key name"
        )
        assert ready.reported["kv_cache_tokens"] == 4096
        body = {"model": started.name, "prompt": "hi", "max_tokens": 2}
        assert started.ask("POST", "/v1/completions", body)[0] == 200
        assert not [line for line in command_lines() if started.key in line]
        assert started.key not in started.processes[0].log_path.read_text()
        assert (
            inside(vllm_host, started, "/usr/bin/printenv", "VLLM_API_KEY").strip() == started.key
        )
        assert started.processes[0].stop().left_over == ()
        assert vllm_host.containers() == []


def test_a_missing_image_is_an_image_pull_failure(
    vllm_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", vllm_host.path)
    container = {
        "image": "localhost/orchestrator-test:none",
        "container_runtime": vllm_host.runtime,
    }
    with (
        running(settings("vllm", **container), tmp_path, MODEL) as started,
        pytest.raises(EngineFailure) as caught,
    ):
        started.wait()
    assert caught.value.failure.kind == "image_pull"


EXPERIMENT = """
version: 1
name: container
model: {{id: {model}}}
deployments:
  engine: transformers
  image: {image}
  container_runtime: {runtime}
  hardware: cpu
  dtype: float32
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2]}}, requests: 6, warmup: 0s}}
"""


def test_a_sweep_runs_in_containers_and_a_killed_driver_leaves_none(
    transformers_host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", transformers_host.path)
    image, runtime = transformers_host.image, transformers_host.runtime
    experiment = write_experiment(
        tmp_path, EXPERIMENT.format(model=MODEL, image=image, runtime=runtime)
    )
    results, log = tmp_path / "results", tmp_path / "driver.log"
    with RayOnThisMachine(nodes=1, cpus=4) as cluster:
        argv = ("run", str(experiment), "--results", str(results), "--address", cluster.address)
        driver = start(*argv, log=log)
        try:
            wait_for(transformers_host.containers, 120, f"a container; {log.read_text()[-2000:]}")
        finally:
            driver.send_signal(signal.SIGKILL)
            driver.wait(10)
        assert wait_until(lambda: transformers_host.containers() == [], GONE_S)
        assert_nothing_left()
        again = orchestrator(*argv, timeout_s=400)
        assert again.returncode == 0, again.stderr[-3000:]
    assert transformers_host.containers() == []
    points = rows(results, "points")
    assert sorted(row["level"] for row in points if row["status"] == "ok") == [1, 2]
    # a busy machine may refuse a launch (infra), which is tried again
    reasons = [
        row["reason"] for row in points if row["status"] != "ok" and row["failure_class"] != "infra"
    ]
    assert reasons == []
    images = {json.loads(row["settings_json"])["image"] for row in rows(results, "deployments")}
    assert images == {transformers_host.image}
