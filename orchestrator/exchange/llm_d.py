"""The llm-d benchmark report, version 0.2.1: one file per point.

Its schema lies in ``llm_d_schema/`` (llm-d/llm-d-benchmark, Apache-2.0). A report holds one load
level; those of one experiment share ``run.eid``. It has no place for limits, intervals, verdicts and
parts of a mix: ours stand in ``scenario.load.native.config``, and the verdict in ``run.keywords``
too. Latencies count from sending, as in reports of llm-d's own tools.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator import __version__
from orchestrator.analysis.attempt_summary import read_attempt
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.launches import launches_of
from orchestrator.analysis.points import Attained, StoredPoint
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.throughput import output_tokens_by
from orchestrator.base.arrays import Floats
from orchestrator.exchange.exported import ExportedFile, ExportItem, LeftOutPoint
from orchestrator.plan.current import Question, StoredExperiment
from orchestrator.results.ids import digest
from orchestrator.results.records import Distribution, Figures
from orchestrator.results.store import Store
from orchestrator.results.stored_json import parsed_load, parsed_workload
from orchestrator.spec.load import in_json

VERSION = "0.2.1"
MOST_STEPS = 120  # of a time series
_ROLES = ("prefill", "decode")  # the report has the same names; any other replica is "replica"


@dataclass(frozen=True, slots=True)
class _Resource:
    """A column of readings, and its place in a report.

    ``series``, ``aggregate``: its names there. ``factor``: from our unit to ``units``.
    """

    column: str
    series: str
    aggregate: str
    units: str
    factor: float = 1.0


_OF_ENGINES = (
    _Resource("kv_usage", "kv_cache_usage", "kv_cache_usage", "fraction"),
    _Resource("running", "num_requests_running", "running_requests", "count"),
    _Resource("waiting", "num_requests_waiting", "waiting_requests", "count"),
)
_OF_GPUS = (
    _Resource("power_w", "power_consumption", "power_consumption", "Watts"),
    _Resource("busy_share", "gpu_utilization", "gpu_utilization", "percent", 100.0),
    _Resource("used_bytes", "gpu_memory_usage", "gpu_memory_usage", "GiB", 1 / 2**30),
)
_OF_HOSTS = (
    _Resource("cpu_share", "cpu_utilization", "cpu_utilization", "percent", 100.0),
    _Resource("engine_rss_bytes", "cpu_memory_usage", "cpu_memory_usage", "GiB", 1 / 2**30),
)
_COUNTERS = {
    "preemptions_total": "num_preemptions",
    "prefix_query_tokens_total": "prefix_cache_queries",
    "prefix_hit_tokens_total": "prefix_cache_hits",
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generation_tokens",
}


class LlmD:
    """Writes the reports of an experiment."""

    title = f"llm-d benchmark report {VERSION}"

    def files(self, experiment: StoredExperiment) -> Iterator[ExportItem]:
        """A report for each point that has a repeat to its end, whatever its verdict."""
        points = experiment.points(*experiment.slos).current
        questions = experiment.asked_of(points)
        versions = _engine_versions(experiment.store, points)
        for point in points:
            if not point.used_repeats:
                yield LeftOutPoint(point, "it failed")
                continue
            question = questions.get(point.head.point_id)
            version = versions.get(point.used_repeats[0].head.launch_id)
            report = _report(experiment, point, question, version)
            yield ExportedFile(f"{point.head.experiment}-{point.head.point_id}.json", report, 1)


FORMAT = LlmD()


def _engine_versions(store: Store, points: Sequence[StoredPoint]) -> dict[str, str]:
    """The version that the engine reported at each launch, by launch id."""
    launches = launches_of(
        store, [point.used_repeats[0].head for point in points if point.used_repeats]
    )
    return {
        launch_id: launch.engine_version
        for launch_id, launch in launches.items()
        if launch.engine_version is not None
    }


def _report(
    experiment: StoredExperiment,
    point: StoredPoint,
    question: Question | None,
    version: str | None,
) -> dict[str, object]:
    """The report of a point. ``version``: the one that the engine reported; None: not known."""
    return {
        "version": VERSION,
        "run": _run(point),
        "scenario": {"stack": _stack(point, version), "load": _load(experiment, point, question)},
        "results": {
            "request_performance": {
                "aggregate": _aggregate(point.figures),
                "time_series": _series_of_requests(experiment.store, point),
            },
            "observability": {"components": _observed(experiment.store, point)},
        },
    }


def _run(point: StoredPoint) -> dict[str, object]:
    """When a point was measured, and what to know of it. It ends with the window of its last
    repeat.
    """
    head = point.head
    heads = [repeat.head for repeat in point.used_repeats]
    first = min(heads, key=lambda head: head.started_unix_ns)
    last = max(heads, key=lambda head: head.started_unix_ns)
    end_ns = last.started_unix_ns + last.window_end_ns
    keywords = [f"validity={point.validity}", f"workload={head.workload}"]
    origins = {"emulated": point.emulated, "simulated": point.simulated}
    keywords += [name for name, applies in origins.items() if applies]
    if point.source is not None:
        keywords.append(f"source={point.source}")
    return {
        "uid": head.point_id,
        "eid": digest({"experiment": head.experiment}),
        "time": {
            "start": _instant(first.started_unix_ns),
            "end": _instant(end_ns),
            "duration": f"PT{(end_ns - first.started_unix_ns) / 1e9:.3f}S",
        },
        "description": f"{head.workload} of {head.experiment}: {point.deployment.label}",
        "keywords": keywords,
    }


def _instant(unix_ns: float) -> str:
    """ISO 8601 in UTC, with microseconds."""
    instant = datetime.fromtimestamp(unix_ns / 1e9, UTC)
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _stack(point: StoredPoint, version: str | None) -> list[dict[str, object]]:
    """One component for each role; a single one where replicas have no roles."""
    settings = point.deployment.settings
    roles = settings.get("roles")
    if isinstance(roles, Mapping) and roles:
        return [_stack_component(point, role, part, version) for role, part in roles.items()]
    return [_stack_component(point, None, settings, version)]


def _stack_component(
    point: StoredPoint, role: str | None, settings: Mapping[str, object], version: str | None
) -> dict[str, object]:
    deployment = point.deployment
    label = deployment.label if role is None else f"{deployment.label} {role}"
    metadata = {"label": label, "cfg_id": deployment.deployment_id}
    known_version = version or deployment.engine_version or "unknown"
    native = {"config": dict(settings)}
    if not deployment.launched or not deployment.engine:
        # nobody here started it: what runs behind the address is not known
        standardized: dict[str, object] = {
            "kind": "generic",
            "tool": deployment.engine or "unknown",
            "tool_version": known_version,
            "model": {"name": deployment.model},
        }
        return {"metadata": metadata, "standardized": standardized, "native": native}
    tensor = _number(settings, "tensor_parallel_size")
    pipeline = _number(settings, "pipeline_parallel_size")
    data = _number(settings, "data_parallel_size")
    replicas = _number(settings, "replicas")
    has_experts = settings.get("enable_expert_parallel") is True
    return {
        "metadata": metadata,
        "standardized": {
            "kind": "inference_engine",
            "tool": deployment.engine,
            "tool_version": known_version,
            "role": role if role in _ROLES else "replica",
            "replicas": replicas,
            "model": {"name": deployment.model},
            "accelerator": {
                "model": deployment.accelerator,
                "count": tensor * pipeline * data * replicas,
                "parallelism": {
                    "tp": tensor,
                    "pp": pipeline,
                    "dp": data,
                    "ep": tensor * data if has_experts else 1,
                },
            },
        },
        "native": native,
    }


def _number(settings: Mapping[str, object], name: str) -> int:
    """A setting that is 1 unless it is given."""
    value = settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 1


def _load(
    experiment: StoredExperiment, point: StoredPoint, question: Question | None
) -> dict[str, object]:
    """The load: in the report's own keys, and as ``native`` all that has no key there."""
    head = point.head
    workload = parsed_workload(question.workload_json) if question is not None else {}
    load_rules = parsed_load(question.load_json) if question is not None else {}
    described = {"workload": workload, "load": load_rules, "level": in_json(head.level)}
    native: dict[str, object] = {
        "workload": workload,
        "load": load_rules,
        "arrivals": head.arrivals,
        "validity": point.validity,
        "validity_reasons": point.reasons,
        "repeats": len(point.used_repeats),
        "starts": len(set(point.starts)),
        # of the first SLO alone, under which ``point.tests`` are
        "limits": [slo.model_dump(mode="json") for slo in experiment.slos[:1]],
        "attainment": [_test(test) for test in point.tests],
        "parts": [
            {"part": of_part.part, "aggregate": _aggregate(of_part.figures)}
            for of_part in point.part_figures
        ],
        "output_token_throughput": _interval(point.output_token_throughput()),
        "definitions": "latencies count from sending; figures are those of the steady window",
    }
    return {
        "metadata": {"cfg_id": digest(described), "description": head.workload},
        "standardized": _standard_load(point, workload),
        "native": {"config": native},
    }


