"""Results for notebooks: ``import orchestrator``, then ``orchestrator.metrics("results/")``.

Frames are pandas frames, or Polars frames with ``library="polars"``. Every setting of a deployment
is a column ``settings.<name>`` (docs/experiment-file.md). It holds the default where the file gave
none; None: the engine decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.base.errors import InputError
from orchestrator.report.as_json import comparison_fields, point_json, ranked_json
from orchestrator.report.documents.answer import answer_document
from orchestrator.report.documents.point import point_document
from orchestrator.report.formats import JsonObject, flat
from orchestrator.report.selection import answers, experiments, limits, with_limits
from orchestrator.results.records import Distribution, RequestTotals
from orchestrator.results.root import open_results
from orchestrator.spec.load import INFINITE, Per
from orchestrator.spec.settings import EngineSettings

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["best", "frontier", "metrics", "read", "requests"]

Library = Literal["pandas", "polars"]
Frame = Any  # pandas.DataFrame or polars.DataFrame


@dataclass(frozen=True, slots=True)
class _ColumnType:
    """The names of a column's type; None: the library infers it."""

    pandas: str | None
    polars: str | None


_KINDS: tuple[type, ...] = (bool, int, float, str)  # in this order: a bool is an int too
_JSON_KINDS: dict[str, type] = {"boolean": bool, "integer": int, "number": float, "string": str}
_TYPES: dict[type, _ColumnType] = {
    bool: _ColumnType("boolean", "Boolean"),
    int: _ColumnType("Int64", "Int64"),
    float: _ColumnType("float64", "Float64"),
    str: _ColumnType("object", "String"),
}
_SETTINGS = EngineSettings.model_fields
_DEFAULTS = {
    name: field.default
    for name, field in _SETTINGS.items()
    if not field.is_required() and field.default_factory is None
}

# of ``best``, where nothing is ranked
NOTHING_TO_RANK = "no experiment there names limits, or has anything that could be ranked"


def _distribution_columns(latency: str) -> list[str]:
    return [f"{latency}.{field.name}" for field in fields(Distribution)]


BEST_COLUMNS = (
    *("experiment", "workload", "model", "hardware", "content", "slo", "slo_name", "per", "unit"),
    *("certain", "why", "decide", "emulated", "deployment", "deployment_id", "point_id"),
    *("control", "level", "value", "interval", "starts", "attainment", "attainment_interval"),
    *("censored", "capacity.claim", "capacity.low", "capacity.high", "capacity.status"),
    *("engine", "devices", "usd_per_hour"),
    *(f"settings.{name}" for name, field in _SETTINGS.items() if field.default_factory is None),
    *(f"requests.{field.name}" for field in fields(RequestTotals)),
    *("request_throughput", "output_token_throughput"),
    *_distribution_columns("ttft_ms"),
    *_distribution_columns("tpot_ms"),
    *_distribution_columns("e2e_ms"),
    *_distribution_columns("itl_ms"),
    *("agreement", "agreement_n", "agreement_unit", "agreement_reference", "agreement_note"),
    *("repeats", "notes"),
)


def read(
    uri: str,
    table: str,
    columns: Sequence[str] | None = None,
    *,
    include_failed: bool = False,
    library: Library = "pandas",
) -> Frame:
    """One table of all experiments at ``uri``; ``Store.read`` says which rows count.

    Beside ``settings_json`` there is a column for each setting. In pandas, integers that may be
    null are Int32 or Int64, not floats. Raises InputError.
    """
    import pyarrow as pa

    frames = _imported(library)
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
    settings = [{"settings": json.loads(text)} for text in rows["settings_json"].to_pylist()]
    settings_frame = _frame(settings, library)
    if library == "polars":
        return frames.concat([frame, settings_frame], how="horizontal")
    return frames.concat([frame, settings_frame], axis=1)


