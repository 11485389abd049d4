"""The variance between starts that deployments share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.start_spread import (
    FREEDOM_IF_UNEVEN,
    CommonSpread,
    Spread,
    common_spread,
    p_even,
    usual_prior_freedom,
)

SPREADS = st.lists(
    st.builds(Spread, st.floats(1e-6, 1e3), st.integers(1, 8)), min_size=1, max_size=12
)


def drawn(random: np.random.Generator, deviations: list[float], freedom: int = 2) -> list[Spread]:
    """An estimate of each deployment's variance."""
    return [
        Spread(float(deviation**2 * random.chisquare(freedom) / freedom), freedom)
        for deviation in deviations
    ]


EVEN_FREEDOM = usual_prior_freedom(10)


def test_the_mean_is_weighted_by_degrees_of_freedom() -> None:
    common = common_spread([Spread(2.0, 1), Spread(1.0, 3)])
    assert common == CommonSpread(
        1.25, 4, True, deployments=2, prior_freedom=usual_prior_freedom(2)
    )


def test_without_a_variance_there_is_nothing_in_common() -> None:
    assert common_spread([]) is None
    assert common_spread([Spread(0.0, 2)] * 3) is None


def test_starts_that_do_not_differ_count_as_any_other() -> None:
    alike = common_spread([Spread(0.0, 2), *[Spread(1.0, 2)] * 9])
    assert alike is not None
    assert (alike.variance, alike.freedom, alike.is_even) == (pytest.approx(0.9), 20, True)
    assert alike.of(Spread(0.0, 2)).variance == pytest.approx(0.9 * 8 / 10)
    uneven = common_spread([*[Spread(0.0, 2)] * 9, Spread(1.0, 2)])
    assert uneven is not None
    assert not uneven.is_even


def test_a_figure_that_is_rounded_is_pooled_with_what_rounding_adds() -> None:
    """Of three values that are rounded to their standard deviation, one in ten are the same."""
    random = np.random.default_rng(4)
    variances = []
    zeros = 0
    for _ in range(1000):
        starts = np.round(random.normal(0.0, 1.0, (10, 3)))
        spreads = [Spread(float(np.var(of_one, ddof=1)), 2) for of_one in starts]
        zeros += sum(spread.variance == 0 for spread in spreads)
        common = common_spread(spreads)
        assert common is not None
        variances.append(common.variance)
    assert zeros > 500
    assert np.mean(variances) == pytest.approx(1.0 + 1 / 12, rel=0.05)  # Sheppard's correction


@given(SPREADS)
def test_a_moderated_variance_lies_between_its_own_and_the_mean(spreads: list[Spread]) -> None:
    common = common_spread(spreads)
    assert common is not None
    for own in spreads:
        moderated = common.of(own)
        low, high = sorted((own.variance, common.variance))
        assert low * (1 - 1e-9) <= moderated.variance <= high * (1 + 1e-9)
        assert own.freedom * (1 - 1e-9) <= moderated.freedom <= common.freedom * (1 + 1e-9)


def test_the_mean_of_few_counts_less_than_that_of_many() -> None:
    for deployments, expected in ((2, 1.6), (5, 4.0), (10, 8.0), (30, 8.0)):
        common = common_spread([Spread(1.0, 2)] * deployments)
        assert common is not None
        assert common.prior_freedom == pytest.approx(expected)


def test_uneven_deployments_share_no_more_than_even_ones() -> None:
    assert common_spread([Spread(1.0, 2)] * 9 + [Spread(1e6, 2)]).prior_freedom == FREEDOM_IF_UNEVEN
    little = common_spread([Spread(1.0, 8), Spread(1e6, 8)], prior_freedom_if_even=1.0)
    assert not little.is_even
    assert little.prior_freedom == 1.0 < FREEDOM_IF_UNEVEN


def test_a_single_deployment_keeps_its_variance_and_freedom() -> None:
    own = Spread(3.0, 2)
    common = common_spread([own])
    assert common is not None
    assert common.is_even
    moderated = common.of(own)
    assert (moderated.variance, moderated.freedom) == (pytest.approx(3.0), pytest.approx(2.0))


def test_a_deployment_of_one_start_has_the_mean() -> None:
    assert CommonSpread(2.0, 8, True, 4, EVEN_FREEDOM).of(None) == Spread(2.0, 8)


def test_uneven_spreads_count_little_for_each_other() -> None:
    own = Spread(9.0, 2)
    even = CommonSpread(1.0, 20, True, 10, EVEN_FREEDOM).of(own)
    uneven = CommonSpread(1.0, 20, False, 10, FREEDOM_IF_UNEVEN).of(own)
    assert even.variance == pytest.approx((EVEN_FREEDOM + 2 * 9) / (EVEN_FREEDOM + 2))
    assert uneven.variance == pytest.approx((FREEDOM_IF_UNEVEN + 2 * 9) / (FREEDOM_IF_UNEVEN + 2))
    assert uneven.freedom == FREEDOM_IF_UNEVEN + 2 < even.freedom


def test_the_moderated_variance_has_the_freedom_that_it_says() -> None:
    """A variance of f degrees of freedom has a relative variance of 2 / f."""
    random = np.random.default_rng(1)
    drawn_variances = []
    freedoms = []
    for _ in range(4000):
        spreads = drawn(random, [1.0] * 10)
        mean = float(np.mean([each.variance for each in spreads]))
        moderated = CommonSpread(mean, 20, True, 10, EVEN_FREEDOM).of(spreads[0])
        drawn_variances.append(moderated.variance)
        freedoms.append(moderated.freedom)
    assert len(set(freedoms)) == 1
    assert np.var(drawn_variances) == pytest.approx(2 / freedoms[0], rel=0.1)


@pytest.mark.parametrize("freedom", [1, 2, 8])
@pytest.mark.parametrize("deployments", [2, 10])
def test_even_spreads_are_called_uneven_as_often_as_the_level_says(
    deployments: int, freedom: int
) -> None:
    random = np.random.default_rng(2)
    p_values = [p_even(drawn(random, [1.0] * deployments, freedom)) for _ in range(4000)]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.011)


def test_uneven_spreads_are_noticed_and_more_often_with_more_starts() -> None:
    random = np.random.default_rng(3)
    deviations = [1.0, 4.0] * 5
    noticed = [
        np.mean([p_even(drawn(random, deviations, freedom)) < 0.05 for _ in range(1000)])
        for freedom in (2, 4)
    ]
    assert noticed[0] == pytest.approx(0.81, abs=0.04)
    assert noticed[1] > 0.97


def test_one_variance_is_even() -> None:
    assert p_even([Spread(1.0, 2)]) == 1.0
