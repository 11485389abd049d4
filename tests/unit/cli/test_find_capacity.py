"""What the exit status of ``orchestrator load --find-capacity`` says of a search."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.estimate import Estimate
from orchestrator.cli.find_capacity import exit_status
from orchestrator.cli.signals import INTERRUPTED
from orchestrator.sweep.find_capacity import CapacityResult

CLAIM = Claim(claim=4.0, low=4.0, high=4.5, status="converged", levels=())
NOTHING_HOLDS = Claim(claim=None, low=0.0, high=1.0, status="nothing_holds", levels=())
UNKNOWN = Claim(claim=None, low=0.0, high=math.inf, status="budget", levels=())


@pytest.mark.parametrize(
    ("claim", "more", "status"),
    [
        (CLAIM, {}, 0),
        (NOTHING_HOLDS, {}, 0),
        (UNKNOWN, {}, 3),
        (replace(UNKNOWN, estimate=Estimate(4.2, 3.9, 4.6, None)), {}, 0),
        (CLAIM, {"failure": Failure(FailureKind.BAD_POINT, "it ended")}, 3),
        (CLAIM, {"interrupted": True}, INTERRUPTED),
    ],
)
def test_the_exit_status_says_whether_the_search_has_an_answer(
    claim: Claim, more: dict[str, Any], status: int
) -> None:
    assert exit_status(CapacityResult(claim, [], **more)) == status
