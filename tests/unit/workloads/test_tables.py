"""Tables of prompts: CSV, TSV and Parquet, gzipped or not, with columns of any name."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import ProblemsError
from orchestrator.workloads.entries import PromptEntry
from orchestrator.workloads.file import FileRules, PromptColumns, parse_prompts
from orchestrator.workloads.images import image_part, image_url_part, png
from orchestrator.workloads.kind import Message

TABLE = {
    "question": ["Why?", 'He said "no", twice.\nThen left.'],
    "limit": [5, 9],
    "reply": ["Because.", None],
    "difficulty": [1, 2],
}


def rules(**columns: str) -> FileRules:
    return FileRules(PromptColumns.model_validate(columns))


def csv_of(table: dict[str, list[Any]], delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter)  # ends lines with CR LF
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


def parquet_of(table: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


def read(data: bytes, name: str, file_rules: FileRules) -> list[PromptEntry]:
    entries = parse_prompts(data, name, file_rules)
    return [entry for entry in entries if entry]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", csv_of(TABLE)),
        ("a.csv", b"\xef\xbb\xbf" + csv_of(TABLE, ";")),
        ("a.TSV", csv_of(TABLE, "\t")),
        ("a.csv.gz", gzip.compress(csv_of(TABLE))),
        ("any name", parquet_of(TABLE)),
        ("a.parquet.gz", gzip.compress(parquet_of(TABLE))),
        (
            "a.jsonl.gz",
            gzip.compress(
                "\n".join(
                    json.dumps(dict(zip(TABLE, row, strict=True)))
                    for row in zip(*TABLE.values(), strict=True)
                ).encode()
            ),
        ),
    ],
)
def test_a_table_is_read_by_the_names_of_its_columns(name: str, data: bytes) -> None:
    entries = read(data, name, rules(prompt="question", output_tokens="limit", answer="reply"))
    texts = [entry.messages[0].text for entry in entries]
    assert texts == TABLE["question"]
    assert [entry.output_tokens for entry in entries] == [5, 9]
    assert [entry.answer for entry in entries] == ["Because.", None]
    assert entries[0].unused == {"completion", "difficulty"}


def test_columns_with_our_names_need_no_mapping_and_unknown_ones_are_refused() -> None:
    data = csv_of({"prompt": ["x"], "max_tokens": ["7"], "temperature": ["0.5"], "id": [3]})
    [entry] = read(data, "a.csv", FileRules())
    assert (entry.output_tokens, entry.fields) == (7, {"temperature": 0.5})
    with pytest.raises(ProblemsError, match="row 1: 'model' is not sent"):
        read(csv_of({"prompt": ["x"], "model": ["m"]}), "a.csv", FileRules())


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("model", "m", "every request goes to the model that is measured"),
        ("temperature", 0.5, "with 'columns' no sampling is sent"),
        ("tools", "[1]", "give it as 'tools' of 'columns'"),
        ("tool_choice", "none", "with 'columns' only 'tools' are sent of it"),
        ("image", "a.png", "give it as 'images' of 'columns'"),
        ("max_tokens", 9, "give it as 'output_tokens' of 'columns'"),
        ("response_format", "{}", "give 'constrain' as a key"),
        ("system_prompt", "Be kind", "give it as 'system' of 'columns', beside 'prompt'"),
    ],
)
def test_a_column_that_would_change_requests_is_refused_unless_it_is_left_out(
    column: str, cell: Any, reason: str
) -> None:
    data = csv_of({"q": ["x"], column: [cell], "topic": ["a"]})
    with pytest.raises(ProblemsError) as caught:
        read(data, "a.csv", rules(prompt="q"))
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"prompts 'a.csv', row 1: {column!r} is not sent: {reason}")
    assert problem.message.endswith(f"give 'leave_out: [{column}]' in 'columns'")
    columns = PromptColumns.model_validate({"prompt": "q", "leave_out": [column]})
    [entry] = read(data, "a.csv", FileRules(columns))
    assert (entry.fields, entry.unused) == ({}, {column, "topic"})
    empty = csv_of({"q": ["x"], column: [""]})
    assert len(read(empty, "a.csv", rules(prompt="q"))) == 1


@pytest.mark.parametrize("is_parquet", [False, True])
def test_messages_are_sent_without_the_keys_that_are_left_out(is_parquet: bool) -> None:
    """As WildChat has them: what is known of a conversation stands in each of its messages."""
    said = [
        {"role": "user", "content": "x", "country": "NO", "header": {"accept-language": "no"}},
        {"role": "assistant", "content": "y", "country": None, "header": None},
    ]
    talks = {"talk": [said if is_parquet else json.dumps(said)], "model": ["m"]}
    data, name = (parquet_of(talks), "any name") if is_parquet else (csv_of(talks), "a.csv")
    columns = PromptColumns.model_validate({"messages": "talk", "leave_out": ["model"]})
    with pytest.raises(ProblemsError, match=r"'leave_out: \[country, header\]' in 'columns'"):
        read(data, name, FileRules(columns))
    left_out = ["model", "country", "header", "content"]
    columns = PromptColumns.model_validate({"messages": "talk", "leave_out": left_out[:3]})
    [entry] = read(data, name, FileRules(columns))
    assert [message.text for message in entry.messages] == ["x"]
    assert (entry.answer, entry.unused) == ("y", {"model", "country", "header"})
    columns = PromptColumns.model_validate({"messages": "talk", "leave_out": left_out})
    with pytest.raises(ProblemsError, match="'leave_out' names 'content', which no entry"):
        read(data, name, FileRules(columns))


PICTURE = png(np.zeros((4, 4, 3), np.uint8))


def test_messages_that_lie_in_a_list_for_each_turn_are_read() -> None:
    """As VisionArena has them, with its pictures in a column of their own."""
    turns = [
        [{"role": "user", "content": "What is this?"}],
        [{"role": "assistant", "content": "A square."}],
        [{"role": "user", "content": "Why?"}],
    ]
    data = parquet_of({"conversation": [turns], "images": [[{"bytes": PICTURE, "path": None}]]})
    columns = PromptColumns.model_validate({"messages": "conversation", "images": "images"})
    [entry] = read(data, "any name", FileRules(columns))
    assert [message.text for message in entry.messages] == ["What is this?", "A square.", "Why?"]
    assert list(entry.images()) == [image_part(PICTURE)]
    [entry] = read(data, "any name", FileRules(columns, sessions=True))
    assert [turn.text for turn in entry.later_turns] == ["Why?"]


def test_parts_of_a_content_may_have_the_keys_of_all_parts() -> None:
    """As Parquet has them, where a list has records of one shape."""
    url = "data:image/png;base64,QUJD"
    parts = [
        {"type": "image_url", "text": None, "image_url": {"url": url}},
        {"type": "text", "text": "What is this?", "image_url": None},
    ]
    data = parquet_of({"talk": [[{"role": "user", "content": parts}]]})
    [entry] = read(data, "any name", FileRules(PromptColumns(messages="talk")))
    assert entry.messages[0].text == "What is this?"
    assert list(entry.images()) == [image_url_part(url)]


def test_a_picture_without_its_data_is_refused_with_what_to_do() -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "What is this?"}]
    data = parquet_of({"talk": [[{"role": "user", "content": parts}]]})
    with pytest.raises(
        ProblemsError, match="row 1: a picture stands in its content without"
    ) as caught:
        read(data, "any name", FileRules(PromptColumns(messages="talk")))
    assert "give the pictures as 'images' of 'columns'" in str(caught.value.problems[0])


def test_a_column_is_sent_or_left_out() -> None:
    with pytest.raises(ValueError, match="'leave_out' names 'q', which is sent"):
        PromptColumns.model_validate({"prompt": "q", "leave_out": ["q"]})


def test_a_system_text_goes_before_its_prompt() -> None:
    data = csv_of({"q": ["x", "y"], "s": ["Be kind", ""]})
    first, second = read(data, "a.csv", rules(prompt="q", system="s"))
    assert first.messages == (Message("system", ("Be kind",), 0), Message("user", ("x",), 0))
    assert second.messages == (Message("user", ("y",), 0),)


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("names", [{"prompt": "q", "system": "s"}, {"messages": "m"}])
def test_a_column_has_the_answer_to_any_single_turn(names: dict[str, str], sessions: bool) -> None:
    said = json.dumps([{"role": "user", "content": "x"}])
    data = csv_of({"q": ["x"], "s": ["Be kind"], "m": [said], "a": ["Because."]})
    columns = PromptColumns.model_validate(names | {"answer": "a"})
    [entry] = read(data, "a.csv", FileRules(columns, sessions))
    assert entry.answer == "Because."
    talk = [*json.loads(said), {"role": "assistant", "content": "Its own."}]
    [entry] = read(
        csv_of({"m": [json.dumps(talk)], "a": ["Because."]}),
        "a.csv",
        rules(messages="m", answer="a"),
    )
    assert entry.answer == "Its own."


def test_an_answer_beside_several_turns_is_of_none_of_them() -> None:
    talk = [{"from": "human", "value": "x"}, {"from": "human", "value": "y"}]
    data = csv_of({"c": [json.dumps(talk)], "a": ["Because."]})
    [entry] = read(data, "a.csv", rules(conversations="c", answer="a"))
    assert entry.answer is None


def test_conversations_of_a_parquet_file_are_lists() -> None:
    talk = [[{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]]
    [entry] = read(parquet_of({"chat": talk}), "a.parquet", rules(conversations="chat"))
    assert (entry.messages[0].text, entry.answer) == ("Hi", "Ho")
    [entry] = read(csv_of({"chat": [json.dumps(talk[0])]}), "a.csv", rules(conversations="chat"))
    assert entry.answer == "Ho"


def test_what_pandas_writes_for_missing_numbers_is_nothing() -> None:
    data = parquet_of({"q": ["x", "y"], "n": [5.0, math.nan], "temperature": [math.nan] * 2})
    first, second = read(data, "a.parquet", rules(prompt="q", output_tokens="n"))
    assert (first.output_tokens, second.output_tokens) == (5, None)
    data = parquet_of({"prompt": ["x", "y"], "temperature": [math.nan, 0.5]})
    first, second = read(data, "a.parquet", FileRules())
    assert (first.fields, second.fields) == ({}, {"temperature": 0.5})
    [entry] = read(b"q,n\nx,5.0\n", "a.csv", rules(prompt="q", output_tokens="n"))
    assert entry.output_tokens == 5


def test_the_numbers_of_rows_that_pandas_writes_change_nothing() -> None:
    [entry] = read(b",prompt\n0,x\n", "a.csv", FileRules())
    assert entry.unused == {""}
    [entry] = read(b"Unnamed: 0,prompt\n0,x\n", "a.csv", FileRules())
    assert entry.unused == {"Unnamed: 0"}


def test_a_column_has_one_role_and_those_that_are_left_out_are_there() -> None:
    with pytest.raises(ValueError, match="'q' is named twice: give each column one role"):
        PromptColumns.model_validate({"prompt": "q", "answer": "q"})
    columns = PromptColumns.model_validate({"prompt": "q", "leave_out": ["nope"]})
    for name, data in (("a.csv", b"q,n\nhi,1\n"), ("a.jsonl", b'{"q": "hi", "n": 1}\n')):
        with pytest.raises(ProblemsError, match="'leave_out' names 'nope', which no entry"):
            read(data, name, FileRules(columns))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ProblemsError, match="has several columns 'n': leave one of them"):
        read(b"prompt,n,n\nx,5,6\n", "a.csv", FileRules())
    table = pa.Table.from_arrays([pa.array(["x"])] * 2, names=["prompt", "prompt"])
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with pytest.raises(ProblemsError, match="has several columns 'prompt'"):
        read(sink.getvalue(), "a.parquet", FileRules())


@pytest.mark.parametrize(
    ("name", "data", "columns", "reason"),
    [
        ("a.csv", b"q,n\nx,5\ny\n", {"prompt": "q"}, "row 2: has not 2 cells"),
        ("a.csv", b"q,n\nx,5,6\n", {"prompt": "q"}, "row 1: has not 2 cells"),
        ("a.csv", b"q,n\nx,5\n", {"prompt": "p"}, "row 1: there is no column 'p'; there are q, n"),
        ("a.csv", b"q,n\nx,five\n", {"prompt": "q", "output_tokens": "n"}, "row 1: output_tokens"),
        ("a.csv", b"q,n\n,5\n", {"prompt": "q"}, 'row 1: "prompt" is'),
        ("a.csv", b"q,n\n\xff,5\n", {"prompt": "q"}, "is not UTF-8 at byte 4"),
        ("a.csv", b'q,n\n"x,5\n', {"prompt": "q"}, "after line 1: unexpected end"),
        ("a.csv.gz", gzip.compress(b"q\nx\n")[:-4], {"prompt": "q"}, "is a broken gzip file"),
        ("a.txt", b"only text\n", {"prompt": "q"}, "is text without columns"),
        ("a.csv", b"q,n\n", {"prompt": "q"}, "is empty"),
    ],
)
def test_a_bad_table_is_refused_with_file_and_row(
    name: str, data: bytes, columns: dict[str, str], reason: str
) -> None:
    with pytest.raises(ProblemsError, match=f"prompts '{name}'.*{reason}"):
        read(data, name, rules(**columns))


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
            st.integers(1, 10**6),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([",", ";", "\t"]),
)
def test_any_texts_in_a_csv_file_come_back(rows: list[tuple[str, int]], delimiter: str) -> None:
    data = csv_of({"q": [text for text, _ in rows], "n": [n for _, n in rows]}, delimiter)
    entries = read(data, "a.csv", rules(prompt="q", output_tokens="n"))
    assert [(entry.messages[0].text, entry.output_tokens) for entry in entries] == rows


@pytest.mark.parametrize(
    ("delimiter", "other"), [(",", "notes; mine"), (";", "notes (why, when, who)")]
)
def test_a_name_of_a_column_may_have_another_delimiter_in_it(delimiter: str, other: str) -> None:
    text = delimiter.join(("question", other)) + "\r\n" + delimiter.join(("Why?", "x")) + "\r\n"
    entries = read(text.encode(), "a.csv", rules(prompt="question"))
    assert [entry.messages[0].text for entry in entries] == ["Why?"]
