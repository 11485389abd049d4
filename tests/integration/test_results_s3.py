"""The store on an object store: a local S3 server in its own process, and faults on the way to it."""

from __future__ import annotations

import pickle
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.analysis import attempt_summary
from orchestrator.analysis.points import compute_ahead, load_points
from orchestrator.base.errors import InputError, ResultsError
from orchestrator.results import computed_cache
from orchestrator.results.blobs import Blobs
from orchestrator.results.location import parse_location
from orchestrator.results.root import open_results
from orchestrator.results.storage_retry import OBJECT_STORE, Retry
from orchestrator.results.store import FilePart, Manifest, Store
from tests.harness import free_port
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_attempt
from tests.unit.results.builders import commit_measurement, request

BUCKET = "sweeps"
PROXY = Path(__file__).with_name("results_fault_proxy.py")
QUICK = Retry(replace(OBJECT_STORE, first_pause_s=0.01))
GAPS = pa.table(
    {
        "measurement_id": ["m0"] * 50,
        "attempt_id": ["a0"] * 50,
        "request_index": pa.array(range(50), pa.int32()),
        "gaps_us": [[20_000, 20_001, index] for index in range(50)],
    }
)


@pytest.fixture(scope="module")
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, *argv: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def stop() -> None:
        process.kill()
        process.communicate(timeout=10)

    stack.callback(stop)
    return process


@pytest.fixture(scope="module")
def s3(processes: ExitStack) -> int:
    """Port of a fresh S3 server with one empty bucket."""
    import socket

    import boto3

    port = free_port()
    start(
        processes,
        str(Path(sys.executable).parent / "moto_server"),
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    )
    deadline = time.monotonic() + 30
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert time.monotonic() < deadline, "moto_server did not answer"
        time.sleep(0.05)
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    return port


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def through(s3: int, processes: ExitStack) -> Callable[[str], int]:
    """Port of a proxy to the server with a kind of fault."""

    def faulty(mode: str) -> int:
        proxy = start(processes, sys.executable, str(PROXY), str(s3), mode)
        assert proxy.stdout is not None
        return int(proxy.stdout.readline())

    return faulty


def uri(port: int, prefix: str, bucket: str = BUCKET) -> str:
    return f"s3://{bucket}/{prefix}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"


