import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.report.page.stops import BEYOND, FAILED, MOST_STOPS, bins_of, stops_for

latencies = st.floats(1e-4, 1e3)
values = arrays(np.float64, st.integers(1, 50), elements=latencies)


@given(values, st.lists(latencies, max_size=5))
def test_limits_of_the_file_are_stops(seconds, limits):
    assert set(limits) <= set(stops_for(seconds, limits).tolist())


@given(values, st.lists(latencies, max_size=5))
def test_stops_ascend_and_fit_a_byte(seconds, limits):
    stops = stops_for(seconds, limits)
    assert (np.diff(stops) > 0).all()
    assert stops.size <= MOST_STOPS


@given(values)
def test_a_bin_meets_a_stop_as_its_value_does(seconds):
    stops = stops_for(seconds, [])
    bins = bins_of(seconds, np.ones(seconds.size, np.bool_), stops)
    for number, stop in enumerate(stops):
        assert ((bins <= number) == (seconds <= stop)).all()


def test_without_values_and_limits_there_are_no_stops():
    assert stops_for(np.zeros(0), []).size == 0


def test_a_failed_request_meets_no_limit():
    bins = bins_of(np.array([0.1, 0.1]), np.array([True, False]), np.array([0.2]))
    assert bins.tolist() == [0, FAILED]


def test_an_unknown_value_lies_beyond_every_stop():
    bins = bins_of(np.array([np.nan, 9.0]), np.ones(2, np.bool_), np.array([0.2]))
    assert bins.tolist() == [BEYOND, BEYOND]


def test_a_value_that_cannot_violate_a_limit_meets_all_stops():
    bins = bins_of(np.array([-np.inf]), np.ones(1, np.bool_), np.array([0.2, 0.3]))
    assert bins.tolist() == [0]
