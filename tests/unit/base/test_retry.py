"""Calls that are tried again: how often, after which pauses, and what comes back in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.base.retry import RetryPolicy, retried

POLICY = RetryPolicy(tries=4, first_pause_s=1.0, longest_pause_s=3.0)


class Flaky:
    """Fails so often, then answers with the number of the call."""

    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        self.calls, self._failures, self._error = 0, failures, error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error(f"failure {self.calls}")
        return self.calls


def is_os_error(error: BaseException) -> bool:
    return isinstance(error, OSError)


def never() -> Callable[[float], None]:
    return lambda pause_s: pytest.fail("must not wait")


def test_a_call_that_succeeds_is_made_once() -> None:
    assert retried(Flaky(0), POLICY, is_passing=is_os_error, sleep=never()) == 1


def test_pauses_double_up_to_the_longest() -> None:
    pauses = list[float]()
    assert retried(Flaky(3), POLICY, is_passing=is_os_error, sleep=pauses.append) == 4
    assert pauses == [1.0, 2.0, 3.0]


def test_chance_takes_at_most_its_share_of_a_pause() -> None:
    pauses = list[float]()
    policy = replace(POLICY, tries=200, longest_pause_s=1.0, least_share=0.25)
    retried(Flaky(199), policy, is_passing=is_os_error, sleep=pauses.append)
    assert min(pauses) >= 0.25
    assert max(pauses) <= 1.0
    assert len(set(pauses)) > 1


def test_the_last_failure_is_raised_when_no_try_is_left() -> None:
    call = Flaky(9)
    with pytest.raises(OSError, match="failure 4"):
        retried(call, POLICY, is_passing=is_os_error, sleep=lambda pause_s: None)
    assert call.calls == 4


def test_an_error_that_no_try_mends_is_raised_at_once() -> None:
    with pytest.raises(ValueError, match="failure 1"):
        retried(Flaky(1, ValueError), POLICY, is_passing=is_os_error, sleep=never())


def test_a_refused_result_is_asked_for_again() -> None:
    assert (
        retried(Flaky(0), POLICY, is_refused=lambda result: result < 3, sleep=lambda _: None) == 3
    )


def test_the_last_refused_result_is_returned() -> None:
    assert retried(Flaky(0), POLICY, is_refused=lambda result: True, sleep=lambda _: None) == 4


def test_no_try_begins_after_the_limit() -> None:
    call = Flaky(9)
    policy = RetryPolicy(first_pause_s=0.0, longest_pause_s=0.0, limit_s=0.0)
    with pytest.raises(OSError, match="failure 1"):
        retried(call, policy, is_passing=is_os_error)


def test_a_patient_caller_goes_on_beyond_the_policy() -> None:
    call = Flaky(10)
    found = retried(
        call,
        POLICY,
        is_passing=is_os_error,
        is_patient=lambda: call.calls < 20,
        sleep=lambda _: None,
    )
    assert found == 11


def test_an_error_while_waiting_ends_the_tries() -> None:
    def stopped(pause_s: float) -> None:
        raise InterruptedError("the user stopped it")

    call = Flaky(9)
    with pytest.raises(InterruptedError, match="the user stopped it"):
        retried(call, POLICY, is_passing=is_os_error, sleep=stopped)
    assert call.calls == 1
