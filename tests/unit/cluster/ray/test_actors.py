"""When an agent takes its node for cut off from the rest of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.cluster.ray.actors import (
    LOOK_EVERY_S,
    ORPHAN_S,
    SILENT_LIMIT_S,
    SameHead,
    wait_for_orphanage,
    wait_for_silence,
)


@pytest.mark.parametrize(
    ("answers", "ended_s"),
    [
        ((), SILENT_LIMIT_S),
        ((True,) * 100, 100 * LOOK_EVERY_S + SILENT_LIMIT_S),
        # back in time
        ((False, False, False, False, False, True), 6 * LOOK_EVERY_S + SILENT_LIMIT_S),
    ],
)
def test_it_is_cut_off_when_nobody_answered_for_a_minute(
    answers: tuple[bool, ...], ended_s: float
) -> None:
    now, said = 0.0, iter(answers)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def answer(said: Iterator[bool] = said) -> bool:
        return next(said, False)

    wait_for_silence(answer, lambda: now, sleep)
    assert now == ended_s


@pytest.mark.parametrize(
    ("ids", "answers"),
    [
        ((b"a", None, b"a", b"b", b"a"), (True, False, True, False, True)),
        ((None, b"a", b"b"), (False, True, False)),
        ((b"", b"a", b"", b"b"), (True, True, True, False)),  # it does not always say
    ],
)
def test_a_head_that_was_restarted_is_not_the_one_that_answered(
    ids: tuple[bytes | None, ...], answers: tuple[bool, ...]
) -> None:
    said = iter(ids)
    look = SameHead(lambda: next(said))
    assert tuple(look() for _ in ids) == answers


def test_an_agent_whose_raylet_died_ends_a_little_later_and_not_before() -> None:
    parents, slept = iter([7, 7, 7, 1]), list[float]()
    wait_for_orphanage(7, lambda: next(parents), slept.append)
    assert slept == [1.0, 1.0, 1.0, ORPHAN_S]
