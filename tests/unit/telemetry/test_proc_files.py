"""Files below /proc that stay open: what they say is what they say now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.telemetry import proc_files
from orchestrator.telemetry.proc_files import ProcFiles

DESCRIPTORS = "/proc/self/fd"


def test_a_file_that_stays_open_is_read_as_it_is_now(tmp_path: Path) -> None:
    long = "x" * 10_000
    files = ProcFiles(tmp_path)
    for content in ("first", long):
        (tmp_path / "stat").write_text(content)
        assert files.whole("stat") == content.encode()
    assert files.beginning("stat") == long[:4096].encode()
    with pytest.raises(FileNotFoundError):
        files.beginning("other")
    files.close()


def test_the_file_of_an_ended_process_cannot_be_read() -> None:
    files = ProcFiles(Path("/proc"))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = f"{process.pid}/stat"
        assert files.beginning(name).startswith(str(process.pid).encode())
        process.kill()
        process.wait()
        with pytest.raises(ProcessLookupError):
            files.beginning(name)
    files.close()


def test_only_so_many_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_files, "MOST_OPEN", 2)
    before = len(os.listdir(DESCRIPTORS))
    files = ProcFiles(tmp_path)
    for name in "abc":
        (tmp_path / name).write_text(name)
        assert [files.beginning(name) for _ in range(2)] == [name.encode()] * 2
    assert len(os.listdir(DESCRIPTORS)) == before + 2
    files.forget("a")
    assert files.beginning("c") == b"c"
    files.close()
    assert len(os.listdir(DESCRIPTORS)) == before