def faults(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/faults", timeout=10) as reply:
        return int(reply.read())


def write_one(store: Store, name: str = "m0") -> FilePart:
    return store.write_part(
        "token_events", GAPS, measurement_id=name, attempt_id="a0", writer="client-0"
    )


def commit_one(store: Store, name: str = "m0") -> Manifest:
    part = write_one(store, name)
    manifest = Manifest(
        kind="point",
        measurement_id=name,
        attempt_id="a0",
        status="ok",
        created_unix_ns=1,
        files=(part,),
    )
    store.commit(manifest)
    return manifest


def test_parts_and_commits_come_back_from_an_object_store(s3: int) -> None:
    store = Store.open(uri(s3, "plain"), "exp")
    store.check_writable()
    manifests = [commit_one(store, f"m{index}") for index in range(20)]
    store.write_plan("{}")
    log = store.write_log("a0/rank0.log", b"ready")
    there = pickle.loads(pickle.dumps(store))
    assert there.winners().keys() == {one.measurement_id for one in manifests}
    assert there.read("token_events", ["gaps_us"]).num_rows == 20 * 50
    assert (there.plan(), there.read_log(log), there.read_log("exp/logs/no")) == (
        "{}",
        b"ready",
        None,
    )
    found = open_results(uri(s3, "plain"))
    assert found.experiments == ("exp",)
    assert open_results(uri(s3, "plain/exp")).read("token_events").num_rows == 1000


def test_only_manifests_count_and_the_first_stays(s3: int) -> None:
    store = Store.open(uri(s3, "manifests"), "exp")
    write_one(store)
    assert store.winners().keys() == set()
    manifest = commit_one(store)
    store.commit(manifest)
    with pytest.raises(ResultsError, match="committed only once"):
        store.commit(
            Manifest(
                kind="point",
                measurement_id="m0",
                attempt_id="a0",
                status="failed",
                created_unix_ns=2,
            )
        )
    with pytest.raises(ResultsError, match="missing or cut off"):
        store.commit(
            Manifest(
                kind="point",
                measurement_id="m1",
                attempt_id="a0",
                status="ok",
                created_unix_ns=3,
                files=(FilePart("points", "data/no.parquet", 1, 9, ""),),
            )
        )


def test_a_large_part_goes_up_whole(s3: int) -> None:
    rows, gaps = 1_000, np.random.default_rng(0).integers(0, 2**31 - 1, 4_000_000, dtype=np.int32)
    big = pa.table(
        {
            "measurement_id": pa.repeat("m0", rows),
            "attempt_id": pa.repeat("a0", rows),
            "request_index": pa.array(range(rows), pa.int32()),
            "gaps_us": pa.FixedSizeListArray.from_arrays(gaps, gaps.size // rows).cast(
                pa.list_(pa.int32())
            ),
        }
    )
    store = Store.open(uri(s3, "large"), "exp")
    part = store.write_part("token_events", big, measurement_id="m0", attempt_id="a0", writer="c")
    assert part.bytes > 12 * 2**20  # above pyarrow's 10 MiB: a multipart upload
    store.commit(
        Manifest(
            kind="point",
            measurement_id="m0",
            attempt_id="a0",
            status="ok",
            created_unix_ns=1,
            files=(part,),
        )
    )
    assert (
        store.read("token_events", ["gaps_us"])["gaps_us"]
        .combine_chunks()
        .flatten()
        .equals(pa.array(gaps))
    )


def test_every_third_request_refused_costs_only_time(
    s3: int, through: Callable[[str], int]
) -> None:
    port = through("third_503")
    store = Store.open(uri(port, "busy"), "exp", retry=QUICK)
    for index in range(4):
        commit_one(store, f"m{index}")
    assert store.read("token_events").num_rows == 200
    assert faults(port) >= 4
    assert Store.open(uri(s3, "busy"), "exp").winners().keys() == {"m0", "m1", "m2", "m3"}


def test_a_long_outage_does_not_cost_a_call_its_repetition(
    s3: int, through: Callable[[str], int]
) -> None:
    port = through("all_503")
    blobs = Blobs(
        parse_location(uri(port, "long")),
        Retry(replace(OBJECT_STORE, tries=110), sleep=lambda _: None),
    )
    with pytest.raises(ResultsError, match="try 110 of 110"):
        blobs.put("object", b"refused")
    assert faults(port) == 220
    assert faults(port) == 220, "a question about faults is none"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/mode/third_503", timeout=10):
        pass
    blobs.retry = Retry(replace(OBJECT_STORE, tries=1))
    for index in range(6):
        blobs.put(f"object{index}", b"written at the first try")
    assert faults(port) > 220


def test_a_lost_reply_is_not_taken_for_a_lost_object(
    s3: int, through: Callable[[str], int]
) -> None:
    port = through("lost_reply")
    store = Store.open(uri(port, "lost"), "exp", retry=QUICK)
    manifest = commit_one(store)
    store.commit(manifest)
    assert faults(port) >= 2
    direct = Store.open(uri(s3, "lost"), "exp")
    assert direct.manifests() == [manifest]
    assert direct.read("token_events")["gaps_us"].to_pylist() == GAPS["gaps_us"].to_pylist()


def test_what_is_computed_is_kept_in_the_bucket_and_found_through_refusals(
    s3: int, through: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computed_cache, "FILES_PER_MERGE", 4)
    for index in range(9):
        rows = [request(nth, nth, first_ms=nth + 100 + index) for nth in range(3)]
        store = Store.open(uri(s3, "kept"), "exp")
        commit_measurement(store, f"m{index}", rows, attempt_id=f"a{index}", repeat=index)
        compute_ahead(store)  # each time one more attempt, and one more pool of all
    monkeypatch.setattr(
        attempt_summary, "read_attempt", lambda *_: pytest.fail("it was computed already")
    )
    busy = open_results(uri(through("third_503"), "kept"))
    busy._stores["exp"] = Store.open(busy.uri, "exp", retry=QUICK)
    (point,) = load_points(busy.store("exp"))
    assert (len(point.used_repeats), point.figures.requests.scheduled) == (9, 27)
    assert point.figures.ttft_ms is not None
    assert point.figures.ttft_ms.p50 == 104
    assert busy.store("exp").winners().keys() == {f"m{index}" for index in range(9)}


def test_a_store_that_is_down_is_given_up_after_five_tries_with_its_words(
    through: Callable[[str], int],
) -> None:
    pauses: list[float] = []
    retry = Retry(sleep=pauses.append)
    with pytest.raises(ResultsError, match=r"try 5 of 5.*SLOW_DOWN"):
        write_one(Store.open(uri(through("all_503"), "down"), "exp", retry=retry))
    assert len(pauses) == 4
    assert all(0.5 * 2**index <= pause <= 2**index for index, pause in enumerate(pauses))


def test_a_bucket_that_is_not_there_is_bad_input_at_once(s3: int) -> None:
    never = Retry(sleep=lambda _: pytest.fail("must not wait"))
    with pytest.raises(InputError, match="NO_SUCH_BUCKET"):
        Store.open(uri(s3, "x", bucket="nowhere"), "exp", retry=never).check_writable()
    with pytest.raises(InputError, match="no results at"):
        open_results(uri(s3, "empty"))


def test_best_of_results_in_a_bucket_ends_with_a_command_that_goes_on_there(s3: int) -> None:
    plan = planned()
    store = Store.open(uri(s3, "next-step"), plan.name)
    store.write_plan(plan.to_json())
    store_attempt(store, plan, plan.points[0])  # the other points are not measured
    lines = invoke("best", store.uri).stderr.splitlines()
    (proposed,) = [line for line in lines if line.startswith("next: ")]
    words = shlex.split(proposed)
    # a plan in a bucket is no file: EXPERIMENT stands for the experiment file
    assert words[1:6] == ["orchestrator", "run", "EXPERIMENT", "--results", store.uri]
