"""Real ``transformers serve`` on the CPU: it starts, is proven ours, serves and stops."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.errors import EngineFailure, FailureClass
from orchestrator.engines.endpoint import with_constraints
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.validity import judge
from orchestrator.spec.load import Level, Workload
from tests.integration.engine_real import CORES, Running, running, script, settings

pytestmark = [pytest.mark.transformers, pytest.mark.timeout(180)]
TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script("make_tiny_model").make(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("transformers")
    with running(settings("transformers"), folder, model, cores=(CORES,)) as found:
        found.ready = found.wait(60)
        yield found


def length() -> str:
    return json.dumps({"max_new_tokens": TOKENS, "min_new_tokens": TOKENS})


def test_it_is_proven_ours_by_its_socket(server: Running) -> None:
    assert server.ready is not None
    assert "socket" in str(server.ready.reported["proofs"]).split()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Kalomi ne"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_a_stream_has_the_length_that_was_asked_for(
    server: Running, path: str, body: dict[str, object]
) -> None:
    status, text = server.ask(
        "POST", path, {"model": server.name, "stream": True, "generation_config": length()} | body
    )
    assert status == 200
    assert "[DONE]" not in text
    events = [
        json.loads(line.removeprefix("data: "))
        for line in text.splitlines()
        if line.startswith("data: ")
    ]
    assert events[-1]["usage"]["completion_tokens"] == TOKENS
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_every_field_that_we_may_send_is_accepted_and_others_are_refused(
    server: Running, api: str
) -> None:
    dialect = server.engine.dialects(server.settings)[api]
    assert dialect.allowed_fields is not None
    values = {
        "model": server.name, "prompt": "Kalomi", "messages": [{"role": "user", "content": "a"}], "stream": True,
        "max_tokens": 3, "generation_config": length(), "temperature": 0.0, "top_p": 1.0, "seed": 1, "stop": None,
        "frequency_penalty": 0.0, "logit_bias": None, "chat_template_kwargs": {}, "user": "u",
        "metadata": {"job": "7"}, "service_tier": "auto", "store": False, "presence_penalty": 0.0,
        "parallel_tool_calls": False, "reasoning_effort": "low",
    }  # fmt: skip
    body = {name: values[name] for name in dialect.allowed_fields}
    status, text = server.ask("POST", dialect.path, body)
    assert status == 200, text
    refused = {"ignore_eos", "min_tokens", "return_token_ids", "metadata", "store"}
    for unknown in refused - dialect.allowed_fields:
        assert server.ask("POST", dialect.path, body | {unknown: 1})[0] == 422


def test_it_takes_sampling_fields_and_does_not_apply_them(server: Running) -> None:
    """Which is why plans refuse them: all requests are sampled as the server's first one."""

    def answer(**fields: object) -> str:
        body = {"model": server.name, "prompt": "Kalomi", "generation_config": length()}
        status, text = server.ask("POST", "/v1/completions", body | {"temperature": 0} | fields)
        assert status == 200, text
        written: str = json.loads(text)["choices"][0]["text"]
        return written

    greedy = answer()
    sampled = json.dumps({**json.loads(length()), "do_sample": True})
    assert answer(temperature=50.0, generation_config=sampled) == greedy
    assert answer(stop=greedy[0]) == greedy
    without_effect = server.engine.dialects(server.settings)["completions"].without_effect
    assert {"temperature", "stop"} <= without_effect


def test_it_ignores_constraints_and_is_found_out(server: Running, model: Path) -> None:
    """The server takes ``response_format`` for a field without use, with a line in its log."""
    own = server.engine.dialects(server.settings)["chat"]
    as_endpoint = with_constraints(replace(own, allowed_fields=None), "", server.settings)
    fields = {"name": "w", "api": "chat", "input_tokens": 8, "output_tokens": TOKENS}
    constrain = {"json_schema": {"type": "object"}}
    point = LoadPoint(
        targets=(Target(server.base_url, server.name),),
        dialect=as_endpoint,
        workload=Workload.model_validate({**fields, "constrain": constrain}),
        level=Level(control="concurrency", value=2),
        duration_s=None,
        requests=4,
        tokenizer=str(model),
    )
    client = LoadClient()
    client.prepare(point)
    result = client.run(time.monotonic_ns())
    rows = result.requests.to_pylist()
    assert {(row["status"], row["constraint_met"]) for row in rows} == {("ok", False)}, rows
    verdict = judge(result.requests, [result.stats], point, 0)
    assert verdict.validity == "invalid"
    assert verdict.reasons[0].startswith("the constraint was not applied: 100.0%")


def test_a_model_that_is_not_there_is_bad_config(tmp_path: Path) -> None:
    nowhere = running(settings("transformers"), tmp_path, Path("/nowhere/model"), cores=(CORES,))
    with nowhere as found, pytest.raises(EngineFailure) as caught:
        found.wait(60)
    assert caught.value.failure.failure_class is FailureClass.BAD_CONFIG
    assert caught.value.failure.kind == "no_model"
