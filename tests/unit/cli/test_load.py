"""``orchestrator load``: its help, its exit status, and where its notes go."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError, ResultsError
from orchestrator.cli.load import SECTIONS, Outcome, api_of_url, load, outputs_are_one
from orchestrator.cli.signals import INTERRUPTED
from tests.unit.cli.commands import invoke

URL = "http://host/v1/chat/completions"


def test_help_lists_options_by_section_in_the_order_of_the_command() -> None:
    text = invoke("load", "--help").stdout
    places = [text.index(f"\n{title}:\n") for title in SECTIONS.values()]
    assert places == sorted(places)
    assert {option.name for option in load.params} >= SECTIONS.keys()


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome(), 0),
        (Outcome(failed_requests=1), 3),
        (Outcome(has_invalid_level=True), 3),
        (Outcome(failed_requests=1, interrupted=True), INTERRUPTED),
    ],
)
def test_the_exit_status_says_what_came_of_the_levels(outcome: Outcome, status: int) -> None:
    assert outcome.exit_status() == status


def test_a_level_that_was_not_stored_is_an_error_also_when_interrupted() -> None:
    outcome = Outcome(interrupted=True, storing_error=ResultsError("the disk is full"))
    with pytest.raises(ResultsError, match="the disk is full"):
        outcome.exit_status()


def test_the_api_is_the_one_whose_path_was_pasted() -> None:
    with load.make_context("load", [URL]) as context:
        assert api_of_url(URL, context.params["api"]) == "chat"
        assert api_of_url("http://host", context.params["api"]) == "completions"


def test_two_different_apis_are_refused() -> None:
    with load.make_context("load", [URL, "--api", "tgi"]):
        with pytest.raises(InputError, match="is the path of --api chat: leave out --api tgi"):
            api_of_url(URL, "tgi")
        assert api_of_url(URL, "chat") == "chat"


def test_notes_are_repeated_only_where_the_table_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        assert not outputs_are_one()
        monkeypatch.setattr("sys.stderr", out)
        assert outputs_are_one()
        monkeypatch.setattr("sys.stderr", io.StringIO())
        assert not outputs_are_one()
