"""Rows of what engines said: one per reading, nulls for a replica that said nothing."""

from pathlib import Path

from orchestrator.results.store import Store
from orchestrator.runner.rows import write_engine_metrics
from orchestrator.telemetry.engine_metrics import Sample

KEYS = {"measurement_id": "m" * 16, "attempt_id": "a" * 26}


def test_a_silent_replica_beside_others_has_a_row_of_nulls(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    (part,) = write_engine_metrics(
        store, {0: [Sample(1, {"running": 3.0}), Sample(2, {"running": 4.0})], 1: []}, **KEYS
    )
    assert part.rows == 3


def test_when_no_replica_says_anything_there_is_no_part(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    assert write_engine_metrics(store, {0: [], 1: []}, **KEYS) == []
    assert write_engine_metrics(store, {}, **KEYS) == []
