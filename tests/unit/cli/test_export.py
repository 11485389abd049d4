"""``orchestrator export``: the files it writes, what it says, and its exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.exchange.recorded import VLLM
from tests.unit.plan.stored_sweeps import planned, planned_mix, store_sweep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    return store


def test_llm_d_reports_are_one_file_per_point(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    done = invoke("export", store.uri, "--format", "llm-d", "--output", str(folder))
    assert (done.status, done.stdout) == (
        0,
        f"2 files in {folder}: llm-d benchmark report 0.2.1\n",
    )
    reports = [json.loads(path.read_text()) for path in folder.iterdir()]
    assert {report["version"] for report in reports} == {"0.2.1"}
    assert len({report["run"]["uid"] for report in reports}) == 2
    assert len({report["run"]["eid"] for report in reports}) == 1


def test_rows_are_one_file_and_what_has_no_place_is_counted(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned(), validity="disturbed")
    store_sweep(store, planned(levels=[2, 4]))
    folder = tmp_path / "rows"
    done = invoke("export", store.uri, "--format", "inferencex", "--output", str(folder))
    assert done.status == 0
    assert done.stdout == (
        f"{folder}/agg_exp.json: 2 points, InferenceX rows\nleft out: 2 points: it is disturbed\n"
    )
    rows = json.loads((folder / "agg_exp.json").read_text())
    assert [row["conc"] for row in rows] == [4, 4]


def test_where_nothing_can_be_written_the_status_says_so(tmp_path: Path) -> None:
    invoke("import", str(VLLM), "--results", str(tmp_path / "results"))
    done = invoke(
        *("export", str(tmp_path / "results"), "--format", "inferencex"),
        *("--output", str(tmp_path / "rows")),
    )
    assert done.status == 3
    assert done.stdout == (
        "InferenceX rows: nothing to write\n"
        "left out: 1 point: it was measured by vllm bench serve\n"
    )
    assert not (tmp_path / "rows").exists()


def test_an_unknown_format_is_refused_with_the_known_ones(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Known: inferencex, llm-d"):
        invoke("export", store.uri, "--format", "llmd", "--output", str(tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_rows_of_a_mix_have_no_place_for_its_parts_and_the_output_says_so(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned_mix(), ttft_ms={"chat": 100, "rag": 400})
    done = invoke(
        *("export", store.uri, "--format", "inferencex", "--output", str(tmp_path / "rows"))
    )
    assert done.stdout == (
        f"{tmp_path}/rows/agg_exp.json: 2 points, InferenceX rows\n"
        "2 points of mixes are written whole, without their parts: "
        "a row stands for all that the GPUs did\n"
    )
