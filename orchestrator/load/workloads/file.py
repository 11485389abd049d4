"""Prompts from a file: one per line as text, or JSON lines ``{"prompt": "…", "output_tokens": 128}``.

Request i sends prompt i as the file has it, and after the last the first again. Nobody counts its tokens beforehand:
the length asked for is 0, and the rows have what the engine counted.
"""

from __future__ import annotations

import codecs
import os
import platform
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import orjson
from pydantic import Field

from orchestrator.errors import Problem, ProblemsError
from orchestrator.load.workloads.content import Kind, Message, Prompt, Prompter, SessionLengths
from orchestrator.results.ids import content_digest
from orchestrator.spec.load import MOST_TOKENS, Lengths, Workload

JSON_LINES = (".jsonl", ".ndjson", ".json")
MOST_PROBLEMS = 20  # said of one file; the others are counted


@dataclass(frozen=True, slots=True)
class Line:
    """One prompt. ``output_tokens``: None where the line names none; then the workload's."""

    text: str
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a plan needs of a file. ``output_tokens``: the numbers its lines name, with None where some name none."""

    digest: str
    prompts: int
    output_tokens: frozenset[int | None]


class FileWorkload(Workload):
    """``kind: file``: its lines in their order, and after the last the first again."""

    kind: Literal["file"]
    prompts: str  # a prompt per line as text, or JSONL with "prompt" and perhaps "output_tokens"
    output_tokens: Lengths  # of lines that name no number
    prompts_digest: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")  # of the file's bytes

    def resolved(self, path: Callable[[str], str]) -> Self:
        """Every client sends the prompts that were planned, or none. Raises ProblemsError as ``summary`` does."""
        place = path(self.prompts)
        found = summary(place).digest
        self.check(found)
        return self.model_copy(update={"prompts": place, "prompts_digest": found})

    def token_bounds(self) -> tuple[int, int | None]:
        """Nobody counted the prompts; the shortest answer is the least that any line asks for."""
        named = summary(self.prompts).output_tokens
        return 1 + min(self.output_tokens.bounds[0] if tokens is None else tokens for tokens in named), None

    def distinct_requests(self) -> int:
        return summary(self.prompts).prompts

    def identity(self) -> dict[str, Any]:
        """With the content of its file in place of its path."""
        content = self.prompts_digest or summary(self.prompts).digest
        return self.model_dump(mode="json", exclude={"prompts_digest"}) | {"prompts": content}

    def requests(self, prompter: Prompter, seed: int) -> File:
        return File(self, prompter, seed)

    def check(self, digest: str) -> None:
        """Raises ProblemsError when the file's content is not what the workload was planned with."""
        if self.prompts_digest not in (None, digest):
            said = (
                f"prompts {self.prompts!r} on {platform.node()} are not those that were planned (digest {digest} "
                f"instead of {self.prompts_digest}): the file has changed since, or differs on this node"
            )
            raise ProblemsError([Problem(said)])


class File(Kind):
    """One line of the file per request."""

    def __init__(self, workload: FileWorkload, prompter: Prompter, seed: int) -> None:
        """Raises ProblemsError for a file that cannot be sent, or that is not the one that was planned."""
        data = read_file("prompts", workload.prompts)
        workload.check(content_digest(data))
        self._lines = parse_prompts(data, workload.prompts)
        self._lengths = SessionLengths(Lengths(fixed=1), workload.output_tokens, 1, seed)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        return Prompt((Message("user", (self._line(session).text,), 0),), 0)

    def output_tokens(self, session: int, turn: int) -> int:
        return self._line(session).output_tokens or self._lengths.output_tokens(session, 0)

    def _line(self, session: int) -> Line:
        return self._lines[session % len(self._lines)]


def summary(path: str) -> Summary:
    """Read again only when the file has changed. Raises ProblemsError for one that cannot be sent."""
    found = _status("prompts", path)
    return _summary(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _summary(path: str, mtime_ns: int, size: int) -> Summary:
    data = read_file("prompts", path)
    lines = parse_prompts(data, path)
    return Summary(content_digest(data), len(lines), frozenset(line.output_tokens for line in lines))


def parse_prompts(data: bytes, path: str) -> list[Line]:
    """Every line that is not blank. Raises ProblemsError with the file, the lines and what is wrong there.

    JSON lines are told by the file's name, or by a first line that is an object with ``prompt``. Lines end with a line
    feed, or a carriage return before it; a byte order mark is no part of the first.
    """
    named, lines = f"prompts {path!r}", lines_of(data, "prompts", path)
    first, named_json = lines[0][1].lstrip(), path.lower().endswith(JSON_LINES)
    if first.startswith(b"[{") or (named_json and first.startswith(b"[")):
        raise ProblemsError([Problem(f"{named} is a JSON array; write one object per line (JSONL)")])
    is_json = named_json or (isinstance(head := _json(lines[0][1]), dict) and "prompt" in head)
    out, wrong = [], []
    for at, line in lines:
        try:
            out.append(_object(line.decode()) if is_json else Line(line.decode()))
        except UnicodeDecodeError:
            wrong.append(f"{named}, line {at}: not UTF-8")
        except ValueError as error:
            wrong.append(f"{named}, line {at}: {error}")
    if wrong:
        more = [f"{named}: and {len(wrong) - MOST_PROBLEMS} more"] if len(wrong) > MOST_PROBLEMS else []
        raise ProblemsError([Problem(text) for text in wrong[:MOST_PROBLEMS] + more])
    return out


def read_file(what: str, path: str) -> bytes:
    """All of a file of the user's. ``what``: its name in the sentence of the ProblemsError that is raised."""
    _status(what, path)
    with _readable(what, path):
        return Path(path).read_bytes()


def _status(what: str, path: str) -> os.stat_result:
    """Of a regular file: a pipe could be read once, and every client reads."""
    with _readable(what, path):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ProblemsError([Problem(f"{what} {path!r} is not a regular file")])
    return found


@contextmanager
def _readable(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ProblemsError([Problem(f"{what} {path!r} cannot be read: {why}")]) from None


def lines_of(data: bytes, what: str, path: str) -> list[tuple[int, bytes]]:
    """Number and text of every line that is not blank. Raises ProblemsError when there is none."""
    raw = enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1)
    lines = [(at, line.removesuffix(b"\r")) for at, line in raw if line.strip()]
    if not lines:
        raise ProblemsError([Problem(f"{what} {path!r} is empty")])
    return lines


def _object(line: str) -> Line:
    found = _json(line)
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise ValueError(f'{line[:60]!r} is no object with a text "prompt"')
    tokens = found.get("output_tokens")
    if tokens is None or (type(tokens) is int and 1 <= tokens <= MOST_TOKENS):
        return Line(found["prompt"], tokens)
    raise ValueError(f"output_tokens is {tokens!r}; give a whole number from 1 to {MOST_TOKENS}")


def _json(line: str | bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
