"""One load client: prepares its part of a point, runs it from a given instant, returns rows.

``run`` blocks its thread; ``progress`` and ``abort`` may be called from any other.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.load.agenda import Agenda
from orchestrator.load.bodies import Bodies
from orchestrator.load.connection import resolve
from orchestrator.load.descriptors import make_room_for_sockets
from orchestrator.load.driver import Driver
from orchestrator.load.http import parse_url
from orchestrator.load.point import ClientResult, LoadPoint, Progress
from orchestrator.load.schedule import Schedule
from orchestrator.load.tokens import prompter
from orchestrator.load.wire import WIRES
from orchestrator.load.workloads import WORKLOADS


class LoadClient:
    """Client ``index`` of ``count``. One point at a time: ``prepare``, then ``run``."""

    def __init__(self, index: int = 0, count: int = 1) -> None:
        if not 0 <= index < count:
            raise ValueError(f"client {index} of {count}")
        self._index = index
        self._count = count
        self._driver: Driver | None = None
        self._progress = Progress()
        self._aborted = threading.Event()

    def prepare(self, point: LoadPoint) -> int:
        """Computes the schedule, looks hosts up and writes requests. Returns the entries known so far.

        Raises InputError when the point cannot be run.
        """
        import pyarrow  # noqa: F401  the rows' tables: loaded now, not when the run is over

        make_room_for_sockets()
        self._aborted.clear()
        prompts = prompter(point)
        kind = WORKLOADS[point.workload.kind](point.workload, prompts, point.seed)
        schedule = Schedule(point, kind.turns)
        wire = WIRES[point.dialect.wire]
        endpoints = [resolve(parse_url(target.url)) for target in point.targets]
        origins = [endpoint.origin for endpoint in endpoints]
        stripe = (self._index, self._count)
        bodies = Bodies(point, schedule, stripe, kind, wire, prompts, origins)
        bodies.ahead()
        agenda = Agenda(schedule, *stripe, point.workload.think_time)
        self._driver = Driver(point, stripe, schedule, agenda, bodies, kind, wire, endpoints)
        gc.collect()  # now: it may take longer than there is between run and the start
        if schedule.sessions is None:
            return len(schedule.slot_starts(*stripe))
        return sum(schedule.length(session) for session in schedule.stripe(*stripe))

    def run(self, start_ns: int) -> ClientResult:
        """Runs what was prepared from ``start_ns`` on (``time.monotonic_ns`` of this host); returns when all is over.

        Every scheduled request has exactly one row, whatever the servers did.
        """
        driver = self._driver
        if driver is None:
            raise RuntimeError("prepare a point before running it")
        if self._aborted.is_set():
            driver.abort()
        with _quiet_memory():
            try:
                return driver.run(start_ns, socket.gethostname(), os.getpid())
            finally:
                self._progress = driver.progress()
                self._driver = None

    def progress(self) -> Progress:
        """Counters so far, of the last run when none is on."""
        driver = self._driver
        return driver.progress() if driver is not None else self._progress

    def abort(self) -> None:
        """Ends the run now: what is open or was not sent becomes ``aborted`` rows. Also before ``run``."""
        self._aborted.set()
        driver = self._driver
        if driver is not None:
            driver.abort()


@contextmanager
def _quiet_memory() -> Iterator[None]:
    """No garbage collection during a run: a pass over all objects would stop reads for milliseconds."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
