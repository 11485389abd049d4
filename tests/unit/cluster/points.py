"""A small point of load for tests of clients."""

from __future__ import annotations

from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import LoadPoint, Target
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.spec.settings import EngineSettings
from orchestrator.workloads.drawn import RandomWorkload


def point_for(url: str) -> LoadPoint:
    return LoadPoint(
        targets=(Target(url, "m", 0),),
        dialect=ENGINES["vllm"].dialects(EngineSettings(engine="vllm", model="m"))["completions"],
        workload=RandomWorkload(
            name="w", input_tokens=Lengths(fixed=8), output_tokens=Lengths(fixed=4)
        ),
        level=Level(control="concurrency", value=2),
        arrivals=Arrivals(),
        duration_s=None,
        requests=3,
        seed=7,
    )
