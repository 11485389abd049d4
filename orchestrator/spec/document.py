"""Reads a YAML file as plain values with the line of each, and collects everything wrong with it.

Scalars follow the YAML 1.2 core schema: ``no`` is text, ``1e3`` is a number, ``12:30`` is text.
Keys are text. Tags never construct objects. Merge keys (``<<: *base``) and aliases work; an alias
that contains itself is an error, and so are aliases that expand to more values than a file may
hold.
"""

import errno
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.redaction import redact, strip_control
from orchestrator.base.registry import did_you_mean

Place = tuple[str | int, ...]  # keys and list indices from the top of the document
Locate = Callable[[Place], Place]

MOST_BYTES = 1_000_000
PIECE_BYTES = 2**20  # that are read at a time
MOST_FILE_BYTES = 2**31  # of a file of prompts or a trace, which is read as a whole
MOST_VALUES = 200_000
MOST_PROBLEMS = 200  # reported of one file: one mistake can be repeated in every line
MOST_LISTED = 25  # names that a hint lists
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge", "timestamp", "value")
}
UNPRINTABLE = "text holds control characters or halves of characters"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file: ``value`` is dicts, lists, text, numbers, booleans and None. ``file`` is
    None for values that no file holds (``problems_without_file``).
    """

    file: str | None
    value: Any
    # 1-based; of a value with a key it is the line of the key
    lines: Mapping[Place, int] = field(repr=False)
    # every number as it is written: 0.30 is 0.3 in ``value``
    numbers: Mapping[Place, str] = field(repr=False)
    # values that cannot be read: None or "" in ``value``
    problems: Sequence[Problem] = field(default=(), repr=False)

    def nearest(self, place: Place) -> Place:
        """``place`` if it is in the file, else the innermost place around it that is."""
        if self.file is None:
            return place
        while place and place not in self.lines:
            place = place[:-1]
        return place

    def line(self, place: Place) -> int | None:
        """The line of ``nearest(place)``."""
        if self.file is None:
            return None
        return self.lines.get(self.nearest(place), 1)


class Problems:
    """Everything found wrong with one document, without duplicates.

    Of a line with a value that cannot be read, only this problem is reported: the others may follow
    from it.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        # problem -> its place; of values that cannot be read: the whole document
        self._problems: dict[Problem, Place] = dict.fromkeys(document.problems, ())
        self._unreadable_lines = {problem.line for problem in document.problems}
        self._shown_lists: set[str] = set()

    def add(self, place: Place, message: str, hint: str | None = None) -> None:
        line = self.document.line(place)
        if not self.enough and line not in self._unreadable_lines:
            self._problems.setdefault(Problem(message, self.document.file, line, hint), place)

    def unknown(
        self, place: Place, what: str, name: object, known: Iterable[str], remedy: str | None = None
    ) -> None:
        """Adds a name that is not one of ``known``. ``remedy``: what to do if none of them is
        similar.

        Does nothing after ``enough`` problems, because finding the nearest name takes long. A list
        of all names is shown once.
        """
        if self.enough:
            return
        names = sorted(known)
        hint: str | None = _similar(str(name), names)
        if hint is None:
            hint = self._remedy_and_list(remedy, names)
        self.add(place, f"unknown {what} {name!r}", hint)

    def _remedy_and_list(self, remedy: str | None, names: Sequence[str]) -> str | None:
        """The hint for a name that resembles none of ``names``."""
        names_hint = _list_of(names)
        if len(names) > MOST_LISTED:
            return names_hint
        hints = [] if remedy is None else [remedy]
        if names_hint not in self._shown_lists:
            self._shown_lists.add(names_hint)
            hints.append(names_hint)
        return "; ".join(hints) or None

    @property
    def has_any(self) -> bool:
        return bool(self._problems)

    @property
    def enough(self) -> bool:
        """Whether MOST_PROBLEMS were found, so that looking further is of no use."""
        return len(self._problems) >= MOST_PROBLEMS

    def raise_any(self, part: str | None = None) -> None:
        """Raises ProblemsError with all problems in the order of the document's lines; does nothing
        without any. ``part``: if any is of this key of the document, no others are raised.
        """
        reported = list(self._problems) if part is None else self._of_part(part)
        if not reported:
            reported = list(self._problems)
        if not reported:
            return
        problems = sorted(reported, key=lambda problem: problem.line or 0)
        if self.enough:
            text = f"there may be more: only the first {MOST_PROBLEMS} are reported"
            problems.append(Problem(text, self.document.file))
        raise ProblemsError(problems)

    def _of_part(self, part: str) -> list[Problem]:
        """The problems of a key of the document, and those of the document as a whole."""
        return [
            problem for problem, place in self._problems.items() if place == () or place[0] == part
        ]


