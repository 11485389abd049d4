"""A store with measured load levels, for tests of what deployments hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.analysis.slo import parse_slo
from orchestrator.results.store import Store
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    failed_request,
    request,
)

SLO = parse_slo("ttft<=500ms,attainment>=0.9")
SECONDS = 20


class StoredLevels:
    """A store that is filled level by level. Each answer has 10 tokens, all at once, 100 ms after
    its request.
    """

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder)
        self.store = Store.open(self.uri, "exp")
        self.count = 0

    def deployment(self, name: str, **given: Any) -> None:
        commit_launch(self.store, f"L{name}", deployment_row(name, **given))

    def level(
        self, deployment: str, level: float, good: float = 1.0, failed: float = 0.0, **given: Any
    ) -> None:
        """``level`` requests per second for 20 s, the share ``good`` within the limit, evenly
        spread.
        """
        self.count += 1
        rows = []
        for index in range(round(level * SECONDS)):
            at = index * 1000 / level
            late = int(round((index + 1) * (1 - good), 9)) > int(round(index * (1 - good), 9))
            if int(round((index + 1) * failed, 9)) > int(round(index * failed, 9)):
                rows.append(failed_request(index, at))
                continue
            rows.append(request(index, at, first_ms=at + (900 if late else 100), tokens=10))
        workload = given.get("workload", "chat")
        point = {
            "deployment_id": deployment,
            "level": level,
            "point_id": f"{deployment}-{workload}-{level}",
        }
        window = {"window_end_ns": SECONDS * 10**9}
        commit_measurement(self.store, f"m{self.count}", rows, **point | window | given)

    def starts(
        self, deployment: str, levels: Sequence[float], good: float = 1.0, **given: Any
    ) -> None:
        """One point, measured once on each of several starts at slightly different levels."""
        for start, level in enumerate(levels):
            point = {"point_id": f"{deployment}-starts", "start": start, "repeat": start}
            self.level(deployment, level, good, **point | given)

    def settled(self, deployment: str, level: float) -> None:
        """The deployment holds the limits at this level on two starts, and not at 40 requests/s."""
        self.deployment(deployment)
        self.starts(deployment, (level, level))
        self.level(deployment, 40, good=0.5)
