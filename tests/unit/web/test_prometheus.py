"""What Prometheus reads, with its own parser; and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.report.documents.run import RunDocument
from orchestrator.results.runs import RunRecord
from orchestrator.results.store import Store
from orchestrator.web.prometheus import exposition
from orchestrator.web.watched import Watched, WatchedResults
from tests.unit.plan.stored_sweeps import planned, planned_mix, store_sweep
from tests.unit.report.stores import points_of

GRID_COLUMNS = 24
DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.open(str(tmp_path_factory.mktemp("results")), "exp")
    store_sweep(store, planned_mix(), ttft_ms={"chat": 100, "rag": 400})
    return store


@pytest.fixture(scope="module")
def samples(store: Store) -> dict[str, list]:
    watched = WatchedResults(store.uri)
    watched.look()
    record = RunRecord(run_id="a", place="elsewhere", total=5, measured=4, failed=1, left_s=30.0)
    now = Watched(watched.now.content, (RunDocument("exp", record, age_s=2.5),), 100.0)
    families = text_string_to_metric_families(exposition(now).decode())
    return {family.name: family.samples for family in families}


def value(samples: dict[str, list], name: str, **labels: str) -> float:
    (found,) = [each for each in samples[name] if labels.items() <= each.labels.items()]
    return found.value


def test_the_latest_run_stands_there(samples) -> None:
    assert value(samples, "orchestrator_run_state", experiment="exp", state="running") == 1
    assert value(samples, "orchestrator_run_measurements", kind="asked") == 5
    assert value(samples, "orchestrator_run_measurements", kind="measured") == 4
    assert value(samples, "orchestrator_run_left_seconds") == 30
    assert value(samples, "orchestrator_run_last_heartbeat_timestamp_seconds") == 97.5


def test_each_point_stands_there_with_the_figures_of_the_analysis(samples, store) -> None:
    points = points_of(store)
    throughputs = sorted(point.figures.output_token_throughput or 0.0 for point in points)
    name = "orchestrator_point_output_tokens_per_second"
    assert sorted(each.value for each in samples[name]) == throughputs
    ttft = [
        each
        for each in samples["orchestrator_point_latency_seconds"]
        if each.labels["of"] == "ttft"
    ]
    p99 = sorted(each.value for each in ttft if each.labels["percentile"] == "99")
    assert p99 == sorted(point.figures.ttft_ms.p99 / 1000 for point in points)


def test_each_part_of_a_mix_has_figures_and_attainment_of_its_own(samples) -> None:
    for part, ttft_s in (("chat", 0.1), ("rag", 0.4)):
        percentiles = [
            sample.value
            for sample in samples["orchestrator_part_latency_seconds"]
            if sample.labels["part"] == part and sample.labels["of"] == "ttft"
        ]
        assert percentiles == pytest.approx([ttft_s] * 4)  # of two points
        attainments = [
            (sample.labels["slo"], sample.value)
            for sample in samples["orchestrator_part_attainment_ratio"]
            if sample.labels["part"] == part
        ]
        assert attainments == [("interactive", 1)] * 2
    for name in ("output_tokens_per_second", "requests"):
        of_points = sum(sample.value for sample in samples[f"orchestrator_point_{name}"])
        of_parts = sum(sample.value for sample in samples[f"orchestrator_part_{name}"])
        assert of_parts == pytest.approx(of_points)


def test_the_best_deployment_is_that_of_the_answer(samples, store) -> None:
    watched = WatchedResults(store.uri)
    watched.look()
    answers = watched.now.content.document.answer.comparisons
    winners = {
        each.comparison.slo.name: each.ranking[0].deployment for each in answers if each.ranking
    }
    assert winners
    for name, winner in winners.items():
        found = value(samples, "orchestrator_best_throughput", slo=name, deployment=winner.label)
        assert found == winner.throughput.estimate


SOURCES = {
    "measured": {},
    "emulated": {"emulated": True},
    "simulated": {"simulated": True, "emulated": True},
    "guidellm 0.8.1": {"source": "guidellm 0.8.1"},
}


@pytest.mark.parametrize("source", SOURCES)
def test_each_figure_says_where_it_comes_from(tmp_path: Path, source: str) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(), **SOURCES[source])
    watched = WatchedResults(store.uri)
    watched.look()
    families = text_string_to_metric_families(exposition(watched.now).decode())
    labelled = {
        family.name: {sample.labels.get("source") for sample in family.samples}
        for family in families
        if not family.name.startswith("orchestrator_run_")
    }
    assert len(labelled) == 10
    assert set.union(*labelled.values()) == {source}


def test_points_are_counted_by_validity(samples, store) -> None:
    assert sum(each.value for each in samples["orchestrator_points"]) == len(points_of(store))


def test_nothing_stored_is_no_error() -> None:
    assert b"orchestrator_points" in exposition(WatchedResults("nowhere").now)


def test_the_documentation_lists_each_metric_with_its_labels(samples) -> None:
    text = (DASHBOARD.parent / "reference" / "prometheus.md").read_text()
    rows = re.findall(r"^\| `(orchestrator_\w+)` \| (.*?) \|", text, re.MULTILINE)
    assert {name for name, _ in rows} == samples.keys()
    for name, labels in rows:
        if not labels.startswith("the same"):
            documented = set(re.findall(r"`(\w+)`", labels)) | {"experiment"}
            assert documented == {label for each in samples[name] for label in each.labels}


def test_the_dashboard_asks_for_metrics_that_are_there(samples) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = set(re.findall(r"orchestrator_\w+", json.dumps(dashboard["panels"])))
    assert asked == samples.keys()


@pytest.fixture(scope="module")
def dashboard() -> dict:
    return json.loads(DASHBOARD.read_text())


def targets_of(dashboard: dict) -> list[dict]:
    return [target for panel in dashboard["panels"] for target in panel["targets"]]


def test_each_expression_selects_by_labels_that_its_metric_has(samples, dashboard) -> None:
    for target in targets_of(dashboard):
        selectors = re.findall(r"(orchestrator_\w+)\{([^}]*)\}", target["expr"])
        assert selectors, target
        for metric, matchers in selectors:
            labels = {name for sample in samples[metric] for name in sample.labels}
            assert set(re.findall(r"(\w+)=", matchers)) <= labels, target
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target


ONE_NUMBER = {"stat", "bargauge", "table"}  # panels that show the present alone


def test_a_panel_of_the_present_asks_for_the_present(dashboard) -> None:
    """Over a time, it would show the state of an hour ago, and the one that came since."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert target.get("instant", False) == (panel["type"] in ONE_NUMBER), panel["title"]
            assert target.get("range", True) == (panel["type"] not in ONE_NUMBER), panel["title"]


