"""When an agent ends by itself: its node is cut off from the head, or its raylet died."""

from __future__ import annotations

import pytest

from orchestrator.cluster.ray.actors import (
    LOOK_EVERY_S,
    ORPHAN_S,
    SILENT_LIMIT_S,
    SameHead,
    wait_for_silence,
    wait_until_orphaned,
)


@pytest.mark.parametrize(
    ("answers", "ended_s"),
    [
        ((), SILENT_LIMIT_S),
        ((True,) * 100, 100 * LOOK_EVERY_S + SILENT_LIMIT_S),
        # the head answers again just before the minute is over
        ((False, False, False, False, False, True), 6 * LOOK_EVERY_S + SILENT_LIMIT_S),
    ],
)
def test_a_node_is_cut_off_when_its_head_has_not_answered_for_a_minute(
    answers: tuple[bool, ...], ended_s: float
) -> None:
    """``answers``: whether the head answers each look; after them it never does."""
    now_s = 0.0
    answers_to_come = iter(answers)

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    wait_for_silence(lambda: next(answers_to_come, False), lambda: now_s, sleep)
    assert now_s == ended_s


@pytest.mark.parametrize(
    ("cluster_ids", "same"),
    [
        ((b"a", None, b"a", b"b", b"a"), (True, False, True, False, True)),
        ((None, b"a", b"b"), (False, True, False)),
        # a head that answers without its id is taken for the same
        ((b"", b"a", b"", b"b"), (True, True, True, False)),
    ],
)
def test_a_head_that_was_restarted_is_not_the_one_that_answered_first(
    cluster_ids: tuple[bytes | None, ...], same: tuple[bool, ...]
) -> None:
    """``cluster_ids``: what the head answers to each look; None: nothing."""
    ids_to_come = iter(cluster_ids)
    same_head = SameHead(lambda: next(ids_to_come))
    assert tuple(same_head() for _ in cluster_ids) == same


def test_an_agent_whose_raylet_died_ends_a_little_later_and_not_before() -> None:
    raylet = 7
    init = 1  # the parent of processes whose own parent died
    parents = iter([raylet, raylet, raylet, init])
    slept_s: list[float] = []
    wait_until_orphaned(raylet, lambda: next(parents), slept_s.append)
    assert slept_s == [1.0, 1.0, 1.0, ORPHAN_S]
