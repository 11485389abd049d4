"""What an answer must be: an instance of a JSON schema, a match of a regular expression, or one of
a few texts. How each API writes that stands in its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class ConstraintKind(StrEnum):
    """What a constraint is, as the key in an experiment file and as the column of ``requests``."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"


class ConstraintForm(StrEnum):
    """How an API takes a constraint (load/wire/constraint_fields.py writes each form)."""

    # vLLM: {"structured_outputs": {"json" | "regex" | "choice": …}}
    STRUCTURED_OUTPUTS = "structured_outputs"
    # OpenAI: {"response_format": {"type": "json_schema", "json_schema": {"name", "schema"}}}
    RESPONSE_FORMAT = "response_format"
    # TensorRT-LLM: {"response_format": {"type": "json", "schema"} | {"type": "regex", "regex"}}
    TYPED_RESPONSE_FORMAT = "typed_response_format"
    # LMDeploy: {"response_format": {"type": "regex_schema", "regex_schema"}}
    REGEX_SCHEMA = "regex_schema"
    # SGLang: {"regex": …}
    REGEX_FIELD = "regex_field"
    # llama.cpp: {"json_schema": …}
    SCHEMA_FIELD = "schema_field"
    # SGLang's own API: {"json_schema": "<the schema as text>"}
    SCHEMA_TEXT = "schema_text"
    # llama.cpp: {"grammar": "<GBNF>"}
    GBNF = "gbnf"
    # TGI: {"grammar": {"type": "json" | "regex", "value": …}}
    GRAMMAR = "grammar"


# What an API takes: the form of each kind of constraint that it has.
ConstraintForms = Mapping[ConstraintKind, ConstraintForm]
# Who decides whether the answer is a call of a tool. "named": it must be one certain tool.
ToolChoice = Literal["auto", "none", "required", "named"]


# without __eq__: requests share one object, so its identity tells constraints apart
@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """What one answer must be. Of ``schema``, ``regex`` and ``choices`` the one of its ``kind`` is
    given.
    """

    kind: ConstraintKind
    schema: Mapping[str, Any] = field(default_factory=dict)
    regex: str = ""
    choices: tuple[str, ...] = ()


def all_kinds(form: ConstraintForm) -> ConstraintForms:
    """The same form for every kind of constraint."""
    return dict.fromkeys(ConstraintKind, form)
