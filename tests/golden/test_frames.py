"""Frames of the golden store equal the golden JSON to the digit: points, searched capacities,
engine starts and rankings.
"""

from __future__ import annotations

import json
import tarfile
from typing import Any

import pytest

import orchestrator
from tests.golden.make import EXPECTED, STORE
from tests.unit.report.test_frames import OF_POINTS, agree, rows_of


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(STORE) as archive:
        archive.extractall(folder, filter="data")
    return str(folder)


def expected(name: str) -> Any:
    return json.loads((EXPECTED / name).read_text())


def rows_named(name: str) -> list[dict[str, Any]]:
    return [row for row in expected("results.json") if row["row"] == name]


def test_points(uri: str) -> None:
    points = rows_named("point")
    frame = orchestrator.points(uri, columns="all")
    assert agree(rows_of(frame), points) > 100 * len(points)
    repeats = [
        {**repeat, "label": point["label"]} for point in points for repeat in point["repeats"]
    ]
    of_repeats = {name: each for name, each in OF_POINTS.items() if name != "repeats"}
    frame = orchestrator.repeats(uri, columns="all")
    assert agree(rows_of(frame), repeats, of_repeats) > 80 * len(repeats)


def test_capacities(uri: str) -> None:
    capacities = rows_named("capacity")
    frame = orchestrator.capacities(uri, columns="all")
    of_capacities = {"deployment": "label", "slo": "slo.limits", "slo_name": "slo.name"}
    assert agree(rows_of(frame), capacities, of_capacities) > 10 * len(capacities) > 0


def test_launches(uri: str) -> None:
    launches = expected("results_launches.json")
    frame = orchestrator.launches(uri, columns="all")
    assert agree(rows_of(frame), launches, {"deployment": "label"}) > 8 * len(launches)


def test_rankings(uri: str) -> None:
    comparisons = expected("best.json")["comparisons"]
    documents = [
        {**{name: value for name, value in comparison.items() if name != "ranking"}, **ranked}
        for comparison in comparisons
        for ranked in comparison["ranking"]
    ]
    for document in documents:  # commands in it name the folder of the store
        document["decide"] = [text.replace("/golden/store", uri) for text in document["decide"]]
    rows = rows_of(orchestrator.best(uri, columns="all"))
    assert agree(rows, documents, {}) > 50 * len(documents)
    for row, document in zip(rows, documents, strict=True):
        assert [row["value.lower"], row["value.upper"]] == document["interval"]
