"""Requests from a file: text with one prompt per line, or JSON with one object per line or all in
one array.

An object has ``prompt`` (a text), ``messages`` (as OpenAI has them; sent up to the user's last
one), ``conversations`` (as ShareGPT has them; the user's first message is sent) or ``input_length``
(of a trace, perhaps with ``hash_ids``: so many tokens are made). It may also give the length of the
answer.

Request i sends entry i unchanged; after the last entry comes the first again. Nobody counts the
tokens of a text beforehand: its asked length is 0, and the rows hold what the engine counted.
"""

from __future__ import annotations

import codecs
import os
import platform
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import orjson
from pydantic import Field, PrivateAttr

from orchestrator.errors import Problem, ProblemsError
from orchestrator.load.workloads import (
    PROMPT_STREAM,
    Content,
    Kind,
    Message,
    Prompt,
    Prompter,
    SessionLengths,
    stream,
)
from orchestrator.results.ids import content_digest
from orchestrator.spec.document import MOST_FILE_BYTES, read_at_most
from orchestrator.spec.load import MOST_TOKENS, Lengths, Workload

JSON_LINES = (".jsonl", ".ndjson", ".json")
MOST_PROBLEMS = 20  # shown for one file; further ones are only counted
# tokens that each of a trace's hash_ids stands for, as in the traces of Mooncake
BLOCK_TOKENS = 512
Role = Literal["system", "user", "assistant"]
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
SPEAKERS: dict[str, Role] = {
    **ROLES,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the file. ``output_tokens``: None where the line gives none; then the
    workload's apply.

    ``messages`` is empty for a trace: ``input_tokens`` tokens are made for it, alike where
    ``blocks`` are equal.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None = None
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a plan needs of a file. ``lengths``: (input, 0 where unknown; output, None where not
    given) of its lines.
    """

    digest: str
    prompts: int
    left_out: int  # entries in which the user says nothing
    lengths: frozenset[tuple[int, int | None]]

    @classmethod
    def of(cls, data: bytes, found: Sequence[Line | None]) -> Summary:
        lines = [line for line in found if line]
        lengths = frozenset((line.input_tokens, line.output_tokens) for line in lines)
        return cls(content_digest(data), len(lines), len(found) - len(lines), lengths)


class FileWorkload(Workload):
    """``kind: file``: the lines of a file in their order; after the last line comes the first
    again.
    """

    kind: Literal["file"]
    prompts: str
    output_tokens: Lengths | None = None  # for lines that give no length
    # of the file's bytes
    prompts_digest: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    _first: int = PrivateAttr(0)  # index of the entry that the first request sends

    def resolved(self, path: Callable[[str], str]) -> Self:
        """Fixes the file's content, so that clients send what was planned or nothing. Raises
        ProblemsError.
        """
        place = path(self.prompts)
        found = summary(place)
        self.check(found)
        return self.model_copy(update={"prompts": place, "prompts_digest": found.digest})

    def token_bounds(self) -> tuple[int, int | None]:
        """Without an upper bound where prompts are texts, whose tokens nobody counted."""
        own, lengths = (
            self.output_tokens.bounds if self.output_tokens else (1, 1),
            summary(self.prompts).lengths,
        )
        least = min(max(asked, 1) + (answered or own[0]) for asked, answered in lengths)
        if own[1] is None or any(not asked for asked, _ in lengths):
            return least, None
        return least, max(asked + (answered or own[1]) for asked, answered in lengths)

    def distinct_requests(self) -> int:
        return summary(self.prompts).prompts

    def drawn(self) -> bool:
        return all(asked for asked, _ in summary(self.prompts).lengths)  # no texts

    def others(self, requests: int) -> Self:
        made = self.model_copy()
        made._first = 0 if self.drawn() else -requests
        return made

    def left_out(self) -> int:
        return summary(self.prompts).left_out

    def identity(self) -> dict[str, Any]:
        """Has the digest of the file's content in place of its path."""
        content = self.prompts_digest or summary(self.prompts).digest
        return super().identity() | {"prompts": content, "prompts_digest": None}

    def requests(self, prompter: Prompter, seed: int) -> File:
        return File(self, prompter, seed, self._first)

    def check(self, found: Summary) -> None:
        """Raises ProblemsError for a file that is not the one that was planned, or that lacks
        lengths.
        """
        said = []
        if self.prompts_digest not in (None, found.digest):
            said.append(
                f"prompts {self.prompts!r} on {platform.node()} are not those that were planned (digest {found.digest} "
                f"instead of {self.prompts_digest}): the file has changed since, or differs on this node"
            )
        if self.output_tokens is None and any(answered is None for _, answered in found.lengths):
            said.append(
                f"prompts {self.prompts!r} do not all say how long the answer shall be: give output_tokens"
            )
        if said:
            raise ProblemsError([Problem(text) for text in said])


class File(Kind):
    """One line of the file per request."""

    def __init__(
        self, workload: FileWorkload, prompter: Prompter, seed: int, first: int = 0
    ) -> None:
        """Raises ProblemsError for a file that cannot be read, or that is not the one that was
        planned.
        """
        data = read_file("prompts", workload.prompts)
        found = parse_prompts(data, workload.prompts)
        workload.check(Summary.of(data, found))
        self._lines, self._first = [line for line in found if line], first
        self._lengths = SessionLengths(
            Lengths(fixed=1), workload.output_tokens or Lengths(fixed=1), 1, seed
        )
        self._prompter, self._seed = prompter, seed

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        line = self._line(session)
        at = (self._first + session) % len(self._lines)
        made = line.messages or (Message("user", self._made(at, line), line.input_tokens),)
        return Prompt(made, line.input_tokens)

    def _made(self, at: int, line: Line) -> Content:
        """Content of the length that a trace gives. Equal blocks get equal tokens."""
        if not line.blocks:
            return (
                self._prompter.make(stream(self._seed, PROMPT_STREAM, 0, at), line.input_tokens),
            )
        last = line.input_tokens - BLOCK_TOKENS * (len(line.blocks) - 1)
        sizes = [BLOCK_TOKENS] * (len(line.blocks) - 1) + [last]
        each = zip(line.blocks, sizes, strict=True)
        return tuple(
            self._prompter.make(stream(self._seed, PROMPT_STREAM, 1, block), size)
            for block, size in each
        )

    def input_tokens(self, session: int, turn: int) -> int:
        return self._line(session).input_tokens

    def output_tokens(self, session: int, turn: int) -> int:
        return self._line(session).output_tokens or self._lengths.output_tokens(session, 0)

    def _line(self, session: int) -> Line:
        return self._lines[(self._first + session) % len(self._lines)]


def summary(path: str) -> Summary:
    """Reads a file, again only where it has changed. Raises ProblemsError as ``parse_prompts``
    does.
    """
    found = status_of("prompts", path)
    return _summary(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _summary(path: str, mtime_ns: int, size: int) -> Summary:
    data = read_file("prompts", path)
    return Summary.of(data, parse_prompts(data, path))


def parse_prompts(data: bytes, path: str) -> list[Line | None]:
    """All lines that are not blank, or all entries of an array; None for conversations in which the
    user says nothing.

    Raises ProblemsError with the file, the lines (entries) and what is wrong there. A file is JSON
    by its name, or if its first line is an object with one of the keys. Lines end with LF or CR LF;
    a byte order mark is ignored.
    """
    lines, is_json = lines_of(data, "prompts", path), path.lower().endswith(JSON_LINES)
    first = lines[0][1].lstrip()
    if first.startswith(b"[{") or (is_json and first.startswith(b"[")):
        entries = ((f"entry {at}", entry) for at, entry in enumerate(_array(data, path), start=1))
        found = read_each("prompts", path, entries, lambda entry: _entry(entry, entry))
    else:
        is_json = is_json or (
            isinstance(head := _json(lines[0][1]), dict) and not _ENTRIES.keys().isdisjoint(head)
        )
        numbered = ((f"line {at}", line) for at, line in lines)
        found = read_each(
            "prompts",
            path,
            numbered,
            _json_line if is_json else lambda line: Line(_says(line.decode())),
        )
    if not any(found):
        raise ProblemsError([Problem(f"prompts {path!r}: the user says nothing in any of them")])
    return found


def _array(data: bytes, path: str) -> list[Any]:
    try:
        return list(orjson.loads(data.removeprefix(codecs.BOM_UTF8)))
    except orjson.JSONDecodeError as error:
        raise ProblemsError(
            [Problem(f"prompts {path!r}, line {error.lineno}: {error.msg}")]
        ) from None


def read_each(
    what: str, path: str, entries: Iterable[tuple[str, Any]], read: Callable[[Any], _T]
) -> list[_T]:
    """Applies ``read`` to each entry. Raises ProblemsError with all entries for which it raises
    ValueError.
    """
    named, out, wrong = f"{what} {path!r}", [], []
    for place, entry in entries:
        try:
            out.append(read(entry))
        except UnicodeDecodeError:
            wrong.append(f"{named}, {place}: not UTF-8")
        except ValueError as error:
            wrong.append(f"{named}, {place}: {error}")
    if wrong:
        more = (
            [f"{named}: and {len(wrong) - MOST_PROBLEMS} more"]
            if len(wrong) > MOST_PROBLEMS
            else []
        )
        raise ProblemsError([Problem(text) for text in wrong[:MOST_PROBLEMS] + more])
    return out


def read_file(what: str, path: str) -> bytes:
    """The content of a user's file. ``what``: how the ProblemsError calls it where it cannot be
    read.
    """
    status_of(what, path)
    with _readable(what, path):
        return read_at_most(path, MOST_FILE_BYTES)


def status_of(what: str, path: str) -> os.stat_result:
    """The status of a file, which must be a regular one: several clients read it, and a pipe can be
    read only once. All of them hold it in memory, so it has a limit.
    """
    with _readable(what, path):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ProblemsError([Problem(f"{what} {path!r} is not a regular file")])
    if found.st_size > MOST_FILE_BYTES:
        raise ProblemsError(
            [Problem(f"{what} {path!r} is larger than {MOST_FILE_BYTES >> 30} GiB")]
        )
    return found


@contextmanager
def _readable(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ProblemsError([Problem(f"{what} {path!r} cannot be read: {why}")]) from None


def lines_of(data: bytes, what: str, path: str) -> list[tuple[int, bytes]]:
    """Number and text of every line that is not blank. Raises ProblemsError where there is none."""
    raw = enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1)
    lines = [(at, line.removesuffix(b"\r")) for at, line in raw if line.strip()]
    if not lines:
        raise ProblemsError([Problem(f"{what} {path!r} is empty")])
    return lines


def first_line(what: str, path: str) -> bytes:
    """The first line of a user's file that is not blank. Raises ProblemsError where there is none."""
    status_of(what, path)
    with _readable(what, path), Path(path).open("rb") as lines:
        for line in lines:
            if text := line.removeprefix(codecs.BOM_UTF8).strip():
                return text
    raise ProblemsError([Problem(f"{what} {path!r} is empty")])


def _json_line(line: bytes) -> Line | None:
    return _entry(_json(text := line.decode()), text)


def _entry(found: Any, shown: object) -> Line | None:
    """One entry as a Line; None where its user says nothing. Raises ValueError with what is wrong."""
    name = (
        next((name for name in _ENTRIES if name in found), None)
        if isinstance(found, dict)
        else None
    )
    if name is None:
        raise ValueError(
            f"{str(shown)[:60]!r} is not an object with "
            + " or ".join(f'"{name}"' for name in _ENTRIES)
        )
    named = [
        _whole(found, name)
        for name in ("output_tokens", "output_length")
        if found.get(name) is not None
    ]
    line = _ENTRIES[name](found, named[0] if named else None)
    if line is None and "timestamp" in found:
        raise ValueError(
            "its user says nothing: without it, all prompts below it would be sent at the wrong times"
        )
    return line


def _prompt(found: dict[str, Any], answer: int | None) -> Line:
    if not isinstance(found["prompt"], str) or not found["prompt"]:
        raise ValueError(f'"prompt" is {str(found["prompt"])[:60]!r}; give a text')
    return Line(_says(found["prompt"]), answer)


def _chat(found: dict[str, Any], answer: int | None) -> Line | None:
    """Up to the user's last message: what follows is an answer that was given then."""
    messages = list(_messages(found, "messages", "role", "content", ROLES))
    asked = [at for at, one in enumerate(messages) if one.role == "user" and one.text]
    return Line(tuple(messages[: asked[-1] + 1]), answer) if asked else None


def _share_gpt(found: dict[str, Any], answer: int | None) -> Line | None:
    """The user's first message, with the system's before it. The rest is not read: such files are
    large.
    """
    sent = []
    for one in _messages(found, "conversations", "from", "value", SPEAKERS):
        if one.role != "assistant" and one.text:
            sent.append(one)
        if one.role == "user" and one.text:
            return Line(tuple(sent), answer)
    return None


def _sizes(found: dict[str, Any], answer: int | None) -> Line:
    asked, blocks = _whole(found, "input_length"), found.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(
        type(block) is int and block >= 0 for block in blocks
    ):
        raise ValueError(f"hash_ids are {str(blocks)[:60]!r}; give a list of whole numbers")
    if blocks and len(blocks) != -(-asked // BLOCK_TOKENS):
        raise ValueError(
            f"{len(blocks)} hash_ids for {asked} tokens; there is one for every {BLOCK_TOKENS}"
        )
    return Line((), answer, asked, tuple(blocks))


_ENTRIES: dict[str, Callable[[dict[str, Any], int | None], Line | None]] = {
    "prompt": _prompt,
    "messages": _chat,
    "conversations": _share_gpt,
    "input_length": _sizes,
}


def _says(text: str) -> tuple[Message, ...]:
    return (Message("user", (text,), 0),)


def _messages(
    found: dict[str, Any], name: str, role: str, text: str, roles: dict[str, Role]
) -> Iterator[Message]:
    entries = found[name]
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ValueError(f'"{name}" is {str(entries)[:60]!r}; give a list of objects')
    for at, one in enumerate(entries, start=1):
        who, said = roles.get(str(one.get(role))), one.get(text)
        if isinstance(said, list) and all(
            isinstance(part, dict) and part.get("type") == "text" for part in said
        ):
            said = "".join(str(part.get("text")) for part in said)
        if who is None or not isinstance(said, str):
            raise ValueError(
                f'message {at} of "{name}": "{role}" is {str(one.get(role))[:60]!r} and "{text}" {str(said)[:60]!r}; '
                f"give one of {', '.join(roles)} and a text"
            )
        yield Message(who, (said,), 0)


def _whole(found: dict[str, Any], name: str) -> int:
    value = found[name]
    if type(value) is int and 1 <= value <= MOST_TOKENS:
        return value
    raise ValueError(f"{name} is {value!r}; give a whole number from 1 to {MOST_TOKENS}")


def _json(line: str | bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
