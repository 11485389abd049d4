"""Reads a user's file of prompts or times: its bytes, its lines, and what is wrong in which line.

A file that is neither text nor JSON (a table, a compressed file) is refused with what it is, and is
never sent as prompts.
"""

from __future__ import annotations

import codecs
import csv
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.document import MOST_FILE_BYTES, read_at_most

LEAST_TABLE_LINES = 3  # two texts often have as many commas by chance
MOST_PROBLEMS = 5  # shown for one file; further ones are only counted
DOCUMENTATION = (
    "docs/reference/prompts.md (texts) and docs/reference/traces.md (lengths and times) show how"
)
_DELIMITERS = ("\t", ";", ",")  # of two that fit equally well, the earlier one
_T = TypeVar("_T")

# How files begin that are neither text nor JSON, and what to do with them.
_UNPACK = "unpack it first"
# What a clone without Git LFS has in place of a large file (github.com/git-lfs/git-lfs, docs/spec.md)
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_WORDS = "the pointer of Git LFS and not the file: fetch it with 'git lfs pull'"
_SIGNATURES = {
    b"\x1f\x8b": ("compressed (gzip)", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("compressed (zstd)", _UNPACK),
    b"\xfd7zXZ\x00": ("compressed (xz)", _UNPACK),
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"PAR1": ("a Parquet file", f"write its rows as JSON lines; {DOCUMENTATION}"),
    b"ARROW1": ("an Arrow file", f"write its rows as JSON lines; {DOCUMENTATION}"),
    b"SQLite format 3\x00": ("a SQLite database", "write its rows as JSON lines"),
    codecs.BOM_UTF16_LE: ("UTF-16", "save it as UTF-8"),
    codecs.BOM_UTF16_BE: ("UTF-16", "save it as UTF-8"),
}
_AS_TRACE = "send it as a workload of 'kind: trace'; docs/reference/traces.md"
_BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")
# The columns by which a published trace is recognised, in lower case.
_TRACES = {
    "Azure's trace of LLM requests": {"timestamp", "contexttokens", "generatedtokens"},
    "BurstGPT's trace": {"timestamp", "model", "request tokens", "response tokens"},
}
# A first line with several names is that of a table only if one of the names is among these.
# Otherwise the line may be a text with a comma.
_COLUMNS = {
    *("prompt", "text", "question", "instruction", "messages", "conversations", "query"),
    *("input_tokens", "output_tokens", "input_length", "output_length", "max_tokens"),
    *("prompt_tokens", "completion_tokens", "timestamp", "arrival_time", "arrived_at"),
    *("num_prefill_tokens", "num_decode_tokens", "response", "completion", "category"),
}
_NAME = re.compile(r"[A-Za-z_]\w*( \w+)?")


def refuse_binary(what: str, path: str, data: bytes) -> None:
    """Raises ProblemsError for a file that is neither text nor JSON by its first bytes."""
    for signature, (kind, remedy) in _SIGNATURES.items():
        if data.startswith(signature):
            raise _refused(what, path, kind, remedy)
    if _BZIP2.match(data):
        raise _refused(what, path, "compressed (bzip2)", _UNPACK)
    if data.startswith(LFS_POINTER):
        raise ProblemsError([Problem(f"{what} {path!r} is {LFS_WORDS}")])


def refuse_other_formats(what: str, path: str, data: bytes) -> None:
    """Raises ProblemsError for a file that is neither text nor JSON by its first bytes, or a table
    by its name or by the names of its columns.
    """
    refuse_binary(what, path, data)
    refuse_traces(what, path, data)
    columns = _columns(data)
    lowered = {column.lower() for column in columns}
    is_named_as_table = path.lower().endswith((".csv", ".tsv"))
    if what == "trace" and _is_number(_first_line_of(data)):
        is_named_as_table = False  # times alone, whose file may have any name
    has_columns = len(columns) > 1 and all(_NAME.fullmatch(column) for column in columns)
    if is_named_as_table or (has_columns and lowered & _COLUMNS):
        raise unknown_table(what, path, columns if has_columns else [])


def unknown_table(what: str, path: str, columns: Sequence[str]) -> ProblemsError:
    """The error for a table that has none of the columns that are known."""
    shown = f" with the columns {', '.join(columns)[:80]}" if columns else ""
    return _refused(
        what, path, f"a table (CSV){shown}", f"say what its columns are; {DOCUMENTATION}"
    )


def refuse_traces(what: str, path: str, data: bytes) -> None:
    """Raises ProblemsError for a published trace of lengths, by the names of its columns."""
    names = {column.lower() for column in _columns(data)}
    for trace, columns in _TRACES.items():
        if columns <= names:
            raise _refused(what, path, f"{trace} as a table", _AS_TRACE)


def _refused(what: str, path: str, kind: str, remedy: str) -> ProblemsError:
    return ProblemsError([Problem(f"{what} {path!r} is {kind}, which is not read: {remedy}")])


def _columns(data: bytes) -> list[str]:
    """The cells of the first line, if it is a line of a table; else an empty list."""
    text = _first_line_of(data)
    if not any(sign in text for sign in _DELIMITERS):
        return []
    return [cell.strip() for cell in _cells(text, delimiter_of(text))]


def delimiter_of(header: str, names: Collection[str] = ()) -> str:
    """What separates the cells of a table's first line.

    It is the sign under which most of ``names`` are columns: one of them may have another sign in
    it. Between signs that are equal in this, the one that makes the most columns is taken.
    """
    best_delimiter = ","
    best_fit = (0, 0)  # columns that are among ``names``, all columns
    for delimiter in _DELIMITERS:
        if delimiter not in header:
            continue
        cells = _cells(header, delimiter)
        fit = (len(set(names).intersection(cells)), len(cells))
        if fit > best_fit:
            best_delimiter = delimiter
            best_fit = fit
    return best_delimiter


def columns_of_lines(lines: Sequence[str]) -> int | None:
    """How many columns the lines of a text have if they look like those of a table: the first has
    several names and nothing else, and all have as many cells. None: they do not.
    """
    if len(lines) < LEAST_TABLE_LINES:
        return None
    delimiter = delimiter_of(lines[0])
    names = [cell.strip() for cell in _cells(lines[0], delimiter)]
    are_names = all(_NAME.fullmatch(name) for name in names)
    if len(names) < 2 or len(set(names)) < len(names) or not are_names:
        return None
    is_table = all(len(_cells(line, delimiter)) == len(names) for line in lines)
    return len(names) if is_table else None


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line of a table; none where it cannot be split."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        return []


def _first_line_of(data: bytes) -> str:
    """The beginning of the first line that is not blank."""
    line = data[:10_000].removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    return line.decode(errors="replace").strip()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class EntryError(ValueError):
    """Everything that is wrong with one entry of a file."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def read_each(
    what: str, path: str, entries: Iterable[tuple[str, Any]], read: Callable[[Any], _T]
) -> list[_T]:
    """Applies ``read`` to each entry. ``entries``: place in the file, entry.

    Raises ProblemsError with all entries for which ``read`` raises ValueError or EntryError. A
    reason appears once, with the first place and the number of the others.
    """
    values: list[_T] = []
    places: dict[str, list[str]] = {}  # of each reason
    for place, entry in entries:
        try:
            values.append(read(entry))
        except UnicodeDecodeError:
            places.setdefault("not UTF-8", []).append(place)
        except EntryError as error:
            for reason in error.reasons:
                places.setdefault(reason, []).append(place)
        except ValueError as error:
            places.setdefault(str(error), []).append(place)
    if not places:
        return values
    problems = []
    for reason in list(places)[:MOST_PROBLEMS]:
        first, *others = places[reason]
        and_others = f" and {len(others):,} more" if others else ""
        problems.append(Problem(f"{what} {path!r}, {first}{and_others}: {reason}"))
    if len(places) > MOST_PROBLEMS:
        count = len(places) - MOST_PROBLEMS
        problems.append(Problem(f"{what} {path!r}: and {count:,} more problems"))
    raise ProblemsError(problems)


def read_file(what: str, path: str) -> bytes:
    """The content of a user's file. Raises ProblemsError where it cannot be read; ``what`` is what
    the problem calls it.
    """
    status_of(what, path)
    with _readable(what, path):
        return read_at_most(path, MOST_FILE_BYTES)


def status_of(what: str, path: str) -> os.stat_result:
    """The status of a user's file. Raises ProblemsError unless it is a regular file of limited size:
    several clients read it, which a pipe allows only once, and each holds it in memory.
    """
    with _readable(what, path):
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ProblemsError([Problem(f"{what} {path!r} is not a regular file")])
    if status.st_size > MOST_FILE_BYTES:
        raise ProblemsError(
            [Problem(f"{what} {path!r} is larger than {MOST_FILE_BYTES >> 30} GiB")]
        )
    return status


@contextmanager
def _readable(what: str, path: str) -> Iterator[None]:
    """Raises ProblemsError where the file cannot be read inside the block."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ProblemsError([Problem(f"{what} {path!r} cannot be read: {reason}")]) from None


def lines_of(data: bytes, what: str, path: str) -> list[tuple[int, bytes]]:
    """Number and text of every line that is not blank. Raises ProblemsError where there is none."""
    numbered = enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1)
    lines = [(number, line.removesuffix(b"\r")) for number, line in numbered if line.strip()]
    if not lines:
        raise ProblemsError([Problem(f"{what} {path!r} is empty")])
    return lines


def first_line(what: str, path: str) -> bytes:
    """The first line of a user's file that is not blank. Raises ProblemsError where there is none."""
    status_of(what, path)
    with _readable(what, path), Path(path).open("rb") as lines:
        for line in lines:
            text = line.removeprefix(codecs.BOM_UTF8).strip()
            if text:
                return text
    raise ProblemsError([Problem(f"{what} {path!r} is empty")])


def first_names(names: Collection[str]) -> str:
    """At most ten names; the others are counted. The index that pandas writes has no name."""
    shown = [name or "(no name)" for name in sorted(names)[:10]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
