"""Times of readings on other hosts by the driver's clock, so that they lie on one axis."""

import numpy as np
import pyarrow as pa

from orchestrator.base.arrays import Ints


def driver_unix_ns(readings: pa.Table) -> Ints:
    """Unix nanoseconds of each row by the driver's clock: ``unix_ns`` less ``clock_offset_ns``. An
    unknown offset, as in rows of earlier versions, counts as 0. ``clock_error_ns`` bounds the
    error.
    """
    unix_ns = np.asarray(readings["unix_ns"].to_numpy(), np.int64)
    offset_ns = np.asarray(readings["clock_offset_ns"].fill_null(0).to_numpy(), np.int64)
    return unix_ns - offset_ns
