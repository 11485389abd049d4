"""No page names an installation that does not work: of this program from an index, which does not
have it yet, or of an extra that does not exist.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.unit.documentation.pages import DOCS, ROOT, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
FILES = tracked("*.md", "*.ipynb", "notebooks/*.py", "experiments/*.yaml", "clusters/*.yaml")
INSTALL = re.compile(r"\b(?:install|add|download|uvx|pipx run)\b[^`\n]*")
OF_THIS_FOLDER = re.compile(r"(?<=[\s'\"])\.{1,2}\[([\w,]+)\]")


def from_an_index(text: str) -> list[str]:
    """The commands of a text that install this program by its name."""
    name = re.compile(rf"(?<![\w/]){PROJECT['name']}(?![\w.-]*\.whl)")
    commands = (match[0] for match in INSTALL.finditer(text))
    return [command for command in commands if name.search(command.replace("_", "-"))]


def extras_of(text: str) -> set[str]:
    """The extras of this program that the commands of a text install."""
    commands = (match[0] for match in INSTALL.finditer(text))
    lists = (extras for command in commands for extras in OF_THIS_FOLDER.findall(command))
    return {extra for extras in lists for extra in extras.split(",")}


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_what_a_page_installs_can_be_installed(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert from_an_index(text) == []
    assert extras_of(text) - {"NAME"} <= EXTRAS


def test_the_page_on_installing_has_every_extra_of_users() -> None:
    page = (DOCS / "start" / "install.md").read_text(encoding="utf-8")
    table = page[page.index("| extra |") :].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EXTRAS - {"dev"}


@pytest.mark.parametrize(
    "command",
    [
        "pip install llm-serving-orchestrator",
        "python -m pip install 'llm-serving-orchestrator[plots]>=0.1'",
        "uv add llm_serving_orchestrator",
    ],
)
def test_an_installation_by_name_is_found(command: str) -> None:
    assert from_an_index(f"text\n{command}\n") != []


def test_what_installs_a_file_or_this_folder_is_none() -> None:
    assert from_an_index("pip install dist/llm_serving_orchestrator-0.1.0-py3-none-any.whl") == []
    assert from_an_index("pip install '.[plots]'") == []
    assert extras_of("pip install '.[plots,frames]'") == {"plots", "frames"}
