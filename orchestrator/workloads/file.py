"""Requests from a file: text with one prompt per line, or JSON with one object per line or all in
one array.

An object has ``prompt`` (a text), ``messages`` (as OpenAI has them; sent up to the user's last
one), ``conversations`` (as ShareGPT has them; the user's first message is sent) or ``input_length``
(of a trace, perhaps with ``hash_ids``: so many tokens are made). It may also give the length of the
answer and the sampling of its request (entries.py).

Request i sends entry i; after the last entry comes the first again. Nobody counts the tokens of a
text beforehand: its asked length is 0, and the rows hold what the engine counted.
"""

from __future__ import annotations

import codecs
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import Field, PrivateAttr, model_validator

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.results.ids import content_digest
from orchestrator.spec.load import Lengths, Workload, counted
from orchestrator.workloads.drawn import SessionLengths
from orchestrator.workloads.entries import (
    BLOCK_TOKENS,
    PromptEntry,
    block_sizes,
    read_entry,
    user_says,
)
from orchestrator.workloads.files import (
    lines_of,
    read_each,
    read_file,
    refuse_other_formats,
    status_of,
)
from orchestrator.workloads.kind import (
    PROMPT_STREAM,
    Content,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)

JSON_LINES = (".jsonl", ".ndjson", ".json")
RECORDED = "file"  # as output_tokens: the length of the answer that the file has
# APIs whose requests carry the sampling fields of a line as they are
SAMPLED_APIS = ("completions", "chat")
NO_TOKENIZER = (
    "the recorded answers of the prompts are counted with the model's tokenizer, and none is given"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a plan needs of a file. ``lengths``: (input, 0 where unknown; output, None where not
    given) of its lines.
    """

    digest: str
    prompts: int
    left_out: int  # entries in which the user says nothing
    lengths: frozenset[tuple[int, int | None]]
    later_turns: int = 0  # conversations of which only the first turn is sent
    # lines without a length of their own and without a recorded answer that could be counted
    unanswered: int = 0
    recorded_answers: int = 0  # lines without a length of their own that have one
    unused: frozenset[str] = frozenset()  # keys that change no request
    fields: frozenset[str] = frozenset()  # sampling fields that some lines give
    block_tokens: int | None = None  # of hash_ids; None: no line has any

    @classmethod
    def of(cls, data: bytes, entries: Sequence[PromptEntry | None]) -> Summary:
        lines = [line for line in entries if line]
        lengths = frozenset((line.input_tokens, line.output_tokens) for line in lines)
        return cls(
            digest=content_digest(data),
            prompts=len(lines),
            left_out=len(entries) - len(lines),
            lengths=lengths,
            later_turns=sum(line.later_turns for line in lines),
            unanswered=sum(not has_length(line) for line in lines),
            recorded_answers=sum(
                line.output_tokens is None and line.answer is not None for line in lines
            ),
            unused=frozenset().union(*(line.unused for line in lines)),
            fields=frozenset().union(*(line.fields for line in lines)),
            block_tokens=next((line.block_tokens for line in lines if line.blocks), None),
        )


def has_length(line: PromptEntry) -> bool:
    """Whether the file says how long the answer to a line shall be, or has that answer."""
    return line.output_tokens is not None or line.answer is not None


class AnswerLengths(Lengths):
    """As ``Lengths``, or ``file``: the length of the answer that the file has for each request,
    counted with the tokenizer.
    """

    WANTED: ClassVar[str] = Lengths.WANTED.replace(", {uniform", ", file, {uniform")

    recorded: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        if value == RECORDED:
            return {"recorded": True}
        return value.model_dump() if type(value) is Lengths else value

    def _choices(self) -> list[object]:
        return [*super()._choices(), self.recorded or None]

    @property
    def bounds(self) -> tuple[int, int | None]:
        return (1, None) if self.recorded else super().bounds


class FileWorkload(Workload):
    """``kind: file``: the lines of a file in their order; after the last line comes the first
    again.
    """

    kind: Literal["file"]
    prompts: str
    output_tokens: AnswerLengths | None = None  # for lines that give no length
    # of the file's bytes
    prompts_digest: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")
    _first: int = PrivateAttr(0)  # index of the entry that the first request sends

    @property
    def counts_answers(self) -> bool:
        """Whether recorded answers say how long answers are to be."""
        return self.output_tokens is not None and self.output_tokens.recorded

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
        least_own, most_own = self.output_tokens.bounds if self.output_tokens else (1, 1)
        lengths = summary(self.prompts).lengths
        least = min(max(asked, 1) + (answered or least_own) for asked, answered in lengths)
        if most_own is None or any(not asked for asked, _ in lengths):
            return least, None
        return least, max(asked + (answered or most_own) for asked, answered in lengths)

    def distinct_requests(self) -> int:
        found = summary(self.prompts)
        return found.prompts - (found.unanswered if self.counts_answers else 0)

    def drawn(self) -> bool:
        return all(asked for asked, _ in summary(self.prompts).lengths)  # no texts

    def others(self, requests: int) -> Self:
        made = self.model_copy()
        made._first = 0 if self.drawn() else -requests
        return made

    def left_out(self) -> int:
        found = summary(self.prompts)
        return found.left_out + (found.unanswered if self.counts_answers else 0)

    def notes(self, timed: bool = False) -> list[str]:
        found = summary(self.prompts)
        notes = []
        if found.later_turns:
            conversations = counted(found.later_turns, "conversation")
            notes.append(
                f"of {conversations} with more turns only the user's first message is sent"
            )
        if found.left_out:
            notes.append(f"{_entries(found.left_out)} skipped: the user says nothing there")
        if self.counts_answers and found.unanswered:
            notes.append(f"{_entries(found.unanswered)} skipped: no answer was recorded")
        unused = found.unused - {"timestamp"} if timed else found.unused
        if unused:
            notes.append(f"keys of the prompts that change no request: {_listed(unused)}")
        return notes

    def identity(self) -> dict[str, Any]:
        """Has the digest of the file's content in place of its path."""
        content = self.prompts_digest or summary(self.prompts).digest
        return super().identity() | {"prompts": content, "prompts_digest": None}

    def requests(self, prompter: Prompter, seed: int) -> File:
        return File(self, prompter, seed, self._first)

    def check(self, found: Summary) -> None:
        """Raises ProblemsError for a file that is not the one that was planned, that lacks lengths,
        or whose lines ask for what cannot be sent.
        """
        reasons = []
        if self.prompts_digest not in (None, found.digest):
            reasons.append(
                f"on {platform.node()} is not the file that was planned (digest {found.digest} "
                f"instead of {self.prompts_digest}): it has changed since, or differs on this node"
            )
        if self.output_tokens is None and any(answered is None for _, answered in found.lengths):
            ways = "a number"
            if found.recorded_answers:
                ways += ", or file for the lengths of the recorded answers"
            reasons.append(
                "does not say for each prompt how long the answer shall be: give 'output_tokens' "
                f"({ways})"
            )
        if self.counts_answers and found.unanswered == found.prompts:
            reasons.append("has no recorded answers: give a number as 'output_tokens', not 'file'")
        if found.fields and self.api not in SAMPLED_APIS:
            reasons.append(
                f"has {_listed(found.fields)}, which the API {self.api!r} is not sent: use "
                f"{' or '.join(SAMPLED_APIS)}"
            )
        if reasons:
            raise ProblemsError(
                [Problem(f"prompts {self.prompts!r} {reason}") for reason in reasons]
            )


def _entries(count: int) -> str:
    return "1 entry of the prompts is" if count == 1 else f"{count:,} entries of the prompts are"


def _listed(names: frozenset[str]) -> str:
    """At most ten names; the others are counted."""
    shown = sorted(names)[:10]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


class File(WorkloadKind):
    """One line of the file per request."""

    def __init__(
        self, workload: FileWorkload, prompter: Prompter, seed: int, first: int = 0
    ) -> None:
        """Raises ProblemsError for a file that cannot be read, or that is not the one that was
        planned.
        """
        data = read_file("prompts", workload.prompts)
        entries = parse_prompts(data, workload.prompts)
        workload.check(Summary.of(data, entries))
        self._counts_answers = workload.counts_answers
        self._lines = [line for line in entries if line]
        if self._counts_answers:
            self._lines = [line for line in self._lines if has_length(line)]
        self._first = first
        drawn = None if self._counts_answers else workload.output_tokens
        self._lengths = SessionLengths(Lengths(fixed=1), drawn or Lengths(fixed=1), 1, seed)
        self._prompter, self._seed = prompter, seed
        self._can_count = self._counts_answers and prompter.count("") is not None
        self._answer_tokens = lru_cache(maxsize=None)(self._count_answer)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        index = self._index(session)
        line = self._lines[index]
        if self._counts_answers and not self._can_count:
            raise InputError(NO_TOKENIZER)
        made = line.messages or (Message("user", self._made(index, line), line.input_tokens),)
        return Prompt(made, line.input_tokens, line.fields)

    def _made(self, index: int, line: PromptEntry) -> Content:
        """Content of the length that a trace gives. Equal blocks get equal tokens."""
        if not line.blocks:
            rng = stream(self._seed, PROMPT_STREAM, 0, index)
            return (self._prompter.make(rng, line.input_tokens),)
        last = line.input_tokens - line.block_tokens * (len(line.blocks) - 1)
        sizes = [line.block_tokens] * (len(line.blocks) - 1) + [last]
        each = zip(line.blocks, sizes, strict=True)
        return tuple(
            self._prompter.make(stream(self._seed, PROMPT_STREAM, 1, block), size)
            for block, size in each
        )

    def input_tokens(self, session: int, turn: int) -> int:
        return self._lines[self._index(session)].input_tokens

    def output_tokens(self, session: int, turn: int) -> int:
        """0 where a recorded answer says it and nobody here can count its tokens."""
        index = self._index(session)
        given = self._lines[index].output_tokens
        if given is not None:
            return given
        if self._counts_answers:
            return self._answer_tokens(index)
        return self._lengths.output_tokens(session, 0)

    def _count_answer(self, index: int) -> int:
        tokens = self._prompter.count(self._lines[index].answer or "")
        return 0 if tokens is None else max(tokens, 1)

    def _index(self, session: int) -> int:
        return (self._first + session) % len(self._lines)


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


def parse_prompts(data: bytes, path: str) -> list[PromptEntry | None]:
    """All lines that are not blank, or all entries of an array; None for conversations in which the
    user says nothing.

    Raises ProblemsError with the file, the lines (entries) and what is wrong there. A file is JSON
    by its name, if its first line is an object, or if all of it is an array of objects. Lines end
    with LF or CR LF; a byte order mark is ignored.
    """
    refuse_other_formats("prompts", path, data)
    lines = lines_of(data, "prompts", path)
    named_json = path.lower().endswith(JSON_LINES)
    first = lines[0][1].lstrip()
    array = _array(data, path, named_json) if first.startswith(b"[") else None
    if array is not None:
        places = ((f"entry {number}", entry) for number, entry in enumerate(array, start=1))
        found = read_each("prompts", path, places, lambda entry: read_entry(entry, entry))
    else:
        numbered = ((f"line {number}", line) for number, line in lines)
        is_json = named_json or isinstance(_json(first), dict)
        if is_json and first.startswith(b"{") and not isinstance(_json(first), dict):
            _refuse_one_object(data, path)
        found = read_each("prompts", path, numbered, _json_line if is_json else _text_line)
    if not any(found):
        raise ProblemsError([Problem(f"prompts {path!r}: the user says nothing in any of them")])
    return _with_block_size(found, path)


def _array(data: bytes, path: str, named_json: bool) -> list[Any] | None:
    """The entries of a file that is one JSON array; None for a file of texts."""
    try:
        entries = orjson.loads(data.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        if named_json or data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[{"):
            problem = Problem(f"prompts {path!r}, line {error.lineno}: {error.msg}")
            raise ProblemsError([problem]) from None
        return None
    if named_json or (entries and isinstance(entries[0], dict | list)):
        return list(entries)
    return None


def _refuse_one_object(data: bytes, path: str) -> None:
    """Raises ProblemsError for a file that is one JSON object over several lines."""
    whole = _json(data.removeprefix(codecs.BOM_UTF8))
    if not isinstance(whole, dict):
        return
    within = next((name for name, value in whole.items() if isinstance(value, list)), None)
    hint = f"; {within!r} in it may be that array" if within is not None else ""
    text = f"prompts {path!r} is one JSON object: give one object per line, or an array of objects"
    raise ProblemsError([Problem(f"{text}{hint}")])


def _text_line(line: bytes) -> PromptEntry:
    return PromptEntry(user_says(line.decode()))


def _json_line(line: bytes) -> PromptEntry | None:
    text = line.decode()
    return read_entry(_json(text), text)


def _with_block_size(entries: list[PromptEntry | None], path: str) -> list[PromptEntry | None]:
    """The entries with the one size of blocks that fits all ``hash_ids`` of the file. Raises
    ProblemsError where none does.
    """
    blocks = [(line.input_tokens, len(line.blocks)) for line in entries if line and line.blocks]
    fitting = set(BLOCK_TOKENS)
    for tokens, count in set(blocks):
        fitting &= block_sizes(tokens, count)
    if not fitting:
        sizes = " and of others of ".join(str(size) for size in BLOCK_TOKENS)
        text = f"prompts {path!r}: hash_ids of some lines stand for blocks of {sizes} tokens"
        raise ProblemsError([Problem(text)])
    size = max(fitting)
    if size == max(BLOCK_TOKENS):
        return entries
    return [line and replace(line, block_tokens=size) for line in entries]


def _json(line: str | bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
