"""What a sweep tells while it runs: plain data for the progress display and for the ``events`` table."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from orchestrator.load.point import Progress
from orchestrator.results.schemas import EVENTS


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``kind`` is a stable word, ``text`` a sentence."""

    kind: str
    text: str
    deployment: str = ""
    launch_id: str = ""
    measurement_id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    unix_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a launch is doing now; for the display only. ``total_s`` 0: nobody knows how long."""

    deployment: str
    name: str  # place | start | self-check | warm-up | measure | commit | stop | ended
    detail: str = ""
    elapsed_s: float = 0.0
    total_s: float = 0.0
    progress: Progress | None = None


Listener = Callable[[Event | Phase], None]


class Journal:
    """Collects events and passes everything on to a listener. Thread-safe; so must the listener be."""

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._unwritten: list[Event] = []

    def tell(self, item: Event | Phase) -> None:
        """Note an event, show either."""
        if isinstance(item, Event):
            with self._lock:
                self._unwritten.append(item)
        if self._listener:
            self._listener(item)  # outside the lock: it has one of its own

    def take(self) -> pa.Table:
        """Events not yet written, as rows."""
        with self._lock:
            events, self._unwritten = self._unwritten, []
        rows = [
            {
                "unix_ns": event.unix_ns,
                "kind": event.kind,
                "launch_id": event.launch_id or None,
                "measurement_id": event.measurement_id or None,
                "text": event.text,
                "data_json": json.dumps(dict(event.data)) if event.data else None,
            }
            for event in events
        ]
        return pa.Table.from_pylist(rows, schema=EVENTS)
