"""Rows that wait for their point's end on disk: all of them come back, none are left behind, no
room is a sentence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from orchestrator.base.errors import ResultsError
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
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(ResultsError, match="No space left"):
        check_room()


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
