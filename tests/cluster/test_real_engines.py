"""The main job on real engines: deployments of the quickstart, shortened, beside real ways to fail,
in one sweep.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    ROOT,
    assert_nothing_left,
    assert_rows_equal_schedule,
    manifests,
    orchestrator,
    rows,
)
from tests.integration.engine_real import SGLANG_IDLE

pytestmark = [
    *(
        pytest.mark.cluster,
        pytest.mark.vllm,
        pytest.mark.sglang,
        pytest.mark.transformers,
        pytest.mark.timeout(1500),
    ),
]

VLLM = {"engine": "vllm", "hardware": "cpu", "dtype": "float32", "max_model_len": 1024}
# checkpoints of the same shape: the rows of every down_proj in another order; no number at all
# before the output
SPOILED = {"shuffled": "down_proj.weight", "nan": "lm_head.weight"}
# cases of the quickstart that are left out: each starts for half a minute, and others show the same
LEFT_OUT: dict[str, list[dict[str, int]]] = {
    "vllm": [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}],
    "sglang": [{"tensor_parallel_size": 1}],
}
BROKEN = {"model": "./not-there", "tokenizer": str(ROOT / ".demo" / "model")}


@pytest.fixture(scope="module")
def swept(two_nodes: RayOnThisMachine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of the quickstart, with one short point each and absolute paths, and beside it two spoiled
    models and one without weights. vLLM compiles nothing, which would take half a minute.
    """
    folder = tmp_path_factory.mktemp("real")
    experiment = yaml.safe_load((ROOT / "experiments" / "quickstart.yaml").read_text())
    (folder / "not-there").mkdir()
    (folder / "not-there" / "config.json").write_text(
        (ROOT / ".demo" / "model" / "config.json").read_text()
    )
    for name, weights in SPOILED.items():
        spoil(folder / name, weights)
    experiment["model"]["id"] = str(ROOT / ".demo" / "model")
    experiment["load"] = {"levels": {"concurrency": [4]}, "warmup": "0s", "requests": 12}
    for deployment in experiment["deployments"]:
        deployment["executable"] = str(ROOT / ".engines" / deployment["engine"])
    for deployment in experiment["deployments"]:
        if deployment["engine"] == "sglang":
            deployment["extra_args"] = SGLANG_IDLE
        for case in LEFT_OUT.get(deployment["engine"], []):
            deployment["vary"][0]["cases"].remove(case)
    base = VLLM | {
        "executable": str(ROOT / ".engines" / "vllm"),
        "env": experiment["deployments"][0]["env"],
    }
    for case in experiment["deployments"][0]["vary"][0]["cases"]:
        case["enforce_eager"] = True
    experiment["deployments"].append(base | BROKEN)
    experiment["deployments"] += [
        base | {"model": f"./{name}", "enforce_eager": True} for name in SPOILED
    ]
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(experiment))
    done = orchestrator(
        "run",
        str(path),
        "--results",
        str(folder / "results"),
        "--address",
        two_nodes.address,
        timeout_s=1440,
    )
    assert done.returncode == 3, done.stderr[-4000:]
    return folder / "results"


def spoil(folder: Path, weights: str) -> None:
    """The tiny model with other weights where names end so."""
    shutil.copytree(ROOT / ".demo" / "model", folder)
    tensors, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith(weights)]:
        tensors[name] = (
            rng.permutation(tensors[name]) if folder.name == "shuffled" else tensors[name] * np.nan
        )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def of(results: Path, table: str, **settings: Any) -> list[dict[str, Any]]:
    """Rows of a table of the deployments whose settings end so (paths are absolute)."""
    ids = [
        row["deployment_id"]
        for row in rows(results, "deployments")
        if all(
            str(json.loads(row["settings_json"]).get(key)).endswith(str(value))
            for key, value in settings.items()
        )
    ]
    return [row for row in rows(results, table) if row["deployment_id"] in ids]


