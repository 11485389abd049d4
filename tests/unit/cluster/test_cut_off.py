"""When an agent takes its node for cut off from the rest of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.cluster.ray_actors import LOOK_EVERY_S, SILENT_LIMIT_S, wait_for_silence


@pytest.mark.parametrize(
    ("answers", "ended_s"),
    [
        ((), SILENT_LIMIT_S),
        ((True,) * 100, 100 * LOOK_EVERY_S + SILENT_LIMIT_S),
        ((False, False, False, False, False, True), 6 * LOOK_EVERY_S + SILENT_LIMIT_S),  # back in time
    ],
)
def test_it_is_cut_off_when_nobody_answered_for_a_minute(answers: tuple[bool, ...], ended_s: float) -> None:
    now, said = 0.0, iter(answers)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def answer(said: Iterator[bool] = said) -> bool:
        return next(said, False)

    wait_for_silence(answer, lambda: now, sleep)
    assert now == ended_s
