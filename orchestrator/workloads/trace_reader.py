"""Reads the rows of a recorded trace as a stream: only those that are kept stay in memory.

A trace may have tens of millions of rows, so tables are read in batches by Arrow. A row that cannot
be read is refused with its number; rows are counted from 1, without the header.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.base.errors import ProblemsError
from orchestrator.spec.load import MOST_TOKENS
from orchestrator.spec.traces import Filter, TraceColumns, cell_text
from orchestrator.workloads.trace_formats import (
    BLOCKS,
    MOST_CELL_BYTES,
    OPENING,
    UNITS_NS,
    Header,
    TraceFormat,
    missing_columns,
    open_binary,
    problem,
    used_columns,
)

BATCH_BYTES = (
    1 << 20
)  # of a CSV file: Arrow reads several ahead, and a peak of 200 MiB becomes 800 with 16 MiB
LONGER_THAN_BLOCK = "straddling object"  # words of Arrow's error
BATCH_ROWS = 1 << 17  # of other files
MOST_NS = 4e18  # of a time, in either direction; differences of two must fit into int64
CONTENT = "type"  # Bailian's column of what a prompt has: text, search, image or file
IMAGE = "image"
MOST_BLOCK = 2**63 - 1  # the largest name of a block that fits into int64


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows in their order in the file. ``row``: the number of the first. ``times_ns``: since any
    instant; None: rows have no times. ``sessions`` and ``parents``: keys; None: rows stand alone.
    ``blocks``: of each row; None: no row has any. ``keys``: of all rows of JSON lines; a table's are
    its header.
    """

    row: int
    times_ns: Ints | None
    inputs: Ints
    outputs: Ints
    is_kept: Bools  # by the filters
    sessions: list[Any] | None = None
    parents: list[Any] | None = None
    elapsed_ns: Ints | None = None
    images: Ints | None = None
    blocks: list[Sequence[int]] | None = None
    has_image: Bools | None = None  # whose lengths count images; None: the trace does not say
    keys: frozenset[str] = frozenset()


def read_batches(
    path: str, trace_format: TraceFormat, header: Header, filters: Sequence[Filter]
) -> Iterator[RowBatch]:
    """All rows of a trace with columns. Raises ProblemsError with the first row that cannot be
    read.
    """
    columns = trace_format.columns
    assert columns is not None
    wanted = sorted(used_columns(trace_format, filters))
    if trace_format.name == "bailian" and CONTENT in header.names:
        wanted = sorted({*wanted, CONTENT})
    missing = missing_columns(wanted, header)
    if missing:
        names = ", ".join(header.names)[:120]
        raise problem(path, f"has no column {missing[0]!r}; its columns are {names}")
    for name in wanted:
        if header.names.count(name) > 1:
            raise problem(path, f"has several columns {name!r}: leave one of them")
    if header.kind == "jsonl":
        yield from _json_batches(path, trace_format, columns, filters)
        return
    row = 1
    for batch in _arrow_batches(path, trace_format, header, wanted):
        yield _batch_of(path, trace_format, columns, filters, batch, row)
        row += batch.num_rows


# -- tables


