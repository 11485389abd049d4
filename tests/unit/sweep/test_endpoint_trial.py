"""How an endpoint of an experiment file is asked, and what its trials show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.http import HttpResponse
from orchestrator.load.point import Target
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep import endpoint_trial
from orchestrator.sweep.detect_dialect import EndpointDialect, ModelListing, TrialFailed
from orchestrator.sweep.endpoint_trial import endpoint_findings, endpoint_target, usual_dialect

ENDPOINT = """
version: 1
name: x
model: some-org/some-model
deployments: {{engine: endpoint, url: "{url}"{more}}}
workloads: [{{name: w, input_tokens: 4, output_tokens: 2}}]
load: {{levels: {{concurrency: [8]}}, duration: 60s, warmup: 10s}}
"""
LISTED = ModelListing({"some-org/some-model": "vllm"}, HttpResponse(200, b""))


def plan_of(url: str = "http://h:8000/v1", more: str = "") -> Plan:
    return make_plan(parse_experiment(ENDPOINT.format(url=url, more=more), "x.yaml"))


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/v1", "http://h:8000/v1/models"])
def test_a_target_is_the_server_however_its_url_was_pasted(url: str) -> None:
    (deployment,) = plan_of(url).deployments
    target = endpoint_target(deployment.settings, "key")
    assert (target.url, target.model, target.api_key) == (
        "http://h:8000",
        "some-org/some-model",
        "key",
    )


def test_the_usual_dialect_asks_below_the_path_of_the_url() -> None:
    (deployment,) = plan_of("http://h:8000/llm/v1").deployments
    assert usual_dialect(deployment.settings, "chat", "").path.endswith("/v1/chat/completions")


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What the next trial requests raise; the models are listed."""
    outcomes: list[Exception | None] = []

    def detect(
        target: Target, candidates: Sequence[Dialect], *more: object, **flags: object
    ) -> EndpointDialect:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return EndpointDialect(candidates[0], None)

    monkeypatch.setattr(endpoint_trial, "list_models", lambda *_: LISTED)
    monkeypatch.setattr(endpoint_trial, "detect_dialect", detect)
    return outcomes


def test_an_endpoint_that_answers_has_no_finding(trials: list[Exception | None]) -> None:
    trials.append(None)
    assert list(endpoint_findings(plan_of())) == []


def test_a_trial_that_may_pass_later_is_a_warning(trials: list[Exception | None]) -> None:
    trials.append(TrialFailed("too many requests", 429, may_pass=True))
    (finding,) = endpoint_findings(plan_of())
    assert (finding.level, finding.do) == ("warning", "ask again later")
    assert finding.why.endswith("may fail")


def test_a_refused_key_is_a_failure_with_its_remedy(trials: list[Exception | None]) -> None:
    trials.append(TrialFailed("the key was refused", 401))
    (finding,) = endpoint_findings(plan_of())
    assert finding.level == "fail"
    assert finding.do == "give the right key (api_key_env names its variable)"


def test_a_model_that_is_not_listed_is_named_with_those_that_are(
    trials: list[Exception | None],
) -> None:
    trials.append(TrialFailed("not found", 404))
    (finding,) = endpoint_findings(plan_of(more=", served_model_name: other"))
    assert finding.what == "not found; it lists some-org/some-model, not 'other'"
    assert finding.do == "name a model that it lists (served_model_name)"


def test_an_unset_variable_of_the_key_is_a_failure(
    trials: list[Exception | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    (finding,) = endpoint_findings(plan_of(more=", api_key_env: SOME_KEY"))
    assert finding.what == "the variable SOME_KEY (api_key_env) is not set here"


def test_an_endpoint_that_is_down_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> ModelListing:
        raise InputError("no server answers at http://h:8000")

    monkeypatch.setattr(endpoint_trial, "list_models", refuse)
    (finding,) = endpoint_findings(plan_of())
    assert finding.do == "start it, or mend its url"
