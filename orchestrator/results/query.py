"""Frames for notebooks. SQL needs no code of ours: docs/data-format.md has the DuckDB query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from orchestrator.results.root import open_results

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read(uri: str, table: str, columns: Sequence[str] | None = None, *, include_failed: bool = False) -> pd.DataFrame:
    """One table of every experiment at ``uri`` as a pandas frame; see ``Store.read`` for which rows count.

    Integers that may be null are pandas' Int32, Int64, … and not floats.
    """
    return to_frame(open_results(uri).read(table, columns, include_failed=include_failed))


def to_frame(data: pa.Table) -> pd.DataFrame:
    """An Arrow table as a pandas frame with pandas' own nullable integers."""
    import pandas as pd
    import pyarrow as pa

    integers = {
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return cast("pd.DataFrame", data.to_pandas(types_mapper=integers.get))
