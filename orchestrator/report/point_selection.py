"""Chooses which points ``orchestrator results`` shows, in which order and with which columns.

The options are ``--where``, ``--sort``, ``--top`` and ``--columns``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.base.errors import InputError
from orchestrator.base.registry import did_you_mean
from orchestrator.report.column import SETTINGS
from orchestrator.report.columns import (
    PointColumn,
    column_named,
    column_names,
    named_slo_columns,
)
from orchestrator.report.documents.capacity import CapacityDocument
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.formats import JsonObject
from orchestrator.report.point_table import ShownColumn
from orchestrator.report.text import Column
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.load import in_json

# with --top alone, points are sorted by the first of these columns that some point has
_BEST_FIRST = ("per_device", "output_token_throughput")
_WIDEST_TITLE = 12  # characters in a line of the title of a column that was asked for
_VALUE = ".value"  # in JSON, of a figure with an interval; the column has the name alone
# names of a load in files and tables, and the column that has it
_MEANT = dict.fromkeys(("request_rate", "rate", "req", "rps", "concurrency", "in_flight"), "level")
_HINT = "it is no column: 'results --help' says what may be named (text needs quotes)"


@dataclass(frozen=True, slots=True)
class KnownColumns(Collection[str]):
    """The names of columns that may be asked for. ``of_slos``: the columns of each SLO, by name."""

    of_slos: Mapping[str, PointColumn]

    def named(self, name: str) -> PointColumn | None:
        return self.of_slos.get(name) or column_named(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.named(name) is not None

    def __iter__(self) -> Iterator[str]:
        yield from column_names()
        yield from self.of_slos

    def __len__(self) -> int:
        return len(column_names()) + len(self.of_slos)


@dataclass(frozen=True, slots=True)
class Rule:
    """What points must match. ``columns``: the columns that the expression names."""

    expression: Expression
    columns: Mapping[str, PointColumn]

    def matches(self, document: PointDocument) -> bool:
        """Whether a point matches the rule; False if the point lacks a value that the rule needs.

        Raises InputError where the rule cannot be evaluated for another reason.
        """
        values = {name: column.value(document) for name, column in self.columns.items()}
        try:
            return bool(self.expression.evaluate(values))
        except ValueError as error:
            if any(value is None for value in values.values()):
                return False
            raise InputError(f"--where: {error}") from None


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by, the smallest value first unless ``is_descending``."""

    column: PointColumn
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class PointSelection:
    """Which points, and in which order.

    ``where``: None: all points. ``sort``: empty: in stored order, or the best first where ``top``
    limits their number. ``top``: None: as many as there are.
    """

    where: Rule | None = None
    sort: Sequence[SortKey] = ()
    top: int | None = None

    @property
    def is_everything(self) -> bool:
        return self.where is None and not self.sort and self.top is None

    def select(self, documents: Iterable[PointDocument]) -> list[PointDocument]:
        """The points that match, in order. Raises InputError if a rule cannot be evaluated."""
        selected = list(documents)
        if self.where is not None:
            selected = [each for each in selected if self.where.matches(each)]
        sort = self.sort
        if self.top is not None and not sort:
            sort = _best_first(selected)
        for key in reversed(sort):
            selected = _sorted(selected, key)
        return selected[: self.top]


@dataclass(frozen=True, slots=True)
class PointQuery:
    """What the options ask for. ``named``: the columns of ``--columns``; empty: the usual ones."""

    selection: PointSelection
    named: Sequence[PointColumn] = ()

    @property
    def columns(self) -> list[ShownColumn]:
        return [_shown(column) for column in self.named]

    @property
    def sort_columns(self) -> list[ShownColumn]:
        return [_shown(key.column) for key in self.selection.sort]

    def objects(self, rows: Iterable[PointDocument | CapacityDocument]) -> Iterator[JsonObject]:
        """The named columns of each point, as JSON values; capacities have none of them."""
        for row in rows:
            if isinstance(row, PointDocument):
                yield {column.name: in_json(column.value(row)) for column in self.named}


