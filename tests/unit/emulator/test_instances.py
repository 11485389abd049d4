"""Answers of constrained requests are valid, or the constraint is refused."""

from __future__ import annotations

from typing import Any

import jsonschema
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.emulator.instances import constrained_answer, instance_of, pieces_of

LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(lambda least: {"type": "string", "minLength": least}, st.integers(0, 9)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-99, 99),
        st.integers(0, 9),
    ),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.integers(-9, 9)),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(), min_size=1)),
    st.just({"type": ["boolean", "null"]}),
    st.just({"const": [1, {"a": None}]}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda properties: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:2],
                "additionalProperties": False,
            },
            st.dictionaries(st.text(max_size=4), inner, max_size=3),
        ),
        st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=6,
)


@given(SCHEMAS)
def test_instances_are_valid(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema).validate(instance_of(schema, schema))


def test_references_are_followed() -> None:
    schema = {"$defs": {"age": {"type": "integer", "minimum": 3}}, "$ref": "#/$defs/age"}
    assert instance_of(schema, schema) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"choice": [1]}},
        {"structured_outputs": {"json": {"type": "string", "pattern": "a"}}},
        {"structured_outputs": {"json": {"$ref": "#"}}},
        {"response_format": "json"},
    ],
)
def test_what_is_not_imitated_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        constrained_answer(fields, 0)


def test_answers_by_field() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    assert constrained_answer({}, 0) is None
    assert constrained_answer({"response_format": {"type": "text"}}, 0) is None
    assert constrained_answer({"structured_outputs": {"json": schema}}, 0) == '{"a":null}'
    as_text = {"json": orjson.dumps(schema).decode()}
    assert constrained_answer({"structured_outputs": as_text}, 0) == '{"a":null}'
    of_openai = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert constrained_answer({"response_format": of_openai}, 0) == '{"a":null}'
    choice = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert [constrained_answer(choice, number) for number in range(3)] == ["yes", "no", "yes"]


@given(st.text())
def test_the_pieces_of_an_answer_are_the_answer(answer: str) -> None:
    assert "".join(pieces_of(answer)) == answer