def _standard_load(point: StoredPoint, workload: Mapping[str, object]) -> dict[str, object]:
    """What the report has keys for: the load generator, the lengths and the level."""
    head = point.head
    figures = point.figures
    clients = sum(repeat.head.clients for repeat in point.used_repeats) // len(point.used_repeats)
    load: dict[str, object] = {
        **_tool(point.source),
        "parallelism": max(clients, 1),
        "source": _source(point, workload),
        "input_seq_len": _length(figures.input_tokens),
    }
    if figures.output_tokens is not None:
        load["output_seq_len"] = _length(figures.output_tokens)
    if head.control == "concurrency":
        load["concurrency"] = int(head.level)
    elif math.isfinite(head.level):
        load["rate_qps"] = head.level
    return load


def _test(test: Attained) -> dict[str, object]:
    return {
        "name": test.name,
        "part": test.part,
        "target": test.target,
        "share": _interval(test.share),
    }


def _tool(source: str | None) -> dict[str, str]:
    """The load generator and its version, from ``GuideLLM 0.8.1`` or ``vllm bench serve``."""
    if source is None:
        return {"tool": "llm-serving-orchestrator", "tool_version": __version__}
    name, _, version = source.rpartition(" ")
    if not version[:1].isdigit():
        return {"tool": source, "tool_version": "unknown"}
    return {"tool": name, "tool_version": version}


