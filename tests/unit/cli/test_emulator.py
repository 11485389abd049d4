"""``orchestrator emulator``: the flags of its process, and the former spelling of ``fit``."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from orchestrator.base.errors import InputError
from tests.unit.cli.commands import invoke


@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_is_that_of_the_emulators_own_process(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("emulator", flag).status == 0


def test_an_unknown_flag_is_status_2() -> None:
    assert invoke("emulator", "--no-such-flag").status == 2


def test_the_former_spelling_of_fit_names_the_new_one_and_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="no results at"):
        invoke("emulator", "fit", str(tmp_path))
    with pytest.raises(click.UsageError):
        invoke("emulator", "fit")


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot read the emulator config .*missing\.json: No such"
    ):
        invoke("emulator", "--config", str(tmp_path / "missing.json"))
