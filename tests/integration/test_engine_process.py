"""Nothing outlives its launch, whoever dies and however: with plain processes in place of an
engine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.base.errors import EngineFailure, FailureClass
from orchestrator.base.folders import node_folder
from orchestrator.engines.command import Command
from orchestrator.node import ownership, reaper
from orchestrator.node.ownership import LaunchLock, is_held
from orchestrator.node.process import EngineProcess

HERE = Path(__file__).parent
TREE = (sys.executable, "-I", "-S", str(HERE / "engine_tree.py"))
LIMIT_S = 10.0
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="subreapers and parent-death signals are Linux's"
)


def wait_until(true: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.05)
    return true()


def wait_for_tree(folder: Path, launch_id: str) -> None:
    """Wait until all four processes of a TREE live, and ignore what they will ignore."""
    log = folder / "engine.log"
    assert wait_until(lambda: log.is_file() and log.read_text().count("up ") == 4)
    assert len(living(launch_id)) == 4


@contextmanager
def running(
    command: Command, folder: Path, launch_id: str, grace_s: float = 10.0
) -> Iterator[EngineProcess]:
    process = EngineProcess(command, folder, launch_id, grace_s)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def living(launch_id: str) -> list[int]:
    return [process.pid for process, _ in ownership.tagged({ownership.LAUNCH: launch_id})]


@pytest.fixture
def launch_id(tmp_path: Path) -> Iterator[str]:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    wait_until(lambda: not living(name))
    assert ownership.kill_tagged({ownership.LAUNCH: name}) == [], "the test left processes behind"
    segment = Path(f"/dev/shm/sgl_shm_mq_{name}")  # the guard removes it once all are gone
    assert wait_until(lambda: not segment.exists()), "its shared memory is left behind"


class Owner:
    """engine_owner.py as a process of its own, with the tree of engine_tree.py up."""

    def __init__(self, folder: Path, launch_id: str, *arguments: str, grace_s: float = 1.0) -> None:
        self.folder, self.launch_id = folder, launch_id
        env = os.environ | {
            "RAY_ADDRESS": "x",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(HERE.parent.parent),
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                HERE / "engine_owner.py",
                folder,
                launch_id,
                str(grace_s),
                *TREE,
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self.process.stdout is not None
        self.engine = int(self.process.stdout.readline())
        assert wait_until(
            lambda: (folder / "engine.log").read_text().count("up") == len(self.expected(arguments))
        )

    @staticmethod
    def expected(arguments: tuple[str, ...]) -> str:
        return "abc" if "exit" in arguments else "abcd"

    def say(self, word: str) -> None:
        self.process.communicate(word + "\n", timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def owner(tmp_path: Path, launch_id: str) -> Iterator[Owner]:
    made = Owner(tmp_path, launch_id)
    yield made
    made.close()


def guard_of(engine: int) -> psutil.Process:
    parent = psutil.Process(engine).parent()
    assert parent is not None
    return parent


def test_the_tree_of_the_stand_in_is_as_bad_as_it_claims(owner: Owner) -> None:
    assert len(living(owner.launch_id)) == 4
    assert len({os.getsid(pid) for pid in living(owner.launch_id)}) >= 3


def test_a_file_of_shared_memory_that_it_did_not_map_stays(owner: Owner) -> None:
    other = Path(f"/dev/shm/sgl_shm_mq_{owner.launch_id}-other")
    other.touch()
    try:
        assert Path(f"/dev/shm/sgl_shm_mq_{owner.launch_id}").exists()
        os.kill(owner.engine, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/dev/shm/sgl_shm_mq_{owner.launch_id}").exists())
        assert other.exists()
    finally:
        other.unlink()


def test_the_guard_is_nobodys_child_and_adopts_the_daemon(owner: Owner) -> None:
    guard = guard_of(owner.engine)
    assert guard.pid not in {
        child.pid for child in psutil.Process(owner.process.pid).children(recursive=True)
    }
    assert {child.pid for child in guard.children(recursive=True)} == set(living(owner.launch_id))


@pytest.mark.parametrize("death", ["SIGKILL", "SIGTERM", "exit", "raise", "hard"])
def test_nothing_is_left_when_the_owner_dies(owner: Owner, death: str) -> None:
    if death.startswith("SIG"):
        owner.process.send_signal(signal.Signals[death])
        owner.process.communicate(timeout=10)
    else:
        owner.say(death)
    assert wait_until(lambda: not living(owner.launch_id))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_nothing_is_left_when_the_engine_dies(owner: Owner, number: signal.Signals) -> None:
    os.kill(owner.engine, number)
    assert wait_until(lambda: not living(owner.launch_id))


def test_a_guard_that_gets_sigterm_ends_its_tree(owner: Owner) -> None:
    guard_of(owner.engine).terminate()
    assert wait_until(lambda: not living(owner.launch_id))


def test_an_engine_that_ignores_sigterm_is_killed_when_its_owner_dies(
    tmp_path: Path, launch_id: str
) -> None:
    owner = Owner(tmp_path, launch_id, "stubborn", grace_s=60)
    owner.close()
    assert wait_until(lambda: not living(launch_id))


def test_after_a_killed_guard_the_reaper_finds_the_rest_once_the_owner_is_gone(
    owner: Owner,
) -> None:
    guard_of(owner.engine).kill()
    assert wait_until(lambda: owner.engine not in living(owner.launch_id)), (
        "the parent-death signal did not come"
    )
    assert len(living(owner.launch_id)) == 3, "this test needs something to reap"
    assert owner.launch_id not in {leftover.launch_id for leftover in reaper.leftovers()}, (
        "its owner still lives"
    )
    owner.close()
    reaper.reap()
    # the agent of another test may have been first
    assert wait_until(lambda: not living(owner.launch_id))


def test_an_owner_whose_guard_was_killed_notices_and_cleans_up(
    tmp_path: Path, launch_id: str
) -> None:
    with running(Command(TREE), tmp_path, launch_id) as process:
        wait_for_tree(tmp_path, launch_id)
        assert process.pid is not None
        guard_of(process.pid).kill()
        assert wait_until(lambda: process.poll() is not None)
        report = process.stop()
    assert report.killed >= 1
    assert report.left_over == ()
    assert living(launch_id) == []


def test_stop_asks_first_and_kills_only_what_does_not_listen(
    tmp_path: Path, launch_id: str
) -> None:
    with running(Command(TREE), tmp_path, launch_id, grace_s=1.0) as process:
        wait_for_tree(tmp_path, launch_id)
        report = process.stop()
        assert process.stop() is report
    assert report.exit_status == -signal.SIGTERM
    assert report.killed == 1, "only the daemon ignores SIGTERM"
    assert report.left_over == ()
    assert living(launch_id) == []
    assert report.seconds < 5


def test_stop_gives_a_stubborn_engine_its_grace_and_then_kills_it(
    tmp_path: Path, launch_id: str
) -> None:
    with running(Command((*TREE, "stubborn")), tmp_path, launch_id, grace_s=1.0) as process:
        wait_for_tree(tmp_path, launch_id)
        report = process.stop()
    assert 1.0 <= report.seconds < 5
    assert report.exit_status == -signal.SIGKILL
    assert living(launch_id) == []


def test_an_engine_that_ends_by_itself_is_reported_and_what_it_left_is_ended(
    tmp_path: Path, launch_id: str
) -> None:
    with running(Command((*TREE, "exit")), tmp_path, launch_id, grace_s=1.0) as process:
        assert wait_until(lambda: process.poll() is not None)
        assert process.poll() == 7
        assert wait_until(lambda: not living(launch_id)), "without anyone calling stop"
        assert process.stop().exit_status == 7


def test_the_lock_is_held_by_the_owner_alone_and_freed_by_its_death(owner: Owner) -> None:
    assert is_held(node_folder("locks") / f"{owner.launch_id}.lock")
    owner.process.kill()
    owner.process.wait()
    assert not is_held(node_folder("locks") / f"{owner.launch_id}.lock")


def test_what_it_died_of_is_found_above_megabytes_that_followed(
    tmp_path: Path, launch_id: str
) -> None:
    code = f"""  # the log begins with the command
