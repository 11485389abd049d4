"""Latencies of every request of stored attempts, by attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.request_values import stored_limit_values
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, failed_request, request


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path), "exp")
    commit_measurement(store, "m0", [request(0, first_ms=100), request(1, first_ms=300)])
    commit_measurement(store, "m1", [failed_request(0), request(1, 5, first_ms=25)])
    return store


def test_each_attempt_has_the_values_of_its_own_requests(store: Store) -> None:
    values = stored_limit_values(store, [("m0", "a0"), ("m1", "a0")], ["ttft"])
    assert values.keys() == {("m0", "a0"), ("m1", "a0")}
    assert values["m0", "a0"].seconds["ttft"].tolist() == [0.1, 0.3]
    assert values["m1", "a0"].seconds["ttft"][1] == 0.02
    assert values["m1", "a0"].ok.tolist() == [False, True]


def test_only_the_latencies_that_are_asked_for_are_read(store: Store) -> None:
    values = stored_limit_values(store, [("m0", "a0")], ["e2e", "tpot"])
    assert values["m0", "a0"].seconds.keys() == {"e2e", "tpot"}


def test_requests_of_a_mix_come_with_their_parts(store: Store) -> None:
    rows = [request(0, part="chat"), failed_request(1, part="rag"), request(2, part="chat")]
    commit_measurement(store, "m2", rows)
    values = stored_limit_values(store, [("m0", "a0"), ("m2", "a0")], ["ttft"])
    assert values["m0", "a0"].parts is None
    assert values["m2", "a0"].of_part("rag").tolist() == [False, True, False]


def test_a_damaged_attempt_is_left_out(store: Store, tmp_path: Path) -> None:
    (path,) = (tmp_path / "exp" / "data" / "requests").rglob("m1-*.parquet")
    path.unlink()
    values = stored_limit_values(store, [("m0", "a0"), ("m1", "a0")], ["ttft"])
    assert values.keys() == {("m0", "a0")}
    assert store.damage
