"""What the user is told of a launch has the names of the launch and its deployment."""

from __future__ import annotations

from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.sweep.announcer import Announcer


def test_an_event_has_the_names_of_its_launch_and_deployment() -> None:
    told: list[Event | Phase] = []
    Announcer(told.append, "fp8", "01L").event("gpu_lost", "it is gone", {"host": "a"})
    (event,) = told
    assert isinstance(event, Event)
    assert (event.kind, event.text, event.data) == ("gpu_lost", "it is gone", {"host": "a"})
    assert (event.deployment, event.launch_id) == ("fp8", "01L")


def test_a_phase_is_shown_under_the_label_of_its_deployment() -> None:
    told: list[Event | Phase] = []
    Announcer(told.append, "fp8").phase(PhaseName.START, elapsed_s=3.0, total_s=9.0, says="loading")
    assert told == [Phase("fp8", PhaseName.START, elapsed_s=3.0, total_s=9.0, says="loading")]