def metrics(
    uri: str, *, slo: str | None = None, experiment: str | None = None, library: Library = "pandas"
) -> Frame:
    """One row per current point, with the figures of ``orchestrator results`` (docs/metrics.md has
    their units).

    Nested values are dotted columns: ``ttft_ms.p99``, ``settings.max_num_seqs``, ``slo.goodput``.
    ``slo``: limits, or the name of an SLO of the file. Without it all SLOs of the file are columns
    (``slos.interactive.goodput``), and ``slo.…`` is the first of them. Raises InputError.
    """
    rows = []
    for judged in with_limits(slo, experiments(open_results(uri), experiment)):
        knees = judged.experiment.knees(judged.points)
        for point in judged.points.current:
            columns = dict(point_json(point_document(point, judged.slos, knees=knees)))
            del columns["repeats"]
            rows.append(columns)
    return _frame(rows, library)


def best(
    uri: str,
    slo: str | None = None,
    *,
    per: Per | None = None,
    prices: Mapping[str, float] | None = None,
    experiment: str | None = None,
    library: Library = "pandas",
) -> Frame:
    """One row per deployment that meets the limits, the best of each comparison first, as
    ``orchestrator best`` ranks.

    ``per`` None: per GPU, or per deployment where one has no known GPUs. ``prices``: USD per GPU
    hour by hardware; they replace the file's. An empty frame has the columns too. A pandas frame's
    ``attrs["why"]`` says how certain each ranking is, or why there is none. Raises InputError.
    """
    stored = experiments(open_results(uri), experiment, prices)
    answer = answer_document(answers(limits(slo, stored), per).comparisons)
    rows = [
        {**comparison_fields(document), **ranked_json(ranked)}
        for document in answer.comparisons
        for ranked in document.ranking
    ]
    frame = _frame(rows, library, BEST_COLUMNS)
    if library == "pandas":
        reasons = [
            f"{document.comparison.workload} of {document.comparison.experiment}:"
            f" {document.verdict}"
            for document in answer.comparisons
        ]
        frame.attrs["why"] = "; ".join(reasons) or NOTHING_TO_RANK
    return frame


def frontier(points: Frame) -> Frame:
    """The valid rows of ``metrics`` that no other beats: in tokens/s that a user sees (median) and
    in tokens/s per device. Equal rows all stay.

    Adds ``per_user`` and ``per_device``. Points of different workloads or models should not be
    compared: filter them first.
    """
    import numpy as np

    from orchestrator.analysis.frontier import on_frontier

    def numbers(name: str) -> Any:
        return np.asarray(points[name].to_numpy(), np.float64)

    devices = numbers("devices")
    columns = {
        "per_user": numbers("decode_throughput.p50"),
        "per_device": numbers("output_token_throughput") / np.where(devices > 0, devices, np.nan),
    }
    is_valid = points["validity"].to_numpy() == "valid"
    per_user = np.where(is_valid, columns["per_user"], np.nan)
    stays = on_frontier(per_user, columns["per_device"])
    if hasattr(points, "with_columns"):  # Polars
        return points.with_columns(**columns).filter(stays)
    return points.assign(**columns)[stays]


def requests(uri: str, *, experiment: str | None = None) -> Iterator[pa.Table]:
    """The requests of every measurement that counts, one Arrow table each (columns:
    docs/data-format.md).
    """
    for stored in experiments(open_results(uri), experiment):
        store = stored.store
        for attempt in store.winners().values():
            manifest = store.manifest(*attempt.ids)
            if manifest is not None:
                yield store.read_manifests("requests", [manifest], leave_out=True)


def _frame(objects: Iterable[JsonObject], library: Library, columns: Sequence[str] = ()) -> Frame:
    """``columns``: those that an empty frame has; one with rows has those of its rows."""
    rows = [flat(_with_defaults(each)) for each in objects]
    names: dict[str, None] = {}  # in the order in which they first come
    for row in rows:
        names.update(dict.fromkeys(row))
    frame = {}
    for name in names or columns:
        values = [row.get(name) for row in rows]
        frame[name] = _column(name, values, library)
    return _imported(library).DataFrame(frame)


def _column(name: str, values: Sequence[object], library: Library) -> Any:
    """A column of one type, also where values are None: numbers and booleans stay such, mixed
    values become text.
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
    column_type = _TYPES.get(kind, _ColumnType(None, None))
    frames = _imported(library)
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
    """The types that each setting's column may hold, also where no deployment gives it."""
    # recursive (roles hold settings): hence $defs
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


def _imported(library: Library) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        text = f"these frames need {library}: pip install 'llm-serving-orchestrator[{library}]'"
        raise InputError(text) from error
