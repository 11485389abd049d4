"""The part of a point that its figures are about."""

from __future__ import annotations

from typing import NamedTuple


class MeasuredWindow(NamedTuple):
    """From ``start_ns`` to right before ``end_ns``, in nanoseconds since the point's start."""

    start_ns: int
    end_ns: int

    @property
    def length_s(self) -> float:
        """The length in seconds; 0 where it ends before it starts."""
        return max(self.end_ns - self.start_ns, 0) / 1e9
