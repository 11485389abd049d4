"""What requests ask of a real llama.cpp beside their prompts: constrained answers, tools, adapters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator.base.clock import UnixSpan
from orchestrator.cluster.base import ClientReport
from orchestrator.load.client import LoadClient
from orchestrator.load.point import ClientResult, LoadPoint, Target
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Level, Workload
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.adapter_trial import AdapterFinding, failed_adapter_trials
from orchestrator.sweep.attempt import Loaded
from tests.harness import MODEL, orchestrator, rows
from tests.integration.engine_real import INSTALL_LIMIT_S, WEATHER, Running, running, settings
from tests.integration.llama_cpp_files import experiment_of, gguf_of
from tests.integration.lora import merge, write_adapter
from tests.integration.test_load_cli import load

pytestmark = [pytest.mark.llama_cpp, pytest.mark.timeout(INSTALL_LIMIT_S + 120)]
PROMPT = list(range(300, 324))
# A model without training may fill JSON with white space or long texts; an enum leaves it no way.
COLOUR = {"enum": ["red", "blue", 7]}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "minimum": 18}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", "(maybe)", 'quo"te', "back\\slash", "two\nlines", "bell\x08\x0c", "ü€"]
ADAPTERS = ("sql", "law", "idle")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """LoRA adapters as PEFT keeps them; that with the name ``idle`` has no effect."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(MODEL, folder / name, seed, changes=name != "idle")
        for seed, name in enumerate(ADAPTERS)
    }


@pytest.fixture(scope="module")
def models(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_of(MODEL, tmp_path_factory.mktemp("gguf"), *adapters.values())


def given(**more: Any) -> EngineSettings:
    usual = {"dtype": None, "max_model_len": 1024, "max_num_seqs": 4}
    return settings("llama_cpp", **(usual | more))


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    served = {name: str(models / f"{name}.gguf") for name in ADAPTERS}
    asked = given(lora_modules=served, extra_args={"--jinja": True})
    folder = tmp_path_factory.mktemp("server")
    with running(asked, folder, models / "model-f32.gguf") as started:
        started.wait()
        yield started


def dialect_of(server: Running, api: str) -> Dialect:
    return server.engine.dialects(server.settings)[api]


def point_of(server: Running, keys: dict[str, Any], requests: int, at_once: int = 4) -> LoadPoint:
    workload = Workload.model_validate({"name": "w", "input_tokens": 8, **keys})
    return LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        # a reply is kept as text
        dialect=replace(dialect_of(server, workload.api), prompt_token_ids=False),
        workload=workload,
        level=Level(control="concurrency", value=at_once),
        duration_s=None,
        requests=requests,
        tokenizer=str(MODEL),
        keep_replies=True,
    )


def loaded(point: LoadPoint) -> ClientResult:
    client = LoadClient()
    client.prepare(point)
    return client.run(time.monotonic_ns())


def check(constrain: dict[str, Any], answer: str) -> None:
    """Raises where an answer is not what it had to be, by other code than that of the client."""
    if "json_schema" in constrain:
        jsonschema.validate(json.loads(answer), constrain["json_schema"])
    else:
        assert answer in constrain["choice"]


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    "constrain",
    [
        {"json_schema": COLOUR, "variants": 2},
        {"json_schema": PERSON},
        {"choice": ["yes", "no"]},
        {"choice": CHOICES},
    ],
    ids=["enum", "object", "choice", "choice with signs"],
)
def test_constrained_answers_are_what_they_have_to_be(
    server: Running, api: str, constrain: dict[str, Any]
) -> None:
    asked = {"api": api, "output_tokens": 48, "constrain": {**constrain, "share": 0.6}}
    result = loaded(point_of(server, asked, 24))
    requests = result.requests.to_pylist()
    assert {row["status"] for row in requests} == {"ok"}, requests
    answers = {reply.request_index: reply.text for reply in result.replies}
    constrained = [row for row in requests if row["constraint"] is not None]
    assert 0 < len(constrained) < len(requests)
    # those that were cut are neither met nor violated
    met = [row for row in constrained if row["constraint_met"]]
    assert {row["constraint_met"] for row in constrained} <= {True, None}, answers
    assert len(met) > len(constrained) / 2, answers
    assert {row["output_tokens"] for row in requests if row["constraint"] is None} == {48}
    for row in met:
        check(constrain, answers[row["request_index"]])


