"""The columns of a point, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.as_json import point_json
from orchestrator.report.columns import column_named, column_names, point_columns
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import flat
from orchestrator.results.store import Store
from tests.unit.report.test_point_table import commit

SLO = parse_slo("ttft<=150ms,attainment>=0.9")
# names that JSON has under another one
OF_JSON = {
    "deployment": "label",
    "output_token_throughput.lower": "output_token_throughput_interval.lower",
    "output_token_throughput.upper": "output_token_throughput_interval.upper",
    "per_user": "decode_throughput.p50",
    "attainment": "slo.attainment.estimate",
    "attainment.lower": "slo.attainment.lower",
    "attainment.upper": "slo.attainment.upper",
    "met": "slo.met",
    "goodput": "slo.goodput",
    "repeats": "merged.used",
}
NOT_IN_JSON = ("per_device", "per_device.lower", "per_device.upper")


@pytest.fixture
def document(tmp_path: Path) -> PointDocument:
    store = Store.open(str(tmp_path), "exp")
    commit(store)
    (point,) = load_points(store, SLO)
    return point_document(point, [SLO])


def test_every_column_has_the_value_of_json(document: PointDocument) -> None:
    as_json = flat(
        {name: value for name, value in point_json(document).items() if name != "repeats"}
    )
    for name, column in point_columns().items():
        if name in NOT_IN_JSON or name.startswith("settings."):
            continue
        expected = as_json.get(OF_JSON.get(name, name))
        assert column.value(document) == expected, name


def test_throughput_per_device_is_divided_with_its_interval(document: PointDocument) -> None:
    devices = document.point.deployment.devices
    interval = document.point.output_token_throughput()
    assert interval is not None
    values = [point_columns()[name].value(document) for name in NOT_IN_JSON]
    expected = (interval.estimate, interval.lower, interval.upper)
    assert values == pytest.approx([value / devices for value in expected])


def test_a_setting_is_found_with_and_without_its_prefix() -> None:
    assert column_named("tensor_parallel_size") is column_named("settings.tensor_parallel_size")
    assert column_named("tensor_parallel") is None
    assert {"tensor_parallel_size", "settings.tensor_parallel_size"} <= set(column_names())


def test_a_column_of_a_point_is_meant_before_a_setting_of_the_same_name() -> None:
    column = column_named("model")
    assert column is not None
    assert column.name == "model"


def test_every_column_is_described_and_usual_ones_are_few() -> None:
    columns = point_columns().values()
    assert all(column.description for column in columns)
    assert 25 <= sum(column.is_usual for column in columns) <= 45
