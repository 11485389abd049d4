"""The commands of README and documentation, run as they stand, as far as that needs no cluster, no
GPU and no hours; those that do need one are parsed.

A page is run from its first block to its last, in a folder with what a checkout has and with the
simulated sweep of the README in ``simulated/`` and in ``results/``. Its server is an emulator. Loads
are shorter than they are written.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pandas  # noqa: F401  # loaded first: commands would keep it out of this process
import pytest
from click.testing import CliRunner

from orchestrator.cli.main import COMMANDS, cli
from orchestrator.emulator.flags import parser as emulator_parser
from tests.documentation.blocks import Block, blocks, command_lines
from tests.harness import environment, free_port, wait_for
from tests.unit.documentation.pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
# The pages of the first hour are read one after the other; others stand alone.
FIRST_HOUR = [ROOT / "docs" / "start" / f"{name}.md" for name in ("server", "sweep", "answer")]
WITH_COMMANDS = sorted({block.page for block in SHELL if block.not_run is None})
READ_TOGETHER = [FIRST_HOUR, *([page] for page in WITH_COMMANDS if page not in FIRST_HOUR)]
PARSED = [block for block in SHELL if block.not_run is not None]
LANGUAGES = {"sh", "text", "yaml", "toml", "csv", "json", "python", "py", "sql"}

SERVER = "http://127.0.0.1:8000"  # the address in all pages
SHORTER = (
    (r"--duration \d+m?s?", "--duration 2s"),
    (r"--requests \d+", "--requests 6"),
    (r"--output-tokens \d+", "--output-tokens 4"),
    (r" --budget \w+", ""),
    (r"--find-capacity", "--find-capacity --budget 3s"),
)
PRELUDE = """
set -euo pipefail
open() { test -s "$1"; }
pip() { test "$1" = install && test -f pyproject.toml; }
"""
# A load of seconds may have no valid measurement on a machine that tests share: status 3.
NO_VALID_MEASUREMENT = 3
OF_LOADS = {"load", "runs/"}
SIMULATED = "experiments/llama70b-parallelism.yaml"
FOLDERS_OF_FILES = ("clusters/", "experiments/", "benchmarks/", "scripts/", "tests/")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that the README's own command makes; simulating it again does nothing."""
    folder = tmp_path_factory.mktemp("stored") / "results"
    run_line(f"orchestrator simulate {SIMULATED} --results {folder}", ROOT)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an emulator."""
    port = free_port()
    log = tmp_path_factory.mktemp("emulator") / "log"
    argv = ["-m", "orchestrator", "emulator", "--profile", "H100-80GB/Llama-3.1-8B"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *argv, "--port", str(port)],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(lambda: "serving" in log.read_text(), 60, "the emulator serves")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


def run_line(line: str, folder: Path) -> str:
    """Runs a line of a block as a reader would, and returns its output. Fails with its output.

    Commands of this program run within this process, which saves the second in which each would
    start; not so a load, whose clients are processes of their own.
    """
    words = shlex.split(line, comments=True)
    is_ours = words[0] == "orchestrator" and words[1] != "load"
    status, output = in_process(words[1:], folder) if is_ours else in_a_shell(line, folder)
    if status != NO_VALID_MEASUREMENT or OF_LOADS.isdisjoint(words):
        assert status == 0, f"{line}\n{output[-5000:]}"
    return output


def in_process(argv: list[str], folder: Path) -> tuple[int, str]:
    """The status and the output of a command of this program."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(cli, argv, standalone_mode=False)
    if done.exception is not None:
        return 1, f"{done.output}\n{done.exception!r}"
    return done.return_value or 0, done.output


