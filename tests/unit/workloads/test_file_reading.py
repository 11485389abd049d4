"""Prompt files and traces that are no text, or text of another form, are refused by what they are."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.load.arrivals import recorded
from orchestrator.spec.load import Arrivals
from orchestrator.workloads.file import parse_prompts
from orchestrator.workloads.file_reading import columns_of_lines, delimiter_of, first_names


def read_as(path: Path, what: str) -> None:
    if what == "trace":
        recorded(Arrivals(process="trace", trace=str(path)))
    else:
        parse_prompts(path.read_bytes(), str(path))


def refusal(path: Path, what: str = "prompts") -> str:
    """The only problem of a file."""
    with pytest.raises(ProblemsError) as caught:
        read_as(path, what)
    (problem,) = caught.value.problems
    return str(problem)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44"


BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.2,17,3.9,GPT-4,100,20,120,API log\n"
)


BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,1,5,x\n"
)


@pytest.mark.parametrize("what", ["prompts", "trace"])
@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.csv", AZURE.encode(), "is Azure's trace of LLM requests as a table"),
        ("a.txt", codecs.BOM_UTF8 + AZURE.encode(), "is Azure's trace"),
        ("a.csv", BURST.encode(), "is BurstGPT's trace"),
        ("a.txt", BURST_1.encode(), "is BurstGPT's trace"),
        ("a.txt", b"prompt;response\nx;y\n", "is a table (CSV)"),
        ("a.bz2", b"BZh91AY&SY", "is compressed (bzip2)"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid s", "pointer of Git LFS"),
        ("a.jsonl", b"PAR1\x15", "Parquet file"),
        ("a.txt", "hello".encode("utf-16"), "is UTF-16, which is not read: save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_what_it_is(
    name: str, data: bytes, problem: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    assert problem in refusal(tmp_path / name, what)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.csv", b"at,tokens\n1,2\n", "is a table (CSV) with the columns at, tokens"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "x"}'), "is compressed (gzip)"),
        ("a.parquet", b"PAR1\x15", "is a Parquet file"),
    ],
)
def test_a_table_of_times_is_a_trace(name: str, data: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert problem in refusal(tmp_path / name, "trace")


def test_a_table_without_known_columns_is_refused_by_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one,two\nx,y\n")
    assert "is a table (CSV) with the columns one, two" in refusal(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("one,two\n")
    assert "is empty" in refusal(tmp_path / "a.csv")
    assert parse_prompts(b"one, two\nHello, world; prompt\n", "a.txt")


@pytest.mark.parametrize(
    ("lines", "columns"),
    [
        (["topic,hard level,ask", "a,1,Why?", 'b,2,"How, then?"'], 3),
        (["topic\task", "a\tWhy, then?", "b\tHow?"], 2),
        (["topic;ask", "a;Why?", "b;How?"], 2),
        (["topic,ask", "a,Why?", "b,How, then?"], None),
        (["topic,ask", "a,Why?"], None),
        (["topic,topic", "a,Why?", "b,How?"], None),
        (["Why, then?", "a,Why?", "b,How?"], None),
        (["topic", "a", "b"], None),
        ([], None),
    ],
)
def test_lines_of_as_many_cells_below_names_look_like_a_table(
    lines: list[str], columns: int | None
) -> None:
    assert columns_of_lines(lines) == columns


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.txt", '{"text": "hello", "output_length": 8}\n', 'name its "text" "prompt"'),
        ("a.txt", '{"custom_id": "r", "body": {"messages": []}}\n', "is not an object with"),
        ("a.jsonl", '{"prompt": "a", "temperature": NaN}\n', "is no JSON: "),
        ("a.jsonl", '{"prompt": "a"}\n{"prompt": "\\ud800"}\n', "a.jsonl', line 2: "),
        ("a.json", "[]", "is empty"),
        ("a.json", '{\n "data": [\n {"prompt": "x"}]}', "is one JSON object: give one object"),
    ],
)
def test_json_is_never_sent_as_text(name: str, text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert problem in refusal(tmp_path / name)


def test_an_array_over_several_lines_is_json_by_whatever_name() -> None:
    text = json.dumps([{"prompt": "x"}, {"prompt": "y"}], indent=1)
    assert len(parse_prompts(text.encode(), "a.txt")) == 2


def test_a_key_without_a_name_is_shown_where_keys_are_listed() -> None:
    assert first_names({"", "id"}) == "(no name), id"


@pytest.mark.parametrize(
    ("header", "names", "delimiter"),
    [
        ("a,b,c;d", (), ","),
        ("a;b;c,d", (), ";"),
        ("a\tb;c\td", (), "\t"),
        ("x (s, ms, us);y", (), ","),
        ("x (s, ms, us);y", ("y",), ";"),
        ("a,b;c", (), ";"),  # as many columns under both
        ("a,b;c", ("a",), ","),
        ('"a,b,c";d', (), ";"),
        ("prompt", (), ","),
    ],
)
def test_names_of_columns_may_have_delimiters_in_them(
    header: str, names: tuple[str, ...], delimiter: str
) -> None:
    assert delimiter_of(header, names) == delimiter
