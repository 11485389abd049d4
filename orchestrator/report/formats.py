"""Documents (records, dicts, lists, plain values) as JSON and CSV text. NaN becomes null."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson

from orchestrator.report.text import plain
from orchestrator.results.records import Figures
from orchestrator.spec.load import in_json

Document = Mapping[str, object]


def json_text(document: object) -> str:
    """One JSON document."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def metrics(figures: Figures) -> Document:
    """All figures by name, to be merged into a larger document."""
    return fields_of(figures, *Figures.__slots__)


def fields_of(record: object, *names: str) -> Document:
    """Some fields of a record; all null where ``record`` is None."""
    return {name: in_json(getattr(record, name, None)) for name in names}


def json_list(documents: Iterable[object]) -> Iterator[str]:
    """The text of a JSON list in pieces, so that only one document is in memory at a time."""
    before = "[\n"
    for document in documents:
        yield before + json_text(document)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def csv_text(lines: Iterable[Document]) -> str:
    """CSV with a header of all columns; nested objects are flattened (see ``flat``)."""
    rows = [flat(line) for line in lines]
    names = list(dict.fromkeys(name for line in rows for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in line.items()} for line in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """Text that no spreadsheet runs as a formula and no terminal obeys; line breaks stay."""
    if not isinstance(value, str):
        return value
    text = "\n".join(plain(line) for line in value.split("\n"))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def flat(value: Any, prefix: str = "") -> dict[str, object]:
    """Nested objects become dotted columns (``ttft_ms.p50``); a list becomes one cell."""
    found: dict[str, object] = {}
    items = (
        value
        if isinstance(value, Mapping)
        else {one.name: getattr(value, one.name) for one in fields(value)}
    )
    for name, item in items.items():
        if isinstance(item, Mapping) or is_dataclass(item):
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[prefix + name] = (
                "; ".join(map(str, item)) if isinstance(item, list | tuple) else item
            )
    return found
