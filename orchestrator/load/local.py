"""A point with clients on this machine: in this process, or in several of their own.

With a progress callback every client has its own process: drawing in the client's process would stop its reads.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING

from orchestrator.errors import InputError, OrchestratorError
from orchestrator.load.client import LoadClient
from orchestrator.load.light import leave_pandas_out
from orchestrator.load.point import ClientResult, ClientStats, LoadPoint, Progress
from orchestrator.load.validity import Verdict, judge

if TYPE_CHECKING:
    import pyarrow as pa

OnProgress = Callable[[Progress], None]
LocalResult = tuple["pa.Table", "pa.Table", list[ClientStats], Verdict]

START_DELAY_NS = 50_000_000  # from ready to start: the message reaches every process before
PROGRESS_S = 0.5
JOIN_S = 5.0


def run_local(point: LoadPoint, clients: int = 1, on_progress: OnProgress | None = None) -> LocalResult:
    """Runs a point; returns requests, token_events (ordered by request_index), each client's stats and the verdict.

    A client process that dies leaves rows with status ``lost``. Raises InputError for a point that cannot be run.
    """
    if clients == 1 and on_progress is None:
        client = LoadClient()
        client.prepare(point)
        result = client.run(time.monotonic_ns() + START_DELAY_NS)
        return result.requests, result.token_events, [result.stats], judge(result.requests, [result.stats], point)
    workers: list[_Worker] = []
    try:
        for index in range(clients):
            workers.append(_Worker(point, index, clients))
        _run_workers(workers, on_progress or _ignore)
    finally:
        for worker in workers:
            worker.close()
    return _merge(workers, point)


def _ignore(progress: Progress) -> None:
    return


def _run_workers(workers: list[_Worker], on_progress: OnProgress) -> None:
    _collect(workers, lambda worker: worker.ready, _ignore)
    errors = [worker.error for worker in workers if worker.error is not None]
    if errors:
        raise errors[0]
    start_ns = time.monotonic_ns() + START_DELAY_NS
    for worker in workers:
        worker.start(start_ns)
    _collect(workers, lambda worker: False, on_progress)


def _collect(workers: list[_Worker], done: Callable[[_Worker], bool], on_progress: OnProgress) -> None:
    """Takes in messages until every worker is over or ``done``."""
    while busy := [worker for worker in workers if not (worker.over or done(worker))]:
        for ready in wait([worker.pipe for worker in busy]):
            next(worker for worker in busy if worker.pipe is ready).receive()
        on_progress(_total([worker.progress for worker in workers]))


def _total(parts: Sequence[Progress]) -> Progress:
    return Progress(*(sum(getattr(part, field.name) for part in parts) for field in fields(Progress)))


def _merge(workers: list[_Worker], point: LoadPoint) -> LocalResult:
    import pyarrow as pa

    from orchestrator.load.lost import lost_requests

    results = [worker.result for worker in workers]
    requests = [
        lost_requests(point, index, len(workers), workers[index].died) if result is None else result.requests
        for index, result in enumerate(results)
    ]
    events = [result.token_events for result in results if result is not None]
    stats = [result.stats for result in results if result is not None]
    table = pa.concat_tables(requests).sort_by("request_index").combine_chunks()
    if not events:
        raise OrchestratorError(f"every client process died: {workers[0].died}")
    token_events = pa.concat_tables(events).sort_by("request_index").combine_chunks()
    return table, token_events, stats, judge(table, stats, point)


class _Worker:
    """One client process and what it said so far."""

    def __init__(self, point: LoadPoint, index: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy whatever threads and sockets are here
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs, index, count, point), daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False
        self.over = False
        self.progress = Progress()
        self.result: ClientResult | None = None
        self.error: Exception | None = None
        self.died = ""

    def start(self, start_ns: int) -> None:
        try:
            self.pipe.send(start_ns)
        except OSError:
            return  # it died: receive() finds out

    def receive(self) -> None:
        """One message: Progress, ClientResult, an error, or the number of entries (ready)."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(JOIN_S)
            self.over, self.died = True, f"client process ended with exit code {self.process.exitcode}"
            return
        if isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, ClientResult):
            self.result, self.over = message, True
        elif isinstance(message, Exception):
            self.error, self.over = message, True
        else:
            self.ready = True

    def close(self) -> None:
        """Nothing is left of it afterwards."""
        self.pipe.close()
        if not self.over:
            self.process.kill()
        self.process.join(JOIN_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _work(pipe: Connection, index: int, count: int, point: LoadPoint) -> None:
    """The life of a client process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    leave_pandas_out()
    with suppress(OSError, EOFError):  # the parent is gone: nobody is left to tell
        _run(LoadClient(index, count), point, pipe)


def _run(client: LoadClient, point: LoadPoint, pipe: Connection) -> None:
    try:
        pipe.send(client.prepare(point))
    except InputError as error:
        pipe.send(error)
        return
    start_ns: int = pipe.recv()
    stopped = threading.Event()
    reporter = threading.Thread(target=_report, args=(pipe, client, stopped), daemon=True)
    reporter.start()
    result = client.run(start_ns)
    stopped.set()
    reporter.join()
    pipe.send(client.progress())
    pipe.send(result)


def _report(pipe: Connection, client: LoadClient, stopped: threading.Event) -> None:
    """Sends progress; gives up when nobody reads it any more."""
    while not stopped.wait(PROGRESS_S):
        try:
            pipe.send(client.progress())
        except OSError:
            client.abort()
            return
