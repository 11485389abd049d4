"""The command line itself: names of commands, exit statuses, signals, folders that go."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orchestrator.base.errors import InputError, Problem, ProblemsError, ResultsError
from orchestrator.cli.main import COMMANDS, FOLDER_IS_GONE, cli, main
from tests.harness import ROOT

FILE = """
version: 1
name: x
model: some-org/some-model
deployments: {engine: emulator, max_num_seqs: 8}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, duration: 5s}
"""


def test_a_program_whose_folder_is_removed_under_it_ends_with_a_sentence(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "orchestrator",
        tmp_path / "orchestrator",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    code = "import shutil, sys; sys.path.insert(0, '.'); from orchestrator.cli.main import main\n"
    code += "shutil.rmtree('orchestrator'); sys.argv[1:] = ['status', '.']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{FOLDER_IS_GONE}\n"


def test_a_command_in_a_folder_that_was_removed_ends_with_a_sentence(tmp_path: Path) -> None:
    code = "import os, sys; from orchestrator.cli.main import main\n"
    code += (
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.argv[1:] = ['plan', "
        "'../x.yaml']; main()"
    )
    (tmp_path / "x.yaml").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{FOLDER_IS_GONE}\n")


JOINS = """
import signal, sys, time, ray
from orchestrator.cluster.ray import cluster as ray_cluster
from orchestrator.cluster.ray.address import ClusterAddress
def init(**given):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
    print("joins", flush=True)
    time.sleep(60)
ray.init, ray_cluster.live_address = init, lambda address: ClusterAddress("local")
from orchestrator.cli.main import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_while_ray_starts_is_an_interruption(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    argv = ["run", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-c", JOINS, *argv]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "joins\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_an_unknown_command_is_refused_with_the_nearest_name() -> None:
    shown = CliRunner().invoke(cli, ["laod"])
    assert shown.exit_code == 2
    assert "unknown command 'laod'; did you mean 'load'?" in shown.output
    assert "did you mean" not in CliRunner().invoke(cli, ["xyzzy"]).output


@pytest.mark.parametrize("name", ["bench", "benchmark", "serve"])
def test_a_command_of_another_program_is_refused_with_the_name_here(name: str) -> None:
    shown = CliRunner().invoke(cli, [name, "--model", "m"])
    assert shown.exit_code == 2
    assert f"unknown command '{name}': write load URL" in shown.output


@pytest.mark.parametrize("argv", [["help"], ["help", "load"]])
def test_help_written_as_a_command_is_refused_with_the_option(argv: list[str]) -> None:
    shown = CliRunner().invoke(cli, argv)
    assert shown.exit_code == 2
    expected = "unknown command 'help': write orchestrator --help, or orchestrator COMMAND --help"
    assert expected in shown.output


def test_the_command_selfcheck_of_earlier_versions_names_its_successor() -> None:
    shown = CliRunner().invoke(cli, ["selfcheck"])
    assert shown.exit_code == 2
    assert "unknown command 'selfcheck': write python benchmarks/client/run.py" in shown.output


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_is_found_by_its_name(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize(
    ("error", "status", "lines"),
    [
        (InputError("no such file"), 2, ["error: no such file"]),
        (ResultsError("the storage is silent"), 1, ["error: the storage is silent"]),
        (
            ProblemsError([Problem("first"), Problem("second")]),
            2,
            ["error: first", "error: second", "2 problems; nothing was started"],
        ),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (InputError("s3://me:secret@host\x1b[2J"), 2, ["error: s3://***@host"]),
    ],
    ids=["input", "storage", "problems", "interrupted", "secret"],
)
def test_an_error_is_a_sentence_and_an_exit_status(
    error: BaseException,
    status: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "main", fail)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == status
    assert capsys.readouterr().err.splitlines() == lines
