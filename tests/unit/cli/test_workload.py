"""``orchestrator workload``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.spec.constraint import Constraint, ConstraintKind
from orchestrator.spec.load import PRESETS
from orchestrator.workloads.content import Words
from orchestrator.workloads.entries import read_entry
from orchestrator.workloads.facts import facts_of
from orchestrator.workloads.file import FileWorkload
from tests.unit.cli.commands import invoke
from tests.unit.workloads import traces

JSON_SCHEMA, REGEX, CHOICE = ConstraintKind
FILE = """
workloads:
  - {name: talk, kind: conversations, turns: 2, input_tokens: 20, output_tokens: 7, api: chat}
  - {name: alone, input_tokens: 30, output_tokens: 9, shared_prefix_tokens: 10}
  - {name: code, input_tokens: 30, output_tokens: 9, content: {text: corpus.txt}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "x.yaml").write_text(FILE)
    (tmp_path / "corpus.txt").write_text("to be or not to be " * 10)
    return str(tmp_path / "x.yaml")


def test_all_workloads_are_shown(file: str) -> None:
    done = invoke("workload", "show", file, "--requests", "100")
    assert done.status == 0
    assert [line for line in done.stdout.splitlines() if "api" in line] == [
        "talk: conversations, api chat; 100 requests of 50 sessions",
        "alone: random, api completions; 100 requests",
        "code: random, api completions; 100 requests",
    ]


