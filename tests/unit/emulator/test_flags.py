"""The emulator's command line: flags, a config file, and faults become options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.emulator.flags import API_KEY_VARIABLE, Options, options_of, parse, with_faults
from orchestrator.emulator.profile import DEFAULT_MODEL, Faults, Profile


def options(*argv: str) -> Options:
    return options_of(parse(argv))


def test_without_flags_a_known_model_is_imitated_on_a_gpu() -> None:
    parsed = options()
    assert parsed.model == DEFAULT_MODEL
    assert not parsed.hardware.is_cpu


def test_any_setting_of_an_engine_can_be_set() -> None:
    assert options("--set", "max_num_seqs=7", "enforce_eager=true").settings.max_num_seqs == 7
    assert options("--set", "enforce_eager=true").settings.enforce_eager


def test_requests_may_carry_another_name_than_the_model() -> None:
    parsed = options("--model", "Qwen/Qwen3-8B", "--served-model-name", "mine")
    assert parsed.model == "mine"
    assert parsed.settings.model == "Qwen/Qwen3-8B"


def test_a_config_file_takes_the_place_of_flags(tmp_path: Path) -> None:
    config = {
        "settings": {"engine": "emulator", "model": "Qwen/Qwen3-8B", "max_num_seqs": 3},
        "hardware": {"name": "a", "accelerator": "A100-80GB"},
    }
    path = tmp_path / "emulator.json"
    path.write_text(json.dumps(config))
    parsed = options("--config", str(path), "--model", "ignored")
    assert parsed.settings.max_num_seqs == 3
    assert parsed.model == "Qwen/Qwen3-8B"
    assert parsed.hardware.accelerator == "A100-80GB"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b'{"settings": ', "Expecting value: line 1 column 14 (char 13)"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"[]", "it is no JSON object"),
    ],
)
def test_a_config_file_that_cannot_be_read_is_named_with_the_reason(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "emulator.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        options("--config", str(path))
    assert str(raised.value) == f"cannot read the emulator config {path}: {reason}"


def test_a_profile_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    with pytest.raises(InputError) as raised:
        options("--profile", str(path))
    assert str(raised.value) == (
        f"cannot read the emulator profile {path}: No such file or directory"
    )


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="no_such_setting"):
        options("--set", "no_such_setting=1")


def test_the_key_comes_from_the_environment_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "k3y")
    parsed = options()
    assert parsed.api_key == "k3y"
    assert "k3y" not in repr(parsed)


def test_faults_of_the_command_line_are_put_over_those_of_the_profile() -> None:
    profile = Profile(faults=Faults(stall_s=2.0, cut_every=3))
    faults = with_faults(profile, ["cut_every=5", "orphan"]).faults
    assert faults == Faults(stall_s=2.0, cut_every=5, orphan=True)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="explode"):
        with_faults(Profile(), ["explode"])


@pytest.mark.parametrize("flag", ["-h", "--help", "--help-all"])
def test_the_help_shows_all_but_the_flags_of_sweeps(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([flag])
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    assert "--max-concurrent-requests" in help_text
    assert "--headless" not in help_text


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--prot", "9"], "unknown argument '--prot'; did you mean '--port'?"),
        (["--prot=9"], "unknown argument '--prot'; did you mean '--port'?"),
        (["--modle", "m", "--port", "9"], "unknown argument '--modle'; did you mean '--model'?"),
        (["--xyzzy"], "unknown argument '--xyzzy'\n"),
        # not the flag of sweeps
        (["--headles"], "unknown argument '--headles'; did you mean '--help'?"),
    ],
)
def test_a_mistyped_flag_is_answered_with_the_nearest(
    argv: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err
