"""experiments/quantization.yaml on real vLLM and two nodes, shortened: three formats, and what is
told of each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import ROOT, assert_rows_equal_schedule, manifests, orchestrator, rows
from tests.integration.engine_real import HAS_AVX512, home_of, script

# tests/integration/test_quantized_models.py has the same kernels in CI
pytestmark = [
    *(pytest.mark.cluster, pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(900)),
    pytest.mark.skipif(not HAS_AVX512, reason="vLLM's 4-bit kernels need a CPU with AVX512"),
]
# model, tensor parallel size -> the kernel that vLLM takes on a CPU
CASES = {
    ("base", 1): None,
    ("int8", 1): "CPUInt8ScaledMMLinearKernel",
    ("gptq4", 2): "CPUWNA16LinearKernel",
}


@pytest.fixture(scope="module")
def swept(two_nodes: RayOnThisMachine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quantization")
    script("make_quantized_models").make(folder / "models", only=("int8", "gptq4"))
    experiment = yaml.safe_load((ROOT / "experiments" / "quantization.yaml").read_text())
    cases = [
        {"model": str(folder / "models" / name), "tensor_parallel_size": size}
        for name, size in CASES
    ]
    deployment = experiment["deployments"][0] | {
        "executable": str(home_of("vllm")),
        "vary": [{"cases": cases}],
    }
    experiment["model"]["id"] = str(folder / "models" / "base")
    # compiling takes half a minute
    experiment["deployments"] = deployment | {"enforce_eager": True}
    experiment["load"] = {"levels": experiment["load"]["levels"], "warmup": "0s", "requests": 12}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    results = folder / "results"
    done = orchestrator(
        *(
            "run",
            str(folder / "experiment.yaml"),
            "--results",
            str(results),
            "--address",
            two_nodes.address,
        ),
        timeout_s=840,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return results


def reported(results: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """What each start said of itself, by the name of its model and its ranks."""
    settings = {
        row["deployment_id"]: json.loads(row["settings_json"])
        for row in rows(results, "deployments")
    }
    found = {}
    for row in rows(results, "launches"):
        one = settings[row["deployment_id"]]
        key = (Path(one["model"]).name, one.get("tensor_parallel_size", 1))
        found[key] = json.loads(row["engine_reported_json"])
    return found


def test_every_format_serves_and_is_measured(swept: Path) -> None:
    assert [one["status"] for one in manifests(swept)] == ["ok"] * len(CASES)
    assert_rows_equal_schedule(swept)
    good = [row for row in rows(swept, "requests") if row["status"] == "ok"]
    assert all(row["output_tokens"] == row["output_tokens_asked"] for row in good)


def test_the_kernel_and_the_sizes_of_every_format_are_stored_and_shown(swept: Path) -> None:
    told = reported(swept)
    assert {key: one.get("quantization_kernel") for key, one in told.items()} == CASES
    assert {one["kv_cache_bytes"] for one in told.values()} == {1 << 30}
    read = {name: one["checkpoint_bytes"] for (name, _), one in told.items()}
    assert read["base"] > read["int8"] > read["gptq4"] > 0
    text = orchestrator("results", str(swept), "--launches").stdout
    assert "CPUInt8ScaledMM" in text
    assert "CPUWNA16" in text


def test_what_the_plan_predicted_of_the_kv_cache_came_true(swept: Path) -> None:
    told = json.loads(orchestrator("results", str(swept), "--launches", "--format", "json").stdout)
    assert [one["figures"]["kv_cache_tokens"]["difference_percent"] for one in told] == [0] * len(
        CASES
    )
