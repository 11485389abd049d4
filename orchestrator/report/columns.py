"""The columns of a point: what ``--where``, ``--sort`` and ``--columns`` of ``orchestrator results``
name. Names are those of its JSON, nested ones with dots; docs/metrics.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from orchestrator.analysis.intervals import Interval
from orchestrator.report.documents.point import PointDocument
from orchestrator.results.records import Distribution
from orchestrator.spec.settings import EngineSettings

SETTINGS = "settings."  # before the name of a setting; it may be left out
STATISTICS = ("mean", "std", "min", "max", "p50", "p90", "p95", "p99")
USUAL_STATISTICS = ("p50", "p99")
Value = Callable[[PointDocument], Any]

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


@dataclass(frozen=True, slots=True)
class PointColumn:
    """A named value of a point; ``value`` returns None where the point has none.

    ``unit`` is empty for names, numbers of things, and shares from 0 to 1. ``is_usual``: one of
    those that are looked at first.
    """

    name: str
    unit: str
    description: str
    value: Value
    is_usual: bool = True


@cache
def point_columns() -> dict[str, PointColumn]:
    """All columns by name; those of settings come last."""
    columns = [
        *_identity(),
        *_verdict(),
        *_throughput(),
        *_latencies(),
        *_limits(),
        *_comparisons(),
        *_settings(),
    ]
    return {column.name: column for column in columns}


def column_names() -> list[str]:
    """All names that ``column_named`` finds."""
    columns = point_columns()
    settings = [name.removeprefix(SETTINGS) for name in columns if name.startswith(SETTINGS)]
    return list(dict.fromkeys([*columns, *settings]))


def column_named(name: str) -> PointColumn | None:
    """A setting is found without ``settings.`` too; None: there is no such column."""
    columns = point_columns()
    return columns.get(name) or columns.get(f"{SETTINGS}{name}")


def _identity() -> Iterator[PointColumn]:
    yield PointColumn("experiment", "", "name of the experiment", _of_head("experiment"))
    yield PointColumn("workload", "", "name of the workload", _of_head("workload"))
    yield PointColumn("deployment", "", "label of the deployment", _of_deployment("label"))
    yield PointColumn("deployment_id", "", "its id", _of_head("deployment_id"), is_usual=False)
    yield PointColumn("point_id", "", "id of the point", _of_head("point_id"), is_usual=False)
    yield PointColumn("engine", "", "engine", _of_deployment("engine"))
    yield PointColumn("model", "", "model or checkpoint", _of_deployment("model"))
    yield PointColumn("hardware", "", "name of the hardware", _of_deployment("hardware"))
    yield PointColumn("devices", "", "GPUs or cores of the deployment", _of_deployment("devices"))
    yield PointColumn("usd_per_hour", "USD/h", "its price", _of_deployment("usd_per_hour"))
    yield PointColumn("control", "", "request_rate or concurrency", _of_head("control"))
    yield PointColumn("level", "", "load: requests/s, or requests in flight", _of_head("level"))
    yield PointColumn("arrivals", "", "when requests are due", _of_head("arrivals"), is_usual=False)
    yield PointColumn("knee", "", "whether the curve bends there", _is_knee)


def _of_head(name: str) -> Value:
    def value(document: PointDocument) -> Any:
        return getattr(document.point.head, name)

    return value


def _of_deployment(name: str) -> Value:
    def value(document: PointDocument) -> Any:
        return getattr(document.point.deployment, name)

    return value


def _is_knee(document: PointDocument) -> bool:
    return document.is_knee


def _verdict() -> Iterator[PointColumn]:
    yield PointColumn("status", "", "ok, or failed", _status)
    yield PointColumn("validity", "", "how honestly it was measured", _validity)
    yield PointColumn("emulated", "", "whether an emulator answered", _emulated)
    yield PointColumn("current", "", "whether the plan asks for it", _is_current, is_usual=False)
    yield PointColumn("starts", "", "engine starts that it was measured on", _starts)
    yield PointColumn("repeats", "", "repeats that its figures come from", _repeats)
    for name in ("scheduled", "ok", "failed"):
        yield PointColumn(f"requests.{name}", "", f"requests: {name}", _requests(name))


def _status(document: PointDocument) -> str:
    return "ok" if document.point.used else "failed"


def _validity(document: PointDocument) -> str:
    return document.point.validity


def _emulated(document: PointDocument) -> bool:
    return document.point.emulated


def _is_current(document: PointDocument) -> bool:
    return document.is_current


def _starts(document: PointDocument) -> int:
    return len(set(document.point.starts))


def _repeats(document: PointDocument) -> int:
    return len(document.point.used)


def _requests(name: str) -> Value:
    def value(document: PointDocument) -> Any:
        return getattr(document.point.figures.requests, name)

    return value


def _throughput() -> Iterator[PointColumn]:
    tokens, unit = "output_token_throughput", "tokens/s"
    yield PointColumn(tokens, unit, "output tokens", _figure(tokens))
    yield from _bounds(tokens, unit, _tokens_interval)
    yield PointColumn("per_device", unit, "output tokens per GPU or core", _per_device)
    yield from _bounds("per_device", unit, _per_device_interval)
    per_user = _statistic("decode_throughput", "p50")
    yield PointColumn("per_user", unit, "tokens that a user sees, the median", per_user)
    yield PointColumn("request_throughput", "requests/s", "answers", _figure("request_throughput"))
    for name in ("input_token_throughput", "total_token_throughput"):
        kind = name.split("_")[0]
        yield PointColumn(name, unit, f"{kind} tokens", _figure(name), is_usual=False)


def _figure(name: str) -> Value:
    def value(document: PointDocument) -> Any:
        return getattr(document.point.figures, name)

    return value


def _bounds(
    name: str, unit: str, interval: Callable[[PointDocument], Interval | None]
) -> Iterator[PointColumn]:
    """Both ends of the 95 % interval of a value."""

    def lower(document: PointDocument) -> float | None:
        found = interval(document)
        return found.lower if found else None

    def upper(document: PointDocument) -> float | None:
        found = interval(document)
        return found.upper if found else None

    yield PointColumn(f"{name}.lower", unit, f"lower end of the interval of {name}", lower)
    yield PointColumn(f"{name}.upper", unit, f"upper end of the interval of {name}", upper)


def _tokens_interval(document: PointDocument) -> Interval | None:
    return document.point.output_token_throughput()


def _per_device(document: PointDocument) -> float | None:
    interval = _per_device_interval(document)
    return interval.estimate if interval else None


def _per_device_interval(document: PointDocument) -> Interval | None:
    interval = document.point.output_token_throughput()
    devices = document.point.deployment.devices
    return interval.scaled(1 / devices) if interval is not None and devices else None


def _statistic(figure_name: str, statistic: str) -> Value:
    def value(document: PointDocument) -> Any:
        values: Distribution | None = getattr(document.point.figures, figure_name)
        return None if values is None else getattr(values, statistic)

    return value


def _latencies() -> Iterator[PointColumn]:
    for name, description in _LATENCIES.items():
        is_main = name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
        for statistic in STATISTICS:
            yield PointColumn(
                name=f"{name}.{statistic}",
                unit="ms",
                description=f"{description}: {statistic}",
                value=_statistic(name, statistic),
                is_usual=is_main and statistic in USUAL_STATISTICS,
            )
    for name in ("input_tokens", "output_tokens"):
        description = f"{name.replace('_', ' ')} of a request"
        mean = _statistic(name, "mean")
        yield PointColumn(f"{name}.mean", "tokens", f"{description}: mean", mean, is_usual=False)


def _limits() -> Iterator[PointColumn]:
    """Under the first SLO."""
    yield PointColumn("attainment", "", "share of requests that met the limits", _attainment)
    yield from _bounds("attainment", "", _attainment_interval)
    yield PointColumn("met", "", "whether the limits hold", _is_met)
    yield PointColumn("goodput", "requests/s", "requests that met the limits", _goodput)


def _attainment_interval(document: PointDocument) -> Interval | None:
    results = document.slo_results
    return results[0].attainment if results else None


def _attainment(document: PointDocument) -> float | None:
    interval = _attainment_interval(document)
    return interval.estimate if interval else None


def _is_met(document: PointDocument) -> bool | None:
    results = document.slo_results
    return results[0].is_met if results else None


def _goodput(document: PointDocument) -> float | None:
    results = document.slo_results
    return results[0].goodput if results else None


def _comparisons() -> Iterator[PointColumn]:
    yield PointColumn("agreement", "", "share of tokens equal to the reference's", _agreement)
    for name in ("output_throughput", "ttft_ms", "tpot_ms"):
        yield PointColumn(
            name=f"measured_over_predicted.{name}",
            unit="",
            description=f"measured {name} over what was predicted",
            value=_over_predicted(name),
            is_usual=False,
        )


def _agreement(document: PointDocument) -> float | None:
    return document.point.agreement.share


def _over_predicted(name: str) -> Value:
    def value(document: PointDocument) -> Any:
        return None if document.prediction is None else document.prediction.ratio[name]

    return value


def _settings() -> Iterator[PointColumn]:
    """The default where the file gave none; None: the engine decides."""
    for name, field in EngineSettings.model_fields.items():
        has_default = not field.is_required() and field.default_factory is None
        default = field.default if has_default else None
        description = f"setting {name} of the engine"
        yield PointColumn(
            f"{SETTINGS}{name}", "", description, _setting(name, default), is_usual=False
        )


def _setting(name: str, default: Any) -> Value:
    def value(document: PointDocument) -> Any:
        settings = document.point.deployment.settings
        return settings.get(name, default) if settings else None

    return value
