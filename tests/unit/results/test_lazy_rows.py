"""Rows that stay in their files read like an Arrow table: whole or in slices, whichever version
wrote them.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.base.errors import DamagedError
from orchestrator.results import lazy_rows
from orchestrator.results.lazy_rows import LazyRows
from orchestrator.results.schemas import TOKEN_EVENTS
from tests.unit.results.builders import events, failed_request, part_of, request, requests


@pytest.fixture(autouse=True, params=[0, 1 << 20], ids=["column by column", "read at once"])
def _small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_rows, "SMALL_BYTES", request.param)


def test_few_rows_are_read_once_and_many_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    part = part_of("requests", requests(request(0), request(1)))
    read = Mock(side_effect=pq.ParquetFile.read_row_group, autospec=True)
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda *given, **named: read(*given, **named)
    )
    for small_bytes, times in ((1 << 20, 1), (0, 3)):
        monkeypatch.setattr(lazy_rows, "SMALL_BYTES", small_bytes)
        lazy = LazyRows.of("requests", [part])
        read.reset_mock()
        assert [lazy[name].to_pylist() for name in ("request_index", "status")] == [
            [0, 1],
            ["ok", "ok"],
        ]
        assert lazy.slice(1, 1)["status"].to_pylist() == ["ok"]
        assert read.call_count == times


def test_rows_of_several_clients_come_one_after_the_other_and_in_slices() -> None:
    rows = [requests(request(3), failed_request(0)), requests(request(2), request(1), request(4))]
    lazy, table = (
        LazyRows.of("requests", [part_of("requests", group) for group in rows]),
        pa.concat_tables(rows),
    )
    assert (len(lazy), lazy.num_rows) == (5, 5)
    for start, length in ((0, 5), (1, 3), (3, 9), (2, 0), (7, 2)):
        lazy_slice, table_slice = (
            lazy.slice(start, length).slice(0, 2),
            table.slice(start, length).slice(0, 2),
        )
        assert {
            name: lazy_slice[name].to_pylist() for name in table.column_names
        } == table_slice.to_pydict()
        assert [
            row for batch in lazy_slice.to_batches(1) for row in batch.to_pylist()
        ] == table_slice.to_pylist()


def test_rows_in_their_own_order_come_some_at_a_time() -> None:
    gaps = events({2: [20, 21], 0: [], 1: [5]})
    lazy = LazyRows.of("token_events", [part_of("token_events", gaps)] * 2)
    batches = list(lazy.to_batches(max_chunksize=2))
    assert [batch.num_rows for batch in batches] == [2, 1, 2, 1]
    assert pa.Table.from_batches(batches)["gaps_us"].to_pylist() == 2 * gaps["gaps_us"].to_pylist()


def test_a_column_that_an_older_version_did_not_write_is_null() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(events({0: [20]}).drop_columns("tokens_per_chunk"), sink)
    lazy = LazyRows.open("token_events", [pa.BufferReader(sink.getvalue())], rows=1)
    (batch,) = lazy.to_batches(max_chunksize=8)
    assert lazy["tokens_per_chunk"].to_pylist() == batch["tokens_per_chunk"].to_pylist() == [None]
    assert lazy["tokens_per_chunk"].type == TOKEN_EVENTS.field("tokens_per_chunk").type


def test_a_text_of_no_older_version_is_null_beside_newer_ones() -> None:
    sink, new = pa.BufferOutputStream(), requests(request(0))
    pq.write_table(new.drop_columns("error_class"), sink)
    new = new.set_column(
        new.column_names.index("error_class"), new.schema.field("error_class"), [["reset"]]
    )
    for files in ([sink.getvalue()], [sink.getvalue(), part_of("requests", new).open().read()]):
        lazy = LazyRows.open("requests", [pa.BufferReader(file) for file in files], rows=len(files))
        assert lazy["error_class"].to_pylist() == [None, "reset"][: len(files)]
        assert [
            row["error_class"] for batch in lazy.to_batches(8) for row in batch.to_pylist()
        ] == [None, "reset"][: len(files)]


def test_another_number_of_rows_than_written_is_refused() -> None:
    assert LazyRows.of("requests", [])["sent_ns"].to_pylist() == []
    part = part_of("requests", requests(request(0)))
    with pytest.raises(ValueError, match="there are 1 rows, and 2 were written"):
        LazyRows.open("requests", [part.open()], rows=2)
    with pytest.raises((OSError, ValueError)):
        LazyRows.open("requests", [pa.BufferReader(b"no Parquet")], rows=1)


def test_a_file_that_is_cut_off_after_it_was_opened_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(part_of("token_events", events({0: [20]})).open().read())
    lazy = LazyRows.open("token_events", [pa.OSFile(str(path))], rows=1)
    path.write_bytes(b"")
    with pytest.raises(DamagedError, match="gaps_us cannot be read"):
        lazy["gaps_us"]
    with pytest.raises(DamagedError, match="rows cannot be read"):
        list(lazy.to_batches(max_chunksize=8))
