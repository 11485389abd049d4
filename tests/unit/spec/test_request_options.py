"""Constraints, tools and further fields of requests, as an experiment file gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.base.errors import ProblemsError
from orchestrator.spec.assumptions import ANSWER_LENGTHS, Assumptions
from orchestrator.spec.load import Workload
from orchestrator.spec.request_options import schema_problem

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
BASE = {"name": "w", "input_tokens": 9, "output_tokens": 9}


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def workload(**keys: Any) -> Workload:
    return Workload.model_validate({**BASE, **keys})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"constrain": {}}, "give one of: json_schema, regex, choice"),
        ({"constrain": {"regex": "a", "choice": ["a"]}}, "give one of"),
        ({"constrain": {"regex": "("}}, "is no regular expression"),
        ({"constrain": {"choice": ["a", "a"]}}, "names a text twice"),
        ({"constrain": {"choice": []}}, "at least 1 item"),
        ({"constrain": {"regex": "a", "variants": 2}}, "'variants' are of a json_schema"),
        ({"constrain": {"regex": "a", "share": 1.5}}, "less than or equal to 1"),
        ({"tool_choice": "auto"}, "'tool_choice' needs 'tools'"),
        ({"tools": [TOOL]}, "'tools' are sent to the API 'chat' only"),
        (
            {
                "api": "chat",
                "tools": [TOOL],
                "tool_choice": "required",
                "constrain": {"regex": "a"},
            },
            "cannot be constrained otherwise",
        ),
        ({"request": {"max_tokens": 3}}, "'output_tokens' says how long answers are"),
        ({"request": {"guided_json": {}}}, "give 'constrain'"),
        ({"request": {"stream_options": {}, "model": "m"}}, "every answer is streamed"),
        ({"request": {"x": nested(101)}}, "nested too deeply"),
        ({"request": {"x": [float("nan")]}}, "has a number that JSON does not have"),
        ({"request": {"x": 10**30}}, "cannot be sent as JSON: Integer exceeds 64-bit range"),
    ],
)
def test_what_cannot_be_asked_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        workload(**keys)


def test_a_plan_holds_schema_and_tools_themselves(tmp_path: Path) -> None:
    (tmp_path / "person.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [TOOL]}))
    asked = workload(api="chat", constrain={"json_schema": "person.json"}, tools="tools.json")
    found = asked.with_files(lambda path: str(tmp_path / path))
    assert found.constrain is not None
    assert found.constrain.json_schema == SCHEMA
    assert found.tools == (TOOL,)
    again = Workload.model_validate_json(found.model_dump_json())
    assert again == found
    assert again.with_files(str) == found  # a plan that is read again has no files to find
    inline = workload(api="chat", constrain={"json_schema": SCHEMA}, tools=[TOOL])
    assert inline.with_files(str).identity() == found.identity()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"type": "objekt"}', "is no JSON schema at type"),
        ('{"properties": {"a": {"$ref": "http://x/y.json"}}}', "refers to 'http://x/y.json'"),
        ('{"prefixItems": [{"$ref": "other.json"}]}', "refers to 'other.json'"),
        ('{"items": {"$ref": "#/definitions/gone"}}', "refers to '#/definitions/gone'"),
        ('{"$dynamicRef": "http://x/y.json"}', "refers to 'http://x/y.json'"),
        ('{"$ref": "#"}', "refers to itself without end"),
        ('{"not": ' * 3_000 + "{}" + "}" * 3_000, "is not JSON: depth limit exceeded"),
        ('{"not": ' * 200 + "{}" + "}" * 200, "is nested too deeply"),
        ('{"const": "\\ud800"}', "is not JSON"),
        ('{"const": NaN}', "is not JSON"),
    ],
)
def test_a_schema_that_answers_cannot_be_checked_against_is_refused(
    tmp_path: Path, content: str, problem: str
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(content)
    with pytest.raises(ProblemsError, match=problem) as raised:
        workload(constrain={"json_schema": str(file)}).with_files(str)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "http://x/a", "$defs": {"b": {}}}}},
        {"enum": [{"$ref": "http://x/y.json"}]},
        {"properties": {"$ref": {"type": "string"}}},
    ],
)
def test_a_schema_that_holds_all_its_parts_is_taken(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None


def test_a_schema_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "object"}', "utf-8-sig")
    asked = workload(constrain={"json_schema": "s.json"})
    found = asked.with_files(lambda path: str(tmp_path / path))
    assert found.constrain is not None
    assert found.constrain.json_schema == {"type": "object"}


def test_a_file_that_is_not_there_is_a_problem() -> None:
    with pytest.raises(ProblemsError, match=r"/none\.json.*No such file"):
        workload(constrain={"json_schema": "/none.json"}).with_files(str)


def test_a_constraint_of_no_request_keeps_nobody_from_simulating() -> None:
    of_none = workload(constrain={"regex": "a", "share": 0})
    assert of_none.constraint_kinds() == frozenset()
    assert of_none.known_to_engines_only() is None
    of_some = workload(constrain={"regex": "a", "share": 0.1})
    assert of_some.known_to_engines_only() is ANSWER_LENGTHS
    assumed = Assumptions(constrained_answers="asked")
    assert of_some.known_to_engines_only(assumed) is None


def test_tools_are_checked_each() -> None:
    bad = {"name": "get_weather"}
    with pytest.raises(ProblemsError, match="tool 2"):
        workload(api="chat", tools=[TOOL, bad]).with_files(str)
    with pytest.raises(ValueError, match="none of the tools"):
        workload(api="chat", tools=[TOOL], tool_choice={"name": "other"}).with_files(str)


def test_workloads_without_options_keep_their_identity() -> None:
    assert {"constrain", "tools", "tool_choice", "request"}.isdisjoint(workload().identity())
    assert workload(request={"top_p": 0.9}).identity()["request"] == {"top_p": 0.9}
