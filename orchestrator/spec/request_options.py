"""What requests ask for beside their prompts, as an experiment file says it of a workload: a
constraint on answers, tools, further fields of the body, and the LoRA adapter that answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.constraint import ConstraintKind
from orchestrator.spec.document import read_at_most, wrong
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.settings import AdapterName, OneLine, Strict, as_tuple

MOST_FILE_BYTES = 1_000_000  # of a schema, and of a file of tools: every request carries it
MOST_VARIANTS = 10_000
MOST_CHOICES = 1_000
MOST_LEVELS = 100  # of values within values; orjson and pydantic write about 250
TOO_DEEP = f"is nested too deeply: at most {MOST_LEVELS} levels are sent"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")  # keywords of JSON schemas
# Fields that a request has already, and what to give instead. "guided_*" stands for every field
# that begins with "guided_".
_PROMPT = "the workload says what is sent"
_LENGTH = "'output_tokens' says how long answers are"
_CONSTRAINT = "give 'constrain', so that answers are checked"
_STREAM = "every answer is streamed, with counts of its tokens"
_OWN_FIELDS = {
    "model": "every request goes to the model that is measured",
    "prompt": _PROMPT,
    "messages": _PROMPT,
    "inputs": _PROMPT,
    "input_ids": _PROMPT,
    "text": _PROMPT,
    "parameters": "its fields are given without it",
    "sampling_params": "its fields are given without it",
    "max_tokens": _LENGTH,
    "max_completion_tokens": _LENGTH,
    "max_new_tokens": _LENGTH,
    "min_tokens": _LENGTH,
    "min_new_tokens": _LENGTH,
    "ignore_eos": _LENGTH,
    "generation_config": _LENGTH,
    "stream*": _STREAM,
    "return_token_ids": _STREAM,
    "logprobs": "log-probabilities are asked for where they are compared",
    "n": "each request has one answer",
    "best_of": "each request has one answer",
    "echo": "each request has one answer",
    "cache_salt": "every attempt has a salt of its own",
    "tools": "give 'tools' as a key of the workload",
    "tool_choice": "give 'tool_choice' as a key of the workload",
    "response_format": _CONSTRAINT,
    "structured_outputs": _CONSTRAINT,
    "guided_*": _CONSTRAINT,
    "grammar": _CONSTRAINT,
    "json_schema": _CONSTRAINT,
    "regex": _CONSTRAINT,
    "ebnf": _CONSTRAINT,
}


# Fields of OpenAI's API that say something about a request and change no answer: a server that
# ignores them measures as one that reads them.
WITHOUT_ANY_ANSWER = frozenset({"metadata", "safety_identifier", "service_tier", "store", "user"})


def reason_to_refuse(field_name: str) -> str | None:
    """Why ``request`` may not have a field; None where it may."""
    for own_field, reason in _OWN_FIELDS.items():
        is_prefix = own_field.endswith("*")
        if field_name == own_field or (is_prefix and field_name.startswith(own_field[:-1])):
            return reason
    return None


def asks_for_more(field_name: str, value: Any) -> bool:
    """Whether a further field asks for what requests without it do not ask for. A null only removes
    a field, and a temperature of 0 is sent anyway.
    """
    is_greedy = field_name == "temperature" and value == 0
    return value is not None and not is_greedy


def _only_others(fields: dict[str, Any]) -> dict[str, Any]:
    """Checks that no field is one that requests have anyway."""
    reasons: list[str] = []
    for field_name in fields:
        reason = reason_to_refuse(field_name)
        if reason is not None:
            reasons.append(f"{field_name!r} is not a field to give: {reason}")
    if reasons:
        raise ValueError("; ".join(reasons))
    problem = json_problem(fields)
    if problem is not None:
        raise ValueError(problem)
    return fields


def _regex(pattern: str) -> str:
    """Checks that answers can be checked against a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


def _different(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(texts)) < len(texts):
        raise ValueError("names a text twice")
    return texts


