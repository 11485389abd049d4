"""Probes, evidence on levels and claims for tests of the capacity search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.search.servers import TARGET
from orchestrator.base.arrays import Bools
from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.claim import Claim, ClaimStatus
from orchestrator.capacity.levels import ANY_LEVEL, LevelEvidence, LevelRange
from orchestrator.capacity.probe_outcome import ProbeOutcome
from orchestrator.capacity.search import MOST_PROBES, Tier
from orchestrator.capacity.sequential_test import LevelVerdict
from orchestrator.results.records import AttemptData, PointHead
from orchestrator.spec.load import Slo

SLO = Slo(name="fast", ttft=0.5, attainment=TARGET)


LOOSE = Slo(name="loose", ttft=5.0, attainment=TARGET)


def attempt(
    level: float, ttft_s: list[float], validity: str = "valid", status: str = "ok", **more: Any
) -> AttemptData:
    point = PointHead(
        measurement_id="m", attempt_id="a", point_id="p", deployment_id="d", launch_id="l", experiment="x",
        workload="w", control="request_rate", level=level, arrivals="poisson", repeat=0, seed=0, status=status,  # type: ignore[arg-type]
        validity=validity, validity_reasons=(), clients=1, window_start_ns=0, window_end_ns=1, started_unix_ns=0,
        emulated=False, failure_class=more.get("failure_class"), capped_share=more.pop("capped_share", None),
        start=more.pop("start", 0), ended_early=more.pop("ended_early", None), ended_for=more.pop("ended_for", None),
    )  # fmt: skip
    values = np.array(ttft_s)
    return AttemptData(
        measurement_id="m", attempt_id="a", created_unix_ns=0, status=status, data_bytes=0, metrics_version=0,  # type: ignore[arg-type]
        point=point, deployment=None, figures=None, batch_tokens=(), batch_s=(), request_ok=np.isfinite(values),  # type: ignore[arg-type]
        request_ttft_s=values, request_tpot_s=values, request_e2e_s=values, request_normalized_ttft_s=values, **more,
    )  # fmt: skip


def ended(
    answer: Callable[[float], ProbeOutcome],
    whole_numbers: bool = False,
    sendable: LevelRange = ANY_LEVEL,
) -> Tier:
    """The tier after its whole search. ``answer``: the outcome of a probe of each level."""
    tier = Tier(SLO, whole_numbers, sendable=sendable)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state)) is None:
            break
        tier.tell(answer(level))
    return tier


def flags(share: float, count: int = 4000) -> tuple[Bools]:
    rng = np.random.default_rng(round(share * 1e6))
    return (rng.random(count) < share,)


AT_TARGET = (np.arange(4000) % 20 > 0,)  # 95 % to the last request: no number of them tells


def claim(
    low: float, high: float = math.inf, status: ClaimStatus = "budget", *levels: LevelEvidence
) -> Claim:
    """What a search shows that has confirmed no level, so its ``claim`` is None."""
    return Claim(None, low, high, status, levels)


def at(level: float, verdict: LevelVerdict | None = None, whole: int = 0) -> LevelEvidence:
    return LevelEvidence(
        level, max(whole, 1), verdict, False, 0.95, 1000, (), whole, False, False, False, 20.0
    )


def blocked(level: float, client_bound: bool) -> LevelEvidence:
    return replace(at(level), blocked=True, client_bound=client_bound, share=None, requests=0)


def runs_of_misses(rng: np.random.Generator, share: float, length: float, count: int) -> Bools:
    """Flags of which ``share`` is met; misses come in runs of this mean length."""
    met = np.ones(count, bool)
    at = 0
    while (at := at + int(rng.geometric((1 - share) / share / length))) < count:
        missed = int(rng.geometric(1 / length))
        met[at : at + missed] = False
        at += missed
    return met
