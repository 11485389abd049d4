"""One load client on its node, whether a thread, a process or an actor runs it. No Ray in here."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.base.errors import (
    OrchestratorError,
    PlacementError,
    Problem,
    ProblemsError,
    ResultsError,
)
from orchestrator.cluster.base import ClientProcess, ClientReport
from orchestrator.cluster.calls import in_thread
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint
from orchestrator.node.leases import Lease, Owner, folder_problem, living
from orchestrator.results.ids import new_ulid
from orchestrator.results.temporary_files import check_free_space
from orchestrator.workloads.content import local_tokenizer

if TYPE_CHECKING:
    from orchestrator.results.row_writer import RowFile
    from orchestrator.results.store import FilePart, Store

# How long the storage may take for a client's rows. After that the driver stores them, and waits
# longer.
STORE_LIMIT_S = 40.0


def reach_problem(store: Store) -> str | None:
    """Why this node cannot take part: it does not see the driver's plan, it cannot write results,
    or nothing can be leased on it. None if it can take part.
    """
    try:
        if store.plan() is None:
            return (
                f"{store.uri} is a folder of the driver's machine that this node does not see; "
                "give --results s3://... or a folder that all nodes share"
            )
        store.check_writable()
    except OrchestratorError as error:
        if store.is_local:
            return str(error)
        return f"{error}; every node needs credentials of its own, and none are passed on"
    return folder_problem()


def check_leases_here() -> None:
    """Raises ProblemsError if nothing can be leased on this machine."""
    problem = folder_problem()
    if problem is not None:
        raise ProblemsError([Problem(problem)])


class ClientHost(LoadClient):
    """A load client that keeps off the engines' cores and writes its own rows to the store."""

    def __init__(self) -> None:
        super().__init__()
        self._all_cores = os.sched_getaffinity(0)
        self._cores = self._all_cores
        self._lease: Lease | None = None
        self._point: LoadPoint | None = None
        self._writer = ""

    def process(self) -> ClientProcess:
        """The process that it runs in, so that its CPU use is not taken for that of another program."""
        return ClientProcess(socket.gethostname(), os.getpid())

    def wall_ns(self) -> int:
        """This host's wall clock, to find its offset from the driver's."""
        return time.time_ns()

    def reach_problem(self, store: Store) -> str | None:
        return reach_problem(store)

    def lease(self, owner: Owner) -> bool:
        """Leases a share of this host for a launch of this owner. Returns whether the host is unfit
        for a client.

        It is unfit if another sweep has it for itself or is the next to get it, or if there is no
        room for rows. It is not unfit only because nothing can be leased on it.
        """
        self._lease = self._lease or Lease(f"client-{new_ulid()}")
        is_held_by_others = False
        with suppress(PlacementError, OSError):
            is_held_by_others = self._lease.share(owner)
        try:
            check_free_space()
        except ResultsError:
            return True
        return is_held_by_others

    def release_lease(self) -> bool:
        """Releases the lease, until another launch borrows this client. Returns True: the answer
        shows the caller that the client is alive.
        """
        if self._lease is not None:
            self._lease.release()
        return True

    def prepare(self, point: LoadPoint, index: int = 0, count: int = 1) -> int:
        """Prepares like a LoadClient, and chooses cores that no engine leases, if there are any.
        Raises ResultsError where rows cannot be kept.
        """
        check_free_space()
        if self._lease is not None:
            self._lease.touch()
        with suppress(PlacementError):
            leased: set[int] = set()
            for holding in living():
                leased.update(holding.cores)
            self._cores = (self._all_cores - leased) or self._all_cores
        point = replace(point, tokenizer=local_tokenizer(point.tokenizer))
        self._point = point
        self._writer = f"client{index:04d}"  # names sort in the order of the clients
        cores_of_thread = os.sched_getaffinity(0)
        # threads that encode a long text inherit it: engines of others may be measured on their cores
        os.sched_setaffinity(0, self._cores)
        try:
            return super().prepare(point, index, count)
        finally:
            os.sched_setaffinity(0, cores_of_thread)

    def run_and_store(
        self, start_wall_ns: int, offset_ns: int, error_ns: int, store: Store | None
    ) -> ClientReport:
        """Sends load from ``start_wall_ns`` on, by this host's wall clock, and writes the rows to
        ``store``. ``offset_ns``, ``error_ns``: how far this clock is off the driver's, and how
        exactly that is known.

        The report leaves out token events that are stored and too many to be passed on.
        """
        assert self._point
        # this applies to the calling thread alone, which is the one that sends
        os.sched_setaffinity(0, self._cores)
        start_ns = time.monotonic_ns() + (start_wall_ns - time.time_ns())
        result = self.run(start_ns)
        requests = result.requests_file
        token_events = result.token_events_file
        stored: tuple[FilePart, ...] = ()
        if store is not None:
            stored = self._store_rows(store, [requests, token_events])
        is_left_out = bool(stored) and not token_events.small
        return ClientReport(
            stats=replace(result.stats, clock_offset_ns=offset_ns, clock_error_ns=error_ns),
            stored=stored,
            requests=requests,
            token_events=None if is_left_out else token_events,
            replies=result.replies,
        )

    def _store_rows(self, store: Store, parts: Sequence[RowFile]) -> tuple[FilePart, ...]:
        """Stores its rows. Returns their files, or none when the storage refuses or does not answer
        in time. A file that arrives later does no harm, because no manifest names it.
        """
        point = self._point
        assert point
        keys = {
            "measurement_id": point.measurement_id,
            "attempt_id": point.attempt_id,
            "writer": self._writer,
        }
        call = in_thread(lambda: tuple(store.put_part(part, **keys) for part in parts))
        with suppress(ResultsError, TimeoutError):
            stored: tuple[FilePart, ...] = call.result(STORE_LIMIT_S)
            return stored
        return ()