Pattern = Annotated[str, Field(min_length=1, max_length=10_000), AfterValidator(_regex)]
Choices = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(as_tuple),
    Field(min_length=1, max_length=MOST_CHOICES),
    AfterValidator(_different),
]
RequestFields = Annotated[dict[str, Any], AfterValidator(_only_others)]
ToolList = Annotated[tuple[dict[str, Any], ...], BeforeValidator(as_tuple), Field(min_length=1)]


class Constrain(Strict):
    """``{json_schema: person.json, share: 0.5, variants: 16}`` | ``{regex: "[0-9]{4}"}`` |
    ``{choice: [yes, no]}``.
    """

    json_schema: OneLine | dict[str, Any] | None = Field(
        default=None,
        description="A JSON schema that answers must be instances of: a file, or the schema itself. "
        "A plan holds the schema itself.",
    )
    regex: Pattern | None = Field(
        default=None, description="A regular expression that the whole answer must match."
    )
    choice: Choices | None = Field(
        default=None, description="Texts; the whole answer must be one of them."
    )
    share: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="The share of requests that are constrained; the others are answered freely.",
    )
    variants: int = Field(
        default=1,
        ge=1,
        le=MOST_VARIANTS,
        description="The number of different schemas that are sent: the same schema, with another "
        "description each, so that an engine has to compile each of them.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in ConstraintKind if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of: {', '.join(ConstraintKind)}")
        if self.variants > 1 and self.json_schema is None:
            raise ValueError("'variants' are of a json_schema")
        return self

    @property
    def kind(self) -> ConstraintKind:
        """The kind that is given."""
        return next(kind for kind in ConstraintKind if getattr(self, kind) is not None)

    @property
    def schema_content(self) -> dict[str, Any]:
        """The schema itself; only of a workload whose files are found."""
        assert isinstance(self.json_schema, dict)
        return self.json_schema

    def with_schema(self, path: Callable[[str], str]) -> Self:
        """The same with the schema in place of its file, whose path ``path`` makes absolute. Raises
        ProblemsError for a file that cannot be read or holds no schema.
        """
        if self.json_schema is None:
            return self
        source = "json_schema"
        schema: Any = self.json_schema
        if isinstance(schema, str):
            file = path(schema)
            source = f"json_schema {file!r}"
            schema = _read_json(file, source)
        problem = schema_problem(schema)
        if problem is not None:
            raise ProblemsError([Problem(f"{source} {problem}")])
        return self.model_copy(update={"json_schema": schema})


class NamedTool(Strict):
    """``{name: get_weather}``: the answer must be a call of this tool."""

    name: str = Field(min_length=1, description="The name of a function of 'tools'.")


ToolChoiceKey = Literal["auto", "none", "required"] | NamedTool


def json_problem(value: Any) -> str | None:
    """Why a value cannot be a part of a request's body; None where it can."""
    values = [value]
    for _ in range(MOST_LEVELS):
        if any(isinstance(inner, float) and not math.isfinite(inner) for inner in values):
            return "has a number that JSON does not have: NaN, or an infinite one"
        values = [inner for outer in values for inner in _held_by(outer)]
    if values:
        return TOO_DEEP
    try:
        orjson.dumps(value)
    except TypeError as error:
        return f"cannot be sent as JSON: {error}"
    return None


