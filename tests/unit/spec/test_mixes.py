"""Mixes in an experiment file: parts by name, and what keeps a workload from being one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.plan.make import load_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.mixes import measured
from orchestrator.workloads.mix import MixWorkload

HEAD = """\
version: 1
name: x
model: org/m
deployments: {engine: emulator, hardware: cpu}
load: {levels: {request_rate: [1]}}
workloads:
  - {name: chat, kind: conversations, turns: 2, input_tokens: 5, output_tokens: 5}
  - {name: rag, input_tokens: 5, output_tokens: 5}
"""
MIX = "  - {name: office, kind: mix, parts: [{weight: 3, workload: chat}, {workload: rag}]}\n"


def problems(text: str) -> list[tuple[int | None, str, str | None]]:
    with pytest.raises(ProblemsError) as error:
        parse_experiment(text)
    return [(problem.line, problem.message, problem.hint) for problem in error.value.problems]


def test_parts_are_workloads_of_the_file_and_are_not_measured_alone(tmp_path: Path) -> None:
    workloads = parse_experiment(HEAD + MIX).parts["workloads"]
    assert [workload.name for workload in measured(workloads)] == ["office"]
    file = tmp_path / "x.yaml"
    file.write_text(HEAD + MIX)
    plan = load_plan(file)
    again = Plan.from_json(plan.to_json())
    assert [point.workload.name for point in again.points] == ["office"]
    workload = again.points[0].workload
    assert isinstance(workload, MixWorkload)
    assert [content.name for content in workload.contents] == ["chat", "rag"]
    assert workload.shares == {"chat": 0.75, "rag": 0.25}
    assert any("its parts are not measured alone" in note for note in plan.notes)


def test_a_part_that_is_a_name_alone_is_refused_with_what_to_write() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse_experiment(HEAD + "  - {name: office, kind: mix, parts: [chat, rag]}\n")
    messages = [problem.message for problem in caught.value.problems]
    like = "a mapping, like {weight: 1, workload: chat}"
    assert messages == [
        f"entry 1 of 'parts' must be {like}, not 'chat'",
        f"entry 2 of 'parts' must be {like}, not 'rag'",
    ]


def test_the_api_of_a_mix_is_that_of_its_parts() -> None:
    of_chat = HEAD.replace("output_tokens: 5}", "output_tokens: 5, api: chat}")
    assert parse_experiment(of_chat + MIX).parts["workloads"][2].api == "chat"
    other_api = MIX.replace("kind: mix", "kind: mix, api: chat")
    assert problems(HEAD + other_api) == [
        (
            9,
            "the API of 'office' is 'chat', and that of its parts 'completions'",
            "leave 'api' out of the mix",
        )
    ]
    two_apis = HEAD.replace("turns: 2", "turns: 2, api: chat")
    assert problems(two_apis + MIX) == [
        (
            9,
            "the parts of a mix have one API, and here they have chat (chat), completions (rag)",
            "give these workloads the same 'api'",
        )
    ]


def test_all_parts_that_cannot_be_mixed_are_reported_with_their_lines() -> None:
    text = (
        HEAD
        + """\
  - {name: "a, b", input_tokens: 5, output_tokens: 5}
  - name: office
    kind: mix
    parts:
      - {workload: caht}
      - {workload: office}
      - {workload: rag}
      - {workload: rag}
      - {workload: "a, b"}
"""
    )
    assert problems(text) == [
        (13, "unknown workload 'caht'", "did you mean 'chat'?"),
        (
            14,
            "'office' cannot be a part of a mix: it is a mix itself",
            "measure it as a workload of its own",
        ),
        (16, "'rag' is a part twice", "add its weights together"),
        (
            17,
            "'a, b' is no name for a part: limits are written as NAME:ttft<=500ms",
            "name the workload with letters, digits, '_', '.' and '-'",
        ),
    ]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("{weight: 0, workload: rag}", "'weight' must be above 0, not 0"),
        ("{weight: 1}", "'workload' is missing"),
        ("{workload: rag, content: {name: rag}}", "unknown key 'content'"),
    ],
)
def test_a_part_has_a_weight_and_a_workload(part: str, message: str) -> None:
    text = HEAD + f"  - {{name: m, kind: mix, parts: [{{workload: chat}}, {part}]}}\n"
    assert [found[1] for found in problems(text)] == [message]


def test_a_mix_has_several_parts() -> None:
    (problem,) = problems(HEAD + "  - {name: m, kind: mix, parts: [{workload: chat}]}\n")
    assert "parts" in problem[1]


SLOS = "slos:\n  office:\n    parts:\n      chat: {ttft: 500ms}\n      rga: {ttft: 2s}\n"


def plan_problems(text: str, tmp_path: Path) -> list[tuple[int | None, str, str | None]]:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ProblemsError) as error:
        load_plan(file)
    return [(problem.line, problem.message, problem.hint) for problem in error.value.problems]


def test_limits_on_parts_that_no_mix_has_are_refused_with_their_line(tmp_path: Path) -> None:
    assert plan_problems(HEAD + MIX + SLOS, tmp_path) == [
        (14, "'office' has no part 'rga'", "did you mean 'rag'?")
    ]
    assert plan_problems(HEAD + SLOS, tmp_path)[0] == (
        12,
        "'chat' has no part 'chat'",
        "measure it in an experiment of its own",
    )


def test_a_reader_of_a_part_is_a_limit_on_its_tpot(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    slos = SLOS.replace("rga: {ttft: 2s}", "rag: {reader: visual, attainment: 0.5}")
    file.write_text(HEAD + MIX + slos)
    (slo,) = load_plan(file).slos
    assert [(limit.name, limit.part) for limit in slo.limits] == [
        ("chat:ttft", "chat"),
        ("rag:tpot", "rag"),
    ]
    assert [slo.to_meet(limit) for limit in slo.limits] == [0.95, 0.5]
    assert any(
        note.startswith("office, rag: a reader, visual, is") for note in load_plan(file).notes
    )


@pytest.mark.parametrize(
    ("slos", "message"),
    [
        ("{a: {parts: {}}}", "'parts' has no part"),
        ("{a: {parts: {chat: {attainment: 0.9}}}}", "part 'chat' has no limit"),
        (
            "{a: {ttft: 1s, parts: {chat: {ttft: 1s}}}}",
            "limits of parts and limits on all requests are two SLOs",
        ),
        ("{a: {parts: {chat: {tfft: 1s}}}}", "unknown key 'tfft'"),
        ("{a: {parts: {chat: {ttft: 1}}}}", "'ttft': 1 is not a duration with its unit"),
    ],
)
def test_limits_on_parts_are_checked_as_others_are(slos: str, message: str) -> None:
    assert message in problems(HEAD + MIX + f"slos: {slos}\n")[0][1]
