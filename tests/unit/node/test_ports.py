"""Ports: free ones, of our range, never one that was given."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from orchestrator.base.errors import PlacementError
from orchestrator.node import leases
from orchestrator.node.leases import FIRST_PORT, LAST_PORT, free_ports, is_free


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_ports_lie_in_the_range_that_ray_and_the_kernel_leave_alone() -> None:
    taken = free_ports(5, (), rng())
    assert len(set(taken)) == 5
    assert all(21000 <= port <= 31999 for port in taken)


def test_leased_ports_are_not_given_again() -> None:
    first = free_ports(3, (), rng())
    assert not set(first) & set(free_ports(3, first, rng()))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_someone_listens_on_is_not_free(address: str) -> None:
    expected = free_ports(1, (), rng())[0]
    with socket.create_server((address, expected)):
        assert not is_free(expected)
        assert expected not in free_ports(3, (), rng())
    assert is_free(expected)


def test_the_search_wraps_around_at_the_end_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last:
        def integers(self, low: int, high: int) -> int:
            return high - 1

    monkeypatch.setattr(leases, "is_free", lambda port: True)
    assert free_ports(2, (), Last()) == [LAST_PORT, FIRST_PORT]  # type: ignore[arg-type]


def test_too_few_free_ports_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "is_free", lambda port: False)
    with pytest.raises(PlacementError, match="fewer than 2 free ports"):
        free_ports(2, (), rng())
