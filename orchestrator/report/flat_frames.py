"""The frames that came before ``orchestrator.points``; they are kept for one release.

Every setting of a deployment is a column ``settings.<name>`` (docs/reference/experiment-file.md).
It has the default where the file gave no value; None: the engine decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from orchestrator.report.arrow_frames import Frame, library_of_frames
from orchestrator.report.as_json import point_json
from orchestrator.report.documents.point import point_document
from orchestrator.report.formats import JsonObject, flat
from orchestrator.report.selection import experiments, with_limits
from orchestrator.results.root import open_results
from orchestrator.results.stored_json import parsed_settings
from orchestrator.spec.load import INFINITE
from orchestrator.spec.settings import EngineSettings

Library = Literal["pandas", "polars"]


@dataclass(frozen=True, slots=True)
class _LibraryTypes:
    """What each library calls a column's type; None: the library infers it."""

    pandas: str | None
    polars: str | None


_KINDS: tuple[type, ...] = (bool, int, float, str)  # in this order: a bool is an int too
_JSON_KINDS: dict[str, type] = {"boolean": bool, "integer": int, "number": float, "string": str}
_TYPES: dict[type, _LibraryTypes] = {
    bool: _LibraryTypes("boolean", "Boolean"),
    int: _LibraryTypes("Int64", "Int64"),
    float: _LibraryTypes("float64", "Float64"),
    str: _LibraryTypes("object", "String"),
}
_SETTINGS = EngineSettings.model_fields
_DEFAULTS = {
    name: field.default
    for name, field in _SETTINGS.items()
    if not field.is_required() and field.default_factory is None
}


def read(
    uri: str,
    table: str,
    columns: Sequence[str] | None = None,
    *,
    include_failed: bool = False,
    library: Library = "pandas",
) -> Frame:
    """One stored table of all experiments at ``uri``; ``Store.read`` says which rows count.

    It stays for one release. Use ``launches``, ``series`` and ``requests``, or read the Parquet
    files (docs/reference/stored-columns.md). Beside ``settings_json`` there is a column for each
    setting. In pandas, integers that may be null are Int32 or Int64, not floats. Raises InputError
    for an unknown or missing library, and where nothing is stored at ``uri``.
    """
    import pyarrow as pa

    frames = library_of_frames(library)
    rows = open_results(uri).read(table, columns, include_failed=include_failed)
    if library == "polars":
        frame = frames.from_arrow(rows)
    else:
        nullable_types = {
            pa.int16(): "Int16",
            pa.int32(): "Int32",
            pa.int64(): "Int64",
            pa.bool_(): "boolean",
        }
        pandas_dtype = frames.api.types.pandas_dtype
        dtypes = {arrow: pandas_dtype(name) for arrow, name in nullable_types.items()}
        frame = rows.to_pandas(types_mapper=dtypes.get)
    if "settings_json" not in rows.column_names:
        return frame
    settings = [{"settings": parsed_settings(text)} for text in rows["settings_json"].to_pylist()]
    settings_frame = _frame(settings, library)
    if library == "polars":
        return frames.concat([frame, settings_frame], how="horizontal")
    return frames.concat([frame, settings_frame], axis=1)


def metrics(
    uri: str, *, slo: str | None = None, experiment: str | None = None, library: Library = "pandas"
) -> Frame:
    """One row per current point, with the figures of ``orchestrator results``.

    It stays for one release. Use ``points``, which has fewer columns, and intervals as numbers.
    docs/reference/metrics.md has the units of the figures. Nested values are dotted columns:
    ``ttft_ms.p99``, ``settings.max_num_seqs``, ``slo.goodput``. ``slo``: limits, or the name of an
    SLO of the file; None: all SLOs of the file are columns (``slos.interactive.goodput``), and
    ``slo.…`` is the first of them. Raises InputError for an unknown SLO, experiment or library, and
    where nothing is stored at ``uri``.
    """
    rows = []
    for judged in with_limits(slo, experiments(open_results(uri), experiment)):
        knees = judged.experiment.knees(judged.points)
        for point in judged.points.current:
            columns = dict(point_json(point_document(point, judged.slos, knees=knees)))
            del columns["repeats"], columns["parts"]  # ``repeats`` and ``parts`` are frames
            rows.append(columns)
    return _frame(rows, library)


def _frame(objects: Iterable[JsonObject], library: Library) -> Frame:
    rows = [flat(_with_defaults(each)) for each in objects]
    names: dict[str, None] = {}  # in the order in which they first come
    for row in rows:
        names.update(dict.fromkeys(row))
    frame = {}
    for name in names:
        values = [row.get(name) for row in rows]
        frame[name] = _column(name, values, library)
    return library_of_frames(library).DataFrame(frame)


def _column(name: str, values: Sequence[object], library: Library) -> Any:
    """A column of one type, even where values are None.

    Numbers and booleans keep their type; values of mixed types become text.
    """
    if name == "level":
        values = [math.inf if value == INFINITE else value for value in values]
    kinds = {_kind(value) for value in values if value is not None}
    kinds |= _setting_kinds().get(name, set())
    if kinds == {int, float}:
        kinds = {float}
    elif len(kinds) > 1:
        kinds = {str}
        values = [None if value is None else str(value) for value in values]
    kind = next(iter(kinds), object)
    column_type = _TYPES.get(kind, _LibraryTypes(None, None))
    frames = library_of_frames(library)
    if library == "polars":
        dtype = None if column_type.polars is None else getattr(frames, column_type.polars)
        return frames.Series(name, values, dtype=dtype, strict=False)
    return frames.Series(values, dtype=column_type.pandas)


def _kind(value: object) -> type:
    for kind in _KINDS:
        if isinstance(value, kind):
            return kind
    return object


@cache
def _setting_kinds() -> dict[str, set[type]]:
    """The types that each setting's column may have, even where no deployment sets it."""
    # the schema is recursive (roles hold settings), so its properties stand in $defs
    schema = EngineSettings.model_json_schema(mode="serialization")
    properties = schema["$defs"][EngineSettings.__name__]["properties"]
    kinds: dict[str, set[type]] = {}
    for name, described in properties.items():
        alternatives = described.get("anyOf", [described])
        json_types = [alternative.get("type") for alternative in alternatives]
        kinds[f"settings.{name}"] = {
            _JSON_KINDS[json_type] for json_type in json_types if json_type in _JSON_KINDS
        }
    return kinds


def _with_defaults(columns: JsonObject) -> JsonObject:
    settings = columns.get("settings")
    if not isinstance(settings, dict) or not settings:
        return columns  # the deployment's row was never stored
    return {**columns, "settings": _DEFAULTS | settings}
