"""Phases: each belongs to a state of a launch, and some of them are the last."""

from __future__ import annotations

import pytest

from orchestrator.results.phases import SWEEP, LaunchState, Phase, PhaseName, SweepStep


@pytest.mark.parametrize("name", PhaseName)
def test_every_phase_belongs_to_a_state(name: PhaseName) -> None:
    assert Phase("label", name).state is name.state


def test_every_state_but_ready_is_shown_as_a_phase() -> None:
    shown = {name.state for name in PhaseName}
    assert set(LaunchState) - shown == {LaunchState.READY}


def test_a_step_of_the_sweep_itself_has_no_state() -> None:
    assert Phase(SWEEP, SweepStep.STORE_PLAN).state is None


def test_nothing_follows_an_ended_or_refused_launch_and_an_ended_sweep() -> None:
    names = [*PhaseName, *SweepStep]
    last = {name for name in names if Phase("label", name).is_over}
    assert last == {PhaseName.ENDED, PhaseName.REFUSED, SweepStep.ENDED}
