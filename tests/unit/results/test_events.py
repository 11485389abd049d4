"""Events: every decision has a kind, and the list of kinds is what the program tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import orchestrator
from orchestrator.results.events import KINDS

EVENT_MAKERS = {"Event", "_tell"}  # calls whose first argument is the kind


def kinds_in(program: ast.Module) -> Iterator[str]:
    """Every kind that a file of the program makes an event of."""
    for node in ast.walk(program):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if function not in EVENT_MAKERS:
            continue
        kind = node.args[0]
        alternatives = [kind.body, kind.orelse] if isinstance(kind, ast.IfExp) else [kind]
        for alternative in alternatives:
            if isinstance(alternative, ast.Constant) and isinstance(alternative.value, str):
                yield alternative.value


def test_every_kind_of_event_is_in_the_list_of_kinds() -> None:
    uses = [
        (path.name, kind)
        for path in Path(orchestrator.__file__).parent.rglob("*.py")
        for kind in kinds_in(ast.parse(path.read_text()))
    ]
    assert len(uses) > 10
    unlisted = sorted(f"{file}: {kind}" for file, kind in uses if kind not in KINDS)
    assert not unlisted, (
        "add them to KINDS in results/events.py, then `python -m scripts.documented_tables`"
    )
