"""Planning without a network, and with a verdict on feasibility that a test may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

import orchestrator.plan.verdict as verdicts
from orchestrator.analysis.prediction import PredictedStart
from orchestrator.plan.feasibility import Feasibility, FitStatus

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

Judge = Callable[[Any], Any]


def verdict(status: FitStatus, *reasons: str, **predicted: Any) -> Feasibility:
    starts = {"": PredictedStart(**predicted)} if predicted else {}
    return Feasibility(status, reasons, starts)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Judge], None]:
    """Replaces the feasibility check: planning itself is under test, feasibility has tests of its
    own.
    """

    def use(judge: Judge) -> None:
        def assess(settings: Any, role: str) -> Feasibility:
            verdict_of_role = judge(settings)
            if not verdict_of_role.starts:
                return verdict_of_role
            return replace(verdict_of_role, starts={role: verdict_of_role.starts[""]})

        monkeypatch.setattr(
            verdicts,
            "assess",
            lambda settings, facts, hardware, draft, role: assess(settings, role),
        )

    use(lambda settings: verdict("fits"))
    return use
