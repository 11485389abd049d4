"""Columns that rows of several kinds have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.deployments import StoredDeployment, unknown_deployment
from orchestrator.analysis.slo import parse_slo
from orchestrator.report.documents.point import SloResult
from orchestrator.report.shared_columns import (
    deployment_columns,
    limit_columns,
    setting_columns,
)
from orchestrator.spec.settings import EngineSettings


@dataclass
class Deployment:
    """What columns read of a stored deployment."""

    engine: str = "vllm"
    model: str = "m"
    hardware: str = "h100"
    devices: int = 2
    usd_per_hour: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def itself(row: Any) -> Any:
    return row


def values(columns: Any, row: Any) -> dict[str, Any]:
    return {column.name: column.value(row) for column in columns}


def test_a_deployment_whose_row_was_never_stored_has_no_values() -> None:
    stored = values(deployment_columns(itself), Deployment())
    assert (stored["engine"], stored["devices"]) == ("vllm", 2)
    unknown: StoredDeployment = unknown_deployment("d0")
    for row in (unknown, None):
        assert set(values(deployment_columns(itself), row).values()) == {None}


def test_settings_have_their_defaults_and_kinds() -> None:
    columns = {column.name: column for column in setting_columns(itself)}
    assert set(columns) == {f"settings.{name}" for name in EngineSettings.model_fields}
    given = Deployment(settings={"max_num_seqs": 8})
    assert columns["settings.max_num_seqs"].value(given) == 8
    assert columns["settings.tensor_parallel_size"].value(given) == 1
    assert columns["settings.dtype"].value(given) is None
    # of one whose row was never stored nothing is known, not even that it has the defaults
    assert columns["settings.tensor_parallel_size"].value(Deployment()) is None
    kinds = {
        "max_num_seqs": int,
        "enforce_eager": bool,
        "gpu_memory_utilization": float,
        "model": str,
        "extra_args": Mapping,
        "speculative": Mapping,
    }
    assert {name: columns[f"settings.{name}"].kind for name in kinds} == kinds


def test_limits_without_requests_have_names_and_no_shares() -> None:
    slo = parse_slo("ttft<=150ms,attainment>=0.9")
    found = values(limit_columns(itself, "slos.tight."), SloResult(slo, (), (), 0.0))
    assert found["slos.tight.slo"] == "ttft<=150ms,attainment>=0.9"
    for name in ("attainment", "attainment.lower", "met", "goodput"):
        assert found[f"slos.tight.{name}"] is None
    nothing = values(limit_columns(itself), None)
    assert set(nothing.values()) == {None}
