"""The part of a point that its figures are about."""

from orchestrator.results.window import MeasuredWindow


def test_a_window_that_ends_before_it_starts_has_no_length() -> None:
    assert MeasuredWindow(1_000_000_000, 3_500_000_000).length_s == 2.5
    assert MeasuredWindow(3, 1).length_s == 0.0
