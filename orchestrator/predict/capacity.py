"""The predicted capacity of a deployment, in the form that a plan stores."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.spec.load import Control


@dataclass(frozen=True, slots=True)
class PredictedCapacity:
    """The highest load at which limits hold, and the output tokens/s there; 0 if none holds.

    ``interval_per_gpu``: the output tokens/s per GPU between which nine in ten capacities lie.
    ``usd_per_million_tokens``: of output; None without a price.
    """

    control: Control
    level: float
    output_throughput: float
    output_throughput_per_gpu: float
    interval_per_gpu: list[float]
    usd_per_million_tokens: float | None

    def document(self) -> dict[str, Any]:
        """The capacity as a plan stores it."""
        return asdict(self)


def usd_per_million_tokens(usd_per_hour: float | None, tokens_per_s: float) -> float | None:
    """What a million tokens cost; None without a price or without tokens."""
    if usd_per_hour is None or not tokens_per_s:
        return None
    return usd_per_hour / tokens_per_s / 3600 * 1e6
