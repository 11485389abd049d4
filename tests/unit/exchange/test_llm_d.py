"""The llm-d benchmark report: valid by its schema, with the figures that ``results`` shows."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator.exchange import llm_d
from orchestrator.exchange.exported import ExportedFile, LeftOutPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import Distribution, HostRow, TelemetryRow
from orchestrator.results.root import open_results
from orchestrator.results.schemas import table_of
from orchestrator.results.store import Store
from tests.golden.make import STORE
from tests.unit.exchange.recorded import VLLM, VLLM_DETAILED, imported
from tests.unit.plan.stored_sweeps import planned, planned_mix, store_sweep

SCHEMA = json.loads(
    Path(llm_d.__file__)
    .with_name("llm_d_schema")
    .joinpath("br_v0_2_1_json_schema.json")
    .read_text()
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> list[StoredExperiment]:
    """The stored sweeps of the golden tests: valid and distorted points, failures, searches."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(STORE) as archive:
        archive.extractall(folder, filter="data")
    results = open_results(str(folder))
    return [StoredExperiment(results.store(name)) for name in results.experiments]


def reports(experiment: StoredExperiment) -> Iterator[Any]:
    """The reports of an experiment, as they are read from their files."""
    for item in llm_d.FORMAT.files(experiment):
        if isinstance(item, ExportedFile):
            yield json.loads(json.dumps(item.document))


def test_every_report_is_valid_by_llm_ds_own_schema(experiments: list[StoredExperiment]) -> None:
    checked = 0
    for experiment in experiments:
        for report in reports(experiment):
            VALIDATOR.validate(report)
            checked += 1
    assert checked == 15


def test_imported_points_are_valid_reports_of_their_tool(tmp_path: Path) -> None:
    for report in reports(StoredExperiment(imported(tmp_path, VLLM, VLLM_DETAILED))):
        VALIDATOR.validate(report)
        assert report["scenario"]["load"]["standardized"]["tool"] == "vllm bench serve"
        assert "source=vllm bench serve" in report["run"]["keywords"]


def test_a_report_has_the_figures_of_its_point(experiments: list[StoredExperiment]) -> None:
    for experiment in experiments:
        points = {point.head.point_id: point for point in experiment.points().current}
        for report in reports(experiment):
            figures = points[report["run"]["uid"]].figures
            aggregate = report["results"]["request_performance"]["aggregate"]
            ttft = aggregate["latency"]["time_to_first_token"]
            assert figures.ttft_from_sent_ms is not None
            assert ttft["units"] == "s"
            assert 1e3 * ttft["p99"] == pytest.approx(figures.ttft_from_sent_ms.p99)
            rate = aggregate["throughput"]["output_token_rate"]
            assert rate["mean"] == figures.output_token_throughput
            assert aggregate["requests"]["total"] == figures.requests.scheduled


def test_a_report_has_the_figures_of_each_part_of_a_mix(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned_mix(max_num_seqs=[8]), ttft_ms={"chat": 100, "rag": 400})
    (report,) = reports(StoredExperiment(store))
    VALIDATOR.validate(report)
    config = report["scenario"]["load"]["native"]["config"]
    chat, rag = config["parts"]
    assert (chat["part"], rag["part"]) == ("chat", "rag")
    medians = [part["aggregate"]["latency"]["time_to_first_token"]["p50"] for part in (chat, rag)]
    assert medians == pytest.approx([0.1, 0.4])
    whole = report["results"]["request_performance"]["aggregate"]
    counts = [part["aggregate"]["requests"]["total"] for part in (chat, rag)]
    assert sum(counts) == whole["requests"]["total"]
    assert {test["part"] for test in config["attainment"]} == {"chat", "rag"}
    # each part has the form of the schema's own aggregate
    for part in (chat, rag):
        report["results"]["request_performance"]["aggregate"] = part["aggregate"]
        VALIDATOR.validate(report)


def test_a_length_of_no_tokens_is_the_least_one() -> None:
    tokens = Distribution(mean=3.0, std=2.0, min=0.0, max=5.0, p50=3.0, p90=5.0, p95=5.0, p99=5.0)
    length = llm_d._length(tokens)
    assert (length["min"], length["max"]) == (0, 5)
    assert llm_d._length(replace(tokens, mean=0.1, max=0.5))["max"] == 1, (
        "the schema has no smaller one"
    )


