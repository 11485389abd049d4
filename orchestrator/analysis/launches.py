"""Starts of engines: what the plan had predicted of each beside what the engine then said of itself."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.results.root import Results

Row = dict[str, Any]
# figure: (its name in predicted_json, of plan/feasibility.py; its name in engine_reported_json, of Engine.reported)
FIGURES: dict[str, tuple[str, str]] = {
    "weight_bytes": ("weight_bytes", "weight_bytes"),  # on the fullest rank
    "kv_cache_bytes": ("kv_cache_memory_bytes", "kv_cache_bytes"),  # on each rank
    "kv_cache_tokens": ("kv_cache_tokens", "kv_cache_tokens"),
    "max_concurrency": ("max_concurrency", "max_concurrency"),  # sequences of max_model_len at once
    "max_model_len": ("max_model_len", "max_model_len"),
}
_LAUNCH = ("launch_id", "status", "reason", "failure_class", "placed_s", "ready_s", "emulated")


def load_launches(results: Results) -> list[Row]:
    """One object per launch, failed ones too, sorted by experiment, deployment and time; no command lines."""
    found = []
    for name in results.experiments:
        store = results.store(name)
        deployments = {row["deployment_id"]: row for row in store.read("deployments").to_pylist()}
        launches = sorted(store.read("launches").to_pylist(), key=lambda row: row["started_unix_ns"])
        found += [_object(launch, deployments.get(launch["deployment_id"], {})) for launch in launches]
    return sorted(found, key=lambda one: (one["experiment"], one["label"]))


def _object(launch: Row, deployment: Row) -> Row:
    predicted = json.loads(deployment.get("predicted_json") or "{}")
    reported = json.loads(launch["engine_reported_json"] or "{}")
    return {
        "experiment": launch["experiment"],
        "deployment_id": launch["deployment_id"],
        "label": deployment.get("label", launch["deployment_id"]),
        **{name: deployment.get(name) for name in ("engine", "model", "hardware")},
        "engine_version": {"asked": deployment.get("engine_version"), "reported": launch["engine_version"]},
        **{name: launch[name] for name in _LAUNCH},
        "figures": compared(predicted, reported),
    }


def compared(predicted: Row, reported: Row) -> dict[str, Row]:
    """Every figure as ``{predicted, reported, difference_percent}``; None where it was not predicted or not said.

    The difference is the prediction's, in per cent of what the engine reports: above 0 it promised too much.
    """
    return {name: _figure(predicted.get(ours), reported.get(theirs)) for name, (ours, theirs) in FIGURES.items()}


def _figure(predicted: float | None, reported: float | None) -> Row:
    known = predicted is not None and reported
    difference = (predicted - reported) / reported * 100 if known and reported and predicted is not None else None
    return {"predicted": predicted, "reported": reported, "difference_percent": difference}
