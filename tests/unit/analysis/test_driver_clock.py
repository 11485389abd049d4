"""Times of readings on other hosts, by the driver's clock."""

from __future__ import annotations

import pyarrow as pa

from orchestrator.analysis.driver_clock import driver_unix_ns

NOW_NS = 1_700_000_000_000_000_001  # a float would lose its last digits


def readings(*offsets_ns: int | None) -> pa.Table:
    """One reading at the same time by each of these clocks."""
    columns = {"unix_ns": [NOW_NS] * len(offsets_ns), "clock_offset_ns": offsets_ns}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def test_how_far_a_clock_is_ahead_is_taken_off() -> None:
    assert driver_unix_ns(readings(40, -3)).tolist() == [NOW_NS - 40, NOW_NS + 3]


def test_a_clock_of_unknown_offset_counts_as_the_drivers() -> None:
    assert driver_unix_ns(readings(40, None)).tolist() == [NOW_NS - 40, NOW_NS]
