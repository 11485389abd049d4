"""A point with clients on this machine: in this process, or in several of their own.

With a progress callback every client has its own process: drawing in the client's process would stop its reads.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

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
ABORT_S = 5.0  # given to clients to write their rows after an abort


def run_local(point: LoadPoint, clients: int = 1, on_progress: OnProgress | None = None) -> LocalResult:
    """Runs a point; returns requests, token_events (ordered by request_index), each client's stats and the verdict.

    A client process that dies leaves rows with status ``lost``. Raises InputError for a point that cannot be run.
    """
    if clients == 1 and on_progress is None:
        client = LoadClient()
        client.prepare(point)
        result = client.run(time.monotonic_ns() + START_DELAY_NS)
        return result.requests, result.token_events, [result.stats], judge(result.requests, [result.stats], point)
    workers = [_Worker(point, index, clients) for index in range(clients)]
    try:
        _run_workers(workers, on_progress or _ignore)
    except KeyboardInterrupt:
        for worker in workers:
            worker.abort()
        _collect(workers, _ignore, time.monotonic() + ABORT_S)
        raise
    finally:
        for worker in workers:
            worker.close()
    return _merge(workers, point)


def _ignore(progress: Progress) -> None:
    return


def _run_workers(workers: list[_Worker], on_progress: OnProgress) -> None:
    _collect(workers, _ignore, None, until_ready=True)
    errors = [worker.error for worker in workers if worker.error is not None]
    if errors:
        raise errors[0]
    start_ns = time.monotonic_ns() + START_DELAY_NS
    for worker in workers:
        worker.start(start_ns)
    _collect(workers, on_progress, None)


def _collect(
    workers: list[_Worker], on_progress: OnProgress, deadline_s: float | None, until_ready: bool = False
) -> None:
    """Takes in messages until every worker is over (or ready), or the deadline passed."""
    while True:
        busy = [w for w in workers if not (w.over or (until_ready and w.ready))]
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if not busy or (left_s is not None and left_s <= 0):
            return
        for ready in wait([w.pipe for w in busy], left_s):
            next(w for w in busy if w.pipe is ready).receive()
        on_progress(_total([w.progress for w in workers]))


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
        self._tell(start_ns)

    def abort(self) -> None:
        self._tell("abort")

    def receive(self) -> None:
        """One message: Progress, ClientResult, an error, or the number of entries (ready)."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(ABORT_S)
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
        self.process.join(0 if not self.over else ABORT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def _tell(self, message: int | str) -> None:
        try:
            self.pipe.send(message)
        except (OSError, ValueError):
            return  # it died: receive() finds out


def _work(pipe: Connection, index: int, count: int, point: LoadPoint) -> None:
    """The life of a client process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    leave_pandas_out()
    client = LoadClient(index, count)
    try:
        pipe.send(client.prepare(point))
    except InputError as error:
        pipe.send(error)
        return
    message: Any = pipe.recv()
    if message == "abort":
        client.abort()
        message = time.monotonic_ns()
    stopped = threading.Event()
    reporter = threading.Thread(target=_report, args=(pipe, client, stopped), daemon=True)
    reporter.start()
    result = client.run(message)
    stopped.set()
    reporter.join()
    pipe.send(client.progress())
    pipe.send(result)


def _report(pipe: Connection, client: LoadClient, stopped: threading.Event) -> None:
    """Sends progress, and listens for an abort or the parent's death."""
    while not stopped.is_set():
        try:
            if pipe.poll(PROGRESS_S) and pipe.recv() == "abort":
                client.abort()
                return
            pipe.send(client.progress())
        except (EOFError, OSError):
            client.abort()
            return
