"""Whether hosts reach each other on the ports of engines."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack

import pytest

from orchestrator.cluster import reachability
from orchestrator.node.leases import FIRST_PORT, LAST_PORT


def test_interfaces_that_variables_name_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib7,nothing")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert reachability.unknown_interfaces() == ["NCCL_SOCKET_IFNAME=ib7,nothing"]
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker")
    assert reachability.unknown_interfaces() == []


def test_listener_answers_at_its_own_address_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threading.active_count()
    port = reachability.listen(["127.0.0.1", "192.0.2.1"], 30.0)
    assert FIRST_PORT <= port <= LAST_PORT, "what a firewall does elsewhere tells nothing"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5.0)
    assert reachability._problem("127.0.0.1", port) == ""
    with ExitStack() as stack:
        for _ in range(4 * reachability.AT_ONCE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5.0))
        monkeypatch.setattr(reachability, "PATIENCE_S", 0.3)
        assert "full packets are lost" in reachability._problem("127.0.0.1", port), (
            "nobody is free for another one"
        )
        assert threading.active_count() - before <= 1 + reachability.AT_ONCE
    monkeypatch.undo()
    assert reachability._problem("127.0.0.1", port) == "", "those that left make room"


@pytest.mark.parametrize("addresses", [[], ["192.0.2.1"]])
def test_host_that_does_not_know_its_address_listens_on_all(addresses: list[str]) -> None:
    assert reachability._problem("127.0.0.2", reachability.listen(addresses, 30.0)) == ""
