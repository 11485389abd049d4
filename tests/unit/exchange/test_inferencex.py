"""InferenceX rows: its names and units, and only what they can say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from orchestrator.exchange.exported import ExportedFile, LeftOutPoint
from orchestrator.exchange.inferencex import FORMAT
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from tests.unit.exchange.recorded import VLLM, imported
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, planned, store_sweep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def test_a_row_has_seconds_and_rates_per_gpu(store: Store) -> None:
    store_sweep(store, planned())
    experiment = StoredExperiment(store)
    (file,) = FORMAT.files(experiment)
    assert isinstance(file, ExportedFile) and isinstance(file.document, list)
    assert (file.name, file.points) == ("agg_exp.json", 2)
    row = file.document[0]
    point = experiment.points().current[0]
    figures = point.figures
    assert figures.ttft_from_sent_ms is not None and figures.tpot_ms is not None
    assert row["conc"] == 2
    assert row["framework"] == "emulator"
    assert row["median_ttft"] == figures.ttft_from_sent_ms.p50 / 1e3
    assert row["p99_intvty"] == pytest.approx(1e3 / figures.tpot_ms.p99)
    assert row["p99_intvty"] <= row["median_intvty"]
    assert "std_intvty" not in row
    assert row["output_tput_per_gpu"] == (
        figures.output_token_throughput / point.deployment.devices
    )
    assert (row["isl"], row["osl"]) == (10, 8)
    assert (row["spec_decoding"], row["infmax_model_prefix"]) == ("none", None)


@pytest.mark.parametrize(
    ("speculative", "name"),
    [
        ("{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}", "ngram"),
        ("{model: some-org/draft, num_speculative_tokens: 4}", "unknown"),
    ],
)
def test_a_row_names_the_method_of_speculation(store: Store, speculative: str, name: str) -> None:
    text = EXPERIMENT.format(**VALUES).replace("engine: emulator", "engine: vllm")
    text = text.replace("grid: {", f"grid: {{speculative: [{speculative}], ")
    store_sweep(store, make_plan(parse_experiment(text)))
    (file,) = FORMAT.files(StoredExperiment(store))
    assert isinstance(file, ExportedFile) and isinstance(file.document, list)
    assert {row["spec_decoding"] for row in file.document} == {name}


@pytest.mark.parametrize("origin", ["emulated", "simulated"])
def test_what_no_device_did_has_no_row(store: Store, origin: str) -> None:
    store_sweep(store, planned(), **{origin: True})
    reasons = [item.reason for item in FORMAT.files(StoredExperiment(store))]
    assert reasons == [f"it is {origin}"] * 2


@pytest.mark.parametrize("validity", ["disturbed", "client_bound", "engine_bound_backlog"])
def test_what_is_not_valid_has_no_row(store: Store, validity: str) -> None:
    store_sweep(store, planned(), validity=validity)
    items = list(FORMAT.files(StoredExperiment(store)))
    assert all(isinstance(item, LeftOutPoint) for item in items)
    assert Counter(item.reason for item in items) == {f"it is {validity}": 2}


def test_a_rate_and_another_tools_point_have_no_row(store: Store, tmp_path: Path) -> None:
    text = EXPERIMENT.format(**VALUES).replace("concurrency:", "request_rate:")
    store_sweep(store, make_plan(parse_experiment(text)))
    reasons = {item.reason for item in FORMAT.files(StoredExperiment(store))}
    assert reasons == {"it is no closed loop: rows are per concurrency"}
    other = StoredExperiment(imported(tmp_path / "other", VLLM))
    assert [item.reason for item in FORMAT.files(other)] == ["it was measured by vllm bench serve"]
