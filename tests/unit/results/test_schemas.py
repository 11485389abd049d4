"""Tables to Parquet: exactly the schema, small, and readable by others."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.base.errors import ResultsError
from orchestrator.results import schemas
from orchestrator.results.records import RequestTotals
from orchestrator.results.schemas import (
    TABLES,
    LazyRecords,
    conform,
    parquet_writer,
    table_of,
    to_parquet,
    unify,
)
from tests.unit.results.builders import KEYS, events, point_row, request, requests, table


def parquet(name: str, data: pa.Table) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(to_parquet(name, conform(name, data)).to_pybytes()))


def column(file: pq.ParquetFile, path: str) -> pq.ColumnChunkMetaData:
    group = file.metadata.row_group(0)
    return next(
        group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == path
    )


def token_events(gaps: np.ndarray, per_request: int = 200) -> pa.Table:
    count = gaps.size // per_request
    lists = pa.ListArray.from_arrays(
        np.arange(0, gaps.size + 1, per_request, dtype=np.int32), gaps.astype(np.int32)
    )
    keys = {name: pa.repeat(value, count) for name, value in KEYS.items()}
    return pa.table({**keys, "request_index": np.arange(count, dtype=np.int32), "gaps_us": lists})


def test_gaps_are_byte_stream_split_and_zstd() -> None:
    gaps_ms = dict.fromkeys(range(99), [20, 21, 19.5] * 2_000)  # more than 1 MB
    file = parquet("token_events", events(gaps_ms | {99: [20]}, {99: [2, 1]}))
    gaps = column(file, "gaps_us.list.element")
    assert "BYTE_STREAM_SPLIT" in gaps.encodings
    assert not any("DICTIONARY" in encoding for encoding in gaps.encodings)
    assert gaps.compression == "ZSTD"
    assert "RLE_DICTIONARY" in column(file, "tokens_per_chunk.list.element").encodings


def test_compression_suits_the_size_and_few_rows_have_no_statistics() -> None:
    for rows, compression in ((1, "UNCOMPRESSED"), (99, "LZ4"), (4_000, "ZSTD")):
        file = parquet(
            "points", table("points", [point_row("m1", f"a{index}") for index in range(rows)])
        )
        found = column(file, "evidence_json")
        has_statistics = compression != "UNCOMPRESSED"
        assert (found.compression, found.is_stats_set) == (compression, has_statistics)


@pytest.mark.parametrize("sigma", [0.03, 0.1, 0.3])
def test_a_gap_costs_at_most_1_9_bytes_whatever_its_spread(sigma: float) -> None:
    gaps = np.random.default_rng(1).lognormal(np.log(20_000), sigma, 1_000_000)
    data = token_events(gaps)
    assert to_parquet("token_events", conform("token_events", data)).size / gaps.size <= 1.9


def test_row_groups_of_gaps_stay_small() -> None:
    file = parquet("token_events", token_events(np.full(5_000, 7), per_request=1))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [
        2_000,
        2_000,
        1_000,
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=6))
def test_gaps_come_back_as_they_were(gaps: list[list[int]]) -> None:
    rows = [{**KEYS, "request_index": index, "gaps_us": one} for index, one in enumerate(gaps)]
    back = parquet("token_events", table("token_events", rows)).read()
    assert back["gaps_us"].to_pylist() == gaps


def test_a_file_describes_its_columns_and_its_schema_version() -> None:
    schema = parquet("requests", requests(request(0))).schema_arrow
    assert schema.metadata[b"schema_version"] == b"1"
    assert all(schema.field(field.name).metadata[b"description"] for field in TABLES["requests"])


def test_columns_are_ordered_cast_and_filled() -> None:
    data = (
        requests(request(0))
        .drop_columns(["session", "turn", "client"])
        .append_column("client", pa.array([7], pa.int64()))
    )
    fitted = conform("requests", data)
    assert fitted.schema.equals(TABLES["requests"], check_metadata=True)
    assert fitted["client"].to_pylist() == [7]
    assert fitted["session"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("colour", pa.array(["red"]), "unknown columns colour"),
        ("status", None, "'status' with null values"),
        ("done_ns", pa.array([None], pa.int64()), "'done_ns' with null values"),
        ("client", pa.array(["first"]), "client has incompatible types: int16 vs string"),
        ("client", pa.array([70_000]), "70000 not in range"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(
    name: str, values: pa.Array | None, why: str
) -> None:
    data = requests(request(0))
    data = data.drop_columns([name]) if name in data.column_names else data
    data = data.append_column(name, values) if values is not None else data
    with pytest.raises(ResultsError, match=f"table requests: .*{why}"):
        conform("requests", data)


def test_rows_in_their_schema_pass_unless_a_value_is_missing() -> None:
    data = requests(request(0), request(1))
    assert conform("requests", data).equals(data)
    broken = data.set_column(
        0, data.schema.field(0), pa.array([None, "m"], data.schema.field(0).type)
    )
    assert broken.schema.equals(TABLES["requests"])
    with pytest.raises(ResultsError, match="null values"):
        conform("requests", broken)


def test_an_unknown_table_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ResultsError, match=r"no table 'request'.*requests"):
        conform("request", pa.table({}))


def test_older_and_newer_parts_are_read_together_by_name() -> None:
    new = table("points", [point_row("m1", "a1")])
    old = new.drop_columns(["arrivals", "clients"])
    newer = new.append_column("weather", pa.array(["fair"]))
    joined = unify("points", [old, newer], None)
    assert joined["arrivals"].to_pylist() == [None, "poisson"]
    assert joined["weather"].to_pylist() == [None, "fair"]
    assert joined.column_names[:-1] == TABLES["points"].names
    assert joined.schema.field("clients").type == pa.int32()


def test_nothing_is_a_table_without_rows_in_the_schema() -> None:
    assert unify("requests", [], None).schema.names == TABLES["requests"].names
    assert unify("requests", [], ["status"]).num_rows == 0


def test_what_is_nested_is_encoded_by_its_own_type() -> None:
    """A dictionary of as many doubles as there are requests would be larger than they are."""
    inner = pa.struct([("name", pa.string()), ("start_ns", pa.int64())])
    fields = [
        ("point", inner),
        ("errors", pa.map_(pa.string(), pa.int64())),
        ("seconds", pa.list_(pa.float64())),
    ]
    row = {"point": {"name": "a", "start_ns": 7}, "errors": [("x", 1)], "seconds": [0.5, 0.25]}
    sink = pa.BufferOutputStream()
    with parquet_writer(pa.schema(fields), sink) as writer:
        writer.write_table(pa.Table.from_pylist([row], schema=pa.schema(fields)))
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    group = file.metadata.row_group(0)
    found = {
        group.column(at).path_in_schema: set(group.column(at).encodings)
        for at in range(group.num_columns)
    }
    texts = {"point.name", "errors.key_value.key"}
    assert {path for path, encodings in found.items() if "RLE_DICTIONARY" in encodings} == texts
    assert {path for path, encodings in found.items() if "BYTE_STREAM_SPLIT" in encodings} == {
        "point.start_ns"
    }
    assert file.read().to_pylist() == [row]


def test_records_are_made_once_where_rows_on_both_sides_of_a_block_are_read_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [RequestTotals(scheduled=count, ok=count, failed=0) for count in range(700)]
    column = pa.chunked_array([table_of(rows, RequestTotals).to_struct_array().combine_chunks()])
    made: list[int] = []
    decode = schemas._records

    def counted(values: pa.ChunkedArray, hint: object) -> list[object]:
        made.append(len(values))
        return decode(values, hint)

    monkeypatch.setattr(schemas, "_records", counted)
    records = LazyRecords[RequestTotals](column, RequestTotals)
    for index in range(699):
        assert [records[index], records[index + 1], records[index]] == [
            rows[index],
            rows[index + 1],
            rows[index],
        ]
    assert made == [256, 256, 188]
