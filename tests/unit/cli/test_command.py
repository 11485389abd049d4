"""Helps that fit a screen, whole helps, and options by other names."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from orchestrator.cli.command import HELP_ALL, CliCommand
from orchestrator.cli.main import COMMANDS, SECTIONS, cli

MOST_LINES = 40
COLUMNS = 80


def command_named(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def has_whole_help(name: str) -> bool:
    """Whether the short help of a command leaves something out."""
    return any(HELP_ALL in option.opts for option in command_named(name).params)


WITH_SHORT_HELP = [name for name in COMMANDS if has_whole_help(name)]


def shown(*argv: str) -> str:
    """What a command prints on a terminal of 80 columns."""
    done = CliRunner().invoke(cli, argv, env={"COLUMNS": str(COLUMNS)}, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_a_help_fits_a_screen(name: str | None) -> None:
    lines = shown(*([] if name is None else [name]), "--help").splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_no_marks_of_another_markup(name: str) -> None:
    whole = shown(name, HELP_ALL if name in WITH_SHORT_HELP else "--help")
    assert "``" not in whole


WHOLE_HELPS = [[name, HELP_ALL] for name in WITH_SHORT_HELP]


@pytest.mark.parametrize(
    "argv", [*WHOLE_HELPS, ["predict", "fit", "-h"], ["workload", "show", "-h"]]
)
def test_a_whole_help_is_no_wider_than_a_terminal(argv: list[str]) -> None:
    assert [line for line in shown(*argv).splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", WITH_SHORT_HELP)
def test_the_whole_help_has_every_option_and_what_the_short_one_leaves_out(name: str) -> None:
    command = command_named(name)
    assert isinstance(command, CliCommand)
    short, whole = shown(name, "--help"), shown(name, HELP_ALL)
    assert HELP_ALL in short
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.opts[-1] in whole
    for text in (command.examples, command.details):
        assert "".join(text.replace("\b", "").split()) in "".join(whole.split())
    assert len(whole) > len(short)


@pytest.mark.parametrize("name", WITH_SHORT_HELP)
def test_other_names_stand_for_options_that_exist(name: str) -> None:
    command = command_named(name)
    assert isinstance(command, CliCommand)
    options = {opt for param in command.params for opt in param.opts}
    for other, here in command.other_names.items():
        assert other not in options
        if here.startswith("--"):
            assert here.split(" ")[0] in options


@pytest.mark.parametrize(
    ("argv", "name_here"),
    [
        (("load", "http://h", "--burstiness", "2"), "write --arrivals gamma:SHAPE"),
        (("load", "http://h", "--qps=4"), "write --rate"),
        (("load", "http://h", "--num-prompts", "4"), "write --requests"),
        (("load", "http://h", "--base-url", "http://h"), "write the address as the argument"),
        (("load", "http://h", "--output", "x.json"), "write --format json > FILE; --results URI"),
        (("load", "http://h", "--goodput", "ttft:500"), 'write --slo "ttft<=500ms"'),
        (("best", "runs/", "--workload", "chat"), "write results URI --where"),
        (("doctor", "--address=local", "--selfcheck"), "write python benchmarks/client/run.py"),
        (("run", __file__, "--storage-timeout", "1h"), "write storage_timeout: 15m in the"),
    ],
)
def test_an_option_by_another_name_is_refused_with_the_name_here(
    argv: tuple[str, ...], name_here: str
) -> None:
    done = CliRunner().invoke(cli, argv)
    assert done.exit_code == 2
    assert f"No such option '{argv[2].partition('=')[0]}': {name_here}" in done.output


def test_a_command_that_shows_everything_has_no_whole_help() -> None:
    command = CliCommand(name="x", params=[click.Option(["--y"])], examples="one")
    assert "--y" in command.get_help(click.Context(command))
    assert HELP_ALL not in command.get_help(click.Context(command))


def test_an_unknown_option_is_refused_as_click_does() -> None:
    done = CliRunner().invoke(cli, ["load", "http://h", "--concurency", "4"])
    assert done.exit_code == 2
    assert "--concurrency" in done.output


def test_the_help_lists_every_command_once() -> None:
    names = [name for names in SECTIONS.values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) <= set(COMMANDS)
    lines = shown("--help").splitlines()
    for name in COMMANDS:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
