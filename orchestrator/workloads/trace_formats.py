"""The formats of recorded traces: found by the names of their columns, never by guess.

Rows of CSV or JSON lines may also be those of a Parquet file with the same names.

| format | file | times | blocks |
|---|---|---|---|
| azure | CSV ``TIMESTAMP,ContextTokens,GeneratedTokens``; 2025 also ``NumImages`` | dates | |
| burstgpt | CSV ``Timestamp,Model,Request tokens,...``; 1.2 also ``Session ID,Elapsed time`` | s | |
| mooncake | JSONL ``timestamp, input_length, output_length, hash_ids`` | ms | 512 |
| bailian | JSONL, also ``chat_id, parent_chat_id`` | s | 16 |
| weka | JSONL, a session per line or file: ``id, block_size, requests`` | s in a session | per file |
| columns | CSV, JSONL or Parquet by the names that the user gives | dates, or in a unit | |

Sources: github.com/Azure/AzurePublicDataset, github.com/HPMLL/BurstGPT,
github.com/kvcache-ai/Mooncake (FAST25 traces), github.com/alibaba-edu/qwen-bailian-usagetraces-anon,
github.com/kubernetes-sigs/inference-perf (WEKA agent sessions).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import orjson

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.traces import Filter, Filters, TraceColumns
from orchestrator.workloads.file_reading import LFS_POINTER, LFS_WORDS, delimiter_of

WHAT = "trace"  # what problems call the file
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
FORMATS = ("azure", "burstgpt", "mooncake", "bailian", "weka", "columns")
FORMATS_WITHOUT_OTHERS = ("azure", "burstgpt", "mooncake")  # found only by exactly their columns
OPENING = b"{"  # a line that says only this begins an object over all lines of the file
OWN_COLUMNS = "'columns: {time: ..., input_tokens: ..., output_tokens: ...}'"
MOST_HEADER_BYTES = 1 << 20  # of the first line
MOST_CELL_BYTES = 1 << 30  # of a table: a column may hold what was said

AZURE = TraceColumns(
    time="TIMESTAMP", input_tokens="ContextTokens", output_tokens="GeneratedTokens"
)
BURSTGPT = TraceColumns(
    time="Timestamp", input_tokens="Request tokens", output_tokens="Response tokens"
)
JSON_LENGTHS = TraceColumns(
    time="timestamp", input_tokens="input_length", output_tokens="output_length"
)
IMAGES = "NumImages"  # Azure 2025
BLOCKS = "hash_ids"  # of all published traces that have blocks


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """How a file is read. ``columns``: None for WEKA's sessions, which are no rows. ``unit``: of
    times that are numbers. ``block_tokens``: that each name in the column ``blocks`` stands for;
    None: rows have no blocks.
    """

    name: str
    columns: TraceColumns | None
    unit: str | None = None
    block_tokens: int | None = None
    images: str | None = None  # the column that counts images
    blocks: str = BLOCKS


@dataclass(frozen=True, slots=True)
class Header:
    """The kind of a file and the names of its columns, or of the keys of its first line."""

    kind: str  # csv | jsonl | parquet
    names: tuple[str, ...]
    delimiter: str = ","


def header_of(path: str, names: Collection[str] = ()) -> Header:
    """What the beginning of a file says. ``names``: of columns that it should have. Raises
    ProblemsError for a file that is no table.
    """
    try:
        with Path(path).open("rb") as file:
            begins_as_parquet = file.read(4) == b"PAR1"
        if begins_as_parquet:
            return _parquet_header(path)
        line = _first_line(path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise problem(path, f"cannot be read: {reason}") from None
    if not line:
        raise problem(path, "is empty")
    if line.startswith(b"{"):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise problem(path, f"row 1: {error.msg}") from None
        return Header("jsonl", tuple(row))
    if line.startswith(b"["):
        raise problem(path, "is a JSON array: give one object per line")
    if line.startswith(b"PAR1"):
        raise problem(path, "is a Parquet file in a gzip file: unpack it first")
    try:
        text = line.decode()
    except UnicodeDecodeError:
        raise problem(path, "is neither a table (CSV, Parquet) nor JSON lines") from None
    if line.startswith(LFS_POINTER):
        raise problem(path, f"is {LFS_WORDS}")
    delimiter = delimiter_of(text, names)
    csv.field_size_limit(MOST_CELL_BYTES)
    try:
        cells = next(csv.reader([text], delimiter=delimiter))
    except csv.Error as error:
        raise problem(path, f"has a header that cannot be read: {error}") from None
    return Header("csv", tuple(cells), delimiter)


def _parquet_header(path: str) -> Header:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return Header("parquet", tuple(pq.read_schema(path).names))
    except (pa.ArrowInvalid, OSError) as error:
        raise problem(path, f"is a broken Parquet file: {error}") from None


def _first_line(path: str) -> bytes:
    with open_binary(path) as file:
        while True:
            line: bytes = file.readline(MOST_HEADER_BYTES)
            text = line.removeprefix(codecs.BOM_UTF8).strip()
            if text == OPENING:
                return text + file.read()
            if text or not line:
                return text


@contextmanager
def open_binary(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where it is a gzip file."""
    with Path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield cast("IO[bytes]", unpacked)


