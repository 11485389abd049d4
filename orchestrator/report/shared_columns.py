"""Columns that rows of several kinds share: those of a deployment, of figures and of limits.

docs/reference/metrics.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.slo import format_slo
from orchestrator.report.column import SETTINGS, ReportColumn, RowT, bounds_of, field_of
from orchestrator.report.documents.point import SloResult
from orchestrator.results.records import Distribution, Figures
from orchestrator.spec.settings import EngineSettings

STATISTICS = tuple(field.name for field in fields(Distribution))
_LATENCIES = {
    "ttft_ms": "time to first token, from when a request was due",
    "tpot_ms": "time per output token after the first",
    "itl_ms": "time between two tokens",
    "e2e_ms": "time of a whole request, from when it was due",
    "ttfo_ms": "time to first token of the answer, after reasoning",
    "ttft_from_sent_ms": "time to first token, from when a request was sent",
    "e2e_from_sent_ms": "time of a whole request, from when it was sent",
    "normalized_ttft_ms": "time to first token per prompt token",
}
_OTHER_DISTRIBUTIONS = {
    "prefill_throughput": ("tokens/s", "prompt tokens of a request over its time to first token"),
    "decode_throughput": ("tokens/s", "output tokens that a user sees, after the first"),
    "input_tokens": ("tokens", "input tokens of a request"),
    "output_tokens": ("tokens", "output tokens of a request"),
}
_REQUESTS = {
    "scheduled": "requests that were due in the steady window",
    "ok": "requests that were answered",
    "failed": "requests that failed",
}
_THROUGHPUTS = {
    "output_token_throughput": ("tokens/s", "output tokens"),
    "request_throughput": ("requests/s", "answers"),
    "requests_per_minute": ("requests/min", "answers"),
    "input_token_throughput": ("tokens/s", "input tokens"),
    "total_token_throughput": ("tokens/s", "input and output tokens"),
}
_JSON_KINDS: dict[str, type] = {"boolean": bool, "integer": int, "number": float, "string": str}


def deployment_columns(
    deployment_of: Callable[[RowT], StoredDeployment | None],
) -> Iterator[ReportColumn[RowT]]:
    """The columns of a deployment, without its label; None where its row was never stored."""

    def stored(row: RowT) -> StoredDeployment | None:
        deployment = deployment_of(row)
        return deployment if deployment is not None and deployment.engine else None

    def of(name: str) -> Callable[[RowT], object]:
        return field_of(stored, name)

    yield ReportColumn("engine", "", "name of the engine", of("engine"), str)
    yield ReportColumn("model", "", "model or checkpoint", of("model"), str)
    yield ReportColumn("hardware", "", "name of the hardware", of("hardware"), str)
    yield ReportColumn("devices", "", "GPUs or cores of all replicas", of("devices"), int)
    yield ReportColumn("usd_per_hour", "USD/h", "price of all replicas", of("usd_per_hour"))


def setting_columns(
    deployment_of: Callable[[RowT], StoredDeployment],
) -> Iterator[ReportColumn[RowT]]:
    """The columns of engine settings: the default where the file gave none; None: the engine's."""
    kinds = _setting_kinds()
    for name, field in EngineSettings.model_fields.items():
        has_default = not field.is_required() and field.default_factory is None
        yield ReportColumn(
            name=f"{SETTINGS}{name}",
            unit="",
            description=f"setting {name} of the engine",
            value=_setting(deployment_of, name, field.default if has_default else None),
            kind=kinds[name],
        )


def _setting(
    deployment_of: Callable[[RowT], StoredDeployment], name: str, default: object
) -> Callable[[RowT], object]:
    def value(row: RowT) -> object:
        settings = deployment_of(row).settings
        return settings.get(name, default) if settings else None

    return value


