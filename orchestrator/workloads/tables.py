"""The rows of a table of prompts (CSV, TSV, Parquet) as entries, and entries whose keys have other
names.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.document import MOST_FILE_BYTES
from orchestrator.workloads.entries import ANSWER_LENGTHS, ANSWERS, SAMPLING
from orchestrator.workloads.file_reading import delimiter_of

PARQUET = b"PAR1"
GZIP = b"\x1f\x8b"
CSV_NAMES = (".csv", ".tsv")
# What a column can be, and the key that entries have for it.
ROLES = {
    "prompt": "prompt",
    "system": "system",
    "messages": "messages",
    "conversations": "conversations",
    "turns": "turns",
    "output_tokens": "output_tokens",
    "answer": ANSWERS[0],
    "images": "images",
    "tools": "tools",
}
# Keys whose cells in a CSV file are JSON.
_STRUCTURED = ("messages", "conversations", "turns", "hash_ids", "stop", "logit_bias")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file. ``unsent``: names of columns that nobody asked for."""

    place: str
    keys: Any
    unsent: frozenset[str] = frozenset()


def unpacked(path: str, data: bytes) -> bytes:
    """The content of a gzip file; other content as it is. Raises ProblemsError where it is broken
    or becomes too large.
    """
    if not data.startswith(GZIP):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _problem(path, f"is a broken gzip file: {error}") from None
    if len(content) > MOST_FILE_BYTES:
        raise _problem(path, f"is larger than {MOST_FILE_BYTES >> 30} GiB when it is unpacked")
    return content


def rows_of_table(path: str, data: bytes, columns: Collection[str] = ()) -> list[Entry] | None:
    """The rows of a Parquet file, or of a CSV file by its name; None for other files. ``columns``:
    those that the user names. Raises ProblemsError.
    """
    if data.startswith(PARQUET):
        return _parquet_rows(path, data)
    name = path.lower().removesuffix(".gz")
    if name.endswith(CSV_NAMES):
        return list(_csv_rows(path, data, "\t" if name.endswith(".tsv") else None, columns))
    return None


def _parquet_rows(path: str, data: bytes) -> list[Entry]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        _refuse_twice(path, file.schema_arrow.names)
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _problem(path, f"is a broken Parquet file: {error}") from None
    return [Entry(f"row {number}", _filled(row)) for number, row in enumerate(rows, start=1)]


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the NaN that pandas writes for a missing number."""
    cells: dict[str, Any] = {}
    for name, cell in row.items():
        is_missing = isinstance(cell, float) and math.isnan(cell)
        cells[name] = None if is_missing else cell
    return cells


def _refuse_twice(path: str, names: Sequence[str]) -> None:
    """Raises ProblemsError where two columns have one name: which of them is meant, nobody said."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1 and name)
    if twice:
        raise _problem(path, f"has several columns {twice[0]!r}: leave one of them")


def _csv_rows(
    path: str, data: bytes, delimiter: str | None, columns: Collection[str]
) -> Iterator[Entry]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _problem(path, f"is not UTF-8 at byte {error.start:,}") from None
    header = text.partition("\n")[0]
    if delimiter is None:
        delimiter = delimiter_of(header.rstrip("\r"), columns)
    csv.field_size_limit(MOST_FILE_BYTES)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        _refuse_twice(path, reader.fieldnames or ())
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                count = len(reader.fieldnames or ())
                raise _problem(path, f"row {number}: has not {count} cells, as the header has")
            yield Entry(f"row {number}", row)
    except csv.Error as error:
        raise _problem(path, f"after line {reader.line_num}: {error}") from None


def with_columns(entry: Entry, columns: Mapping[str, str]) -> Entry:
    """An entry whose columns have the names of the keys that stand for their roles; all others are
    left out. ``columns``: role -> column. Raises ValueError for a column that is not there.
    """
    if not isinstance(entry.keys, dict):
        return entry
    keys: dict[str, Any] = {}
    for role, column in columns.items():
        if column not in entry.keys:
            names = ", ".join(map(str, entry.keys))[:120]
            raise ValueError(f"there is no column {column!r}; there are {names}")
        keys[ROLES[role]] = entry.keys[column]
    if "system" in keys:
        system, prompt = keys.pop("system"), keys.pop("prompt")
        said = [{"role": "user", "content": prompt}]
        if system:
            said.insert(0, {"role": "system", "content": system})
        keys["messages"] = said
    unsent = frozenset(map(str, entry.keys)) - {*columns.values()}
    return Entry(entry.place, keys, unsent)


def with_values(entry: Entry) -> Entry:
    """An entry whose cells of a table are what they stand for: numbers, JSON, nothing. pandas writes
    whole numbers as 12.0 where one of their column is missing. Raises ValueError for a cell that is
    none of these.
    """
    keys: dict[str, Any] = {}
    for name, cell in entry.keys.items():
        value = cell
        if isinstance(cell, str) and name in (*ANSWER_LENGTHS, *SAMPLING, *_STRUCTURED):
            if not cell.strip():
                continue
            value = _value(name, cell)
        if isinstance(value, float) and name in ANSWER_LENGTHS and value.is_integer():
            value = int(value)
        keys[name] = value
    return Entry(entry.place, keys, entry.unsent)


def _value(name: str, cell: str) -> Any:
    """What a cell of text stands for. Raises ValueError."""
    try:
        return orjson.loads(cell)
    except orjson.JSONDecodeError:
        if name == "stop":
            return cell
        kind = "JSON" if name in _STRUCTURED else "a number"
        raise ValueError(f"{name} is {cell[:60]!r}; give {kind}") from None


def _problem(path: str, reason: str) -> ProblemsError:
    return ProblemsError([Problem(f"prompts {path!r} {reason}")])
