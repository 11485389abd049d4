"""What is recorded of each engine, by its folder in ``engines`` (README.md there)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.engines import command_lines

FOLDER = Path(__file__).with_name("engines")
RECORDED = command_lines.FOLDER
# settings that may not be left open
NEEDED: dict[str, dict[str, Any]] = {"llama_cpp": {"max_model_len": 4096}}
COMMON = "common"  # lines that any engine's log may hold: container runtimes'
ENGINES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != COMMON)
WITH_FLAGS = [name for name in ENGINES if (RECORDED / f"{name}.json").exists()]


class Line(NamedTuple):
    """A line that an engine wrote when it failed, and where it was seen or stands in its source."""

    kind: str
    source: str
    text: str


def flags(name: str) -> dict[str, Any]:
    """A command line: ``version``, ``source``, ``metrics``, ``flags`` by every spelling."""
    document: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    by_spelling: dict[str, Any] = {}
    for flag_name, flag in document["flags"].items():
        by_spelling |= dict.fromkeys((flag_name, *flag.get("also", ())), flag)
    return document | {"flags": by_spelling}


def ignored(name: str, argv: tuple[str, ...]) -> set[str]:
    """Flags that the engine takes on this command line and does nothing with."""
    if name not in WITH_FLAGS:
        return set()
    document = flags(name)
    ignored_flags = set(document.get("ignored", ()))
    for needed, flags_that_need_it in document.get("ignored_without", {}).items():
        if needed not in " ".join(argv):
            ignored_flags |= set(flags_that_need_it)
    return ignored_flags


def fullest(name: str) -> dict[str, Any]:
    """Settings that go together, as many as the engine takes at once."""
    document: dict[str, Any] = json.loads((FOLDER / name / "fullest.json").read_text())
    return document


def failures(name: str) -> list[Line]:
    """Lines of its failures."""
    path = FOLDER / name / "failures.tsv"
    if not path.exists():
        return []
    return [Line(*line.split("\t")) for line in path.read_text().splitlines()]


def starts(name: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Logs of starts: what is to be read out of them, and the log."""
    return _logs(name, "start*.log")


def deaths(name: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Whole logs of engines that failed: ``phase``, exit ``status``, the ``kind`` and words
    ``said`` of it; the log.
    """
    return _logs(name, "died-*.log")


def _logs(name: str, pattern: str) -> dict[str, tuple[dict[str, Any], str]]:
    logs = {}
    for path in sorted((FOLDER / name).glob(pattern)):
        _, expected, log = path.read_text().split("\n", 2)
        logs[path.stem] = (json.loads(expected.removeprefix("# ")), log)
    return logs
