"""Turns documents into JSON values. Names and order of fields are a promise to other programs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.analysis.slo import format_slo
from orchestrator.capacity.answers import HeldIfSlower
from orchestrator.capacity.best import Shortlisted
from orchestrator.capacity.claim import claim_document
from orchestrator.capacity.doubts import Doubt
from orchestrator.capacity.first_change import FirstChange, LongerProbes, WiderPrecision
from orchestrator.report.agreement import agreement_fields
from orchestrator.report.documents.answer import (
    AnswerDocument,
    ComparisonDocument,
    ExcludedDocument,
    RankedDocument,
)
from orchestrator.report.documents.capacity import CapacityBounds, CapacityDocument
from orchestrator.report.documents.launch import LaunchDocument
from orchestrator.report.documents.level import LevelDocument
from orchestrator.report.documents.part import (
    PartDocument,
    part_documents,
    parts_of_figures,
    results_of_part,
)
from orchestrator.report.documents.point import (
    PointDocument,
    RepeatDocument,
    SloResult,
    per_device,
    point_document,
)
from orchestrator.report.documents.prediction import FIGURES, PredictionComparison
from orchestrator.report.documents.run import ExperimentRuns, RunDocument
from orchestrator.report.documents.search import ProbeDocument, SearchDocument
from orchestrator.report.efficiency_columns import efficiency_fields, efficiency_names
from orchestrator.report.fact_columns import fact_fields
from orchestrator.report.formats import JsonObject, fields_of, metrics
from orchestrator.report.words import first_change_text, key_text, option_text
from orchestrator.results.records import Figures, PartFigures
from orchestrator.spec.load import Slo, in_json

_REPEAT_FIELDS = (
    "measurement_id",
    "attempt_id",
    "launch_id",
    "repeat",
    "start",
    "seed",
    "status",
    "reason",
    "failure_class",
    "failure_kind",
    "validity",
    "validity_reasons",
    "clients",
    "window_start_ns",
    "window_end_ns",
    "started_unix_ns",
)
_FIGURES_OF_RANKED = (
    "requests",
    "request_throughput",
    "output_token_throughput",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "itl_ms",
)
# fields of a point that its repeats do not have
_NOT_OF_A_REPEAT = (
    *("log_uri", "log_tail", "output_token_throughput.lower", "output_token_throughput.upper"),
    *("per_device", "per_device.lower", "per_device.upper"),
)
# fields of a point that lines of its parts have, too
_OF_A_PART = (
    *("experiment", "point_id", "deployment_id", "label", "deployment", "engine", "model"),
    *("hardware", "devices", "workload", "control", "level", "arrivals", "emulated", "simulated"),
    *("source", "current", "status", "validity", "settings"),
)
_LAUNCH_FIELDS = (
    "launch_id",
    "status",
    "reason",
    "failure_class",
    "failure_kind",
    "log_uri",
    "log_tail",
    "placed_s",
    "ready_s",
    "emulated",
    "simulated",
)


def row_json(document: PointDocument | CapacityDocument) -> JsonObject:
    """A row of ``orchestrator results``; its field ``row`` is ``point`` or ``capacity``."""
    if isinstance(document, PointDocument):
        return point_json(document)
    return capacity_json(document)


def csv_lines(documents: Iterable[PointDocument | CapacityDocument]) -> Iterator[JsonObject]:
    """One line per point, per part of a mix, per repeat (where a point has several) and per
    capacity.

    Column ``row`` says which of these a line is.
    """
    for document in documents:
        if isinstance(document, CapacityDocument):
            yield _without(capacity_json(document), "levels")
            continue
        of_point = point_json(document)
        shared = _without(_without(of_point, "repeats"), "parts")
        repeats = [_without(_repeat_json(document, repeat), "parts") for repeat in document.repeats]
        if len(repeats) == 1:
            yield {**repeats[0], **shared}
        else:
            yield shared
        for part in part_documents(document):
            yield {**{name: shared[name] for name in _OF_A_PART}, "row": "part", **part_json(part)}
        if len(repeats) == 1:
            continue
        of_repeat = {**shared, "row": "repeat", "merged": {}, **dict.fromkeys(_NOT_OF_A_REPEAT)}
        of_repeat |= {"peak": {}, **dict.fromkeys(efficiency_names())}
        for repeat in repeats:
            yield {**of_repeat, **repeat}


def _without(document: JsonObject, name: str) -> JsonObject:
    return {key: value for key, value in document.items() if key != name}


def point_json(document: PointDocument) -> JsonObject:
    """One point: deployment, load, status, validity, metrics over its repeats, and each repeat.

    ``slo`` is the result under the first of ``slos``. A value for which columns.py has another name
    than the nested field stands under that name too: ``deployment``, ``attainment``, ``per_user``.
    """
    point = document.point
    head = point.head
    deployment = point.deployment
    failed = document.failed
    described = deployment if deployment.engine else None  # its row was never stored
    throughput = point.output_token_throughput()
    of_device = per_device(throughput, deployment.devices)
    return {
        "row": "point",
        **fields_of(head, "experiment", "point_id", "deployment_id"),
        "label": deployment.label,
        "deployment": deployment.label,
        **fields_of(described, "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": deployment.settings,
        **fields_of(head, "workload", "control", "level", "arrivals"),
        **fact_fields(document),
        "knee": document.is_knee,
        "emulated": point.emulated,
        "simulated": point.simulated,
        "source": point.source,
        "model_error": _model_error_json(point.model_error),
        "current": document.is_current,
        "status": "ok" if point.used_repeats else "failed",
        **fields_of(failed[0] if failed else head, "reason", "failure_class", "failure_kind"),
        **fields_of(document.launch, "log_uri", "log_tail"),
        "validity": point.validity,
        "validity_reasons": point.reasons,
        "merged": {
            "of": len(point.repeats),
            "used": len(point.used_repeats),
            "failed": len(failed),
        },
        "starts": len(set(point.starts)),
        **metrics(point.figures),
        "output_token_throughput_interval": throughput,
        **_ends("output_token_throughput", throughput),
        "per_device": of_device.estimate if of_device else None,
        **_ends("per_device", of_device),
        "per_user": _per_user(point.figures),
        **efficiency_fields(document),
        **agreement_fields(point),
        **prediction_fields(document.prediction),
        **_slo_fields(document.slo_results),
        "parts": [part_json(part) for part in part_documents(document)],
        "repeats": [_repeat_json(document, repeat) for repeat in document.repeats],
    }


def part_json(part: PartDocument) -> JsonObject:
    """One part of a mix: its figures, and how the limits on it were held."""
    return {
        "part": part.part,
        **fields_of(part, "share_of_requests", "share_of_output_tokens"),
        **metrics(part.figures),
        "per_user": _per_user(part.figures),
        **asdict(part.facts),
        **_slo_fields(part.slo_results),
    }


def _model_error_json(error: ErrorFactors | None) -> JsonObject | None:
    """The factors within which 9 in 10 measurements lie; null for a measured point."""
    if error is None:
        return None
    return {"ttft": error.ttft, "others": error.tpot, "source": error.source}


def _repeat_json(point: PointDocument, document: RepeatDocument) -> JsonObject:
    repeat = document.repeat
    parts = parts_of_figures(point, repeat.part_figures, document.slo_results, [repeat])
    return {
        **fields_of(repeat.head, *_REPEAT_FIELDS),
        "attempts": repeat.attempts,
        **metrics(repeat.figures),
        "per_user": _per_user(repeat.figures),
        "engine_side": repeat.engine_side,
        **_slo_fields(document.slo_results),
        "parts": [part_json(part) for part in parts],
    }


def _ends(name: str, interval: Interval | None) -> JsonObject:
    """Both ends of an interval: ``attainment.lower``, ``attainment.upper``."""
    return {
        f"{name}.lower": interval.lower if interval else None,
        f"{name}.upper": interval.upper if interval else None,
    }


def _per_user(figures: Figures) -> float | None:
    """The median of the tokens per second that a user sees."""
    return figures.decode_throughput.p50 if figures.decode_throughput else None


def _slo_fields(results: Sequence[SloResult]) -> JsonObject:
    """The fields about SLOs; empty without SLOs.

    ``slos`` has the result under each SLO, ``slo`` that under the first. The figures of the first
    stand under the names of columns too.
    """
    by_name = {result.slo.name: slo_json(result) for result in results}
    if not by_name:
        return {}
    first = results[0]
    share = first.attainment
    return {
        "slo": by_name[first.slo.name],
        "slos": by_name,
        "slo_name": first.slo.name,
        "attainment": share.estimate if share else None,
        **_ends("attainment", share),
        "met": first.is_met,
        "goodput": first.goodput,
        "by_limit": first.share_by_limit,
    }


def slo_json(result: SloResult) -> JsonObject:
    """One result. ``attainment`` is the share of the first test, ``met`` whether all tests hold."""
    return {
        "text": format_slo(result.slo),
        "attainment": result.attainment,
        "met": result.is_met,
        "tests": [
            {
                "name": test.name,
                "target": test.target,
                "share": test.share,
                "met": test.share.estimate >= test.target,
            }
            for test in result.tests
        ],
        "by_limit": result.share_by_limit,
        "goodput": result.goodput,
    }


def prediction_fields(prediction: PredictionComparison | None) -> JsonObject:
    """The prediction, measured over predicted, and what is worse than the known error explains."""
    if prediction is None:
        return {
            "predicted": None,
            "measured_over_predicted": None,
            "worse_than_predicted": None,
        }
    return {
        "predicted": {name: prediction.predicted[name] for name in FIGURES},
        "measured_over_predicted": prediction.ratio,
        "worse_than_predicted": bool(prediction.worse),
    }


def capacity_json(document: CapacityDocument) -> JsonObject:
    """One capacity: the claim as in ``best``, the prediction, and what each level's probes show."""
    probe = document.probe
    return {
        "row": "capacity",
        **fields_of(probe.head, "experiment", "deployment_id", "workload"),
        "control": document.control,
        "label": probe.deployment.label,
        "deployment": probe.deployment.label,
        "emulated": probe.emulated,
        "simulated": probe.simulated,
        "slo": {"name": document.slo.name, "limits": format_slo(document.slo)},
        "slo_name": document.slo.name,
        **claim_document(document.claim),
        **_bounds_json("gpu", document.per_gpu),
        **_bounds_json("usd", document.per_usd),
        "predicted": None if document.predicted is None else asdict(document.predicted),
        "measured_over_predicted": document.measured_over_predicted,
        "worse_than_predicted": document.is_worse_than_predicted,
        "levels": [
            fields_of(level, "level", "probes", "verdict", "confirmed", "share", "requests")
            for level in document.claim.levels
        ],
    }