import pathlib, time
print('At' + 'Start', flush=True)
while not pathlib.Path({str(tmp_path / "go")!r}).exists(): time.sleep(0.05)
print('The' + 'Cause')
for nth in range(40_000): print(f'traceback {{nth:060d}}')
print('The' + 'End', flush=True)
time.sleep(60)"""
    with running(Command((sys.executable, "-c", code)), tmp_path / "work", launch_id) as process:
        assert wait_until(lambda: "AtStart" in process.log_tail())
        process.mark_ready()
        (tmp_path / "go").touch()
        assert wait_until(lambda: "TheEnd" in process.log_tail())
        said = process.log_since_ready()
    assert [word in said for word in ("AtStart", "TheCause", "TheEnd")] == [False, True, True]
    assert len(said) < 2.1 * 2**20


def test_the_engine_gets_a_clean_environment_and_its_secrets_nowhere_else(
    tmp_path: Path, launch_id: str
) -> None:
    code = (
        "import os, signal; print(dict(os.environ), signal.pthread_sigmask(0, []), os.nice(0), "
        "os.getcwd(), flush=True)"
    )
    command = Command(
        (sys.executable, "-c", f"{code}; import time; time.sleep(60)"),
        {"OURS": "1"},
        {"KEY": "s3cr3t"},
    )
    os.environ["RAY_JOB_ID"] = os.environ["OMP_NUM_THREADS"] = "3"
    try:
        with running(command, tmp_path / "work", launch_id) as process:
            assert wait_until(lambda: "'OURS'" in process.log_tail())
            assert process.pid is not None
            raw, shown = process.log_path.read_text(), process.log_tail()
            command_lines = [
                " ".join(each.cmdline())
                for each in (psutil.Process(process.pid), guard_of(process.pid))
            ]
            guards_environment = guard_of(process.pid).environ()
    finally:
        del os.environ["RAY_JOB_ID"], os.environ["OMP_NUM_THREADS"]
    assert "'KEY': 's3cr3t'" in raw
    assert "s3cr3t" not in shown
    assert "'KEY': '***'" in shown
    assert not any("s3cr3t" in line for line in command_lines)
    assert "s3cr3t" not in guards_environment.values()
    assert "RAY_JOB_ID" not in raw
    assert "OMP_NUM_THREADS" not in raw
    assert "'SPT_NOENV': '1'" in raw
    assert "set() 0" in raw
    assert str(tmp_path / "work") in raw


def test_a_command_may_ask_for_few_of_the_nodes_variables(
    tmp_path: Path, launch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOL_HOME", "/tool")
    monkeypatch.setenv("OTHER_TOOL_HOME", "/other")
    argv = (sys.executable, "-c", "import os; print(dict(os.environ), flush=True)")
    with running(Command(argv, {"OURS": "1"}, inherits=("TOOL_",)), tmp_path, launch_id) as process:
        assert wait_until(lambda: "'OURS': '1'" in process.log_tail())
        seen = process.log_tail()
    assert "'TOOL_HOME'" in seen
    assert "'OTHER_TOOL_HOME'" not in seen
    assert "'ORCHESTRATOR_LAUNCH'" in seen, "by which its processes are found again"


@pytest.mark.skipif(os.getuid() != 0, reason="raising a priority back needs root")
def test_niceness_and_blocked_signals_of_a_raylet_do_not_reach_the_engine(owner: Owner) -> None:
    engine = psutil.Process(owner.engine)
    assert psutil.Process(owner.process.pid).nice() >= 5
    assert engine.nice() == 0
    blocked = next(
        line
        for line in Path(f"/proc/{owner.engine}/status").read_text().splitlines()
        if "SigBlk" in line
    )
    assert int(blocked.split()[1], 16) == 0
    assert not {"RAY_ADDRESS", "OMP_NUM_THREADS", "PYTHONPATH"} & engine.environ().keys()


def test_an_executable_that_is_not_there_is_bad_config_with_a_sentence(
    tmp_path: Path, launch_id: str
) -> None:
    process = EngineProcess(Command(("/nowhere/vllm", "serve")), tmp_path, launch_id)
    with pytest.raises(EngineFailure) as caught:
        process.start()
    assert caught.value.failure.failure_class is FailureClass.BAD_CONFIG
    assert caught.value.failure.kind == "no_executable"
    assert "/nowhere/vllm" in caught.value.failure.sentence
    assert process.stop().left_over == ()
    assert not is_held(node_folder("locks") / f"{launch_id}.lock")


def test_files_of_a_command_are_written_below_the_folder_and_nowhere_else(
    tmp_path: Path, launch_id: str
) -> None:
    command = Command(("/bin/cat", "conf/a.yaml"), files={"conf/a.yaml": "x: 1"})
    with running(command, tmp_path / "work", launch_id) as process:
        assert wait_until(lambda: process.poll() == 0)
        assert process.log_tail(1) == "x: 1"
    with pytest.raises(ValueError, match="outside"):
        EngineProcess(
            Command(("/bin/true",), files={"../b": ""}), tmp_path / "work", launch_id
        ).start()


def test_what_the_command_names_for_afterwards_is_run_however_the_engine_ends(
    tmp_path: Path, launch_id: str
) -> None:
    after = ("/bin/sh", "-c", "echo $OURS > removed")
    with running(
        Command(TREE, {"OURS": "container"}, after=after), tmp_path, launch_id, grace_s=1.0
    ):
        wait_for_tree(tmp_path, launch_id)
    assert (tmp_path / "removed").read_text() == "container\n"


def test_a_command_may_ask_for_a_shorter_grace_than_its_owner_gives(
    tmp_path: Path, launch_id: str
) -> None:
    with running(
        Command((*TREE, "stubborn"), grace_s=0.2), tmp_path, launch_id, grace_s=60.0
    ) as process:
        wait_for_tree(tmp_path, launch_id)
        assert process.stop().seconds < 5


def test_the_log_begins_with_what_is_run_and_shows_no_secret(
    tmp_path: Path, launch_id: str
) -> None:
    env = {"PLAIN": "1", "HF_TOKEN": "t0ken"}
    with running(
        Command(("/bin/echo", "a b"), env, {"K": "s3cr3t"}, notes=("x=1 is pinned",)),
        tmp_path,
        launch_id,
    ) as it:
        assert wait_until(lambda: it.poll() == 0)
        lines = it.log_path.read_text().splitlines()
    assert lines == ["# $ /bin/echo 'a b'", "# HF_TOKEN=***", "# PLAIN=1", "# x=1 is pinned", "a b"]


def test_two_owners_of_one_launch_keep_it_alive_together(tmp_path: Path, launch_id: str) -> None:
    first, second = LaunchLock(launch_id, tmp_path), LaunchLock(launch_id, tmp_path)
    first.release()
    assert is_held(first.path)
    second.release()
    assert not is_held(first.path)
    assert list(tmp_path.iterdir()) == [], "a lock that nobody holds leaves no file"
