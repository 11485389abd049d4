"""``orchestrator import``: what it says, and that every view of the points names their tool."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pyarrow.compute as pc
import pytest

import orchestrator
from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.exchange.recorded import (
    AIPERF,
    AIPERF_RECORDS,
    GUIDELLM,
    VLLM,
    VLLM_DETAILED,
    changed,
)
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.results.builders import commit_measurement, request

LIMITS = "ttft<=10s,attainment>=0.5"


def test_each_file_has_a_line_and_what_is_not_stored_is_counted(tmp_path: Path) -> None:
    done = invoke("import", str(GUIDELLM), str(VLLM), "--results", str(tmp_path))
    lines = done.stdout.splitlines()
    assert done.status == 0
    assert lines[0].endswith("benchmarks.json: GuideLLM 0.8.1, 2 points")
    assert lines[1].startswith("  values not stored: output (40), config (")
    assert lines[2].endswith("1 point without requests, so no limits can be judged")
    assert lines[-1] == (
        f"3 points stored; to see them: orchestrator results {shlex.quote(f'{tmp_path}/imported')}"
    )


def test_a_second_import_says_what_was_there(tmp_path: Path) -> None:
    invoke("import", str(VLLM), "--results", str(tmp_path))
    done = invoke("import", str(VLLM), "--results", str(tmp_path))
    assert "1 of them imported before" in done.stdout
    assert "0 points stored" in done.stdout


def test_records_are_the_requests_of_their_summary(tmp_path: Path) -> None:
    done = invoke("import", str(AIPERF), str(AIPERF_RECORDS), "--results", str(tmp_path))
    assert "the requests of another file's point" in done.stdout
    assert "1 point stored" in done.stdout


def test_where_a_file_cannot_be_read_nothing_is_stored(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    results = tmp_path / "results"
    with pytest.raises(ProblemsError, match=r"broken\.json"):
        invoke("import", str(VLLM), str(broken), "--results", str(results))
    assert not results.exists()


def test_points_do_not_join_an_experiment_of_this_program(tmp_path: Path) -> None:
    store_sweep(Store.open(str(tmp_path), "exp"), planned())
    with pytest.raises(InputError, match="give another --name"):
        invoke("import", str(VLLM), "--results", str(tmp_path), "--name", "exp")


@pytest.fixture
def peers(tmp_path: Path) -> str:
    uri = str(tmp_path / "results")
    invoke("import", str(GUIDELLM), str(VLLM_DETAILED), "--results", uri, "--name", "peers")
    return uri


def test_results_name_the_tool_and_whose_definitions_these_are(peers: str) -> None:
    done = invoke("results", peers)
    assert "prompts of peers: mock (GuideLLM 0.8.1)" in done.stdout
    assert "prompts of peers: mock (vllm bench serve)" in done.stdout
    assert "imported from GuideLLM 0.8.1, vllm bench serve: figures as defined there" in (
        done.stdout.replace("\n  ", " ")
    )
    assert "no plan.json" not in done.stderr
    shown = json.loads(invoke("results", peers, "--format", "json").stdout)
    assert {each["source"] for each in shown} == {"GuideLLM 0.8.1", "vllm bench serve"}
    assert {each["validity"] for each in shown} == {"unchecked"}


def test_each_tool_is_ranked_by_itself(peers: str) -> None:
    done = invoke("best", peers, "--slo", LIMITS, "--format", "json")
    comparisons = json.loads(done.stdout)["comparisons"]
    assert sorted(each["source"] for each in comparisons) == [
        "GuideLLM 0.8.1",
        "vllm bench serve",
    ]
    for comparison in comparisons:
        assert {each["source"] for each in comparison["ranking"]} == {comparison["source"]}


def test_imported_points_are_not_ranked_with_ours_even_in_one_experiment(tmp_path: Path) -> None:
    invoke("import", str(VLLM_DETAILED), "--results", str(tmp_path))
    store = Store.open(str(tmp_path), "imported")
    rows = [request(n, n * 100, first_ms=n * 100 + 9, last_ms=n * 100 + 99) for n in range(50)]
    (workload,) = store.read("points", ["workload_json"])["workload_json"].to_pylist()
    (deployment,) = store.read("deployments").to_pylist()
    commit_measurement(
        store,
        "ours",
        rows,
        deployment=deployment,
        deployment_id=deployment["deployment_id"],
        workload="prompts",
        workload_json=workload,
        experiment="imported",
    )
    done = invoke("best", str(tmp_path), "--slo", LIMITS, "--format", "json")
    comparisons = json.loads(done.stdout)["comparisons"]
    assert [each["source"] for each in comparisons].count("vllm bench serve") == 1
    assert None in [each["source"] for each in comparisons]
    for comparison in comparisons:
        assert {each["source"] for each in comparison["ranking"]} == {comparison["source"]}


def test_points_of_two_tools_are_no_pair(tmp_path: Path) -> None:
    like_the_other = changed(VLLM, tmp_path, total_input_tokens=17 * 20)
    invoke("import", str(like_the_other), "--results", str(tmp_path / "a"))
    invoke("import", str(AIPERF), "--results", str(tmp_path / "b"))
    done = invoke("compare", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "json")
    assert done.status == 3
    assert json.loads(done.stdout)["changes"] == []
    alike = invoke("compare", str(tmp_path / "a"), str(tmp_path / "a"), "--format", "json")
    assert json.loads(alike.stdout)["changes"] != []


def test_frames_have_the_tool_and_a_frontier_mixes_none(peers: str) -> None:
    points = orchestrator.points(peers, library="arrow")
    assert set(points["source"].to_pylist()) == {"GuideLLM 0.8.1", "vllm bench serve"}
    with pytest.raises(InputError, match="points of other tools do not compare"):
        orchestrator.frontier(points)
    of_one = points.filter(pc.equal(points["source"], "GuideLLM 0.8.1"))
    assert orchestrator.frontier(of_one).num_rows <= of_one.num_rows == 2


def test_the_page_names_the_tool(peers: str, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    invoke("report", peers, "--output", str(output))
    html = output.read_text()
    assert "imported from GuideLLM 0.8.1, vllm bench serve: figures as defined there" in html
    assert "another tool measured it: nothing is known of its client" in html


def test_stored_files_are_whole(peers: str) -> None:
    assert invoke("verify", peers).status == 0
