"""What of a sweep the user is told, and which events wait to be stored."""

from __future__ import annotations

from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.sweep.news import SweepNews


def test_an_end_is_passed_on_only_of_what_was_shown() -> None:
    heard: list[Event | Phase] = []
    news = SweepNews(heard.append)
    ended = Phase("x", PhaseName.ENDED)
    refused = Phase("x", PhaseName.REFUSED)
    placed = Phase("x", PhaseName.PLACE)
    for phase in (refused, placed, ended, refused):
        news.tell(phase)
    assert heard == [placed, ended]


def test_events_that_could_not_be_stored_come_before_later_ones() -> None:
    news = SweepNews()
    news.tell(Event("sweep", "first"))
    taken = news.take_events()
    news.tell(Event("sweep", "second"))
    news.give_back_events(taken)
    assert [event.text for event in news.take_events()] == ["first", "second"]
    assert news.take_events() == []


def test_a_host_is_new_once() -> None:
    news = SweepNews()
    assert news.is_new_host("a")
    assert news.is_new_host("b")
    assert not news.is_new_host("a")