def problems_without_file() -> Problems:
    """An empty collection for the problems of values without a file, like options of a command
    line. Such problems have neither file nor line.
    """
    return Problems(Document(file=None, value=None, lines={}, numbers={}))


def read_at_most(path: str | Path, most_bytes: int, *, pipe: bool = False) -> bytes:
    """A file's content. Raises OSError, also for a file of more than ``most_bytes``, of which only
    the beginning is read: it may be endless.

    ``pipe``: a pipe or a device may be read, too. It must be False for a path that another file
    names, because reading a pipe may wait forever.
    """
    if not pipe and not os.path.isfile(path) and os.path.exists(path):
        raise OSError(errno.EINVAL, "it is not a regular file")
    with open(path, "rb") as file:
        return read_rest(file, most_bytes)


def read_rest(file: BinaryIO, most_bytes: int, head: bytes = b"") -> bytes:
    """The content of an open file, as ``read_at_most`` reads it. ``head``: what was read of it
    already, which a pipe does not give again.
    """
    data = bytearray(head)
    size = os.fstat(file.fileno()).st_size  # 0 of a pipe
    while size <= most_bytes:
        piece = file.read(min(PIECE_BYTES, most_bytes + 1 - len(data)))
        if not piece:
            break
        data += piece
    if max(size, len(data)) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes")
    return bytes(data)


def from_home(path: str) -> Path:
    """A path with the home folder in place of ``~``. Raises InputError where there is no such
    folder, for example because this machine has no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = path.partition("/")[0]
        raise InputError(f"{path!r}: there is no home folder of {user!r} here") from None


def read_document(path: str | Path, file: BinaryIO | None = None, head: bytes = b"") -> Document:
    """Parses a file, as ``parse_document`` does. Raises ProblemsError when it cannot be read or is
    not YAML.

    ``file``: the same file where it is open already, and ``head`` was read of it.
    """
    try:
        if file is None:
            data = read_at_most(path, MOST_BYTES, pipe=True)
        else:
            data = read_rest(file, MOST_BYTES, head)
        return parse_document(data.decode("utf-8"), str(path))
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8 text", data[: error.start].count(b"\n") + 1) from None


def is_unprintable(text: str) -> bool:
    """Whether a text has characters that no terminal should show or no file can store."""
    return not text.isprintable() and strip_control(text) != text


def parse_document(text: str, file: str, *, may_be_empty: bool = False) -> Document:
    """Parses YAML text. ``file``: its name in messages.

    Raises ProblemsError when the text is not YAML, too large, or empty. With ``may_be_empty`` the
    value of an empty text is None. Single values that cannot be read are among the document's
    ``problems``.
    """
    if len(text) > MOST_BYTES:
        raise _refused(file, f"is larger than {MOST_BYTES:,} characters")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None and may_be_empty:
            return Document(file, None, {(): 1}, {})
        if node is None:
            raise _refused(file, "is empty", 1)
        return _NodeReader(file).read(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else None
        raise _refused(file, f"not valid YAML: {reason}", line) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        reason = f"character {error.character!r} is not allowed"
        raise _refused(file, f"not valid YAML: {reason}", line) from None
    except RecursionError:
        raise _refused(file, "is nested too deeply") from None
    except (ValueError, ArithmeticError) as error:
        # errors that the scanner does not catch, as of "\UFFFFFFFF"
        raise _refused(file, f"not valid YAML: {error}") from None


def _refused(file: str | Path, message: str, line: int | None = None) -> ProblemsError:
    return ProblemsError([Problem(message, str(file), line)])


@dataclass
class _NodeReader:
    """Turns YAML nodes into values, and collects what is wrong with them."""

    file: str
    lines: dict[Place, int] = field(default_factory=dict)
    numbers: dict[Place, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    count: int = 0

    def read(self, node: yaml.Node) -> Document:
        self.lines[()] = _line(node)
        value = self.value(node, ())
        return Document(self.file, value, self.lines, self.numbers, self.problems)

    def value(self, node: yaml.Node, place: Place) -> Any:
        self.count += 1
        if self.count > MOST_VALUES:
            raise _refused(self.file, f"holds more than {MOST_VALUES:,} values")
        if node.tag not in _TAGS:
            self._add_problem(node, f"the tag {node.tag!r} is not allowed")
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, place)
        assert isinstance(node, yaml.ScalarNode)
        return self.scalar(node, place)

    def sequence(self, node: yaml.SequenceNode, place: Place) -> list[Any]:
        for index, item in enumerate(node.value):
            self.lines[(*place, index)] = _line(item)
        return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                values |= self._merged(value_node, place)
        first_lines: dict[str, int] = {}
        # after the merged keys, because own keys and their lines replace merged ones
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._add_problem(key_node, "a key must be text")
                continue
            key = self._text(key_node)
            line = _line(key_node)
            if key in first_lines:
                first = first_lines[key]
                self._add_problem(
                    key_node, f"key {key!r} is given twice, on line {first} and on line {line}"
                )
                continue
            first_lines[key] = line
            self.lines[(*place, key)] = line
            values[key] = self.value(value_node, (*place, key))
        return values

    def _merged(self, node: yaml.Node, place: Place) -> dict[str, Any]:
        """What ``<<`` brings in: a mapping, or a list of mappings where the first one wins."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        values: dict[str, Any] = {}
        for part in reversed(parts):
            if isinstance(part, yaml.MappingNode):
                values |= self.value(part, place) or {}
            else:
                self._add_problem(part, "'<<' takes a mapping")
        return values

    def scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        text = self._text(node)
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text) is not None:
            self.numbers[place] = text
            return int(text)
        if _FLOAT.fullmatch(text) is None or len(text) >= 40:
            return text
        self.numbers[place] = text
        number = float(text)
        if math.isinf(number):
            self._add_problem(node, f"{text} is too large a number")
            return None
        return number

    def _text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if not text.isprintable():  # JSON may write a character as a pair of surrogates
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if is_unprintable(text):
            self._add_problem(node, UNPRINTABLE)
            return ""
        return text

    def _add_problem(self, node: yaml.Node, message: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(message, self.file, _line(node)))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