def in_a_shell(line: str, folder: Path) -> tuple[int, str]:
    """The status and the output of a line of bash."""
    programs = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", PRELUDE + line],
        cwd=folder,
        env=environment(PATH=f"{programs}:/usr/bin:/bin"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("pages", READ_TOGETHER, ids=lambda pages: page_id(pages[0]))
def test_the_commands_of_a_page_run(
    pages: list[Path], results: Path, server: str, tmp_path: Path
) -> None:
    for name in ("experiments", "clusters", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("simulated", "results"):
        (tmp_path / name).symlink_to(results)
    output = ""
    for page in pages:
        for block in blocks(page):
            if block.is_printed:
                assert lines_missing(block.text, output) == [], block
            elif block.file_name is not None:
                (tmp_path / block.file_name).write_text(block.text, encoding="utf-8")
            elif block.language == "sh" and block.not_run is None:
                for line in lines(block, server):
                    output += run_line(line, tmp_path)


def lines_missing(text: str, output: str) -> list[str]:
    """The lines of ``text`` that ``output`` does not have, but for blanks and lines of ``…``."""
    printed = {" ".join(line.split()) for line in output.splitlines()}
    wanted = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in wanted if line not in printed and line not in ("", "…")]


def lines(block: Block, server: str) -> Iterator[str]:
    """The commands of a block, one a line, to a server of this test and shorter than written."""
    text = block.text.replace("\\\n", " ").replace(SERVER, server)
    for written, shorter in SHORTER:
        text = re.sub(written, shorter, text)
    for line in text.splitlines():
        if shlex.split(line, comments=True):
            yield line


@pytest.mark.parametrize("block", PARSED, ids=str)
def test_commands_that_are_not_run_have_options_and_files_that_exist(block: Block) -> None:
    for words in command_lines(block):
        argv = of_this_program(words)
        if argv:
            parse(argv)
        if words[0] == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert words[1] in targets
        for word in words:
            if word.startswith(FOLDERS_OF_FILES):
                assert (ROOT / word).exists(), word


def of_this_program(words: list[str]) -> list[str]:
    """The arguments of ``orchestrator``, whatever starts it: Ray, Python, a container, and without
    the file that its output goes to. None where its name is that of an image or of a shell's
    completion.
    """
    if ">" in words:
        words = words[: words.index(">")]
    for index, word in enumerate(words):
        argv = words[index + 1 :]
        is_program = index == 0 or words[index - 1] == "-m"
        names_command = bool(argv) and argv[0] in COMMANDS
        if word == "orchestrator" and (is_program or names_command):
            return argv
    return []


def parse(argv: list[str], is_whole: bool = True) -> None:
    """Lets the command line take ``argv`` apart, up to where the command would begin. What is
    required may be missing where it is not the whole command. Raises
    UsageError for an option or a value that it does not have.
    """
    command: click.Command = cli
    context = click.Context(cli, info_name="orchestrator")
    while isinstance(command, click.Group) and argv:
        name, *argv = argv
        subcommand = command.get_command(context, name)
        assert subcommand is not None, f"no command {name!r}"
        command = subcommand
        context = click.Context(command, info_name=name, parent=context)
    if command.name == "emulator":
        emulator_parser().parse_args(argv)
        return
    given, left_over, _ = command.make_parser(context).parse_args(list(argv))
    assert left_over == []
    for parameter in command.get_params(context):
        value = given.get(parameter.name or "")
        is_missing = is_whole and parameter.required and value is None
        assert not is_missing, f"{parameter.name} is missing"
        if isinstance(parameter.type, click.Choice):
            parameter.type_cast_value(context, value)


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.UsageError, match="--find-capacty"):
        parse(["load", "URL", "--find-capacty"])
    with pytest.raises(AssertionError, match="results_uri is missing"):
        parse(["run", "sweep.yaml"])


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_its_language(block: Block) -> None:
    assert block.language in LANGUAGES


GENERATED = ROOT / "docs" / "reference" / "commands.md"
INLINE = re.compile(r"`orchestrator ([a-z-]+(?: [^`…>]*)?)")
INLINE_COMMANDS = sorted(
    {
        command
        for page in PAGES
        if page != GENERATED
        for command in INLINE.findall(page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("command", INLINE_COMMANDS)
def test_commands_within_sentences_have_options_that_exist(command: str) -> None:
    with contextlib.suppress(click.BadOptionUsage):  # an option is named without its value
        parse(shlex.split(command), is_whole=False)


def test_a_line_that_was_not_printed_is_found() -> None:
    assert lines_missing("a  b\n…\nc\n", "x\n a b\n") == ["c"]
