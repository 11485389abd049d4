"""The sequential test of one load level: against simulated queues and against misses in runs, all
seeded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.arrays import Bools, Floats
from orchestrator.capacity.design_effect import MissRuns
from orchestrator.capacity.sequential_test import (
    ALPHA,
    EarlierProbes,
    LevelVerdict,
    Probe,
    ProbeSize,
    evidence_from,
)
from tests.unit.capacity.builders import runs_of_misses
from tests.unit.load.test_validity import poisson, slots

TARGET = 0.95


def watched(
    due: Floats, done: Floats, limits: list[list[tuple[float, float]]], until_s: float = 600.0
) -> tuple[float, tuple[LevelVerdict | None, ...], Probe]:
    """Seconds until every tier has a verdict, looked at each second. ``limits``: (limit in s,
    target) of every test.
    """
    targets = [[target for _, target in tier] for tier in limits]
    before = [
        [EarlierProbes(at_other_levels=(MissRuns(1 - target, 8.0, 10**9),)) for target in tier]
        for tier in targets
    ]
    probe, told = Probe(targets, before), np.zeros(len(due), bool)
    flat = np.array([limit for tier in limits for limit, _ in tier])
    for now in np.arange(1.0, until_s):
        new = (done <= now) & ~told
        probe.tell(due[new], done[new], (done - due)[new, None] <= flat)
        told |= new
        waits = (due <= now) & ~told
        if None not in probe.look(now, due[waits], (now - due)[waits, None] > flat):
            return now, probe.verdicts, probe
    return until_s, probe.verdicts, probe


def m_d_c(rate: float, seed: int, seconds: float = 600.0) -> tuple[Floats, Floats]:
    """Eight slots of 0.4 s: 20/s is the most they do."""
    due = poisson(rate, seconds, seed)
    return due, slots(due, 8, 0.4)


@pytest.mark.parametrize(("rate", "expected"), [(8.0, "holds"), (20.0, "fails")])
def test_a_level_far_from_the_edge_is_decided_in_two_minutes(
    rate: float, expected: LevelVerdict
) -> None:
    for seed in range(5):
        seconds, verdicts, _ = watched(*m_d_c(rate, seed), [[(0.5, TARGET)]])
        assert verdicts == (expected,)
        assert seconds <= 120


@pytest.mark.parametrize("rate", [40.0, 100.0])
def test_a_hopeless_level_ends_in_seconds(rate: float) -> None:
    for seed in range(5):
        seconds, verdicts, _ = watched(*m_d_c(rate, seed, 60.0), [[(0.5, TARGET)]])
        assert verdicts == ("fails",)
        assert seconds <= 8


def test_a_backlog_that_grows_fails_a_limit_that_nobody_has_missed_yet() -> None:
    seconds, verdicts, probe = watched(*m_d_c(40.0, 1, 60.0), [[(1000.0, TARGET)]], 60.0)
    assert verdicts == ("fails",)
    assert probe.diverging
    assert seconds < 30


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_fills_up_with_long_answers_is_no_backlog(seed: int) -> None:
    due = poisson(10.0, 120.0, seed)
    _, verdicts, probe = watched(due, due + 40.0, [[(60.0, TARGET)]], 120.0)
    assert not probe.diverging
    assert "fails" not in verdicts


def test_tiers_share_a_probe_and_each_needs_all_its_tests() -> None:
    due, done = m_d_c(8.0, 3, 900.0)
    _, verdicts, _ = watched(
        due, done, [[(0.3, 0.9)], [(2.0, TARGET)], [(2.0, 0.99), (0.3, 0.5)], [(2.0, 0.98)]]
    )
    assert verdicts == ("fails", "holds", "fails", "holds")


@pytest.mark.parametrize(("limit_s", "expected"), [(2.0, "holds"), (0.3, "fails")])
def test_a_test_on_a_part_judges_the_requests_of_this_part_alone(
    limit_s: float, expected: LevelVerdict
) -> None:
    """Every second request is of the part; of the others none meets the test, ended or open."""
    due, done = m_d_c(8.0, seed=4)
    is_of_part = np.arange(len(due)) % 2 == 0
    met = ((done - due) <= limit_s) & is_of_part
    before = [[EarlierProbes(at_other_levels=(MissRuns(1 - TARGET, 8.0, 10**9),))]]

    def verdict(counts: Bools) -> LevelVerdict | None:
        probe = Probe([[TARGET]], before)
        for now in np.arange(1.0, 600.0):
            ended = (done <= now) & (done > now - 1)
            is_open = (due <= now) & (done > now)
            probe.tell(due[ended], done[ended], met[ended, None], counts[ended, None])
            missed = ((now - due) > limit_s) | ~is_of_part
            open_counts = counts[is_open, None]
            (found,) = probe.look(now, due[is_open], missed[is_open, None], False, open_counts)
            if found is not None:
                return found
        return None

    assert verdict(is_of_part) == expected
    assert verdict(np.ones_like(is_of_part)) == "fails"


def test_what_ended_early_is_not_taken_for_all() -> None:
    """Half of the requests end at once, the others after 50 s: until then nothing is known."""
    due = np.arange(0, 100.0, 0.1)
    done = due + np.where(np.arange(len(due)) % 2, 0.1, 50.0)
    probe = Probe([[TARGET]])
    ended = done < 45
    probe.tell(due[ended], done[ended], np.ones((ended.sum(), 1), bool))
    waits = (due < 45) & ~ended
    assert probe.look(45.0, due[waits], np.zeros((waits.sum(), 1), bool)) == (None,)


@pytest.mark.parametrize(("saturated", "expected"), [(False, "holds"), (True, None)])
def test_a_saturated_probe_never_holds(saturated: bool, expected: LevelVerdict | None) -> None:
    due, done = m_d_c(8.0, 1, 200.0)
    probe, none = (
        Probe([[TARGET]], [[EarlierProbes(at_other_levels=(MissRuns(0.05, 8.0, 10**9),))]]),
        np.zeros(0),
    )
    probe.tell(due, done, (done - due <= 0.5)[:, None])
    assert probe.look(200.0, none, np.zeros((0, 1), bool), saturated) == (expected,)


@pytest.mark.parametrize("length", [1, 5])
def test_looking_after_every_batch_makes_false_verdicts_no_more_likely_than_stated(
    length: float,
) -> None:
    rng, repetitions, false = np.random.default_rng(length), 60, 0
    for _ in range(repetitions):
        flags = runs_of_misses(rng, 0.945, length, 3000)
        verdicts = (evidence_from([flags[:end]], TARGET).verdict() for end in range(50, 3001, 50))
        false += next((one for one in verdicts if one), None) == "holds"
    assert false <= ALPHA * repetitions + 3  # 2 standard deviations


def test_sixty_good_requests_are_no_evidence_where_misses_may_come_in_runs() -> None:
    assert evidence_from([np.ones(60, bool)], TARGET).verdict() is None
    assert evidence_from([np.ones(2000, bool)], TARGET).verdict() == "holds"


def test_a_target_of_all_requests_is_never_shown_to_hold() -> None:
    assert evidence_from([np.ones(10_000, bool)], 1.0).verdict() is None
    assert evidence_from([np.array([True] * 99 + [False])], 1.0).verdict() == "fails"


@given(
    st.lists(st.lists(st.booleans(), max_size=60), max_size=4),
    st.floats(0.01, 0.999),
    st.integers(0, 50),
)
def test_more_requests_that_met_it_never_make_it_look_worse(
    runs: list[list[bool]], target: float, more: int
) -> None:
    flags = [np.array(run, bool) for run in runs]
    before = evidence_from(flags, target)
    after = evidence_from([*flags, np.ones(more, bool)], target)
    assert after.share >= before.share - 1e-12
    assert not (before.holds > 3 and before.fails > 3)
    assert np.isfinite([before.share, before.effective, before.design_effect]).all()


def test_two_slow_requests_of_a_cold_engine_are_no_verdict() -> None:
    probe = Probe([[TARGET]], [[EarlierProbes(quick=True)]])
    probe.tell(np.array([0.1, 0.9]), np.array([2.0, 2.5]), np.zeros((2, 1), bool))
    assert probe.look(3.0, np.zeros(0), np.zeros((0, 1), bool)) == (None,)


def test_the_burst_that_begins_a_closed_loop_is_not_its_level() -> None:
    """All 200 prompts come at once and are prefilled one after the other; then each is alone, and
    meets the limit.
    """
    answers, wait_s = 20.0, 0.02
    first = np.arange(200) * wait_s + wait_s
    due = np.concatenate([np.full(200, 0.0), *[first + answers * turn for turn in range(1, 16)]])
    ttft = np.concatenate([first, np.full(200 * 15, wait_s)])
    _, verdicts, _ = watched(due, due + ttft, [[(0.5, TARGET)]], 300.0)
    assert verdicts == ("holds",)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_probe_far_below_the_target_ends_soon(
    share: float,
) -> None:
    rng, probe = np.random.default_rng(3), Probe([[TARGET]])
    due = np.arange(60.0)
    probe.tell(due, due + 0.2, rng.random((60, 1)) < share)
    assert probe.look(60.0, np.zeros(0), np.zeros((0, 1), bool)) == ("fails",)


@pytest.mark.parametrize(("share", "longer"), [(0.95, True), (0.99, False), (0.8, False)])
def test_a_probe_near_the_target_takes_longer_than_expected(share: float, longer: bool) -> None:
    rng, probe = (
        np.random.default_rng(3),
        Probe([[TARGET]], [[EarlierProbes(quick=True)]], ProbeSize(300.0)),
    )
    due = np.cumsum(rng.exponential(0.1, 2000))
    probe.tell(due, due + 0.2, rng.random((2000, 1)) < share)
    now, verdict = 0.0, None
    while verdict is None and not probe.takes_longer and now < due[-1]:
        now += 1.0
        (verdict,) = probe.look(now, np.zeros(0), np.zeros((0, 1), bool))
    assert probe.takes_longer == longer
    assert (verdict is None) == longer
    assert now < 100.0, "a thousand requests"


def flags_with_few_misses(count: int) -> Bools:
    """One in a hundred, evenly."""
    return np.asarray(np.arange(count) % 100 != 50)


def requests_to_a_verdict(before: EarlierProbes) -> tuple[int, LevelVerdict | None]:
    """Requests that a probe takes to its verdict, and the verdict, where 1 % of requests miss."""
    probe, now = Probe([[TARGET]], [[before]]), 0.0
    due = np.arange(20_000) / 10
    probe.tell(due, due + 0.2, flags_with_few_misses(20_000)[:, None])
    while (
        verdict := probe.look(now := now + 5.0, np.zeros(0), np.zeros((0, 1), bool))[0]
    ) is None and now < due[-1]:
        pass
    return int(np.searchsorted(due, now)), verdict


def test_a_probe_goes_on_where_earlier_ones_ended() -> None:
    earlier = EarlierProbes(
        counting=(flags_with_few_misses(500),), at_other_levels=(MissRuns(0.05, 10.0, 1000),)
    )
    alone, verdict = requests_to_a_verdict(replace(earlier, counting=()))
    both, also = requests_to_a_verdict(earlier)
    assert verdict == also == "holds"
    assert both == pytest.approx(alone - 500, abs=150)


def test_a_probe_learns_while_it_runs_how_misses_come() -> None:
    """Nothing is known of that in the first case, as much as can be in the other: 20 and 1 are far
    from one another.
    """
    nothing, verdict = requests_to_a_verdict(EarlierProbes())
    ignorant, _ = requests_to_a_verdict(
        EarlierProbes(at_other_levels=(MissRuns(0.05, 20.0, 10**6),))
    )
    assert verdict == "holds"
    assert nothing < 0.7 * ignorant


def test_earlier_probes_alone_do_not_end_the_next_one() -> None:
    rng = np.random.default_rng(4)
    before = EarlierProbes(
        counting=(rng.random(3000) < 0.95,), at_other_levels=(MissRuns(0.05, 10.0, 1000),)
    )
    probe = Probe([[TARGET]], [[before]], ProbeSize(200.0))
    due = np.arange(60) / 10
    probe.tell(due, due + 0.2, np.ones((60, 1), bool))
    probe.look(6.0, np.zeros(0), np.zeros((0, 1), bool))
    assert not probe.takes_longer
