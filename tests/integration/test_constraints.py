"""Constrained requests from end to end: sent, answered by an emulator, checked, judged. One that
ignores constraints is found out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.harness import AGAINST_THE_CLOCK, orchestrator, rows
from tests.integration.test_emulator_server import Server, emulator, wait_until
from tests.integration.test_load_cli import load, url

# that points are valid is asked of a machine that other tests keep busy
pytestmark = AGAINST_THE_CLOCK

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3},
        "age": {"type": "integer", "minimum": 18},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PERSON}}


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    with emulator(tmp_path, *getattr(request, "param", ())) as started:
        wait_until(lambda: started.log.read_text().count("http") > 0)
        yield started


def measured(server: Server, folder: Path, *options: str, **keys: Any) -> dict[str, Any]:
    """The level of one point of 40 requests, as JSON."""
    file = folder / "workloads.yaml"
    workload = {"name": "w", "input_tokens": 20, "output_tokens": 40, **keys}
    file.write_text(json.dumps({"workloads": [workload]}))
    ended = load(
        url(server.port),
        *("--model", "m", "--workload", str(file), "--concurrency", "4", "--requests", "40"),
        *("--seed", "1", "--format", "json", "--results", str(folder / "results"), *options),
    )
    assert ended.returncode in (0, 3), ended.stderr
    level: dict[str, Any] = json.loads(ended.stdout)
    return level


def test_half_of_the_answers_are_constrained_and_all_of_these_are_valid(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    constrain = {"json_schema": "person.json", "share": 0.5, "variants": 3}
    level = measured(server, tmp_path, api="chat", constrain=constrain)
    assert level["validity"] == "valid"
    requests = rows(tmp_path / "results", "requests")
    constrained = [row for row in requests if row["constraint"] == "json_schema"]
    free = [row for row in requests if row["constraint"] is None]
    assert len(constrained) + len(free) == 40
    assert 8 < len(constrained) < 32
    assert {row["constraint_met"] for row in constrained} == {True}
    assert {row["finish_reason"] for row in constrained} == {"stop"}
    assert {row["output_tokens"] for row in constrained} == {6}  # {"name":"xxx","age":18}
    assert {(row["constraint_met"], row["output_tokens"]) for row in free} == {(None, 40)}
    (point,) = rows(tmp_path / "results", "points")
    assert point["constrained_share"] == len(constrained) / 40
    assert (point["constraint_violations"], point["constraint_cut_share"]) == (0, 0.0)
    assert point["constrained_ttft_ms"] > 0 and point["free_tpot_ms"] > 0
    told = orchestrator("results", str(tmp_path / "results")).stdout
    assert f"constrained: {point['constrained_share']:.1%} of requests, 0 violations" in told
    assert "beside the free ones, by medians: TTFT" in told


@pytest.mark.parametrize("server", [("--fault", "ignore_constraints")], indirect=True)
def test_a_server_that_ignores_constraints_is_found_out(server: Server, tmp_path: Path) -> None:
    level = measured(server, tmp_path, constrain={"json_schema": PERSON, "share": 0.5})
    assert level["validity"] == "invalid"
    assert level["validity_reasons"][0].startswith("the constraint was not applied: 100.0%")
    met = {
        (row["constraint"], row["constraint_met"]) for row in rows(tmp_path / "results", "requests")
    }
    assert met == {("json_schema", False), (None, None)}


def test_answers_that_are_cut_are_neither_valid_nor_violations(
    server: Server, tmp_path: Path
) -> None:
    level = measured(server, tmp_path, output_tokens=3, constrain={"json_schema": PERSON})
    assert level["validity"] == "valid"
    assert {row["constraint_met"] for row in rows(tmp_path / "results", "requests")} == {None}
    assert any("were cut at their output_tokens" in reason for reason in level["validity_reasons"])


def test_the_parts_of_a_mix_have_constraints_of_their_own(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mix.yaml"
    lengths = {"input_tokens": 20, "output_tokens": 40}
    workloads = [
        {"name": "chosen", **lengths, "constrain": {"choice": ["yes", "no"]}},
        {"name": "free", **lengths},
        {
            "name": "both",
            "kind": "mix",
            "parts": [{"workload": "chosen"}, {"workload": "free"}],
        },
    ]
    file.write_text(json.dumps({"workloads": workloads}))
    ended = load(
        url(server.port),
        *("--model", "m", "--workload", f"{file}:both", "--concurrency", "4", "--requests", "40"),
        *("--seed", "1", "--results", str(tmp_path / "results")),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    by_part = {
        (row["part"], row["constraint"], row["constraint_met"])
        for row in rows(tmp_path / "results", "requests")
    }
    assert by_part == {("chosen", "choice", True), ("free", None, None)}


def test_what_the_emulator_has_no_field_for_is_refused(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "workloads.yaml"
    workload = {
        "name": "w",
        "input_tokens": 20,
        "output_tokens": 40,
        "constrain": {"regex": "[0-9]+"},
    }
    file.write_text(json.dumps({"workloads": [workload]}))
    ended = load(
        url(server.port), "--model", "m", "--workload", str(file), "--rate", "9", "--requests", "9"
    )
    assert ended.returncode == 2
    assert "no field that is known for a regex (known: json_schema, choice)" in ended.stderr


def test_tools_are_read_by_the_model(server: Server, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps([TOOL]))
    with_tools = {"api": "chat", "tools": "tools.json", "tool_choice": "auto"}
    measured(server, tmp_path, **with_tools, request={"temperature": 0.7, "top_k": 5})
    asked = {
        (row["input_tokens_asked"], row["output_tokens"])
        for row in rows(tmp_path / "results", "requests")
    }
    assert asked == {(0, 40)}
    tokens = [row["input_tokens"] for row in rows(tmp_path / "results", "requests")]
    assert min(tokens) > len(json.dumps([TOOL])) // 8


def test_a_recorded_session_of_an_agent_is_sent_as_it_was_recorded(
    server: Server, tmp_path: Path
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Rain in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain " * 40},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And in Rome?"},
    ]
    session = {"messages": messages, "tools": [TOOL]}
    (tmp_path / "agent.jsonl").write_text(json.dumps(session))
    (tmp_path / "w.yaml").write_text(
        "workloads: [{name: w, kind: file, api: chat, prompts: agent.jsonl, use: sessions, "
        "output_tokens: 30}]"
    )
    ended = load(
        *(url(server.port), "--model", "m", "--workload", str(tmp_path / "w.yaml")),
        *("--concurrency", "1", "--requests", "6", "--results", str(tmp_path / "results")),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    requests = sorted(
        rows(tmp_path / "results", "requests"), key=lambda row: (row["session"], row["turn"])
    )
    assert [(row["session"], row["turn"]) for row in requests] == [
        (session, turn) for session in range(2) for turn in range(3)
    ]
    tokens = [row["input_tokens"] for row in requests]
    assert tokens[0] > len(json.dumps([TOOL])) // 8
    assert tokens[1] - tokens[0] > 40  # the call, and what the tool returned
    # the emulator's answers of 30 tokens are in no prompt, since sessions have the recorded ones
    assert 0 < tokens[2] - tokens[1] < 30
    assert tokens[3:] == tokens[:3]


def test_the_emulators_own_answers_are_instances(server: Server) -> None:
    body = {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 40,
        "structured_outputs": {"json": PERSON},
    }
    status, answer = server.send("POST", "/v1/completions", body)
    choice = json.loads(answer)["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "stop")
    jsonschema.Draft202012Validator(PERSON).validate(json.loads(choice["text"]))


def test_options_of_load_constrain_answers(server: Server, tmp_path: Path) -> None:
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    common = (
        *(url(server.port), "--model", "m", "--concurrency", "2", "--requests", "8"),
        *("--input-tokens", "20", "--output-tokens", "40"),
    )
    ended = load(*common, "--json-schema", str(tmp_path / "person.json"))
    assert ended.returncode == 0, ended.stderr
    assert "constrained: 100.0% of requests, 0 violations" in ended.stdout
    ended = load(*common, "--choice", "yes", "--choice", "no", "--format", "json")
    guidance = json.loads(ended.stdout)["guidance"]
    assert (guidance["constrained_share"], guidance["constraint_violations"]) == (1.0, 0)
    ended = load(*common, "--regex", "(", "--json-schema", "none.json")
    assert ended.returncode == 2
    assert "--regex: is no regular expression" in ended.stderr