def _held_by(value: Any) -> Iterable[Any]:
    """The values of a mapping or a list; none of other values."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def schema_problem(schema: Any) -> str | None:
    """Why answers cannot be checked against a schema; None where they can."""
    import jsonschema  # takes 0.1 s, and few experiments need it

    if not isinstance(schema, dict):
        return "is not a JSON object: give a schema like {type: object, properties: …}"
    problem = json_problem(schema)
    if problem is not None:
        return problem
    validator_class = jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )
    try:
        validator_class.check_schema(schema)
        lost = _lost_reference(schema, validator_class.META_SCHEMA["$schema"])
    except jsonschema.SchemaError as error:
        place = "/".join(str(part) for part in error.absolute_path)
        where = f" at {place}" if place else ""
        return f"is no JSON schema{where}: {error.message[:200]}"
    except RecursionError:
        return TOO_DEEP
    if lost is not None:
        return f"refers to {lost!r}: give a schema that holds all its parts ('#/…')"
    try:
        validator_class(schema).is_valid(None)
    except RecursionError:
        return "refers to itself without end: no answer could be checked against it"
    return None


def _lost_reference(schema: dict[str, Any], dialect: str) -> str | None:
    """A reference to what the schema does not hold, and what is never fetched; None where there is
    none. ``dialect``: the URI of the schema's dialect.
    """
    import referencing
    import referencing.exceptions
    import referencing.jsonschema

    root = referencing.jsonschema.specification_with(dialect).create_resource(schema)
    parts = [(root, referencing.Registry().resolver_with_root(root))]
    while parts:
        part, resolver = parts.pop()
        for keyword in _REFERENCES:
            reference = part.contents.get(keyword) if isinstance(part.contents, dict) else None
            if not isinstance(reference, str):
                continue
            try:
                resolver.lookup(reference)
            except referencing.exceptions.Unresolvable:
                return reference
        for inner in part.subresources():
            parts.append((inner, resolver.in_subresource(inner)))
    return None


def read_tools(tools: str | tuple[dict[str, Any], ...], path: Callable[[str], str]) -> ToolList:
    """The tools themselves, in place of a file with a JSON list of them. Raises ProblemsError for a
    file that cannot be read, and for tools that are not as OpenAI's API has them.
    """
    source = "tools"
    listed: Any = list(tools)
    if isinstance(tools, str):
        file = path(tools)
        source = f"tools {file!r}"
        listed = _read_json(file, source)
        if isinstance(listed, dict) and "tools" in listed:
            listed = listed["tools"]
    if not isinstance(listed, list) or not listed:
        raise ProblemsError([Problem(f"{source} is not a list of tools")])
    problem = json_problem(listed)
    if problem is not None:
        raise ProblemsError([Problem(f"{source} {problem}")])
    problems: list[Problem] = []
    for number, tool in enumerate(listed, start=1):
        if tool_name(tool) is None:
            problems.append(
                Problem(
                    f"{source}, tool {number}: give {{type: function, function: {{name: …, "
                    "parameters: …}}"
                )
            )
    if problems:
        raise ProblemsError(problems)
    return tuple(listed)


def tool_name(tool: Any) -> str | None:
    """The name of a tool's function; None for what is no tool."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        return None
    name = function.get("name")
    return name if isinstance(name, str) and name else None


def _read_json(file: str, source: str) -> Any:
    """The JSON value of a file. Raises ProblemsError."""
    try:
        text = read_at_most(Path(file), MOST_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ProblemsError([Problem(f"{source}: {error.strerror or error}")]) from None
    except UnicodeDecodeError:
        raise ProblemsError([Problem(f"{source} is not text")]) from None
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise ProblemsError([Problem(f"{source} is not JSON: {error}")]) from None


MOST_ADAPTERS = 10_000
AdapterNames = Annotated[
    tuple[AdapterName, ...],
    BeforeValidator(as_tuple),
    Field(min_length=1, max_length=MOST_ADAPTERS),
]


class Adapters(Strict):
    """The LoRA adapters that the sessions of a workload ask for. All requests of a session ask for
    the same one.
    """

    WANTED: ClassVar[str] = "{names: [sql, law], pick: {zipf: 1.5}, base_share: 0.2}"

    names: AdapterNames = Field(
        description=(
            "Names of the adapters, the most popular first. A deployment serves them by its setting "
            "`lora_modules`."
        )
    )
    pick: Popularity | None = Field(
        default=None,
        description="How popular each is, `{zipf: 1.5}`; without it all are equally popular.",
    )
    base_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of sessions that ask for no adapter but for the model itself.",
    )

    @model_validator(mode="after")
    def _different(self) -> Self:
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise wrong("names", f"{', '.join(twice)}: named twice", "name each adapter once")
        return self
