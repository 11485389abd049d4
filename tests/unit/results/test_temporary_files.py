"""Temporary files without a name, and what is said when the disk is full."""

from __future__ import annotations

import os
import tempfile

import pytest

from orchestrator.base.errors import ResultsError
from orchestrator.results.temporary_files import (
    buffered_writer,
    check_free_space,
    nameless_file,
    reopened,
)


def test_what_was_written_is_read_from_the_start() -> None:
    with nameless_file() as file:
        with buffered_writer(file) as writer:
            writer.write(b"first ")
            writer.write(b"second")
        with reopened(file) as again:
            assert again.read() == b"first second"


def test_a_started_program_does_not_keep_the_files() -> None:
    with nameless_file() as file, reopened(file) as again:
        assert not os.get_inheritable(file.fileno())
        assert not os.get_inheritable(again.fileno())


def test_a_disk_with_space_is_accepted() -> None:
    check_free_space()


def test_a_full_disk_is_refused_before_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(ResultsError, match=r"No space left on device; make room .*TMPDIR"):
        check_free_space()


def test_a_temporary_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(ResultsError, match="cannot be kept in /proc/nowhere"):
        nameless_file()


def test_a_host_without_any_temporary_folder_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(ResultsError, match=r"a temporary folder .*No usable temporary directory"):
        nameless_file()


def test_a_file_that_cannot_be_reopened_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    file = nameless_file()
    monkeypatch.setattr("orchestrator.results.temporary_files.path_of", lambda _: "/proc/nowhere")
    with pytest.raises(ResultsError, match="rows cannot be kept in"):
        reopened(file)
