"""What tests, benchmarks and scripts import from the program exists: mypy does not look at all of
them, and nobody runs a benchmark at every commit.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.harness import ROOT

FOLDERS = ("benchmarks", "scripts", "tests")
FILES = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """Each module of the program that a file imports from, with the name that it imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orchestrator"):
            yield from ((node.module or "", alias.name) for alias in node.names)


def is_there(module_name: str, name: str) -> bool:
    if hasattr(import_module(module_name), name):
        return True
    try:
        import_module(f"{module_name}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("path", FILES, ids=str)
def test_imported_names_exist(path: Path) -> None:
    missing = [".".join(each) for each in imported_names(ROOT / path) if not is_there(*each)]
    assert not missing
