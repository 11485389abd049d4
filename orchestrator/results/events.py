"""What a sweep tells while it runs: plain data for whoever watches, and for the ``events`` table."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.results.records import EventRow


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``kind`` is a stable word, ``text`` a sentence."""

    kind: str
    text: str
    deployment: str = ""  # its label
    launch_id: str = ""
    measurement_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    unix_ns: int = field(default_factory=time.time_ns)

    def row(self) -> EventRow:
        """As it is stored."""
        return EventRow(
            unix_ns=self.unix_ns,
            kind=self.kind,
            launch_id=self.launch_id or None,
            measurement_id=self.measurement_id or None,
            text=self.text,
            data_json=json.dumps(dict(self.data)) if self.data else None,
        )


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests of a running point are over, under way and failed; ``total``: 0 where it is not known."""

    done: int
    in_flight: int
    failed: int
    total: int = 0


@dataclass(frozen=True, slots=True)
class Phase:
    """What a launch is doing now; for display only. ``total_s`` 0: not known. ``says``: what it says of itself."""

    deployment: str  # its label; empty for `load`
    name: str  # wait | place | start | answers | warm-up | measure | store | stop | ended
    detail: str = ""
    elapsed_s: float = 0.0
    total_s: float = 0.0
    requests: RequestCounts | None = None
    says: str = ""


Listener = Callable[[Event | Phase], None]  # called from several threads
