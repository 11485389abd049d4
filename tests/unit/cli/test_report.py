"""``orchestrator report``: the file it writes, and its exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.prediction import Prediction
from orchestrator.base.errors import InputError
from orchestrator.report.page import payload
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.test_capacity_table import store_search


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned())
    return store


def test_the_page_has_the_answer_under_each_limit(store: Store, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    done = invoke("report", store.uri, "--output", str(output))
    assert done.status == 0
    html = output.read_text()
    assert "interactive (ttft&lt;=150ms,<wbr>attainment&gt;=0.9)" in html
    assert "tight (ttft&lt;=1ms,<wbr>attainment&gt;=0.9)" in html


def test_a_search_that_claims_nothing_yet_is_marked_as_an_estimate(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_search(store, levels=((8, 100, 1), (16, 300, 1)))
    output = tmp_path / "page.html"
    invoke("report", store.uri, "--output", str(output))
    html = output.read_text()
    assert "emulator seqs=8 at 11.2 req/s (estimate)" in html
    assert "estimate, expected by the search and not claimed" in html
    assert "<td>11.2</td><td>6.7-15.7</td><td>-</td>" in html, "the row of all that searches claim"
    assert "claim, computed by the search" not in html


def test_it_says_where_the_page_is_and_how_large(store: Store, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    done = invoke("report", store.uri, "--output", str(output))
    size_mb = output.stat().st_size / 1e6
    assert f"page.html: {size_mb:.1f} MB" in done.stdout


def test_an_experiment_that_is_not_there_is_refused(store: Store, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    with pytest.raises(InputError, match="other"):
        invoke("report", store.uri, "--experiment", "other", "--output", str(output))
    assert not output.exists()


def test_a_page_for_a_folder_that_is_not_there_is_refused_before_anything_is_read(
    store: Store, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=f"no folder {missing}"):
        invoke("report", store.uri, "--output", str(missing / "page.html"))


def test_more_requests_than_a_browser_can_judge_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "MOST_REQUESTS", 1)
    with pytest.raises(InputError, match=r"too many for one page \(at most 1\)"):
        invoke("report", store.uri, "--output", str(tmp_path / "page.html"))


def test_a_predicted_point_may_lack_latencies_that_were_predicted(tmp_path: Path) -> None:
    """One token has no TPOT."""
    level = {"workload": "chat", "control": "concurrency", "level": 2, "ttft_ms": 1, "tpot_ms": 1}
    predicted = {
        "levels": [level | {"output_throughput": 1e6}],
        "error": {
            "ttft": 0.1,
            "tpot": 0.1,
            "source": "a test",
            "within": {"ttft": 1.1, "tpot": 1.1},
            "counted": False,
        },
    }
    plan = planned(tokens=1)
    deployments = tuple(
        deployment.model_copy(update={"predicted": Prediction.from_document(predicted)})
        for deployment in plan.deployments
    )
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, plan.model_copy(update={"deployments": deployments}), 1)
    output = tmp_path / "page.html"
    assert invoke("report", store.uri, "--output", str(output)).status == 0
    assert "predicted" in output.read_text().lower()
