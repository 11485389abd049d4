"""The second opinion: one process of the user's vLLM judges command lines within a time limit."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.engines.vllm_check import (
    CommandVerdict,
    JudgedCommand,
    JudgeReport,
    Ruling,
    ask,
    judged_command,
)
from tests.unit.engines.builders import CPU, H100, settings_of

ACCEPTED = CommandVerdict(Ruling.ACCEPTED)
COMMAND = JudgedCommand(("acme/tiny",), {}, [("acme/tiny", None)], cpu=True)


def test_the_judged_command_line_is_that_without_a_container() -> None:
    settings = settings_of("vllm", image="i", tensor_parallel_size=2, env={"A": "1"})
    command = judged_command(settings, H100)
    assert command.argv[0] == "acme/tiny"
    assert command.argv[command.argv.index("--tensor-parallel-size") + 1] == "2"
    assert command.env["A"] == "1"
    assert not command.cpu


def test_local_ranks_need_no_gpus_of_the_judging_machine() -> None:
    command = judged_command(settings_of("vllm", tensor_parallel_size=2), H100)
    assert command.argv[command.argv.index("--distributed-executor-backend") + 1] == "mp"


def test_a_draft_model_must_be_at_hand_too() -> None:
    speculative = {"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}
    settings = settings_of("vllm", revision="r", speculative=speculative)
    command = judged_command(settings, CPU)
    assert command.models == [("acme/tiny", "r"), ("org/draft", None)]


def environment(folder: Path, script: str) -> Path:
    """A folder with a bin/python that runs ``script`` in place of what it is given."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    (folder / "script.py").write_text(script)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -u -I "{folder / "script.py"}"\n')
    python.chmod(0o755)
    return folder


HEADER = 'print("some log line")\nprint(\'VERDICT {"version": "1", "device": "cpu"}\')\n'


def test_verdicts_are_found_among_other_output(tmp_path: Path) -> None:
    script = HEADER + 'import sys\nfor line in sys.stdin: print("log"); print("VERDICT {}")\n'
    report = ask(environment(tmp_path, script), [COMMAND, COMMAND])
    assert report == JudgeReport("1", "cpu", [ACCEPTED, ACCEPTED])


def test_every_line_of_the_judge_becomes_a_verdict(tmp_path: Path) -> None:
    lines = ["{}", '{"refused": "No."}', '{"unknown": "Perhaps."}']
    script = HEADER + "".join(f"print({'VERDICT ' + line!r})\n" for line in lines)
    report = ask(environment(tmp_path, script), [COMMAND] * 3)
    assert report.verdicts == [
        ACCEPTED,
        CommandVerdict(Ruling.REFUSED, "No."),
        CommandVerdict(Ruling.UNKNOWN, "Perhaps."),
    ]


def test_the_judge_reads_a_json_object_for_each_command(tmp_path: Path) -> None:
    script = HEADER + (
        "import json, sys\n"
        "for line in sys.stdin: print('VERDICT', json.dumps({'refused': sorted(json.loads(line))}))\n"
    )
    report = ask(environment(tmp_path, script), [COMMAND])
    assert report.verdicts[0].sentence == ["argv", "cpu", "env", "models"]


def test_verdicts_given_in_time_count_and_nothing_is_left_running(tmp_path: Path) -> None:
    script = HEADER + (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('VERDICT {}')\ntime.sleep(600)\n"
    )
    report = ask(environment(tmp_path, script), [COMMAND, COMMAND], limit_s=3.0)
    assert report.verdicts == [ACCEPTED]
    child = Path("/proc") / (tmp_path / "pid").read_text()
    until = time.monotonic() + 10
    while (
        child.exists()
        and "Z" not in (child / "stat").read_text().split()[2]
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "raise SystemExit('ModuleNotFoundError: no vllm')",
            "cannot be asked: ModuleNotFoundError: no vllm",
        ),
        (HEADER.replace("cpu", ""), "finds no device here"),
        ("import time; time.sleep(600)", "no answer within 1 s"),
    ],
)
def test_an_environment_that_cannot_be_asked_says_why(
    script: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        ask(environment(tmp_path, script), [COMMAND], limit_s=1.0 if "sleep" in script else 60.0)


def test_a_folder_without_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no bin/python"):
        ask(tmp_path, [])