def _arrow_batches(
    path: str, trace_format: TraceFormat, header: Header, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    if header.kind == "parquet":
        try:
            yield from pq.ParquetFile(path).iter_batches(BATCH_ROWS, columns=[*names])
        except (pa.ArrowInvalid, OSError) as error:
            raise problem(path, f"is a broken Parquet file: {error}") from None
        return
    types = _column_types(path, trace_format, header)
    columns = {name: types.get(name, pa.string()) for name in names}
    rows_done = 0
    block_bytes = BATCH_BYTES
    while True:
        try:
            for batch in _csv_batches(path, header, columns, block_bytes, rows_done):
                yield batch
                rows_done += batch.num_rows
            return
        except (pa.ArrowException, OSError) as error:
            if LONGER_THAN_BLOCK not in str(error) or block_bytes >= MOST_CELL_BYTES:
                raise _first_bad_row(path, trace_format, header, str(error)) from None
            block_bytes *= 16


def _csv_batches(
    path: str, header: Header, columns: Mapping[str, pa.DataType], block_bytes: int, skipped: int
) -> Iterator[pa.RecordBatch]:
    """Columns of a CSV file in blocks of this size, without the first ``skipped`` rows. Raises
    ArrowInvalid for a row that is longer than a block.
    """
    with pa_csv.open_csv(
        _input_stream(path),
        read_options=pa_csv.ReadOptions(block_size=block_bytes, use_threads=False),
        parse_options=pa_csv.ParseOptions(delimiter=header.delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            include_columns=[*columns],
            column_types=columns,
            strings_can_be_null=False,
        ),
    ) as batches:
        for batch in batches:
            rest = batch.slice(skipped)  # empty where the batch is not as long
            skipped -= batch.num_rows - rest.num_rows
            if rest.num_rows:
                yield rest


def _input_stream(path: str) -> Any:
    """A file for Arrow, which knows compressed files by their names alone."""
    with Path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return pa.input_stream(path, compression="gzip" if is_gzip else None)


def _column_types(path: str, trace_format: TraceFormat, header: Header) -> dict[str, pa.DataType]:
    """Types of the columns of a CSV file: the first row says whether dates have a zone."""
    columns = trace_format.columns
    assert columns is not None
    types: dict[str, pa.DataType] = {
        columns.input_tokens: pa.int64(),
        columns.output_tokens: pa.int64(),
    }
    if trace_format.images is not None:
        types[trace_format.images] = pa.int64()
    if columns.elapsed is not None:
        types[columns.elapsed] = pa.float64()
    if columns.time is None:
        return types
    with closing(_csv_rows(path, header)) as rows:
        try:
            first = next(rows, {})
        except (UnicodeDecodeError, csv.Error) as error:
            raise problem(path, f"cannot be read: {error}") from None
    types[columns.time] = _time_type(first.get(columns.time) or "")
    return types


def _time_type(text: str) -> pa.DataType:
    """The type of a column of times, by its first one."""
    if _is_number(text):
        return pa.float64()
    return pa.timestamp("ns", "UTC" if _has_zone(text) else None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_zone(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _csv_rows(path: str, header: Header) -> Generator[dict[str, str], None, None]:
    with (
        open_binary(path) as file,
        io.TextIOWrapper(cast("Any", file), "utf-8-sig", newline="") as text,
    ):
        csv.field_size_limit(MOST_CELL_BYTES)
        lines = dropwhile(str.isspace, text)
        reader = csv.DictReader(lines, delimiter=header.delimiter)
        if reader.fieldnames is not None:
            reader.fieldnames = list(header.names)
        yield from reader


def _first_bad_row(
    path: str, trace_format: TraceFormat, header: Header, reason: str
) -> ProblemsError:
    """The problem of a table that Arrow refused, with the number of the first row that is wrong."""
    columns = trace_format.columns
    assert columns is not None
    with_zone: bool | None = None
    try:
        for number, row in enumerate(_csv_rows(path, header), start=1):
            if None in row or None in row.values():
                return problem(path, f"row {number}: has not {len(header.names)} cells")
            for name in (columns.input_tokens, columns.output_tokens):
                if not row[name].strip().isdigit():
                    return problem(path, f"row {number}: {name} is {row[name][:60]!r}")
            time = row[columns.time] if columns.time is not None else "0"
            if _is_number(time):
                continue
            try:
                has_zone = datetime.fromisoformat(time).tzinfo is not None
            except ValueError:
                return problem(path, f"row {number}: {columns.time} is {time[:60]!r}")
            if with_zone not in (None, has_zone):
                return problem(path, f"row {number}: only some times have a zone")
            with_zone = has_zone
    except (UnicodeDecodeError, csv.Error, OSError, EOFError, zlib.error) as error:
        return problem(path, f"cannot be read: {error}")
    return problem(path, f"cannot be read: {reason[:200]}")


def _batch_of(
    path: str,
    trace_format: TraceFormat,
    columns: TraceColumns,
    filters: Sequence[Filter],
    batch: pa.RecordBatch,
    row: int,
) -> RowBatch:
    is_kept = np.ones(batch.num_rows, dtype=bool)
    for row_filter in filters:
        texts = _texts(batch.column(row_filter.column))
        kept = pc.is_in(texts, value_set=pa.array(row_filter.values, pa.string()))
        is_kept &= kept.to_numpy(zero_copy_only=False)
    times_ns = None
    if columns.time is not None:
        times = batch.column(columns.time)
        times_ns = _times_ns(path, columns.time, times, trace_format.unit, row)
    elapsed_ns = None
    if columns.elapsed is not None:
        cells = batch.column(columns.elapsed)
        elapsed_ns = _times_ns(path, columns.elapsed, cells, trace_format.unit, row)
        _refuse_negative(path, columns.elapsed, elapsed_ns, row)
    images = None
    if trace_format.images is not None:
        images = _whole(path, batch, trace_format.images, row)
    sessions = None
    if columns.session is not None:
        sessions = _sessions(path, columns.session, batch.column(columns.session))
    parents = None
    has_image = None
    if trace_format.name == "bailian":
        sessions = _sessions(path, "chat_id", batch.column("chat_id"))
        if None in sessions:
            raise problem(path, f"row {row + sessions.index(None)}: has no chat_id")
        parents = _sessions(path, "parent_chat_id", batch.column("parent_chat_id"))
        if CONTENT in batch.schema.names:
            contents = batch.column(CONTENT).to_pylist()
            has_image = np.array([content == IMAGE for content in contents], bool)
    inputs = _whole(path, batch, columns.input_tokens, row)
    blocks = None
    if trace_format.block_tokens is not None:
        names = batch.column(trace_format.blocks)
        blocks = _blocks(path, trace_format.blocks, names, inputs, trace_format.block_tokens, row)
    return RowBatch(
        row=row,
        times_ns=times_ns,
        inputs=inputs,
        outputs=_whole(path, batch, columns.output_tokens, row),
        is_kept=is_kept,
        sessions=sessions,
        parents=parents,
        elapsed_ns=elapsed_ns,
        images=images,
        blocks=blocks,
        has_image=has_image,
    )


def _blocks(
    path: str, name: str, cells: pa.Array, inputs: Ints, block_tokens: int, row: int
) -> list[Sequence[int]]:
    """The names of the blocks of each row of a table. ``row``: the number of the first."""
    blocks: list[Sequence[int]] = []
    prompts = zip(cells.to_pylist(), inputs.tolist(), strict=True)
    for number, (cell, tokens) in enumerate(prompts, start=row):
        place = f"row {number}"
        blocks.append(_blocks_of_prompt(path, place, {name: cell}, name, tokens, block_tokens))
    return blocks


def _sessions(path: str, name: str, cells: pa.Array) -> list[Any]:
    """What names the session of each row; None: it stands alone, as a row without a name does."""
    if pa.types.is_nested(cells.type):
        raise problem(path, f"{name} is {cells.type}; give a column of texts or numbers")
    return [None if value == "" else value for value in cells.to_pylist()]


def _texts(cells: pa.Array) -> pa.Array:
    if pa.types.is_boolean(cells.type) or pa.types.is_integer(cells.type):
        return cells.cast(pa.string())
    if pa.types.is_string(cells.type):
        return cells
    return pa.array([cell_text(value) for value in cells.to_pylist()], pa.string())


def _whole(path: str, batch: pa.RecordBatch, name: str, row: int) -> Ints:
    """The whole numbers of a column, from 0 to MOST_TOKENS."""
    cells = _plain(batch.column(name))
    if pa.types.is_temporal(cells.type) or pa.types.is_boolean(cells.type):
        raise problem(path, f"{name} is {cells.type}; give a column of whole numbers")
    try:
        cells = cells.cast(pa.int64())
    except pa.ArrowException as error:
        raise problem(path, f"from row {row} on: {name}: {error}") from None
    numbers = _int64(pc.fill_null(cells, -1))
    wrong = np.flatnonzero((numbers < 0) | (numbers > MOST_TOKENS))
    if len(wrong):
        place = int(wrong[0])
        raise problem(
            path,
            f"row {row + place}: {name} is {cells[place].as_py()!r}; give a whole number from 0 to "
            f"{MOST_TOKENS}",
        )
    return numbers


def _int64(cells: pa.Array) -> Ints:
    return np.asarray(cells.to_numpy(zero_copy_only=False), np.int64)


def _times_ns(path: str, name: str, cells: pa.Array, unit: str | None, row: int) -> Ints:
    """Times of a column in ns."""
    cells = _plain(cells)
    if pa.types.is_string(cells.type):
        first = next((text for text in cells.to_pylist() if text is not None), "")
        cells = _cast(path, name, cells, _time_type(first), row)
    if cells.null_count:
        place = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
        raise problem(path, f"row {row + place}: {name} is empty")
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        zone = getattr(cells.type, "tz", None)
        whole = _cast(path, name, cells, pa.timestamp("ns", zone), row)
        times_ns = _int64(whole.cast(pa.int64()))
        _refuse_far(path, name, cells, np.abs(times_ns.astype(np.float64)), row)
        return times_ns
    if unit is None:
        raise problem(path, f"has numbers as {name}: give their 'unit' (s, ms, us or ns)")
    try:
        cells = cells.cast(pa.float64(), safe=False)  # large integers are rounded
    except pa.ArrowException as error:
        raise problem(path, f"from row {row} on: {name}: {error}") from None
    numbers = cells.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # what is infinite is refused
        far_ns = np.round(numbers * UNITS_NS[unit])
    _refuse_far(path, name, cells, np.abs(far_ns), row)
    return np.asarray(far_ns, np.int64)


def _plain(cells: pa.Array) -> pa.Array:
    """A column in the simplest of the types that hold the same: Arrow has several for texts, and
    one for columns of few values.
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_large_string(cells.type) or pa.types.is_string_view(cells.type):
        return cells.cast(pa.string())
    return cells


def _cast(path: str, name: str, cells: pa.Array, wanted: pa.DataType, row: int) -> pa.Array:
    """A column as another type. Raises ProblemsError where a value of it is none of that type."""
    try:
        return cells.cast(wanted)
    except pa.ArrowException as error:
        raise problem(path, f"from row {row} on: {name}: {error}") from None


def _refuse_negative(path: str, name: str, elapsed_ns: Ints, row: int) -> None:
    """Raises ProblemsError for the first request that ended before it began."""
    wrong = np.flatnonzero(elapsed_ns < 0)
    if len(wrong):
        raise problem(path, f"row {row + int(wrong[0])}: {name} is below 0")


def _refuse_far(path: str, name: str, cells: pa.Array, distances_ns: Floats, row: int) -> None:
    """Raises ProblemsError for the first time that is further from 0 than MOST_NS, or no number."""
    wrong = np.flatnonzero(~(distances_ns < MOST_NS))
    if len(wrong):
        place = int(wrong[0])
        raise problem(path, f"row {row + place}: {name} is {cells[place]}")


# -- JSON lines


@dataclass(slots=True)
class _JsonRows:
    """Rows of JSON lines that are not handed on yet."""

    row: int
    times: list[Any] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    is_kept: list[bool] = field(default_factory=list)
    sessions: list[Any] = field(default_factory=list)
    parents: list[Any] = field(default_factory=list)
    elapsed: list[Any] = field(default_factory=list)
    blocks: list[Sequence[int]] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    has_image: list[bool] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of every line that is not blank. Raises ProblemsError."""
    number = 0
    try:
        with open_binary(path) as lines:
            for line in lines:
                text = line.removeprefix(codecs.BOM_UTF8).strip()
                if not text:
                    continue
                number += 1
                if text == OPENING:
                    text += lines.read()
                row = orjson.loads(text)
                if not isinstance(row, dict):
                    shown = text[:60].decode(errors="replace")
                    raise problem(path, f"row {number}: {shown!r} is not an object")
                yield number, row
    except orjson.JSONDecodeError as error:
        raise problem(path, f"row {number}: {error.msg}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise problem(path, f"cannot be read after row {number}: {error}") from None


def _json_batches(
    path: str, trace_format: TraceFormat, columns: TraceColumns, filters: Sequence[Filter]
) -> Iterator[RowBatch]:
    rows = _JsonRows(row=1)
    for number, keys in json_lines(path):
        _add_json_row(path, trace_format, columns, filters, rows, number, keys)
        if len(rows.inputs) == BATCH_ROWS:
            yield _json_batch(path, trace_format, columns, rows)
            rows = _JsonRows(row=number + 1)
    if rows.inputs:
        yield _json_batch(path, trace_format, columns, rows)


def _add_json_row(
    path: str,
    trace_format: TraceFormat,
    columns: TraceColumns,
    filters: Sequence[Filter],
    rows: _JsonRows,
    number: int,
    keys: Mapping[str, Any],
) -> None:
    place = f"row {number}"
    rows.keys.update(keys)
    rows.inputs.append(whole_number(path, place, keys, columns.input_tokens))
    rows.outputs.append(whole_number(path, place, keys, columns.output_tokens))
    if columns.time is not None:
        rows.times.append(keys.get(columns.time))
    if columns.elapsed is not None:
        rows.elapsed.append(keys.get(columns.elapsed))
    if columns.session is not None:
        rows.sessions.append(_session(path, place, keys, columns.session))
    if trace_format.name == "bailian":
        chat = _session(path, place, keys, "chat_id")
        if chat is None:
            raise problem(path, f"{place}: has no chat_id")
        rows.sessions.append(chat)
        rows.parents.append(_session(path, place, keys, "parent_chat_id"))
        rows.has_image.append(keys.get(CONTENT) == IMAGE)
    if trace_format.block_tokens is not None:
        name, block_tokens = trace_format.blocks, trace_format.block_tokens
        tokens = rows.inputs[-1]
        rows.blocks.append(_blocks_of_prompt(path, place, keys, name, tokens, block_tokens))
    if trace_format.images is not None:
        rows.images.append(whole_number(path, place, keys, trace_format.images))
    rows.is_kept.append(
        all(cell_text(keys.get(row_filter.column)) in row_filter.values for row_filter in filters)
    )


def _session(path: str, place: str, keys: Mapping[str, Any], name: str) -> Any:
    """What names the session of a row; None: it stands alone. Raises ProblemsError for what cannot
    be a name.
    """
    value = keys.get(name)
    if isinstance(value, list | dict):
        raise problem(path, f"{place}: {name} is {str(value)[:60]!r}; give a text or a number")
    return None if value == "" else value


def whole_number(path: str, place: str, keys: Mapping[str, Any], name: str) -> int:
    """A count of tokens. Raises ProblemsError for anything else."""
    value = keys.get(name)
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    raise problem(
        path, f"{place}: {name} is {value!r}; give a whole number from 0 to {MOST_TOKENS}"
    )


def block_ids(path: str, place: str, keys: Mapping[str, Any], name: str = BLOCKS) -> Sequence[int]:
    """The names of a request's blocks. Raises ProblemsError where they are no whole numbers."""
    blocks = keys.get(name)
    if isinstance(blocks, list) and all(map(_is_block, blocks)):
        return blocks
    raise problem(
        path,
        f"{place}: {name} are {str(blocks)[:60]!r}; give whole numbers from 0 to {MOST_BLOCK}",
    )


def _blocks_of_prompt(
    path: str, place: str, keys: Mapping[str, Any], name: str, tokens: int, block_tokens: int
) -> Sequence[int]:
    """The names of the blocks of a prompt, one for every ``block_tokens``. Raises ProblemsError
    where they are fewer or more.
    """
    blocks = block_ids(path, place, keys, name)
    needed = -(-tokens // block_tokens)
    if len(blocks) != needed:
        raise problem(
            path,
            f"{place}: {len(blocks)} {name} for {tokens} tokens; there is one for every "
            f"{block_tokens}, so {needed}",
        )
    return blocks


def _is_block(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_BLOCK


def seconds(path: str, place: str, keys: Mapping[str, Any], name: str) -> float:
    """A finite number of a JSON object. Raises ProblemsError for anything else."""
    value = keys.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise problem(path, f"{place}: {name} is {value!r}; give a number")


def _json_batch(
    path: str, trace_format: TraceFormat, columns: TraceColumns, rows: _JsonRows
) -> RowBatch:
    times_ns = elapsed_ns = None
    if columns.time is not None:
        times_ns = _json_times(path, columns.time, rows.times, trace_format.unit, rows.row)
    if columns.elapsed is not None:
        elapsed_ns = _json_times(path, columns.elapsed, rows.elapsed, trace_format.unit, rows.row)
        _refuse_negative(path, columns.elapsed, elapsed_ns, rows.row)
    return RowBatch(
        row=rows.row,
        times_ns=times_ns,
        inputs=np.array(rows.inputs, np.int64),
        outputs=np.array(rows.outputs, np.int64),
        is_kept=np.array(rows.is_kept, bool),
        sessions=rows.sessions or None,
        parents=rows.parents or None,
        elapsed_ns=elapsed_ns,
        images=np.array(rows.images, np.int64) if rows.images else None,
        blocks=rows.blocks or None,
        has_image=np.array(rows.has_image, bool) if rows.has_image else None,
        keys=frozenset(rows.keys),
    )


def _json_times(path: str, name: str, values: list[Any], unit: str | None, row: int) -> Ints:
    times: list[int] = []
    for number, cell in enumerate(values, start=row):
        # as in CSV, a text of a number is that number: "20240510" are seconds and no date
        value = float(cell) if isinstance(cell, str) and _is_number(cell) else cell
        if isinstance(value, str):
            times.append(_date_ns(path, name, value, number))
        elif type(value) not in (int, float):
            raise problem(path, f"row {number}: {name} is {cell!r}")
        elif unit is None:
            raise problem(path, f"has numbers as {name}: give their 'unit' (s, ms, us or ns)")
        elif not abs(value * UNITS_NS[unit]) < MOST_NS:
            raise problem(path, f"row {number}: {name} is {cell!r}")
        else:
            times.append(round(value * UNITS_NS[unit]))
    return np.array(times, np.int64)


def _date_ns(path: str, name: str, text: str, number: int) -> int:
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise problem(path, f"row {number}: {name} is {text[:60]!r}") from None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    since = date - datetime(1970, 1, 1, tzinfo=UTC)
    date_ns = (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if abs(date_ns) >= MOST_NS:
        raise problem(path, f"row {number}: {name} is {text[:60]!r}")
    return date_ns
