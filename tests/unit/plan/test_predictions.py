"""What deployments are predicted to hold: its shape, what is not predicted and why, the order, the
known error.
"""

from __future__ import annotations

import pytest

from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import DEFAULT_SLO
from orchestrator.report.predictions import predictions_text
from tests.unit.plan.predicted import (
    capacity,
    predicted_plan,
    prediction_of,
)


def test_levels_capacity_and_error_stand_beside_the_predicted_memory() -> None:
    plan = predicted_plan()
    for deployment in plan.deployments:
        assert prediction_of(deployment)["weight_bytes"] > 0
        low, high, beyond = prediction_of(deployment)["levels"]
        assert set(low) == {
            "workload",
            "control",
            "level",
            "ttft_ms",
            "tpot_ms",
            "output_throughput",
        }
        assert (low["workload"], low["control"], low["level"]) == ("chat", "request_rate", 1.0)
        assert (
            low["output_throughput"] == pytest.approx(250, rel=0.05)
            and low["tpot_ms"] <= high["tpot_ms"]
        )
        # it cannot keep up
        assert beyond["ttft_ms"] is None and beyond["output_throughput"] < 4000 * 250
        fast, slow = capacity(deployment), capacity(deployment, "slow")
        assert 0 < fast["level"] <= slow["level"]
        assert fast["output_throughput"] == pytest.approx(fast["level"] * 250, rel=0.05)
        assert fast["output_throughput_per_gpu"] == pytest.approx(
            fast["output_throughput"] / deployment.devices
        )
        least, most = fast["interval_per_gpu"]
        assert least < fast["output_throughput_per_gpu"] < most
        assert prediction_of(deployment)["error"]["source"]
    assert Plan.from_json(plan.to_json()) == plan


def test_a_file_without_limits_is_held_against_stated_ones_and_says_so() -> None:
    plan = predicted_plan(slos={})
    assert all(
        capacity(deployment, DEFAULT_SLO.name)["level"] > 0 for deployment in plan.deployments
    )
    assert "default limits (MLPerf interactive)" in "\n".join(predictions_text(plan))
    assert (
        plan.deployments[0].first_guess("chat", "default")
        == capacity(plan.deployments[0], "default")["level"]
    )
