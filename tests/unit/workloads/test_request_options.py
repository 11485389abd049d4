"""Which requests of a workload are constrained, and what they carry."""

from __future__ import annotations

from typing import Any

from orchestrator.spec.load import Workload
from orchestrator.workloads.kind import Message, Prompt
from orchestrator.workloads.request_options import RequestOptions, options_of

PROMPT = Prompt((Message("user", ("hi",), 1),), 1)
SCHEMA = {"type": "object", "description": "a person"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}


def options(seed: int = 0, **keys: Any) -> RequestOptions:
    asked = Workload.model_validate({"name": "w", "input_tokens": 9, "output_tokens": 9, **keys})
    found = options_of(asked, seed)
    assert found is not None
    return found


def test_a_plain_workload_has_no_options() -> None:
    plain = Workload.model_validate({"name": "w", "input_tokens": 9, "output_tokens": 9})
    assert options_of(plain, 0) is None


def test_the_share_of_constrained_requests_is_drawn_alike_everywhere() -> None:
    half = options(constrain={"regex": "a", "share": 0.25})
    drawn = [half.constraint(session, 0) is not None for session in range(4000)]
    assert 0.22 < sum(drawn) / len(drawn) < 0.28  # four standard deviations
    again = options(constrain={"regex": "a", "share": 0.25})
    assert drawn == [again.constraint(session, 0) is not None for session in range(4000)]
    other = options(seed=1, constrain={"regex": "a", "share": 0.25})
    assert drawn != [other.constraint(session, 0) is not None for session in range(4000)]


def test_shares_of_none_and_all() -> None:
    none = options(constrain={"regex": "a", "share": 0})
    assert {none.constraint(session, 0) for session in range(99)} == {None}
    every = options(constrain={"regex": "a"})
    assert None not in {every.constraint(session, turn) for session in range(99) for turn in (0, 1)}


def test_variants_differ_in_their_description_alone() -> None:
    varied = options(constrain={"json_schema": SCHEMA, "variants": 3})
    schemas = [dict(constraint.schema) for constraint in varied.constraints]
    assert [schema.pop("description") for schema in schemas] == [
        "a person (variant 1 of 3)",
        "a person (variant 2 of 3)",
        "a person (variant 3 of 3)",
    ]
    assert schemas == [{"type": "object"}] * 3
    drawn = [varied.constraint(session, 0) for session in range(99)]
    assert {id(constraint) for constraint in drawn} == {id(own) for own in varied.constraints}


def test_constrained_requests_end_naturally_and_free_ones_do_not() -> None:
    every = options(constrain={"regex": "a"}).added(PROMPT, 0, 0)
    assert every.ends_naturally and every.constraint is not None
    none = options(constrain={"regex": "a", "share": 0}).added(PROMPT, 0, 0)
    assert not none.ends_naturally and none.constraint is None


def test_fields_of_a_line_come_after_those_of_the_workload() -> None:
    of_a_line = Prompt(PROMPT.messages, 1, {"temperature": 1})
    added = options(request={"temperature": 0.5, "top_p": 0.9}).added(of_a_line, 0, 0)
    assert added.fields == {"temperature": 1, "top_p": 0.9}
    assert added.tokens == 1


def test_tools_are_sent_with_their_choice_and_make_the_length_unknown() -> None:
    auto = options(api="chat", tools=[TOOL]).added(PROMPT, 0, 0)
    assert auto.fields == {"tools": [TOOL]}
    assert auto.tokens == 0 and not auto.ends_naturally
    named = options(api="chat", tools=[TOOL], tool_choice={"name": "get_weather"})
    choice = named.added(PROMPT, 0, 0)
    assert choice.fields["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert choice.ends_naturally
