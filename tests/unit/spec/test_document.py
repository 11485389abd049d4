"""YAML as plain values with lines: what it accepts, what it refuses, and that garbage is never a
crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.document import (
    MOST_BYTES,
    Problems,
    parse_document,
    problems_without_file,
    read_document,
)

TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20)
SIMPLE = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | TEXT
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def problems(text: str) -> list[Problem]:
    with pytest.raises(ProblemsError) as caught:
        Problems(parse_document(text, "x.yaml")).raise_any()
    return caught.value.problems


def only_problem(text: str) -> Problem:
    (problem,) = problems(text)
    return problem


def test_every_key_and_item_knows_its_line() -> None:
    document = parse_document("a: 1\nb:\n  - x\n  - c: 2\n\n    d: [3,\n        4]\n", "x.yaml")
    assert document.value == {"a": 1, "b": ["x", {"c": 2, "d": [3, 4]}]}
    places = {
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
        ("b", 1, "d"): 6,
        ("b", 1, "d", 1): 7,
    }
    assert {place: document.line(place) for place in places} == places


def test_a_place_that_is_not_there_has_the_line_around_it() -> None:
    document = parse_document("a: 1\nb:\n  c: 2\n", "x.yaml")
    assert document.line(("b", "missing", 3)) == 2
    assert document.line(("missing",)) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("+7", 7),
        ("010", 10),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("9" * 30, 10.0**30),  # too long for an integer
        ("9" * 400, "9" * 400),  # too long for any number
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_document(f"x: {text}\n", "x.yaml").value["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_keys_are_always_text() -> None:
    assert parse_document("on: 1\n1: 2\nnull: 3\n", "x.yaml").value == {"on": 1, "1": 2, "null": 3}


def test_a_key_given_twice_names_both_lines() -> None:
    problem = only_problem("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")
    assert problem.line == 5
    assert problem.message == "key 'c' is given twice, on line 3 and on line 5"


def test_all_duplicate_keys_are_reported_at_once() -> None:
    assert [problem.line for problem in problems("a: 1\na: 2\nb: 3\nb: 4\na: 5\n")] == [2, 4, 5]


def test_a_syntax_error_has_its_line() -> None:
    problem = only_problem("a: 1\nb: [1, 2\nc: 3\n")
    assert problem.line == 3
    assert "not valid YAML" in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [ls]\n",
        "a: !Thing {b: 1}\n",
        "a: !!set {b, c}\n",
        "a: !!binary aGk=\n",
    ],
)
def test_tags_are_refused_and_nothing_is_constructed(text: str) -> None:
    assert "is not allowed" in only_problem(text).message


def test_merge_keys_bring_values_in_and_own_keys_win() -> None:
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nuse:\n  y: 9\n  <<: [*b, *m]\n"
    document = parse_document(text, "x.yaml")
    assert document.value["use"] == {"x": 1, "y": 9, "z": 4}
    assert document.line(("use", "y")) == 4
    assert document.line(("use", "x")) == 1
    assert document.line(("use", "z")) == 2


def test_aliases_that_multiply_are_stopped() -> None:
    """Each list has the one before it ten times, so the last one has 10**9 values."""
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, name in pairwise("abcdefghi"):
        aliases = ", ".join([f"*{before}"] * 10)
        text += f"{name}: &{name} [{aliases}]\n"
    assert "more than" in only_problem(text).message


@pytest.mark.parametrize(
    "text", ["a: &a [*a]\n", "a: &a {<<: *a}\n", "[" * 5000, "- " * 3000 + "x"]
)
def test_endless_nesting_is_a_problem(text: str) -> None:
    assert "nested too deeply" in only_problem(text).message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("? [a]\n: 1\n", "a key must be text"),
    ],
)
def test_other_texts_that_are_no_document(text: str, message: str) -> None:
    assert message in only_problem(text).message


@pytest.mark.parametrize("text", ['a: "\\uD800"\n', 'a: "\\0"\n', '"\\uDFFF": 1\n'])
def test_half_characters_and_null_bytes_are_refused(text: str) -> None:
    assert "control characters or halves of characters" in only_problem(text).message


def test_two_halves_of_a_character_are_joined() -> None:
    assert parse_document(json.dumps({"name": "x\U0001f600"}), "x.json").value == {
        "name": "x\U0001f600"
    }


def test_a_control_character_is_a_problem_with_its_line() -> None:
    assert only_problem("a: 1\nb: \x07\n").line == 2


def test_a_huge_text_is_refused_unread() -> None:
    assert "is larger than" in only_problem("a" * (MOST_BYTES + 1)).message


def test_a_file_that_is_missing_or_no_text_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="cannot be read: No such file"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ProblemsError, match=r"bytes.yaml:2: is not UTF-8"):
        read_document(tmp_path / "bytes.yaml")


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    """It may be a pipe or a device that never ends. That of the test ends after 3 * MOST_BYTES."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    chunk = b"#" * 100_000
    written_bytes = 0

    def write() -> None:
        nonlocal written_bytes
        with contextlib.suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as file:
            for _ in range(3 * MOST_BYTES // len(chunk)):
                written_bytes += file.write(chunk)

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(ProblemsError, match="cannot be read: it is larger than 1,000,000 bytes"):
        read_document(pipe)
    writer.join(10)
    assert written_bytes < 2 * MOST_BYTES


@given(st.text(max_size=300))
@example('"\\UFFFFFFFF"')
@example("%YAML 9999999999999999999.1\n---\n")
@example("a: !<")
def test_garbage_is_a_document_or_a_problem_and_nothing_else(text: str) -> None:
    with contextlib.suppress(ProblemsError):
        json.dumps(parse_document(text, "x.yaml").value, allow_nan=False).encode()


@given(st.text(alphabet="abc:-[]{}&*!|>'\"%@#?,\n \t<0.e", max_size=60))
def test_garbage_of_yaml_signs_is_a_document_or_a_problem(text: str) -> None:
    with contextlib.suppress(ProblemsError):
        parse_document(text, "x.yaml")


@given(VALUES.filter(lambda value: value not in ("", None)))
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_document(json.dumps(value, ensure_ascii=False), "x.json").value == value


def test_problems_of_values_that_no_file_holds_have_neither_file_nor_line() -> None:
    problems = problems_without_file()
    problems.add(("load", "levels"), "too many")
    assert problems.has_any
    with pytest.raises(ProblemsError) as caught:
        problems.raise_any()
    assert caught.value.problems == [Problem("too many")]
