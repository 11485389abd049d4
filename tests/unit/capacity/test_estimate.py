"""Estimates of a capacity from probes, decided or not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.claim import claim_of
from orchestrator.capacity.estimate import Estimate, estimate_of
from orchestrator.capacity.levels import at_levels
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from tests.unit.capacity.builders import flags


def estimated(*probes: ProbeOutcome, whole_numbers: bool = False) -> Estimate | None:
    return estimate_of(at_levels(probes, [TARGET]), TARGET, whole_numbers)


def share_at(level: float, capacity: float, power: float = 8.0) -> float:
    odds = (1 - TARGET) / TARGET * (level / capacity) ** power
    return 1 / (1 + odds)


def curve(levels: list[float], capacity: float, requests: int = 4000) -> list[ProbeOutcome]:
    return [ProbeOutcome(level, flags(share_at(level, capacity), requests)) for level in levels]


def test_the_estimate_lies_where_the_target_is_met() -> None:
    estimate = estimated(*curve([14.0, 15.0, 16.0, 18.0, 24.0], 16.2))
    assert estimate is not None
    assert estimate.lower < 16.2 < estimate.upper
    assert estimate.level == pytest.approx(16.2, rel=0.03)
    assert estimate.upper / estimate.lower < 1.15


def test_more_requests_make_the_interval_narrower() -> None:
    few, many = (
        estimated(*curve([14.0, 15.0, 16.0, 18.0], 16.2, requests)) for requests in (400, 6400)
    )
    assert few is not None
    assert many is not None
    assert many.upper / many.lower < few.upper / few.lower


def test_requests_whose_misses_come_in_runs_make_it_wider() -> None:
    rng = np.random.default_rng(1)
    widths: list[float] = []
    for run in (1, 20):
        probes = [
            ProbeOutcome(level, (np.repeat(rng.random(4000 // run) < share_at(level, 16.2), run),))
            for level in (14.0, 15.0, 16.0, 18.0)
        ]
        estimate = estimated(*probes)
        assert estimate is not None
        widths.append(estimate.upper / estimate.lower)
    assert widths[1] > widths[0]


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_nothing_is_estimated_before_probes_bound_it_on_both_sides(share: float) -> None:
    assert estimated() is None
    assert estimated(*[ProbeOutcome(level, flags(share, 400)) for level in (8.0, 16.0)]) is None


def test_a_cliff_lies_anywhere_in_its_bracket() -> None:
    estimate = estimated(ProbeOutcome(10.0, flags(0.999)), ProbeOutcome(12.0, flags(0.4)))
    assert estimate is not None
    assert estimate.level == pytest.approx(11.0, rel=0.01)
    assert (estimate.lower, estimate.upper) == pytest.approx((10.0, 12.0), rel=0.02)
    assert estimate.safe == 10.0


def test_a_level_at_which_the_engine_dies_bounds_it() -> None:
    died = ProbeOutcome(12.0, (), Shows.ENGINE_DIED)
    estimate = estimated(ProbeOutcome(10.0, flags(0.999)), died)
    assert estimate is not None
    assert 10.0 <= estimate.lower < estimate.upper <= 12.1


def test_a_level_is_safe_that_is_likely_to_hold_without_a_verdict() -> None:
    levels = at_levels(curve([13.6, 14.4, 15.2, 16.0, 16.8], 16.0, 1500), [TARGET])
    undecided = [evidence.level for evidence in levels if evidence.verdict is None]
    estimate = estimate_of(levels, TARGET)
    assert estimate is not None
    assert estimate.safe in undecided
    assert 13.6 <= estimate.safe <= estimate.level


def test_nothing_above_a_level_that_fails_is_safe() -> None:
    estimate = estimated(
        ProbeOutcome(8.0, flags(0.999)),
        ProbeOutcome(9.0, flags(0.5)),
        ProbeOutcome(10.0, flags(0.999)),
        ProbeOutcome(12.0, flags(0.5)),
    )
    assert estimate is not None
    assert estimate.safe == 8.0


def test_requests_in_flight_are_whole_numbers() -> None:
    estimate = estimated(*curve([10.0, 12.0, 14.0], 12.5, 1000), whole_numbers=True)
    assert estimate is not None
    assert estimate.level == int(estimate.level)


def test_a_claim_has_it_unless_its_probes_tell_nothing() -> None:
    probes = curve([14.0, 16.0, 18.0], 16.2)
    levels = at_levels(probes, [TARGET])
    assert claim_of(levels, TARGET).estimate == estimate_of(levels, TARGET)
    noise = ProbeOutcome(14.0, (), Shows.POINTLESS, validity="broken_output")
    assert claim_of(at_levels([*probes, noise], [TARGET]), TARGET).estimate is None
