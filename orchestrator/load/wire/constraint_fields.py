"""The fields of a request that constrain its answer, in the form that its API takes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.spec.constraint import Constraint, ConstraintForm, ConstraintKind
from orchestrator.spec.dialect import Dialect
from orchestrator.workloads.kind import Prompt

SCHEMA_NAME = "answer"  # OpenAI's API wants a name for a schema; no server looks at it
# of GBNF's literals, which have not all escapes of JSON (src/llama-grammar.cpp: parse_char)
_GBNF_ESCAPES = str.maketrans(
    {chr(code): f"\\x{code:02X}" for code in range(32)}
    | {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
)
_SPECIAL = re.compile(r"[\\.^$*+?()\[\]{}|]")


def option_fields(prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    """What a prompt asks for beside its messages: its further fields, and those that constrain its
    answer.
    """
    fields = dict(prompt.fields)
    if prompt.constraint is not None:
        fields |= constraint_fields(prompt.constraint, dialect)
    return fields


def with_options(own: Mapping[str, Any], prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    """The parameters of an API that has them in an object of their own, with those of the prompt. A
    null among these removes one.
    """
    fields = {**own, **option_fields(prompt, dialect)}
    return {name: value for name, value in fields.items() if value is not None}


def constraint_fields(constraint: Constraint, dialect: Dialect) -> dict[str, Any]:
    """The fields for one constraint. Raises KeyError for a kind that the dialect does not have,
    which plans refuse.
    """
    form = dialect.constraints[constraint.kind]
    is_schema = constraint.kind is ConstraintKind.JSON_SCHEMA
    match form:
        case ConstraintForm.STRUCTURED_OUTPUTS:
            return {"structured_outputs": _structured_outputs(constraint)}
        case ConstraintForm.RESPONSE_FORMAT:
            named = {"name": SCHEMA_NAME, "schema": constraint.schema}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
        case ConstraintForm.TYPED_RESPONSE_FORMAT if is_schema:
            return {"response_format": {"type": "json", "schema": constraint.schema}}
        case ConstraintForm.TYPED_RESPONSE_FORMAT:
            return {"response_format": {"type": "regex", "regex": pattern_of(constraint)}}
        case ConstraintForm.REGEX_SCHEMA:
            pattern = pattern_of(constraint)
            return {"response_format": {"type": "regex_schema", "regex_schema": pattern}}
        case ConstraintForm.REGEX_FIELD:
            return {"regex": pattern_of(constraint)}
        case ConstraintForm.SCHEMA_FIELD:
            return {"json_schema": constraint.schema}
        case ConstraintForm.SCHEMA_TEXT:
            return {"json_schema": json.dumps(constraint.schema)}
        case ConstraintForm.GBNF:
            return {"grammar": choice_grammar(constraint.choices)}
        case ConstraintForm.GRAMMAR if is_schema:
            return {"grammar": {"type": "json", "value": constraint.schema}}
        case ConstraintForm.GRAMMAR:
            return {"grammar": {"type": "regex", "value": pattern_of(constraint)}}


def _structured_outputs(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return {"json": constraint.schema}
        case ConstraintKind.REGEX:
            return {"regex": constraint.regex}
        case ConstraintKind.CHOICE:
            return {"choice": list(constraint.choices)}


def pattern_of(constraint: Constraint) -> str:
    """The regular expression of a constraint; for a choice, one that matches each of its texts."""
    if constraint.kind is ConstraintKind.REGEX:
        return constraint.regex
    # not re.escape: it escapes blanks, too, which other dialects of expressions refuse
    texts = [_SPECIAL.sub(lambda match: "\\" + match[0], text) for text in constraint.choices]
    return f"({'|'.join(texts)})"


def choice_grammar(choices: tuple[str, ...]) -> str:
    """llama.cpp's grammar (GBNF) of a choice."""
    literals = [f'"{text.translate(_GBNF_ESCAPES)}"' for text in choices]
    return f"root ::= {' | '.join(literals)}"
