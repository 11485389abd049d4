"""The commands of README and documentation, run as they stand. Those that need a cluster, an engine
or packages are run by the test that their page names; they are parsed here, and what of them looks
at active runs is run here all the same.

A page is run from its first block to its last, in a folder with what a checkout has and with the
simulated sweep of the README in ``simulated/`` and in ``results/``, or with what ``prepared.py``
puts there. Its server is the emulator that the page starts, or that of the first hour. What needs
GPUs is run in a folder of its own, with small sweeps of emulators as its files. Loads and benchmarks
are shorter than they are written, and sweeps run without Ray.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import pandas  # noqa: F401  # loaded first: commands would keep it out of this process
import pytest

from orchestrator.cli.compare import REGRESSION_STATUS
from orchestrator.cli.main import COMMANDS, cli
from orchestrator.emulator.flags import parser as emulator_parser
from tests.documentation.blocks import Block, blocks, command_lines
from tests.documentation.figures import GROUPS, MEASUREMENTS, compare_figures
from tests.documentation.prepared import Replacements, prepare, put_emulated_sweep
from tests.documentation.reader import is_served, run_until_read
from tests.harness import MEASURED_ONCE, environment, free_port, undisturbed_status, wait_for
from tests.in_this_process import Completed, judged_as_if_idle, run_here
from tests.integration.test_simulated_experiments import answers_of_the_head
from tests.unit.documentation.pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
# commands that are run where the rest of their block is not: they need no active run, or are quick
OF_ACTIVE_RUNS = {"status", "stop", "watch"}
QUICK = (["make", "clean"],)
# The pages of the first hour are read one after the other; others stand alone.
FIRST_HOUR = [ROOT / "docs" / "start" / f"{name}.md" for name in ("server", "sweep", "answer")]
SERVERS = {block.page: block for block in SHELL if block.is_server}
ELSEWHERE = [block for block in SHELL if block.run_by is not None]
RUN = [block for block in SHELL if not block.is_server and block.run_by is None]
WITH_COMMANDS = sorted({block.page for block in (*RUN, *ELSEWHERE)})
READ_TOGETHER = [FIRST_HOUR, *([page] for page in WITH_COMMANDS if page not in FIRST_HOUR)]
LANGUAGES = {"sh", "text", "yaml", "toml", "csv", "json", "python", "py", "sql"}

SERVER = "http://127.0.0.1:8000"  # the address in all pages
PORT = "8000"
SHORTER = (
    (r"--duration \d+m?s?", "--duration 2s"),
    (r"--requests \d+", "--requests 6"),
    (r"--output-tokens \d+", "--output-tokens 4"),
    (r" --budget \w+", ""),
    (r"--find-capacity", "--find-capacity --budget 3s"),
    (r"--repetitions \d+", "--repetitions 1 --only smooth"),
    (r"orchestrator run ", f"orchestrator run {' '.join(MEASURED_ONCE)} --address local "),
    (r" -m venv ", " -m venv --without-pip "),
)
PRELUDE = """
set -euo pipefail
open() { test -s "$1"; }
pip() {
  case "$1" in
    install) test -f pyproject.toml ;;
    download) python -m pip "$@" --no-index --find-links wheels ;;
    *) false ;;
  esac
}
"""
# A load of seconds may have no valid measurement, nor may a run of a checkout's own on a machine that
# tests share; doctor may warn of this machine. All end with status 3.
NO_VALID_MEASUREMENT = 3
OF_LOADS = {"load", "runs/"}
OF_RUNS = {"toy-results"}
SPOILT = re.compile("disturbed|client_bound|stream_buffered|network_bound")
PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"
SIMULATED = "experiments/llama70b-parallelism.yaml"
SIMULATION = f"orchestrator simulate {SIMULATED} --results simulated/"  # of the README
FOLDERS_OF_FILES = ("clusters/", "experiments/", "benchmarks/", "scripts/", "tests/")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The store that SIMULATION makes, and what that command printed."""

    folder: Path
    output: str


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """The simulation of the README, made once for all pages."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    return Simulation(folder / "simulated", run_line(SIMULATION, folder))


@contextmanager
def serving(block: Block, folder: Path) -> Iterator[str]:
    """The address of the server that a block starts, on a port of its own."""
    (words,) = command_lines(block)
    port = str(free_port())
    assert PORT in words
    argv = [port if word == PORT else word for word in words]
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            argv, env=environment(PATH=PATH), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_for(lambda: "serving" in log.read_text(), 60, "the emulator serves")
        yield SERVER.replace(PORT, port)
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server of the first hour."""
    (block,) = [SERVERS[page] for page in FIRST_HOUR if page in SERVERS]
    with serving(block, tmp_path_factory.mktemp("emulator")) as address:
        yield address


