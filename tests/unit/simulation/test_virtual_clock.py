from __future__ import annotations

from ulid import ULID

from orchestrator.simulation.virtual_clock import EPOCH_NS, VirtualClock, ulid_at


def test_the_clock_begins_at_a_fixed_time_and_goes_on_when_told() -> None:
    clock = VirtualClock()
    assert clock.now_s == 0.0
    clock.go_on(1.5)
    assert clock.now_s == 1.5
    assert clock.unix_ns == EPOCH_NS + 1_500_000_000


def test_ids_follow_from_time_and_names() -> None:
    first = ulid_at(EPOCH_NS, "m", 0)
    assert first == ulid_at(EPOCH_NS, "m", 0)
    assert len({first, ulid_at(EPOCH_NS, "m", 1), ulid_at(EPOCH_NS, "n", 0)}) == 3
    assert ULID.from_str(first).milliseconds == EPOCH_NS // 1_000_000
    assert first < ulid_at(EPOCH_NS + 1_000_000, "a")
