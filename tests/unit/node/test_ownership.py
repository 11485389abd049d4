"""File locks and the reaper's view of them: who is alive on a node."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.base.errors import OrchestratorError
from orchestrator.base.folders import node_folder
from orchestrator.node import ownership, reaper
from orchestrator.node.ownership import LaunchLock, forget, is_abandoned, is_held
from orchestrator.node.reaper import Leftover
from orchestrator.node.shared_memory import mapped
from tests.harness import wait_for


def test_a_lease_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_held(path)
    held = LaunchLock("a", tmp_path)
    assert is_held(path)
    assert not is_abandoned(path)
    os.utime(path, (0, 0))
    held.touch()
    assert path.stat().st_mtime > 1e9, "no cleaner takes it for an old file"
    held.release()
    held.release()
    assert not is_held(path)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_lock_nobody_knows_whether_its_owner_lives(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    assert not is_abandoned(path), "its file may lie in another container, or a cleaner took it"
    path.touch()
    assert is_abandoned(path)
    assert path.exists(), "a look changes nothing"
    forget(path)
    assert not path.exists()


def test_a_lock_stays_for_the_reaper_where_processes_are_left(tmp_path: Path) -> None:
    held = LaunchLock("a", tmp_path)
    held.release(processes_left=True)
    assert is_abandoned(held.path)


def test_children_of_a_holder_do_not_hold_it(tmp_path: Path) -> None:
    held = LaunchLock("a", tmp_path)
    code = "import time; print(flush=True); time.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], close_fds=False, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: what is closed on exec is closed
        held.release()
        assert not is_held(held.path)
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
    held = LaunchLock("a", tmp_path)
    monkeypatch.undo()
    assert len(calls) == 2
    assert is_held(held.path)
    held.release()


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "x" * 200])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a launch id"):
        LaunchLock(name, tmp_path)


def test_a_process_that_is_stuck_in_the_kernel_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, freed = "7f00-7f01 rw-s 0 00:19 99 /dev/shm/vllm_queue", threading.Event()
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, errors: lines if path.parent.name == "1" else str(freed.wait()),
    )
    try:
        assert mapped([1, 2, 1], limit_s=0.3) == {("/dev/shm/vllm_queue", 99)}
    finally:
        freed.set()


def test_a_folder_that_belongs_to_someone_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = 4_000_000_000 + os.getpid()
    monkeypatch.setattr(os, "getuid", lambda: stranger)
    try:
        with pytest.raises(OrchestratorError, match="remove it"):
            node_folder("locks")
    finally:
        Path(f"/tmp/orchestrator-{stranger}").rmdir()


NAMES = [
    f"orchestrator-{name}"
    for name in ("held-8000-0", "lost-8000-0", "lost-8001-0", "spared-8002-0")
]
DOCKER = """#!/bin/sh
echo "$@" >> {log}
if [ "$1" = ps ]; then cat {containers}; fi
if [ "$1" = inspect ]; then echo 4711; echo 0; fi
exit {status}
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for docker on PATH: lists ``containers`` and writes down what it was asked."""

    def install(status: int) -> None:
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir(exist_ok=True)
        paths = {"log": tmp_path / "asked", "containers": tmp_path / "containers", "status": status}
        program.write_text(DOCKER.format(**paths))
        program.chmod(0o755)

    install(0)
    (tmp_path / "containers").write_text("".join(f"{name}\n" for name in NAMES))
    (tmp_path / "locks").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(reaper, "RUNTIMES", ("docker",))
    return tmp_path


def test_containers_of_lost_launches_are_removed_and_no_others(docker: Path) -> None:
    locks, work = docker / "locks", docker / "work"
    work.mkdir()
    held = LaunchLock("held", locks)
    (locks / "lost.lock").touch()  # of "spared" nothing is known
    assert reaper.reap(locks, work) == [
        Leftover(0, "lost", f"docker {NAMES[1]}"),
        Leftover(0, "lost", f"docker {NAMES[2]}"),
    ]
    assert [path.name for path in locks.iterdir()] == ["held.lock"], (
        "locks of the dead go with what they left"
    )
    held.release()
    asked = (docker / "asked").read_text()
    assert f"--filter label=orchestrator.locks={docker / 'locks'}" in asked
    assert [line for line in asked.splitlines() if not line.startswith("ps ")] == [
        f"rm --force {name}" for name in NAMES[1:3]
    ]


def test_engines_their_guards_and_what_docker_runs_for_them_are_a_launchs(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "node_folder", lambda name: docker / name)
    tags = {ownership.LAUNCH: "held", ownership.LOCKS: str(docker / "locks")}
    engine = f"import os, subprocess, sys; subprocess.Popen(['sleep', '60'], env=os.environ | {tags!r}, stdout=2)"
    guard = f"{engine}; print(flush=True); sys.stdin.read()  # {reaper.guard.__name__}"
    parent = subprocess.Popen(
        [sys.executable, "-c", guard], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert parent.stdout is not None
        parent.stdout.readline()
        (child,) = wait_for(
            lambda: [process.pid for process, _ in ownership.tagged(tags)], 10.0, "the engine"
        )
        assert reaper.processes_of({"held"}) == {parent.pid, child}
        assert reaper.processes_of({"held"}, in_docker=True) == {parent.pid, child, 4711}
        assert reaper.processes_of({"another"}, in_docker=True) == set()
    finally:
        ownership.kill_tagged(tags)
        parent.communicate()


def test_work_folders_of_the_dead_are_kept_for_days_and_those_of_the_living_for_ever(
    tmp_path: Path,
) -> None:
    locks, work = tmp_path / "locks", tmp_path / "work"
    locks.mkdir()
    held = LaunchLock("held", locks)
    for name in ("held-a", "old-b", "new-c", "writing-d"):
        (work / name).mkdir(parents=True)
        (work / name / "engine.log").write_text("words")
    long_ago = time.time() - 8 * 86400
    for path in (work / "held-a/engine.log", work / "old-b/engine.log", *(work.glob("[!n]*"))):
        os.utime(path, (long_ago, long_ago))
    reaper.reap(locks, work)
    assert sorted(path.name for path in work.iterdir()) == ["held-a", "new-c", "writing-d"]
    held.release()


def test_a_client_without_a_daemon_has_no_containers(docker: Path) -> None:
    (docker / "bin" / "docker").write_text("#!/bin/sh\necho lost c1\nexit 1\n")
    assert reaper.leftovers(locks=docker / "locks") == []
