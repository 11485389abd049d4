"""What all probes of a level show together."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.levels import at_levels, search_state
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows, outcome_of_attempt
from orchestrator.capacity.search import Tier
from orchestrator.capacity.sequential_test import evidence_from
from orchestrator.spec.load import Slo
from tests.unit.capacity.builders import SLO, attempt, flags


def test_one_long_run_of_misses_does_not_fail_a_level() -> None:
    """Misses that came one after the other are one piece of evidence, however many they are."""
    burst = ProbeOutcome(8.0, (np.arange(80) > 50,), Shows.FAILURE_ONLY, whole=False)
    for probes, verdict in (
        ([burst], None),
        ([ProbeOutcome(8.0, flags(0.99)), burst], "holds"),
        ([ProbeOutcome(8.0, flags(0.98))], "holds"),
        (
            [
                ProbeOutcome(8.0, flags(0.98)),
                ProbeOutcome(8.0, flags(0.85, 900), Shows.FAILURE_ONLY, whole=False),
            ],
            None,
        ),
        ([ProbeOutcome(8.0, flags(0.96)), burst, burst], None),
        ([burst, burst], "fails"),
        ([ProbeOutcome(8.0, (np.ones(20, bool),), whole=False), burst], None),
        ([ProbeOutcome(8.0, (np.arange(30) > 15,))], None),
        ([ProbeOutcome(8.0, flags(0.6, 400), Shows.FAILURE_ONLY, whole=False)], "fails"),
    ):
        (level,) = at_levels(probes, [TARGET])
        assert level.verdict == verdict


def test_two_probes_far_below_the_target_fail_their_level() -> None:
    brief = ProbeOutcome(8.0, (np.arange(31) > 20,), Shows.FAILURE_ONLY, whole=False)
    assert at_levels([brief], [TARGET])[0].verdict is None
    assert at_levels([brief, brief], [TARGET])[0].verdict == "fails"


def test_a_level_far_below_the_target_fails_no_higher_one() -> None:
    brief = [
        ProbeOutcome(level, (np.arange(31) > 20,), Shows.FAILURE_ONLY, whole=False)
        for level in (4.0, 8.0)
    ]
    assert [evidence.verdict for evidence in at_levels(brief, [TARGET])] == [None, None]


def test_one_miss_fails_a_target_of_all_requests() -> None:
    assert at_levels([ProbeOutcome(8.0, (np.arange(12) > 0,))], [1.0])[0].verdict == "fails"


def test_fresh_probes_confirm_with_less_evidence_than_shows() -> None:
    shown = ProbeOutcome(8.0, flags(0.99))
    for count in range(100, 4000, 50):
        (level,) = at_levels([shown, ProbeOutcome(8.0, flags(0.99, count))], [TARGET])
        if level.confirmed:
            break
    assert level.confirmed
    assert evidence_from([flags(0.99, count)[0]], TARGET, level.usual_effect).verdict() is None


def test_a_tier_fails_where_one_of_its_tests_fails() -> None:
    p99 = Slo.model_validate({"ttft": 0.5, "ttft_p99": 5.0})
    stored = outcome_of_attempt(attempt(4.0, [*[0.1] * 49, 6.0] * 160), 4.0, p99)
    assert len(stored.met) == 2
    (level,) = at_levels([stored], [TARGET, 0.99])
    assert [one.verdict() for one in level.tests] == ["holds", "fails"]
    assert level.verdict == "fails"
    assert level.share is not None
    assert level.share < TARGET


@pytest.mark.parametrize(
    "shows",
    [
        Shows.FAILURE_ONLY,
        Shows.DIVERGED,
        Shows.INTERRUPTED,
        Shows.ENGINE_DIED,
        Shows.CLIENT_BOUND,
        Shows.NOTHING,
    ],
)
def test_only_probes_for_any_verdict_can_show_that_a_level_holds(shows: Shows) -> None:
    assert at_levels([ProbeOutcome(4.0, flags(0.999), shows)] * 9, [TARGET])[0].verdict in (
        None,
        "fails",
    )


def test_a_saturated_probe_may_show_that_a_level_fails() -> None:
    assert (
        at_levels([ProbeOutcome(4.0, flags(0.5), Shows.FAILURE_ONLY)], [TARGET])[0].verdict
        == "fails"
    )


def test_an_interrupted_probe_shows_that_a_level_fails_or_nothing() -> None:
    good, bad = (([0.1] * (100 - many) + [6.0] * many) * 8 for many in (1, 50))
    told = [
        outcome_of_attempt(attempt(level, ttft_s, "interrupted"), level, SLO)
        for level, ttft_s in ((4.0, good), (8.0, bad))
    ]
    held, failed = at_levels(told, [TARGET])
    assert (held.verdict, held.share, held.requests) == (None, None, 0)
    assert (failed.verdict, failed.share) == ("fails", None)
    assert next_level(search_state([held, failed], TARGET)) == 4.0, "it is asked again"


def test_a_probe_begins_with_the_evidence_of_earlier_probes_of_its_level() -> None:
    """Of a level that was shown to hold only those after that count, and on the second start only
    those of that one.
    """
    tier, open_, good = Tier(False, SLO), flags(0.95, 300)[0], flags(0.99)[0]
    tier.tell(ProbeOutcome(16.0, flags(0.5, 600), Shows.FAILURE_ONLY, whole=False))
    tier.tell(ProbeOutcome(8.0, (open_,)))
    (before,) = tier.before(8.0)
    assert len(before.counting) == 1
    assert len(before.not_counting) == 0
    assert not before.confirms
    tier.tell(ProbeOutcome(8.0, (good,)))
    tier.tell(ProbeOutcome(8.0, (open_,)))
    (before,) = tier.before(8.0)
    assert len(before.counting) == 1
    assert len(before.not_counting) == 2
    assert before.confirms
    (second,) = tier.before(8.0, start=1)
    assert len(second.counting) == 0
    assert len(second.not_counting) == 3
    assert second.confirms


@pytest.mark.parametrize(
    "shows", [Shows.ANY_VERDICT, Shows.FAILURE_ONLY, Shows.DIVERGED, Shows.INTERRUPTED]
)
def test_a_running_probe_and_its_stored_rows_give_the_same_evidence(
    shows: Shows,
) -> None:
    """Whatever ended one, its requests count: to leave those out that missed would be to choose the
    lucky ones.
    """
    tier, burst, met = Tier(False, SLO), (np.abs(np.arange(600) - 130) >= 30,), flags(0.98, 1500)
    for told in (
        ProbeOutcome(4.0, flags(0.99)),
        ProbeOutcome(16.0, flags(0.5, 600), Shows.FAILURE_ONLY),
        ProbeOutcome(8.0, burst, shows),
    ):
        tier.tell(told)
    (before,) = tier.before(8.0)
    running = before.evidence(met[0], TARGET)
    tier.tell(ProbeOutcome(8.0, met))
    (stored,) = next(one for one in tier.claim.levels if one.level == 8.0).tests
    assert astuple(running) == pytest.approx(astuple(stored))
