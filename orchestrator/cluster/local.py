"""This machine as a cluster, without Ray. An engine runs under a guard process, and a client in a
process of its own.
"""

from __future__ import annotations

import io
import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import reduction, resource_tracker, util
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any

from orchestrator.base.errors import InputError, PlacementError
from orchestrator.base.text import counted
from orchestrator.cluster.base import (
    Avoidance,
    Footprint,
    Growth,
    HostLost,
    Machine,
    NoAnswer,
    PlacementDeadline,
)
from orchestrator.cluster.calls import Arguments, T, crossing, in_thread
from orchestrator.cluster.client_host import ClientHost, check_leases_here
from orchestrator.cluster.clients import BorrowedClients, ClientPool
from orchestrator.cluster.protocol import ASK_LIMIT_S, Placement
from orchestrator.load.sockets import raise_open_files_limit
from orchestrator.results.pandas_hook import leave_pandas_out
from orchestrator.results.row_writer import RowFile
from orchestrator.results.temporary_files import reopened

if TYPE_CHECKING:
    from orchestrator.cluster.engine_host import EngineHost
    from orchestrator.results.store import Store

NODE_ID = "local"
ADDRESS = "127.0.0.1"
END_LIMIT_S = 5.0  # for a client process to end
# signals that a terminal or service sends to every process, and to which only the driver reacts
DRIVERS_OWN = (signal.SIGINT, signal.SIGTERM)


