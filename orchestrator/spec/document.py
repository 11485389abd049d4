"""YAML as plain values, and the line of every one of them, so that an error can say where it stands.

Scalars follow the YAML 1.2 core schema: ``no`` is text, ``1e3`` is a number, ``12:30`` is not one. Keys are text.
Nothing is ever constructed from a tag. Merge keys (``<<: *base``) and aliases work; an alias that contains itself, or
aliases that multiply without end, are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import Problem, ProblemsError
from orchestrator.redaction import plain, redacted

Place = tuple[str | int, ...]  # keys and list indices from the top of the document

MOST_BYTES = 1_000_000
MOST_VALUES = 200_000
MOST_PROBLEMS = 200  # of one file that are looked for; one mistake can be repeated in every line
LONGEST = 1500  # characters of a message
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge", "timestamp", "value")
}
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file: ``value`` is dicts, lists, text, numbers, booleans and None."""

    file: str
    value: Any
    lines: Mapping[Place, int] = field(repr=False)  # 1-based; of a key where the value stands under one
    numbers: Mapping[Place, str] = field(repr=False)  # every number as it is written: 0.30 is 0.3 in ``value``

    def line(self, place: Place) -> int:
        """The line of a value; of the nearest thing around it when it is not in the file."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, message: str, hint: str | None = None) -> Problem:
        return Problem(message, self.file, self.line(place), hint)


class Problems:
    """Everything found wrong with one document, each thing once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: dict[Problem, None] = {}

    def add(self, place: Place, message: str, hint: str | None = None) -> None:
        if not self.enough:
            self._found.setdefault(self.document.problem(place, _bounded(message), hint and _bounded(hint)))

    @property
    def enough(self) -> bool:
        """Whether looking further is of no use."""
        return len(self._found) >= MOST_PROBLEMS

    def raise_any(self) -> None:
        """Raises ProblemsError with all of them, in the order of the document's lines, when there are any."""
        if self._found:
            found = sorted(self._found, key=lambda problem: problem.line or 0)
            more = Problem(f"perhaps there are more: {MOST_PROBLEMS} are looked for", self.document.file)
            raise ProblemsError([*found, more] if self.enough else found)


def _bounded(text: str) -> str:
    """A key or a name that is shown may be as long as the file. Hidden first: half a secret is not found any more."""
    return text if len(text) <= LONGEST else f"{redacted(text)[:LONGEST]} …"


def read_document(path: str | Path) -> Document:
    """Parse a file. Raises ProblemsError when it cannot be read or is not YAML."""
    try:
        data = Path(path).read_bytes()
        return parse_document(data.decode("utf-8"), str(path))
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8 text", data[: error.start].count(b"\n") + 1) from None


def parse_document(text: str, file: str) -> Document:
    """Parse YAML text; ``file`` is its name in messages. Raises ProblemsError with every problem found."""
    if len(text) > MOST_BYTES:
        raise _refused(file, f"is larger than {MOST_BYTES:,} characters")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise _refused(file, "is empty", 1)
        return _Reader(file).read(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise _refused(file, f"not valid YAML: {what}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        what = f"character {error.character!r} is not allowed"
        raise _refused(file, f"not valid YAML: {what}", text.count("\n", 0, error.position) + 1) from None
    except RecursionError:
        raise _refused(file, "is nested too deeply") from None
    except (ValueError, ArithmeticError) as error:  # the scanner lets some through, such as "\UFFFFFFFF"
        raise _refused(file, f"not valid YAML: {error}") from None


def _refused(file: str | Path, message: str, line: int | None = None) -> ProblemsError:
    return ProblemsError([Problem(message, str(file), line)])


@dataclass
class _Reader:
    """Turns nodes into values. Holds what one document may not exceed, and its problems."""

    file: str
    lines: dict[Place, int] = field(default_factory=dict)
    numbers: dict[Place, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def read(self, node: yaml.Node) -> Document:
        self.lines[()] = _line(node)
        value = self.value(node, ())
        if self.problems:
            raise ProblemsError(self.problems)
        return Document(self.file, value, self.lines, self.numbers)

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:
            raise _refused(self.file, f"holds more than {MOST_VALUES:,} values")
        if node.tag not in _TAGS:
            self._bad(node, f"the tag {node.tag!r} is not allowed")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            self.lines |= {(*place, index): _line(item) for index, item in enumerate(node.value)}
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self.scalar(node, place)

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for _, merged in (pair for pair in node.value if pair[0].tag == _MERGE):
            # a mapping, or a list of mappings where the first one wins
            for part in reversed(merged.value if isinstance(merged, yaml.SequenceNode) else [merged]):
                if not isinstance(part, yaml.MappingNode):
                    self._bad(part, "'<<' takes a mapping")
                    continue
                out |= self.value(part, place) or {}
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:  # after what was merged: own keys win, and their lines too
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._bad(key_node, "a key must be text")
                continue
            key, line = self._text(key_node), _line(key_node)
            if key in first_lines:
                self._bad(key_node, f"key {key!r} is given twice, in line {first_lines[key]} and in line {line}")
                continue
            first_lines[key] = self.lines[(*place, key)] = line
            out[key] = self.value(value_node, (*place, key))
        return out

    def scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        text = self._text(node)
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        whole = _INT.fullmatch(text) is not None
        if not whole and (_FLOAT.fullmatch(text) is None or len(text) >= 40):
            return text
        self.numbers[place] = text
        if math.isinf(number := int(text) if whole else float(text)):
            self._bad(node, f"{text} is too large a number")
        return number

    def _text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if not text.isprintable() and (plain(text) != text or any("\ud800" <= letter <= "\udfff" for letter in text)):
            self._bad(node, "text holds control characters or halves of characters")
            return ""
        return text

    def _bad(self, node: yaml.Node, message: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(message, self.file, _line(node)))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
