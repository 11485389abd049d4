"""In which dialects the APIs of a launch are asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.load.point import Target
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep import launch_dialects
from orchestrator.sweep.detect_dialect import EndpointDialect, TrialFailed
from orchestrator.sweep.endpoint_trial import usual_dialect
from orchestrator.sweep.launch_dialects import LaunchDialects

ENDPOINT = EngineSettings(engine="endpoint", model="m", url="http://h:1")
TARGETS = [Target("http://h:1", "m")]
USUAL = usual_dialect(ENDPOINT, "completions", "vllm")
PLAIN = replace(USUAL, return_token_ids=False, extra_body={"plain": 1})
BUSY = TrialFailed("it is busy", 429, may_pass=True)
REFUSED = TrialFailed("it refuses", 404)


class Trials:
    """What came of the trials of an endpoint's APIs, in order, and what the user was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: object) -> None:
        self.told: list[str] = []
        remaining: Iterator[object] = iter(outcomes)

        def outcome_of_next(*arguments: object) -> object:
            outcome = next(remaining)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(launch_dialects, "try_endpoint", outcome_of_next)
        announcer = SimpleNamespace(event=lambda kind, text: self.told.append(text))
        notes: Any = SimpleNamespace(model_owner="vllm", announcer=announcer)
        self.dialects = LaunchDialects(ENDPOINT, notes)


def test_an_endpoint_is_asked_as_its_trial_shows_and_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = Trials(monkeypatch, EndpointDialect(PLAIN, None, notes=("it takes no ids",)))
    dialects = trials.dialects
    assert dialects.dialect("completions") == USUAL
    assert dialects.try_endpoint(TARGETS, "completions", 1.0) is None
    assert dialects.try_endpoint(TARGETS, "completions", 1.0) is None
    assert dialects.dialect("completions") == PLAIN
    assert trials.told == ["it takes no ids"]


def test_a_launch_is_over_if_the_first_api_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, REFUSED)
    failure = trials.dialects.try_endpoint(TARGETS, "completions", 1.0)
    assert failure is not None
    assert failure.kind is FailureKind.BAD_CONFIG
    assert trials.told == []


def test_a_launch_goes_on_if_a_later_api_is_refused_or_the_first_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = Trials(monkeypatch, BUSY, REFUSED)
    assert trials.dialects.try_endpoint(TARGETS, "completions", 1.0) is None
    assert trials.dialects.try_endpoint(TARGETS, "chat", 1.0) is None
    assert trials.told == ["it is busy", "it refuses"]
    assert trials.dialects.dialect("completions") == USUAL


def test_an_engine_of_this_program_is_not_tried() -> None:
    engine = EngineSettings(engine="emulator", model="m")
    notes: Any = SimpleNamespace(model_owner="None")
    dialects = LaunchDialects(engine, notes)
    assert dialects.try_endpoint(TARGETS, "completions", 1.0) is None
    assert dialects.dialect("completions").path == "/v1/completions"
