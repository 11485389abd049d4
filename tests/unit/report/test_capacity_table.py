"""Capacities that were searched: per GPU and per dollar with their bounds, and beside what the plan
predicts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.analysis.prediction import Prediction
from orchestrator.analysis.slo import parse_slo
from orchestrator.capacity.estimate import Estimate
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.report.as_json import capacity_json
from orchestrator.report.capacity_table import SIMULATED_BESIDE_PREDICTED, capacities_text
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.origin import CLAIMS_OF_MODEL
from orchestrator.report.words import NOT_THE_LIMIT
from orchestrator.report.written_form import TextForm
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level, Slo
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, store_attempt

SEARCH = "search: capacity, control: {control}"
PREDICTED = {"control": "request_rate", "level": 24.0, "output_throughput": 192.0, "output_throughput_per_gpu": 96.0,
             "interval_per_gpu": [80.0, 120.0], "usd_per_million_tokens": None}  # fmt: skip
SEARCHED = ((8, 100, 24), (8.32, 300, 3))  # levels, TTFT in ms, repeats


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def store_search(
    store: Store, control: Any = "request_rate", predicted: Any = None, levels: Any = SEARCHED
) -> None:
    """The first of two deployments is searched, on two cores. ``predicted``: its capacity under
    ``interactive``.
    """
    text = EXPERIMENT.format(**VALUES).replace(
        "levels: {concurrency: [2]}", SEARCH.format(control=control)
    )
    plan = make_plan(
        parse_experiment(text.replace("cpu, vary", "cpu, tensor_parallel_size: 2, vary"))
    )
    if predicted:
        first, *more = plan.deployments
        known = {"capacity": {"interactive": {"chat": predicted}}}
        plan = plan.model_copy(
            update={
                "deployments": (
                    first.model_copy(update={"predicted": Prediction.from_document(known)}),
                    *more,
                )
            }
        )
    store.write_plan(plan.to_json())
    for value, ttft_ms, times in levels:
        point = plan.point(
            plan.deployments[0].id, plan.loads[0], Level(control=control, value=value)
        )
        for repeat in range(times):
            store_attempt(store, plan, point, repeat, ttft_ms, tokens=8)


def shown(store: Store, *slos: Slo) -> tuple[dict[str, Any], str]:
    """The document and the row under the first of the limits; its cells are parted by two spaces."""
    experiment = StoredExperiment(store, {"cpu": 1.8})
    slos = slos or experiment.slos
    points = experiment.points(*slos).current
    document = next(capacity_documents(experiment, points, slos))
    lines = list(capacities_text([document], TextForm("--format md", 200)))
    return json.loads(json.dumps(capacity_json(document))), lines[-2]


def as_simulated(document: CapacityDocument) -> CapacityDocument:
    repeats = [
        replace(repeat, head=replace(repeat.head, simulated=True))
        for repeat in document.probe.repeats
    ]
    return replace(document, probe=replace(document.probe, repeats=tuple(repeats)))


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", click.unstyle(line).strip())


def test_a_capacity_and_its_bounds_are_divided_by_gpus_and_by_dollars(store: Store) -> None:
    store_search(store)
    document, line = shown(store)
    names = [f"{name}_per_{unit}" for unit in ("gpu", "usd") for name in ("claim", "low", "high")]
    # two cores, 1.80 USD an hour each: a dollar buys 1000 s
    assert [document[name] for name in names] == pytest.approx([4, 4, 4.16, 8000, 8000, 8320])
    first, *between, status, per_gpu, per_usd = cells(line)
    assert [first, *between[:2]] == ["emulator seqs=8", "8 req/s", "8-8.32"]
    assert [status, per_gpu, per_usd] == ["cliff", "4", "8,000"]


def test_an_estimate_stands_with_its_interval_and_the_safe_load(store: Store) -> None:
    store_search(store, levels=((8, 100, 24), (8.32, 300, 3)))
    document, line = shown(store)
    assert document["estimate.lower"] <= document["estimate"] <= document["estimate.upper"]
    lower, upper = (f"{document[f'estimate.{end}']:.2f}" for end in ("lower", "upper"))
    assert cells(line)[3:6] == [f"{document['estimate']:.2f}", f"{lower}-{upper}", "8.00"]


def test_an_estimate_has_an_upper_end_so_the_bounds_do_not_say_that_it_is_not_the_limit(
    store: Store,
) -> None:
    store_search(store)
    experiment = StoredExperiment(store)
    document = next(
        capacity_documents(experiment, experiment.points(*experiment.slos).current, experiment.slos)
    )
    claim = replace(document.claim, high=math.inf, estimate=Estimate(8.2, 8.0, 8.4, 8.0))
    *_, line, _ = capacities_text([replace(document, claim=claim)], TextForm("--format md", 200))
    assert cells(line)[2] == "8-?"


def test_estimates_have_no_columns_where_no_search_has_one(store: Store) -> None:
    store_search(store, levels=((8, 300, 3),))
    document, line = shown(store)
    assert document["estimate"] is None
    assert len(cells(line)) == 6


def test_bounds_are_shown_where_nothing_is_claimed_and_none_where_nothing_failed(
    store: Store,
) -> None:
    store_search(store, levels=((8, 300, 3),))
    document, line = shown(store)
    assert [document[f"{name}_per_usd"] for name in ("claim", "low", "high")] == [None, 0, 8000]
    assert cells(line) == ["emulator seqs=8", "-", "0-8", "budget", "-", "-"]


def test_without_a_level_that_failed_there_is_no_upper_bound(store: Store) -> None:
    store_search(store, levels=((8, 100, 24),))
    document, line = shown(store)
    assert [document[f"{name}_per_gpu"] for name in ("claim", "low", "high")] == [4, 4, None]
    assert cells(line)[1:3] == ["8 req/s", NOT_THE_LIMIT]


@pytest.mark.parametrize(("level", "worse"), [(24.0, True), (9.0, False)])
def test_a_claim_stands_beside_what_the_plan_predicts_under_the_same_limits(
    level: float, worse: bool, store: Store
) -> None:
    store_search(store, predicted=PREDICTED | {"level": level})
    for slos in ((), (parse_slo("ttft<=150ms,attainment>=0.9"),)):  # by name, or written out
        document, line = shown(store, *slos)
        assert document["predicted"]["level"] == level
        assert document["measured_over_predicted"] == pytest.approx(8 / level)
        assert document["worse_than_predicted"] is worse  # it fails at 8.32
        assert cells(line)[-2:] == [f"{level:g} req/s", f"{8 / level:.2f}"]
        assert ("\x1b[33m" in line) is worse


def test_only_a_prediction_for_the_same_limits_and_control_is_compared(
    store: Store,
) -> None:
    store_search(store, predicted=PREDICTED)
    document, line = shown(store, parse_slo("ttft<=140ms,attainment>=0.9"))
    names = ("predicted", "measured_over_predicted", "worse_than_predicted")
    assert [document[name] for name in names] == [None, None, None]
    assert cells(line)[-2:] == ["4", "8,000"]
    store_search(
        store, predicted=PREDICTED | {"level": 0.0, "output_throughput_per_gpu": 0.0}, levels=()
    )
    document, line = shown(store)
    assert [document[name] for name in names[1:]] == [None, False]
    assert cells(line)[-2:] == ["none holds", "-"]
    store_search(store, "concurrency", PREDICTED, ((8, 100, 24), (9, 300, 3)))
    assert [shown(store)[0][name] for name in names] == [None, None, None]


@pytest.mark.parametrize(("level", "differs"), [(24.0, True), (8.0, False)])
def test_a_simulated_capacity_that_differs_from_the_predicted_one_says_which_to_take(
    level: float, differs: bool, store: Store
) -> None:
    store_search(store, predicted=PREDICTED | {"level": level})
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos).current
    document = next(capacity_documents(experiment, points, experiment.slos))
    form = TextForm("--format json", 250)
    measured = "\n".join(capacities_text([document], form))
    simulated = "\n".join(capacities_text([as_simulated(document)], form))
    assert "measured/" in measured
    assert "simulated/" in simulated
    assert SIMULATED_BESIDE_PREDICTED not in measured
    assert (SIMULATED_BESIDE_PREDICTED in simulated) is differs


def test_claims_of_a_simulation_are_without_the_error_of_its_model(store: Store) -> None:
    store_search(store)
    experiment = StoredExperiment(store)
    points = experiment.points(*experiment.slos).current
    document = next(capacity_documents(experiment, points, experiment.slos))
    form = TextForm("--format json", 110)
    assert CLAIMS_OF_MODEL not in list(capacities_text([document], form))
    lines = [click.unstyle(line) for line in capacities_text([as_simulated(document)], form)]
    assert lines[0].startswith("capacity for chat of exp (simulated)")
    assert CLAIMS_OF_MODEL in lines
