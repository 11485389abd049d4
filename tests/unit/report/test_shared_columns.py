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
    """Where columns find what they read: in these tests the row is that itself."""
    return row


def values(columns: Any, row: Any) -> dict[str, Any]:
    return {column.name: column.value(row) for column in columns}


def test_a_deployment_whose_row_was_never_stored_has_no_values() -> None:
    stored = values(deployment_columns(itself), Deployment())
    assert (stored["engine"], stored["devices"]) == ("vllm", 2)
    unknown: StoredDeployment = unknown_deployment("d0")
    for row in (unknown, None):
        assert set(values(deployment_columns(itself), row).values()) == {None}


def test_settings_that_a_deployment_does_not_have_are_their_defaults() -> None:
    stored = values(setting_columns(itself), Deployment(settings={"max_num_seqs": 8}))
    assert set(stored) == {f"settings.{name}" for name in EngineSettings.model_fields}
    assert stored["settings.max_num_seqs"] == 8
    assert stored["settings.tensor_parallel_size"] == 1
    assert stored["settings.dtype"] is None


def test_a_deployment_without_any_stored_setting_has_no_defaults_either() -> None:
    stored = values(setting_columns(itself), Deployment(settings={}))
    assert set(stored.values()) == {None}


def test_settings_have_the_kinds_of_their_fields() -> None:
    columns = {column.name: column for column in setting_columns(itself)}
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
    result = SloResult(slo, tests=(), verdicts=(), window_s=0.0)
    columns = values(limit_columns(itself, "slos.tight."), result)
    assert columns["slos.tight.slo"] == "ttft<=150ms,attainment>=0.9"
    for name in ("attainment", "attainment.lower", "met", "goodput"):
        assert columns[f"slos.tight.{name}"] is None


def test_where_no_limits_are_known_their_columns_are_empty() -> None:
    assert set(values(limit_columns(itself), None).values()) == {None}
