"""The demo on real engines, as the README has it, and beside its deployments real ways to fail, in
the same store.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import (
    ROOT,
    assert_nothing_left,
    assert_rows_equal_schedule,
    manifests,
    only_disturbed,
    orchestrator,
    outside_of_make,
    rows,
)

pytestmark = [
    *(
        pytest.mark.cluster,
        pytest.mark.vllm,
        pytest.mark.sglang,
        pytest.mark.transformers,
        pytest.mark.timeout(3000),
    ),
]

FILE = ROOT / "experiments" / "quickstart.yaml"
DEMO_LIMIT_S, MORE_LIMIT_S = 2100.0, 840.0
DEPLOYMENTS = 7
LEVELS = 2
# checkpoints of the same shape: the rows of every down_proj in another order; no number at all
# before the output
SPOILED = {"shuffled": "down_proj.weight", "nan": "lm_head.weight"}
WITHOUT_WEIGHTS = "not-there"


@dataclass(frozen=True, slots=True)
class Demo:
    """What ``make demo`` left and printed."""

    results: Path
    output: str


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """``make demo`` as the README has it. Other tests may disturb what it measures."""
    (block,) = blocks_run_by(__file__, "README.md")
    commands = list(command_lines(block))
    assert commands == [["make", "demo"], ["make", "clean"]]
    done = subprocess.run(
        [*commands[0], "--old-file=.venv/installed"],
        cwd=ROOT,
        env=outside_of_make(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEMO_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0 or only_disturbed(done.stdout), done.stdout[-6000:]
    shown = re.search(r"^Parquet: (.+)$", done.stdout, re.MULTILINE)
    assert shown, done.stdout[-6000:]
    yield Demo(Path(shown[1]), done.stdout)
    shutil.rmtree(shown[1])


@pytest.fixture(scope="module")
def swept(
    demo: Demo, two_nodes: RayOnThisMachine, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The results of the demo, and in them those of two spoiled models and of one without weights.
    vLLM compiles nothing for these, which would take half a minute. Paths are written as in the
    demo's file, since they are part of what a deployment is known by.
    """
    above = tmp_path_factory.mktemp("real")
    for name in (".demo", ".engines"):
        (above / name).symlink_to(ROOT / name)
    folder = above / FILE.parent.name
    folder.mkdir()
    model = ROOT / ".demo" / "model"
    experiment = yaml.safe_load(FILE.read_text())
    plain = {key: value for key, value in experiment["deployments"][0].items() if key != "vary"}
    (folder / WITHOUT_WEIGHTS).mkdir()
    shutil.copy(model / "config.json", folder / WITHOUT_WEIGHTS)
    for name, weights in SPOILED.items():
        spoil(folder / name, weights)
    for name in (WITHOUT_WEIGHTS, *SPOILED):
        other = {"model": f"./{name}", "tokenizer": str(model), "enforce_eager": True}
        experiment["deployments"].append(plain | other)
    path = folder / FILE.name
    path.write_text(yaml.safe_dump(experiment))
    done = orchestrator(
        "run",
        str(path),
        "--results",
        str(demo.results),
        "--address",
        two_nodes.address,
        timeout_s=MORE_LIMIT_S,
    )
    assert done.returncode == 3, done.stderr[-4000:]
    assert f"{DEPLOYMENTS * LEVELS} already done" in done.stderr, done.stderr[-4000:]
    return demo.results


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


def test_the_demo_measures_all_its_deployments_and_names_its_page(demo: Demo) -> None:
    count = DEPLOYMENTS * LEVELS
    assert f"{count} points measured, 0 failed" in demo.output
    pages = re.findall(r"^page: (\S+/quickstart/report\.html)$", demo.output, re.MULTILINE)
    assert pages, demo.output[-3000:]
    assert Path(pages[-1]).is_relative_to(demo.results)
    assert Path(pages[-1]).stat().st_size > 0
    # a busy machine may leave nothing valid to rank
    assert re.search(r"^(best: |no valid measurement: )", demo.output, re.MULTILINE), demo.output


def test_real_deployments_serve(swept: Path) -> None:
    ok = [one for one in manifests(swept) if one["status"] == "ok"]
    failed = [one["reason"] for one in manifests(swept) if one["status"] != "ok"]
    assert len(ok) == (DEPLOYMENTS + len(SPOILED)) * LEVELS, failed
    assert not any(row["emulated"] for row in rows(swept, "points"))
    counts = assert_rows_equal_schedule(swept)
    assert all(counts[one["attempt_id"]] > 0 for one in ok)


def test_token_counts_come_from_the_engine_and_are_what_was_asked(swept: Path) -> None:
    good = [row for row in rows(swept, "requests") if row["status"] == "ok"]
    assert good
    assert all(row["output_tokens"] == row["output_tokens_asked"] for row in good)
    assert {row["token_count_source"] for row in good} <= {"usage", "token_ids", "continuous_usage"}


def test_answers_agree_however_the_model_is_cut_and_a_spoiled_one_is_told(swept: Path) -> None:
    told = json.loads(orchestrator("results", str(swept), "--format", "json").stdout)
    points = {one["label"]: one for one in told if one["status"] == "ok" and one["level"] == 2}
    spoiled = {
        name: next(one for label, one in points.items() if name in label) for name in SPOILED
    }
    good = [one for one in points.values() if one not in spoiled.values()]
    (reference,) = {one["agreement_reference"] for one in points.values()}
    assert len(good) == DEPLOYMENTS
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
    points, starts = (of(swept, table, model=WITHOUT_WEIGHTS) for table in ("points", "launches"))
    assert len(points) == LEVELS
    for point in points:
        assert (point["status"], point["failure_class"]) == ("failed", "bad_config")
        assert "Cannot find any model weights" in point["reason"]
    (start,) = starts
    assert start["failure_kind"] == "no_model"
    assert start["log_tail"]


def test_nothing_is_left(swept: Path) -> None:
    assert_nothing_left()
