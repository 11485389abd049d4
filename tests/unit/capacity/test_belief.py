"""How likely each capacity is: what loads it lies below, and what more requests would tell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.capacity.belief import MOST_OF_A_PROBE, POWERS, STEP, Belief, belief_of
from tests.unit.capacity.builders import at

TARGET = 0.95


def belief(*chances: float) -> Belief:
    """Capacities of 1, 2, 4 and so on with these probabilities, each with the first power."""
    log_capacities = math.log(2) * np.arange(len(chances))
    table = np.zeros((len(chances), POWERS.size))
    table[:, 0] = chances
    return Belief(log_capacities, table, 1 - TARGET, 1.0, 4.0)


def test_a_level_holds_with_the_chances_of_the_capacities_above_it() -> None:
    assert belief(0.2, 0.5, 0.3).chance_to_hold(1.5) == pytest.approx(0.5 + 0.3)


def test_quantiles_are_loads_where_the_summed_chances_reach_them() -> None:
    # the sums are 0.2, 0.7 and 1 at 1, 2 and 4
    assert belief(0.2, 0.5, 0.3).quantiles([0.2, 0.7]) == pytest.approx([1.0, 2.0])


def test_of_a_capacity_that_is_known_nothing_more_can_be_told() -> None:
    assert belief(0.0, 1.0, 0.0).information(2.0, requests=1000) == 0


def test_more_requests_tell_more_of_the_capacity() -> None:
    unsure = belief(0.5, 0.5)
    assert unsure.information(1.5, requests=1000) > unsure.information(1.5, requests=100)


def test_the_likeliest_capacity_is_where_misses_are_as_many_as_allowed() -> None:
    on_target = replace(at(10.0), share=TARGET, requests=4000)
    known = belief_of([on_target], TARGET)
    assert known is not None
    likeliest = known.log_capacities[known.chances.sum(axis=1).argmax()]
    assert likeliest == pytest.approx(math.log(10), abs=STEP)


@pytest.mark.parametrize("probes", [1, 2])
def test_misses_count_as_evidence_only_up_to_a_bound_per_probe(probes: int) -> None:
    # 1000 requests, of which all missed, are as good as 50 independent ones: 150 nats
    missed = replace(at(10.0), share=0.0, probes=probes)
    known = belief_of([missed], TARGET)
    assert known is not None
    odds = math.exp(-MOST_OF_A_PROBE * probes)  # the prior is even around the only level
    assert known.chance_to_hold(10.0) == pytest.approx(odds / (1 + odds), rel=0.01)


def test_nothing_is_believed_without_evidence_or_where_all_must_meet_limits() -> None:
    assert belief_of([], TARGET) is None
    assert belief_of([at(10.0)], target=1.0) is None
