"""Constraints in the fields of each engine's API, and what else a request then holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.engines.registry import ENGINES
from orchestrator.load.wire.constraint_fields import choice_grammar
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.constraint import Constraint, ConstraintForm, ConstraintKind
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings
from orchestrator.workloads.kind import Message, Prompt

SCHEMA = {"type": "object"}
CONSTRAINTS = {
    ConstraintKind.JSON_SCHEMA: Constraint(ConstraintKind.JSON_SCHEMA, schema=SCHEMA),
    ConstraintKind.REGEX: Constraint(ConstraintKind.REGEX, regex="[0-9]+"),
    ConstraintKind.CHOICE: Constraint(ConstraintKind.CHOICE, choices=("a.b", "c")),
}


def dialect_of(engine: str, api: str, **settings: Any) -> Dialect:
    return ENGINES[engine].dialects(EngineSettings(engine=engine, model="m", **settings))[api]


def body(dialect: Dialect, prompt: Prompt) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(WIRES[dialect.wire].body(prompt, 9, "m", dialect))
    return parsed


def constrained(dialect: Dialect, kind: ConstraintKind) -> dict[str, Any]:
    prompt = Prompt((Message("user", ("hi",), 1),), 1, constraint=CONSTRAINTS[kind])
    return body(dialect, prompt)


@pytest.mark.parametrize(
    ("engine", "api", "kind", "field", "value"),
    [
        ("vllm", "completions", "json_schema", "structured_outputs", {"json": SCHEMA}),
        ("vllm", "chat", "regex", "structured_outputs", {"regex": "[0-9]+"}),
        ("vllm", "chat", "choice", "structured_outputs", {"choice": ["a.b", "c"]}),
        (
            "sglang",
            "completions",
            "json_schema",
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        ),
        ("sglang", "chat", "regex", "regex", "[0-9]+"),
        ("sglang", "chat", "choice", "regex", r"(a\.b|c)"),
        ("llama_cpp", "chat", "json_schema", "json_schema", SCHEMA),
        ("llama_cpp", "completions", "choice", "grammar", 'root ::= "a.b" | "c"'),
        (
            "lmdeploy",
            "chat",
            "regex",
            "response_format",
            {"type": "regex_schema", "regex_schema": "[0-9]+"},
        ),
    ],
)
def test_a_constraint_stands_in_its_engines_field(
    engine: str, api: str, kind: str, field: str, value: object
) -> None:
    assert constrained(dialect_of(engine, api), ConstraintKind(kind))[field] == value


def test_signs_of_a_choice_that_a_grammar_has_for_itself_are_escaped() -> None:
    texts = ('quo"te', "back\\slash", "two\nlines", "bell\b\f", "ü [x]")
    literals = (r'"quo\"te"', r'"back\\slash"', r'"two\nlines"', r'"bell\x08\x0C"', '"ü [x]"')
    assert choice_grammar(texts) == f"root ::= {' | '.join(literals)}"


def test_tensorrt_llm_takes_constraints_once_it_has_a_backend() -> None:
    assert dialect_of("tensorrt_llm", "chat").constraints == {}
    dialect = dialect_of("tensorrt_llm", "chat", guided_decoding_backend="xgrammar")
    written = constrained(dialect, ConstraintKind.JSON_SCHEMA)["response_format"]
    assert written == {"type": "json", "schema": SCHEMA}
    written = constrained(dialect, ConstraintKind.CHOICE)["response_format"]
    assert written == {"type": "regex", "regex": r"(a\.b|c)"}


def test_apis_with_parameters_of_their_own_have_constraints_there() -> None:
    tgi = constrained(dialect_of("tgi", "tgi"), ConstraintKind.JSON_SCHEMA)
    assert tgi["parameters"]["grammar"] == {"type": "json", "value": SCHEMA}
    regex = constrained(dialect_of("tgi", "tgi"), ConstraintKind.REGEX)
    assert regex["parameters"]["grammar"] == {"type": "regex", "value": "[0-9]+"}
    native = constrained(dialect_of("sglang", "native"), ConstraintKind.JSON_SCHEMA)
    assert json.loads(native["sampling_params"]["json_schema"]) == SCHEMA


@pytest.mark.parametrize("api", ["completions", "chat", "tgi"])
def test_fields_of_a_prompt_replace_ours_and_null_removes_one(api: str) -> None:
    dialect = dialect_of("tgi" if api == "tgi" else "vllm", api)
    fields = {"temperature": 0.7, "max_new_tokens" if api == "tgi" else "max_tokens": None}
    written = body(dialect, Prompt((Message("user", ("hi",), 1),), 1, fields))
    parameters = written["parameters"] if api == "tgi" else written
    assert parameters["temperature"] == 0.7
    assert "max_new_tokens" not in parameters and "max_tokens" not in parameters


def test_every_form_that_a_dialect_names_can_be_written() -> None:
    written: set[ConstraintForm] = set()
    for name in ENGINES.names():
        settings = EngineSettings(engine=name, model="m", guided_decoding_backend="xgrammar")
        for dialect in ENGINES[name].dialects(settings).values():
            for kind, form in dialect.constraints.items():
                free = body(dialect, Prompt((Message("user", ("hi",), 1),), 1))
                assert constrained(dialect, kind) != free
                written.add(form)
    assert written == set(ConstraintForm)