# -- sentences for the author of the file about the problems that pydantic found


_MAPPING = "a mapping (name: value)"
_WANTED = {
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "string_type": "text",
    "string_unicode": "text without halves of characters",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
}
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$": (
        "up to 100 letters and digits of ASCII, also . _ - after the first"
    )
}
# How pydantic states a bound, and how our sentences do.
_BOUNDS = (
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    ("greater than", "above"),
    ("less than", "below"),
)
_NUMBER_WANTED = ("int_type", "float_type", "literal_error")
_LIST_WANTED = ("list_type", "tuple_type")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")

# Keys of other programs, and habitual ones -> keys of ours that may be meant. The first one that is
# known at the same place is suggested. The most similar spelling would be another key.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_completion_tokens", "output_len", "output_length"),
        ("output_tokens",),
    ),
    **dict.fromkeys(("osl", "random_output_len", "completion_tokens"), ("output_tokens",)),
    **dict.fromkeys(
        ("prompt_tokens", "input_len", "input_length", "isl", "random_input_len", "prompt_len"),
        ("input_tokens",),
    ),
    **dict.fromkeys(("prefix_tokens", "prefix_len", "prefix_length"), ("shared_prefix_tokens",)),
    **dict.fromkeys(("prefix_count", "num_prefixes"), ("shared_prefix_count",)),
    **dict.fromkeys(("dataset", "dataset_path", "prompt_file", "file", "path"), ("prompts",)),
    **dict.fromkeys(("num_turns", "rounds"), ("turns",)),
    **dict.fromkeys(("num_prompts", "num_requests", "max_requests", "count"), ("requests",)),
    **dict.fromkeys(("qps", "rps", "rate", "request_rate"), ("request_rate", "levels")),
    **dict.fromkeys(
        ("max_concurrency", "concurrency", "users", "num_users", "in_flight"),
        ("concurrency", "levels"),
    ),
    **dict.fromkeys(("timeout",), ("request_timeout",)),
    **dict.fromkeys(("time", "seconds", "max_seconds", "length"), ("duration",)),
    **dict.fromkeys(("tp", "tp_size"), ("tensor_parallel_size",)),
    **dict.fromkeys(("pp", "pp_size"), ("pipeline_parallel_size",)),
    **dict.fromkeys(("dp", "dp_size"), ("data_parallel_size",)),
    **dict.fromkeys(("context_length", "max_seq_len", "context"), ("max_model_len",)),
}


