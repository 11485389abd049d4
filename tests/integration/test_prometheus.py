"""A real Prometheus scrapes ``orchestrator watch``, and answers each query of the Grafana dashboard
with the variables put in as Grafana puts them in.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.runs import RunRecord, RunState
from orchestrator.results.store import Store
from tests.harness import ROOT, environment, free_port, orchestrator, wait_for, write_experiment
from tests.unit.plan.stored_sweeps import planned, planned_mix, store_sweep
from tests.unit.simulation.builders import EXPERIMENT as SIMULATED

pytestmark = pytest.mark.skipif(
    not shutil.which("prometheus") or not shutil.which("promtool"),
    reason="the queries of the dashboard need Prometheus: apt-get install prometheus",
)

DASHBOARD = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
OTHER_TOOL = "guidellm 0.8.1"
SCRAPED = """
scrape_configs:
  - job_name: orchestrator
    scrape_interval: 1s
    static_configs: [{{targets: ["{target}"]}}]
"""
Variables = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server on this machine."""

    url: str

    def get(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of its API; AssertionError with its words if it refuses."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def instant(self, expression: str) -> list[dict[str, Any]]:
        return self.get("query", query=expression)["result"]

    def over_time(self, expression: str) -> list[dict[str, Any]]:
        now_s = time.time()
        times = {"start": now_s - 60, "end": now_s, "step": 1}
        return self.get("query_range", query=expression, **times)["result"]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready"):
                return True
        except OSError:
            return False

    def has_scraped(self) -> bool:
        """Whether it has the metrics of all four experiments."""
        return len(self.instant("orchestrator_best_throughput")) >= 4


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four experiments: simulated, read from another tool's file, measured with a mix, and measured
    by a run that is under way in this process.
    """
    folder = tmp_path_factory.mktemp("results")
    uri = str(folder / "results")
    file = write_experiment(folder, SIMULATED)
    simulated = orchestrator("simulate", str(file), "--results", uri)
    assert simulated.returncode == 0, simulated.stderr
    store_sweep(Store.open(uri, "imported"), planned(name="imported"), source=OTHER_TOOL)
    by_part = {"chat": 100.0, "rag": 400.0}
    store_sweep(Store.open(uri, "mixed"), planned_mix(name="mixed"), ttft_ms=by_part)
    store_sweep(Store.open(uri, "exp"), planned())
    record = RunRecord.of_this_process()
    record.state = RunState.RUNNING
    record.total, record.measured, record.left_s = 4, 2, 90.0
    runs = Path(uri, "exp", "runs")
    runs.mkdir(exist_ok=True)
    (runs / f"{record.run_id}.json").write_bytes(record.to_json())
    return uri


@pytest.fixture(scope="module")
def metrics_url(results: str) -> Iterator[str]:
    """Where ``watch`` serves its metrics."""
    argv = [sys.executable, "-m", "orchestrator", "watch", results, "--port", "0"]
    with subprocess.Popen(
        argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        url = re.search(r"http://\S+/", server.stdout.readline()).group() + "metrics"
        wait_for(lambda: is_answered(url), 60, "watch has not read the results")
        yield url
        server.terminate()


def is_answered(url: str) -> bool:
    try:
        with urllib.request.urlopen(url):
            return True
    except urllib.error.HTTPError:  # 503 until the results were read
        return False


@pytest.fixture(scope="module")
def prometheus(metrics_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    target = urllib.parse.urlsplit(metrics_url).netloc
    config = folder / "prometheus.yml"
    config.write_text(SCRAPED.format(target=target))
    address = f"127.0.0.1:{free_port()}"
    argv = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"),
        *(f"--web.listen-address={address}", "--log.level=warn"),
    ]
    server = subprocess.Popen(argv, cwd=folder)
    started = Prometheus(f"http://{address}")
    try:
        wait_for(started.is_ready, 60, "Prometheus is ready")
        wait_for(started.has_scraped, 60, "Prometheus has no metrics of watch")
        yield started
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module")
def choices(prometheus: Prometheus) -> dict[str, list[str]]:
    """The values that each variable of the dashboard offers."""
    offered = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            query = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert query, variable
            metric, label = query.groups()
            offered[variable["name"]] = prometheus.get(
                f"label/{label}/values", **{"match[]": metric}
            )
    return offered


def pattern(values: Sequence[str]) -> str:
    """Values as Grafana puts them between the quotes of ``=~``: ``prometheusSpecialRegexEscape`` and
    ``interpolateQueryExpr`` of its package ``@grafana/prometheus``.
    """
    escaped = [
        re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", r"\\\\"))
        for value in values
    ]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def filled(expression: str, variables: Variables) -> str:
    """An expression with its variables put in."""
    for name, values in variables.items():
        expression = expression.replace(f"${name}", pattern(values))
    assert "$" not in expression
    return expression


def answers(prometheus: Prometheus, target: Mapping[str, Any], variables: Variables) -> list[dict]:
    """The series that a query of a panel gives."""
    expression = filled(target["expr"], variables)
    if target.get("instant"):
        return prometheus.instant(expression)
    return prometheus.over_time(expression)


def legend_of(legend: str, labels: Mapping[str, str]) -> str:
    """The name of a series; KeyError if it lacks a label of its legend."""
    return re.sub(r"{{(\w+)}}", lambda label: labels[label[1]], legend)


TARGETS = {
    f"{panel['title']} {target['refId']}": target
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
}


def test_the_variables_offer_what_is_there(choices: dict[str, list[str]]) -> None:
    assert choices["experiment"] == ["exp", "imported", "mixed", "x"]
    assert choices["workload"] == ["chat", "office", "w"]
    assert choices["source"] == [OTHER_TOOL, "measured", "simulated"]


@pytest.mark.parametrize("name", TARGETS)
def test_each_panel_has_data(name: str, prometheus: Prometheus, choices: Variables) -> None:
    series = answers(prometheus, TARGETS[name], choices)
    assert series
    legend = TARGETS[name]["legendFormat"]
    if legend:  # a table has none: its columns are the labels
        names = {legend_of(legend, each["metric"]) for each in series}
        assert len(names) == len(series), "two series have the same name"


@pytest.mark.parametrize("source", ["measured", "simulated", OTHER_TOOL])
def test_one_source_alone_may_be_chosen(
    source: str, prometheus: Prometheus, choices: Variables
) -> None:
    chosen = {**choices, "source": [source]}
    by_source = [target for target in TARGETS.values() if "$source" in target["expr"]]
    assert len(by_source) >= 5
    for target in by_source:
        series = answers(prometheus, target, chosen)
        sources = {each["metric"]["source"] for each in series}
        is_there = "orchestrator_part_" not in target["expr"] or source == "measured"
        assert sources == ({source} if is_there else set()), target["expr"]


def test_promtool_finds_nothing_wrong_with_the_metrics(metrics_url: str) -> None:
    with urllib.request.urlopen(metrics_url) as answer:
        text = answer.read()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr.decode()) == (0, "")
