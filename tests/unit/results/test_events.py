"""Events: every decision has a kind, and the list of kinds is what the program tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import orchestrator
from orchestrator.results.events import KINDS

TELLERS = {"Event", "_tell"}


def told() -> Iterator[tuple[str, str]]:
    """Every kind that stands where an event is made, and the file."""
    for path in Path(orchestrator.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", getattr(node.func, "attr", "")) in TELLERS
            ):
                for word in node.args[:1]:
                    for one in [word.body, word.orelse] if isinstance(word, ast.IfExp) else [word]:
                        if isinstance(one, ast.Constant) and isinstance(one.value, str):
                            yield one.value, path.name


def test_every_kind_of_event_is_in_the_list_of_kinds() -> None:
    found = list(told())
    assert len(found) > 10
    unknown = sorted(f"{file}: {kind}" for kind, file in found if kind not in KINDS)
    assert not unknown, (
        "add them to KINDS in results/events.py, then `python -m scripts.documented_tables`"
    )
