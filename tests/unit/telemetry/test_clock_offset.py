"""The offset of another host's clock, and that its error bounds how wrong it is."""

from __future__ import annotations

import pytest

from orchestrator.telemetry.clock_offset import clock_offset


@pytest.mark.parametrize(("out_ns", "back_ns"), [(100, 100), (900, 100), (0, 2000)])
def test_the_true_offset_lies_within_the_error(out_ns: int, back_ns: int) -> None:
    """However unevenly a round trip is split."""
    now_ns = 0
    true_ns = 123_456

    def read_clock() -> int:
        nonlocal now_ns
        now_ns += out_ns
        answer_ns = now_ns + true_ns
        now_ns += back_ns
        return answer_ns

    offset = clock_offset(read_clock, own_clock=lambda: now_ns)
    assert abs(offset.ns - true_ns) <= offset.error_ns == (out_ns + back_ns) // 2


def test_the_fastest_round_trip_counts() -> None:
    trips_ns = iter([5000, 40, 9000])
    now_ns = 0

    def read_clock() -> int:
        nonlocal now_ns
        now_ns += next(trips_ns)
        return now_ns + 7

    offset = clock_offset(read_clock, rounds=3, own_clock=lambda: now_ns)
    assert offset.error_ns == 20


def test_one_host_has_one_clock() -> None:
    import time

    offset = clock_offset(time.time_ns)
    assert abs(offset.ns) <= offset.error_ns < 1_000_000