def parse_query(
    where: str | None,
    sort: str | None,
    top: int | None,
    columns: str | None,
    slo_names: Iterable[str] = (),
) -> PointQuery:
    """Reads the options of ``results``. ``slo_names``: the SLOs by which the points are judged.

    Raises InputError for a name that is no column, with the nearest one, and for a rule that is no
    expression.
    """
    known_columns = KnownColumns({column.name: column for column in named_slo_columns(slo_names)})
    keys = [_sort_key(text, known_columns) for text in _names(sort, "--sort")]
    named = [_column(name, known_columns, "--columns") for name in _names(columns, "--columns")]
    rule = None if where is None else _parse_rule(where, known_columns)
    return PointQuery(PointSelection(rule, keys, top), named)


def _parse_rule(text: str, known_columns: KnownColumns) -> Rule:
    try:
        expression = parse_expression(
            text, known_columns, any_dots=True, unknown=_HINT, meant=_MEANT
        )
    except ValueError as error:
        raise InputError(f"--where: {error}") from None
    columns = {name: _column(name, known_columns, "--where") for name in expression.names}
    return Rule(expression, columns)


def _names(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"{option} {text!r}: write names with commas between them")
    return names


def _sort_key(text: str, known_columns: KnownColumns) -> SortKey:
    """``-ttft_ms.p99`` and ``ttft_ms.p99:desc`` are the same."""
    name, _, order = text.removeprefix("-").partition(":")
    if order not in ("", "asc", "desc"):
        raise InputError(f"--sort {text!r}: the order is :asc or :desc")
    is_descending = order == "desc" or text.startswith("-")
    return SortKey(_column(name, known_columns, "--sort"), is_descending)


def _column(name: str, known_columns: KnownColumns, option: str) -> PointColumn:
    column = known_columns.named(name)
    if column is None:
        guess = did_you_mean(name, known_columns)
        if name in _MEANT:
            guess = f"did you mean {_MEANT[name]!r}?"
        of_value = name.removesuffix(_VALUE)
        if of_value != name and known_columns.named(of_value) is not None:
            guess = f"did you mean {of_value!r}?"
        raise InputError(f"{option}: unknown column {name!r}; {guess or _HINT}")
    return column


def _best_first(documents: Sequence[PointDocument]) -> list[SortKey]:
    for name in _BEST_FIRST:
        column = column_named(name)
        if column and any(column.value(document) is not None for document in documents):
            return [SortKey(column, is_descending=True)]
    return []


def _sorted(documents: Sequence[PointDocument], key: SortKey) -> list[PointDocument]:
    """Sorts points by a column; points without a value come last, whatever the order."""
    with_value = []
    without_value = []
    for document in documents:
        value = key.column.value(document)
        if value is None:
            without_value.append(document)
        else:
            with_value.append((_place_of(value), document))
    with_value.sort(key=lambda pair: pair[0], reverse=key.is_descending)
    return [document for _, document in with_value] + without_value


class _PlaceOfValue(NamedTuple):
    """The place of a value among mixed ones: numbers come before text."""

    is_text: bool
    number: float
    text: str


def _place_of(value: object) -> _PlaceOfValue:
    if isinstance(value, bool | int | float):
        return _PlaceOfValue(is_text=False, number=float(value), text="")
    return _PlaceOfValue(is_text=True, number=0.0, text=str(value))


def _shown(column: PointColumn) -> ShownColumn:
    return ShownColumn(Column(_title(column.name), name=column.name), column.value)


def _title(name: str) -> str:
    """The name in lines, broken after dots and underscores, and without ``settings.``."""
    lines = [""]
    for part in name.removeprefix(SETTINGS).replace(".", ".\n").replace("_", "_\n").split("\n"):
        if lines[-1] and len(lines[-1] + part) > _WIDEST_TITLE:
            lines.append(part)
        else:
            lines[-1] += part
    return "\n".join(lines)
