"""Answers are checked against what their requests constrained them to be."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.load.answer_check import AnswerCheck
from orchestrator.load.wire.constraint_fields import choice_grammar, pattern_of
from orchestrator.spec.constraint import Constraint, ConstraintKind

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHECK = AnswerCheck(Constraint(ConstraintKind.JSON_SCHEMA, schema=PERSON))


@pytest.mark.parametrize(
    ("answer", "finish_reason", "met"),
    [
        ('{"name": "Ada", "age": 36}', "stop", True),
        (' {"age": 36, "name": "Ada"}\n', "length", True),
        ('{"name": "Ada"}', "stop", False),
        ('{"name": "Ada", "age": -1}', "stop", False),
        ('{"name": "Ada", "ag', "stop", False),
        ('{"name": "Ada", "ag', None, False),
        # cut: it might have become valid
        ('{"name": "Ada", "ag', "length", None),
        ('{"name": "A', "max_tokens", None),
        ("{", "LENGTH", None),
        ("", "length", None),
        ('{"age": tr', "length", None),
        # cut, and nothing could have made it valid
        (" the of and", "length", False),
        ('{"name": "Ada",}', "length", False),
        ("[1, 2", "length", False),
        ('"Ada', "length", False),
        ("```json\n{", "length", False),
    ],
)
def test_json(answer: str, finish_reason: str | None, met: bool | None) -> None:
    assert CHECK.met(answer, finish_reason) is met


def test_an_answer_nested_too_deeply_to_be_checked_is_no_instance() -> None:
    nested = AnswerCheck(Constraint(ConstraintKind.JSON_SCHEMA, schema={"items": {"$ref": "#"}}))
    assert nested.met("[[1]]", "stop") is True
    assert nested.met("[" * 1_000 + "]" * 1_000, "stop") is False


@pytest.mark.parametrize("beginning", ["tr", "-", "1.", "1e"])
def test_a_scalar_that_was_cut_might_have_become_valid(beginning: str) -> None:
    anything = AnswerCheck(Constraint(ConstraintKind.JSON_SCHEMA, schema={}))
    assert anything.met(beginning, "length") is None


def test_choices_and_expressions_must_match_as_a_whole() -> None:
    choice = AnswerCheck(Constraint(ConstraintKind.CHOICE, choices=("yes", "no")))
    assert choice.met("yes", "stop") is True
    assert choice.met("yes.", "stop") is False
    assert choice.met("ye", "length") is None
    assert choice.met("the", "length") is False
    digits = AnswerCheck(Constraint(ConstraintKind.REGEX, regex="[0-9]{4}|none"))
    assert digits.met("2024", "stop") is True
    assert digits.met("2024 ", "stop") is False
    assert digits.met("20", "length") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_no_beginning_of_a_valid_answer_is_called_a_violation(value: object) -> None:
    schema = {"type": ["object", "array", "string", "integer", "boolean", "null"]}
    anything = AnswerCheck(Constraint(ConstraintKind.JSON_SCHEMA, schema=schema))
    answer = orjson.dumps(value).decode()
    assert anything.met(answer, "stop") is True
    for end in range(len(answer)):
        assert anything.met(answer[:end], "length") is not False


@given(st.lists(JSON, max_size=4))
def test_objects_are_valid_as_jsonschema_says(values: list[Any]) -> None:
    schema = {"type": "array", "items": {"type": ["string", "integer"]}, "maxItems": 2}
    check = AnswerCheck(Constraint(ConstraintKind.JSON_SCHEMA, schema=schema))
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(values)
    assert check.met(json.dumps(values), "stop") is is_valid


TEXTS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)


@given(TEXTS, st.text(max_size=8))
def test_the_expression_of_a_choice_matches_its_texts_alone(texts: list[str], other: str) -> None:
    pattern = re.compile(pattern_of(Constraint(ConstraintKind.CHOICE, choices=tuple(texts))))
    assert all(pattern.fullmatch(text) for text in texts)
    assert (pattern.fullmatch(other) is not None) == (other in texts)


def test_the_grammar_of_a_choice_has_its_texts_as_literals() -> None:
    assert choice_grammar(("yes", 'say "no"', "a\nb")) == (
        'root ::= "yes" | "say \\"no\\"" | "a\\nb"'
    )
