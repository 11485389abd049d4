"""Writes what is shown as JSON, CSV and Markdown text. In JSON, NaN is null."""

import csv
import html
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from orchestrator.report.text import Cell, Column, plain
from orchestrator.results.records import Figures
from orchestrator.spec.load import in_json

# A JSON object. Its values may be records, which orjson writes as objects too.
JsonObject = Mapping[str, object]
# What Markdown reads as markup; an underscore inside a word is none.
_MARKUP = re.compile(r"[\\`*\[\]|~#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def json_text(value: object) -> str:
    """The JSON text of an object, a list or a record."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def metrics(figures: Figures) -> JsonObject:
    """All figures by name, to be merged into a larger object."""
    return fields_of(figures, *Figures.__slots__)


def fields_of(record: object, *names: str) -> JsonObject:
    """Some fields of a record; all null where ``record`` is None."""
    return {name: in_json(getattr(record, name, None)) for name in names}


def json_list(objects: Iterable[JsonObject]) -> Iterator[str]:
    """The text of a JSON list in pieces, so that only one object is in memory at a time."""
    is_empty = True
    for item in objects:
        before = "[\n" if is_empty else ",\n"
        yield before + json_text(item)
        is_empty = False
    yield "[]\n" if is_empty else "\n]\n"


def csv_text(lines: Iterable[JsonObject]) -> str:
    """CSV with a header of all columns; nested objects are flattened (see ``flat``)."""
    rows = [flat(line) for line in lines]
    names: dict[str, None] = {}  # in the order in which they first come
    for row in rows:
        names.update(dict.fromkeys(row))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    """The value as text that no spreadsheet runs as a formula and no terminal obeys.

    Line breaks stay. What is no text is returned as it is.
    """
    if not isinstance(value, str):
        return value
    text = "\n".join(plain(line) for line in value.split("\n"))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def markdown_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str | Cell]]
) -> Iterator[str]:
    """The lines of a table in GitHub's Markdown, however wide it is."""
    titles = [markdown_cell(column.one_line) for column in columns]
    rules = [":--" if column.is_left_aligned else "--:" for column in columns]
    yield _markdown_row(titles)
    yield _markdown_row(rules)
    for row in rows:
        texts = [cell.text if isinstance(cell, Cell) else cell for cell in row]
        yield _markdown_row([markdown_cell(text) for text in texts])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_cell(text: str) -> str:
    """Text that a cell shows as it is.

    It makes no markup, HTML, link or mention, and no formula when the cell is pasted into a
    spreadsheet.
    """
    escaped = html.escape(plain(text.strip()), quote=False)
    escaped = _MARKUP.sub(r"\\\g<0>", escaped)
    escaped = escaped.replace("@", "@<!-- -->").replace("://", ":<!-- -->//")
    begins_formula = escaped.startswith(("=", "+", "-")) and len(escaped) > 1
    return f"\\{escaped}" if begins_formula else escaped


def flat(value: Any, prefix: str = "") -> dict[str, object]:
    """Flattens nested objects and records to dotted columns (``ttft_ms.p50``).

    A list becomes one cell, as ``_list_text`` writes it.
    """
    columns: dict[str, object] = {}
    for name, item in _items(value):
        if isinstance(item, Mapping) or is_dataclass(item):
            columns |= flat(item, f"{prefix}{name}.")
        elif isinstance(item, list | tuple):
            columns[prefix + name] = _list_text(item)
        else:
            columns[prefix + name] = item
    return columns


def _list_text(items: Sequence[object]) -> str:
    """The items with semicolons between them; JSON, if any of them has a structure of its own."""
    for item in items:
        if isinstance(item, Mapping | list | tuple) or is_dataclass(item):
            return orjson.dumps(items).decode()
    return "; ".join(map(str, items))


def _items(value: Any) -> Iterator[tuple[str, object]]:
    """The names and values of an object or a record."""
    if isinstance(value, Mapping):
        yield from value.items()
        return
    for field in fields(value):
        yield field.name, getattr(value, field.name)
