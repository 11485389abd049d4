"""The columns about efficiency have the figures of the analysis."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.cost import allocated_usd
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.points import load_points
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.efficiency_columns import (
    efficiency_columns,
    efficiency_fields,
    efficiency_names,
)
from orchestrator.results.store import Store
from tests.unit.capacity.stored_levels import SLO
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    gpu_readings,
    request,
)

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def document(tmp_path: Path) -> PointDocument:
    """Ten requests of 100 prompt and 101 output tokens, one a second, 10 ms a token; 500 W."""
    store = Store.open(str(tmp_path), "exp")
    settings = f'{{"engine": "vllm", "model": "{MODEL}"}}'
    commit_launch(store, "L0", deployment_row(model=MODEL, settings_json=settings))
    rows = [
        request(
            index, index * 1000, last_ms=index * 1000 + 1100, tokens=101, prompt=100, chunks=101
        )
        for index in range(10)
    ]
    commit_measurement(store, "m0", rows, telemetry=gpu_readings(500, 12))
    (point,) = load_points(store, SLO)
    return point_document(point, allocated=allocated_usd([point]))


def values_of(document: PointDocument) -> dict[str, object]:
    return {column.name: column.value(document) for column in efficiency_columns()}


def test_numerators_over_denominators_are_the_shares(document: PointDocument) -> None:
    efficiency = document.point.efficiency
    assert isinstance(efficiency, Efficiency)
    values = values_of(document)
    assert values["decode_mbu"] == efficiency.mbu.estimate
    assert values["device_bytes_s"] / values["peak.bandwidth_bytes_s"] == pytest.approx(
        values["decode_mbu"]
    )
    assert values["device_flops_s"] / values["peak.flops_s"] == pytest.approx(values["mfu"])
    assert values["decode_mbu.lower"] <= values["decode_mbu"] <= values["decode_mbu.upper"]
    assert values["peak.source"].startswith("https://")
    assert (values["peak.device"], values["peak.is_overridden"]) == ("H100-80GB", False)


def test_prices_and_energy_by_hand(document: PointDocument) -> None:
    # 3.6 USD an hour for about 100 output tokens/s: 10 USD a million; 500 W: 5 J a token
    values = values_of(document)
    assert values["usd_per_m_output"] == pytest.approx(10, rel=0.05)
    assert values["usd_allocated_input"] is None  # there is one workload alone
    assert values["j_per_output_token"] == pytest.approx(5, rel=0.05)
    assert values["power_mean_w"] == pytest.approx(500)
    assert values["energy_j"] == pytest.approx(values["energy_integral_j"])
    assert values["energy_note"] is None


def test_every_column_is_described_and_json_has_the_same_values(document: PointDocument) -> None:
    columns = efficiency_columns()
    assert all(column.description for column in columns)
    fields = dict(efficiency_fields(document))
    peaks = fields.pop("peak")
    assert isinstance(peaks, dict)
    assert list(fields) == efficiency_names()
    as_json = fields | {f"peak.{name}": value for name, value in peaks.items()}
    assert as_json == values_of(document)