def wrong(key: str | int | Place, message: str, hint: str | None = None) -> PydanticCustomError:
    """The error that a validator of a whole value raises for a problem at one of its keys, or
    deeper.
    """
    place = key if isinstance(key, tuple) else (key,)
    return PydanticCustomError("wrong", "{text}", {"text": message, "place": place, "hint": hint})


def add_errors(
    error: ValidationError,
    model: Any,
    problems: Problems,
    locate: Locate = lambda place: place,
    origins: Mapping[str, str] = types.MappingProxyType({}),
) -> None:
    """Adds every problem of a failed validation of ``model``. ``locate`` turns pydantic's place
    into the file's. ``origins``: by field, where a value comes from that the file does not write.
    """
    document = problems.document
    for detail in error.errors():
        if problems.enough:
            break
        loc: Place = tuple(detail["loc"])
        place = locate(loc)
        if detail["type"] == "wrong":
            context = detail["ctx"]
            problems.add((*place, *context["place"]), context["text"], context["hint"])
        elif detail["type"] == "missing":
            problems.add(place, _about_missing(loc, place))
        elif detail["type"] == "extra_forbidden":
            known_keys = _keys_at(model, loc[:-1], document.value)
            problems.unknown(place, "key", str(loc[-1]), known_keys)
        else:
            written = document.nearest(place)  # pydantic adds the names of a union's members
            is_in_union = len(written) < len(place)
            wanted = getattr(_model_at(model, loc, document.value), "WANTED", None)
            remark = _about_value(detail, written, is_in_union, wanted)
            origin = origins.get(str(loc[0])) if loc else None
            problems.add(written, remark.message, remark.hint or origin)


def _about_missing(loc: Place, place: Place) -> str:
    key = loc[-1]
    if isinstance(key, int):
        return f"entry {key + 1} of {_last_key(place, '')!r} is missing"
    return f"{key!r} is missing"


