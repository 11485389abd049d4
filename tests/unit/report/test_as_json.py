"""Documents as JSON objects, whose fields are a promise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.as_json import (
    answer_json,
    capacity_json,
    csv_lines,
    point_json,
    row_json,
    slo_json,
)
from orchestrator.report.documents.answer import answer_document
from orchestrator.report.documents.capacity import capacity_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import json_text
from orchestrator.report.selection import answers, limits
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.test_capacity_table import store_search
from tests.unit.report.test_point_table import commit

FAST = Slo(name="fast", ttft=0.15, attainment=0.9)
TIGHT = Slo(name="tight", ttft=0.001, attainment=0.9)
FAILURE = {"status": "failed", "reason": "It died.", "failure_class": "engine_crash"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def document_of(store: Store, *slos: Slo) -> PointDocument:
    (point,) = load_points(store, *slos)
    return point_document(point, slos)


def as_json(value: object) -> Any:
    """What a reader of the JSON text gets."""
    return json.loads(json_text(value))


def test_the_first_limits_of_a_point_stand_alone_and_all_by_name(store: Store) -> None:
    commit(store)
    found = as_json(point_json(document_of(store, FAST, TIGHT)))
    assert list(found["slos"]) == ["fast", "tight"]
    assert found["slo"] == found["slos"]["fast"]
    assert (found["slos"]["fast"]["met"], found["slos"]["tight"]["met"]) == (True, False)


def test_without_limits_a_point_has_no_field_for_them(store: Store) -> None:
    commit(store)
    found = point_json(document_of(store))
    assert found.keys().isdisjoint(
        {"slo", "slos", "slo_name", "attainment", "attainment.lower", "met", "goodput", "by_limit"}
    )


def test_each_test_of_limits_has_its_share_and_target(store: Store) -> None:
    commit(store)
    (result,) = document_of(
        store, parse_slo("ttft<=150ms,ttft_p50<=1ms,attainment>=0.9")
    ).slo_results
    found = as_json(slo_json(result))
    assert [(test["name"], test["target"], test["met"]) for test in found["tests"]] == [
        ("attainment", 0.9, True),
        ("ttft_p50", 0.5, False),
    ]
    assert found["met"] is False
    assert found["by_limit"]["ttft"] == 1.0


def test_a_point_counts_its_repeats_and_names_the_first_failure(store: Store) -> None:
    commit(store)
    commit(store, "m1", repeat=1, **FAILURE)
    found = as_json(point_json(document_of(store)))
    assert found["merged"] == {"of": 2, "used": 1, "failed": 1}
    assert (found["status"], found["reason"]) == ("ok", "It died.")
    assert [repeat["status"] for repeat in found["repeats"]] == ["ok", "failed"]


def test_an_infinite_rate_is_a_word(store: Store) -> None:
    commit(store, level=math.inf)
    assert as_json(point_json(document_of(store)))["level"] == "inf"


def test_a_point_with_one_repeat_is_one_line_of_csv(store: Store) -> None:
    commit(store)
    (line,) = csv_lines([document_of(store)])
    assert (line["row"], line["measurement_id"]) == ("point", "m0")
    assert "repeats" not in line


def test_a_point_with_several_repeats_is_a_line_and_one_for_each(store: Store) -> None:
    commit(store)
    commit(store, "m1", repeat=1)
    point, *repeats = csv_lines([document_of(store)])
    assert point["row"] == "point"
    assert "measurement_id" not in point
    assert [line["row"] for line in repeats] == ["repeat", "repeat"]
    assert [line["measurement_id"] for line in repeats] == ["m0", "m1"]
    assert {line["label"] for line in repeats} == {"label-d0"}


def test_a_line_of_a_repeat_has_its_own_figures_and_none_of_the_point_alone(store: Store) -> None:
    commit(store)
    commit(store, "m1", repeat=1, **FAILURE)
    point, ok, failed = csv_lines([document_of(store, FAST)])
    assert point["attainment"] == 1.0
    assert ok["attainment"] == 1.0
    assert failed["attainment"] is None
    assert point["per_device"] is not None
    for name in ("per_device", "per_device.lower", "output_token_throughput.lower"):
        assert ok[name] is None
        assert failed[name] is None
    assert ok["per_user"] == point["per_user"]


def test_a_capacity_is_a_row_with_its_levels(store: Store) -> None:
    store_search(store)
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos).current
    document = next(capacity_documents(experiment, points, experiment.slos))
    found = as_json(row_json(document))
    assert found == as_json(capacity_json(document))
    assert (found["row"], found["claim"], found["status"]) == ("capacity", 8, "cliff")
    assert [level["verdict"] for level in found["levels"]] == ["holds", "fails"]
    (line,) = csv_lines([document])
    assert "levels" not in line


def test_an_answer_has_its_ranking_and_what_is_left_out(store: Store) -> None:
    store_sweep(store, planned())
    ranked = answers(limits(None, [StoredExperiment(store)]))
    found = as_json(answer_json(answer_document(ranked.comparisons)))
    interactive, tight = found["comparisons"]
    assert (interactive["slo_name"], interactive["certain"]) == ("interactive", False)
    assert interactive["why"].startswith("not certain: ")
    assert [ranked["repeats"] for ranked in interactive["ranking"]] == [1, 1]
    assert tight["ranking"] == []
    assert [len(tight["left_out"]), len(interactive["left_out"])] == [2, 0]