def _bounds_json(unit: str, bounds: CapacityBounds | None) -> JsonObject:
    """Bounds per unit; all null without them. ``high`` is null if it is infinite."""
    claim = None
    low = None
    high = None
    if bounds is not None:
        claim = bounds.claim
        low = bounds.low
        high = bounds.high if math.isfinite(bounds.high) else None
    return {f"claim_per_{unit}": claim, f"low_per_{unit}": low, f"high_per_{unit}": high}


def answer_json(document: AnswerDocument) -> JsonObject:
    """All comparisons: what was compared, how sure the answer is, and the ranking, best first."""
    return {"comparisons": [comparison_json(comparison) for comparison in document.comparisons]}


def comparison_json(document: ComparisonDocument) -> JsonObject:
    return {
        **comparison_fields(document),
        "ranking": [ranked_json(ranked, document.comparison.slo) for ranked in document.ranking],
        "left_out": [_excluded_json(excluded) for excluded in document.excluded],
    }


def comparison_fields(document: ComparisonDocument) -> JsonObject:
    """The fields that all deployments of a comparison share."""
    comparison = document.comparison
    return {
        **fields_of(comparison, "experiment", "workload"),
        "model": document.model,
        **fields_of(comparison, "hardware", "content"),
        "slo": format_slo(comparison.slo),
        "slo_name": comparison.slo.name,
        "per": comparison.per,
        "unit": document.unit,
        "certain": comparison.certain,
        "why": document.verdict,
        "decide": document.remedies,
        "changes": _changes_json(comparison.doubts),
        "emulated": comparison.emulated,
        "simulated": comparison.simulated,
        "source": comparison.source,
        **_shortlisted_json(comparison.shortlisted),
    }


