"""Refused calls: how often they are tried again, and which messages the user gets."""

from __future__ import annotations

import errno
import math
import threading

import pytest

from orchestrator.base.errors import ResultsError
from orchestrator.results.storage_retry import (
    FOLDER,
    LONGEST_PAUSE_S,
    OBJECT_STORE,
    Patience,
    Retry,
)

CALLER = 1
OTHER = 2


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Refusing:
    """A call that is refused ``times`` times before it succeeds."""

    def __init__(self, times: float, error: OSError) -> None:
        self.calls = 0
        self._times = times
        self._error = error

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._times:
            raise self._error
        return "content"


def no_pause(seconds: float) -> None:
    pass


def busy() -> OSError:
    return OSError("AWS Error SLOW_DOWN during PutObject operation")


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_an_object_store_is_asked_as_often_as_its_policy_says() -> None:
    call = Refusing(math.inf, busy())
    with pytest.raises(
        ResultsError, match=r"writing it failed \(try 5 of 5\): AWS Error SLOW_DOWN"
    ):
        Retry(sleep=no_pause).run("writing it", call, Patience())
    assert call.calls == OBJECT_STORE.tries


def test_a_call_that_succeeds_at_last_returns_its_result() -> None:
    assert Retry(sleep=no_pause).run("reading it", Refusing(2, busy()), Patience()) == "content"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("ACCESS_DENIED", "are there credentials"),
        ("NO_SUCH_BUCKET", "is the bucket's name right?"),
        ("PermissionDenied", "are there credentials"),
    ],
)
def test_an_answer_that_cannot_change_is_not_asked_for_again(words: str, hint: str) -> None:
    call = Refusing(math.inf, OSError(f"AWS Error {words}"))
    with pytest.raises(ResultsError) as caught:
        Retry(sleep=no_pause).run("writing it", call, Patience())
    assert call.calls == 1
    assert str(caught.value).startswith(f"writing it failed: AWS Error {words}; {hint}")


def test_a_missing_file_is_an_answer_and_no_refusal() -> None:
    call = Refusing(math.inf, FileNotFoundError("part"))
    patience = Patience()
    with pytest.raises(FileNotFoundError):
        Retry(sleep=no_pause).run("reading it", call, patience)
    assert call.calls == 1
    assert not patience.refusing


def test_in_a_folder_only_errors_of_network_file_systems_pass() -> None:
    stale = Refusing(1, OSError(errno.ESTALE, "Stale file handle"))
    assert Retry(FOLDER, no_pause, is_local=True).run("reading it", stale, Patience()) == "content"
    denied = Refusing(1, PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(ResultsError, match="Permission denied"):
        Retry(FOLDER, no_pause, is_local=True).run("reading it", denied, Patience())


def test_a_full_disk_is_waited_for_only_while_a_run_has_patience() -> None:
    retry = Retry(FOLDER, no_pause, is_local=True)
    with pytest.raises(ResultsError, match="No space left"):
        retry.run("writing it", Refusing(1, full_disk()), Patience())
    patience = Patience()
    with patience.lasting(60.0):
        assert retry.run("writing it", Refusing(1, full_disk()), patience) == "content"
    assert patience.limit_s == 0.0


def test_a_call_is_tried_again_however_often_it_was_refused() -> None:
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    call = Refusing(1_100, full_disk())
    Retry(is_local=True).run("writing it", call, Patience(limit_s=math.inf, wait=wait))
    assert call.calls == 1_101
    assert max(pauses) <= LONGEST_PAUSE_S


def test_after_its_limit_a_call_is_given_up_and_says_so() -> None:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.now_s += 30.0
        return False

    patience = Patience(limit_s=100.0, wait=wait, now_s=clock)
    with pytest.raises(ResultsError, match="the storage refused for 120 s: writing it failed"):
        Retry().run("writing it", Refusing(math.inf, busy()), patience)
    assert patience.given_up.startswith("the storage refused for 120 s")
    assert patience.ended_s == clock.now_s


def test_a_stopped_sweep_tries_no_further() -> None:
    call = Refusing(math.inf, busy())
    patience = Patience(limit_s=math.inf, wait=lambda seconds: True)
    with pytest.raises(ResultsError, match="not tried again: the sweep was stopped"):
        Retry().run("writing it", call, patience)
    assert call.calls == 1


def test_of_several_refused_threads_the_one_that_waits_longest_speaks() -> None:
    clock = ManualClock()
    messages: list[str] = []
    patience = Patience(now_s=clock, tell=messages.append)
    patience.refused(CALLER, "")
    clock.now_s += 5.0
    assert patience.refused(OTHER, "the second is refused") == 0.0
    assert patience.refused(CALLER, "the first is refused") == 5.0
    assert messages == ["the first is refused"]


def test_the_user_hears_of_every_eighth_refusal_and_of_the_end() -> None:
    messages: list[str] = []
    patience = Patience(limit_s=math.inf, wait=lambda seconds: False, tell=messages.append)
    Retry().run("writing it", Refusing(16, busy()), patience)
    tries = [text.partition("(")[2].partition(")")[0] for text in messages[:-1]]
    assert tries == ["try 2 of 5", "try 4 of 5", "try 8", "try 16"]
    assert messages[-1].startswith("the storage answers again")


def test_a_single_refusal_is_not_told() -> None:
    messages: list[str] = []
    Retry(sleep=no_pause).run("writing it", Refusing(1, busy()), Patience(tell=messages.append))
    assert messages == []


class SilentCall:
    """A call that gets no answer until the user was messages that."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.was_told = threading.Event()
        self.refusing: list[int] = []
        self.patience = Patience(tell=self.tell, silent_s=0.01)

    def tell(self, text: str) -> None:
        self.messages.append(text)
        self.was_told.set()

    def __call__(self) -> None:
        assert self.was_told.wait(60)
        self.refusing = list(self.patience.refusing)


@pytest.mark.parametrize("calls", [1, 2])
def test_unanswered_calls_count_as_refused_until_they_are_answered(calls: int) -> None:
    silent = SilentCall()
    for _ in range(calls):
        silent.messages.clear()
        silent.was_told.clear()
        Retry().run("writing it", silent, silent.patience)
        assert silent.refusing == [threading.get_ident()]
        assert not silent.patience.refusing
        first, last = silent.messages
        assert "has not answered" in first
        assert "answers again" in last