@pytest.mark.parametrize("tool_choice", [None, "auto", "none", "required"], ids=str)
def test_calls_of_tools_are_answers_with_tokens_and_times(
    server: Running, tool_choice: str | None
) -> None:
    asked = {"api": "chat", "output_tokens": 64, "tools": [WEATHER], "tool_choice": tool_choice}
    requests = loaded(point_of(server, asked, 6, 2)).requests.to_pylist()
    assert {row["status"] for row in requests} == {"ok"}, requests
    assert all(0 < row["output_tokens"] <= 64 for row in requests)
    assert all(row["first_token_ns"] < row["last_token_ns"] for row in requests)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"grammar": 'root ::= "yes"'}, "Cannot use custom grammar constraints with tools"),
        ({"response_format": {"type": "regex"}}, "response_format type must be one of"),
    ],
    ids=["choice and tools", "regex"],
)
def test_what_plans_refuse_is_what_it_refuses(
    server: Running, fields: dict[str, Any], reason: str
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "tools": [WEATHER]}
    status, text = server.ask("POST", "/v1/chat/completions", body | fields)
    assert status == 400
    assert reason in text


def test_adapters_answer_as_models_do_that_have_them_merged(
    server: Running, adapters: dict[str, Path], tmp_path: Path
) -> None:
    def answer(of: Running, adapter: str | None) -> str:
        fields = dialect_of(server, "completions").adapter_fields(adapter)
        body = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        status, text = of.ask("POST", "/v1/completions", body | fields)
        assert status == 200, text
        written: str = json.loads(text)["choices"][0]["text"]
        return written

    own = answer(server, None)
    assert answer(server, "idle") == own
    answers = {name: answer(server, name) for name in ("sql", "law")}
    assert len({own, *answers.values()}) == 3
    for name, written in answers.items():
        merged = merge(MODEL, adapters[name], tmp_path / name)
        model = gguf_of(merged, tmp_path / f"gguf-{name}") / "model-f32.gguf"
        with running(given(), tmp_path / f"server-{name}", model) as other:
            other.wait()
            assert answer(other, None) == written


def test_adapters_are_asked_by_popularity_and_an_idle_one_is_found(server: Running) -> None:
    asked = {"output_tokens": 4, "adapters": {"names": [*ADAPTERS], "base_share": 0.3}}
    point = point_of(server, asked, 40)

    def sent(point: LoadPoint) -> Loaded:
        result = loaded(point)
        report = ClientReport(result.stats, (), result.requests_file, replies=result.replies)
        return Loaded(span=UnixSpan(0, 1), requests=result.requests, reports={0: report})

    requests = sent(point).requests.to_pylist()
    assert {row["status"] for row in requests} == {"ok"}, requests
    assert {row["adapter"] for row in requests} == {None, *ADAPTERS}
    (trial,) = failed_adapter_trials(sent, point)
    assert (trial.adapter, trial.finding) == ("idle", AdapterFinding.LIKE_BASE)


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("option", ["schema", "choice"])
def test_load_constrains_the_answers_of_one_that_runs(
    server: Running, api: str, option: str, tmp_path: Path
) -> None:
    """It knows llama.cpp by the owner of its model, and so the fields that it takes."""
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    options = {
        "schema": ("--json-schema", str(tmp_path / "person.json")),
        "choice": ("--choice", "yes", "--choice", "no"),
    }
    ended = load(
        *(server.base_url, "--api", api, "--concurrency", "2", "--requests", "12"),
        *("--input-tokens", "8", "--output-tokens", "48", "--api-key-env", "KEY"),
        *(*options[option], "--results", str(tmp_path / "results"), "--format", "json"),
        KEY=server.key,
    )
    measured = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    guidance = measured["guidance"]
    assert (guidance["constrained_share"], guidance["constraint_violations"]) == (1.0, 0)
    met = [row["constraint_met"] for row in rows(tmp_path / "results", "requests")]
    assert met.count(True) > 6


