"""What all probes of a level show together."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.levels import at_levels, search_state
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows, outcome_of_attempt
from orchestrator.capacity.search import Tier
from orchestrator.capacity.sequential_test import evidence_from
from orchestrator.spec.load import Slo
from tests.unit.capacity.builders import SLO, at, attempt, flags

# 51 misses in a row, then 29 requests that met the test
BURST = ProbeOutcome(8.0, (np.arange(80) > 50,), Shows.FAILURE_ONLY, whole=False)


@pytest.mark.parametrize(
    ("probes", "verdict"),
    [
        pytest.param([BURST], None, id="one burst"),
        pytest.param([BURST, BURST], "fails", id="two bursts"),
        pytest.param([ProbeOutcome(8.0, flags(0.98))], "holds", id="a good probe"),
        pytest.param([ProbeOutcome(8.0, flags(0.99)), BURST], "holds", id="good, then a burst"),
        pytest.param(
            [ProbeOutcome(8.0, flags(0.96)), BURST, BURST], None, id="barely good, then two bursts"
        ),
        pytest.param(
            [ProbeOutcome(8.0, (np.ones(20, bool),), whole=False), BURST],
            None,
            id="good but short, then a burst",
        ),
        pytest.param([ProbeOutcome(8.0, (np.arange(30) > 15,))], None, id="a short burst"),
        pytest.param(
            [
                ProbeOutcome(8.0, flags(0.98)),
                ProbeOutcome(8.0, flags(0.85, 900), Shows.FAILURE_ONLY, whole=False),
            ],
            None,
            id="good, then scattered misses",
        ),
        pytest.param(
            [ProbeOutcome(8.0, flags(0.6, 400), Shows.FAILURE_ONLY, whole=False)],
            "fails",
            id="many scattered misses",
        ),
    ],
)
def test_one_long_run_of_misses_does_not_fail_a_level(
    probes: list[ProbeOutcome], verdict: str | None
) -> None:
    """Misses that came one after the other are one piece of evidence, however many they are."""
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


def test_it_takes_less_to_confirm_a_level_than_to_show_that_it_holds() -> None:
    """The shortest probe that confirms a level would not have shown by itself that it holds."""
    first = ProbeOutcome(8.0, flags(0.99))
    for count in range(100, 4000, 50):
        later = ProbeOutcome(8.0, flags(0.99, count))
        (level,) = at_levels([first, later], [TARGET])
        if level.confirmed:
            break
    assert level.confirmed
    assert evidence_from(later.met, TARGET, level.usual_effect).verdict() is None


def test_a_tier_fails_where_one_of_its_tests_fails() -> None:
    p99 = Slo.model_validate({"ttft": 0.5, "ttft_p99": 5.0})
    ttft_s = [*[0.1] * 49, 6.0] * 160  # 98 % are in time
    stored = outcome_of_attempt(attempt(4.0, ttft_s), 4.0, p99)
    assert len(stored.met) == 2
    (level,) = at_levels([stored], [TARGET, 0.99])
    assert [evidence.verdict() for evidence in level.tests] == ["holds", "fails"]
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
    (level,) = at_levels([ProbeOutcome(4.0, flags(0.999), shows)] * 9, [TARGET])
    assert level.verdict != "holds"


def test_a_saturated_probe_may_show_that_a_level_fails() -> None:
    (level,) = at_levels([ProbeOutcome(4.0, flags(0.5), Shows.FAILURE_ONLY)], [TARGET])
    assert level.verdict == "fails"


def test_an_interrupted_probe_shows_that_a_level_fails_or_nothing() -> None:
    good_ttft_s = ([0.1] * 99 + [6.0]) * 8
    bad_ttft_s = ([0.1] * 50 + [6.0] * 50) * 8
    probes = [
        outcome_of_attempt(attempt(4.0, good_ttft_s, "interrupted"), 4.0, SLO),
        outcome_of_attempt(attempt(8.0, bad_ttft_s, "interrupted"), 8.0, SLO),
    ]
    good, bad = at_levels(probes, [TARGET])
    assert (good.verdict, good.share, good.requests) == (None, None, 0)
    assert (bad.verdict, bad.share) == ("fails", None)
    assert next_level(search_state([good, bad], TARGET)) == 4.0, "it is probed again"


def test_a_probe_begins_with_the_evidence_of_earlier_probes_of_its_level() -> None:
    """Once the level was shown to hold, only later probes count, and on the second start only those
    of that start.
    """
    tier = Tier(SLO)
    undecided = flags(0.95, 300)
    tier.tell(ProbeOutcome(16.0, flags(0.5, 600), Shows.FAILURE_ONLY, whole=False))
    tier.tell(ProbeOutcome(8.0, undecided))
    (before,) = tier.before(8.0)
    assert len(before.counting) == 1
    assert len(before.not_counting) == 0
    assert not before.confirms
    tier.tell(ProbeOutcome(8.0, flags(0.99)))
    tier.tell(ProbeOutcome(8.0, undecided))
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
    """The requests of an earlier probe count whatever ended it: to leave out the probes that missed
    would be to choose the lucky ones.
    """
    tier = Tier(SLO)
    tier.tell(ProbeOutcome(4.0, flags(0.99)))
    tier.tell(ProbeOutcome(16.0, flags(0.5, 600), Shows.FAILURE_ONLY))
    one_burst = np.abs(np.arange(600) - 130) >= 30  # 59 misses in a row
    tier.tell(ProbeOutcome(8.0, (one_burst,), shows))
    (met,) = flags(0.98, 1500)
    (before,) = tier.before(8.0)
    of_running_probe = before.evidence(met, TARGET)
    tier.tell(ProbeOutcome(8.0, (met,)))
    level = tier.state.at(8.0)
    assert level is not None
    (of_stored_rows,) = level.tests
    assert astuple(of_running_probe) == pytest.approx(astuple(of_stored_rows))


@pytest.mark.parametrize(
    ("probes", "whole", "can_wait"), [(1, 0, False), (2, 0, False), (3, 0, True), (1, 1, True)]
)
def test_a_search_may_wait_where_its_level_stays_undecided(
    probes: int, whole: int, can_wait: bool
) -> None:
    undecided = replace(at(4.0, whole=whole), share=0.94, probes=probes)
    assert search_state([undecided, at(8.0, "fails")], TARGET).can_wait is can_wait
