"""Attainment over levels, as it is expected between and beside them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.levels import at_levels
from orchestrator.capacity.probe_outcome import ProbeOutcome
from orchestrator.capacity.sequential_test import FEWEST_TO_FAIL
from tests.unit.capacity.builders import flags


def test_a_failing_level_takes_the_requests_that_a_verdict_rests_on() -> None:
    levels = at_levels(
        [ProbeOutcome(8.0, flags(0.985)), ProbeOutcome(16.0, flags(0.3, 600))], [TARGET]
    )
    fit = AttainmentFit(levels, TARGET)
    assert fit.requests(15.0) == pytest.approx(FEWEST_TO_FAIL * fit.effect)


def test_a_level_on_the_target_counts_as_a_standard_error_away() -> None:
    near = (np.arange(1000) % 20 > 0,)
    fit = AttainmentFit(
        at_levels(
            [ProbeOutcome(8.0, near, whole=False), ProbeOutcome(16.0, flags(0.3, 600))], [TARGET]
        ),
        TARGET,
    )
    assert fit.share(8.0) == pytest.approx(TARGET, abs=0.001)
    # without it: hundreds of thousands
    assert fit.requests(8.0) == pytest.approx(10 * 1000, rel=0.1)


@pytest.mark.parametrize("requests", [700, 1000])
def test_a_high_target_that_all_requests_met_still_takes_some_more(requests: int) -> None:
    all_met = (np.ones(requests, bool),)
    levels = at_levels([ProbeOutcome(8.0, all_met, whole=False)], [0.99])
    assert AttainmentFit(levels, 0.99).requests(8.0) > 0


def test_attainment_between_two_levels_never_rises() -> None:
    levels = at_levels([ProbeOutcome(8.0, flags(0.98)), ProbeOutcome(16.0, flags(0.5))], [TARGET])
    fit = AttainmentFit(levels, TARGET)
    shares = [fit.share(level) for level in (4.0, 8.0, 10.0, 12.0, 16.0, 32.0)]
    assert shares == sorted(shares, reverse=True)


def test_the_level_of_a_share_has_that_share() -> None:
    levels = at_levels([ProbeOutcome(8.0, flags(0.98)), ProbeOutcome(16.0, flags(0.5))], [TARGET])
    fit = AttainmentFit(levels, TARGET)
    assert fit.share(fit.level_of(TARGET)) == pytest.approx(TARGET)


def test_below_the_lowest_level_misses_fall_with_the_cube_of_the_load() -> None:
    fit = AttainmentFit(at_levels([ProbeOutcome(8.0, flags(0.5))], [TARGET]), TARGET)
    odds = [fit.share(level) / (1 - fit.share(level)) for level in (4.0, 8.0)]
    assert odds[0] / odds[1] == pytest.approx(2.0**3)