def test_reuse_is_shown_for_each_part_of_a_mix(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    mix = "  - {name: office, kind: mix, parts: [{workload: alone}, {workload: code}]}\n"
    file.write_text(FILE.replace("shared_prefix_tokens: 10", "shared_prefix_tokens: 96") + mix)
    (tmp_path / "corpus.txt").write_text("to be or not to be " * 10)
    place = f"{file}:office"
    lines = invoke("workload", "show", place, "--requests", "1000").stdout.splitlines()
    of_mix, of_alone, of_code = [at for at, line in enumerate(lines) if line.startswith("reuse: ")]
    why = "reuse: not known, because prompts hold slices of a text"
    assert lines[of_mix].startswith(f"{why}; of the other parts")
    assert lines[of_alone] == "reuse: an unlimited prefix cache would hold 76.0% of prompt tokens"
    assert lines[of_code] == why
    done = invoke("workload", "show", place, "--requests", "1000", "--format", "json")
    [shown] = json.loads(done.stdout)["workloads"]
    assert (shown["cached_share"], shown["uncounted"]) == (None, ["slices of a text"])
    alone, code = shown["parts"]
    assert alone["cached_share"] == pytest.approx(96 / 126, abs=0.005)
    assert (code["cached_share"], code["uncounted"]) == (None, ["slices of a text"])


def test_a_preset_is_shown_by_its_name() -> None:
    done = invoke("workload", "show", "rag", "--requests", "9")
    assert done.stdout.startswith("rag: random, api completions; 9 requests")


@pytest.mark.parametrize("preset", PRESETS.names())
def test_a_preset_is_shown_with_the_source_of_its_numbers(preset: str) -> None:
    done = invoke("workload", "show", preset, "--requests", "9")
    shown = done.stdout[done.stdout.index("source: ") :]
    assert " ".join(shown.split()).startswith(f"source: {PRESETS[preset].source}")
    assert max(map(len, shown.splitlines())) <= 80
    as_json = invoke("workload", "show", preset, "--requests", "9", "--format", "json")
    assert json.loads(as_json.stdout)["workloads"][0]["source"] == PRESETS[preset].source


def test_a_preset_of_a_file_is_shown_with_its_source_and_with_what_is_not_from_there(
    tmp_path: Path,
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "workloads:\n"
        "  - {name: docs, preset: rag, output_tokens: 300, api: chat}\n"
        "  - {name: talk, preset: chat}\n"
        "  - {name: both, kind: mix, parts: [{workload: docs}, {workload: talk}]}\n"
        "deployments: {engine: emulator}\nversion: 1\n"
    )
    of_docs = f"{PRESETS['rag'].source}; not from there, but the file's own: output_tokens"
    alone = " ".join(invoke("workload", "show", f"{file}:docs", "--requests", "9").stdout.split())
    assert alone.endswith(f"source: {of_docs}")
    mixed = invoke("workload", "show", f"{file}:both", "--requests", "30")
    shown = " ".join(mixed.stdout.split())
    assert f"source: {of_docs}" in shown
    assert shown.endswith(f"source: {PRESETS['chat'].source}")
    assert max(map(len, mixed.stdout.splitlines())) <= 80
    as_json = invoke("workload", "show", str(file), "--requests", "30", "--format", "json")
    [both] = json.loads(as_json.stdout)["workloads"]
    assert both["source"] is None
    assert [part["source"] for part in both["parts"]] == [of_docs, PRESETS["chat"].source]


def test_a_workload_of_a_file_has_no_source(file: str) -> None:
    assert "source" not in invoke("workload", "show", file, "--requests", "9").stdout


def test_a_file_that_has_fewer_requests_than_are_asked_for_is_told(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    file = tmp_path / "y.yaml"
    file.write_text(
        "workloads: [{name: few, kind: file, prompts: p.txt, output_tokens: 3}]\n"
        "deployments: {engine: emulator}\nversion: 1\n"
    )
    done = invoke("workload", "show", str(file), "--requests", "5")
    assert done.stderr == "--requests 5: few has 2, and no more\n"
    assert invoke("workload", "show", str(file)).stderr == ""


def test_one_workload_as_json_with_a_sample(file: str) -> None:
    done = invoke("workload", "show", f"{file}:alone", "--format", "json", "--sample", "2")
    [shown] = json.loads(done.stdout)["workloads"]
    assert shown["prompt_tokens"]["mean"] == 40
    assert shown["cached_share"] == pytest.approx(0.0, abs=0.01), "10 tokens are no block"
    assert [len(request["messages"][1]["content"][0]) for request in shown["sample"]] == [30, 30]


def test_written_requests_are_a_batch_whose_bodies_can_be_sent(file: str, tmp_path: Path) -> None:
    target = tmp_path / "w.jsonl"
    done = invoke("workload", "show", f"{file}:talk", "--requests", "6", "--write", str(target))
    assert "answers between turns are made up here" in done.stderr
    assert "lengths are limits here" in done.stderr
    assert "times are not written" not in done.stderr
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert {line["url"] for line in lines} == {"/v1/chat/completions"}
    for line in lines:
        entry = read_entry({k: v for k, v in line["body"].items() if k != "model"}, line)
        assert entry is not None
        assert (entry.output_tokens, entry.fields) == (7, {"temperature": 0.0})
    assert len(lines[1]["body"]["messages"]) == 3


OPTIONS = """
model: {id: m}
deployments: {engine: llama_cpp, hardware: cpu, lora_modules: {sql: a.gguf}}
workloads:
  - {name: schema, api: chat, input_tokens: 9, output_tokens: 9, constrain: {json_schema: {type: object}}, request: {top_k: 5, temperature: null}}
  - {name: choice, input_tokens: 9, output_tokens: 9, constrain: {choice: [a, b], share: 0.5}, adapters: {names: [sql], base_share: 0.5}}
  - {name: regex, input_tokens: 9, output_tokens: 9, constrain: {regex: a}}
  - {name: tools, api: chat, input_tokens: 9, output_tokens: 9, tools: [{type: function, function: {name: f}}]}
  - {name: prompts, api: chat, kind: file, prompts: p.jsonl}
"""


def written(file: Path, name: str) -> list[dict[str, Any]]:
    target = file.with_name("w.jsonl")
    invoke("workload", "show", f"{file}:{name}", "--requests", "20", "--write", str(target))
    return [json.loads(line)["body"] for line in target.read_text().splitlines()]


def test_written_requests_ask_for_what_a_run_asks_for(tmp_path: Path) -> None:
    """In the fields of the first engine of the file."""
    file = tmp_path / "x.yaml"
    file.write_text(OPTIONS)
    (tmp_path / "p.jsonl").write_text('{"prompt": "hi", "max_tokens": 3, "temperature": 0.7}\n')
    first = written(file, "schema")[0]
    assert (first["json_schema"], first["top_k"]) == ({"type": "object"}, 5)
    assert "temperature" not in first
    bodies = written(file, "choice")
    assert {body.get("grammar") for body in bodies} == {None, 'root ::= "a" | "b"'}
    assert {str(body.get("lora")) for body in bodies} == {"None", "[{'id': 0, 'scale': 1.0}]"}
    assert written(file, "tools")[0]["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert {body["temperature"] for body in written(file, "prompts")} == {0.7}
    with pytest.raises(InputError, match=r"a regex, for which .* no field \(known: json_schema"):
        written(file, "regex")


@pytest.mark.parametrize(
    ("constrain", "expected"),
    [
        ({"json_schema": {"type": "object"}}, Constraint(JSON_SCHEMA, schema={"type": "object"})),
        ({"regex": "[0-9]{4}"}, Constraint(REGEX, regex="[0-9]{4}")),
        ({"choice": ["yes", "no"]}, Constraint(CHOICE, choices=("yes", "no"))),
    ],
)
def test_constraints_that_are_written_for_vllm_are_read_again(
    constrain: dict[str, Any], expected: Constraint, tmp_path: Path
) -> None:
    file = tmp_path / "x.yaml"
    asked = {"name": "asked", "api": "chat", "input_tokens": 9, "output_tokens": 9}
    experiment = {
        "model": {"id": "m"},
        "deployments": {"engine": "vllm", "hardware": "H100-80GB"},
        "workloads": [asked | {"constrain": constrain}],
    }
    file.write_text(json.dumps(experiment))
    assert "structured_outputs" in written(file, "asked")[0]
    keys = {"name": "w", "kind": "file", "api": "chat", "prompts": str(tmp_path / "w.jsonl")}
    read = FileWorkload.model_validate(keys)
    assert read.constraint_kinds() == {expected.kind}
    constraint = read.requests(Words(), 0).prompt(0, 0, "measure", ()).constraint
    assert constraint is not None
    assert asdict(constraint) == asdict(expected)


def test_drawn_prompts_of_token_ids_are_written_and_read_again(file: str, tmp_path: Path) -> None:
    bodies = written(Path(file), "alone")
    keys = {"name": "w", "kind": "file", "prompts": str(tmp_path / "w.jsonl")}
    read = FileWorkload.model_validate(keys)
    assert read.sends_token_ids()
    requests = read.requests(Words(), 0)
    for session, body in enumerate(bodies):
        ids = requests.prompt(session, 0, "measure", ()).flat()
        assert not isinstance(ids, str)
        assert ids.tolist() == body["prompt"]
    facts = facts_of(read, Words(), 0, 20)
    assert facts.prompt_tokens is not None
    assert facts.prompt_tokens.mean == 40
    chat = FileWorkload.model_validate(keys | {"api": "chat"})
    with pytest.raises(ProblemsError, match="which the API chat does not take"):
        chat.requests(Words(), 0)


def test_a_trace_is_shown_and_written_once_and_its_times_are_not(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(traces.BURSTGPT_1)
    file = tmp_path / "x.yaml"
    file.write_text("workloads: [{name: t, kind: trace, trace: t.csv}]")
    target = str(tmp_path / "w.jsonl")
    done = invoke("workload", "show", str(file), "--write", target)
    assert "times are not written" in done.stderr
    assert "t: trace, api completions; 3 requests\n" in done.stdout
    assert "trace: 3 requests in 3 sessions over 113 s\n" in done.stdout
    assert len(Path(target).read_text().splitlines()) == 3
    more = invoke("workload", "show", str(file), "--requests", "4")
    assert more.stderr == "--requests 4: t has 3, and begins again with other tokens\n"
    (tmp_path / "t.csv").write_text(traces.WEKA)
    shown = invoke("workload", "show", str(file)).stdout
    assert "trace: 5 requests in 3 sessions without times\n" in shown


def test_a_file_without_engines_is_written_as_openai_has_it(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(OPTIONS[OPTIONS.index("workloads:") :])
    assert "response_format" in written(file, "schema")[0]
    with pytest.raises(InputError, match=r"a choice, for which .* no field \(known: json_schema\)"):
        written(file, "choice")


def test_slices_of_a_text_are_shown(file: str) -> None:
    done = invoke("workload", "show", f"{file}:code", "--sample", "1")
    assert "to be or not to be" in done.stdout


def test_names_of_files_and_workloads_may_have_colons(tmp_path: Path) -> None:
    file = tmp_path / "a:b.yaml"
    file.write_text("workloads: [{name: 'c:d', input_tokens: 3, output_tokens: 3}]\n")
    assert invoke("workload", "show", str(file)).stdout.startswith("c:d: random")
    assert invoke("workload", "show", f"{file}:c:d").stdout.startswith("c:d: random")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_a_sentence(file: str) -> None:
    with pytest.raises(InputError, match="--write '/dev/full': No space left on device"):
        invoke("workload", "show", f"{file}:talk", "--write", "/dev/full")


def test_what_cannot_be_shown_is_refused(file: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown workload 'tlk'.*did you mean 'talk'"):
        invoke("workload", "show", f"{file}:tlk")
    with pytest.raises(click.UsageError, match="--write needs one workload"):
        invoke("workload", "show", file, "--write", str(tmp_path / "w"))
    with pytest.raises(InputError, match="--write: there is no folder /nowhere"):
        invoke("workload", "show", f"{file}:talk", "--write", "/nowhere/w")
    with pytest.raises(ProblemsError, match="cannot be read"):
        invoke("workload", "show", str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text("workloads: [{name: w, input_tokens: 3}]\n")
    with pytest.raises(ProblemsError, match="'output_tokens' is missing"):
        invoke("workload", "show", str(tmp_path / "bad.yaml"))
    with pytest.raises(ProblemsError) as caught:
        invoke("workload", "show", str(tmp_path / "bad.yaml"))
    assert len(caught.value.problems) == 1, "a file of workloads alone lacks nothing else"
