"""The columns of a point, by name."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.as_json import point_json
from orchestrator.report.columns import USUAL, column_named, column_names, point_columns
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import flat
from orchestrator.results.store import Store
from tests.unit.report.test_point_table import commit

SLO = parse_slo("ttft<=150ms,attainment>=0.9")
# JSON lists the repeats, and has the limits as an object
OF_JSON = {"repeats": "merged.used", "slo": "slo.text"}
# what JSON calls by an older name too
OLDER_NAMES = {
    "label": "deployment",
    "output_token_throughput_interval.lower": "output_token_throughput.lower",
    "output_token_throughput_interval.upper": "output_token_throughput.upper",
    "slo.attainment.estimate": "attainment",
    "slo.attainment.lower": "attainment.lower",
    "slo.attainment.upper": "attainment.upper",
    "slo.met": "met",
    "slo.goodput": "goodput",
    "slo.by_limit.ttft": "by_limit.ttft",
}
PER_DEVICE = ("per_device", "per_device.lower", "per_device.upper")
# what JSON tells of an interval beside its ends
OF_INTERVALS = ("estimate", "confidence", "batches", "design_effect", "starts", "standard_error")


@pytest.fixture
def document(tmp_path: Path) -> PointDocument:
    store = Store.open(str(tmp_path), "exp")
    commit(store)
    (point,) = load_points(store, SLO)
    return point_document(point, [SLO])


def test_every_column_has_the_value_of_json(document: PointDocument) -> None:
    in_json = point_json(document)
    as_json = flat({name: in_json[name] for name in in_json if name not in ("repeats", "parts")})
    compared = {"row", "slo.tests"}
    for name, column in point_columns().items():
        if name.startswith("settings."):
            continue
        value = column.value(document)
        if column.kind is Mapping:
            entries = flat({name: value}) if value is not None else {}
            assert entries == {key: as_json[key] for key in entries}
            compared |= entries.keys()
            continue
        name_in_json = OF_JSON.get(name, name)
        expected = as_json.get(name_in_json)
        assert ("; ".join(value) if isinstance(value, list) else value) == expected, name
        compared.add(name_in_json)
    unknown = {name for name, value in as_json.items() if value is None}
    assert _of_json_alone(as_json.keys() - compared - unknown - OLDER_NAMES.keys()) == set()
    for older_name, name in OLDER_NAMES.items():
        assert as_json[older_name] == as_json[name], name


def _of_json_alone(names: Set[str]) -> set[str]:
    """Names that JSON should not have for itself: other figures of intervals, and other SLOs."""
    return {
        name
        for name in names
        if name.rpartition(".")[2] not in OF_INTERVALS
        and not name.startswith(("slos.", "settings."))
    }


def test_throughput_per_device_is_divided_with_its_interval(document: PointDocument) -> None:
    devices = document.point.deployment.devices
    interval = document.point.output_token_throughput()
    assert interval is not None
    values = [point_columns()[name].value(document) for name in PER_DEVICE]
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
    assert {column.name for column in columns if column.is_usual} == set(USUAL)
    assert 25 <= len(USUAL) <= 36


def test_an_entry_of_a_mapping_is_a_column_of_its_own(document: PointDocument) -> None:
    column = column_named("errors.timeout")
    assert column is not None
    assert (column.name, column.value(document)) == ("errors.timeout", None)
    assert column_named("ttft_ms.p98") is None
