"""Capacities that were searched: per GPU and per dollar with their bounds, and beside what the plan
predicts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.report.as_json import capacity_json
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.capacity import capacity_documents
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level, Slo
from tests.unit.plan.test_current import FILE, VALUES, commit

SEARCH = "search: capacity, control: {control}"
PREDICTED = {"control": "request_rate", "level": 24.0, "output_throughput": 192.0, "output_throughput_per_gpu": 96.0,
             "interval_per_gpu": [80.0, 120.0], "usd_per_million_tokens": None}  # fmt: skip
SEARCHED = ((8, 100, 24), (8.32, 300, 3))  # levels, TTFT in ms, repeats


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def searched(
    store: Store, control: Any = "request_rate", predicted: Any = None, levels: Any = SEARCHED
) -> None:
    """The first of two deployments is searched, on two cores. ``predicted``: its capacity under
    ``interactive``.
    """
    text = FILE.format(**VALUES).replace(
        "levels: {concurrency: [2]}", SEARCH.format(control=control)
    )
    plan = make_plan(
        parse_experiment(text.replace("cpu, vary", "cpu, tensor_parallel_size: 2, vary"))
    )
    if predicted:
        first, *more = plan.deployments
        known = {"capacity": {"interactive": {"chat": predicted}}}
        plan = plan.model_copy(
            update={"deployments": (first.model_copy(update={"predicted": known}), *more)}
        )
    store.write_plan(plan.to_json())
    for value, ttft_ms, times in levels:
        point = plan.point(
            plan.deployments[0].id, plan.loads[0], Level(control=control, value=value)
        )
        for repeat in range(times):
            commit(store, plan, point, repeat, ttft_ms, tokens=8)


def shown(store: Store, *slos: Slo) -> tuple[dict[str, Any], str]:
    """The document and the line under the first of the limits."""
    experiment = StoredExperiment(store, {"cpu": 1.8})
    slos = slos or experiment.slos
    points = experiment.points(*slos).current
    document = next(capacity_documents(experiment, points, slos))
    return json.loads(json.dumps(capacity_json(document))), next(capacities_text([document]))


def test_a_capacity_and_its_bounds_are_divided_by_gpus_and_by_dollars(store: Store) -> None:
    searched(store)
    document, line = shown(store)
    names = [f"{name}_per_{unit}" for unit in ("gpu", "usd") for name in ("claim", "low", "high")]
    # two cores, 1.80 USD an hour each: a dollar buys 1000 s
    assert [document[name] for name in names] == pytest.approx([4, 4, 4.16, 8000, 8000, 8320])
    assert "8 req/s (between 8 and 8.32 req/s; cliff), 4 req/s per core (4 to 4.16), " in line
    assert line.endswith("8,000 requests/USD (8,000 to 8,320)")


def test_bounds_are_shown_where_nothing_is_claimed_and_none_where_nothing_failed(
    store: Store,
) -> None:
    searched(store, levels=((8, 300, 3),))
    document, line = shown(store)
    assert [document[f"{name}_per_usd"] for name in ("claim", "low", "high")] == [None, 0, 8000]
    assert (
        "no load was shown to hold it; between 0 and 8 req/s (budget), 0 to 4 req/s per core, 0 "
        "to 8,000"
    ) in line


def test_without_a_level_that_failed_there_is_no_upper_bound(store: Store) -> None:
    searched(store, levels=((8, 100, 24),))
    document, line = shown(store)
    assert [document[f"{name}_per_gpu"] for name in ("claim", "low", "high")] == [4, 4, None]
    assert "4 req/s per core (at least 4), 8,000 requests/USD (at least 8,000)" in line


@pytest.mark.parametrize(("level", "worse"), [(24.0, True), (9.0, False)])
def test_a_claim_stands_beside_what_the_plan_predicts_under_the_same_limits(
    level: float, worse: bool, store: Store
) -> None:
    searched(store, predicted=PREDICTED | {"level": level})
    for slos in ((), (parse_slo("ttft<=150ms,attainment>=0.9"),)):  # by name, or written out
        document, line = shown(store, *slos)
        assert document["predicted"]["level"] == level
        assert document["measured_over_predicted"] == pytest.approx(8 / level)
        assert document["worse_than_predicted"] is worse  # it fails at 8.32
        assert f"predicted {level:g} req/s, measured/predicted {8 / level:.2f}" in line
        assert line.startswith("\x1b[33m") is worse


def test_nothing_is_compared_under_other_limits_with_another_control_or_where_none_was_predicted_to_hold(
    store: Store,
) -> None:
    searched(store, predicted=PREDICTED)
    document, line = shown(store, parse_slo("ttft<=140ms,attainment>=0.9"))
    names = ("predicted", "measured_over_predicted", "worse_than_predicted")
    assert [document[name] for name in names] == [None, None, None]
    assert "predicted" not in line
    searched(
        store, predicted=PREDICTED | {"level": 0.0, "output_throughput_per_gpu": 0.0}, levels=()
    )
    document, line = shown(store)
    assert [document[name] for name in names[1:]] == [None, False]
    assert line.endswith("predicted that none holds")
    searched(store, "concurrency", PREDICTED, ((8, 100, 24), (9, 300, 3)))
    assert [shown(store)[0][name] for name in names] == [None, None, None]
