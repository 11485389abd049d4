"""Every field that we send is one that the engine reads, by the fields recorded from its server.

Plans name all other fields of a workload's ``request`` and of the lines of a prompt file, since the
engine would ignore them, or refuse the request.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from orchestrator.engines.command_lines import CommandLine, command_lines
from orchestrator.engines.registry import ENGINES
from orchestrator.load.wire.wires import WIRES
from orchestrator.plan.request_options import options_mismatch
from orchestrator.spec.constraint import Constraint, ConstraintKind
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Workload
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
TOOLS = dict.fromkeys(TOOL_FIELDS, "auto")
# A line may have it, and an engine that ignores it may call more tools in one answer than recorded.
HINT = "parallel_tool_calls"


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
    """The fields of all bodies that the dialect has: to an adapter, constrained, with tools. Of the
    native APIs of TGI and SGLang those within ``parameters`` and ``sampling_params``.
    """
    message = Message("user", ("hi",), 1)
    line = TOOLS if dialect.tool_choices else {}
    prompts = [Prompt((message,), 1, line, adapter="a" if dialect.adapter_field else None)]
    for constraint in CONSTRAINTS:
        if constraint.kind in dialect.constraints:
            prompts.append(Prompt((message,), 1, constraint=constraint))
    fields: set[str] = set()
    for prompt in prompts:
        body: dict[str, Any] = json.loads(
            WIRES[dialect.wire].body(prompt, 9, "m", dialect.salted("s"))
        )
        fields |= body.get("parameters", body.get("sampling_params", body)).keys()
    return fields


def test_the_fields_of_every_engine_are_recorded_or_those_that_it_does_not_refuse() -> None:
    recorded = {(case.engine, case.command_line.version, case.api) for case in RECORDED}
    for engine in ("vllm", "sglang", "tgi", "lmdeploy", "lightllm", "llama_cpp"):
        for command_line in command_lines(engine):
            for api in ("completions", "chat"):
                assert (engine, command_line.version, api) in recorded
    for engine in ("transformers", "tensorrt_llm"):
        settings = EngineSettings.model_validate({"engine": engine, "model": "m"})
        for dialect in ENGINES[engine].dialects(settings).values():
            assert dialect.allowed_fields


def _id(case: Requests) -> str:
    return f"{case.engine}-{case.command_line.version}-{case.api}"


@pytest.mark.parametrize("case", RECORDED, ids=_id)
def test_every_field_that_is_sent_is_one_that_the_engine_knows(case: Requests) -> None:
    settings = EngineSettings.model_validate(
        {"engine": case.engine, "model": "m", "extra_args": {"--enable-auto-tool-choice": True}}
    )
    dialect = ENGINES[case.engine].dialects(settings)[case.api]
    assert dialect.allowed_fields is None, "of an engine that refuses fields, its dialect has them"
    sent = sent_fields(dialect)
    assert len(sent) > 2
    assert sent - case.command_line.request_fields[case.api] - {HINT} == set()


@pytest.mark.parametrize("case", RECORDED, ids=_id)
def test_sampling_that_the_engine_ignores_is_named_by_plan(case: Requests) -> None:
    stated = {"engine": case.engine, "model": "m", "engine_version": case.command_line.version}
    settings = EngineSettings.model_validate(stated)
    engine = ENGINES[case.engine]
    named: set[str] = set()
    for field_name in SAMPLING:
        asked = Workload.model_validate(
            {"name": "w", "input_tokens": 9, "output_tokens": 9, "api": case.api}
            | {"request": {field_name: 1}}
        )
        finding = options_mismatch(asked, engine, settings, engine.dialects(settings))
        if finding is not None:
            assert f"asks for {field_name}, which the API {case.api!r} of" in finding.sentence
            named.add(field_name)
    assert named == set(SAMPLING) - case.command_line.request_fields[case.api]
