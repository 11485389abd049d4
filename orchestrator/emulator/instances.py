"""Answers of constrained requests: the smallest valid instance of a JSON schema, or one of the texts
of a choice. No model chooses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

MOST_DEPTH = 32
PIECE_CHARACTERS = 4  # of a token
# Keywords that narrow what is valid in ways that are not imitated here.
_NOT_IMITATED = (
    *("pattern", "format", "multipleOf", "not", "if", "allOf", "contains", "uniqueItems"),
    *(
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "minProperties",
    ),
)


def constrained_answer(fields: Mapping[str, Any], choice_number: int) -> str | None:
    """The answer that a request's ``structured_outputs`` or ``response_format`` demands; None
    where it demands none. ``choice_number``: says which text of a choice. Raises ValueError for a
    constraint that is not imitated.
    """
    outputs = fields.get("structured_outputs") or {}
    response_format = fields.get("response_format") or {}
    if not isinstance(outputs, dict) or not isinstance(response_format, dict):
        raise ValueError("structured_outputs and response_format are objects")
    if outputs.get("choice"):
        choices: list[str] = outputs["choice"]
        if not all(isinstance(choice, str) for choice in choices):
            raise ValueError("a choice is among texts")
        return choices[choice_number % len(choices)]
    if outputs.get("json") is not None:
        schema = outputs["json"]
        return _instance_text(orjson.loads(schema) if isinstance(schema, str) else schema)
    if outputs:
        raise ValueError("the emulator constrains answers by json or choice only")
    if response_format.get("type") == "json_schema":
        named = response_format.get("json_schema") or {}
        return _instance_text(named.get("schema") or {})
    return None


def pieces_of(answer: str) -> tuple[str, ...]:
    """An answer as the texts of its tokens."""
    starts = range(0, len(answer), PIECE_CHARACTERS)
    return tuple(answer[start : start + PIECE_CHARACTERS] for start in starts)


def _instance_text(schema: Any) -> str:
    return orjson.dumps(instance_of(schema, schema)).decode()


def instance_of(schema: Any, root: Any, depth: int = 0) -> Any:
    """The smallest instance of a schema. ``root``: the whole schema, which references are into.
    Raises ValueError for keywords that are not imitated.
    """
    if schema is True:
        return {}
    if not isinstance(schema, dict) or depth > MOST_DEPTH:
        raise ValueError("the emulator makes no instance of this schema")
    for keyword in _NOT_IMITATED:
        if keyword in schema:
            raise ValueError(f"the emulator makes no instances of schemas with {keyword!r}")
    if "$ref" in schema:
        return instance_of(_referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return instance_of(schema[keyword][0], root, depth + 1)
    return _instance_of_type(schema, root, depth)


def _instance_of_type(schema: Mapping[str, Any], root: Any, depth: int) -> Any:
    wanted = schema.get("type", "object")
    if isinstance(wanted, list):
        wanted = wanted[0]
    match wanted:
        case "object":
            properties = schema.get("properties", {})
            names = schema.get("required", [])
            return {
                name: instance_of(properties.get(name, True), root, depth + 1) for name in names
            }
        case "array":
            items = schema.get("items", True)
            item = instance_of(items, root, depth + 1) if schema.get("minItems") else None
            return [item] * schema.get("minItems", 0)
        case "string":
            return "x" * schema.get("minLength", 0)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case _:
            return None


def _number(schema: Mapping[str, Any]) -> float:
    """0 where it is valid, else the valid whole number nearest to it."""
    lowest = schema.get("minimum", float("-inf"))
    if "exclusiveMinimum" in schema:
        lowest = max(lowest, schema["exclusiveMinimum"] + 1)
    highest = schema.get("maximum", float("inf"))
    if "exclusiveMaximum" in schema:
        highest = min(highest, schema["exclusiveMaximum"] - 1)
    number: float = min(max(0, lowest), highest)
    return number


def _referred(reference: Any, root: Any) -> Any:
    """The part of a schema that a reference like ``#/$defs/name`` names."""
    part = root
    for key in str(reference).removeprefix("#").strip("/").split("/"):
        if key:
            part = part[key]
    return part
