"""Starts of engines in a table, and their logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from orchestrator.analysis.launches import load_launches
from orchestrator.report.documents.launch import launch_documents
from orchestrator.report.launch_table import launches_text, log_text
from orchestrator.report.written_form import TextForm
from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import PREDICTED, commit
from tests.unit.results.builders import deployment_row

FAILED = {
    "status": "failed",
    "reason": "It died.",
    "failure_class": "engine_crash",
    "engine_reported_json": None,
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def shown(store: Store) -> str:
    form = TextForm("--format json", 300)
    text = "\n".join(launches_text(launch_documents(load_launches(store)), form))
    return click.unstyle(text)


def log_of(store: Store, deployment: str | None = None, lines: int = 50) -> list[str]:
    return [click.unstyle(line) for line in log_text(store, deployment, lines)]


def test_a_figure_stands_beside_what_was_reported_with_the_error(store: Store) -> None:
    commit(store, "L0", deployment_row(predicted_json=json.dumps(PREDICTED)))
    *_, row, _, _ = shown(store).splitlines()
    assert re.split(r" {2,}", row.strip()) == [
        *("label-d0", "0.32.0", "12.5"),
        *("990 B", "1000 B", "-1.0 %"),
        *("5 B", "5 B", "+0.0 %"),
        *("1,050", "1,000", "+5.0 %"),
        "2.0",
    ]


def test_what_is_never_predicted_has_a_column_where_an_engine_reported_it(store: Store) -> None:
    commit(store, "L0", deployment_row())
    assert "kernel" not in shown(store)
    quantized = {
        "checkpoint_bytes": 32_212_255,
        "quantization_kernel": "CPUInt8ScaledMMLinearKernel",
        "network": "Socket",
    }
    commit(store, "L1", deployment_row(), engine_reported_json=json.dumps(quantized))
    text = shown(store)
    assert "30.7 MiB" in text
    assert " CPUInt8ScaledMM " in text
    assert text.split("CPUInt8ScaledMM")[1].split()[0] == "TCP"


def test_the_version_that_was_asked_for_is_shown_where_another_one_ran(store: Store) -> None:
    commit(store, "L0", deployment_row(engine_version="0.32"))
    assert "asked" not in shown(store)
    commit(store, "L1", deployment_row("d1", engine_version="0.31"), deployment_id="d1")
    assert "(asked 0.31)" in shown(store)


def test_a_newer_version_than_is_known_says_which_one_is(store: Store) -> None:
    commit(store, "L0", deployment_row(), engine_reported_json='{"flags_known_as_of": "0.31"}')
    assert "(flags as of 0.31)" in shown(store)


def test_failed_launches_stand_below_with_their_logs(store: Store) -> None:
    commit(store, "L0", None, log_uri="exp/logs/L0/rank0.log", **FAILED)
    assert shown(store).splitlines() == [
        "failed: d0: It died. (engine_crash)",
        "  log: exp/logs/L0/rank0.log",
        "launches: 0 served, 1 failed",
    ]


def test_without_a_deployment_only_logs_of_failed_launches_are_shown(store: Store) -> None:
    commit(store, "L0", deployment_row())
    commit(store, "L1", deployment_row(), log_tail="first\nlast", **FAILED)
    assert log_of(store, lines=1) == [
        "label-d0, launch L1: failed: It died. (engine_crash)",
        "last",
        "",
    ]


@pytest.mark.parametrize("name", ["label-d", "d0", "L0"])
def test_a_deployment_is_named_by_its_label_or_the_beginning_of_an_id(
    name: str, store: Store
) -> None:
    commit(store, "L0", deployment_row())
    assert log_of(store, name) == ["label-d0, launch L0: served", "no log was stored", ""]
    assert log_of(store, "nothing like it") == []


def test_the_stored_log_is_shown_whole_if_no_number_of_lines_is_given(store: Store) -> None:
    uri = store.write_log("L0/rank0.log", b"one\ntwo\n")
    commit(store, "L0", deployment_row(), log_uri=uri)
    assert log_of(store, "L0", 0) == [
        "label-d0, launch L0: served",
        "one",
        "two",
        f"  log: {uri}",
    ]
