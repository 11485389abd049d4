import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orchestrator.analysis.intervals import batches_of
from orchestrator.report.page.payload import _differences, _order_within_batches

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