def run_line(line: str, folder: Path) -> str:
    """Runs a line of a block as a reader would, and returns its output. Fails with its output."""
    words = shlex.split(line, comments=True)
    if is_of_this_process(words, folder):
        status, output = in_process(words[1:], folder)
    else:
        status, output = in_a_shell(line, folder)
    if not is_expected(status, words, output):
        pytest.fail(f"{line}\nstatus {status}\n{output[-5000:]}")
    return output


def is_of_this_process(words: list[str], folder: Path) -> bool:
    """Whether a line is run within this process, which saves the seconds of CPU time in which a
    command of this program starts: not so a line that only a shell understands, and the commands of
    a checkout of the page's own.
    """
    needs_a_shell = ">" in words or any("*" in word for word in words)
    has_own_checkout = (folder / "orchestrator").exists()
    return words[0] == "orchestrator" and not needs_a_shell and not has_own_checkout


def is_expected(status: int, words: list[str], output: str) -> bool:
    """Whether a page may go on after a command that ended with this status."""
    if "run" in words:
        return undisturbed_status(status, output) == 0
    if status == NO_VALID_MEASUREMENT:
        is_spoilt = not OF_RUNS.isdisjoint(words) and SPOILT.search(output) is not None
        return is_spoilt or "doctor" in words or not OF_LOADS.isdisjoint(words)
    if status == REGRESSION_STATUS:
        return "compare" in words
    return status == 0


def in_process(argv: list[str], folder: Path) -> tuple[int, str]:
    """The status and the output of a command of this program, whatever else runs on this machine."""
    with contextlib.chdir(folder), judged_as_if_idle():
        done = watched(argv) if "watch" in argv else run_here(*argv)
    return done.returncode, done.stdout + done.stderr


