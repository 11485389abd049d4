"""Self-checks of client hosts: once each, stored, told when they fail, and held against the load of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.cli.results_hosts import host_sentence
from orchestrator.load.point import ClientStats
from orchestrator.load.validity import Verdict
from orchestrator.results.store import Store
from orchestrator.runner.events import Event, Journal
from orchestrator.runner.hosts import HostBook, held_against

FOUND = {
    "host": "a", "cpus": 2, "python": "3.11", "client_version": "x", "clients": 1, "events_per_s": 1000.0,
    "limited_by": "client", "cpu_us_per_event": 9.0, "cpu_share": 0.5, "loop_lag_p99_ms": 0.4,
    "ttft_error_ms": {"mean": 0.1, "p99": 0.3}, "itl_error_ms": {"mean": 0.0, "p99": 0.1},
    "ttft_error_ms_at_limit": {"mean": 0.3, "p99": 0.4}, "send_lag_p99_ms": 0.2, "open_loop_requests_per_s": 500.0,
    "took_s": 3.9,
}  # fmt: skip
STATS = ClientStats(0, 2.0, 0.1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0, host="a")


@dataclass
class FakeClients:
    """Clients on these addresses; ``asked`` are the members that were checked."""

    addresses: Sequence[str]
    answer: dict[str, Any] = field(default_factory=lambda: dict(FOUND))
    asked: list[int] = field(default_factory=list)

    def selfcheck(self, members: Sequence[int], limit_s: float) -> list[dict[str, Any]]:
        self.asked += members
        return [self.answer for _ in members]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "x")


def check(book: HostBook, clients: FakeClients, **starting: int) -> None:
    book.check(clients, starting)  # type: ignore[arg-type]


def test_each_host_is_checked_once_by_one_of_its_clients(store: Store) -> None:
    book, clients = HostBook(store, Journal()), FakeClients(["h1", "h1", "h2"])
    check(book, clients)
    assert clients.asked == [0, 2]
    check(book, clients)
    assert clients.asked == [0, 2]
    check(book, more := FakeClients(["h2", "h3"]))
    assert more.asked == [1]
    assert [row["address"] for row in book.rows()] == ["h1", "h2", "h3"]


def test_a_check_is_stored_at_once_and_read_back_with_its_figures(store: Store) -> None:
    check(HostBook(store, Journal()), FakeClients(["h1"]), h1=2)
    (row,) = Store.open(store.uri, "x").read("selfchecks").to_pylist()
    assert (row["host"], row["events_per_s"], row["limited_by"]) == ("a", 1000.0, "client")
    assert (row["ttft_error_mean_ms"], row["itl_error_p99_ms"]) == (0.1, 0.1)
    assert row["engines_starting"] == 2
    assert store.done() == set()  # it is no measurement


def test_a_host_that_cannot_be_checked_is_a_row_and_is_told(store: Store) -> None:
    told: list[Any] = []
    check(HostBook(store, Journal(told.append)), FakeClients(["h1"], {"error": "it did not end within 24 s"}))
    (row,) = store.read("selfchecks").to_pylist()
    assert (row["status"], row["reason"], row["events_per_s"]) == ("failed", "it did not end within 24 s", None)
    assert [one.kind for one in told if isinstance(one, Event)] == ["selfcheck"]
    assert "failed" in host_sentence(row)


def test_a_lower_bound_is_called_one() -> None:
    row = FOUND | {"status": "ok", "address": "h", "engines_starting": 1}
    row |= {"ttft_error_mean_ms": 0.1, "limited_by": "time"}
    assert "at least 1,000 events/s" in host_sentence(row)
    assert "1 engine rank(s) starting beside it" in host_sentence(row)
    assert "at least" not in host_sentence(row | {"limited_by": "client"})
    assert "kept up with no rate" in host_sentence(row | {"events_per_s": 0.0})


def requests(events: int, client: int = 0) -> pa.Table:
    return pa.table({"chunks": pa.array([events], pa.int32()), "client": pa.array([client], pa.int16())})


VALID = Verdict("valid", [], {"offered_rate": 1.0})


def test_a_load_above_what_its_host_carries_gets_said_and_changes_no_verdict() -> None:
    hosts = {"h1": {"events_per_s": 1000.0, "limited_by": "client"}}
    found = held_against(VALID, requests(3000), [STATS], ["h1"], hosts)  # 1,500 events/s over 2 s
    assert found.validity == "valid"
    assert found.evidence["selfcheck_share"] == pytest.approx(1.5)
    assert len(found.reasons) == 1
    assert "1,500 events/s" in found.reasons[0]
    assert "host a kept up with 1,000" in found.reasons[0]


@pytest.mark.parametrize(("events", "limited_by"), [(1000, "client"), (3000, "time"), (3000, "server")])
def test_a_load_that_may_be_carried_is_evidence_only(events: int, limited_by: str) -> None:
    hosts = {"h1": {"events_per_s": 1000.0, "limited_by": limited_by}}
    found = held_against(VALID, requests(events), [STATS], ["h1"], hosts)
    assert found.reasons == []
    assert found.evidence["selfcheck_share"] == pytest.approx(events / 2000)


def test_each_client_is_held_against_its_own_host() -> None:
    hosts = {"h1": {"events_per_s": 1000.0, "limited_by": "client"}, "h2": {"events_per_s": None, "limited_by": None}}
    stats = [STATS, replace(STATS, client=1, host="b")]
    assert held_against(VALID, requests(9000, client=1), stats, ["h1", "h2"], hosts) == VALID
    assert held_against(VALID, requests(9000, client=1), stats, ["h1", "h1"], hosts).reasons[0].startswith("client 1")