def test_six_real_deployments_serve(swept: Path) -> None:
    ok = [one for one in manifests(swept) if one["status"] == "ok"]
    assert len(ok) == 6, [one["reason"] for one in manifests(swept) if one["status"] != "ok"]
    assert not any(row["emulated"] for row in rows(swept, "points"))
    counts = assert_rows_equal_schedule(swept)
    assert all(counts[one["attempt_id"]] >= 12 for one in ok)


def test_token_counts_come_from_the_engine_and_are_what_was_asked(swept: Path) -> None:
    good = [row for row in rows(swept, "requests") if row["status"] == "ok"]
    assert good
    assert all(row["output_tokens"] == row["output_tokens_asked"] for row in good)
    assert {row["token_count_source"] for row in good} <= {"usage", "token_ids", "continuous_usage"}


def test_answers_agree_however_the_model_is_cut_and_a_spoiled_one_is_told(swept: Path) -> None:
    told = json.loads(orchestrator("results", str(swept), "--format", "json").stdout)
    points = {one["label"]: one for one in told if one["status"] == "ok"}
    spoiled = {
        name: next(one for label, one in points.items() if name in label) for name in SPOILED
    }
    good = [one for one in points.values() if one not in spoiled.values()]
    (reference,) = {one["agreement_reference"] for one in points.values()}
    assert len(good) == 4
    for one in good:
        known = (None, 0) if one["label"] == reference else (one["agreement"], one["agreement_n"])
        assert known == (None, 0) or (one["agreement"] >= 0.95 and one["agreement_n"] >= 256), one[
            "label"
        ]
    assert spoiled["nan"]["validity"] == "broken_output"
    # other tests run beside it, which may disturb it
    assert spoiled["shuffled"]["validity"] != "broken_output"
    assert spoiled["shuffled"]["agreement"] < 0.5
    assert "log-probability is NaN" in str(spoiled["nan"]["validity_reasons"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_counted_the_requests_and_tokens_that_we_counted(
    swept: Path, engine: str
) -> None:
    """Each of SGLang's two ranks tells of every request."""
    told = json.loads(orchestrator("results", str(swept), "--format", "json").stdout)
    sides = [
        repeat["engine_side"]
        for one in told
        if one["engine"] == engine
        for repeat in one["repeats"]
    ]
    for point in of(swept, "points", engine=engine):
        if point["status"] != "ok":
            continue
        readings = [
            row for row in rows(swept, "engine_metrics") if row["attempt_id"] == point["attempt_id"]
        ]
        readings.sort(key=lambda row: row["unix_ns"])
        counters = [row["generation_tokens_total"] for row in readings]
        requests = [
            row for row in rows(swept, "requests") if row["attempt_id"] == point["attempt_id"]
        ]
        assert counters[-1] - counters[0] == sum(row["output_tokens"] or 0 for row in requests)
        queued = readings[-1]["queue_time_count"] - readings[0]["queue_time_count"]
        assert queued == sum(row["status"] == "ok" for row in requests)
        assert counters[-1] - counters[0] in [side["generation_tokens"] for side in sides if side]


def test_the_spread_replica_ran_on_two_nodes_with_one_core_each(swept: Path) -> None:
    launch = next(row for row in of(swept, "launches", nnodes=2) if row["status"] == "ok")
    seats = json.loads(launch["placement_json"])
    assert len({seat["node_id"] for seat in seats}) == 2
    assert len({tuple(seat["engine_cores"]) for seat in seats}) == 2
    assert any("--headless" in argv for argv in json.loads(launch["argv_json"]))


def test_a_model_without_weights_is_a_failed_row(swept: Path) -> None:
    (point,), (start,) = (of(swept, table, model="not-there") for table in ("points", "launches"))
    assert (point["status"], point["failure_class"]) == ("failed", "bad_config")
    assert "Cannot find any model weights" in point["reason"]
    assert start["failure_kind"] == "no_model"
    assert start["log_tail"]


def test_nothing_is_left(swept: Path) -> None:
    assert_nothing_left()
