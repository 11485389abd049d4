"""``orchestrator run``: what becomes of a sweep that is over."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from click.testing import CliRunner

from orchestrator.cli.main import cli
from orchestrator.cli.run import _summary
from orchestrator.results.store import Store
from orchestrator.sweep.state import MeasurementCounts, SweepReport
from tests.harness import ROOT

FILE = """
version: 1
name: x
model: some-org/some-model
deployments: {engine: emulator, max_num_seqs: 8}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, duration: 5s}
"""
GONE = "error: the folder that this program runs in or from is gone: start it again to continue\n"


def test_an_answer_that_cannot_be_given_costs_a_sweep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[str]:
        raise TypeError("damaged rows")

    report = SweepReport(MeasurementCounts(measured=1), wall_s=1.0, overhead=0.0)
    monkeypatch.setattr(
        "orchestrator.cluster.open_cluster.open_cluster",
        lambda *_: SimpleNamespace(note="", close=lambda: None),
    )
    monkeypatch.setattr(
        "orchestrator.sweep.sweep.Sweep", lambda _: SimpleNamespace(run=lambda: report)
    )
    monkeypatch.setattr("orchestrator.report.answer_table.answer_text", broken)
    one = "{engine: emulator, max_num_seqs: 8}"
    (tmp_path / "x.yaml").write_text(
        FILE.replace(one, f"[{one}, {{engine: emulator, extra_args: {{--no: true}}}}]")
    )
    argv = ["run", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(cli, argv, standalone_mode=False, catch_exceptions=False)
    assert done.return_value == 0
    assert (
        "1 impossible" in done.stderr
        and f"why they are impossible: orchestrator plan {tmp_path}" in done.stderr
    )
    assert "no answer yet: damaged rows" in done.stderr
    assert "1 measured" in done.stderr


def test_a_run_that_had_nothing_to_do_says_nothing_of_its_own_overhead() -> None:
    def said(**counts: int) -> str:
        report = SweepReport(MeasurementCounts(**counts), wall_s=1.0, overhead=1.0)
        return _summary(report, cast(Store, SimpleNamespace(uri="results")))

    assert "overhead" in said(measured=1) and "overhead" in said(failed=1)
    assert said(skipped=1) == "0 measured, 1 already done, 0 failed\n1 s in all\nresults: results"


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
    assert done.stderr == GONE


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
    assert (done.returncode, done.stdout, done.stderr) == (1, "", GONE)


JOINS = """
import signal, sys, time, ray
from orchestrator.cluster.ray import cluster as ray_cluster
def init(**given):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
    print("joins", flush=True)
    time.sleep(60)
ray.init, ray_cluster.live_address = init, lambda address: ("local", None)
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
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Traceback" not in said


def test_a_command_that_is_none_is_said_with_the_nearest_one() -> None:
    shown = CliRunner().invoke(cli, ["laod"])
    assert shown.exit_code == 2
    assert "unknown command 'laod'; did you mean 'load'?" in shown.output
    assert "did you mean" not in CliRunner().invoke(cli, ["xyzzy"]).output