def problem(path: str, reason: str) -> ProblemsError:
    return ProblemsError([Problem(f"{WHAT} {path!r} {reason}")])


def format_of(header: Header, name: str | None = None) -> TraceFormat | None:
    """The published format that has exactly these columns; None where none has. The format that the
    user names may have others, too.
    """
    names = set(header.names)
    if header.kind != "jsonl":
        azure = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
        if azure <= names and (name == "azure" or names <= azure | {IMAGES}):
            return TraceFormat("azure", AZURE, images=IMAGES if IMAGES in names else None)
        burstgpt = {"Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens"}
        others = {"Log Type", "Session ID", "Elapsed time"}
        if burstgpt <= names and (name == "burstgpt" or names <= burstgpt | others):
            return TraceFormat("burstgpt", _burstgpt_columns(names), unit="s")
    if header.kind == "csv":
        return None
    lengths = {"timestamp", "input_length", "output_length", "hash_ids"}
    if header.kind == "jsonl" and {"id", "requests", "block_size"} <= names:
        return TraceFormat("weka", None, unit="s")
    if lengths <= names and {"chat_id", "parent_chat_id"} <= names:
        return TraceFormat("bailian", JSON_LENGTHS, unit="s", block_tokens=16)
    if lengths <= names and (name == "mooncake" or names == lengths):
        return TraceFormat("mooncake", JSON_LENGTHS, unit="ms", block_tokens=512)
    return None


def _burstgpt_columns(names: set[str]) -> TraceColumns:
    """The columns of BurstGPT: of its later versions with the sessions, and with the times that
    answers took, from which pauses follow.
    """
    if "Session ID" not in names:
        return BURSTGPT
    elapsed = "Elapsed time" if "Elapsed time" in names else None
    return BURSTGPT.model_copy(update={"session": "Session ID", "elapsed": elapsed})


def wanted_format(
    path: str,
    name: str | None,
    columns: TraceColumns | None,
    unit: str | None,
    header: Header,
) -> TraceFormat:
    """The format of a file: by the columns that the user names, else by its header. Raises
    ProblemsError where it has none, or another than the user says.
    """
    if columns is not None:
        return _own_format(path, columns, unit, header)
    format_found = format_of(header, name)
    if format_found is None:
        names = ", ".join(header.names)[:120]
        for candidate in FORMATS_WITHOUT_OTHERS:
            if name is None and format_of(header, candidate) is not None:
                raise problem(
                    path,
                    f"has the columns {names}, which are those of {candidate} and others: if it is "
                    f"such a trace, give 'format: {candidate}', else {OWN_COLUMNS}",
                )
        raise problem(
            path,
            f"has the columns {names}, which are those of no known trace: give {OWN_COLUMNS}",
        )
    if name not in (None, format_found.name):
        raise problem(path, f"has the columns of {format_found.name}, not of {name}")
    if unit is not None and format_found.unit is None:
        raise problem(path, "has dates as its times, which have no 'unit'")
    if unit is not None:
        return replace(format_found, unit=unit)
    return format_found


def _own_format(path: str, columns: TraceColumns, unit: str | None, header: Header) -> TraceFormat:
    """The format of a table whose columns the user names."""
    if columns.blocks is None:
        return TraceFormat("columns", columns, unit=unit, images=columns.images)
    if header.kind == "csv":
        raise problem(path, "is a CSV file, whose cells are no lists: leave 'blocks' out")
    return TraceFormat(
        "columns",
        columns,
        unit=unit,
        block_tokens=columns.block_tokens,
        images=columns.images,
        blocks=columns.blocks,
    )


def used_columns(trace_format: TraceFormat, filters: Sequence[Filter]) -> set[str]:
    """The columns, or keys of a line, that say what is sent or which rows are sent."""
    if trace_format.columns is None:  # WEKA's sessions; for their requests: used_request_keys
        return {"block_size", "hash_id_scope", "requests", "id"}
    used = {row_filter.column for row_filter in filters}
    used |= set(trace_format.columns.names)
    if trace_format.images is not None:
        used.add(trace_format.images)
    if trace_format.block_tokens is not None:
        used.add(trace_format.blocks)
    if trace_format.name == "bailian":
        used |= {"chat_id", "parent_chat_id"}
    return used


def used_request_keys(filters: Filters) -> set[str]:
    """The keys of a request of WEKA's sessions that say what is sent or whether it is."""
    filtered = {row_filter.column for row_filter in filters}
    return filtered | {"t", "type", "in", "out", "hash_ids", "api_time", "think_time", "requests"}


def missing_columns(wanted: Sequence[str], header: Header) -> list[str]:
    """The wanted columns that a file does not have."""
    return [name for name in wanted if name not in header.names]
