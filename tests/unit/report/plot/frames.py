"""Frames of points, for pictures of them."""

from __future__ import annotations

from typing import Any

import pandas as pd


def row(deployment: str = "tp=1", level: float = 2.0, **given: Any) -> dict[str, Any]:
    """A row of a frame of points. A higher level has more tokens/s, of which a user sees fewer."""
    tokens = 100.1 * level
    return {
        "experiment": "sweep",
        "workload": "chat",
        "deployment": deployment,
        "deployment_id": f"id of {deployment}",
        "point_id": f"{deployment} {level}",
        "model": "some-org/m",
        "hardware": "h100",
        "control": "concurrency",
        "validity": "valid",
        "emulated": False,
        "simulated": False,
        "source": None,
        "level": level,
        "per_user": 300.3 / level,
        "per_device": tokens,
        "per_device.lower": tokens - 3.3,
        "per_device.upper": tokens + 4.4,
        "output_token_throughput": tokens,
        "output_token_throughput.lower": tokens - 1.1,
        "output_token_throughput.upper": tokens + 2.2,
        "ttft_ms.p99": 10.1 * level,
    } | given


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(list(rows))