def test_each_series_of_a_chart_has_a_name_of_its_own(samples, dashboard) -> None:
    for panel in dashboard["panels"]:
        if panel["type"] != "timeseries":
            continue
        for target in panel["targets"]:
            ((metric, matchers), *_) = re.findall(r"(orchestrator_\w+)\{([^}]*)\}", target["expr"])
            labels = {name for sample in samples[metric] for name in sample.labels}
            pinned = set(re.findall(r'(\w+)="', matchers))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == labels - pinned


def test_its_variables_ask_for_labels_that_are_there(samples, dashboard) -> None:
    source, *variables = dashboard["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for variable in variables:
        (query,) = re.findall(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        metric, label = query
        assert all(label in sample.labels for sample in samples[metric])
    names = {variable["name"] for variable in variables}
    asked = {
        name for each in targets_of(dashboard) for name in re.findall(r"\$(\w+)", each["expr"])
    }
    assert asked <= names


def test_the_dashboard_has_what_grafana_needs_to_load_it(dashboard) -> None:
    """By import and by provisioning: the data source is a variable, which both fill."""
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["title"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    source = {"type": "prometheus", "uid": "${datasource}"}
    _, *variables = dashboard["templating"]["list"]
    for part in [*dashboard["panels"], *targets_of(dashboard), *variables]:
        assert part["datasource"] == source
    for panel in dashboard["panels"]:
        assert panel["type"] in {"stat", "table", "timeseries", "bargauge"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= GRID_COLUMNS
    assert "${DS_" not in DASHBOARD.read_text()
