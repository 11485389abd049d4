"""Sweeps over hosts with addresses of their own, and what becomes of them when the network between
hosts is cut.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Host, Hosts, why_not
from tests.harness import (
    MEASURED_ONCE,
    MODEL,
    ROOT,
    assert_rows_equal_schedule,
    manifests,
    rows,
    undisturbed_status,
    wait_for,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(why_not()), reason=f"NOT RUN: {why_not()}"),
]

PYTHON = sys.executable
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}
# engines on a host that is cut off: 60 s of silence, and what it takes to end them
ENDS_WITHIN_S = 100.0
SWEEP = """
version: 1
name: hosts
model: {{id: {model}}}
hardware: {{far: {{accelerator: cpu, labels: {{role: engine}}}}}}
deployments: {{engine: emulator, hardware: far, vary: [{{cases: [{cases}]}}]}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [4]}}, duration: {duration}, warmup: 0s}}
"""
ONE, SPREAD = "{tensor_parallel_size: 1}", "{tensor_parallel_size: 2, nnodes: 2}"


@pytest.fixture
def three() -> Iterator[Hosts]:
    """A head that clients may use, and two hosts for engines."""
    with Hosts(3, RAY_worker_niceness="0", **KEYS) as hosts:  # as in the files of clusters/
        wait_for(lambda: hosts.alive() == 3, 240, "three nodes are there")
        yield hosts


def sweep(hosts: Hosts, duration: str, *cases: str) -> Path:
    path = hosts.shared / "sweep.yaml"
    path.write_text(SWEEP.format(model=MODEL, duration=duration, cases=", ".join(cases)))
    return path


def run(hosts: Hosts, experiment: Path, results: str, driver: int = 0) -> subprocess.Popen[bytes]:
    """The sweep, begun on one of the hosts; its output lies in ``run.log`` of the shared folder."""
    argv = (
        PYTHON,
        "-m",
        "orchestrator",
        "run",
        str(experiment),
        *MEASURED_ONCE,
        "--results",
        results,
        "--address",
        hosts.address,
    )
    return hosts.hosts[driver].start(*argv, log="run.log", **KEYS)


def ended(hosts: Hosts, process: subprocess.Popen[bytes], limit_s: float) -> tuple[int, str]:
    said = lambda: (hosts.shared / "run.log").read_text()  # noqa: E731
    try:
        return undisturbed_status(process.wait(limit_s), said()), said()
    except subprocess.TimeoutExpired:
        raise AssertionError(f"the sweep runs on after {limit_s:g} s: {said()[-3000:]}") from None


def under_load(hosts: Hosts) -> Host:
    """The host whose engine serves a point: somebody elsewhere holds four connections to an
    engine's port.
    """

    def found() -> Host | None:
        for host in hosts.hosts:
            table = host.run("cat", "/proc/net/tcp", "/proc/net/tcp6").stdout.splitlines()
            ports = [
                int(line.split()[1].rpartition(":")[2], 16) for line in table if " 01 " in line[:60]
            ]
            if sum(21000 <= port <= 31999 for port in ports) >= 4:
                return host
        return None

    end = time.monotonic() + 200
    while not (host := found()):
        assert time.monotonic() < end, (
            f"no engine is under load: {(hosts.shared / 'run.log').read_text()}"
        )
    return host


def no_engine_left(hosts: Hosts, limit_s: float) -> None:
    wait_for(
        lambda: not any(host.processes() for host in hosts.hosts),
        limit_s,
        "no engine is left on any host",
    )


def places(results: Path) -> list[list[dict[str, Any]]]:
    return [json.loads(row["placement_json"]) for row in rows(results, "launches")]


def test_a_sweep_over_three_hosts_with_a_replica_over_two_of_them_and_an_object_store(
    three: Hosts,
) -> None:
    head, *engines = three.hosts
    head.start(
        str(Path(PYTHON).parent / "moto_server"),
        "-H",
        head.address,
        "-p",
        "5000",
        log="s3.log",
        **KEYS,
    )
    s3 = f"s3://sweeps/root?endpoint_override={head.address}:5000&scheme=http&region=us-east-1"
    make = (
        f"import boto3; boto3.client('s3', endpoint_url='http://{head.address}:5000', "
        "region_name='us-east-1')"
    )
    wait_for(
        lambda: (
            head.run(PYTHON, "-c", f"{make}.create_bucket(Bucket='sweeps')", **KEYS).returncode == 0
        ),
        30,
        "a bucket",
    )
    status, said = ended(three, run(three, sweep(three, "1s", ONE, SPREAD), s3), 240)
    assert status == 0, said
    seen = (
        f"from tests.harness import rows; print([r['placement_json'] for r in rows({s3!r}, "
        "'launches')])"
    )
    told = head.run(PYTHON, "-c", seen, **KEYS).stdout
    assert all(f'"{host.address}"' in told for host in engines), told
    table = json.loads(
        head.run(PYTHON, "-m", "orchestrator", "results", s3, "--format", "json", **KEYS).stdout
    )
    assert [(point["status"], point["requests"]["failed"]) for point in table] == [("ok", 0)] * 2
    no_engine_left(three, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_point_through_which_client_and_engine_were_parted_is_not_valid(three: Hosts) -> None:
    results = three.shared / "results"
    process = run(three, sweep(three, "20s", ONE), str(results))
    engine = under_load(three)
    time.sleep(4)
    for other in three.hosts:
        if other is not engine:
            three.part(engine, other)
    time.sleep(8)
    for other in three.hosts:
        if other is not engine:
            three.join(engine, other)
    status, said = ended(three, process, 240)
    assert status in (0, 3), said
    points = rows(results, "points")
    assert points
    first = min(points, key=lambda row: row["attempt_id"])
    assert first["status"] != "ok" or first["validity"] != "valid", first
    assert_rows_equal_schedule(results)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_host_that_is_cut_off_is_measured_without_and_its_engine_ends_by_itself(
    three: Hosts,
) -> None:
    results = three.shared / "results"
    process = run(three, sweep(three, "15s", ONE), str(results))
    lost = under_load(three)
    assert lost is not three.hosts[0]
    lost.links("down")
    began = time.monotonic()
    wait_for(
        lambda: not lost.processes(),
        ENDS_WITHIN_S,
        f"no engine is left on the lost host {lost.name}",
    )
    print(f"the lost host's engine ended after {time.monotonic() - began:.0f} s")
    status, said = ended(three, process, 240)
    assert status == 0, said
    assert [one["status"] for one in manifests(results)].count("ok") == 1
    assert lost.address not in [seat["address"] for seat in places(results)[-1]], (
        "it was measured elsewhere"
    )
    assert_rows_equal_schedule(results)
    lost.links("up")
    no_engine_left(three, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut_s", [8, 200])
def test_a_driver_that_loses_the_head_for_a_moment_goes_on_and_for_long_says_how(
    three: Hosts, cut_s: int
) -> None:
    results = three.shared / "results"
    experiment = sweep(three, "10s", ONE, SPREAD)
    process = run(three, experiment, str(results), driver=1)
    under_load(three)
    head, driver, _ = three.hosts
    three.part(head, driver)
    time.sleep(cut_s)
    three.join(head, driver)
    if cut_s > 60:
        assert process.poll() is not None, "a driver that sees its cluster no more ends"
        assert process.returncode not in (0, 2)
        no_engine_left(three, 60)
    else:
        status, said = ended(three, process, 240)
        assert status == 0, said
    if process.returncode:
        wait_for(
            lambda: three.alive() == 2, 60, "the head has given up the host that it did not hear of"
        )
        three.node(driver)
        wait_for(lambda: three.alive() == 3, 60, "it has joined anew")
        again = run(three, experiment, str(results))
        status, said = ended(three, again, 240)
        assert status == 0, said
    ok = [one["measurement_id"] for one in manifests(results) if one["status"] == "ok"]
    assert len(ok) == len(set(ok)) == 2
    assert_rows_equal_schedule(results)


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_real_vllm_over_two_hosts_answers_clients_on_a_third(three: Hosts) -> None:
    results = three.shared / "results"
    path = sweep(three, "5s", SPREAD)
    vllm = (
        f"engine: vllm, executable: {ROOT / '.engines' / 'vllm'}, dtype: float32, "
        "max_model_len: 1024"
    )
    path.write_text(path.read_text().replace("engine: emulator", f"{vllm}, enforce_eager: true"))
    status, said = ended(three, run(three, path, str(results)), 500)
    assert status == 0, said
    (launch,) = places(results)
    assert {seat["address"] for seat in launch} == {host.address for host in three.hosts[1:]}
    (point,) = rows(results, "points")
    assert not point["emulated"]
    assert_rows_equal_schedule(results)
