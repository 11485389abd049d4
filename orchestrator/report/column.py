"""A column: a named value of a row, with its unit, its description, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from orchestrator.analysis.intervals import Interval
from orchestrator.base.errors import InputError
from orchestrator.base.registry import did_you_mean
from orchestrator.report.formats import flat

SIMULATED = "whether a model computed it in virtual time: nothing was measured"
SOURCE = "other tool that measured it, with its version; empty: this program did"
SETTINGS = "settings."  # before the name of a setting; it may be left out
_CONFIDENCE = "95 %; of what is simulated, where 9 in 10 measurements lie"
RowT = TypeVar("RowT")
PartT = TypeVar("PartT")
Value = Callable[[RowT], Any]


@dataclass(frozen=True, slots=True)
class ReportColumn(Generic[RowT]):
    """A named value of a row; ``value`` returns None where the row has none.

    ``unit``: empty for names, numbers of things, and shares from 0 to 1. ``kind``: bool, int, float
    or str; ``Mapping``: the entries of the value are columns of their own in a frame; ``object``:
    the values decide. ``is_usual``: it is shown when no columns are asked for.
    """

    name: str
    unit: str
    description: str
    value: Value[RowT]
    kind: type = float
    is_usual: bool = False


def field_of(record_of: Value[RowT], name: str) -> Value[RowT]:
    """Reads a field of a record of each row; None where a row has no such record."""

    def value(row: RowT) -> Any:
        record = record_of(row)
        return None if record is None else getattr(record, name)

    return value


def seen_from(column: ReportColumn[PartT], part_of: Callable[[RowT], PartT]) -> ReportColumn[RowT]:
    """A column of a part of each row, as a column of the row."""

    def value(row: RowT) -> Any:
        return column.value(part_of(row))

    return ReportColumn(column.name, column.unit, column.description, value, column.kind)


def bounds_of(
    name: str, unit: str, interval_of: Callable[[RowT], Interval | None]
) -> Iterator[ReportColumn[RowT]]:
    """The columns of both ends of a value's interval."""
    for end in ("lower", "upper"):
        yield ReportColumn(
            name=f"{name}.{end}",
            unit=unit,
            description=f"{end} end of the interval of {name}: {_CONFIDENCE}",
            value=field_of(interval_of, end),
        )


def entry_of(column: ReportColumn[RowT], entry: str) -> ReportColumn[RowT]:
    """One entry of a column of mappings, as a column: ``errors.timeout`` of ``errors``."""

    def value(row: RowT) -> Any:
        mapping = column.value(row)
        return None if mapping is None else flat(mapping).get(entry)

    return ReportColumn(
        name=f"{column.name}.{entry}",
        unit=column.unit,
        description=f"{column.description}: {entry}",
        value=value,
        kind=object,
    )


def named_column(columns: Mapping[str, ReportColumn[RowT]], name: str) -> ReportColumn[RowT] | None:
    """The column of this name; None: there is no such column.

    The name may be that of an entry of a column of mappings. A setting is found without
    ``settings.`` too.
    """
    for full_name in (name, f"{SETTINGS}{name}"):
        if full_name in columns:
            return columns[full_name]
        for column in columns.values():
            if column.kind is Mapping and full_name.startswith(f"{column.name}."):
                return entry_of(column, full_name.removeprefix(f"{column.name}."))
    return None


def chosen_columns(
    columns: Mapping[str, ReportColumn[RowT]], wanted: str | Sequence[str] | None
) -> list[ReportColumn[RowT]]:
    """The columns that are asked for.

    None: the usual ones; ``"all"``: all of them; names: these, in this order. Raises InputError for
    an unknown name, with the nearest one.
    """
    if wanted is None:
        return [column for column in columns.values() if column.is_usual]
    if wanted == "all":
        return list(columns.values())
    names = [wanted] if isinstance(wanted, str) else wanted
    chosen: dict[str, ReportColumn[RowT]] = {}
    for name in names:
        column = named_column(columns, name)
        if column is None:
            hint = did_you_mean(name, columns) or 'columns="all" has all'
            raise InputError(f"unknown column {name!r}; {hint}")
        chosen[column.name] = column
    return list(chosen.values())
