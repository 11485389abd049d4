"""Points of one endpoint without a sweep: which repeats are next, how they are loaded and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind, InputError, OrchestratorError
from orchestrator.load.point import LoadPoint, Target
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep import endpoint
from orchestrator.sweep.attempt import Attempt, Loaded
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.endpoint import EndpointRun, measure_here, runs_of
from tests.unit.results.builders import request, requests

TARGET = Target("http://127.0.0.1:1", "m")
DETECTED = EndpointDialect(Dialect("openai_completions", "/v1/completions"), None)
ENDPOINT = """
version: 1
name: x
model: some-org/some-model
deployments: {engine: endpoint, url: "http://127.0.0.1:1"}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [1, 8]}, duration: 60s, warmup: 10s}
"""


def plan_of() -> Plan:
    return make_plan(parse_experiment(ENDPOINT, "x.yaml"))


def test_without_a_store_every_point_has_its_first_repeat() -> None:
    runs = runs_of(plan_of(), TARGET, DETECTED)
    assert [(run.point.level.value, run.measurement.repeat) for run in runs] == [(1, 0), (8, 0)]


def test_a_point_that_is_stored_has_its_next_repeat(tmp_path: Path) -> None:
    plan = plan_of()
    store = Store.open(str(tmp_path), "x")
    first, _ = runs_of(plan, TARGET, DETECTED)
    loaded = Loaded(span=UnixSpan(1, 2), requests=requests(request(0, 10_000)))
    first.commit(store, Attempt(loaded=loaded))
    repeats = [run.measurement.repeat for run in runs_of(plan, TARGET, DETECTED, store)]
    assert repeats == [1, 0]


def test_each_run_has_a_salt_of_its_own() -> None:
    salting = EndpointDialect(Dialect("openai_chat", "/", cache_salt=True), None)
    first, second = runs_of(plan_of(), TARGET, salting)
    salts = [run.load.dialect.extra_body["cache_salt"] for run in (first, second)]
    assert salts == [first.load.attempt_id, second.load.attempt_id]
    assert salts[0] != salts[1]


def test_a_tokenizer_counts_replies_where_the_endpoint_reports_no_counts() -> None:
    counts_none = EndpointDialect(DETECTED.dialect, None, counts=False)
    (run, _) = runs_of(plan_of(), TARGET, counts_none)
    assert not run.load.count_text
    text = ENDPOINT.replace(
        "engine: endpoint,", "engine: endpoint, tokenizer: some-org/some-model,"
    )
    plan = make_plan(parse_experiment(text, "x.yaml"))
    (run, _) = runs_of(plan, TARGET, counts_none)
    assert run.load.count_text


def test_a_warm_up_sends_other_prompts_and_keeps_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[LoadPoint] = []

    def measure(point: LoadPoint, *_: object, **__: object) -> Attempt:
        sent.append(point)
        rows = requests(request(0, 0), request(1, 0))
        return Attempt(loaded=Loaded(span=UnixSpan(1, 2), requests=rows))

    monkeypatch.setattr(endpoint, "measure_here", measure)
    run = EndpointRun(plan_of(), plan_of().points[1], TARGET, DETECTED)
    assert run.warm_up(2, clients=1) == 2
    (point,) = sent
    assert (point.requests, point.duration_s, point.warmup_s) == (2, None, 0.0)
    assert point.seed != run.load.seed


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure(FailureKind.BAD_POINT, "no such file"), InputError),
        (Failure(FailureKind.CLIENT_LOST, "a client was lost"), OrchestratorError),
    ],
)
def test_a_point_that_could_not_begin_is_an_error_of_its_kind(
    failure: Failure, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Measurer:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def measure(self, *_: Any, **__: Any) -> Attempt:
            return Attempt(failure=failure)

    monkeypatch.setattr(endpoint, "Measurer", Measurer)
    (run, _) = runs_of(plan_of(), TARGET, DETECTED)
    with pytest.raises(OrchestratorError, match=failure.sentence) as raised:
        measure_here(run.load)
    assert raised.type is error