@cache
def _setting_kinds() -> dict[str, type]:
    """The kind of each setting's column, by its schema."""
    # the schema is recursive (roles hold settings), so its properties stand in $defs
    schema = EngineSettings.model_json_schema(mode="serialization")
    properties = schema["$defs"][EngineSettings.__name__]["properties"]
    kinds = {}
    for name, described in properties.items():
        alternatives = described.get("anyOf", [described])
        kinds[name] = _kind_of_schema(alternatives)
    return kinds


def _kind_of_schema(alternatives: Sequence[Mapping[str, str]]) -> type:
    json_types = {each.get("type", "object") for each in alternatives} - {"null"}
    if "object" in json_types:
        return Mapping
    if json_types == {"integer", "number"}:
        return float
    if len(json_types) > 1:
        return object
    return _JSON_KINDS.get(json_types.pop(), object)


def figure_columns(figures_of: Callable[[RowT], Figures]) -> Iterator[ReportColumn[RowT]]:
    """All figures, and ``per_user``."""

    def of(name: str) -> Callable[[RowT], object]:
        return field_of(figures_of, name)

    requests = of("requests")
    for name, description in _REQUESTS.items():
        yield ReportColumn(f"requests.{name}", "", description, field_of(requests, name), int)
    yield ReportColumn("errors", "", "failed requests by class", of("errors"), Mapping)
    yield ReportColumn("window_s", "s", "length of the steady window", of("window_s"))
    for name, (unit, description) in _THROUGHPUTS.items():
        yield ReportColumn(name, unit, description, of(name))
    description = "how tokens were assigned to the window"
    yield ReportColumn("throughput_basis", "", description, of("throughput_basis"), str)
    per_user = field_of(of("decode_throughput"), "p50")
    yield ReportColumn("per_user", "tokens/s", "tokens that a user sees, the median", per_user)
    for name, description in _LATENCIES.items():
        yield from _distribution(name, "ms", description, of(name))
    for name, (unit, description) in _OTHER_DISTRIBUTIONS.items():
        yield from _distribution(name, unit, description, of(name))
    description = "whether gaps are those of tokens or of chunks"
    yield ReportColumn("itl_kind", "", description, of("itl_kind"), str)
    description = "context of a token that is decoded, the mean"
    yield ReportColumn("decode_context", "tokens", description, of("decode_context"))


def _distribution(
    name: str, unit: str, description: str, value: Callable[[RowT], object]
) -> Iterator[ReportColumn[RowT]]:
    for statistic in STATISTICS:
        yield ReportColumn(
            name=f"{name}.{statistic}",
            unit=unit,
            description=f"{description}: {statistic}",
            value=field_of(value, statistic),
        )


def limit_columns(
    result_of: Callable[[RowT], SloResult | None], prefix: str = ""
) -> Iterator[ReportColumn[RowT]]:
    """The columns about one SLO. ``prefix``: stands before their names."""

    def attainment(row: RowT) -> Interval | None:
        result = result_of(row)
        return result.attainment if result else None

    def limits(row: RowT) -> str | None:
        result = result_of(row)
        return format_slo(result.slo) if result else None

    def slo_name(row: RowT) -> str | None:
        result = result_of(row)
        return result.slo.name if result else None

    share = field_of(attainment, "estimate")
    is_met = field_of(result_of, "is_met")
    goodput = field_of(result_of, "goodput")
    by_limit = field_of(result_of, "share_by_limit")
    name = f"{prefix}attainment"
    yield ReportColumn(f"{prefix}slo", "", "the limits", limits, str)
    yield ReportColumn(f"{prefix}slo_name", "", "their name in the file", slo_name, str)
    yield ReportColumn(name, "", "share of requests that met the limits", share)
    yield from bounds_of(name, "", attainment)
    yield ReportColumn(f"{prefix}met", "", "whether the limits hold", is_met, bool)
    description = "requests that met the limits"
    yield ReportColumn(f"{prefix}goodput", "requests/s", description, goodput)
    description = "share of requests that met each limit alone"
    yield ReportColumn(f"{prefix}by_limit", "", description, by_limit, Mapping)
