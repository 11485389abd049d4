"""Ports: free ones, never twice, never another owner's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from orchestrator.engines import ports
from orchestrator.engines.ports import FIRST, LAST, Ports, is_free
from orchestrator.errors import PlacementError


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_ports_lie_in_the_range_that_ray_and_the_kernel_leave_alone(tmp_path: Path) -> None:
    taken = Ports(rng(), tmp_path).take(5)
    assert len(set(taken)) == 5
    assert all(21000 <= port <= 31999 for port in taken)


def test_no_port_is_given_twice(tmp_path: Path) -> None:
    pool = Ports(rng(), tmp_path)
    first = pool.take(3)
    assert not set(first) & set(pool.take(3))


def test_released_ports_are_free_for_others_and_hold_no_files(tmp_path: Path) -> None:
    files = len(os.listdir("/proc/self/fd"))
    first = Ports(np.random.default_rng(0), tmp_path)
    taken = first.take(6)
    assert len(os.listdir("/proc/self/fd")) == files + 6
    first.release()
    assert len(os.listdir("/proc/self/fd")) == files
    assert Ports(np.random.default_rng(0), tmp_path).take(6) == taken


def test_two_owners_with_the_same_start_get_different_ports(tmp_path: Path) -> None:
    first, second = Ports(rng(), tmp_path), Ports(rng(), tmp_path)
    assert not set(first.take(3)) & set(second.take(3))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_someone_listens_on_is_not_free(tmp_path: Path, address: str) -> None:
    expected = Ports(rng(), tmp_path).take(1)[0]
    with socket.create_server((address, expected)):
        assert not is_free(expected)
        assert expected not in Ports(rng(), tmp_path / "..").take(3)
    assert is_free(expected)


def test_the_search_wraps_around_at_the_end_of_the_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Last:
        def integers(self, low: int, high: int) -> int:
            return high - 1

    pool = Ports(Last(), tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    assert pool.take(2) == [LAST, FIRST]


def test_too_few_free_ports_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(PlacementError, match="fewer than 2 free ports"):
        Ports(rng(), tmp_path).take(2)