def watched(argv: list[str]) -> Completed:
    """What ``watch`` prints until a reader who has seen its page presses Ctrl-C."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    return run_until_read(lambda: is_served(url), *argv, "--port", str(port))


def in_a_shell(line: str, folder: Path) -> tuple[int, str]:
    """The status and the output of a line of bash."""
    done = subprocess.run(
        ["bash", "-c", PRELUDE + line],
        cwd=folder,
        env=environment(PATH=PATH, PYTHONPATH=str(folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("pages", READ_TOGETHER, ids=lambda pages: page_id(pages[0]))
def test_the_commands_of_a_page_run(
    pages: list[Path], simulation: Simulation, server: str, tmp_path: Path
) -> None:
    for name in ("Makefile", "benchmarks", "clusters", "experiments", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    replacements: dict[str, str] = {}
    for page in pages:
        replacements.update(prepare(page_id(page), tmp_path))
    for name in ("simulated", "results"):
        if not (tmp_path / name).exists():
            (tmp_path / name).symlink_to(simulation.folder)
    own_server = SERVERS.get(pages[0])
    if own_server is None or pages == FIRST_HOUR:
        run_pages(pages, {SERVER: server, **replacements}, tmp_path, simulation)
        return
    with serving(own_server, tmp_path) as address:
        run_pages(pages, {SERVER: address, **replacements}, tmp_path, simulation)


def test_the_head_of_the_first_example_says_what_came_out(simulation: Simulation) -> None:
    printed = {line.strip() for line in simulation.output.splitlines()}
    answers = answers_of_the_head(Path(SIMULATED).stem)
    assert len(answers) > 1
    assert [line for line in answers if line not in printed] == []


def run_pages(
    pages: list[Path], replacements: Replacements, folder: Path, simulation: Simulation
) -> None:
    """Runs the blocks of the pages, one after the other. Fails where one does not do as it says."""
    output = ""
    for page in pages:
        for block in blocks(page):
            if block.is_printed:
                assert lines_missing(block.text, output) == [], block
            elif block.file_name is not None:
                text = replaced(block.text, replacements)
                (folder / block.file_name).write_text(text, encoding="utf-8")
            elif block.is_emulated:
                run_emulated(block, replacements, folder / "emulated")
            elif block in RUN:
                for line in lines(block, replacements):
                    is_made = line == SIMULATION
                    output += simulation.output if is_made else run_line(line, folder)
            elif block in ELSEWHERE:
                for line in lines_of(replaced(block.text, replacements)):
                    if is_run_all_the_same(line):
                        run_line(line, folder)
        compare_figures(page_id(page), output)


def is_run_all_the_same(line: str) -> bool:
    """Whether a line is run of a block that is not run here."""
    words = shlex.split(line, comments=True)
    argv = of_this_program(words)
    return words in QUICK or (bool(argv) and argv[0] in OF_ACTIVE_RUNS)


def run_emulated(block: Block, replacements: Replacements, folder: Path) -> None:
    """Runs a block in a folder of its own, with emulated sweeps as its files. A simulation that it
    does not make itself is made before the command that asks for it.
    """
    for line in lines(block, replacements):
        words = shlex.split(line, comments=True)
        written = words[words.index("--output") + 1] if "--output" in words else None
        files = [word for word in words if word.endswith(".yaml") and word != written]
        for file in files:
            put_emulated_sweep(folder / file)
        if "--simulated" in words:
            uri = words[words.index("--simulated") + 1]
            if not (folder / uri).exists():
                run_line(f"orchestrator simulate {files[0]} --results {uri}", folder)
        run_line(line, folder)


def replaced(text: str, replacements: Replacements) -> str:
    for written, present in replacements.items():
        text = text.replace(written, present)
    return text


def lines_missing(text: str, output: str) -> list[str]:
    """The lines of ``text`` that ``output`` does not have, but for blanks and lines of ``…``."""
    printed = {" ".join(line.split()) for line in output.splitlines()}
    wanted = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in wanted if line not in printed and line not in ("", "…")]


def lines(block: Block, replacements: Replacements) -> Iterator[str]:
    """The commands of a block, one a line, with what is here and shorter than written."""
    text = replaced(block.text, replacements)
    for written, shorter in SHORTER:
        text = re.sub(written, shorter, text)
    return lines_of(text)


def lines_of(text: str) -> Iterator[str]:
    """The commands of a text, one a line."""
    for line in text.replace("\\\n", " ").splitlines():
        if shlex.split(line, comments=True):
            yield line


@pytest.mark.parametrize("block", ELSEWHERE, ids=str)
def test_commands_that_other_tests_run_have_options_and_files_that_exist(block: Block) -> None:
    for words in command_lines(block):
        argv = of_this_program(words)
        if argv:
            parse(argv)
        if words[0] == "make":
            subprocess.run([*words, "--dry-run"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if words[0] == "python" and words[1].startswith("benchmarks/"):
            takes_options(words[1:])
        for word in words:
            if word.startswith(FOLDERS_OF_FILES):
                assert (ROOT / word).exists(), word


def takes_options(command: list[str]) -> None:
    """Lets a script parse options, after which it prints its help. Fails where it refuses them."""
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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


@pytest.mark.parametrize("block", ELSEWHERE, ids=str)
def test_the_test_that_a_block_is_left_to_reads_its_page(block: Block) -> None:
    assert f'"{page_id(block.page)}"' in (ROOT / str(block.run_by)).read_text(encoding="utf-8")


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


SCRIPT = re.compile(r"`python3? (-m )?((?:benchmarks|scripts)[./][^` ]+)([^`]*)`")
SCRIPTS = sorted(
    {
        (place.replace(".", "/") + ".py" if is_module else place, options)
        for page in PAGES
        for is_module, place, options in SCRIPT.findall(page.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize(("file", "options"), SCRIPTS)
def test_scripts_within_sentences_exist_and_have_these_options(file: str, options: str) -> None:
    has_options(file, options.split())


def has_options(file: str, words: list[str]) -> None:
    """Fails where a script does not have an option among these words."""
    source = (ROOT / file).read_text(encoding="utf-8")
    for word in words:
        if word.startswith("--"):
            assert f'"{word}"' in source, word


def test_a_figure_that_a_command_did_not_print_is_found() -> None:
    lines_of_groups = [f"{group} 1 2.0% 3.0% 4 5" for group in GROUPS.values()]
    with pytest.raises(AssertionError, match="H100, H200, vLLM"):
        compare_figures(MEASUREMENTS, "\n".join(lines_of_groups))


def test_a_line_that_was_not_printed_is_found() -> None:
    assert lines_missing("a  b\n…\nc\n", "x\n a b\n") == ["c"]
