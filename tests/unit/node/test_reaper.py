"""The reaper: what is left of launches whose owner is gone is ended, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node import ownership, reaper
from orchestrator.node.ownership import LaunchLock
from orchestrator.node.reaper import LaunchMember
from tests.harness import wait_for

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


def test_only_containers_of_lost_launches_are_removed(docker: Path) -> None:
    locks, work = docker / "locks", docker / "work"
    work.mkdir()
    lock = LaunchLock("held", locks)
    (locks / "lost.lock").touch()  # of "spared" nothing is known
    assert reaper.reap(locks, work) == [
        LaunchMember("lost", NAMES[1], runtime="docker"),
        LaunchMember("lost", NAMES[2], runtime="docker"),
    ]
    assert [path.name for path in locks.iterdir()] == ["held.lock"], (
        "locks of the dead go with what they left"
    )
    lock.release()
    commands = (docker / "asked").read_text()
    assert f"--filter label=orchestrator.locks={docker / 'locks'}" in commands
    assert [line for line in commands.splitlines() if not line.startswith("ps ")] == [
        f"rm --force {name}" for name in NAMES[1:3]
    ]


def test_processes_of_a_launch_are_its_engine_guard_and_containers(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "node_folder", lambda name: docker / name)
    tags = {ownership.LAUNCH: "held", ownership.LOCKS: str(docker / "locks")}
    engine = (
        "import os, subprocess, sys; subprocess.Popen(['sleep', '60'], env=os.environ | "
        f"{tags!r}, stdout=2)"
    )
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


def test_work_folders_of_dead_launches_are_removed_after_days(
    tmp_path: Path,
) -> None:
    locks, work = tmp_path / "locks", tmp_path / "work"
    locks.mkdir()
    lock = LaunchLock("held", locks)
    for name in ("held-a", "old-b", "new-c", "writing-d"):
        (work / name).mkdir(parents=True)
        (work / name / "engine.log").write_text("words")
    long_ago = time.time() - 8 * 86400
    for path in (work / "held-a/engine.log", work / "old-b/engine.log", *(work.glob("[!n]*"))):
        os.utime(path, (long_ago, long_ago))
    reaper.reap(locks, work)
    assert sorted(path.name for path in work.iterdir()) == ["held-a", "new-c", "writing-d"]
    lock.release()


def test_a_client_without_a_daemon_has_no_containers(docker: Path) -> None:
    (docker / "bin" / "docker").write_text("#!/bin/sh\necho lost c1\nexit 1\n")
    assert reaper.leftovers(locks=docker / "locks") == []
