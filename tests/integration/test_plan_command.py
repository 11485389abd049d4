"""``orchestrator plan`` as users call it: its table, its JSON, its exit status; and every file in
experiments/.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.make import load_plan
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.files import measurements

ROOT = Path(__file__).parents[2]
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
WORKING = """
version: 1
name: small
model: {id: meta-llama/Llama-3.1-8B-Instruct}
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8}}
deployments:
  engine: vllm
  hardware: h100
  vary: [{grid: {tensor_parallel_size: [1, 2, 3, 16]}}]
  exclude: [tensor_parallel_size == 2]
workloads: [{name: chat, input_tokens: 100, output_tokens: 50}]
load: {levels: {request_rate: [1, 2]}, duration: 60s, warmup: 10s}
repeats: 3
"""


def orchestrator(*argv: object, columns: int = 160) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "orchestrator", *map(str, argv)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=env, cwd=ROOT, check=False
    )


def as_json(*argv: object) -> dict[str, Any]:
    done = orchestrator("plan", *argv, "--format", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    runs = any(one["status"] in ("planned", "risky") for one in found["deployments"])
    assert done.returncode == (0 if runs else 3), done.stderr
    return found


@pytest.fixture
def working(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(WORKING)
    return path


def test_the_table_says_what_is_planned_what_is_not_and_why(working: Path) -> None:
    done = orchestrator("plan", working)
    assert done.returncode == 0, done.stderr
    table, *reasons, _ = done.stdout.split("\n\n")
    rows = {line[:12].strip(): line.split() for line in table.splitlines()}
    assert rows["vllm tp=1"][2:] == [
        "planned",
        "1",
        "GPU",
        "2",
        "15.0",
        "GiB",
        "456,998",
        "3.5",
        "8",
        "min",
    ]
    assert rows["vllm tp=3"][2] == "impossible"
    said = dict(reason.split("\n  ") for reason in reasons)
    assert said["excluded: by the rule: tensor_parallel_size == 2"] == "vllm tp=2"
    assert (
        said["impossible: 32 attention heads cannot be divided by tensor_parallel_size=3"]
        == "vllm tp=3"
    )
    (placed,) = [
        whom
        for reason, whom in said.items()
        if "needs 16 GPUs on one node; a node of 'h100' has 8" in reason
    ]
    assert placed == "vllm tp=16"
    assert "4 deployments: 1 planned, 1 excluded, 2 impossible" in done.stdout
    assert "2 points x 3 repeats = 6 measurements" in done.stdout
    assert (
        "7 min of load and 76 s of engine starts, one after the other, 0.1 GPU hours" in done.stdout
    )


def test_the_table_holds_on_80_columns_with_a_reason_that_is_long(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(WORKING.replace("meta-llama/Llama-3.1-8B-Instruct", "acme/NoSuchModel-70B"))
    done = orchestrator("plan", path, "--nodes", "2", columns=80)
    assert max(map(len, done.stdout.splitlines())) <= 120  # only the summary below is not wrapped
    assert max(map(len, done.stdout.split("\n\n")[0].splitlines())) <= 80
    assert "nothing is known of acme/NoSuchModel-70B" in done.stdout
    assert done.stdout.count("nothing is known") == 1
    assert "on 2 nodes" in done.stdout


def test_labels_break_between_words_and_figures_make_room(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(WORKING.replace("[1, 2, 3, 16]}", "[1, 4], kv_cache_dtype: [auto, fp8]}"))
    done = orchestrator("plan", path, columns=80)
    table = done.stdout.split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert {"tp=1", "tp=4", "kv=auto", "kv=fp8"} <= set(table.split())
    assert "time" in table.splitlines()[0].split()


def test_starts_of_earlier_runs_are_known(working: Path, tmp_path: Path) -> None:
    deployment = load_plan(working).deployments[0]
    store = Store.open(str(tmp_path / "results"), "small")
    for at, ready_s in enumerate((100.0, 321.0)):  # the latest counts
        commit_launch(
            store, deployment, replace(launch_row(deployment, "small", at), ready_s=ready_s)
        )
    found = as_json(working, "--results", tmp_path / "results")
    assert found["deployments"][0]["cost"]["start_s"] == found["start_s"] == 321.0
    assert not any("estimates" in note for note in found["notes"])
    assert any("estimates" in note for note in as_json(working)["notes"])


def test_the_json_has_the_promised_shape(working: Path) -> None:
    found = as_json(working)
    assert [one["status"] for one in found["deployments"]] == [
        "planned",
        "excluded",
        "impossible",
        "impossible",
    ]
    assert found["points"] == 2
    first = found["deployments"][0]
    assert len(first["id"]) == 16
    assert first["settings"]["tensor_parallel_size"] == 1
    assert first["settings"]["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert isinstance(first["reasons"], list)
    assert found["measurements"] == 6


def test_predictions_are_in_the_table_the_json_and_the_written_plan(
    tmp_path: Path,
) -> None:
    path, out = tmp_path / "x.yaml", tmp_path / "plan.json"
    path.write_text(
        WORKING.replace(
            "exclude: [tensor_parallel_size == 2]", "exclude: [tensor_parallel_size == 16]"
        )
    )
    table = orchestrator("plan", path, "--predict").stdout
    assert "predicted capacity of chat under default limits (MLPerf interactive)" in table
    assert "(TPOT), on published points of vllm on hopper GPUs" in table
    lines = [line.split()[1] for line in table.splitlines() if line.startswith(" vllm tp=")]
    found = as_json(path, "--predict", "--output", out)
    first, second, *others = found["deployments"]
    assert [f"tp={one['settings']['tensor_parallel_size']}" for one in (first, second)] == lines
    per_gpu = [
        one["predicted"]["capacity"]["default"]["chat"]["output_throughput_per_gpu"]
        for one in (first, second)
    ]
    assert per_gpu[0] > per_gpu[1] > 0
    assert {one["status"] for one in others} == {"impossible", "excluded"}
    assert [level["level"] for level in first["predicted"]["levels"]] == [1.0, 2.0]
    assert set(first["predicted"]["error"]) == {"ttft", "tpot", "source", "within", "counted"}
    assert as_json(out)["deployments"] == found["deployments"]


def test_a_written_plan_plans_again_to_the_same(working: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = orchestrator("plan", working, "--output", out, "--format", "json")
    assert done.returncode == 0
    assert f"wrote {out}" in done.stderr
    assert as_json(out) == json.loads(done.stdout)
    plan = Plan.from_json(out.read_text())
    assert len(measurements(plan)) == 6


def test_a_bad_file_shows_all_problems_and_exits_with_2(tmp_path: Path) -> None:
    path, out = tmp_path / "bad.yaml", tmp_path / "plan.json"
    path.write_text(
        WORKING.replace("repeats: 3", "repeat: 3")
        .replace("60s", "60")
        .replace("h100\n", "h10\n", 1)
    )
    done = orchestrator("plan", path, "--output", out)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: {path}:8: unknown hardware 'h10' (did you mean 'h100'?)",
        f"error: {path}:12: 'duration': 60 is not a duration with its unit, like 500ms, 60s or 2h",
        f"error: {path}:13: unknown key 'repeat' (did you mean 'repeats'?)",
        "3 problems; nothing was started",
    ]
    assert not out.exists()


def test_a_missing_file_exits_with_2(tmp_path: Path) -> None:
    done = orchestrator("plan", tmp_path / "none.yaml")
    assert done.returncode == 2
    assert "none.yaml: cannot be read: No such file or directory" in done.stderr


def test_the_number_of_nodes_is_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(WORKING.replace("vary:", "nnodes: 2\n  vary:"))
    found = as_json(path, "--nodes", "1")["deployments"][-1]
    assert found["reasons"] == ["needs 2 nodes; the cluster has 1"]
    assert as_json(path, "--nodes", "2")["deployments"][-1]["status"] != "impossible"


def test_the_help_has_examples() -> None:
    done = orchestrator("plan", "--help")
    assert done.returncode == 0
    assert "orchestrator plan experiments/quickstart.yaml" in done.stdout


@pytest.mark.parametrize("path", EXPERIMENTS, ids=[path.stem for path in EXPERIMENTS])
def test_every_experiment_plans_without_a_network(path: Path) -> None:
    found = as_json(path)
    assert found["name"] == path.stem
    assert found["points"] > 0
    assert found["planned"] + found["risky"] > 0


def test_the_quickstart_runs_everything_it_names() -> None:
    found = as_json(ROOT / "experiments" / "quickstart.yaml")
    rows = [
        (one["settings"]["engine"], one["settings"]["tensor_parallel_size"], one["settings"]["pipeline_parallel_size"],
         one["settings"]["nnodes"])
        for one in found["deployments"]
        if one["status"] in ("planned", "risky")
    ]  # fmt: skip
    assert rows == [
        ("vllm", 1, 1, 1),
        ("vllm", 2, 1, 1),
        ("vllm", 1, 2, 1),
        ("vllm", 2, 1, 2),
        ("sglang", 1, 1, 1),
        ("sglang", 2, 1, 1),
        ("transformers", 1, 1, 1),
    ]
    assert found["points"] == 14
    assert all(
        one["settings"]["model"] == str(ROOT / ".demo" / "model") for one in found["deployments"]
    )


def test_run_does_not_begin_without_the_key_of_an_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    endpoint = (
        "{engine: endpoint, url: 'http://127.0.0.1:9', served_model_name: m, api_key_env: "
        "NO_SUCH_KEY_AT_ALL}"
    )
    head, _, rest = WORKING.partition("deployments:")
    path.write_text(f"{head}deployments: {endpoint}\nworkloads:{rest.partition('workloads:')[2]}")
    assert (
        "note: NO_SUCH_KEY_AT_ALL (api_key_env) is not set here"
        in orchestrator("plan", path).stdout
    )
    done = orchestrator("run", path, "--results", tmp_path / "results", "--address", "local")
    assert done.returncode == 2
    assert "set the environment variables that api_key_env names: NO_SUCH_KEY_AT_ALL" in done.stderr
    assert not (tmp_path / "results").exists()
