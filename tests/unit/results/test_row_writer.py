"""Rows on disk until they are stored: all of them come back, and none is left behind."""

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
from orchestrator.results.row_writer import RowWriter, row_file_from_content
from orchestrator.results.schemas import TOKEN_EVENTS
from tests.unit.results.builders import events, part_of, request, requests

KILLED = """
import os
from orchestrator.results.row_writer import RowWriter
from tests.unit.results.builders import *
writer = RowWriter("requests")
writer.write("requests", requests(request(0)))
print("written", flush=True)
os.kill(os.getpid(), 9)
"""


def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115


def test_rows_come_back_in_their_order() -> None:
    rows = [requests(request(index)) for index in range(3)]
    with closing(RowWriter("requests")) as writer:
        for table in rows:
            writer.write("requests", table)
        (file,) = writer.finish()
    assert (file.table, file.rows) == ("requests", 3)
    assert file.read().equals(pa.concat_tables(rows))


def test_every_table_has_its_file() -> None:
    gaps = events({0: [20, 21], 1: []})
    with closing(RowWriter("requests", "token_events")) as writer:
        writer.write("token_events", gaps)
        first, second = writer.finish()
    assert (first.table, first.rows) == ("requests", 0)
    assert (second.table, second.rows) == ("token_events", 2)
    assert second.read().schema.equals(TOKEN_EVENTS, check_metadata=True)


def test_nothing_is_left_of_a_killed_process(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout) == (-9, "written\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch)
    with closing(RowWriter("requests")) as writer:
        writer.write("requests", requests(request(0)))
        with pytest.raises(ResultsError, match=r"No space left on device.*TMPDIR"):
            writer.finish()


def test_a_failed_writer_takes_no_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch)
    with closing(RowWriter("requests")) as writer:
        with pytest.raises(ResultsError):
            writer.finish()
        with pytest.raises(ResultsError, match="No space left"):
            writer.write("requests", requests(request(1)))


def test_rows_from_another_host_stay_in_memory_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = part_of("token_events", events({0: [20]}))
    full_disk(monkeypatch)
    received = row_file_from_content("token_events", file.rows, file.open().read())
    assert received.read().equals(file.read())


def test_an_error_in_the_writing_thread_is_raised() -> None:
    with closing(RowWriter("requests")) as writer:
        writer.write("requests", events({0: [20]}))  # not its schema
        with pytest.raises(ResultsError, match="rows cannot be written: .*schema"):
            writer.finish()


def test_a_file_that_lacks_rows_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.results.row_writer.write_rows", lambda *_: None)
    with closing(RowWriter("requests")) as writer:
        writer.write("requests", requests(request(0)))
        with pytest.raises(ResultsError, match="0 of 1 rows of requests"):
            writer.finish()
