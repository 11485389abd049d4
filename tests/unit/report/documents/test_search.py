"""The record of a capacity search, and its JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.estimate import Estimate
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report.as_json import search_json
from orchestrator.report.documents.search import (
    PlannedProbe,
    SearchDocument,
    SearchedEndpoint,
    search_document,
)
from orchestrator.report.formats import json_text
from orchestrator.results.records import AttemptData
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, store_attempt

ENDPOINT = SearchedEndpoint("http://h:1", "m", 1, emulated=False, results=None, name=None)
CLAIM = Claim(8.0, 8.0, 9.0, "cliff", (), passed=8.0, estimate=Estimate(8.4, 8.1, 8.9, 8.0))


def plan_of_search() -> Plan:
    text = EXPERIMENT.format(**VALUES).replace(
        "levels: {concurrency: [2]}", "search: capacity, control: concurrency"
    )
    return make_plan(parse_experiment(text.replace(", tight: {ttft: 1ms, attainment: 0.9}", "")))


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory) -> list[AttemptData]:
    """One probe that holds ``ttft<=150ms`` and one that does not."""
    store = Store.open(str(tmp_path_factory.mktemp("search")), "exp")
    plan = plan_of_search()
    for value, ttft_ms in ((8, 100), (9, 300)):
        level = Level(control="concurrency", value=value)
        point = plan.point(plan.deployments[0].id, plan.loads[0], level)
        store_attempt(store, plan, point, ttft_ms=ttft_ms)
    found = attempt_data(store, store.commits())
    return sorted(found, key=lambda probe: probe.point.level)


def document_of(
    probes: list[AttemptData], claim: Claim = CLAIM, following: PlannedProbe | None = None
) -> SearchDocument:
    return search_document(ENDPOINT, plan_of_search(), claim, probes, following, ["a note"])


def test_each_probe_has_the_share_of_requests_that_met_the_limits(
    probes: list[AttemptData],
) -> None:
    document = document_of(probes)
    shares = [probe.tests[0].share for probe in document.probes]
    assert shares == [1.0, 0.0]
    assert {probe.tests[0].target for probe in document.probes} == {0.9}


@pytest.mark.parametrize(
    ("claim", "high", "excess"), [(8.0, 9.0, 0.125), (8.0, math.inf, None), (None, 9.0, None)]
)
def test_the_failing_level_lies_above_the_claim_where_both_are_known(
    claim: float | None, high: float, excess: float | None, probes: list[AttemptData]
) -> None:
    document = document_of(probes, Claim(claim, 0.0, high, "budget", ()))
    assert document.excess_of_failing == excess


def test_json_has_claim_bounds_probes_and_what_would_come_next(probes: list[AttemptData]) -> None:
    document = document_of(probes, following=PlannedProbe(8.5, 60.0))
    found: dict[str, Any] = json.loads(json_text(search_json(document)))
    assert list(found) == [
        *("url", "model", "clients", "emulated", "control", "slo", "claim", "low", "high"),
        *("status", "estimate", "estimate.lower", "estimate.upper", "safe", "passed"),
        *("change_first", "change", "seed", "probes", "inversion", "next", "notes"),
        *("results", "name"),
    ]
    assert (found["claim"], found["high"], found["status"]) == (8, 9, "cliff")
    names = ("estimate", "estimate.lower", "estimate.upper", "safe")
    assert [found[name] for name in names] == [8.4, 8.1, 8.9, 8]
    assert found["next"] == {"level": 8.5, "seconds": 60}
    first, second = found["probes"]
    assert list(first) == [
        *("level", "repeat", "seed", "ended_early", "validity", "validity_reasons"),
        *("window_s", "requests", "tests"),
    ]
    assert first["tests"] == [{"name": "attainment", "target": 0.9, "share": 1}]
    assert second["level"] == 9


def test_what_to_change_first_is_a_sentence_and_its_figures(probes: list[AttemptData]) -> None:
    found = search_json(document_of(probes[1:], Claim(None, 0.0, 9.0, "nothing_holds", ())))
    assert found["change_first"].startswith("the limit ttft<=150ms: 90% of requests took up to ")
    assert found["change"] == {
        "setting": "slo",
        "limit": "ttft",
        "limit_s": 0.15,
        "needed": 0.9,
        "met": 0.0,
        "value_s": pytest.approx(0.3),
        "level": 9.0,
    }
    found = search_json(document_of(probes, Claim(8.0, 8.0, 9.0, "unresolved", ())))
    assert found["change_first"].startswith("--precision 0.13: ")
    assert found["change"] == {"setting": "precision", "precision": 0.13}
    assert search_json(document_of(probes))["change"] is None


def test_an_unknown_upper_bound_and_a_missing_estimate_are_null_in_json(
    probes: list[AttemptData],
) -> None:
    found = search_json(document_of(probes, Claim(8.0, 8.0, math.inf, "budget", ())))
    assert found["high"] is None
    assert found["estimate"] is found["estimate.lower"] is found["safe"] is None


@pytest.mark.parametrize(("offered", "shown"), [(5.0, 5.0), (8.0, None), (None, None)])
def test_a_claim_says_what_its_probes_were_sent_where_that_is_another_rate(
    probes: list[AttemptData], offered: float | None, shown: float | None
) -> None:
    held, failed = probes
    requests = replace(held.figures.requests, scheduled=200)
    sent = replace(
        held,
        point=replace(held.point, offered_rate=offered),
        figures=replace(held.figures, requests=requests),
    )
    assert document_of([sent, failed]).offered_at_claim == shown
