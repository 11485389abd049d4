"""What ``orchestrator simulate`` says of a plan before it begins."""

from __future__ import annotations

from pathlib import Path

from orchestrator.plan.shortlist import shortlisted
from tests.unit.cli.commands import invoke
from tests.unit.simulation.builders import planned


def test_a_shortlist_that_is_frozen_in_a_plan_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(shortlisted(planned(), 1).to_json())
    done = invoke("simulate", str(path), "--results", str(tmp_path / "results"), "--no-report")
    assert done.status == 0
    assert "shortlist: 1 of 2 deployments by plan --predict; left out: 1 " in done.stderr
    assert "2 simulated, 0 already done" in done.stderr
