"""Results for notebooks: ``import orchestrator``, then ``orchestrator.metrics("results/")``.

Frames are pandas frames, or Polars frames with ``library="polars"``. Every setting of a deployment
is a column ``settings.<name>`` (docs/experiment-file.md). It holds the default where the file gave
none; None: the engine decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
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

__all__ = ["best", "metrics", "read", "requests"]

Library = Literal["pandas", "polars"]
Frame = Any  # pandas.DataFrame or polars.DataFrame
_FIELDS = EngineSettings.model_fields.items()
_KINDS: tuple[type, ...] = (bool, int, float, str)  # a bool is an int too
_JSON_KINDS = {"boolean": bool, "integer": int, "number": float, "string": str}
_TYPES: dict[type, tuple[str | None, str]] = {  # pandas', Polars'
    bool: ("boolean", "Boolean"),
    int: ("Int64", "Int64"),
    float: ("float64", "Float64"),
    str: ("object", "String"),
}
_DEFAULTS = {
    name: one.default
    for name, one in _FIELDS
    if not one.is_required() and one.default_factory is None
}

# of ``best``, where nothing is ranked
NOTHING_TO_RANK = "no experiment there names limits, or has anything that could be ranked"
_DISTRIBUTION = tuple(one.name for one in fields(Distribution))
BEST_COLUMNS = (
    *("experiment", "workload", "model", "hardware", "content", "slo", "slo_name", "per", "unit"),
    *("certain", "why", "decide", "emulated", "deployment", "deployment_id", "point_id"),
    *("control", "level", "value", "interval", "starts", "attainment", "attainment_interval"),
    *("censored", "capacity.claim", "capacity.low", "capacity.high", "capacity.status"),
    *("engine", "devices", "usd_per_hour"),
    *(f"settings.{name}" for name, one in _FIELDS if one.default_factory is None),
    *(f"requests.{one.name}" for one in fields(RequestTotals)),
    *("request_throughput", "output_token_throughput"),
    *(
        f"{latency}.{figure}"
        for latency in ("ttft_ms", "tpot_ms", "e2e_ms", "itl_ms")
        for figure in _DISTRIBUTION
    ),
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
        types = {
            pa.int16(): "Int16",
            pa.int32(): "Int32",
            pa.int64(): "Int64",
            pa.bool_(): "boolean",
        }
        kinds = {kind: frames.api.types.pandas_dtype(name) for kind, name in types.items()}
        frame = rows.to_pandas(types_mapper=kinds.get)
    if "settings_json" not in rows.column_names:
        return frame
    settings = _frame(
        ({"settings": json.loads(text)} for text in rows["settings_json"].to_pylist()), library
    )
    if library == "polars":
        return frames.concat([frame, settings], how="horizontal")
    return frames.concat([frame, settings], axis=1)


def metrics(
    uri: str, *, slo: str | None = None, experiment: str | None = None, library: Library = "pandas"
) -> Frame:
    """One row per current point, with the figures of ``orchestrator results`` (docs/metrics.md has
    their units).

    Nested values are dotted columns: ``ttft_ms.p99``, ``settings.max_num_seqs``, ``slo.goodput``.
    ``slo``: limits, or the name of an SLO of the file. Without it all SLOs of the file are columns
    (``slos.interactive.goodput``), and ``slo.…`` is the first of them. Raises InputError.
    """
    shown = with_limits(slo, experiments(open_results(uri), experiment))
    rows = []
    for judged in shown:
        bends = judged.experiment.knees(judged.points)
        for point in judged.points.current:
            fields = point_json(point_document(point, judged.slos, knees=bends))
            rows.append({name: value for name, value in fields.items() if name != "repeats"})
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
    found = answers(limits(slo, experiments(open_results(uri), experiment, prices)), per)
    answer = answer_document(found)
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


def requests(uri: str, *, experiment: str | None = None) -> Iterator[pa.Table]:
    """The requests of every measurement that counts, one Arrow table each (columns:
    docs/data-format.md).
    """
    for one in experiments(open_results(uri), experiment):
        for attempt in one.store.winners().values():
            if manifest := one.store.manifest(*attempt.ids):
                yield one.store.read_manifests("requests", [manifest], leave_out=True)


def _frame(documents: Iterable[JsonObject], library: Library, columns: Sequence[str] = ()) -> Frame:
    """``columns``: those that an empty frame has; one with rows has those of its rows."""
    rows = [flat(_with_defaults(one)) for one in documents]
    names = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(columns)
    return _imported(library).DataFrame(
        {name: _column(name, [row.get(name) for row in rows], library) for name in names}
    )


def _column(name: str, values: Sequence[object], library: Library) -> Any:
    """A column of one type, also where values are None: numbers and booleans stay such, mixed
    values become text.
    """
    if name == "level":
        values = [math.inf if one == INFINITE else one for one in values]
    found = {
        next((kind for kind in _KINDS if isinstance(one, kind)), object)
        for one in values
        if one is not None
    }
    found |= _setting_kinds().get(name, set())
    if found == {int, float}:
        found = {float}
    elif len(found) > 1:
        found, values = {str}, [None if one is None else str(one) for one in values]
    in_pandas, in_polars = _TYPES.get(next(iter(found), object), (None, ""))
    frames = _imported(library)
    if library == "polars":
        return frames.Series(name, values, dtype=getattr(frames, in_polars, None), strict=False)
    return frames.Series(values, dtype=in_pandas)


@cache
def _setting_kinds() -> dict[str, set[type]]:
    """The types that each setting's column may hold, also where no deployment gives it."""
    # recursive (roles hold settings): hence $defs
    schema = EngineSettings.model_json_schema(mode="serialization")
    described = schema["$defs"][EngineSettings.__name__]["properties"]
    said = {name: one.get("anyOf", [one]) for name, one in described.items()}
    return {
        f"settings.{name}": {
            _JSON_KINDS[one["type"]] for one in some if one.get("type") in _JSON_KINDS
        }
        for name, some in said.items()
    }


def _with_defaults(document: JsonObject) -> JsonObject:
    given = document.get("settings")  # empty where the deployment's row was never stored
    return (
        {**document, "settings": _DEFAULTS | given}
        if isinstance(given, dict) and given
        else document
    )


def _imported(library: Library) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        text = f"these frames need {library}: pip install 'llm-serving-orchestrator[{library}]'"
        raise InputError(text) from error
