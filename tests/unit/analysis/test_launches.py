"""What was predicted of a launch beside what its engine reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.launches import FIGURES, compared, load_launches
from orchestrator.analysis.prediction import PredictedStart
from orchestrator.engines.registry import ENGINES
from orchestrator.report.as_json import launch_json
from orchestrator.report.documents.launch import launch_documents
from orchestrator.report.formats import json_text
from orchestrator.results.store import Manifest, Store
from tests.unit.results.builders import deployment_row, table

PREDICTED = {
    "weight_bytes": 990,
    "kv_cache_tokens": 1050,
    "kv_cache_memory_bytes": 5,
    "max_concurrency": 2.0,
}
REPORTED = {"weight_bytes": 1000, "kv_cache_tokens": 1000, "kv_cache_bytes": 5, "proofs": "key"}
EMULATOR_LOG = """\
Model loading took 12.55 GiB
GPU KV cache size: 100,000 tokens
Maximum concurrency for 1,000 tokens per request: 100.00x
"""


def commit(store: Store, launch_id: str, deployment: dict[str, Any] | None, **launch: Any) -> None:
    """Commits a launch, and the row of its deployment unless that is None."""
    row = {
        "launch_id": launch_id, "deployment_id": "d0", "experiment": "exp", "status": "ok", "engine_version": "0.32.0",
        "engine_reported_json": json.dumps(REPORTED), "argv_json": '[["vllm", "--secret-flag"]]', "ready_s": 12.5,
        "placed_s": 0.5, "started_unix_ns": 1, "emulated": False, "simulated": False,
    } | launch  # fmt: skip
    rows = {"launches": [row], "deployments": [deployment] if deployment else []}
    keys = {"measurement_id": launch_id, "attempt_id": launch_id}
    files = [
        store.write_part(name, table(name, rows_of_table), writer="driver", **keys)
        for name, rows_of_table in rows.items()
    ]
    manifest = Manifest(
        kind="launch",
        status="failed" if row["status"] == "failed" else "ok",
        created_unix_ns=1,
        files=tuple(files),
        launch_id=launch_id,
        measurement_id=launch_id,
        attempt_id=launch_id,
    )
    store.commit(manifest)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def loaded(tmp_path: Path) -> list[Any]:
    launches = load_launches(Store.open(str(tmp_path), "exp"))
    return json.loads(json_text([launch_json(launch) for launch in launch_documents(launches)]))


def test_every_figure_stands_beside_what_was_reported(store: Store, tmp_path: Path) -> None:
    row = deployment_row(engine_version="0.32", predicted_json=json.dumps(PREDICTED))
    commit(store, "L0", row)
    (launch,) = loaded(tmp_path)
    assert launch["engine_version"] == {"asked": "0.32", "reported": "0.32.0"}
    assert (launch["label"], launch["ready_s"], launch["placed_s"]) == ("label-d0", 12.5, 0.5)
    figures = launch["figures"]
    assert figures["weight_bytes"] == {
        "predicted": 990,
        "reported": 1000,
        "difference_percent": pytest.approx(-1),
    }
    assert figures["kv_cache_tokens"]["difference_percent"] == pytest.approx(5)
    assert figures["kv_cache_bytes"] == {"predicted": 5, "reported": 5, "difference_percent": 0}
    assert figures["max_concurrency"] == {
        "predicted": 2.0,
        "reported": None,
        "difference_percent": None,
    }
    assert "secret-flag" not in json.dumps(launch)


def test_launches_are_sorted_by_label_and_time_whether_they_failed_or_lack_their_deployment(
    store: Store, tmp_path: Path
) -> None:
    commit(store, "L1", deployment_row(), started_unix_ns=9)
    failed = {
        "status": "failed",
        "reason": "It died.",
        "failure_class": "engine_crash",
        "engine_reported_json": None,
    }
    commit(store, "L2", None, started_unix_ns=3, **failed)  # of the same deployment
    commit(store, "L3", None, started_unix_ns=5, deployment_id="gone")
    launches = [
        (launch["launch_id"], launch["label"], launch["reason"]) for launch in loaded(tmp_path)
    ]
    assert launches == [
        ("L3", "gone", None),
        ("L2", "label-d0", "It died."),
        ("L1", "label-d0", None),
    ]


ANY_FIGURE = st.none() | st.integers(0, 10**15)
ANY_START = st.builds(
    PredictedStart,
    weight_bytes=ANY_FIGURE,
    kv_cache_memory_bytes=ANY_FIGURE,
    kv_cache_tokens=ANY_FIGURE,
    max_concurrency=ANY_FIGURE,
    max_model_len=ANY_FIGURE,
)
ANY_REPORT = st.dictionaries(st.sampled_from(FIGURES), st.integers(0, 10**15))


@given(start=ANY_START, reported=ANY_REPORT)
def test_any_figures_compare_and_what_is_missing_has_no_difference(
    start: PredictedStart, reported: dict[str, int]
) -> None:
    figures = compared(start, reported)
    assert tuple(figures) == FIGURES
    assert figures["kv_cache_bytes"].predicted == start.kv_cache_memory_bytes
    for name, figure in figures.items():
        prediction = figure.predicted
        report = reported.get(name)
        assert figure.reported == report
        if prediction is None or not report:
            assert figure.difference_percent is None
        else:
            assert report * (1 + figure.difference_percent / 100) == pytest.approx(
                prediction, rel=1e-9, abs=report * 1e-9
            )


def test_engines_report_by_the_names_that_are_compared() -> None:
    for engine in ("vllm", "emulator"):
        reported = ENGINES[engine].reported(EMULATOR_LOG)
        figures = compared(PredictedStart(), reported)
        values = {
            name: figure.reported for name, figure in figures.items() if figure.reported is not None
        }
        assert values["kv_cache_tokens"] == 100_000
        assert values["max_concurrency"] == 100.0
        assert values["weight_bytes"] == pytest.approx(12.55 * 2**30, abs=1)