def _source(point: StoredPoint, workload: Mapping[str, object]) -> str:
    """Where prompts come from. What other tools asked is not known."""
    if point.source is not None:
        return "unknown"
    kind = workload.get("kind", "random")
    return "random" if kind == "random" else "sampled"


def _length(tokens: Distribution | None) -> dict[str, object]:
    """The lengths as they were; 0 where no request has one."""
    if tokens is None:
        return {"distribution": "other", "value": 0}
    if tokens.min == tokens.max:
        return {"distribution": "fixed", "value": tokens.mean}
    length: dict[str, object] = {"distribution": "other", "value": tokens.mean}
    if not math.isnan(tokens.std):
        length["std_dev"] = tokens.std
    # the schema takes whole numbers alone for both bounds, and no maximum below 1
    if not math.isnan(tokens.min):
        length["min"] = int(tokens.min)
    if not math.isnan(tokens.max):
        length["max"] = max(int(tokens.max), 1)
    return length


def _interval(interval: Interval | None) -> dict[str, object] | None:
    if interval is None:
        return None
    return {
        "estimate": in_json(interval.estimate),
        "lower": in_json(interval.lower),
        "upper": in_json(interval.upper),
    }


def _aggregate(figures: Figures) -> dict[str, object]:
    requests = figures.requests
    latency = {
        "time_to_first_token": _statistics(figures.ttft_from_sent_ms, "s", 1e-3),
        "time_per_output_token": _statistics(figures.tpot_ms, "s/token", 1e-3),
        "inter_token_latency": _statistics(figures.itl_ms, "s/token", 1e-3),
        "request_latency": _statistics(figures.e2e_from_sent_ms, "s", 1e-3),
    }
    rates = {
        "input_token_rate": _rate(figures.input_token_throughput, "tokens/s"),
        "output_token_rate": _rate(figures.output_token_throughput, "tokens/s"),
        "total_token_rate": _rate(figures.total_token_throughput, "tokens/s"),
        "request_rate": _rate(figures.request_throughput, "queries/s"),
    }
    return {
        "requests": {
            "total": requests.scheduled,
            "failures": requests.failed,
            "input_length": _statistics(figures.input_tokens, "count"),
            "output_length": _statistics(figures.output_tokens, "count"),
        },
        "latency": latency,
        "throughput": rates,
    }


