"""What is drawn follows the distribution that is asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from orchestrator.spec.load import Bin, Lengths, Normal, Uniform
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.sessions import Pauses
from orchestrator.workloads.kind import stream
from orchestrator.workloads.random_values import Choices, choose, draw, draw_pauses_s, mean

COUNT = 50_000
HISTOGRAM = Lengths(
    histogram=(Bin(min=1, max=10, weight=3), Bin(min=100, max=100), Bin(min=200, max=209))
)


def test_normal_lengths_have_their_mean_and_deviation() -> None:
    lengths = Lengths(normal=Normal(mean=100, sigma=15))
    counts = draw(lengths, (COUNT,), stream(1))
    assert counts.mean() == pytest.approx(100, abs=4 * 15 / COUNT**0.5)
    assert counts.std() == pytest.approx(15, rel=0.02)


def test_normal_lengths_stay_within_their_limits() -> None:
    counts = draw(Lengths(normal=Normal(mean=5, sigma=30, max=40)), (COUNT,), stream(1))
    assert (counts.min(), counts.max()) == (1, 40)


def test_a_histogram_fills_its_bins_by_weight_and_evenly() -> None:
    counts = draw(HISTOGRAM, (COUNT,), stream(2))
    in_bins = [np.mean(counts <= 10), np.mean(counts == 100), np.mean(counts >= 200)]
    assert in_bins == pytest.approx([0.6, 0.2, 0.2], abs=0.01)
    of_first = Counter(counts[counts <= 10].tolist())
    assert set(of_first) == set(range(1, 11))
    # chi-square with 9 degrees of freedom: above 27.9 once in a thousand draws
    expected = sum(of_first.values()) / 10
    assert sum((number - expected) ** 2 / expected for number in of_first.values()) < 27.9


def test_weights_need_not_add_up_to_one() -> None:
    indices = choose(np.array([1.0, 0.0, 7.0]), (COUNT,), stream(3))
    assert np.mean(indices == 2) == pytest.approx(7 / 8, abs=0.01)
    assert not (indices == 1).any()


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (Lengths(fixed=7), 7),
        (Lengths(uniform=Uniform(min=2, max=8)), 5),
        (HISTOGRAM, 0.6 * 5.5 + 0.2 * 100 + 0.2 * 204.5),
        (Lengths(normal=Normal(mean=50, sigma=5)), 50),
    ],
)
def test_the_mean_is_that_of_the_distribution(lengths: Lengths, expected: float) -> None:
    assert mean(lengths) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("written", "expected_mean", "limits"),
    [
        ({"uniform": {"min": "1s", "max": "3s"}}, 2.0, (1.0, 3.0)),
        ({"exponential": {"mean": "2s"}}, 2.0, (0.0, np.inf)),
        ({"lognormal": {"mean": "8s", "sigma": 1}}, 8.0, (0.0, np.inf)),
        ({"normal": {"mean": "25s", "sigma": "2s", "min": "5s"}}, 25.0, (5.0, np.inf)),
        ("1500ms", 1.5, (1.5, 1.5)),
    ],
)
def test_pauses_have_their_mean(
    written: object, expected_mean: float, limits: tuple[float, float]
) -> None:
    pauses_s = draw_pauses_s(Pauses.model_validate(written), (COUNT,), stream(4))
    assert pauses_s.mean() == pytest.approx(expected_mean, rel=0.03)
    assert limits[0] <= pauses_s.min() <= pauses_s.max() <= limits[1]


# Seeds are fixed, so no right sample is refused by chance; a wrong shape has a p-value of about 0.
REFUSED = 1e-4


def lognormal(mean: float, sigma: float) -> Any:
    """The distribution whose own mean is ``mean``; ``sigma`` is that of its logarithm."""
    return stats.lognorm(sigma, scale=mean / np.exp(sigma**2 / 2))


def test_uniform_lengths_are_all_as_frequent() -> None:
    counts = draw(Lengths(uniform=Uniform(min=10, max=30)), (COUNT,), stream(6))
    frequencies = np.bincount(counts, minlength=31)[10:]
    assert len(frequencies) == 21
    assert stats.chisquare(frequencies).pvalue > REFUSED


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"lognormal": {"mean": 40_000, "sigma": 0.6}}, lognormal(40_000, 0.6)),
        ({"normal": {"mean": 40_000, "sigma": 5_000}}, stats.norm(40_000, 5_000)),
    ],
)
def test_lengths_have_the_shape_of_their_distribution(written: object, expected: Any) -> None:
    """The lengths are so long that rounding them to whole tokens changes nothing."""
    counts = draw(Lengths.model_validate(written), (COUNT,), stream(7))
    assert stats.kstest(counts, expected.cdf).pvalue > REFUSED


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"uniform": {"min": "1s", "max": "3s"}}, stats.uniform(1, 2)),
        ({"exponential": {"mean": "2s"}}, stats.expon(scale=2)),
        ({"lognormal": {"mean": "8s", "sigma": 1}}, lognormal(8, 1)),
        ({"normal": {"mean": "25s", "sigma": "2s"}}, stats.norm(25, 2)),
    ],
)
def test_pauses_have_the_shape_of_their_distribution(written: object, expected: Any) -> None:
    pauses_s = draw_pauses_s(Pauses.model_validate(written), (COUNT,), stream(8))
    assert stats.kstest(pauses_s, expected.cdf).pvalue > REFUSED


def test_pauses_come_from_the_bins_of_a_histogram_by_weight() -> None:
    bins = [{"min": "1s", "max": "2s", "weight": 3}, {"min": "30s", "max": "50s"}]
    pauses = Pauses.model_validate({"histogram": bins})
    pauses_s = draw_pauses_s(pauses, (COUNT,), stream(8))
    is_short = pauses_s < 10
    deviation = (COUNT * 0.75 * 0.25) ** 0.5
    assert np.count_nonzero(is_short) == pytest.approx(0.75 * COUNT, abs=4 * deviation)
    assert stats.kstest(pauses_s[is_short], stats.uniform(1, 1).cdf).pvalue > REFUSED
    assert stats.kstest(pauses_s[~is_short], stats.uniform(30, 20).cdf).pvalue > REFUSED


def test_the_popular_ones_follow_zipf() -> None:
    choices = Choices(100, Popularity(zipf=1.2))
    rng = stream(5)
    counts = Counter(choices.one(rng) for _ in range(COUNT))
    weights = np.arange(1, 101) ** -1.2
    for rank in (1, 2, 5, 20):
        share = weights[rank - 1] / weights.sum()
        deviation = (COUNT * share * (1 - share)) ** 0.5
        assert counts[rank - 1] == pytest.approx(COUNT * share, abs=4 * deviation)


@pytest.mark.parametrize("popularity", [None, Popularity(zipf=1.0), Popularity(zipf=20)])
def test_several_are_all_different(popularity: Popularity | None) -> None:
    choices = Choices(30, popularity)
    for seed in range(20):
        chosen = choices.several(30 if seed % 2 else 7, stream(seed))
        assert len(set(chosen)) == len(chosen) == (30 if seed % 2 else 7)
        assert all(0 <= member < 30 for member in chosen)
