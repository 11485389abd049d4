"""The table of ``orchestrator plan``."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.report.documents.predicted_deployment import PredictedMemory
from orchestrator.report.plan_table import footprint_text, memory_cells, show
from orchestrator.spec.experiment import parse_experiment
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, planned
from tests.unit.report.documents.test_predicted_deployment import MEMORY, predicting

DEPLOYMENTS = (
    "{{engine: emulator, hardware: cpu, vary: [{{grid: {{max_num_seqs: {max_num_seqs}}}}}]}}"
)


def shown(plan: Plan, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(PlanEstimate(plan), console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def plan_of(deployments: str) -> Plan:
    assert DEPLOYMENTS in EXPERIMENT
    text = EXPERIMENT.replace(DEPLOYMENTS, deployments.replace("{", "{{").replace("}", "}}"))
    return make_plan(parse_experiment(text.format(**VALUES)))


def test_each_deployment_has_a_row_with_its_memory() -> None:
    first, second = shown(predicting(MEMORY, None)).splitlines()[1:3]
    assert first.split()[:3] == ["emulator", "seqs=8", "planned"]
    assert {"1.0", "GiB", "1,024", "4.0"} <= set(first.split())
    assert second.split()[:3] == ["emulator", "seqs=16", "planned"]


@pytest.mark.parametrize(
    ("memory", "cells"),
    [
        (PredictedMemory(3 * 2**20, None, None), ("3.0 MiB", "", "")),
        (PredictedMemory(None, 1024, 1.25), ("", "1,024", "1.2")),
    ],
)
def test_what_is_not_known_of_memory_is_empty(
    memory: PredictedMemory, cells: tuple[str, str, str]
) -> None:
    assert tuple(memory_cells(memory).values()) == cells


def test_figures_make_room_for_labels_on_a_narrow_terminal() -> None:
    wide, narrow = (shown(predicting(MEMORY, None), width).splitlines()[0] for width in (120, 60))
    assert "at once" in wide
    assert "at once" not in narrow
    assert narrow.split()[-1] == "time"


def test_a_narrow_terminal_says_which_columns_it_has_no_room_for() -> None:
    plan = predicting(MEMORY, None)
    assert "not shown" not in shown(plan, 120)
    line = next(line for line in shown(plan, 60).splitlines() if line.startswith("not shown"))
    assert line.startswith("not shown: ")
    assert "at once" in line


def test_each_reason_and_remark_is_printed_once_with_the_labels_it_is_about() -> None:
    impossible: dict[str, Any] = {
        "status": "impossible",
        "reasons": ("It needs 3 TiB.",),
        "remarks": ("It is new.",),
    }
    plan = planned()
    plan = plan.with_deployments(
        deployment.model_copy(update=impossible) for deployment in plan.deployments
    )
    text = shown(plan)
    assert text.count("It needs 3 TiB.") == 1
    assert "impossible: It needs 3 TiB.\n  emulator seqs=8, emulator seqs=16\n" in text
    assert "note: It is new.\n  emulator seqs=8, emulator seqs=16\n" in text


def test_a_narrow_terminal_breaks_the_labels_of_a_reason_between_them() -> None:
    impossible: dict[str, Any] = {"status": "impossible", "reasons": ("It needs 3 TiB.",)}
    plan = plan_of("{engine: emulator, hardware: cpu, vary: [{grid: {max_num_seqs: [1, 2, 3]}}]}")
    plan = plan.with_deployments(
        deployment.model_copy(update=impossible) for deployment in plan.deployments
    )
    labels = "  emulator seqs=1, emulator seqs=2,\n    emulator seqs=3\n"
    assert f"impossible: It needs 3 TiB.\n{labels}" in shown(plan, width=43)


def test_a_terminal_breaks_the_sums_after_a_clause_and_indents_what_follows() -> None:
    terminal = Console(file=io.StringIO(), width=30, force_terminal=True, no_color=True)
    show(PlanEstimate(planned()), terminal)
    lines = terminal.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (note,) = (at for at, line in enumerate(lines) if line.startswith("note: engine starts"))
    assert lines[note + 1].startswith("  ")


@pytest.mark.parametrize(
    ("deployment", "footprint"),
    [
        ("{engine: emulator, hardware: cpu}", "1 core"),
        ("{engine: emulator, hardware: cpu, tensor_parallel_size: 2}", "2 cores"),
        ("{engine: emulator, hardware: cpu, replicas: 3}", "3 replicas x 1 core"),
        ("{engine: endpoint, url: 'http://127.0.0.1:1'}", "endpoint"),
        ("{engine: endpoint, url: 'http://127.0.0.1:1', endpoint_gpus: 4}", "endpoint of 4 GPUs"),
    ],
)
def test_a_footprint_names_what_there_are_several_of(deployment: str, footprint: str) -> None:
    assert footprint_text(plan_of(deployment).deployments[0]) == footprint
