"""A load client on its node: its lease, and rows that the storage does not take."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.base.errors import InputError, Occupied, ResultsError
from orchestrator.cluster.client_host import ClientHost, reach_problem
from orchestrator.cluster.local import LocalCluster
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint
from orchestrator.node.leases import Lease, Owner, Wish, living
from orchestrator.results.store import Store
from tests.unit.cluster.points import point_for


def test_no_other_sweep_gets_the_host_of_a_borrowed_client() -> None:
    cluster = LocalCluster(None, client_limit=1, watched=False)
    other_launch = Lease("other-launch")
    whole_host = Wish(Owner("other-sweep"), exclusive=True)
    clients = cluster.clients(1, {})
    with pytest.raises(Occupied, match="held by a load client"):
        other_launch.take(whole_host)
    clients.release()
    other_launch.take(whole_host)
    clients = cluster.clients(1, {})  # beside the other launch, because there is no other host
    assert sorted(holding.client for holding in living()) == [False, True]
    other_launch.release()
    clients.release()
    cluster.close()
    assert living() == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no core beside an engine's")
def test_what_is_prepared_keeps_off_the_cores_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    own_cores = os.sched_getaffinity(0)
    cores_of_preparation: set[int] = set()

    def note_cores(client: LoadClient, point: LoadPoint, index: int, count: int) -> int:
        with ThreadPoolExecutor(1) as threads:  # as texts are encoded
            cores_of_preparation.update(threads.submit(os.sched_getaffinity, 0).result())
        return 0

    monkeypatch.setattr(LoadClient, "prepare", note_cores)
    engine = Lease("engine")
    cores_of_engine = engine.take(Wish(Owner("sweep"), cores=1), tuple(sorted(own_cores)))
    try:
        ClientHost().prepare(point_for("http://127.0.0.1:9"))
    finally:
        engine.release()
    assert len(cores_of_engine) == 1
    assert cores_of_preparation == own_cores - set(cores_of_engine)
    assert os.sched_getaffinity(0) == own_cores


@pytest.mark.parametrize(("hangs", "limit_s"), [(False, 60.0), (True, 0.0)])
def test_the_driver_gets_rows_that_the_storage_refuses_or_takes_too_late(
    hangs: bool, limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def put_part(*_: object, **__: object) -> None:
        if hangs:
            over.wait()
        raise ResultsError("the storage refuses")

    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)  # this thread keeps its cores
    # token events are never few enough to be reported although they are stored
    monkeypatch.setattr("orchestrator.results.row_writer.SMALL_BYTES", 0)
    monkeypatch.setattr("orchestrator.cluster.client_host.STORE_LIMIT_S", limit_s)
    host = ClientHost()
    host.prepare(point_for("http://127.0.0.1:9"))
    store = SimpleNamespace(put_part=put_part)
    report = host.run_and_store(time.time_ns(), offset_ns=0, error_ns=0, store=store)
    over.set()
    assert report.stored == ()
    assert report.requests.rows == 3
    assert report.token_events is not None


def test_a_node_that_sees_the_plan_and_writes_has_no_problem(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    store.write_plan("{}")
    assert reach_problem(store) is None
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["plan.json"]  # the probe is gone


def test_a_folder_that_only_the_driver_sees_is_named(tmp_path: Path) -> None:
    problem = reach_problem(Store.open(str(tmp_path), "x"))
    assert problem is not None
    assert "s3://" in problem


def test_a_bucket_that_cannot_be_written_says_whose_credentials_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store.open("s3://bucket/x?region=us-east-1", "x")

    def denied() -> None:
        raise InputError("results cannot be written to s3://bucket/x: ACCESS_DENIED")

    monkeypatch.setattr(store, "plan", lambda: "{}")
    monkeypatch.setattr(store, "check_writable", denied)
    problem = reach_problem(store)
    assert problem is not None
    assert "ACCESS_DENIED" in problem
    assert "credentials of its own" in problem