def _statistics(
    values: Distribution | None, units: str, factor: float = 1.0
) -> dict[str, object] | None:
    """A distribution as the report has it; what is not known is left out."""
    if values is None or math.isnan(values.mean):
        return None
    statistics: dict[str, object] = {"units": units, "mean": factor * values.mean}
    names = {"stddev": "std", "min": "min", "max": "max"}
    names |= {name: name for name in ("p50", "p90", "p95", "p99")}
    for name, field in names.items():
        value = getattr(values, field)
        if not math.isnan(value):
            statistics[name] = factor * value
    return statistics


def _rate(value: float | None, units: str) -> dict[str, object] | None:
    return None if value is None or math.isnan(value) else {"units": units, "mean": value}


def _series_of_requests(store: Store, point: StoredPoint) -> dict[str, object] | None:
    """Throughput and TTFT of the first repeat over time, in at most MOST_STEPS steps of a second or
    longer.
    """
    head = point.used_repeats[0].head
    manifest = store.manifest(*head.ids)
    attempt = read_attempt(store, manifest) if manifest is not None else None
    if attempt is None or not attempt.requests.num_rows:
        return None
    window = head.window
    steps = max(1, min(MOST_STEPS, math.ceil(window.length_s)))
    edges = np.linspace(window.start_ns, window.end_ns, steps + 1)
    tokens_before = np.zeros(steps + 1)  # each edge, since the load began
    first_ns: list[Floats] = []
    ttft_s: list[Floats] = []
    done_ns: list[Floats] = []
    for columns in request_arrays(attempt.requests, attempt.token_events):
        tokens_before += output_tokens_by(columns, edges.tolist())
        answered = columns.ok & ~np.isnan(columns.first_ns)
        first_ns.append(columns.first_ns[answered])
        ttft_s.append(_ttft_s(columns)[answered])
        done_ns.append(columns.finished_ns[columns.ok])
    instants = [_instant(head.started_unix_ns + edge) for edge in edges[:-1].tolist()]
    step_s = (window.end_ns - window.start_ns) / steps / 1e9
    ended, _ = np.histogram(np.concatenate(done_ns), edges)
    throughput = {
        "output_token_rate": _series("tokens/s", instants, np.diff(tokens_before) / step_s),
        "request_rate": _series("queries/s", instants, ended / step_s),
    }
    ttft = _series_of_latencies(instants, edges, np.concatenate(first_ns), np.concatenate(ttft_s))
    return {"throughput": throughput, "latency": {"time_to_first_token": ttft}}


def _ttft_s(columns: RequestArrays) -> Floats:
    return np.asarray((columns.first_ns - columns.sent_ns) / 1e9, np.float64)


def _series(units: str, instants: Sequence[str], values: Floats) -> dict[str, object]:
    points = [
        {"ts": instant, "value": value}
        for instant, value in zip(instants, values.tolist(), strict=True)
    ]
    return {"units": units, "series": points}


def _series_of_latencies(
    instants: Sequence[str], edges: Floats, at_ns: Floats, seconds: Floats
) -> dict[str, object]:
    """Mean and percentiles of the latencies in each step; steps without any are left out."""
    step_of = np.searchsorted(edges, at_ns, side="right") - 1
    points: list[dict[str, object]] = []
    for step, instant in enumerate(instants):
        values = seconds[(step_of == step) & ~np.isnan(seconds)]
        if values.size:
            p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
            mean = float(values.mean())
            points.append({"ts": instant, "mean": mean, "p50": p50, "p90": p90, "p99": p99})
    return {"units": "s", "series": points}


