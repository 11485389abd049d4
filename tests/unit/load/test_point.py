"""A point as clients know it: its end, its secrets, and how far its clients are."""

from __future__ import annotations

import pytest

from orchestrator.load.point import Progress, Target, TargetSilence
from tests.unit.load.test_schedule import point


@pytest.mark.parametrize(
    ("warmup_s", "duration_s", "ends_s"), [(2.0, 3.0, 5.0), (None, 3.0, 3.0), (2.0, None, None)]
)
def test_requests_are_due_until_warm_up_and_duration_are_over(
    warmup_s: float | None, duration_s: float | None, ends_s: float | None
) -> None:
    assert point(warmup_s=warmup_s, duration_s=duration_s).ends_s == ends_s


def test_answers_are_waited_for_as_long_as_a_request_may_take() -> None:
    assert point(request_timeout_s=7.0).drain_s == 7.0
    assert point(request_timeout_s=7.0, drain_timeout_s=0.0).drain_s == 0.0


def test_secrets_are_the_key_the_header_values_and_their_last_words() -> None:
    headers = (("X-Key", "Basic hidden-word"), ("X-Short", "a"))
    target = Target("http://h", "m", api_key="key-of-mine", headers=headers)
    assert target.secrets == ["key-of-mine", "Basic hidden-word", "hidden-word"]


def test_progress_of_several_clients_adds_up() -> None:
    silence = TargetSilence(0, 4, 300.0)
    first = Progress(scheduled=5, sent=4, done=3, failed=2, in_flight=1, silences=(silence,))
    total = sum([first, Progress(scheduled=1, sent=1)], Progress())
    assert total == Progress(
        scheduled=6, sent=5, done=3, failed=2, in_flight=1, silences=(silence,)
    )


def test_a_target_with_open_requests_is_silent_after_the_limit() -> None:
    silences = (TargetSilence(0, 4, 300.0), TargetSilence(1, 0, 500.0))
    progress = Progress(silences=silences)
    assert progress.silent(120.0) == [0]
    assert progress.silent(301.0) == []


def test_a_target_is_not_silent_if_one_client_has_heard_of_it() -> None:
    first = Progress(silences=(TargetSilence(0, 4, 300.0),))
    second = Progress(silences=(TargetSilence(0, 0, 5.0),))
    assert (first + second).silent(120.0) == []
