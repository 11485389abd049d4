"""Rows of tables and JSON lines: every one is read right, or refused with its number."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.base.errors import ProblemsError
from orchestrator.workloads import trace_reader
from tests.unit.workloads import second_readers, traces
from tests.unit.workloads.second_readers import Sessions, sessions_of
from tests.unit.workloads.traces import lines, rows, trace

OWN = {"time": "at", "input_tokens": "in", "output_tokens": "out"}


def second_reader(text: str) -> list[tuple[int, int, int]]:
    """Microseconds since the first row, input and output tokens of an Azure trace, by the standard
    library alone (which reads at most six decimals).
    """
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    times = [datetime.fromisoformat(row["TIMESTAMP"]).replace(tzinfo=UTC) for row in table]
    since = [round((time - times[0]).total_seconds() * 1e6) for time in times]
    return [
        (at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in zip(since, table, strict=True)
    ]


@pytest.mark.parametrize("text", [traces.AZURE_2023, traces.AZURE_2024])
@pytest.mark.parametrize("is_packed", [False, True])
def test_azure_is_read_as_another_reader_reads_it(
    tmp_path: Path, text: str, is_packed: bool
) -> None:
    data = gzip.compress(text.encode()) if is_packed else text.encode()
    read = rows(tmp_path / "t.csv", data)
    assert read.starts_ns is not None
    microseconds = np.floor(read.starts_ns / 1e3 + 0.5).astype(int).tolist()
    expected = second_reader(text)
    assert microseconds == pytest.approx([at for at, _, _ in expected], abs=1)
    assert read.inputs.tolist() == [tokens for _, tokens, _ in expected]
    assert read.outputs.tolist() == [tokens for _, _, tokens in expected]
    assert read.rows.tolist() == [1, 2, 3]


def test_azure_with_images_is_read_as_another_reader_reads_it(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.AZURE_2025, **traces.PICTURES)
    table = csv.DictReader(io.StringIO(traces.AZURE_2025, newline=""))
    kept = [row for row in table if int(row["NumImages"]) <= 100]
    times = [datetime.fromisoformat(row["TIMESTAMP"]) for row in kept]
    assert read.starts_ns is not None and read.images is not None
    microseconds = np.floor(read.starts_ns / 1e3 + 0.5).astype(int).tolist()
    assert microseconds == [round((time - times[0]).total_seconds() * 1e6) for time in times]
    assert read.images.tolist() == [int(row["NumImages"]) for row in kept]
    assert read.inputs.tolist() == [int(row["ContextTokens"]) for row in kept]
    assert read.outputs.tolist() == [int(row["GeneratedTokens"]) for row in kept]


@pytest.mark.parametrize(
    ("text", "read_again"),
    [
        (traces.BURSTGPT_1, second_readers.burstgpt),
        (traces.BURSTGPT_2, second_readers.burstgpt),
        (traces.MOONCAKE, second_readers.mooncake),
        (traces.BAILIAN, second_readers.bailian),
        (traces.WEKA, second_readers.weka),
        (traces.WEKA_THINK_TIMES, second_readers.weka),
    ],
    ids=["burstgpt 1", "burstgpt 2", "mooncake", "bailian", "weka", "weka with think times"],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_published_trace_is_read_as_another_reader_reads_it(
    tmp_path: Path, text: str, read_again: Callable[[str], Sessions], is_packed: bool
) -> None:
    data = gzip.compress(text.encode()) if is_packed else text.encode()
    assert sessions_of(rows(tmp_path / "t", data)) == read_again(text)


@pytest.mark.parametrize(
    "text",
    [
        traces.AZURE_2024,
        traces.BURSTGPT_1,
        traces.BURSTGPT_2,
        traces.MOONCAKE,
        traces.BAILIAN.replace("search", "image"),
    ],
    ids=["azure", "burstgpt 1", "burstgpt 2", "mooncake", "bailian"],
)
def test_a_published_trace_as_parquet_is_the_same(tmp_path: Path, text: str) -> None:
    read = rows(tmp_path / "text", text)
    again = rows(tmp_path / "parquet", as_parquet(text))
    assert again.format == read.format
    assert again.digest == read.digest
    assert again.unused == read.unused
    assert again.images_as_text == read.images_as_text


@pytest.mark.parametrize("is_parquet", [False, True])
def test_own_columns_may_name_blocks_and_count_images(tmp_path: Path, is_parquet: bool) -> None:
    text = lines(
        {"at": 0, "in": 20, "out": 3, "names": [5, 6, 7], "pictures": 2},
        {"at": 1, "in": 9, "out": 4, "names": [5, 8], "pictures": 0},
    )
    columns = OWN | {"blocks": "names", "block_tokens": 8, "images": "pictures"}
    keys = {"columns": columns, "unit": "s", **traces.PICTURES}
    read = rows(tmp_path / "t", as_parquet(text) if is_parquet else text, **keys)
    assert read.blocks is not None and read.first_block is not None and read.images is not None
    assert read.blocks.tolist() == [5, 6, 7, 5, 8]
    assert read.first_block.tolist() == [0, 3, 5]
    assert (read.block_tokens, read.images.tolist()) == (8, [2, 0])
    assert read.unused == ()
    few = text.replace("[5, 8]", "[5]")
    with pytest.raises(ProblemsError, match="row 2: 1 names for 9 tokens; there is one for every"):
        rows(tmp_path / "u", as_parquet(few) if is_parquet else few, **keys)


def test_blocks_need_lists_and_a_size(tmp_path: Path) -> None:
    own = OWN | {"blocks": "names"}
    text = "at,in,out,names\n0,20,3,5\n"
    with pytest.raises(ProblemsError, match="is a CSV file, whose cells are no lists"):
        rows(tmp_path / "t", text, columns=own | {"block_tokens": 8}, unit="s")
    with pytest.raises(ValidationError, match="give 'blocks' and 'block_tokens' together"):
        rows(tmp_path / "t", text, columns=own, unit="s")


def test_a_parquet_trace_counts_images(tmp_path: Path) -> None:
    read = rows(tmp_path / "t", as_parquet(traces.AZURE_2025), **traces.PICTURES)
    assert read.images is not None
    assert read.images.tolist() == [0, 3, 0, 1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (traces.MOONCAKE.replace("[0, 9]", "[0]"), "row 2: 1 hash_ids for 600 tokens"),
        (traces.MOONCAKE.replace("[0, 9]", "null"), "row 2: hash_ids are 'None'"),
        (traces.BAILIAN.replace('"chat_id": 160', '"chat_id": null'), "row 2: has no chat_id"),
    ],
)
def test_a_bad_row_of_a_parquet_trace_is_refused_with_its_number(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ProblemsError, match=reason):
        rows(tmp_path / "t", as_parquet(text))


def test_seven_decimals_are_kept(tmp_path: Path) -> None:
    read = rows(tmp_path / "t.csv", traces.AZURE_2023)
    assert read.starts_ns is not None
    assert read.starts_ns.tolist() == [0, 4_314_579_000, 4_541_877_000]
    finer = traces.AZURE_2023.replace("50.9951690", "50.9951691")
    read = rows(tmp_path / "t.csv", finer)
    assert read.starts_ns is not None
    assert read.starts_ns[1] == 4_314_579_100


def test_batches_of_one_row_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(tmp_path / "t.jsonl", traces.BAILIAN).digest
    monkeypatch.setattr(trace_reader, "BATCH_ROWS", 1)
    (tmp_path / "b").mkdir()
    assert rows(tmp_path / "b" / "t.jsonl", traces.BAILIAN).digest == whole


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "dates"])
def test_an_own_table_is_read_by_the_names_of_its_columns(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "own"
    table = {"x": ["a", "b"], "at": [1500, 4000], "in": [7, 8], "out": [3, 4]}
    keys = {"columns": OWN, "unit": "ms"}
    if kind == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.table(table), sink)
        read = rows(path, sink.getvalue(), **keys)
    elif kind == "csv":
        read = rows(path, "x;at;in;out\na;1500;7;3\nb;4000;8;4\n", **keys)
    elif kind == "jsonl":
        read = rows(
            path,
            lines({"at": 1500, "in": 7, "out": 3}, {"at": 4000, "in": 8, "out": 4}),
            **keys,
        )
    else:
        dates = "at,in,out\n2024-01-01T00:00:01.5Z,7,3\n2024-01-01T00:00:04Z,8,4\n"
        read = rows(path, dates, columns=OWN)
    assert read.starts_ns is not None
    assert read.starts_ns.tolist() == [0, 2_500_000_000]
    assert (read.inputs.tolist(), read.outputs.tolist()) == ([7, 8], [3, 4])


@pytest.mark.parametrize("unit", ["s", None])
def test_times_of_json_lines_that_are_texts_of_numbers_are_numbers(
    tmp_path: Path, unit: str | None
) -> None:
    """As in RAGPulse (github.com/flashserve/RAGPulse); 20240510 would also be a date of ISO 8601."""
    text = lines(
        {"at": "20240510", "in": 7, "out": 3, "hash_ids": {"history": [1]}, "who": "a"},
        {"at": "20240512.5", "in": 8, "out": 4, "hash_ids": {"history": []}, "who": "a"},
    )
    columns = {**OWN, "session": "who"}
    if unit is None:
        with pytest.raises(ProblemsError, match="has numbers as at: give their 'unit'"):
            rows(tmp_path / "t", text, columns=columns)
        return
    read = rows(tmp_path / "t", text, columns=columns, unit=unit)
    assert read.offsets_ns is not None
    assert read.offsets_ns.tolist() == [0, 2_500_000_000]
    with pytest.raises(ProblemsError, match="row 2: at is 'nan'"):
        rows(tmp_path / "t", text.replace("20240512.5", "nan"), columns=columns, unit=unit)


@pytest.mark.parametrize(
    ("text", "keys", "reason"),
    [
        (traces.AZURE_2023.replace("396", "x9"), {}, "row 2: ContextTokens is 'x9'"),
        (traces.AZURE_2023.replace("396", ""), {}, "row 2: ContextTokens is"),
        (traces.AZURE_2023.replace("396", "-4"), {}, "row 2: ContextTokens is -4"),
        (traces.AZURE_2023.replace("18:15:51.2224670", "25:00:00"), {}, "row 3: TIMESTAMP is"),
        (traces.AZURE_2023.replace(",879,55", ",879"), {}, "row 3: has not 3 cells"),
        (traces.AZURE_2024.replace("01+00:00", "01"), {}, "row 2: only some times have a zone"),
        (traces.BURSTGPT_1.replace("\n45,", "\n,"), {}, "row 2: Timestamp is"),
        (traces.BURSTGPT_1.replace("\n45,", "\ninf,"), {}, "row 2: Timestamp is inf"),
        (traces.MOONCAKE.replace("[0, 9]", "[0]"), {}, "row 2: 1 hash_ids for 600 tokens"),
        (traces.MOONCAKE.replace("[0, 9]", "[0, -9]"), {}, "row 2: hash_ids are"),
        (traces.MOONCAKE.replace("600", "6e2"), {}, "row 2: input_length is 600.0"),
        (traces.MOONCAKE + "[]\n", {}, "row 4: '\\[\\]' is not an object"),
        (traces.MOONCAKE + "{\n", {}, "row 4: "),
        (traces.MOONCAKE + f'["{"x" * 57}ü"]\n', {}, "row 4: .* is not an object"),
        (traces.MOONCAKE.replace("[0, 9]", f"[0, {2**63}]"), {}, "row 2: hash_ids are"),
        (traces.BAILIAN.replace('"chat_id": 160, ', ""), {}, "row 2: has no chat_id"),
        (traces.BAILIAN.replace("160,", "[160],"), {}, r"row 2: chat_id is '\[160\]'"),
        ("[" + traces.MOONCAKE, {}, "is a JSON array: give one object per line"),
        (gzip.compress(b"PAR1 and more"), {}, "is a Parquet file in a gzip file"),
        ("at,in,out\n1,2,3\n", {"columns": OWN}, "has numbers as at: give their 'unit'"),
        ("at,in\n1,2\n", {"columns": OWN, "unit": "s"}, "has no column 'out'"),
        (traces.AZURE_2023, {"where": {"Model": "x"}}, "has no column 'Model'"),
    ],
)
def test_a_bad_row_is_refused_with_its_number(
    tmp_path: Path, text: str | bytes, keys: dict[str, object], reason: str
) -> None:
    with pytest.raises(ProblemsError, match=reason):
        rows(tmp_path / "t", text, **keys)


def as_parquet(text: str) -> bytes:
    """A table of CSV or JSON lines as a Parquet file."""
    source = io.BytesIO(text.encode())
    table = pa_json.read_json(source) if text.startswith("{") else pa_csv.read_csv(source)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def parquet(**columns: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"in": [7, 8], "out": [3, 4]} | columns), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "columns",
    [
        {"in": pa.array([7, 8], pa.uint8()), "out": pa.array([3, 4], pa.uint64())},
        {"in": [7.0, 8.0], "out": pa.array([3, 4]).dictionary_encode()},
        {"in": pa.array(["7", "8"], pa.large_string())},
        {"at": pa.array([1000, 3500], pa.uint32())},
        {"at": pa.array(["1", "3.5"]), "unit": "s"},
        {"at": pa.array([Decimal("1.0"), Decimal("3.5")]), "unit": "s"},
        {"at": pa.array(["2024-01-01", "2024-01-01T00:00:02.5"], pa.large_string())},
        {"at": pa.array(["2024-01-01", "2024-01-01T00:00:02.5"]).dictionary_encode()},
        {"at": pa.array([1_000_000, 3_500_000], pa.timestamp("us", "Europe/Berlin"))},
    ],
    ids=str,
)
def test_a_column_of_any_type_that_holds_the_numbers_is_read(
    tmp_path: Path, columns: dict[str, object]
) -> None:
    unit = columns.pop("unit", "ms")
    data = parquet(**{"at": [1000, 3500], **columns})
    read = rows(tmp_path / "t", data, columns=OWN, unit=unit)
    assert read.starts_ns is not None
    assert read.starts_ns.tolist() == [0, 2_500_000_000]
    assert (read.inputs.tolist(), read.outputs.tolist()) == ([7, 8], [3, 4])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"in": [[7], [8]]}, "from row 1 on: in: "),
        ({"in": [{"a": 7}, {"a": 8}]}, "from row 1 on: in: "),
        ({"in": [7.5, 8]}, "from row 1 on: in: "),
        ({"in": [7, float("nan")]}, "from row 1 on: in: "),
        ({"in": [7, None]}, "row 2: in is None"),
        ({"in": pa.array([7, 2**64 - 1], pa.uint64())}, "from row 1 on: in: "),
        ({"in": [True, False]}, "in is bool; give a column of whole numbers"),
        ({"in": pa.array([7, 8], pa.timestamp("s"))}, "in is timestamp"),
        ({"at": [[1], [2]]}, "from row 1 on: at: "),
        ({"at": ["noon", "one"]}, "from row 1 on: at: "),
        ({"at": [1.0, float("nan")]}, "row 2: at is nan"),
        ({"at": [1.0, 1e300]}, "row 2: at is 1e"),
        ({"at": pa.array([0, 2**62], pa.timestamp("us"))}, "from row 1 on: at: "),
        ({"at": pa.array([0, 2**62], pa.timestamp("ns"))}, "row 2: at is 2116"),
        ({"session": [["a"], ["b"]]}, "session is list.*give a column of texts or numbers"),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_refused(
    tmp_path: Path, columns: dict[str, object], reason: str
) -> None:
    own = OWN | ({"session": "session"} if "session" in columns else {})
    with pytest.raises(ProblemsError, match=reason):
        rows(tmp_path / "t", parquet(**{"at": [1, 2], **columns}), columns=own, unit="s")


@pytest.mark.parametrize("date", ["9999-12-31", "0001-01-01T00:00:00+00:00"])
def test_a_date_that_no_clock_holds_is_refused_with_its_row(tmp_path: Path, date: str) -> None:
    keys = {"columns": OWN}
    text = lines({"at": "2024-01-01", "in": 7, "out": 3}, {"at": date, "in": 8, "out": 4})
    with pytest.raises(ProblemsError, match=f"row 2: at is '{date[:4]}"):
        rows(tmp_path / "t.jsonl", text, **keys)
    with pytest.raises(ProblemsError, match="t.csv"):
        rows(tmp_path / "t.csv", f"at,in,out\n2024-01-01,7,3\n{date},8,4\n", **keys)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_without_a_session_stand_alone(tmp_path: Path, kind: str) -> None:
    names = ["a", "", "a", ""]
    table = {"at": [0, 1, 2, 3], "in": [1, 2, 3, 4], "out": [1, 1, 1, 1], "who": names}
    data: str | bytes
    if kind == "csv":
        data = "at,in,out,who\n0,1,1,a\n1,2,1,\n2,3,1,a\n3,4,1,\n"
    elif kind == "jsonl":
        data = lines(
            *(dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
        )
    else:
        data = parquet(**table)
    read = rows(tmp_path / "t", data, columns=OWN | {"session": "who"}, unit="s")
    assert (read.sessions, read.requests) == (3, 4)
    assert read.rows.tolist() == [1, 3, 2, 4]


def test_a_session_that_is_no_name_is_refused(tmp_path: Path) -> None:
    text = lines({"at": 0, "in": 1, "out": 1, "who": "a"}, {"at": 1, "in": 1, "out": 1, "who": [1]})
    with pytest.raises(ProblemsError, match=r"row 2: who is '\[1\]'; give a text or a number"):
        rows(tmp_path / "t", text, columns=OWN | {"session": "who"}, unit="s")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_request_that_ended_before_it_began_is_refused(tmp_path: Path, kind: str) -> None:
    keys = {"columns": OWN | {"elapsed": "took"}, "unit": "s"}
    text = "at,in,out,took\n0,1,1,5\n1,1,1,-5\n"
    if kind == "jsonl":
        table = ({"at": at, "in": 1, "out": 1, "took": took} for at, took in ((0, 5), (1, -5)))
        text = lines(*table)
    with pytest.raises(ProblemsError, match="row 2: took is below 0"):
        rows(tmp_path / "t", text, **keys)
    with pytest.raises(ProblemsError, match="row 1, request 1: api_time is -4"):
        rows(tmp_path / "w", traces.WEKA.replace('"api_time": 4.0', '"api_time": -4.0'))


def test_blank_lines_before_the_names_are_no_rows(tmp_path: Path) -> None:
    read = rows(tmp_path / "t", "\n\n" + traces.AZURE_2023)
    assert read.rows.tolist() == [1, 2, 3]
    with pytest.raises(ProblemsError, match="row 2: ContextTokens is 'x9'"):
        rows(tmp_path / "u", "\n\n" + traces.AZURE_2023.replace("396", "x9"))


def test_a_row_that_is_longer_than_a_batch_is_read(tmp_path: Path) -> None:
    texts = ["a"] * 5 + ["b" * (20 * trace_reader.BATCH_BYTES)] + ["c"] * 200_000
    body = "\n".join(f"{number},{number + 1},1,{text}" for number, text in enumerate(texts))
    read = rows(tmp_path / "t", f"at,in,out,text\n{body}\n", columns=OWN, unit="s")
    assert read.inputs.tolist() == list(range(1, len(texts) + 1))


def test_two_columns_of_the_name_that_is_asked_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="has several columns 'in': leave one of them"):
        rows(tmp_path / "t", "at,in,in,out\n1,2,9,3\n", columns=OWN, unit="s")
    read = rows(tmp_path / "u", "at,in,x,x,out\n1,2,9,9,3\n", columns=OWN, unit="s")
    assert read.inputs.tolist() == [2]


@pytest.mark.parametrize(
    "text",
    ["at,in,out,note;x\n1,7,3,\n2,8,4,\n", "at;in;out;note (a,b,c,d,e,f)\n1;7;3;\n2;8;4;\n"],
)
def test_a_name_of_a_column_may_have_another_delimiter_in_it(tmp_path: Path, text: str) -> None:
    read = rows(tmp_path / "t.csv", text, columns=OWN, unit="s")
    assert (read.inputs.tolist(), read.outputs.tolist()) == ([7, 8], [3, 4])


def test_texts_over_several_lines_are_read_wherever_a_batch_ends(tmp_path: Path) -> None:
    text = "to be,\n" * (trace_reader.BATCH_BYTES // 20)
    body = "".join(f'{number},{number + 1},1,"{text}"\n' for number in range(9))
    read = rows(tmp_path / "t", f"at,in,out,text\n{body}", columns=OWN, unit="s")
    assert read.inputs.tolist() == list(range(1, 10))


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e6, allow_nan=False), st.integers(1, 10**6), st.integers(1, 10**5)),
        min_size=1,
        max_size=20,
    )
)
def test_any_burstgpt_table_is_read_back(
    tmp_path: Path, table: list[tuple[float, int, int]]
) -> None:
    header = traces.BURSTGPT_1.partition("\n")[0]
    body = [f"{at!r},GPT-4,{prompt},{answer},0,x" for at, prompt, answer in table]
    read = rows(tmp_path / "t.csv", "\n".join([header, *body]))
    expected = sorted(enumerate(table), key=lambda entry: round(entry[1][0] * 1e9))
    assert read.rows.tolist() == [place + 1 for place, _ in expected]
    assert read.inputs.tolist() == [prompt for _, (_, prompt, _) in expected]
    assert read.outputs.tolist() == [answer for _, (_, _, answer) in expected]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10_000), st.binary(max_size=3), st.sampled_from(range(6)))
def test_a_damaged_trace_is_read_or_refused_with_its_name(
    tmp_path: Path, at: int, junk: bytes, which: int
) -> None:
    texts = (
        traces.AZURE_2023,
        traces.AZURE_2024,
        traces.BURSTGPT_2,
        traces.MOONCAKE,
        traces.BAILIAN,
        traces.WEKA,
    )
    data = texts[which].encode()
    at %= len(data)
    workload = trace(tmp_path / "t", data[:at] + junk + data[at + 1 :])
    sent = 0
    messages: list[str] = []
    try:
        sent = workload.rows().requests
    except ProblemsError as error:
        messages = [str(problem) for problem in error.problems]
    assert bool(sent) != bool(messages)
    assert all(str(tmp_path / "t") in message for message in messages)