def _observed(store: Store, point: StoredPoint) -> list[dict[str, object]]:
    """What was read beside the load of the first repeat, one component per replica, GPU and host.

    Empty where nothing was. GPUs and hosts stand under the label of the whole deployment.
    """
    manifest = store.manifest(*point.used_repeats[0].head.ids)
    if manifest is None:
        return []
    engines = store.read_manifests("engine_metrics", [manifest]).sort_by("unix_ns")
    gpus = store.read_manifests("telemetry", [manifest]).sort_by("unix_ns")
    hosts = store.read_manifests("hosts", [manifest]).sort_by("unix_ns")
    label = point.deployment.label
    components: list[dict[str, object]] = []
    for replica, readings in _by_value(engines, "replica"):
        role = readings["role"][0].as_py()
        of_role = label if role is None else f"{label} {role}"
        counters = _counters_in(readings)
        components.append(
            _observed_component(readings, _OF_ENGINES, of_role, str(replica), counters)
        )
    for gpu, readings in _by_value(gpus, "gpu_uuid"):
        components.append(_observed_component(readings, _OF_GPUS, label, str(gpu)))
    if not point.deployment.launched:
        return components  # the host that was read is that of the clients
    for host, readings in _by_value(hosts, "host"):
        components.append(_observed_component(readings, _OF_HOSTS, label, str(host)))
    return components


def _by_value(rows: pa.Table, column: str) -> Iterator[tuple[object, pa.Table]]:
    """Each value of a column, and the rows that have it."""
    for value in sorted(set(rows[column].to_pylist())):
        yield value, rows.filter(pc.equal(rows[column], value))


def _observed_component(
    readings: pa.Table,
    resources: Sequence[_Resource],
    label: str,
    name: str,
    counters: Mapping[str, object] = MappingProxyType({}),
) -> dict[str, object]:
    """A replica, GPU or host with its readings. ``counters``: more series, without aggregates."""
    return {
        "component_label": label,
        "replica_id": name,
        "aggregate": _aggregates_in(readings, resources),
        "time_series": {**_series_in(readings, resources), **counters},
    }


def _aggregates_in(readings: pa.Table, resources: Sequence[_Resource]) -> dict[str, object]:
    aggregate: dict[str, object] = {}
    for resource in resources:
        values = np.asarray(readings[resource.column].drop_null().to_pylist(), np.float64)
        values *= resource.factor
        if values.size:
            p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
            aggregate[resource.aggregate] = {
                "units": resource.units,
                "mean": float(values.mean()),
                "min": float(values.min()),
                "max": float(values.max()),
                "p50": p50,
                "p90": p90,
                "p99": p99,
            }
    return aggregate


def _series_in(readings: pa.Table, resources: Sequence[_Resource]) -> dict[str, object]:
    series: dict[str, object] = {}
    for resource in resources:
        points = _readings_of(readings, resource.column, resource.factor)
        if points:
            series[resource.series] = {"units": resource.units, "series": points}
    return series


def _counters_in(readings: pa.Table) -> dict[str, object]:
    """The counters of an engine, as they stood at each reading."""
    series: dict[str, object] = {}
    for column, name in _COUNTERS.items():
        points = _readings_of(readings, column, 1.0)
        if points:
            series[name] = {"units": "count", "series": points}
    return series


def _readings_of(readings: pa.Table, column: str, factor: float) -> list[dict[str, object]]:
    """The values that are there, at the instants of the driver's clock where the offset is known."""
    instants = readings["unix_ns"].to_pylist()
    offsets: list[int | None] = [None] * len(instants)
    if "clock_offset_ns" in readings.column_names:
        offsets = readings["clock_offset_ns"].to_pylist()
    points: list[dict[str, object]] = []
    for instant, offset, value in zip(instants, offsets, readings[column].to_pylist(), strict=True):
        if value is not None:
            points.append({"ts": _instant(instant - (offset or 0)), "value": factor * value})
    return points
