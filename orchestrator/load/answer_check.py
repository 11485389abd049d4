"""Whether an answer is what its request constrained it to be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic_core import from_json

from orchestrator.results.outcomes import is_cut_end
from orchestrator.spec.constraint import Constraint, ConstraintKind


@dataclass(frozen=True, slots=True)
class ConstrainedAnswer:
    """An answer that is to be checked. ``constraint``: the number of its constraint."""

    constraint: int
    text: str
    finish_reason: str | None


class AnswerCheck:
    """Checks the answers of one constraint."""

    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._is_valid = _validity_of(constraint)

    def met(self, answer: str, finish_reason: str | None) -> bool | None:
        """Whether an answer is what it had to be. None for an answer that was cut at its length
        limit and may have become valid.
        """
        if self._is_valid(answer):
            return True
        if finish_reason is None or not is_cut_end(finish_reason):
            return False
        return None if self._may_become_valid(answer) else False

    def _may_become_valid(self, answer: str) -> bool:
        """Whether some continuation of an answer may be valid. False only where none is."""
        match self._constraint.kind:
            case ConstraintKind.JSON_SCHEMA:
                return _begins_instance(answer, self._constraint.schema.get("type"))
            case ConstraintKind.CHOICE:
                return any(choice.startswith(answer) for choice in self._constraint.choices)
            case ConstraintKind.REGEX:
                return True  # the standard library does not match a beginning


def _validity_of(constraint: Constraint) -> Callable[[str], bool]:
    """A function that tells whether an answer meets a constraint."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return _instance_test(constraint)
        case ConstraintKind.REGEX:
            pattern = re.compile(constraint.regex)
            return lambda answer: pattern.fullmatch(answer) is not None
        case ConstraintKind.CHOICE:
            return frozenset(constraint.choices).__contains__


def _instance_test(constraint: Constraint) -> Callable[[str], bool]:
    """A function that tells whether an answer is JSON and an instance of a schema. References to
    other documents are never fetched.
    """
    import jsonschema  # takes 0.1 s, and few points need it
    import referencing

    schema = dict(constraint.schema)
    validator_class = jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )
    validator = validator_class(schema, registry=referencing.Registry())

    def is_instance(answer: str) -> bool:
        try:
            value = orjson.loads(answer)
        except orjson.JSONDecodeError:
            return False
        try:
            return bool(validator.is_valid(value))
        except RecursionError:  # a schema that refers to itself, and an answer as deep
            return False

    return is_instance


_ENDS_TOO_EARLY = "EOF while parsing"  # how pydantic_core reports a beginning of a scalar
_JSON_TYPES: dict[str, type] = {  # a schema's type -> the Python type of its values
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def _begins_instance(answer: str, schema_type: Any) -> bool:
    """Whether a text may be the beginning of a JSON document of a schema's ``type``.

    Where the schema allows several types, any, or numbers, every JSON document counts.
    """
    try:
        beginning = from_json(answer, allow_partial="trailing-strings")
    except ValueError as error:
        return str(error).startswith(_ENDS_TOO_EARLY)
    if not isinstance(schema_type, str) or schema_type not in _JSON_TYPES:
        return True
    return isinstance(beginning, _JSON_TYPES[schema_type])
