"""The Python and SQL of docs/guides/, run as it stands: it agrees with what ``orchestrator
results`` prints.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import orchestrator
from orchestrator.results.store import Store
from tests.integration.test_results_commands import documented_query
from tests.unit.plan.stored_sweeps import invoke, planned, store_sweep

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
RECIPES = (GUIDES / "notebooks.md").read_text() + (GUIDES / "sql.md").read_text()
TRACKERS = ("mlflow", "wandb")
SLO = "ttft<=150ms,attainment>=0.9"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("results"))
    # superseded by what follows
    store_sweep(Store.open(folder, "exp"), planned(tokens=64), tokens=64)
    store_sweep(Store.open(folder, "exp"), planned(tokens=8, levels=[2, 4]), tokens=8)
    return folder


@pytest.fixture(scope="module")
def shown(uri: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        invoke("results", uri, "--slo", SLO, "--format", "json").stdout
    )
    return found


def sql(title: str) -> str:
    found = re.search(rf"### {re.escape(title)}\n\n```sql\n(.*?)```", RECIPES, re.DOTALL)
    assert found, title
    return found[1]


def test_every_python_recipe_runs_and_agrees_with_results(
    uri: str, shown: list[dict[str, Any]]
) -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL):
        if not any(name in block for name in ("orchestrator.plot", *TRACKERS)):
            exec(block.replace('"results/', f'"{uri}/'), names)
    points = names["points"]
    assert points["ttft_ms.p99"].tolist() == [one["ttft_ms"]["p99"] for one in shown]
    assert names["goodput"]["goodput"].tolist() == [one["slo"]["goodput"] for one in shown]
    assert names["goodput"]["attainment.lower"].tolist() == [
        one["slo"]["attainment"]["lower"] for one in shown
    ]
    assert names["curve"].loc[4.0].tolist() == [
        one["ttft_ms"]["p99"] for one in shown if one["level"] == 4
    ]
    assert len(names["pareto"]) == 4  # all alike: none beats another
    assert names["costs"]["usd_per_m_output"].isna().all()  # nobody named a price
    assert set(names["capacity"]["level"]) == {4}
    assert names["kv_cache"].empty  # these engines reported nothing
    assert names["polars_points"]["ttft_ms.p99"].to_list() == points["ttft_ms.p99"].tolist()
    assert names["polars_points"].columns == points.columns.tolist()
    polars_pareto = orchestrator.frontier(names["polars_points"])
    assert polars_pareto["per_user"].to_list() == names["pareto"]["per_user"].tolist()
    assert names["ttft"].filter(level=4).row(0)[1:] == tuple(names["curve"].loc[4.0])
    polars_goodput = {one["measurement_id"]: one for one in names["polars_goodput"].to_dicts()}
    for one in shown:
        (repeat,) = one["repeats"]
        found = polars_goodput[repeat["measurement_id"]]
        assert (found["attainment"], found["goodput"]) == (
            repeat["slo"]["attainment"]["estimate"],
            repeat["slo"]["goodput"],
        )
    raw = orchestrator.read(uri, "requests")
    assert sum(table.num_rows for table in orchestrator.requests(uri)) == len(raw)


def test_the_first_plot_takes_three_lines(uri: str, shown: list[dict[str, Any]]) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    (block,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", RECIPES, re.DOTALL)
        if "orchestrator.plot" in block
    ]
    assert len(re.findall(r"^.", block, re.MULTILINE)) == 3
    names: dict[str, Any] = {}
    exec(block.replace('"results/', f'"{uri}/'), names)
    drawn = [sorted(line.get_xydata().tolist()) for line in names["axes"].lines]
    for label in {one["label"] for one in shown}:
        levels = [one for one in shown if one["label"] == label]
        assert sorted([one["level"], one["ttft_ms"]["p99"]] for one in levels) in drawn


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_every_setting_is_a_column_with_its_default(library: Any, uri: str) -> None:
    deployments = orchestrator.read(uri, "deployments", library=library)
    for frame in (
        orchestrator.metrics(uri, library=library),
        orchestrator.points(uri, columns="all", library=library),
        orchestrator.best(uri, columns="all", library=library),
        deployments,
    ):
        assert set(frame["settings.max_num_seqs"]) == {8, 16}
        assert set(frame["settings.tensor_parallel_size"]) == {1}
        is_missing = (
            frame["settings.dtype"].is_null if library == "polars" else frame["settings.dtype"].isna
        )
        assert is_missing().all()
    assert set(deployments["max_num_seqs"]) == {8, 16}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_an_empty_ranking_has_the_columns_of_one_with_rows(library: Any, uri: str) -> None:
    ranked = orchestrator.best(uri, "ttft<=10s", library=library)
    empty = orchestrator.best(uri, "ttft<=1us", library=library)
    assert len(empty) == 0
    assert len(ranked) > 0
    assert list(ranked.columns) == list(empty.columns)
    assert empty[["deployment", "level", "censored", "certain", "capacity.low"]].shape == (0, 5)


def test_an_empty_ranking_says_why_it_is_empty(uri: str) -> None:
    empty = orchestrator.best(uri, "ttft<=1us")
    assert "no deployment holds ttft<=" in empty.attrs["why"]
    assert "certain" in orchestrator.best(uri).attrs["why"]


def test_completion_in_a_notebook_offers_the_api_and_nothing_else() -> None:
    offered = [name for name in dir(orchestrator) if not name.startswith("_")]
    assert offered == orchestrator.__all__


def test_every_sql_recipe_runs_and_agrees_with_results(
    uri: str, shown: list[dict[str, Any]]
) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"SET file_search_path = '{uri}/exp'")
        # winners
        connection.execute(
            documented_query("### DuckDB").partition("CREATE OR REPLACE TEMP VIEW")[0]
        )
        connection.execute(sql("Figures of every measurement"))
        curve = connection.execute(sql("TTFT against load")).fetchall()
        expected = {
            (one["label"], one["level"], one["ttft_ms"]["p50"], one["ttft_ms"]["p99"])
            for one in shown
        }
        assert expected <= set(curve)
        Path(uri, "exp", "points.csv").write_text(invoke("results", uri, "--format", "csv").stdout)
        found = re.search(r"SEMI JOIN read_csv\(.*?\) USING \(\w+\)", RECIPES)
        assert found is not None
        now = sql("TTFT against load").replace("FROM figures", f"FROM figures {found[0]}")
        assert set(connection.execute(now).fetchall()) == expected, "without superseded points"
        met = {
            name: rest
            for name, *rest in connection.execute(
                sql("Attainment and goodput at any limits")
            ).fetchall()
        }
    for one in shown:
        (repeat,) = one["repeats"]
        attainment, goodput = met[repeat["measurement_id"]]
        assert attainment == repeat["slo"]["attainment"]["estimate"]
        assert goodput == repeat["slo"]["goodput"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, orchestrator; print({'pandas', 'pyarrow', 'pydantic', 'numpy'} & "
        "set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="nothing"):
        orchestrator.nothing  # noqa: B018


def tracker_recipe(name: str, uri: str) -> str:
    """The recipe that writes to a tracker of runs, for these results."""
    (block,) = re.findall(rf"```python\n(import {name}\n.*?)```", RECIPES, re.DOTALL)
    assert len(block.splitlines()) <= 15
    return f"import orchestrator\n{block}".replace('"results/', f'"{uri}/')


def test_mlflow_gets_a_run_per_point_with_every_figure(
    uri: str, shown: list[dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    runs = tmp_path / "mlruns"
    recipe = tracker_recipe("mlflow", uri).replace("file:mlruns", f"file:{runs}")
    read_back = (
        "import json\n"
        "stored = mlflow.MlflowClient().search_runs(\n"
        "    [mlflow.get_experiment_by_name('serving').experiment_id])\n"
        "print(json.dumps([{'params': each.data.params, 'metrics': each.data.metrics,\n"
        "    'tags': each.data.tags} for each in stored]))\n"
    )
    stored = json.loads(run_recipe(recipe + read_back, tmp_path).splitlines()[-1])
    assert len(stored) == len(shown)
    by_point = {run["tags"]["point_id"]: run for run in stored}
    for point in shown:
        logged = by_point[point["point_id"]]
        assert logged["tags"]["validity"] == point["validity"]
        assert logged["params"]["deployment"] == point["label"]
        assert float(logged["params"]["level"]) == point["level"]
        assert logged["metrics"]["ttft_ms.p99"] == point["ttft_ms"]["p99"]
        assert (
            logged["metrics"]["output_token_throughput.lower"]
            == (point["output_token_throughput_interval"]["lower"])
        )


def test_weights_and_biases_gets_a_run_per_point_with_every_figure(
    uri: str, shown: list[dict[str, Any]], tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    run_recipe(tracker_recipe("wandb", uri), tmp_path)
    figures = [wandb_summary(path) for path in sorted(tmp_path.rglob("run-*.wandb"))]
    assert len(figures) == len(shown)
    assert sorted(each["ttft_ms.p99"] for each in figures) == sorted(
        point["ttft_ms"]["p99"] for point in shown
    )


def wandb_summary(path: Path) -> dict[str, Any]:
    """The summary of a run that was logged offline, from its own file."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    summary: dict[str, Any] = {}
    for data in wandb_records(path.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        for item in record.summary.update:
            key = item.key or ".".join(item.nested_key)
            summary[key] = json.loads(item.value_json)
    return summary


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, behind a header of 7 bytes: blocks of 32 KiB,
    with records cut at their ends (1: whole, 2: first, 3: middle, 4: last part).
    """
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length = int.from_bytes(content[place + 4 : place + 6], "little")
        part = content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if part in (1, 4):
            yield record
            record = b""


def run_recipe(code: str, folder: Path) -> str:
    """Runs the code in a process of its own, offline; returns what it printed."""
    offline = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    environment = os.environ | offline
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
