"""Rows that wait for their point's end on disk: all of them come back, none are left behind, no
room is a sentence.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.base.errors import NoRoom, ResultsError
from orchestrator.results.patience import Patience
from orchestrator.results.schemas import TOKEN_EVENTS
from orchestrator.results.spool import Spool, _received, check_room, nameless_file, opened
from tests.unit.results.builders import events, part_of, request, requests


def test_all_that_was_given_comes_back_in_its_order_and_as_it_would_be_stored() -> None:
    rows = [requests(request(index)) for index in range(3)]
    gaps = events({0: [20, 21], 1: []})
    with closing(Spool("requests", "token_events")) as spool:
        for one in rows:
            spool.write("requests", one)
        spool.write("token_events", gaps)
        first, second = spool.parts()
    assert (first.table, first.rows, second.table, second.rows) == (
        "requests",
        3,
        "token_events",
        2,
    )
    assert first.read().equals(pa.concat_tables(rows))
    assert second.read().equals(part_of("token_events", gaps).read())
    assert second.read().schema.equals(TOKEN_EVENTS, check_metadata=True)


def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os\nfrom orchestrator.results.spool import Spool\nfrom tests.unit.results.builders import *\n"
        "spool = Spool('requests')\nspool.write('requests', requests(request(0)))\n"
        "print('there', flush=True)\nos.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout) == (-9, "there\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(spool: Spool) -> None:
        spool.write("requests", requests(request(0)))  # too early to know, perhaps
        spool.parts()

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    with closing(Spool("requests")) as spool:
        with pytest.raises(
            ResultsError, match=r"cannot be kept in .*No space left on device.*TMPDIR"
        ):
            write(spool)
        with pytest.raises(ResultsError, match="No space left"):
            spool.write("requests", requests(request(1)))
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(ResultsError, match="cannot be kept in /proc/nowhere"):
        Spool("requests")


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The disk is full until somebody has waited three times; what was seen then."""
    seen: list[str] = []
    write, written = os.write, 0

    def full(file: int, data: memoryview) -> int:
        nonlocal written
        if len(seen) < 3 and written == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += (now := write(file, data[:2] if written < 2 else data))
        return now

    monkeypatch.setattr("orchestrator.results.spool.os.write", full)
    return seen


def waits(monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], bool]) -> None:
    monkeypatch.setattr("orchestrator.results.spool.ROOM", Patience(limit_s=60.0, wait=wait))


def test_rows_wait_for_room(monkeypatch: pytest.MonkeyPatch, fills: list[str]) -> None:
    waits(monkeypatch, lambda _: bool(fills.append(spool.no_room)))
    with closing(Spool("requests")) as spool:
        spool.write("requests", requests(request(0)))
        (part,) = spool.parts()
        assert spool.no_room == ""
    assert part.read().equals(requests(request(0))), "whole, though some bytes were written before"
    assert len(fills) == 3
    assert all(one.endswith(f"of {socket.gethostname()}") for one in fills)


def test_nobody_who_was_stopped_waits_for_room(
    monkeypatch: pytest.MonkeyPatch, fills: list[str]
) -> None:
    waits(monkeypatch, lambda _: True)
    with closing(Spool("requests")) as spool:
        spool.write("requests", requests(request(0)))
        with pytest.raises(ResultsError, match="was stopped"):
            spool.parts()
    assert fills == []


def test_only_so_many_rows_wait_for_room(monkeypatch: pytest.MonkeyPatch, fills: list[str]) -> None:
    stopped, waiting = threading.Event(), threading.Event()
    waits(monkeypatch, lambda _: bool(waiting.set() or stopped.wait(60)))
    for name in ("MOST_WAITING_BYTES", "SINK_BYTES"):
        monkeypatch.setattr(f"orchestrator.results.spool.{name}", 1)
    many = pa.concat_tables([requests(request(0))] * 2_000)
    with closing(Spool("requests")) as spool:
        spool.write("requests", many)
        assert waiting.wait(60)
        with pytest.raises(ResultsError, match="no room .* MiB of rows wait"):
            spool.write("requests", many)
    stopped.set()  # nobody waits for the writing thread


def test_rows_that_nobody_waits_for_any_more_are_not_written(
    monkeypatch: pytest.MonkeyPatch, fills: list[str]
) -> None:
    room, waiting, before, written = (
        threading.Event(),
        threading.Event(),
        threading.enumerate(),
        list[int](),
    )
    waits(
        monkeypatch,
        lambda _: bool(waiting.set() or not room.wait(60) or fills.extend(["room"] * 3)),
    )
    monkeypatch.setattr("orchestrator.results.spool.SINK_BYTES", 1)
    monkeypatch.setattr(
        "orchestrator.results.spool.write_rows",
        lambda writer, _, rows: written.append(rows.num_rows),
    )
    # the writer of Parquet writes its first bytes, and there is no room
    with closing(Spool("requests")) as spool:
        assert waiting.wait(60)
        for _ in range(5):
            spool.write("requests", requests(request(0)))
    room.set()
    for one in set(threading.enumerate()) - set(before):
        one.join(60)
    assert written == []


def test_rows_from_another_host_stay_in_memory_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = part_of("token_events", events({0: [20]}))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    received = _received("token_events", part.rows, part.open().read())
    assert received.read().equals(part.read())


def test_that_there_is_no_room_for_a_point_is_known_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_room()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
        with pytest.raises(NoRoom, match="No space left"):
            check_room()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_no_usable_folder_means_no_room_only_where_one_is_full(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = tempfile.TemporaryFile

    def refused(dir: str | None = None) -> Any:
        if dir is not None:
            raise OSError(code, os.strerror(code))
        return make()

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    if code == errno.EROFS:
        check_room()
        with pytest.raises(ResultsError, match="No usable temporary directory"):
            nameless_file()
    else:
        with pytest.raises(NoRoom, match="No space left"):
            check_room()


def test_what_no_room_would_help_against_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, lambda _: pytest.fail("it waits"))

    def faulty() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tempfile, "TemporaryFile", faulty)
    check_room()
    with pytest.raises(ResultsError, match=r"cannot be kept in .*Input/output error"):
        nameless_file()


def test_whatever_goes_wrong_in_the_writing_thread_no_row_vanishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(Spool("requests")) as spool:
        spool.write("requests", events({0: [20]}))  # not its schema
        with pytest.raises(ResultsError, match="rows cannot be written: .*schema"):
            spool.parts()
    monkeypatch.setattr("orchestrator.results.spool.write_rows", lambda *_: None)
    with closing(Spool("requests")) as spool:
        spool.write("requests", requests(request(0)))
        with pytest.raises(ResultsError, match="0 of 1 rows of requests"):
            spool.parts()


def test_without_any_usable_temporary_folder_there_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(
        ResultsError, match=r"kept in a temporary folder .*No usable temporary directory.*TMPDIR"
    ):
        nameless_file()


def test_programs_that_are_started_do_not_keep_the_files() -> None:
    file = nameless_file()
    assert [os.get_inheritable(one.fileno()) for one in (file, opened(file))] == [False, False]


def test_a_file_that_cannot_be_opened_again_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of("token_events", events({0: [20]}))
    monkeypatch.setattr("orchestrator.results.spool.path_of", lambda _: "/proc/nowhere")
    with pytest.raises(ResultsError, match="rows cannot be kept in"):
        part.open()
