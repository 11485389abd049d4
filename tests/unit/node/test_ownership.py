"""File locks and the reaper's view of them: who is alive on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.base.errors import OrchestratorError
from orchestrator.base.folders import node_folder
from orchestrator.node import ownership
from orchestrator.node.ownership import LaunchLock, forget, is_abandoned, is_held


def test_a_lease_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_held(path)
    lock = LaunchLock("a", tmp_path)
    assert is_held(path)
    assert not is_abandoned(path)
    os.utime(path, (0, 0))
    lock.touch()
    assert path.stat().st_mtime > 1e9, "no cleaner takes it for an old file"
    lock.release()
    lock.release()
    assert not is_held(path)
    assert list(tmp_path.iterdir()) == []


def test_missing_lock_is_neither_held_nor_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_abandoned(path), "its file may lie in another container, or a cleaner took it"
    path.touch()
    assert is_abandoned(path)
    assert path.exists(), "a look changes nothing"
    forget(path)
    assert not path.exists()


def test_a_lock_stays_for_the_reaper_where_processes_are_left(tmp_path: Path) -> None:
    lock = LaunchLock("a", tmp_path)
    lock.release(processes_left=True)
    assert is_abandoned(lock.path)


def test_children_of_the_holder_do_not_hold_the_lock(tmp_path: Path) -> None:
    lock = LaunchLock("a", tmp_path)
    code = "import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], close_fds=False, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: what is closed on exec is closed
        lock.release()
        assert not is_held(lock.path)
    finally:
        child.kill()
        child.communicate()


def test_a_lock_taken_while_its_file_is_being_removed_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = ownership.fcntl.flock, []

    def flock(file: int, kind: int) -> None:
        real(file, kind)
        calls.append(kind)
        if len(calls) == 1:  # another process looked just before and removed the file
            (tmp_path / "a.lock").unlink()

    monkeypatch.setattr(ownership.fcntl, "flock", flock)
    lock = LaunchLock("a", tmp_path)
    monkeypatch.undo()
    assert len(calls) == 2
    assert is_held(lock.path)
    lock.release()


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a launch id"):
        LaunchLock(name, tmp_path)


def test_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = 4_000_000_000 + os.getpid()
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    try:
        with pytest.raises(OrchestratorError, match="remove it"):
            node_folder("locks")
    finally:
        Path(f"/tmp/orchestrator-{stranger}").rmdir()
