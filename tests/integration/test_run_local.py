"""``orchestrator run --address local``: a whole sweep on this machine, without Ray."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.harness import (
    AGAINST_THE_CLOCK,
    MEASURED_ONCE,
    ROOT,
    assert_nothing_left,
    assert_rows_equal_schedule,
    engine_processes,
    environment,
    exit_status,
    manifests,
    rows,
    start,
    undisturbed_status,
    wait_for,
    write_experiment,
)

EXPERIMENT = """
version: 1
name: here
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  vary:
    - cases: [{max_num_seqs: 4}, {nnodes: 2, tensor_parallel_size: 2}]
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: 1s, warmup: 0s}
"""


@AGAINST_THE_CLOCK
def test_without_ray_a_sweep_runs_and_what_needs_two_nodes_fails(
    tmp_path: Path,
) -> None:
    experiment, results = write_experiment(tmp_path, EXPERIMENT), tmp_path / "results"
    program = (
        "import sys; sys.modules['ray'] = None; from orchestrator.cli.main import main; main()"
    )
    argv = ["run", str(experiment), "--results", str(results), "--address", "local"]
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    assert "1 measured" in done.stderr
    assert "1 failed" in done.stderr
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    points = {row["status"]: row for row in rows(results, "points")}
    # a busy test machine may well be too slow
    assert points["ok"]["validity"] in ("valid", "client_bound")
    assert "cannot hold 2 nodes" in points["failed"]["reason"]
    assert {row["status"] for row in rows(results, "requests")} == {"ok"}
    (page,) = results.glob("*/report.html")
    assert f"page: {page}" in done.stderr


LONG = """
version: 1
name: long
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, max_num_seqs: 4}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [1, 2]}, duration: 3s, warmup: 0s}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_a_sweep_soon_keeps_what_was_measured_and_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    experiment, results = write_experiment(tmp_path, LONG), tmp_path / "results"
    argv, log = (
        ["run", str(experiment), "--results", str(results), "--address", "local"],
        tmp_path / "log",
    )
    driver = start(*argv, log=log)
    wait_for(lambda: manifests(results), 60.0, "a measurement")
    driver.send_signal(number)
    assert driver.wait(20) == 130
    said = log.read_text()
    assert "1 measured" in said
    assert "interrupted with 1 left: run the same command again to continue" in said
    assert "Traceback" not in said
    assert_nothing_left()
    assert [one["status"] for one in manifests(results, "launch")] == ["ok"]
    again = start(*argv, log=log)
    assert exit_status(again, 60, log) == 0
    assert re.search(r"1 measured(?: \(of them 1 \w+\))?, 1 already done", log.read_text())


def test_an_engine_that_lives_and_makes_no_step_is_found_and_started_again(tmp_path: Path) -> None:
    experiment = write_experiment(
        tmp_path, LONG.replace("warmup: 0s", "warmup: 0s, request_timeout: 12s")
    )
    program = "import orchestrator.sweep.measure as measure; measure.LEAST_STALL_S = 6.0\n"
    program += "from orchestrator.cli.main import main; main()"
    results, mine = tmp_path / "results", {"STALLS_IN": str(tmp_path)}
    argv = ["run", str(experiment), "--results", str(results), "--address", "local", *MEASURED_ONCE]
    command = [sys.executable, "-c", program, *argv]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(**mine), stderr=subprocess.PIPE, text=True
    ) as driver:
        wait_for(lambda: manifests(results), 60.0, "a measurement")
        engines = [
            one for one in engine_processes() if one.environ().get("STALLS_IN") == mine["STALLS_IN"]
        ]
        (server,) = [one for one in engines if "orchestrator.emulator" in one.cmdline()]
        server.send_signal(signal.SIGSTOP)
        _, said = driver.communicate(timeout=120)
    assert undisturbed_status(driver.returncode, said) == 0, said
    assert "2 measured" in said
    (stalled,) = [row for row in rows(results, "points") if row["status"] == "failed"]
    assert (stalled["failure_kind"], stalled["failure_class"]) == ("engine_stalled", "engine_crash")
    kept = [
        row["status"]
        for row in rows(results, "requests")
        if row["attempt_id"] == stalled["attempt_id"]
    ]
    assert "aborted" in kept
    assert [one["status"] for one in manifests(results, "launch")] == ["failed", "ok"]
    assert not server.is_running()


TWO = """
version: 1
name: two
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, vary: [{grid: {max_model_len: [2048, 4096]}}]}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [1, 2]}, requests: 30, warmup: 0s}
"""


def in_terminal(columns: int, argv: list[str]) -> tuple[int, list[str]]:
    """Exit status and every line that was drawn on a terminal of so many columns, without colours
    and cursor moves.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-m", "orchestrator", *argv]
    env = environment() | {"TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()))
    return process.wait(10), [
        line for part in text.split("\n") for line in part.split("\r") if line
    ]


@pytest.mark.parametrize("columns", [80, 160])
def test_nothing_is_broken_on_a_terminal(columns: int, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, TWO)
    where = ["--results", str(tmp_path / "results"), "--address", "local"]
    status, lines = in_terminal(columns, ["run", str(experiment), *MEASURED_ONCE, *where])
    assert undisturbed_status(status, "\n".join(lines)) == 0, lines
    too_long = [line for line in lines if len(line) > columns]
    # what is there to be copied stays whole: a command, and the address of the page alone on its line
    page = str(tmp_path / "results" / "two" / "report.html")
    may_be_long = ("orchestrator best ", "orchestrator run ", "--experiment")
    assert [
        line
        for line in too_long
        if line.strip() != page and not any(words in line for words in may_be_long)
    ] == []
    assert any(re.fullmatch(r"[━╌]{60}", line) for line in lines), "the bar stands alone"
    assert any(re.fullmatch(r"\d of 4 measurements(, ~.* left)?", line) for line in lines)
    assert any("emulator len=4096: measure short" in line for line in lines)
    assert any("in flight" in line and "/30 done" in line for line in lines)


DECIDED = """
version: 1
name: decided
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: emulator, vary: [{grid: {max_num_seqs: [1, 32]}}]}
workloads: [{name: short, input_tokens: 16, output_tokens: 64}]
load: {levels: {request_rate: [2, 12]}, duration: 3s, warmup: 0s}
slos: {fast: {ttft: 400ms, attainment: 0.8}}
repeats: 2
"""


@AGAINST_THE_CLOCK
def test_a_sweep_ends_when_it_is_decided_and_the_same_command_goes_on(tmp_path: Path) -> None:
    experiment, results = write_experiment(tmp_path, DECIDED), tmp_path / "results"
    argv = ["run", str(experiment), "--results", str(results), "--address", "local"]
    log = tmp_path / "log"
    assert exit_status(start(*argv, "--until", "decided", log=log), 120, log) in (0, 3)
    said = log.read_text()
    assert " leads: " in said
    decided = re.search(r"decided within 5 %: \d deployments? not measured to the end", said)
    assert decided, said
    assert_nothing_left()
    measured = len(manifests(results))
    assert measured < 8
    assert decided[0] in orchestrator_says("best", str(results))
    assert exit_status(start(*argv, log=log), 120, log) in (0, 3)
    assert len(manifests(results)) == 8
    assert decided[0] not in orchestrator_says("best", str(results))


def orchestrator_says(*argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *argv],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout + done.stderr
