"""The emulator's process reports what keeps it from starting, in vLLM's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.emulator.__main__ import run


@pytest.mark.parametrize(
    "argv",
    [
        ["--profile", "no-such-accelerator"],
        ["--set", "no_such_setting=1"],
        ["--fault", "explode"],
        ["--config", "missing.json"],
    ],
)
def test_a_start_that_fails_ends_with_1_and_logs_the_reason(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("ERROR ")
    assert "Value error, " in line
