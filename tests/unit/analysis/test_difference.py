"""Verdicts on the difference of two sweeps over their starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from orchestrator.analysis.difference import (
    Difference,
    Gated,
    Sides,
    StartValues,
    Verdict,
    holm,
    judge_together,
    judged_spread,
    p_more_failed,
    pooled,
    spread_of_pairs,
    verdicts_together,
    welch,
)
from orchestrator.analysis.start_spread import Spread
from orchestrator.results.records import RequestTotals

BOUND = -math.log1p(-0.03)
STARTS = st.lists(st.floats(-2, 2), min_size=2, max_size=8)


def sides(base: list[float], new: list[float]) -> Sides:
    return Sides(StartValues(tuple(base)), StartValues(tuple(new)))


def drawn(seed: int, spread: float, count: int = 2) -> list[float]:
    return list(np.random.default_rng(seed).normal(0, spread, count))


@given(STARTS, STARTS)
def test_welch_is_that_of_scipy(base: list[float], new: list[float]) -> None:
    pair = sides(base, new)
    assume(pair.base.variance > 1e-12 and pair.new.variance > 1e-12)
    difference = welch(pair)
    expected = ttest_ind(new, base, equal_var=False)
    assert difference.estimate / difference.standard_error == pytest.approx(
        expected.statistic, rel=1e-12, abs=1e-12
    )
    assert difference.freedom == pytest.approx(expected.df, rel=1e-12)
    assert difference.p_two_sided == pytest.approx(expected.pvalue, rel=1e-12)
    interval = expected.confidence_interval(0.95)
    assert difference.estimate - difference.half_width == pytest.approx(interval.low, rel=1e-9)


def test_the_variance_of_a_single_pair_gives_students_test() -> None:
    base, new = [1.0, 1.2, 1.1], [1.4, 1.3, 1.35]
    pair = sides(base, new)
    spread = judged_spread(pair, spread_of_pairs([pair]))
    assert spread is not None
    difference = pooled(pair, spread)
    expected = ttest_ind(new, base)
    assert difference.p_two_sided == pytest.approx(expected.pvalue, rel=1e-12)
    assert difference.freedom == pytest.approx(expected.df)


def test_pairs_share_the_variances_of_sides_with_two_starts() -> None:
    shared = spread_of_pairs([sides([0.0, 2.0], [0.0, 1.0, 2.0]), sides([0.0, 2.0], [5.0])])
    assert shared is not None
    # variances 2, 1 and 2 of 1, 2 and 1 degrees of freedom
    common = shared.common
    assert (common.variance, common.freedom) == (pytest.approx((2 + 2 * 1 + 2) / 4), 4)


def test_pairs_without_a_spread_share_none() -> None:
    assert spread_of_pairs([sides([1.0], [1.1])]) is None
    assert spread_of_pairs([sides([1.0, 1.0], [1.1, 1.1])] * 2) is None
    assert judged_spread(sides([1.0, 1.1], [1.0, 1.2]), None) is None


def test_where_new_spreads_more_the_freedom_is_that_of_welch_and_satterthwaite() -> None:
    pairs = [sides([0.0, 0.01], [0.0, 0.1, 0.2]), sides([0.0, 0.02], [0.1, 0.3, 0.2])]
    shared = spread_of_pairs(pairs)
    assert shared is not None
    ratio = np.var([0.0, 0.1, 0.2], ddof=1) / np.mean([0.01**2 / 2, 0.02**2 / 2])
    assert shared.variance_ratio == pytest.approx(ratio)
    for pair in pairs:
        own = pair.uneven_spread(ratio)
        assert own is not None
        # the variance of the difference is that of Welch's test, whatever the ratio
        assert pooled(pair, own).standard_error == pytest.approx(welch(pair).standard_error)
    own_ratio = pairs[0].new.variance / pairs[0].base.variance
    own = pairs[0].uneven_spread(own_ratio)
    assert own is not None
    assert own.freedom == pytest.approx(welch(pairs[0]).freedom)


def test_sides_that_spread_alike_have_all_degrees_of_freedom() -> None:
    pairs = [sides(drawn(n, 0.01), drawn(n + 50, 0.01)) for n in range(10)]
    shared = spread_of_pairs(pairs)
    assert shared is not None
    assert shared.variance_ratio is None
    assert shared.common.freedom == 20


def verdicts_of_drawn_sweep(
    repetition: int, deviations: Sequence[float], change_of_first: float = 0.0
) -> list[Verdict]:
    """The verdict on each deployment of a sweep of two starts a side.

    ``deviations``: the standard deviation of each deployment's starts.
    """
    random = np.random.default_rng([5, repetition])
    pairs = []
    for number, deviation in enumerate(deviations):
        change = change_of_first if number == 0 else 0.0
        base = random.normal(0, deviation, 2)
        new = random.normal(change, deviation, 2)
        pairs.append(sides(list(base), list(new)))
    shared = spread_of_pairs(pairs)
    return verdicts_together(
        [Gated(pair, True, BOUND, judged_spread(pair, shared)) for pair in pairs]
    )


def test_few_identical_sweeps_raise_an_alarm() -> None:
    verdicts = [verdicts_of_drawn_sweep(n, [0.02] * 10) for n in range(600)]
    alarms = sum(Verdict.WORSE in of_sweep for of_sweep in verdicts)
    assert alarms <= 40  # 5 % of 600 is 30, with a standard deviation of 5


def test_few_identical_sweeps_raise_an_alarm_though_one_deployment_is_noisy() -> None:
    """One in ten spreads four times as much as the others, and two starts seldom show it."""
    verdicts = [verdicts_of_drawn_sweep(n, [0.01] * 9 + [0.04]) for n in range(600)]
    alarms = sum(Verdict.WORSE in of_sweep for of_sweep in verdicts)
    assert alarms <= 54  # 7 % of 600 is 42, with a standard deviation of 6


def test_two_starts_find_five_per_cent_among_ten_deployments_that_spread_by_one() -> None:
    verdicts = [verdicts_of_drawn_sweep(n, [0.01] * 10, math.log(0.95)) for n in range(600)]
    found = sum(of_sweep[0] is Verdict.WORSE for of_sweep in verdicts)
    assert found >= 560  # 95 % of 600 is 570, with a standard deviation of 5


def test_one_noisy_pair_among_quiet_ones_is_no_regression() -> None:
    quiet = [sides(drawn(n, 0.01), drawn(n + 50, 0.01)) for n in range(9)]
    noisy = sides([0.05, -0.04], [-0.02, -0.13])  # the means differ by 8 %, the starts by as much
    pairs = [*quiet, noisy]
    shared = spread_of_pairs(pairs)
    judged = judge_together(
        [Gated(pair, True, BOUND, judged_spread(pair, shared)) for pair in pairs]
    )
    assert judged[-1].verdict is Verdict.UNDECIDED
    # the mean variance alone would have raised an alarm
    assert shared is not None
    mean_alone = Spread(shared.common.variance, shared.common.freedom)
    alarmed = judge_together([Gated(pair, True, BOUND, mean_alone) for pair in pairs])
    assert alarmed[-1].verdict is Verdict.WORSE


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_bonferroni_and_no_correction(p_values: list[float]) -> None:
    fallen = holm(p_values)
    for p, falls in zip(p_values, fallen, strict=True):
        assert falls or p > 0.05 / len(p_values)
        assert not falls or p <= 0.05


def test_holm_steps_down() -> None:
    assert holm([0.04, 0.01, 0.02]) == [True, True, True]
    assert holm([0.04, 0.02, 0.03]) == [False, False, False]
    assert holm([]) == []


def verdict(
    base: list[float], new: list[float], spread: Spread | None = None, higher: bool = True
) -> Verdict:
    return judge_together([Gated(sides(base, new), higher, BOUND, spread)])[0].verdict


QUIET = Spread(0.005**2, 20)


def test_each_verdict() -> None:
    assert verdict([0.0, 0.0], [-0.06, -0.06], QUIET) is Verdict.WORSE
    assert verdict([0.0, 0.0], [-0.06, -0.06], QUIET, higher=False) is Verdict.BETTER
    assert verdict([0.0, 0.0], [0.06, 0.06], QUIET) is Verdict.BETTER
    assert verdict([0.0, 0.0], [0.001, 0.001], QUIET) is Verdict.SAME
    assert verdict([0.0, 0.0], [-0.03, -0.03], QUIET) is Verdict.UNDECIDED


def test_a_certain_difference_within_the_bound_is_the_same() -> None:
    assert verdict([0.0, 0.0], [-0.02, -0.02], Spread(0.001**2, 20)) is Verdict.SAME


def test_a_growth_has_a_bound_of_its_own() -> None:
    grown = sides([0.0, 0.0], [0.03, 0.03])
    for growth_bound, expected in ((math.log1p(0.03), Verdict.WORSE), (None, Verdict.SAME)):
        gated = Gated(grown, False, BOUND, Spread(0.0001**2, 20), growth_bound)
        assert judge_together([gated])[0].verdict is expected


def test_one_start_on_either_side_decides_nothing() -> None:
    for base, new in (([0.0], [-1.0, -1.0]), ([0.0, 0.0], [-1.0]), ([0.0], [-1.0])):
        for spread in (QUIET, None):
            (judged,) = judge_together([Gated(sides(base, new), True, BOUND, spread)])
            assert judged.verdict is Verdict.UNDECIDED
            assert judged.more_starts == 1


def test_so_many_more_starts_would_decide() -> None:
    noisy = Spread(0.03**2, 20)
    (judged,) = judge_together([Gated(sides([0.0, 0.0], [-0.05, -0.05]), True, BOUND, noisy)])
    assert judged.verdict is Verdict.UNDECIDED
    assert judged.more_starts is not None
    enough = 2 + judged.more_starts
    for starts, expected in ((enough, Verdict.WORSE), (enough - 1, Verdict.UNDECIDED)):
        shared = Spread(0.03**2, 20 + 2 * (starts - 2))
        assert verdict([0.0] * starts, [-0.05] * starts, shared) is expected


def test_what_would_take_too_many_starts_has_no_number() -> None:
    (judged,) = judge_together(
        [Gated(sides([0.0, 0.0], [-BOUND, -BOUND]), True, BOUND, Spread(1.0, 20))]
    )
    assert judged.more_starts is None


def test_more_figures_need_more_certainty() -> None:
    pair = sides([0.0, 0.0], [-0.05, -0.05])
    unchanged = sides([0.0, 0.0], [0.0, 0.0])
    spread = Spread(0.02**2, 20)
    alone = judge_together([Gated(pair, True, 0.0, spread)])
    among = judge_together(
        [Gated(pair, True, 0.0, spread)] + [Gated(unchanged, True, 0.0, spread)] * 20
    )
    assert alone[0].verdict is Verdict.WORSE
    assert among[0].verdict is Verdict.UNDECIDED


def test_the_noise_of_requests_is_the_least_uncertainty_of_shares() -> None:
    agreeing = Sides(StartValues((0.99, 0.99), 0.01), StartValues((0.95, 0.95), 0.01))
    assert welch(agreeing).standard_error == pytest.approx(math.sqrt(2) * 0.01)
    (judged,) = judge_together([Gated(agreeing, True, 0.03)])
    assert judged.verdict is Verdict.UNDECIDED


def test_exact_figures_differ_or_do_not() -> None:
    assert verdict([1.0, 1.0], [1.0, 1.0]) is Verdict.SAME
    assert verdict([1.0, 1.0], [0.9, 0.9]) is Verdict.WORSE


@given(STARTS, STARTS)
def test_worse_one_way_is_better_the_other_way(base: list[float], new: list[float]) -> None:
    one_way, other_way = verdict(base, new), verdict(base, new, higher=False)
    mirrored = {Verdict.WORSE: Verdict.BETTER, Verdict.BETTER: Verdict.WORSE}
    assert other_way is mirrored.get(one_way, one_way)


def test_p_values_of_a_known_t() -> None:
    difference = Difference(estimate=-2.0, standard_error=1.0, freedom=10)
    assert difference.p_below(0.0) == pytest.approx(0.0367, abs=1e-4)
    assert difference.p_above(0.0) == pytest.approx(1 - 0.0367, abs=1e-4)
    assert difference.p_two_sided == pytest.approx(0.0734, abs=1e-4)


def test_p_of_more_failed_requests_is_that_of_the_ladys_tea() -> None:
    """Fisher, "The Design of Experiments" (1935), ch. 2: 3 of 4 cups told right, p = 17 / 70."""
    base = RequestTotals(scheduled=4, ok=3, failed=1)
    new = RequestTotals(scheduled=4, ok=1, failed=3)
    assert p_more_failed(base, new) == pytest.approx(17 / 70)
