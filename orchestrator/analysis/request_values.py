"""The latencies of every request of many stored attempts, for readers that judge them again."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from orchestrator.analysis.attempt_summary import AttemptIds, computed
from orchestrator.analysis.requests import RequestParts
from orchestrator.analysis.slo import LimitValues
from orchestrator.base.arrays import Floats
from orchestrator.results.store import Store


def stored_limit_values(
    store: Store, attempts: Iterable[AttemptIds], latencies: Sequence[str]
) -> dict[AttemptIds, LimitValues]:
    """The values of ``latencies`` (names of LIMITS) for every request, by attempt.

    Requests of a mix come with their parts. Damaged attempts are left out (``store.damage``).
    """
    columns = {name: f"request_{name}_s" for name in latencies}
    part_columns = ["request_part", "part_names"]
    needed = ["measurement_id", "attempt_id", "request_ok", *part_columns, *columns.values()]
    values: dict[AttemptIds, LimitValues] = {}
    for rows in computed(store, attempts, needed):
        measurement_ids = rows["measurement_id"].to_pylist()
        attempt_ids = rows["attempt_id"].to_pylist()
        is_ok = list(_lists(rows["request_ok"]))
        seconds = {name: list(_lists(rows[column])) for name, column in columns.items()}
        parts = list(_parts(rows))
        for row in range(rows.num_rows):
            values[measurement_ids[row], attempt_ids[row]] = LimitValues(
                np.asarray(is_ok[row], np.bool_),
                {name: lists[row] for name, lists in seconds.items()},
                parts[row],
            )
    return values


def _parts(rows: pa.Table) -> Iterator[RequestParts | None]:
    """The parts of each row's requests; None where they are of no mix."""
    for codes, names in zip(rows["request_part"], rows["part_names"].to_pylist(), strict=True):
        if not codes.is_valid:
            yield None
            continue
        codes_of_requests = codes.values.to_numpy(zero_copy_only=False)
        yield RequestParts(tuple(names), np.asarray(codes_of_requests, np.int64))


def _lists(column: pa.ChunkedArray) -> Iterator[Floats]:
    """Each row's list as an array. No row is null."""
    for chunk in column.chunks:
        flat = chunk.flatten().to_numpy(zero_copy_only=False)
        ends = np.cumsum(chunk.value_lengths().to_numpy())
        yield from np.split(flat, ends)[: len(chunk)]
