"""What an engine's process inherits, writes and tells of its log, without starting one.

That it starts and leaves nothing behind is tested in tests/integration/test_engine_process.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines.command import Command
from orchestrator.node.process import (
    READY,
    EngineProcess,
    clean_environment,
    header,
    inherited,
    tail,
)

NODE = {
    "HOME": "/root",
    "NCCL_DEBUG": "INFO",
    "RAY_ADDRESS": "auto",
    "PYTHONPATH": "/x",
    "CUDA_VISIBLE_DEVICES": "0",
    "PATH": "/usr/bin",
}


def process_with_log(folder: Path, text: str, **secrets: str) -> EngineProcess:
    process = EngineProcess(Command(("engine",), secrets=secrets), folder, "01L")
    process.log_path.write_text(text)
    return process


def test_variables_of_ray_and_of_this_python_are_not_inherited() -> None:
    assert clean_environment(NODE, "engine") == {
        "HOME": "/root",
        "NCCL_DEBUG": "INFO",
        "PATH": "/usr/bin",
    }


def test_the_folder_of_the_program_comes_first_in_path() -> None:
    assert clean_environment(NODE, "/opt/venv/bin/engine")["PATH"] == "/opt/venv/bin:/usr/bin"


def test_a_command_may_hide_variables_of_the_node() -> None:
    command = Command(("engine",), hides=("NCCL_DEBUG",))
    assert inherited(NODE, command).keys() == {"HOME", "PATH"}


def test_a_command_may_inherit_some_prefixes_only() -> None:
    command = Command(("engine",), inherits=("NCCL_", "PATH"))
    assert inherited(NODE, command).keys() == {"NCCL_DEBUG", "PATH"}


def test_the_log_begins_with_the_command_and_hides_secrets() -> None:
    env = {"B": "2", "A": "1", "HF_TOKEN": "s3cret"}
    command = Command(("engine", "a b"), env=env, secrets={"KEY": "k3y"}, notes=("so",))
    assert header(command).splitlines() == [
        "# $ engine 'a b'",
        "# A=1",
        "# B=2",
        "# HF_TOKEN=***",
        "# so",
    ]


def test_new_lines_come_once_and_whole(tmp_path: Path) -> None:
    process = process_with_log(tmp_path, "one\ntwo\nhal")
    assert process.new_lines() == ["one", "two"]
    assert process.new_lines() == []
    with process.log_path.open("a") as log:
        log.write("f\n")
    assert process.new_lines() == ["half"]


def test_the_log_since_readiness_leaves_out_what_was_before(tmp_path: Path) -> None:
    process = process_with_log(tmp_path, "loading\n", KEY="a-long-k3y")
    process.mark_ready()
    with process.log_path.open("a") as log:
        log.write("serving with a-long-k3y\n")
    assert process.log_since_ready() == f"\n{READY}\nserving with ***\n"


def test_the_tail_of_a_log_has_so_many_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\n")
    assert tail(log, 2) == "two\nthree"
    assert tail(tmp_path / "nothing", 2) == ""


def test_the_shorter_grace_period_counts(tmp_path: Path) -> None:
    command = Command(("engine",), grace_s=3.0)
    assert EngineProcess(command, tmp_path, "01L", grace_s=10.0).grace_s == 3.0
    assert EngineProcess(command, tmp_path, "01L", grace_s=1.0).grace_s == 1.0


def test_a_file_outside_the_launchs_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.node.process.node_folder", lambda name: tmp_path / name)
    process = EngineProcess(Command(("engine",), files={"../x": "text"}), tmp_path / "w", "01L")
    with pytest.raises(ValueError, match="outside the launch's folder"):
        process.start()
    assert not (tmp_path / "x").exists()
