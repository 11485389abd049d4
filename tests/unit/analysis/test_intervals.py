"""Confidence intervals: right for independent requests, honest for failures in runs and for repeats
that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.intervals import (
    Interval,
    batches_of,
    exceeds,
    rate_interval,
    share_interval,
    starts_to_decide,
    student_t,
)
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.analysis.throughput import Batches


def batches(amounts: Sequence[float]) -> Batches:
    """Batches of one second each, in which these amounts were counted."""
    return Batches(np.array(amounts, float), np.ones(len(amounts)))


def rate(*repeats: list[float]) -> Interval:
    """The rate of repeats with these amounts per batch, all on one start."""
    interval = rate_interval([batches(amounts) for amounts in repeats])
    assert interval is not None
    return interval


def of_starts(*starts: list[float]) -> Interval:
    """As ``rate``, with each repeat on an engine start of its own."""
    interval = rate_interval([batches(amounts) for amounts in starts], range(len(starts)))
    assert interval is not None
    return interval


def share(*repeats: list[bool] | np.ndarray) -> Interval:
    interval = share_interval([np.asarray(flags, bool) for flags in repeats])
    assert interval is not None
    return interval


def test_a_throughput_has_students_interval_of_its_batches() -> None:
    interval = rate([8, 12] * 5)
    assert interval.estimate == 10
    # standard deviation sqrt(40/9) = 2.108, over sqrt(10) 0.6667; t(9, 0.975) = 2.2622
    assert interval.upper - interval.estimate == pytest.approx(0.6667 * 2.2622, rel=1e-3)
    assert interval.estimate - interval.lower == pytest.approx(0.6667 * 2.2622, rel=1e-3)
    assert interval.batches == 10


def test_repeats_that_differ_by_more_than_their_batches_widen_the_interval() -> None:
    steady = rate([10] * 10, [12] * 10, [14] * 10)
    assert steady.estimate == 12
    # between repeats: 3/2 * (4 + 0 + 4) * 100 / 30^2 = 1.3333; t(29, 0.975) = 2.0452
    assert steady.upper - 12 == pytest.approx(np.sqrt(4 / 3) * 2.0452, rel=1e-3)
    assert rate([10, 14] * 15).upper - 12 < steady.upper - 12


def test_several_starts_have_students_interval_of_their_own_spread() -> None:
    interval = of_starts([10] * 10, [12] * 10, [14] * 10)
    assert (interval.estimate, interval.starts) == (12, 3)
    # standard error of the mean of 10, 12, 14: 2 / sqrt(3) = 1.1547; t(2, 0.975) = 4.3027
    assert interval.upper - 12 == pytest.approx(1.1547 * 4.3027, rel=1e-3)


def test_two_starts_that_happen_to_agree_prove_little() -> None:
    interval = of_starts([10, 14] * 5, [10.2, 14.2] * 5)
    # By the means of the starts: standard error 0.1, t(1, 0.975) = 12.706. By all their batches it
    # would be narrower: standard error 0.4594, t(19, 0.975) = 2.0930.
    assert interval.upper - interval.estimate == pytest.approx(0.1 * 12.706, rel=1e-3)
    # two deployments are compared by the larger standard error
    assert interval.standard_error == pytest.approx(0.4594, rel=1e-3)


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_intervals_of_two_starts_hold_the_truth_in_95_percent_of_cases(spread: float) -> None:
    """``spread``: the standard deviation of starts' true means, where the standard error of the mean
    of one start's ten batches is 1.
    """
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        starts: list[list[float]] = []
        for _ in range(2):
            true_mean = rng.normal(100, spread)
            starts.append(rng.normal(true_mean, np.sqrt(10), 10).tolist())
        interval = of_starts(*starts)
        covered += interval.lower <= 100 <= interval.upper
    assert covered >= 0.95 * 400


def test_repeats_on_one_start_are_one_start() -> None:
    interval = rate_interval([batches([10] * 10), batches([12] * 10)], starts=[0, 0])
    assert interval is not None
    assert interval.starts == 1


def test_one_is_ahead_when_the_difference_is_beyond_what_starts_differ_by() -> None:
    first = of_starts([10] * 5, [12] * 5)
    near = of_starts([9] * 5, [11] * 5)
    far = of_starts([1] * 5, [2] * 5)
    # By Welch, with the standard errors 1 and 0.5, 1.47 degrees of freedom and t(0.975) = 6.2,
    # a difference counts from 6.95 on: the one to ``far`` is 9.5, to ``near`` 1.
    assert exceeds(first, far)
    assert not exceeds(first, near)
    assert not exceeds(far, first)
    assert not exceeds(of_starts([100] * 5), far), "one start tells nothing of the next"
    # With n starts of each, whose standard deviations are sqrt(2), the difference of 1 counts once it
    # is above t(2n - 2) * 2 / sqrt(n), which is so first with n = 17.
    assert starts_to_decide(first, near) == 17
    assert starts_to_decide(near, near) is None


def test_a_spread_that_deployments_share_shows_smaller_differences() -> None:
    first = of_starts([104] * 5, [106] * 5)
    near = of_starts([102] * 5, [104] * 5)
    second = of_starts([99] * 5, [101] * 5)
    # By Welch, with the standard error sqrt(2), 2 degrees of freedom and t(0.975) = 4.3, a difference
    # counts from 6.08 on: ``first`` is 5 ahead of ``second``.
    assert not exceeds(first, second)
    shared = CommonSpread(2e-4, 10, True, deployments=10, prior_freedom=3)
    # Pooled, with as large a standard error, 6.1 degrees of freedom and t(0.975) = 2.44, it counts
    # from 3.5 on: ``near`` is 3 ahead.
    assert exceeds(first, second, shared)
    assert not exceeds(near, second, shared)
    assert not exceeds(second, first, shared)
    assert not exceeds(of_starts([120] * 5), second, shared), "one start tells nothing of the next"
    alone = starts_to_decide(near, second)
    pooled = starts_to_decide(near, second, shared)
    assert alone is not None
    assert pooled is not None
    assert 2 < pooled < alone


def test_windows_of_different_length_weigh_by_their_length() -> None:
    one_second = Batches(amounts=np.array([10.0]), sizes=np.array([1.0]))
    three_seconds = Batches(amounts=np.array([90.0]), sizes=np.array([3.0]))
    interval = rate_interval([one_second, three_seconds])
    assert interval is not None
    assert interval.estimate == (10 + 90) / (1 + 3)


def test_nothing_has_no_interval() -> None:
    assert share_interval([]) is None
    assert share_interval([np.zeros(0, bool)]) is None
    assert rate_interval([Batches(np.zeros(10), np.zeros(10))]) is None


def test_all_good_is_not_certainly_all_good() -> None:
    interval = share([True] * 100)
    assert interval.estimate == interval.upper == 1
    assert interval.lower == pytest.approx(100 / (100 + 2.2622**2), rel=1e-4)
    assert share([True] * 1000).lower > interval.lower


def test_failures_in_a_run_widen_the_interval_and_scattered_ones_do_not() -> None:
    scattered = np.ones(1000, bool)
    scattered[::20] = False
    run = np.ones(1000, bool)
    run[400:450] = False
    assert share(scattered).estimate == share(run).estimate == 0.95
    assert share(scattered).design_effect == 1
    assert share(run).design_effect > 10
    assert share(run).lower < 0.85 < share(scattered).lower


def test_repeats_stay_apart() -> None:
    good = [True] * 200
    bad = [True] * 100 + [False] * 100
    both = share(good, bad)
    assert both.estimate == 0.75
    assert both.batches == 20
    assert both.lower < 0.5


def test_few_requests_are_each_a_batch() -> None:
    assert batches_of(np.array([True, False, True])).amounts.tolist() == [1, 0, 1]
    interval = share([True, False, True])
    assert 0 <= interval.lower < 0.3 < 0.9 < interval.upper <= 1
    assert share([True]).lower < 0.05


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=80), min_size=1, max_size=3))
def test_an_interval_holds_its_estimate_and_stays_a_share(repeats: list[list[bool]]) -> None:
    interval = share(*repeats)
    flags = [flag for repeat in repeats for flag in repeat]
    assert interval.estimate == pytest.approx(sum(flags) / len(flags))
    assert 0 <= interval.lower <= interval.estimate + 1e-12
    assert interval.estimate - 1e-12 <= interval.upper <= 1


@given(st.floats(0.01, 100), st.lists(st.floats(0, 1e6), min_size=10, max_size=10))
def test_an_interval_in_another_unit_is_scaled(factor: float, amounts: list[float]) -> None:
    interval = rate(amounts)
    scaled = interval.scaled(factor)
    assert scaled.lower == pytest.approx(interval.lower * factor)
    assert scaled.estimate == pytest.approx(interval.estimate * factor)
    assert scaled.upper == pytest.approx(interval.upper * factor)


def runs_of_failures(rng: np.random.Generator, count: int, good: float, length: int) -> np.ndarray:
    """Flags of requests that are good or fail in blocks of ``length``. ``good``: a block's chance."""
    blocks = math.ceil(count / length)
    return np.repeat(rng.random(blocks) < good, length)[:count]


def is_in_wilson_interval(truth: float, flags: np.ndarray) -> bool:
    """Whether the usual 95 % interval, for independent requests, holds the true share."""
    n = flags.size
    share = flags.mean()
    z2 = 1.96**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = np.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n**2))) / (1 + z2 / n)
    return bool(abs(truth - middle) <= half)


@pytest.mark.parametrize(("length", "usual_at_most"), [(1, 1.0), (20, 0.5)])
def test_the_true_share_is_inside_as_often_as_promised_also_for_runs(
    length: int, usual_at_most: float
) -> None:
    rng = np.random.default_rng(7)
    ours = 0
    usual = 0
    for _ in range(300):
        flags = runs_of_failures(rng, 3000, 0.9, length)
        interval = share(flags)
        ours += interval.lower <= 0.9 <= interval.upper
        usual += is_in_wilson_interval(0.9, flags)
    assert ours / 300 >= 0.93
    assert usual / 300 <= usual_at_most


def test_quantiles_of_student_are_the_tabled_ones() -> None:
    quantiles = [round(student_t(freedom), 3) for freedom in (1, 2, 9, 30)]
    assert quantiles == [12.706, 4.303, 2.262, 2.042]