def test_load_refuses_what_it_has_no_field_for(server: Running) -> None:
    common = (server.base_url, "--concurrency", "2", "--requests", "4", "--api-key-env", "KEY")
    lengths = ("--input-tokens", "8", "--output-tokens", "8")
    ended = load(*common, *lengths, "--regex", "[0-9]{4}", KEY=server.key)
    assert ended.returncode == 2
    assert "no field that is known for a regex (known: json_schema, choice)" in ended.stderr
    ended = load(*common, *lengths, "--adapter", "sql", KEY=server.key)
    assert ended.returncode == 2
    assert "no field that is known for LoRA adapters" in ended.stderr


ASKED = """
  max_num_seqs: 2
  lora_modules: {sql: sql.gguf, law: law.gguf}
workloads:
  - {name: person, api: chat, input_tokens: 8, output_tokens: 48, constrain: {json_schema: person.json, share: 0.5}}
  - {name: answer, input_tokens: 8, output_tokens: 16, constrain: {choice: [yes-, no-]}}
  - {name: tools, api: chat, input_tokens: 8, output_tokens: 16, tools: tools.json}
  - {name: tenants, input_tokens: 8, output_tokens: 8, adapters: {names: [sql, law], base_share: 0.3}}
  - {name: date, input_tokens: 8, output_tokens: 16, constrain: {regex: "[0-9]+"}}
  - {name: both, api: chat, input_tokens: 8, output_tokens: 16, tools: tools.json, constrain: {choice: [a, b]}}
  - {name: unserved, input_tokens: 8, output_tokens: 8, adapters: {names: [chat]}}
load: {levels: {concurrency: [2]}, warmup: 0s, requests: 16}
"""


def test_a_sweep_sends_all_of_it_and_names_what_it_does_not_send(
    models: Path, tmp_path: Path
) -> None:
    (models / "person.json").write_text(json.dumps(PERSON))
    (models / "tools.json").write_text(json.dumps([WEATHER]))
    experiment = models / "experiment.yaml"
    experiment.write_text(experiment_of("llama-cpp-requests", ASKED))
    planned = orchestrator("plan", str(experiment))
    for sentence in (
        "workload 'date' constrains answers by a regex, and the API 'completions' of llama.cpp "
        "has no field for it here: use json_schema or choice",
        "workload 'both' sends tools and constrains answers by a choice, and llama.cpp refuses "
        "both in one request",
        "asks for the LoRA adapter chat, which this deployment does not serve",
    ):
        assert sentence in " ".join(planned.stdout.split()), planned.stdout + planned.stderr
    completed = orchestrator(
        "run", str(experiment), "--results", str(tmp_path), "--address", "local"
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    points = {row["workload"]: row for row in rows(tmp_path, "points")}
    assert sorted(points) == ["answer", "person", "tenants", "tools"]
    assert {row["status"] for row in points.values()} == {"ok"}
    assert {points[name]["constraint_violations"] for name in ("answer", "person")} == {0}
    by_workload: dict[str, list[dict[str, Any]]] = {}
    workload_of = {row["measurement_id"]: row["workload"] for row in points.values()}
    for row in rows(tmp_path, "requests"):
        by_workload.setdefault(workload_of[row["measurement_id"]], []).append(row)
    assert {row["status"] for rows_of in by_workload.values() for row in rows_of} == {"ok"}
    assert {row["constraint_met"] for row in by_workload["answer"]} == {True}
    assert {row["adapter"] for row in by_workload["tenants"]} == {None, "sql", "law"}
