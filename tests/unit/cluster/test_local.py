"""Client processes of this machine: signals, answers, rows and open files."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import socket
import threading
import time
from multiprocessing import Pipe, reduction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.base.errors import InputError
from orchestrator.cluster.base import ClientReport, HostLost
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.local import (
    Answer,
    AnswerWriter,
    ClientProcess,
    LocalCluster,
    received_answer,
    serve,
)
from tests.unit.cluster.points import point_for
from tests.unit.results.builders import events, part_of, request, requests

BUSY_S = 240.0  # a machine that other tests keep busy takes a minute to start a process


def test_a_system_that_is_not_linux_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    with pytest.raises(InputError, match="on Linux alone"):
        LocalCluster(None)


@pytest.mark.parametrize(("variable", "other"), [("CUDA", "HIP"), ("HIP", "CUDA")])
def test_the_local_machine_has_the_gpus_that_a_vendors_variable_names(
    variable: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{other}_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(f"{variable}_VISIBLE_DEVICES", "2,0,5")
    assert [machine.gpus for machine in LocalCluster(None).machines()] == [3]


def test_a_client_process_ignores_signals_from_its_very_beginning() -> None:
    """A terminal sends Ctrl-C to it too, and it may still be importing: it would end, or print
    where it was.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    client = ClientProcess()
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        assert client.process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin(ClientHost.wall_ns).result(BUSY_S) > 0
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin(ClientHost.wall_ns).result(BUSY_S) > 0
    finally:
        client.kill()


def reported(client: ClientProcess) -> ClientReport:
    """The report on requests to a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        point = point_for(f"http://127.0.0.1:{gone.getsockname()[1]}")
    try:
        client.begin(ClientHost.prepare, point, 0, 1).result(BUSY_S)
        return client.begin(ClientHost.run_and_store, time.time_ns(), 0, 0, None).result(BUSY_S)
    finally:
        client.kill()


def test_a_client_process_leaves_nothing_in_its_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    report = reported(ClientProcess())
    rows = [part.read() for part in (report.requests, report.token_events) if part]
    assert [table.num_rows for table in rows] == [3, 0]
    assert set(rows[0]["error_class"].to_pylist()) == {"connect"}
    assert list(folder.iterdir()) == []


def test_an_answer_that_the_driver_cannot_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("orchestrator.cluster.local.AnswerReader.load", full)
    with pytest.raises(HostLost, match="answer could not be read: .*Too many open files"):
        reported(ClientProcess())


def lock_of(_: ClientHost) -> object:
    """An answer that cannot be pickled."""
    return threading.Lock()


def test_an_answer_that_cannot_be_sent_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread of this process: what a client's own process lacks cannot be patched there."""
    ours, theirs = Pipe()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    threading.Thread(target=serve, args=(theirs,), daemon=True).start()
    ours.send((3, lock_of, ()))
    assert ours.poll(10)
    answer = received_answer(ours)
    assert answer.number == 3
    text = "lock_of failed on its node: TypeError: cannot pickle '_thread.lock' object"
    assert str(answer.error) == text
    ours.close()


def test_few_rows_of_a_client_process_are_passed_on_decoded() -> None:
    parts = [
        part_of("requests", requests(request(0), request(1))),
        part_of("token_events", events({})),
    ]
    ours, theirs = Pipe()
    AnswerWriter(Answer(3, value=parts)).send(theirs)
    for part, first_copy, second_copy in zip(
        parts, received_answer(ours).value, pickle.loads(pickle.dumps(parts)), strict=True
    ):
        for copy in (first_copy, second_copy):
            assert isinstance(copy.file, pa.Table)
            assert copy.read().equals(part.read(), check_metadata=True)
            assert pq.read_table(copy.open()).equals(part.read())
            assert copy.rows == part.rows


def test_many_rows_of_a_client_are_passed_as_an_open_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.results.row_writer.SMALL_BYTES", 0)
    part = part_of("token_events", events({index: [20] * 500 for index in range(200)}))
    ours, theirs = Pipe()
    AnswerWriter(Answer(3, value={"rows": part})).send(theirs)
    content, _ = ours.recv()
    os.close(reduction.recv_handle(ours))
    assert len(content) < 1_000 < part.open().size() < len(pickle.dumps(part))
    AnswerWriter(Answer(3, value={"rows": part})).send(theirs)
    answer = received_answer(ours)
    assert (answer.number, answer.error) == (3, None)
    for copy in (answer.value["rows"], pickle.loads(pickle.dumps(part))):
        assert (copy.table, copy.rows, copy.open().read()) == (
            part.table,
            part.rows,
            part.open().read(),
        )


def test_a_driver_may_open_as_many_files_as_the_system_permits() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        LocalCluster(None).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