def _changes_json(doubts: Iterable[Doubt]) -> list[JsonObject]:
    """What to change first, for each search that ended without an answer."""
    changes: list[JsonObject] = []
    for doubt in doubts:
        for deployment in doubt.claims:
            for searched in deployment.claims:
                if searched.change is None:
                    continue
                control = searched.control
                changes.append(
                    {
                        "deployment": deployment.label,
                        "control": control,
                        "status": searched.claim.status,
                        "change_first": first_change_text(control, searched.change, key_text),
                        "change": _change_json(searched.change),
                    }
                )
    return changes


def _shortlisted_json(shortlisted: Shortlisted | None) -> JsonObject:
    """How many deployments a shortlist took, and of how many; empty without a shortlist."""
    return {} if shortlisted is None else {"shortlisted": asdict(shortlisted)}


def _if_slower_json(held: HeldIfSlower | None) -> JsonObject | None:
    """What is left where a simulation is off by its known error; null: the level of the ranking."""
    if held is None:
        return None
    level = None if held.level is None else held.level.value
    return {"level": level, "value": held.throughput}


def ranked_json(document: RankedDocument, slo: Slo) -> JsonObject:
    """One deployment of a ranking under an SLO."""
    ranked = document.deployment
    point = ranked.point
    deployment = ranked.point.deployment
    rate = ranked.throughput
    share = ranked.attainment
    of_point = point_document(point, [slo])
    return {
        "deployment": deployment.label,
        **fields_of(point.head, "deployment_id", "point_id", "control", "level"),
        "offered_rate": point.offered_rate,
        "value": rate.estimate,
        "interval": [rate.lower, rate.upper],
        **_ends("value", rate),
        "starts": rate.starts,
        "attainment": share.estimate,
        "attainment_interval": [share.lower, share.upper],
        **_ends("attainment", share),
        "censored": ranked.lower_bound_only,
        "if_slower": _if_slower_json(ranked.if_slower),
        "estimated": ranked.is_estimate,
        # null where levels were listed: nothing was searched
        "capacity": None if ranked.capacity is None else claim_document(ranked.capacity),
        **fields_of(deployment, "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": deployment.settings,
        **fields_of(point.figures, *_FIGURES_OF_RANKED),
        "parts": [part_json(part) for part in part_documents(of_point)],
        **agreement_fields(point),
        **efficiency_fields(of_point),
        "repeats": len(point.used_repeats),
        "emulated": point.emulated,
        "simulated": point.simulated,
        "source": point.source,
        "notes": document.notes,
    }


def _excluded_json(document: ExcludedDocument) -> JsonObject:
    excluded = document.excluded
    head = excluded.level.head if excluded.level else None
    return {
        "deployment": excluded.deployment.label,
        **fields_of(excluded.deployment, "deployment_id"),
        **fields_of(head, "control", "level"),
        "reason": document.reason,
    }


def launch_json(document: LaunchDocument) -> JsonObject:
    """One launch, without its command line (which may hold secrets)."""
    row = document.row
    deployment = document.deployment
    return {
        **fields_of(row, "experiment", "deployment_id"),
        "label": document.label,
        "deployment": document.label,
        **fields_of(deployment, "engine", "model", "hardware"),
        "engine_version": {"asked": document.asked_version, "reported": row.engine_version},
        **fields_of(row, *_LAUNCH_FIELDS),
        "figures": document.figures,
        "reported": document.reported,
        "environment": document.environment,
    }


def level_json(document: LevelDocument) -> JsonObject:
    """One load level of ``orchestrator load``, as its ``--format json`` shows it."""
    source = document.source
    all_requests = document.all_requests
    limits = {} if document.slo_result is None else {"slo": slo_json(document.slo_result)}
    return {
        **fields_of(document, "url", "model", "api", "path"),
        "control": document.level.control,
        "level": in_json(document.level.value),
        **fields_of(document, "arrivals", "prompt_file"),
        **fields_of(document, "warmup_s", "window_start_s", "duration_s"),
        "seed": source.seed,
        **fields_of(document, "max_in_flight", "clients"),
        **metrics(document.figures),
        "output_token_throughput_interval": document.output_token_throughput,
        **fields_of(all_requests, "in_flight_mean", "token_count_sources"),
        **fields_of(all_requests, "cached_tokens", "error_texts"),
        "guidance": None if document.guidance is None else asdict(document.guidance),
        "requests_all_phases": all_requests.totals,
        "adapters": document.adapter_cost,
        **fields_of(document, "validity", "validity_reasons", "evidence", "clients_stats"),
        "parts": [_level_part_json(document, part) for part in document.parts],
        **limits,
        **fields_of(source, "repeat", "emulated", "cache_state", "notes", "results", "name"),
    }


def _level_part_json(document: LevelDocument, part: PartFigures) -> JsonObject:
    results = [] if document.slo_result is None else [document.slo_result]
    of_part = results_of_part(results, part.part)
    return {
        "part": part.part,
        **metrics(part.figures),
        **({} if part.facts is None else asdict(part.facts)),
        **({"slo": slo_json(of_part[0])} if of_part else {}),
    }


def search_json(document: SearchDocument) -> JsonObject:
    """What ``load --find-capacity`` found: the claim, its bounds, and every probe."""
    endpoint = document.endpoint
    return {
        **fields_of(endpoint, "url", "model", "clients", "emulated"),
        "control": document.control,
        "slo": format_slo(document.slo),
        **claim_document(document.claim),
        "passed": document.claim.passed,
        "change_first": _change_first_text(document.control, document.change, option_text),
        "change": _change_json(document.change),
        "seed": document.seed,
        "probes": [_probe_json(probe) for probe in document.probes],
        **fields_of(document, "inversion", "next", "notes"),
        **fields_of(endpoint, "results", "name"),
    }


def _change_first_text(
    control: str, change: FirstChange | None, setting_text: Callable[[str, str], str]
) -> str | None:
    return None if change is None else first_change_text(control, change, setting_text)


def _change_json(change: FirstChange | None) -> JsonObject | None:
    """The first thing to change, with its figures; ``setting`` says what it is."""
    if change is None:
        return None
    if isinstance(change, WiderPrecision):
        return {"setting": "precision", "precision": change.precision}
    if isinstance(change, LongerProbes):
        return {"setting": "duration", "duration_s": change.seconds, "level": change.level}
    return {
        "setting": "slo",
        "limit": change.limit.name,
        "limit_s": change.limit.seconds,
        "needed": change.needed,
        "met": change.met,
        "value_s": change.value_s if math.isfinite(change.value_s) else None,
        "level": change.level,
    }


def _probe_json(document: ProbeDocument) -> JsonObject:
    probe = document.probe
    return {
        **fields_of(probe.point, "level", "repeat", "seed", "ended_early"),
        **fields_of(probe.point, "validity", "validity_reasons"),
        **fields_of(probe.figures, "window_s", "requests"),
        "tests": document.tests,
    }


def runs_json(document: ExperimentRuns) -> JsonObject:
    """The runs of one experiment: the record of each, with its state."""
    return {
        **fields_of(document, "experiment", "simulated"),
        "runs": [_run_json(run) for run in document.runs],
    }


def _run_json(document: RunDocument) -> JsonObject:
    return {
        **asdict(document.record),
        "state": document.state,
        "heartbeat_age_s": document.age_s,
    }
