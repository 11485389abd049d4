"""What ``--shortlist`` and ``--simulated`` make of a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cli.shortlist import ShortlistRequest, limited
from orchestrator.plan.shortlist import ids_left_out
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep


def simulated(folder: Path) -> str:
    store_sweep(Store.open(str(folder), "exp"), planned(), simulated=True)
    return str(folder)


def test_a_run_goes_on_when_its_simulation_is_gone(tmp_path: Path) -> None:
    request = ShortlistRequest(1, simulated(tmp_path / "s"))
    first = limited(planned(), request, None).plan
    assert len(ids_left_out(first)) == 1
    (tmp_path / "s").rename(tmp_path / "gone")
    again = limited(planned(), request, first)
    assert again.plan == first
    assert again.lines[0].startswith("shortlist: 1 of 2 deployments by the simulation at ")
    with pytest.raises(InputError, match="no results at"):
        limited(planned(), ShortlistRequest(2, request.simulated), first)


def test_without_a_number_a_simulation_orders_and_leaves_nothing_out(tmp_path: Path) -> None:
    plan = limited(planned(), ShortlistRequest(None, simulated(tmp_path)), None).plan
    assert ids_left_out(plan) == frozenset()
    assert all(each.predicted.simulated for each in plan.deployments)


def test_another_profile_of_the_file_chooses_anew() -> None:
    plan = planned()
    fitted = plan.model_copy(
        update={"predictions": plan.predictions.model_copy(update={"profile": "/mine.yaml"})}
    )
    request = ShortlistRequest(1, None)
    assert request.source(fitted) == "plan --predict with /mine.yaml" != request.source(plan)
