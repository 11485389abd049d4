"""The order in which deployments run, as predictions have it."""

from __future__ import annotations

from orchestrator.plan.order import (
    FRONT,
    QueueClass,
    predicted_share,
    queue_position,
    queue_priority,
)
from tests.unit.plan.predicted import (
    capacity,
    deployments,
    predicted_plan,
)


def test_launches_run_by_class_then_gangs_then_priority_then_length() -> None:
    in_order = [
        queue_position(QueueClass.NORMAL, is_gang=True, priority=0.0, seconds=1.0),
        queue_position(QueueClass.NORMAL, is_gang=False, priority=1.0, seconds=1.0),
        queue_position(QueueClass.NORMAL, is_gang=False, priority=0.5, seconds=9.0),
        queue_position(QueueClass.NORMAL, is_gang=False, priority=0.5, seconds=2.0),
        queue_position(QueueClass.RISKY, is_gang=True, priority=1.0, seconds=9.0),
        queue_position(QueueClass.RISKY, is_gang=False, priority=1.0, seconds=9.0),
    ]
    assert sorted(in_order) == in_order


def test_continued_launches_run_by_priority_whether_or_not_they_are_gangs() -> None:
    gang = queue_position(QueueClass.CONTINUED, is_gang=True, priority=0.5, seconds=9.0)
    single = queue_position(QueueClass.CONTINUED, is_gang=False, priority=1.0, seconds=1.0)
    assert single < gang


def test_the_best_share_is_one_and_the_unknown_have_the_median() -> None:
    vary = [
        {
            "cases": [{"tensor_parallel_size": size} for size in (1, 2, 4)]
            + [{"cpu_offload_gb": 1.0}]
        }
    ]
    plan = predicted_plan(deployments=deployments(vary=vary))
    shares = predicted_share(plan)
    for slo in ("fast", "slow"):
        known = [deployment for deployment in plan.deployments if deployment.predicted.capacities]
        best = max(known, key=lambda one: capacity(one, slo)["output_throughput_per_gpu"])
        assert shares[best.id] == 1.0
    (unknown,) = [
        deployment for deployment in plan.deployments if deployment.predicted.not_predicted
    ]
    assert sorted(shares[one.id] for one in known)[1] == shares[unknown.id]
    assert all(0 < share <= 1 for share in shares.values())


def test_where_all_is_measured_only_the_front_comes_first() -> None:
    """In the order of their predictions all would take up to a quarter longer."""
    vary = [{"cases": [{"tensor_parallel_size": size} for size in (1, 2, 4)]}]
    plan = predicted_plan(deployments=deployments(vary=vary))
    shares = predicted_share(plan)
    assert {share >= FRONT for share in shares.values()} == {True, False}
    assert queue_priority(plan) == {name: float(share >= FRONT) for name, share in shares.items()}
    assert (
        queue_priority(predicted_plan(deployments=deployments(vary=vary), budget={"gpu_hours": 1}))
        == shares
    )
    assert (
        queue_priority(
            predicted_plan(deployments=deployments(vary=vary), predictions={"order": False})
        )
        == {}
    )


def test_checkpoints_of_one_model_share_a_front_per_hardware_or_by_dollars() -> None:
    hardware = {
        "h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0},
        "h200": {"accelerator": "H200-141GB", "gpus_per_node": 8, "usd_per_gpu_hour": 300.0},
    }
    vary = [{"grid": {"hardware": ["h100", "h200"], "tensor_parallel_size": [1, 4]}}]

    def shares(objective: str) -> list[float]:
        load = {
            "search": "capacity",
            "control": "request_rate",
            **({"objective": objective} if objective else {}),
        }
        plan = predicted_plan(hardware=hardware, deployments=deployments(vary=vary), load=load)
        settings = {
            deployment.id: deployment.settings.model_copy(update={"model": f"copy/{deployment.id}"})
            for deployment in plan.deployments
        }
        copies = [
            deployment.model_copy(update={"settings": settings[deployment.id]})
            for deployment in plan.deployments
        ]
        return sorted(predicted_share(plan.with_deployments(copies)).values())

    assert [one == 1.0 for one in shares("")] == [False, False, True, True]  # of each hardware one
    assert [one == 1.0 for one in shares("usd")] == [False, False, False, True]
