"""Prompts from a file: one per line as text, or JSON lines ``{"prompt": "…", "output_tokens": 128}``.

Request i sends prompt i as the file has it, and after the last the first again. Nobody counts its tokens beforehand:
the length asked for is 0, and the rows have what the engine counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from orchestrator.errors import InputError
from orchestrator.load.tokens import Prompter
from orchestrator.load.workloads import Exchanged, Prompt
from orchestrator.load.workloads.lengths import SessionLengths
from orchestrator.spec.load import Workload

JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt. ``output_tokens``: None where the line names none; then the workload's."""

    text: str
    output_tokens: int | None = None


class File:
    """One line of the file per request."""

    turns = 1
    sessions = False
    needs_reply = False

    def __init__(self, workload: Workload, prompter: Prompter, seed: int) -> None:
        try:
            self._lines = read_prompts(workload.prompts or "")
        except ValueError as error:
            raise InputError(str(error)) from None
        self._lengths = SessionLengths(workload, 1, seed)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Exchanged]) -> Prompt:
        return Prompt(None, (), self._line(session).text, 0, 0)

    def output_tokens(self, session: int, turn: int) -> int:
        return self._line(session).output_tokens or self._lengths.output_tokens(session, 0)

    def input_tokens(self, session: int, turn: int) -> int:
        return 0

    def _line(self, session: int) -> Line:
        return self._lines[session % len(self._lines)]


def read_prompts(path: str) -> list[Line]:
    """Every line that is not blank. Raises ValueError with the file, the line and what is wrong there.

    JSON lines are told by the file's name, or by a first line that is an object with ``prompt``.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ValueError(f"prompts {path!r} cannot be read: {why}") from None
    lines = [(at, line.rstrip("\r")) for at, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"prompts {path!r} holds no prompt")
    if not path.endswith(JSON_LINES) and not (isinstance(first := _json(lines[0][1]), dict) and "prompt" in first):
        return [Line(line) for _, line in lines]
    return [_object(line, f"prompts {path!r}, line {at}") for at, line in lines]


def _object(line: str, where: str) -> Line:
    found = _json(line)
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise ValueError(f'{where}: {line[:60]!r} is no object with a text "prompt"')
    tokens = found.get("output_tokens")
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise ValueError(f"{where}: output_tokens is {tokens!r}; give a whole number from 1")
    return Line(found["prompt"], tokens)


def _json(line: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
