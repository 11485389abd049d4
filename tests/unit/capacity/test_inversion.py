"""Probes that contradict each other: a higher load that met more than a lower one."""

from __future__ import annotations

import pytest

from orchestrator.capacity.inversion import Inversion, ProbeShare, clearest_inversion

LOWER = ProbeShare(33.9, 0.672, 548)
HIGHER = ProbeShare(36.97, 1.0, 719)


def test_a_higher_load_that_met_clearly_more_is_an_inversion() -> None:
    inversion = clearest_inversion([LOWER, HIGHER, ProbeShare(29.77, 1.0, 1079)])
    assert inversion == Inversion(LOWER, HIGHER)


def test_the_order_in_which_probes_ran_does_not_matter() -> None:
    assert clearest_inversion([HIGHER, LOWER]) == Inversion(LOWER, HIGHER)


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        (ProbeShare(33.9, 1.0, 548), ProbeShare(36.97, 0.672, 719)),  # as every server does
        (LOWER, ProbeShare(34.9, 1.0, 719)),  # so near a run of misses may explain it
        (ProbeShare(33.9, 0.672, 30), HIGHER),  # one run of misses
        (ProbeShare(33.9, 0.9, 54_800), HIGHER),  # certain, and too little to matter
        (ProbeShare(33.9, 1.0, 548), HIGHER),
        (ProbeShare(33.9, 0.0, 548), ProbeShare(36.97, 0.0, 719)),
    ],
)
def test_what_chance_or_load_explains_is_none(lower: ProbeShare, higher: ProbeShare) -> None:
    assert clearest_inversion([lower, higher]) is None


def test_of_several_inversions_the_clearest_is_told() -> None:
    clearer = ProbeShare(33.42, 0.2, 548)
    assert clearest_inversion([LOWER, clearer, HIGHER]) == Inversion(clearer, HIGHER)
