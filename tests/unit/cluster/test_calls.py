"""Calls to hosts in other processes: their time limits and their exceptions."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from orchestrator.base.errors import InputError
from orchestrator.cluster.base import HostLost
from orchestrator.cluster.calls import answer, answer_or_none, crossing, in_thread


def test_our_own_exceptions_cross_unchanged() -> None:
    error = InputError("no such file")
    assert crossing(error, "prepare") is error


def test_any_other_exception_means_a_lost_host() -> None:
    crossed = crossing(KeyError("x"), "prepare")
    assert isinstance(crossed, HostLost)
    assert str(crossed) == "prepare failed on its node: KeyError: 'x'"


def test_a_call_without_an_answer_in_time_means_a_lost_host() -> None:
    with pytest.raises(HostLost, match=r"no answer to stop within 0\.01 s"):
        answer(Future[int](), "stop", 0.01)


def test_a_lost_host_may_be_left_unnoticed() -> None:
    assert answer_or_none(Future[int](), "rest", 0.01) is None


def test_an_answer_is_returned() -> None:
    assert answer(in_thread(max, 2, 3), "max") == 3


def test_an_exception_in_the_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        answer(in_thread(divmod, 1, 0), "divmod")
