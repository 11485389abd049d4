"""The page on what listens where says what the code does."""

from __future__ import annotations

import pytest

from orchestrator.cli.watch import watch
from orchestrator.emulator.flags import parser
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.node.leases import FIRST_PORT, LAST_PORT
from orchestrator.web.server import HEALTH, LOOPBACK_NAMES, TOKEN_VARIABLE
from tests.unit.documentation.pages import DOCS

PAGE = (DOCS / "reference" / "listeners.md").read_text(encoding="utf-8")
PROGRAMS = [
    *(ENGINES[name] for name in ENGINES.shipped()),
    *(ROUTERS[name] for name in ROUTERS.shipped()),
]


def row(title: str) -> list[str]:
    """The names in a row of the table of keys."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title} |")]
    return [name.strip() for name in line.split("|")[2].split(",")]


@pytest.mark.parametrize(
    "program", [program for program in PROGRAMS if program.launches], ids=lambda each: each.name
)
def test_an_engine_stands_where_its_key_puts_it(program: Engine) -> None:
    has_key = program.guarded and program.key_variable is not None
    assert (program.title in row("with a key")) is has_key
    assert (program.title in row("without one")) is not has_key


def test_the_ports_are_those_of_the_code() -> None:
    assert f"{FIRST_PORT} to {LAST_PORT}" in PAGE
    defaults = {option.name: option.default for option in watch.params}
    assert f"| `{defaults['host']}`, or what `--host` says | {defaults['port']}, " in PAGE
    options = parser().parse_args([])
    assert f"| `{options.host}`, or what `--host` says | {options.port}, " in PAGE


def test_the_names_of_the_page_are_those_of_the_code() -> None:
    for name in (*LOOPBACK_NAMES, TOKEN_VARIABLE, HEALTH):
        assert f"`{name}`" in PAGE
