"""The tables of ``results``: one row per point, and what is in doubt below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.documents.load_run import LoadRunDocument
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.point_table import load_runs_text, points_text
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.unit.results.builders import commit_measurement, deployment_row, request

HOLDS = Slo(name="fast", ttft=0.15, attainment=0.9)
FAILS = Slo(name="tight", ttft=0.001, attainment=0.9)
PERCENTILE = parse_slo("ttft_p95<=150ms,attainment>=0.9,ttft<=150ms")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(store: Store, measurement_id: str = "m0", **point: Any) -> None:
    """100 requests over ten seconds, of 4 tokens each, with a TTFT of 100 ms."""
    rows = [
        request(at, at * 100, first_ms=at * 100 + 100, last_ms=at * 100 + 190, tokens=4)
        for at in range(100)
    ]
    deployment = deployment_row(point.get("deployment_id", "d0"))
    commit_measurement(store, measurement_id, rows, deployment=deployment, **point)


def documents(store: Store, *slos: Slo, knees: Any = ()) -> list[PointDocument]:
    points = load_points(store, *slos)
    return [point_document(point, slos, knees=knees) for point in points]


def shown(store: Store, *slos: Slo, profile: bool = False, knees: Any = ()) -> list[str]:
    lines = points_text(documents(store, *slos, knees=knees), profile=profile)
    return [click.unstyle(line) for line in lines]


def test_a_heading_names_workload_model_hardware_and_the_only_limits(store: Store) -> None:
    commit(store)
    assert shown(store)[0] == "chat of exp: m on h100"
    assert shown(store, HOLDS)[0] == (
        "chat of exp: m on h100 under fast (ttft<=150ms,attainment>=0.9)"
    )


def test_several_limits_stand_below_the_heading(store: Store) -> None:
    commit(store)
    heading, *lines = shown(store, HOLDS, FAILS)
    assert heading == "chat of exp: m on h100"
    assert lines[:2] == [
        "  fast (ttft<=150ms,attainment>=0.9)",
        "  tight (ttft<=1ms,attainment>=0.9)",
    ]
    text = "\n".join(lines)
    assert "1.000 ✓ fast" in text
    assert "0.000 ✗ tight" in text


def test_a_single_test_has_its_interval_below_the_share(store: Store) -> None:
    commit(store)
    text = "\n".join(shown(store, HOLDS))
    assert "1.000 ✓\n" in text
    assert "-1.000\n" in text


def test_several_tests_of_one_limit_are_named(store: Store) -> None:
    commit(store)
    assert "1.000 ✓ ttft_p95" in "\n".join(shown(store, PERCENTILE))


def test_a_profile_shows_prefill_and_decode_in_place_of_limits(store: Store) -> None:
    commit(store)
    text = "\n".join(shown(store, HOLDS, profile=True))
    assert "prefill" in text
    assert "decode" in text
    assert "✓" not in text


def test_a_point_where_the_curve_bends_is_marked(store: Store) -> None:
    commit(store)
    assert any("knee" in line.split() for line in shown(store, knees=["p0"]))


def test_a_point_in_doubt_is_shown_and_its_reasons_stand_below(store: Store) -> None:
    commit(store, validity="disturbed", validity_reasons=["others took 60 %"])
    lines = shown(store)
    assert any("disturbed" in line.split() for line in lines)
    assert "label-d0, chat, 1 req/s: disturbed: others took 60 %" in lines


def test_a_note_on_a_valid_point_is_marked_by_an_asterisk(store: Store) -> None:
    commit(store, validity_reasons=["12.0% of prompt tokens came from the cache"])
    lines = shown(store)
    assert any("100/100 *" in line for line in lines)
    assert "* label-d0, chat, 1 req/s: 12.0% of prompt tokens came from the cache" in lines


def test_failed_points_stand_below_with_their_failure(store: Store) -> None:
    commit(store)
    failure = {"reason": "It died.", "failure_class": "engine_crash", "failure_kind": "oom"}
    commit(store, "m1", status="failed", point_id="p1", level=2.0, **failure)
    *_, failed, counts = shown(store)
    assert failed == "failed: label-d0, chat, 2 req/s: It died. (engine_crash: oom)"
    assert counts == "1 point measured, 1 failed"


def test_emulated_points_are_marked_and_explained(store: Store) -> None:
    commit(store, emulated=True)
    lines = shown(store)
    assert lines[0] == "chat of exp: m on h100 (emulated)"
    assert any(line.startswith("emulated: an emulator answered") for line in lines)


def test_load_runs_share_a_table_and_say_in_what_they_differ(store: Store) -> None:
    commit(store)
    points = tuple(documents(store, HOLDS))
    runs = [
        LoadRunDocument("before", points, (HOLDS,)),
        LoadRunDocument("after", points, (HOLDS,), differences=("input tokens",)),
    ]
    lines = [click.unstyle(line) for line in load_runs_text(runs)]
    assert lines[0] == "2 load runs: m under fast (ttft<=150ms,attainment>=0.9)"
    assert "after was asked otherwise than before: input tokens" in lines
    assert lines[-1] == "2 points measured, 0 failed"
