"""Every field that we send is one that the engine knows, by the fields recorded from its server.

Plans name all other fields of a workload's ``request``, since the engine would ignore them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from orchestrator.engines.command_lines import CommandLine, command_lines
from orchestrator.engines.registry import ENGINES
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.constraint import Constraint, ConstraintKind
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings
from orchestrator.workloads.entries import SAMPLING
from orchestrator.workloads.kind import Message, Prompt
from orchestrator.workloads.recorded_tools import TOOL_FIELDS

CONSTRAINTS = (
    Constraint(ConstraintKind.JSON_SCHEMA, schema={"type": "object"}),
    Constraint(ConstraintKind.REGEX, regex="a"),
    Constraint(ConstraintKind.CHOICE, choices=("a", "b")),
)
# what the lines of a prompt file may hold
SAMPLED = dict.fromkeys(SAMPLING, 0)
TOOLS = dict.fromkeys(TOOL_FIELDS, "auto")


class Requests(NamedTuple):
    """The requests of one API of one recorded release."""

    engine: str
    api: str
    command_line: CommandLine


RECORDED = [
    Requests(engine, api, command_line)
    for engine in sorted(ENGINES.shipped())
    for command_line in command_lines(engine)
    for api in command_line.request_fields
]


def sent_fields(dialect: Dialect) -> set[str]:
    """The fields of all bodies that the dialect has: from a line of a file, to an adapter,
    constrained, with tools.
    """
    message = Message("user", ("hi",), 1)
    line = SAMPLED | (TOOLS if dialect.tool_choices else {})
    prompts = [Prompt((message,), 1, line, adapter="a" if dialect.adapter_field else None)]
    for constraint in CONSTRAINTS:
        if constraint.kind in dialect.constraints:
            prompts.append(Prompt((message,), 1, constraint=constraint))
    fields: set[str] = set()
    for prompt in prompts:
        body: dict[str, Any] = json.loads(
            WIRES[dialect.wire].body(prompt, 9, "m", dialect.salted("s"))
        )
        fields |= body.keys()
    return fields


def test_the_fields_of_vllm_and_sglang_are_recorded_for_every_release_and_api() -> None:
    recorded = {(case.engine, case.command_line.version, case.api) for case in RECORDED}
    for engine in ("vllm", "sglang"):
        for command_line in command_lines(engine):
            for api in ("completions", "chat"):
                assert (engine, command_line.version, api) in recorded


@pytest.mark.parametrize(
    "case", RECORDED, ids=lambda case: f"{case.engine}-{case.command_line.version}-{case.api}"
)
def test_every_field_that_is_sent_is_one_that_the_engine_knows(case: Requests) -> None:
    settings = EngineSettings.model_validate(
        {"engine": case.engine, "model": "m", "extra_args": {"--enable-auto-tool-choice": True}}
    )
    dialect = ENGINES[case.engine].dialects(settings)[case.api]
    assert dialect.allowed_fields is None, "of an engine that refuses fields, its dialect has them"
    sent = sent_fields(dialect)
    assert len(sent) > 5
    assert sent - case.command_line.request_fields[case.api] == set()
