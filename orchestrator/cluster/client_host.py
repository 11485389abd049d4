"""One load client on its node, called by whoever runs it: a thread, a process or an actor. No Ray in here."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cluster.base import ClientReport
from orchestrator.cluster.calls import in_thread
from orchestrator.engines.leases import living
from orchestrator.errors import OrchestratorError, PlacementError, ResultsError
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Progress, SoFar

if TYPE_CHECKING:
    from orchestrator.results.spool import Part
    from orchestrator.results.store import FilePart, Store

STORE_LIMIT_S = 40.0  # then the driver gets the rows and stores them: it has more patience


def local_tokenizer(name: str | None) -> str | None:
    """The tokenizer as files on this node: a folder, a file, or what the hub's cache holds of a model.

    None where there is none (a GGUF file is none): prompts are then token ids from a range that every vocabulary has,
    or plain words.
    """
    path = Path(name or "")
    if name is None or path.is_file():
        return None if path.suffix == ".gguf" else name
    if path.is_dir():
        return name
    from huggingface_hub import try_to_load_from_cache

    hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name)  # no `repository:quantization`
    cached = try_to_load_from_cache(name, "tokenizer.json") if hub_id else None
    return cached if isinstance(cached, str) else None


def reach_problem(store: Store) -> str | None:
    """Why rows written on this node would not arrive: the driver's plan is not seen, or nothing can be written."""
    try:
        if store.plan() is None:
            return (
                f"{store.uri} is a folder of the driver's machine that it does not see; "
                "give --results s3://... or a folder that all nodes share"
            )
        store.check_writable()
    except OrchestratorError as error:
        needs = "" if store.is_local else "; every node needs credentials of its own, none are taken along"
        return f"{error}{needs}"
    return None


class ClientHost:
    """One load client: runs its stripe of a point and writes its own rows to the store."""

    def __init__(self) -> None:
        self._all_cores = os.sched_getaffinity(0)
        self._cores = self._all_cores
        self._client: LoadClient | None = None
        self._point: LoadPoint | None = None
        self._writer = ""

    def process(self) -> tuple[str, int]:
        """Its host's name and its pid: for those who look at what others do there."""
        return socket.gethostname(), os.getpid()

    def wall_ns(self) -> int:
        """This host's wall clock: for the offset to the driver's."""
        return time.time_ns()

    def reach_problem(self, store: Store) -> str | None:
        return reach_problem(store)

    def held_by_others(self, sweep: str) -> bool:
        """Whether another sweep has this host for itself."""
        with suppress(PlacementError):
            return any(one.exclusive and one.sweep != sweep for one in living())
        return False

    def prepare(self, point: LoadPoint, index: int, count: int) -> int:
        """Build the schedule and the bodies; returns entries known. It keeps off cores of engines, whoever's they are,
        where others remain."""
        with suppress(PlacementError):
            taken = {core for one in living() for core in one.cores}
            self._cores = (self._all_cores - taken) or self._all_cores
        point = replace(point, tokenizer=local_tokenizer(point.tokenizer))
        self._point, self._writer = point, f"client{index}"
        self._client = LoadClient(index, count)
        return self._client.prepare(point)

    def run(self, start_wall_ns: int, offset_ns: int, error_ns: int, store: Store | None) -> ClientReport:
        """Load from that instant of this host's wall clock on; rows go to the store where one is given, and come back
        with the report where it does not take them.
        """
        assert self._client and self._point
        os.sched_setaffinity(0, self._cores)  # the calling thread's, and this is the one that loads
        start_ns = time.monotonic_ns() + (start_wall_ns - time.time_ns())
        result = self._client.run(start_ns)
        stored = self._stored(store, result.parts) if store else ()
        stats = replace(result.stats, clock_offset_ns=offset_ns, clock_error_ns=error_ns)
        requests, token_events = result.parts
        return ClientReport(stats, stored, requests, None if stored else token_events, result.replies)

    def _stored(self, store: Store, parts: Sequence[Part]) -> tuple[FilePart, ...]:
        """Where its rows are now; nowhere when the storage refuses or is silent. What it takes later does no harm."""
        assert self._point
        keys = {
            "measurement_id": self._point.measurement_id,
            "attempt_id": self._point.attempt_id,
            "writer": self._writer,
        }
        call = in_thread(lambda: tuple(store.put_part(part, **keys) for part in parts))
        try:
            stored: tuple[FilePart, ...] = call.result(STORE_LIMIT_S)
        except (ResultsError, TimeoutError):
            return ()
        return stored

    def progress(self) -> Progress:
        """Counters so far, from any thread."""
        return self._client.progress() if self._client else Progress()

    def so_far(self) -> SoFar | None:
        """Of a watched point that runs, what was not told before; from any thread."""
        return self._client.so_far() if self._client else None

    def finish(self, at_ns: int, drain: bool) -> None:
        """End the point so long after its start. ``drain``: what is open then is waited for."""
        if self._client:
            self._client.finish(at_ns, drain)

    def abort(self, rows: bool = True) -> None:
        """Stop sending. ``rows``: also of what is open or not yet sent."""
        if self._client:
            self._client.abort(rows)
