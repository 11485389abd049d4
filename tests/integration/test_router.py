"""Real routers in front of emulated replicas, equal ones and roles, as a sweep on this machine
starts them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.harness import (
    assert_nothing_left,
    assert_rows_equal_schedule,
    engine_processes,
    exit_status,
    orchestrator,
    rows,
    start,
    wait_for,
    write_experiment,
)
from tests.integration.engine_real import home_of

pytestmark = pytest.mark.vllm  # routers are installed with the engines
EXPERIMENT = """
version: 1
name: routed
model: meta-llama/Llama-3.1-8B-Instruct
deployments:
  engine: emulator
  REPLICAS
  router: {engine: NAME, executable: HOME, extra_args: {"--policy": round_robin}}
workloads: [{name: short, input_tokens: 16, output_tokens: 8}]
load: {levels: {concurrency: [2]}, duration: SECONDSs, warmup: 0s}
"""


def written(folder: Path, name: str, replicas: str, seconds: int) -> tuple[str, Path]:
    """The experiment file, and where its results go."""
    given = {
        "REPLICAS": replicas,
        "NAME": name,
        "HOME": str(home_of(name)),
        "SECONDS": str(seconds),
    }
    text = re.sub("|".join(given), lambda match: given[match[0]], EXPERIMENT)
    return str(write_experiment(folder, text)), folder / "results"


@pytest.mark.parametrize("name", ["vllm_router", "sglang_router"])
def test_a_real_router_shares_the_load_among_replicas_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    experiment, results = written(tmp_path, name, "replicas: 2", 2)
    done = orchestrator("run", experiment, "--results", str(results), "--address", "local")
    assert done.returncode == 0, done.stderr
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    assert {row["status"] for row in rows(results, "requests")} == {"ok"}
    (launch,) = rows(results, "launches")
    assert [one["role"] for one in json.loads(launch["placement_json"])] == ["", "", "router"]
    assert launch["emulated"], "its replicas are"
    told = rows(results, "engine_metrics")
    for replica in (0, 1):
        tokens = [row["generation_tokens_total"] for row in told if row["replica"] == replica]
        assert max(tokens) > min(tokens), f"the router asks replica {replica} too"


def loaded(role: str) -> tuple[psutil.Process, dict[str, float]] | None:
    """The emulated replica of a role and what it tells of itself, once it has answered 40 tokens."""
    for process in engine_processes():
        said = " ".join(process.cmdline())
        if "-m orchestrator.emulator" in said and f"--role {role}" in said:
            port = said.partition("--port ")[2].split()[0]
            try:
                with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                    lines = re.findall(r"^vllm:(\w+){[^}]*} (\S+)$", answer.read().decode(), re.M)
            except OSError:
                return None
            told = {name: float(value) for name, value in lines}
            return (process, told) if told["generation_tokens_total"] >= 40 else None
    return None


def test_roles_hand_over_and_are_launched_anew_whole_when_one_of_them_is_killed(
    tmp_path: Path,
) -> None:
    experiment, results = written(tmp_path, "vllm_router", "roles: {prefill: {}, decode: {}}", 4)
    log = tmp_path / "run.log"
    run = start("run", experiment, "--results", str(results), "--address", "local", log=log)
    try:
        process, told = wait_for(lambda: loaded("decode"), 60, "the decode replica answers")
        process.kill()
        assert told["prompt_tokens_cached_total"] == told["prompt_tokens_total"] > 0, (
            "it is given every KV cache"
        )
        assert exit_status(run, 120, log) == 0, log.read_text()
    finally:
        run.kill()
    assert_nothing_left()
    assert_rows_equal_schedule(results)
    died, whole = sorted(rows(results, "launches"), key=lambda row: row["started_unix_ns"])
    assert (died["status"], whole["status"]) == ("failed", "ok")
    assert died["reason"].startswith("decode: ")
    assert died["emulated"] and whole["emulated"]
    assert [one["role"] for one in json.loads(whole["placement_json"])] == [
        "prefill",
        "decode",
        "router",
    ]
    (point,) = [row for row in rows(results, "points") if row["status"] == "ok"]
    answered = [
        row for row in rows(results, "requests") if row["attempt_id"] == point["attempt_id"]
    ]
    assert {(row["status"], row["output_tokens"]) for row in answered} == {("ok", 8)}
    samples = [
        row for row in rows(results, "engine_metrics") if row["attempt_id"] == point["attempt_id"]
    ]
    assert {row["role"] for row in samples} == {"prefill", "decode"}
