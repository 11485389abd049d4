"""Resolved settings: absolute paths, and replicas spread over nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.registry import ENGINES
from orchestrator.plan.paths import Paths
from orchestrator.plan.resolved_settings import resolved
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.spec.stages import ResolvedSettings, WrittenSettings
from tests.unit.plan.files import H100, planned

NODE_OF_8 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
ROLES: dict[str, Any] = {
    "roles": {
        "prefill": {"engine": "vllm", "model": "m", "executable": "./venv"}
        | {"tensor_parallel_size": 8, "pipeline_parallel_size": 2},
        "decode": {"engine": "vllm", "model": "m", "executable": "./venv"},
    },
    "router": {"engine": "vllm_router", "model": "m", "executable": "./router"},
}


def resolved_settings(folder: Path, **fields: Any) -> ResolvedSettings:
    written = {"engine": "vllm", "model": "m", "tensor_parallel_size": 8, **fields}
    settings = EngineSettings.model_validate(written)
    return resolved(WrittenSettings(settings), ENGINES[settings.engine], NODE_OF_8, Paths(folder))


def test_every_part_is_spread_and_has_absolute_paths(tmp_path: Path) -> None:
    parts = resolved_settings(tmp_path, **ROLES).parts
    assert {role: part.nnodes for role, part in parts.items() if role != "router"} == {
        "prefill": 2,
        "decode": 1,
    }
    assert parts["decode"].executable == str(tmp_path / "venv")
    assert parts["router"].executable == str(tmp_path / "router")


def test_an_engine_that_runs_on_one_node_is_not_spread(tmp_path: Path) -> None:
    settings = resolved_settings(tmp_path, engine="tgi", pipeline_parallel_size=2)
    assert settings.nnodes == 1


def test_a_variable_that_is_not_set_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    with pytest.raises(ValueError, match="'NO_SUCH_FOLDER' is not set"):
        resolved_settings(tmp_path, executable="${NO_SUCH_FOLDER}/venv")


@pytest.mark.usefixtures("judged")
def test_a_spread_replica_is_noted_and_equals_one_that_is_written_so() -> None:
    sizes = {
        "engine": "vllm",
        "hardware": "h100",
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
    }
    (spread,) = planned(hardware=H100, deployments=sizes).deployments
    assert (spread.status, spread.settings.nnodes) == ("planned", 2)
    assert "spread over 2 nodes automatically: a node has 8 devices" in spread.remarks
    (written,) = planned(hardware=H100, deployments=sizes | {"nnodes": 2}).deployments
    assert (written.id, written.remarks) == (spread.id, ())
    unserved = [{"name": "long", "input_tokens": 9000, "output_tokens": 9000}]
    short = sizes | {"max_model_len": 100}
    (impossible,) = planned(hardware=H100, deployments=short, workloads=unserved).deployments
    assert (impossible.status, impossible.settings.nnodes) == ("impossible", 2)
    assert not any("automatically" in reason for reason in impossible.reasons)
    assert any("automatically" in remark for remark in impossible.remarks)
    (on_one_node,) = planned(hardware=H100, deployments=sizes | {"nnodes": 1}).deployments
    assert on_one_node.status == "impossible"
