import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.analysis.intervals import batches_of
from orchestrator.analysis.slo import LimitValues
from orchestrator.report.page.payload import (
    CENTRED,
    LATENCIES,
    RequestBins,
    _differences,
    _order_within_batches,
)
from orchestrator.report.page.stops import bins_of

planes = arrays(np.uint8, st.integers(0, 60))


def sizes_of(bins):
    return batches_of(np.zeros(bins.size, np.bool_)).sizes.astype(int)


@given(planes)
def test_the_requests_of_each_batch_stay_in_it(bins):
    ordered = bins[_order_within_batches(bins)]
    ends = np.cumsum(sizes_of(bins))[:-1]
    for batch, before in zip(np.split(ordered, ends), np.split(bins, ends), strict=True):
        assert sorted(batch) == sorted(before)


@given(planes)
def test_differences_add_up_to_the_bins(bins):
    ordered = bins[_order_within_batches(bins)]
    differences = _differences(ordered)
    first = 0
    for size in sizes_of(bins):
        batch = slice(first, first + size)
        assert (np.cumsum(differences[batch], dtype=np.uint8) == ordered[batch]).all()
        first += size


@given(st.lists(st.tuples(st.floats(0.001, 1), st.booleans()), min_size=1, max_size=40))
def test_bins_are_written_less_their_centre(answers):
    seconds = np.array([each[0] for each in answers])
    is_ok = np.array([each[1] for each in answers])
    stops = np.linspace(0.1, 0.9, 9)
    bins = RequestBins(dict.fromkeys(LATENCIES, stops))
    bins.add(("m", "a"), LimitValues(is_ok, dict.fromkeys(LATENCIES, seconds)))
    planes = np.split(np.frombuffer(bins.encoded(), np.uint8), len(LATENCIES))
    expected = bins_of(seconds, is_ok, stops)
    for name, plane in zip(LATENCIES[1:], planes[1:], strict=True):
        centre = np.uint8(bins["m", "a"].centres[name])
        assert sorted(plane + centre) == sorted(expected)
    assert set(bins["m", "a"].centres) == set(CENTRED)
