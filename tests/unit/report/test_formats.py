"""JSON, CSV and Markdown text."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from dataclasses import dataclass

import pytest
from markdown_it import MarkdownIt

from orchestrator.report.formats import (
    csv_text,
    fields_of,
    flat,
    json_list,
    json_text,
    markdown_cell,
    markdown_table,
)
from orchestrator.report.text import Cell, Column

# what a cell of Markdown is written as, here and in the page's copies (tests/browser/test_use.py)
MARKDOWN_CELLS = [
    ("a|b", "a\\|b"),
    ("two\nlines", "two lines"),
    ("<img src=x>", "&lt;img src=x&gt;"),
    ("*bold* _it_ a_b", "\\*bold\\* \\_it\\_ a_b"),
    ("[x](y) `z`", "\\[x\\](y) \\`z\\`"),
    ("@all", "@<!-- -->all"),
    ("#12", "\\#12"),
    ("https://evil.example", "https:<!-- -->//evil.example"),
    ("=1+1", "\\=1+1"),
    ("-cmd", "\\-cmd"),
    ("-", "-"),
    ("\x1b[2J", "\\\\x1b\\[2J"),
    ("+", "+"),
    ("a\u200b\U000e0001", "a\\\\u200b\\\\U000e0001"),
    (" $x_1$ ~b~ x_ ", "\\$x_1\\$ \\~b\\~ x\\_"),
]


@dataclass(frozen=True)
class Latency:
    p50: float
    p99: float


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_records_are_objects_and_nan_is_null() -> None:
    assert json.loads(json_text({"ttft_ms": Latency(5.0, math.nan)})) == {
        "ttft_ms": {"p50": 5.0, "p99": None}
    }


def test_an_infinite_rate_is_the_word_for_it() -> None:
    assert fields_of(Latency(math.inf, 1.0), "p50", "p99") == {"p50": "inf", "p99": 1.0}


def test_fields_of_no_record_are_null() -> None:
    assert fields_of(None, "label", "engine") == {"label": None, "engine": None}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_in_pieces_is_one_json_text(count: int) -> None:
    objects = [{"at": at} for at in range(count)]
    assert json.loads("".join(json_list(iter(objects)))) == objects


def test_nested_objects_and_records_are_dotted_columns_and_lists_one_cell() -> None:
    nested = {"slo": {"share": Latency(0.5, 0.9)}, "reasons": ["late", "lost"], "label": "tp=2"}
    assert flat(nested) == {
        "slo.share.p50": 0.5,
        "slo.share.p99": 0.9,
        "reasons": "late; lost",
        "label": "tp=2",
    }


def test_a_list_of_objects_is_a_cell_of_json() -> None:
    tests = [{"limit": "ttft<=1s", "share": Latency(0.5, math.nan)}]
    cell = flat({"slo": {"tests": tests}})["slo.tests"]
    assert cell == '[{"limit":"ttft<=1s","share":{"p50":0.5,"p99":null}}]'
    (row,) = csv.DictReader(io.StringIO(csv_text([{"slo": {"tests": tests}}])))
    assert json.loads(row["slo.tests"])[0]["limit"] == "ttft<=1s"
    assert flat({"pairs": [("a", 1), ("b", 2)]}) == {"pairs": '[["a",1],["b",2]]'}


def test_csv_has_the_columns_of_all_lines_in_the_order_in_which_they_come() -> None:
    text = csv_text([{"label": "a", "level": 4}, {"label": "b", "knee": True}])
    assert text == "label,level,knee\na,4,\nb,,True\n"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2", "@sum"])
def test_no_spreadsheet_runs_text_as_a_formula(text: str) -> None:
    assert rows(csv_text([{"label": text}])) == [{"label": f"'{text}"}]


def test_no_terminal_obeys_text_of_a_server() -> None:
    assert rows(csv_text([{"reason": "first\n\x1b[2Jlast"}])) == [{"reason": "first\n\\x1b[2Jlast"}]


@pytest.mark.parametrize(("text", "escaped"), MARKDOWN_CELLS)
def test_a_cell_of_markdown_is_text(text: str, escaped: str) -> None:
    assert markdown_cell(text) == escaped


def test_a_table_of_markdown_has_a_line_per_row() -> None:
    columns = [Column("label", fold=True), Column("attain-\nment\nslo")]
    lines = list(markdown_table(columns, [["a|b", Cell("1.0", "red")]]))
    assert lines == ["| label | attainment slo |", "| :-- | --: |", "| a\\|b | 1.0 |"]


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "a | b || c",
        "![x](http://evil.example/x.png)",
        "`code` **bold** __it__ ~~no~~",
        "back\\slash \\| pipe",
        "=HYPERLINK(1)",
        "&lt;b&gt;",
    ],
)
def test_a_reader_of_markdown_shows_a_hostile_cell_as_the_text_that_it_is(hostile: str) -> None:
    columns = [Column("label", fold=True), Column("load")]
    text = "\n".join(markdown_table(columns, [[hostile, "7"]]))
    rendered = MarkdownIt("commonmark").enable("table").render(text)
    assert set(re.findall(r"<(\w+)", rendered)) == {"table", "thead", "tbody", "tr", "th", "td"}
    cells = re.findall(r"<td[^>]*>(.*?)</td>", rendered)
    shown = html.unescape(cells[0].replace("<!-- -->", ""))
    assert [shown, *cells[1:]] == [hostile, "7"]