def _last_key(place: Place, default: str) -> str:
    """The innermost key of a place, which may end with the index of a list."""
    return next((part for part in reversed(place) if isinstance(part, str)), default)


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint for a name that is not one of ``known``."""
    names = sorted(known)
    return _similar(name, names) or _list_of(names)


def _similar(name: str, names: Sequence[str]) -> str | None:
    """Asks for the one of ``names`` that may be meant; None if none resembles the name."""
    for our_name in OTHER_NAMES.get(name, ()):
        if our_name in names:
            return f"did you mean {our_name!r}?"
    return did_you_mean(name, names) or None


def _list_of(names: Sequence[str]) -> str:
    """All names, or where they are listed if there are too many."""
    if len(names) <= MOST_LISTED:
        return f"known: {', '.join(names)}"
    return "docs/reference/experiment-file.md lists every key"


@dataclass(frozen=True, slots=True)
class _Remark:
    """What is wrong with one value. ``hint``: what to write instead; None: nothing is likely."""

    message: str
    hint: str | None = None


def _about_value(
    detail: ErrorDetails, place: Place, is_in_union: bool, described: str | None = None
) -> _Remark:
    """What is wrong with one value. ``described``: what the value may be, if the model that reads
    it says so (``WANTED``).
    """
    is_key = detail["loc"][-1:] == ("[key]",)
    holder = place[:-1] if is_key else place  # a wrong key may be a secret
    key = _last_key(holder, "the file")
    name = repr(key)
    value = detail["input"]
    kind = detail["type"]
    if is_in_union and kind.endswith("_type"):
        # pydantic reports one for each type of the union; the same text makes them one problem
        return _Remark(f"{name} has a value of the wrong type")
    if kind == "value_error":
        return _Remark(f"{name}: {detail['ctx']['error']}")
    if kind == "string_pattern_mismatch":
        pattern = detail["ctx"]["pattern"]
        hint = _PATTERNS.get(pattern, f"it must match {pattern}")
        return _Remark(f"{name} cannot be {_show(value)}", hint)
    if kind == "too_short":
        entries = detail["ctx"]["actual_length"]
        hint = f"give at least {detail['ctx']['min_length']}"
        message = f"{name} has {entries} entries" if entries else f"{name} is empty"
        return _Remark(message, hint)
    if kind == "string_too_short" and not value:
        return _Remark(f"{name} is empty")
    wanted = _WANTED.get(kind) or _in_plain_words(detail["msg"].removeprefix("Input should be "))
    is_mapping = wanted == _MAPPING
    if is_mapping and described is not None:
        wanted = described
    if wanted == detail["msg"]:  # no sentence about what the value should be
        return _Remark(f"{name}: {wanted}")
    if is_mapping and place and isinstance(place[-1], int):
        name = f"entry {place[-1] + 1} of {name}"
    return _Remark(f"{name} must be {wanted}, not {_show(value)}", _value_hint(detail, key))


def _in_plain_words(wanted: str) -> str:
    for theirs, ours in _BOUNDS:
        if wanted.startswith(theirs):
            return wanted.replace(theirs, ours, 1)
    return wanted


def _value_hint(detail: ErrorDetails, name: str) -> str | None:
    """What to write instead of a value, where that is likely."""
    value = detail["input"]
    kind = detail["type"]
    if isinstance(value, str) and _is_number(value):
        if kind in _NUMBER_WANTED or kind in ("model_type", "model_attributes_type"):
            return f"write it without quotes: {value.strip()}"
        if kind in _LIST_WANTED:
            return f"write {name}: [{value.strip()}]"
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if kind == "float_type" and percent is not None:
        return f"write {float(percent[1]) / 100:g}"
    if kind == "literal_error":
        listed = detail["ctx"]["expected"].replace(" or ", ", ").split(",")
        expected = [word.strip(" '") for word in listed]
        return did_you_mean(str(value), expected) or None
    if kind == "less_than_equal" and detail["ctx"]["le"] == 1 and 1 < value <= 100:
        return f"it is a share: {value / 100:g} for {value:g} %"
    if kind == "string_type" and isinstance(value, int | float):
        return "put it in quotes"
    if kind in _LIST_WANTED and value is not None and not isinstance(value, dict):
        return f"write {name}: [{_show(value)}]"
    return None


def _is_number(text: str) -> bool:
    return bool(_INT.fullmatch(text.strip()) or _FLOAT.fullmatch(text.strip()))


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = redact(repr(value))  # before the text is cut, since half a secret is not recognized
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: Any, loc: Place, value: Any) -> list[str]:
    """Keys of the model at a place below ``model``; an empty list where no model reads the value.
    ``value``: what the file has there.
    """
    described = _model_at(model, loc, value)
    if described is None:
        return []
    names = [field.alias or name for name, field in described.model_fields.items()]
    # a value of a mapping has the mapping's key as its ``name``, and must not give one itself
    is_named_by_key = len(loc) > 0 and get_origin(_annotation_at(model, loc[:-1], value)) is dict
    return [name for name in names if not (is_named_by_key and name == "name")]


def _model_at(model: Any, loc: Place, value: Any) -> type[BaseModel] | None:
    """The model that reads the value at a place below ``model``; None where no model does."""
    annotation = _annotation_at(model, loc, value)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _annotation_at(model: Any, loc: Place, value: Any) -> Any:
    """What pydantic reads at a place below ``model``: a model, a list, a number."""
    annotation = _of_its_kind(model, value)
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
        annotation = _of_its_kind(_child(annotation, part), value)
    return annotation


def _of_its_kind(annotation: Any, value: Any) -> Any:
    """The model itself, or the subclass that the value's ``kind`` names."""
    return annotation.model_for(value) if hasattr(annotation, "model_for") else annotation


def _child(annotation: Any, part: str | int) -> Any:
    """What pydantic reads at a key of a model or a mapping, or at an index of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field_info = annotation.model_fields.get(str(part))
        return _plain(field_info.annotation) if field_info else None
    arguments = get_args(annotation)
    if not arguments:
        return None
    is_mapping = get_origin(annotation) is dict
    return _plain(arguments[-1] if is_mapping else arguments[0])


def _plain(annotation: Any) -> Any:
    """``X`` of ``X | None`` and of ``Annotated[X, …]``."""
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    is_annotated = hasattr(annotation, "__metadata__")
    return _plain(get_args(annotation)[0]) if is_annotated else annotation
