"""Expressions of derive and exclude: equal to Python's own evaluation, and nothing else gets
through.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spec.expressions import parse_expression

KNOWN = ("a", "b", "name", "flag", "nothing")

numbers = st.integers(-20, 20).map(str) | st.sampled_from(["a", "b", "0.5", "1.25"])
words = st.sampled_from(["name", "'fp8'", "'awq'"])


def _expressions() -> st.SearchStrategy[str]:
    arithmetic = st.recursive(
        numbers,
        lambda inner: (
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
            .map(" ".join)
            .map("({})".format)
            | inner.map("(-{})".format)
        ),
        max_leaves=5,
    )
    comparison = (
        st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(
            " ".join
        )
        | st.tuples(words, st.sampled_from(["==", "!=", "<", "in"]), words).map(" ".join)
        | st.tuples(arithmetic, arithmetic, arithmetic).map(
            lambda parts: "{} < {} <= {}".format(*parts)
        )
        | st.tuples(arithmetic, st.lists(arithmetic, min_size=1, max_size=3)).map(
            lambda p: f"{p[0]} not in [{', '.join(p[1])}]"
        )
        | st.tuples(words, st.lists(words, min_size=1, max_size=3)).map(
            lambda parts: f"{parts[0]} in ({', '.join(parts[1])},)"
        )
        | st.sampled_from(
            ["flag", "nothing is None", "name is not None", "nothing == None", "(1, a) == (1, 2)"]
        )
    )
    boolean = st.recursive(
        comparison,
        lambda inner: (
            st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join).map("({})".format)
            | inner.map("(not {})".format)
            | st.tuples(inner, inner, inner).map(lambda parts: "({} if {} else {})".format(*parts))
        ),
        max_leaves=6,
    )
    return arithmetic | boolean


def by_python(text: str, values: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "value", eval(text, {"__builtins__": {}}, values)
    except (TypeError, ZeroDivisionError):
        return "error", None


def by_us(text: str, values: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "value", parse_expression(text, KNOWN).evaluate(values)
    except ValueError:
        return "error", None


@given(
    _expressions(),
    st.integers(-5, 5),
    st.integers(0, 64),
    st.sampled_from(["fp8", "awq", None]),
    st.booleans(),
)
def test_a_value_is_what_python_computes(
    text: str, a: int, b: int, name: str | None, flag: bool
) -> None:
    values = {"a": a, "b": b, "name": name, "flag": flag, "nothing": None}
    kind, value = by_us(text, values)
    expected_kind, expected = by_python(text, values)
    assert kind == expected_kind
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('ls')",
        "a.real",
        "a[0]",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "a ** 9",
        "a << 3",
        "a | 1",
        "~a",
        "f'{a}'",
        "(x := 5)",
        "{1: 2}",
        "{1, 2}",
        "[*a]",
        "1j",
        "b'x'",
        "...",
        "9999999999999999999999",
        "1e999",
        "await a",
        "name is 'fp8'",
        "a @ b",
    ],
)
def test_anything_else_of_python_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|not an expression"):
        parse_expression(text, KNOWN)


@pytest.mark.parametrize(
    "text", ["", "a ==", "a = 1", "a; b", "import os", "a\x00", "(" * 300, "1 2"]
)
def test_text_that_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an expression"):
        parse_expression(text, KNOWN)


def test_an_unknown_name_comes_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="unknown field 'tensor_paralel_size'; did you mean 'tensor_parallel_size'"
    ):
        parse_expression("tensor_paralel_size > 4", ["tensor_parallel_size", "nnodes"])


@pytest.mark.parametrize(
    "text", ["name * 1000000000", "'%9999999999d' % 1", "name + name", "[1] * 99", "-name"]
)
def test_arithmetic_is_for_numbers_only(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        parse_expression(text, KNOWN).evaluate({"name": "fp8"})


def test_numbers_cannot_grow_without_end() -> None:
    expression = parse_expression("a * a", KNOWN)
    with pytest.raises(ValueError, match="too large"):
        expression.evaluate({"a": 2**40})


def test_a_long_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="an expression of 1601 characters is too long"):
        parse_expression("a" + " + a" * 400, KNOWN)


def test_a_deep_expression_has_its_value() -> None:
    assert parse_expression("not " * 60 + "a", KNOWN).evaluate({"a": 1}) is True


def test_a_comparison_with_something_unset_says_what_is_unset() -> None:
    with pytest.raises(ValueError, match="not set here: nothing"):
        parse_expression("nothing > 4 and a > 1", KNOWN).evaluate({"nothing": None, "a": 2})


def test_what_has_no_value_has_none_only_where_it_is_asked_for() -> None:
    expression = parse_expression("1 if a else 1 // 0 + 2", KNOWN)
    assert expression.evaluate({"a": True}) == 1
    with pytest.raises(ValueError, match="division|modulo"):
        expression.evaluate({"a": False})


@pytest.mark.parametrize("text", ["[[name], [name]]", "[a, name]"])
def test_lists_that_names_bring_in_are_bounded(text: str) -> None:
    expression = parse_expression(text, KNOWN)
    with pytest.raises(ValueError, match="more than 1,000 elements"):
        expression.evaluate({"a": 0, "name": list(range(1000))})


def test_yaml_words_for_constants_work() -> None:
    expression = parse_expression("nothing is null and flag == true and not false", KNOWN)
    assert expression.names == {"nothing", "flag"}
    assert expression.evaluate({"nothing": None, "flag": True}) is True


@given(st.text(max_size=40))
def test_garbage_is_an_expression_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_expression(text, KNOWN)