def test_throughput_over_time_adds_up_to_the_whole(experiments: list[StoredExperiment]) -> None:
    for experiment in experiments:
        points = {point.head.point_id: point for point in experiment.points().current}
        for report in reports(experiment):
            first = points[report["run"]["uid"]].used_repeats[0]
            series = report["results"]["request_performance"]["time_series"]
            values = [each["value"] for each in series["throughput"]["output_token_rate"]["series"]]
            mean = sum(values) / len(values)
            assert mean == pytest.approx(first.figures.output_token_throughput, rel=0.01)


def test_what_engines_reported_stands_beside_it(experiments: list[StoredExperiment]) -> None:
    readings = 0
    for experiment in experiments:
        for report in reports(experiment):
            labels = {each["metadata"]["label"] for each in report["scenario"]["stack"]}
            for component in report["results"]["observability"]["components"]:
                assert component["component_label"] in labels
                if "num_requests_running" not in component["time_series"]:
                    continue  # of a host or a GPU
                running = component["time_series"]["num_requests_running"]["series"]
                assert component["aggregate"]["running_requests"]["max"] == max(
                    each["value"] for each in running
                )
                readings += len(running)
    assert readings


def test_a_verdict_is_never_lost(experiments: list[StoredExperiment]) -> None:
    for experiment in experiments:
        points = {point.head.point_id: point for point in experiment.points().current}
        for report in reports(experiment):
            validity = points[report["run"]["uid"]].validity
            assert f"validity={validity}" in report["run"]["keywords"]
            assert report["scenario"]["load"]["native"]["config"]["validity"] == validity


def test_points_that_failed_are_left_out(experiments: list[StoredExperiment]) -> None:
    reasons = [
        item.reason
        for experiment in experiments
        for item in llm_d.FORMAT.files(experiment)
        if isinstance(item, LeftOutPoint)
    ]
    assert reasons == ["it failed"] * 3


def test_each_role_is_a_component_with_its_own_parallelism(tmp_path: Path) -> None:
    (point,) = StoredExperiment(imported(tmp_path, VLLM)).points().current
    roles = {
        "prefill": {"tensor_parallel_size": 2, "replicas": 3},
        "decode": {"tensor_parallel_size": 4, "enable_expert_parallel": True},
    }
    deployment = replace(point.deployment, engine="vllm", settings={"roles": roles})
    stack: list[Any] = llm_d._stack(replace(point, deployment=deployment), "0.20.0")
    shapes = [
        (
            part["standardized"]["role"],
            part["standardized"]["replicas"],
            part["standardized"]["accelerator"]["count"],
            part["standardized"]["accelerator"]["parallelism"]["ep"],
        )
        for part in stack
    ]
    assert shapes == [("prefill", 3, 6, 1), ("decode", 1, 4, 4)]
    assert {part["standardized"]["tool_version"] for part in stack} == {"0.20.0"}


def test_power_and_memory_of_each_gpu_are_on_the_drivers_clock(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(max_num_seqs=[8]))
    (manifest,) = store.manifests("point")
    keys = {"measurement_id": manifest.measurement_id, "attempt_id": manifest.attempt_id}
    readings = [
        TelemetryRow(
            **keys,
            host="node1",
            gpu_uuid="GPU-1",
            unix_ns=1_800_000_000_000_000_000 + 500_000_000 * number,
            clock_offset_ns=2_000_000_000,
            power_w=300.0 + number,
            busy_share=0.5,
            used_bytes=64 << 30,
        )
        for number in range(3)
    ]
    hosts = [HostRow(**keys, host="node1", unix_ns=1_800_000_000_000_000_000, cpu_share=0.25)]
    parts = [
        store.write_part("telemetry", table_of(readings, TelemetryRow), writer="n", **keys),
        store.write_part("hosts", table_of(hosts, HostRow), writer="n", **keys),
    ]
    (tmp_path / "exp" / manifest.key).unlink()
    store = Store.open(str(tmp_path), "exp")
    store.commit(replace(manifest, files=(*manifest.files, *parts)))
    (report,) = reports(StoredExperiment(store))
    VALIDATOR.validate(report)
    gpu, host = report["results"]["observability"]["components"]
    assert (gpu["replica_id"], host["replica_id"]) == ("GPU-1", "node1")
    power = gpu["time_series"]["power_consumption"]
    assert power["units"] == "Watts"
    assert [each["value"] for each in power["series"]] == [300.0, 301.0, 302.0]
    assert power["series"][0]["ts"] == "2027-01-15T07:59:58.000000Z"
    assert gpu["aggregate"]["gpu_utilization"]["mean"] == 50.0
    assert gpu["aggregate"]["gpu_memory_usage"]["max"] == 64.0
    assert host["aggregate"]["cpu_utilization"]["mean"] == 25.0