class LocalCluster:
    """This machine as the only node. Everything started on it ends with the driver, however the
    driver dies.

    ``client_limit``: the most load clients. ``watched``: progress is shown while they load, and
    drawing it would delay their reads; so clients run in this process only where there is a single
    one and progress is not shown.
    """

    def __init__(
        self, store: Store | None, client_limit: int | None = None, watched: bool = True
    ) -> None:
        """Raises InputError on a system where nothing can be measured."""
        if not hasattr(os, "sched_getaffinity"):
            raise InputError(
                "engines and load clients run on Linux alone, since what they and other programs use "
                "of a machine is read from its kernel; plan, simulate, results and best run here, too"
            )
        raise_open_files_limit()  # the rows of every client are open files
        self.note: str | None = None
        cores = len(os.sched_getaffinity(0))
        self._client_limit = client_limit or max(1, cores // 2)
        in_this_process = self._client_limit == 1 and not watched
        self._pool = ClientPool(
            store,
            ADDRESS,
            lambda: [Machine(NODE_ID, ADDRESS)],
            lambda _: ClientThread() if in_this_process else ClientProcess(),
        )
        self._change = threading.Condition()
        self._used_gpus: set[str] = set()
        self._cpus = float(cores)
        self._free_cpus = self._cpus
        self._hosts: list[EngineHost] = []

    @cached_property
    def _gpus(self) -> tuple[str, ...]:
        """Indices of this machine's GPUs, or those that an environment variable names. The load
        command never asks for them.
        """
        from orchestrator.cluster.engine_host import assigned_gpus
        from orchestrator.telemetry.gpus import gpus

        if {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} & os.environ.keys():
            return assigned_gpus()
        return tuple(str(gpu.index) for gpu in gpus())

    def machines(self) -> list[Machine]:
        return [Machine(NODE_ID, ADDRESS, len(self._gpus), self._cpus)]

    def leaving(self) -> Mapping[str, float]:
        return {}

    def watch(self, tell: Callable[[str], None], stop: threading.Event) -> None:
        return

    def growth(self) -> Growth:
        return Growth(may_grow=False)

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        return

    def probes(self) -> LocalProbes:
        return LocalProbes(self.machines())

    def check_nodes(self) -> list[str]:
        # the driver itself has written to the results already
        check_leases_here()
        return []

    def place(
        self,
        launch_id: str,
        footprint: Footprint,
        nodes: Sequence[str],
        deadline: PlacementDeadline,
    ) -> Placement:
        from orchestrator.cluster.engine_host import EngineHost  # not needed by the load command

        bundle = footprint.bundles[0]
        (machine,) = self.machines()
        too_much = bundle.gpus > machine.gpus or bundle.cpus > machine.cpus
        if too_much or footprint.labels or list(nodes) != [NODE_ID]:
            gpus = counted(machine.gpus, "GPU")
            cpus = counted(machine.cpus, "CPU")
            text = f"this machine, with {gpus} and {cpus}, cannot give {footprint}"
            raise PlacementError(text)
        with ExitStack() as undo:
            taken_gpus = self._take(footprint, deadline)
            undo.callback(self._give_back, taken_gpus, bundle.cpus)
            host = EngineHost(launch_id, NODE_ID, ADDRESS, taken_gpus)
            undo.callback(self._hosts.remove, host)
            self._hosts.append(host)
            undo.callback(host.stop)
            return Placement([host], undo.pop_all().close)

    def _take(self, footprint: Footprint, deadline: PlacementDeadline) -> tuple[str, ...]:
        """Reserves the GPUs and CPUs of the footprint's one bundle. Returns the GPUs."""
        bundle = footprint.bundles[0]
        began_s = time.monotonic()
        with self._change:
            while len(self._free_gpus()) < bundle.gpus or self._free_cpus < bundle.cpus:
                deadline.check(time.monotonic() - began_s, footprint)
                self._change.wait(0.5)
            taken = self._free_gpus()[: bundle.gpus]
            self._used_gpus.update(taken)
            self._free_cpus -= bundle.cpus
            return taken

    def _free_gpus(self) -> tuple[str, ...]:
        return tuple(gpu for gpu in self._gpus if gpu not in self._used_gpus)

    def _give_back(self, gpus: Sequence[str], cpus: float) -> None:
        with self._change:
            self._used_gpus.difference_update(gpus)
            self._free_cpus += cpus
            self._change.notify_all()

    def clients(self, count: int, avoid: Mapping[str, Avoidance]) -> BorrowedClients:
        return self._pool.borrow(count, avoid)

    def most_clients(self) -> int:
        return self._client_limit

    def close(self) -> None:
        for host in list(self._hosts):
            host.stop()
        self._pool.close()


class ClientThread:
    """A ClientHost in this process; each call runs in a thread of its own."""

    def __init__(self) -> None:
        self._host = ClientHost()

    def begin(
        self, method: Callable[[ClientHost, *Arguments], T], *arguments: *Arguments
    ) -> Future[T]:
        return in_thread(_checked, self._host, method, *arguments)

    def kill(self) -> None:
        """Makes the client stop sending, because a thread cannot be killed."""
        self._host.abort(rows=False)
        self._host.release_lease()


def _checked(
    host: ClientHost, method: Callable[[ClientHost, *Arguments], T], *arguments: *Arguments
) -> T:
    try:
        return method(host, *arguments)
    except Exception as error:
        raise crossing(error, method.__name__) from error


class ClientProcess:
    """A ClientHost in a process of its own. When that ends, every unanswered call raises
    HostLost.
    """

    def __init__(self) -> None:
        # a fork would copy this process's threads and sockets
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs,), name="load client", daemon=True
        )
        with _signals_blocked():
            self.process.start()
        # without this, Python would send SIGTERM at exit and wait
        util.Finalize(self, self.process.kill, exitpriority=1)
        theirs.close()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, Future[Any]] = {}
        self._ended = ""
        threading.Thread(target=self._read, name="load client", daemon=True).start()

    def begin(
        self, method: Callable[[ClientHost, *Arguments], T], *arguments: *Arguments
    ) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._ended:
                future.set_exception(HostLost(self._ended))
                return future
            number = next(self._numbers)
            self._calls[number] = future
            with suppress(OSError):  # the process died: the reader thread will notice
                self._pipe.send((number, method, arguments))
        return future

    def kill(self) -> None:
        """Ends the process and waits until it is gone."""
        self.process.kill()
        self.process.join(END_LIMIT_S)

    def _read(self) -> None:
        """Passes answers on until the process ends. Kills it if an answer cannot be read."""
        why = ""
        try:
            while True:
                answer = received_answer(self._pipe)
                with self._lock:
                    future = self._calls.pop(answer.number)
                if answer.error is None:
                    future.set_result(answer.value)
                else:
                    future.set_exception(answer.error)
        except (EOFError, ConnectionError):
            pass
        except Exception as error:
            self.process.kill()
            why = f": its answer could not be read: {error!r}"
        self.process.join(END_LIMIT_S)
        with self._lock:
            self._ended = f"the client process ended with exit code {self.process.exitcode}{why}"
            unanswered = list(self._calls.values())
            self._calls = {}
        for future in unanswered:
            future.set_exception(HostLost(self._ended))
        self._pipe.close()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a call: an error that it raised, or else the value that it returned.

    ``number``: of the call.
    """

    number: int
    error: Exception | None = None
    value: Any = None


class AnswerWriter(pickle.Pickler):
    """Sends an answer from a client process to the driver. Large row files are not copied: their
    open files are passed on beside the answer.
    """

    def __init__(self, answer: Answer) -> None:
        self._content = io.BytesIO()
        super().__init__(self._content)
        self._parts: list[RowFile] = []
        self.dump(answer)

    def persistent_id(self, value: object) -> tuple[str, int] | None:
        if not isinstance(value, RowFile) or value.small:
            return None
        self._parts.append(value)
        return value.table, value.rows

    def send(self, pipe: Connection) -> None:
        pipe.send((self._content.getvalue(), len(self._parts)))
        for part in self._parts:
            reduction.send_handle(pipe, part.file.fileno(), None)


class AnswerReader(pickle.Unpickler):
    """Reads what an ``AnswerWriter`` sent. ``files``: the open files that came beside it."""

    def __init__(self, content: bytes, files: Iterator[IO[bytes]]) -> None:
        super().__init__(io.BytesIO(content))
        self._files = files

    def persistent_load(self, part: tuple[str, int]) -> RowFile:
        return RowFile(*part, reopened(next(self._files)))


def received_answer(pipe: Connection) -> Answer:
    """Receives an answer that another process sent."""
    content, count = pipe.recv()
    with ExitStack() as stack:
        files: list[IO[bytes]] = []
        for _ in range(count):
            file = os.fdopen(reduction.recv_handle(pipe), "rb")
            files.append(stack.enter_context(file))
        answer: Answer = AnswerReader(content, iter(files)).load()
        return answer


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Blocks ``DRIVERS_OWN``. A process started inside inherits that: it imports for a second
    before it can ignore these signals itself.
    """
    resource_tracker.ensure_running()  # starting the tracker later would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DRIVERS_OWN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Connection) -> None:
    """The main function of a client process: answers each call in a thread of its own, until the
    driver is gone.
    """
    for number in DRIVERS_OWN:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DRIVERS_OWN)
    leave_pandas_out()
    host = ClientHost()
    lock = threading.Lock()

    def work(number: int, method: Callable[..., object], *arguments: object) -> None:
        try:
            value = _checked(host, method, *arguments)
            writer = AnswerWriter(Answer(number, value=value))
        except Exception as error:
            writer = AnswerWriter(Answer(number, crossing(error, method.__name__)))
        with lock:
            try:
                writer.send(pipe)
            except OSError:
                # The driver is gone. If it is not, it must not wait for an answer that was lost.
                os._exit(1)

    with suppress(EOFError, OSError):
        while True:
            number, method, arguments = pipe.recv()
            threading.Thread(target=work, args=(number, method, *arguments), daemon=True).start()


class LocalProbes:
    """``Probes`` of this machine alone: plain calls, without time limits."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines

    def ask(
        self,
        function: Any,
        *arguments: Any,
        limit_s: float = ASK_LIMIT_S,
        nodes: Sequence[str] = (),
    ) -> dict[str, Any]:
        try:
            answer = function(*arguments)
        except Exception as error:  # a check may meet anything
            answer = NoAnswer.of(error)
        return {self.machines[0].node_id: answer}

    def close(self) -> None:
        return
