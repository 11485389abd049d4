"""Real vLLM and SGLang on the CPU: they start, are proven ours, serve, stop, and fail in the ways
they really fail.

Every engine is started once; the tests of one run after the other, the last of which ends it.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import psutil
import pytest

from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import EngineFailure, Failure, FailureClass
from orchestrator.catalog.accelerators import find
from orchestrator.catalog.models import model_facts
from orchestrator.catalog.work import StepWork, step_work
from orchestrator.cluster.base import ClientReport
from orchestrator.load.client import LoadClient
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.wire.parsed import Parsed
from orchestrator.load.wire.wires import WIRES
from orchestrator.node import ownership
from orchestrator.node.failures import EnginePhase, LastWords, classify
from orchestrator.node.readiness import LOG_LINES
from orchestrator.spec.load import Lengths, Level, Workload
from orchestrator.spec.request_options import Adapters
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.adapter_trial import AdapterFinding, failed_adapter_trials
from orchestrator.sweep.attempt import Loaded
from orchestrator.telemetry.engine_metrics import normalize
from orchestrator.workloads.drawn import RandomWorkload
from orchestrator.workloads.kind import IdRange, Message, Prompt
from tests.harness import AGAINST_THE_CLOCK, wait_for
from tests.integration.engine_real import (
    CORES,
    ROOT,
    WEATHER,
    Running,
    died,
    home_of,
    running,
    script,
    settings,
)
from tests.integration.lora import merge, write_adapter

pytestmark = pytest.mark.timeout(400)
TOKENS = 16
PROMPT = list(range(10, 30))


class Facts(NamedTuple):
    """What differs: settings beside the usual, version, the part of it that is killed last and how
    it then ends.
    """

    given: dict[str, Any]
    version: str
    part: str
    status: int | None  # None: it lives on, and answers nothing
    # what it answers when its prefix cache is emptied; empty: it cannot be, and prompts are salted
    reset: str
    guarded: tuple[str, ...]  # paths by which an engine is ended, stopped or changed
    untold: set[str]  # columns of metrics that it tells only when it happens


# told only by engines that were asked to estimate their own work, once they have done some
ESTIMATES = {
    "estimated_flops_per_gpu_total",
    "estimated_read_bytes_per_gpu_total",
    "estimated_write_bytes_per_gpu_total",
}
ENGINES = {
    "vllm": Facts(
        {"enforce_eager": True},
        "0.32.0",
        "VLLM::EngineCor",
        0,  # it ends with status 0 when it dies while serving
        "",
        (
            "/collective_rpc",
            "/pause",
            "/sleep",
            "/abort_requests",
            "/reset_prefix_cache",
            "/update_weights",
        ),
        ESTIMATES | {"spec_drafts_total", "spec_draft_tokens_total", "spec_accepted_tokens_total"},
    ),
    "sglang": Facts(
        {},
        "0.5.23",
        "sglang::detoken",
        None,
        "Cache flushed",
        ("/flush_cache", "/abort_request", "/pause_generation", "/release_memory_occupation"),
        ESTIMATES | {"preemptions_total", "spec_accept_length", "spec_accept_share"},
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script("make_tiny_model").make(folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ENGINES],
)
def engine(request: pytest.FixtureRequest) -> str:
    home_of(request.param)
    return str(request.param)


VLLM = [pytest.param("vllm", marks=pytest.mark.vllm)]


def usual(engine: str, **given: Any) -> EngineSettings:
    sizes = {"max_model_len": 1024, "kv_cache_tokens": 8192, "max_num_seqs": 8}
    return settings(engine, **(sizes | ENGINES[engine].given | given))


@pytest.fixture(scope="module")
def broken(
    engine: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Running]]:
    """Engines that cannot start, started on the other core beside the one that can. On the port of
    one of them somebody takes connections and never says a word.
    """
    flag, nowhere = usual(engine, extra_args={"--no-such-flag": True}), Path("/nowhere/model")
    folder, cores = tmp_path_factory.mktemp("broken"), (CORES[-1:],)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running(flag, folder / "flag", model, cores=cores) as unknown_flag,
        running(usual(engine), folder / "model", nowhere, cores=cores) as no_model,
        running(
            usual(engine), folder / "port", model, cores=cores, port=silent.getsockname()[1]
        ) as port_taken,
    ):
        yield {"flag": unknown_flag, "model": no_model, "port": port_taken}


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """LoRA adapters; that with the name ``idle`` has no effect."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(model, folder / name, seed, changes=name != "idle")
        for seed, name in enumerate(("sql", "law", "idle"))
    }


@pytest.fixture(scope="module")
def server(
    engine: str,
    model: Path,
    adapters: dict[str, Path],
    broken: dict[str, Running],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    given: dict[str, Any] = {}
    if engine == "vllm":  # it serves adapters beside the model, which all other tests ask
        places = {name: str(place) for name, place in adapters.items()}
        given = {"lora_modules": places, "max_loras": len(places), "max_lora_rank": 8}
        given["extra_args"] = {
            "--enable-auto-tool-choice": True,
            "--tool-call-parser": "hermes",
            "--enable-mfu-metrics": True,
        }
    with running(usual(engine, **given), tmp_path_factory.mktemp(engine), model) as found:
        found.ready = found.wait()
        yield found


def completion(**changes: object) -> dict[str, object]:
    usual = {
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return usual | {"stream_options": {"include_usage": True}} | changes


def failure_of(found: Running) -> Failure:
    with pytest.raises(EngineFailure) as caught:
        found.wait()
    return caught.value.failure


def test_it_is_ready_and_proven_to_be_ours(server: Running) -> None:
    assert server.ready is not None
    assert server.ready.reported["proofs"] == "socket key name"
    assert server.ready.version == ENGINES[server.engine.name].version
    assert server.ready.reported["max_model_len"] == 1024
    assert server.ready.reported["kv_cache_tokens"] == 8192


def test_it_refuses_requests_without_our_key(server: Running) -> None:
    assert server.ask("POST", "/v1/completions", completion(), key=None)[0] == 401
    assert server.ask("POST", "/v1/completions", completion(), key="wrong")[0] == 401


def test_a_completion_streams_exactly_the_tokens_that_were_asked_for(server: Running) -> None:
    *chunks, last = server.stream("/v1/completions", completion())
    ids = [
        token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]
    ]
    assert len(ids) == TOKENS
    assert last["usage"]["completion_tokens"] == TOKENS
    assert last["usage"]["prompt_tokens"] == len(PROMPT)
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    assert all(chunk["choices"][0]["text"] for chunk in chunks), (
        "the tiny model speaks whole texts only"
    )


def test_a_chat_as_the_load_client_asks_for_it_streams_too(server: Running) -> None:
    dialect, parsed = server.engine.dialects(server.settings)["chat"], Parsed()
    wire, question = WIRES[dialect.wire], Prompt((Message("user", ("Kalomi ne ru?",), 0),), 0)
    status, text = server.ask(
        "POST", dialect.path, json.loads(wire.body(question, TOKENS, server.name, dialect))
    )
    assert status == 200, text
    wire.read([event.encode() for event in text.split("data: ")[1:-1]], parsed)
    parsed.settle("continuous_usage")
    assert parsed.error is None
    assert sum(parsed.tokens) == TOKENS
    assert parsed.output_tokens == TOKENS
    assert parsed.source in ("token_ids", "continuous_usage")


def test_nothing_that_ends_or_changes_it_is_done_for_who_has_no_key(server: Running) -> None:
    """Every user of its host reaches it."""
    paths = ENGINES[server.engine.name].guarded
    assert {server.ask("POST", path, {"method": "shutdown"}, key=None)[0] for path in paths} <= {
        401,
        403,
        404,
    }


def test_a_new_attempt_finds_nothing_of_the_last_one_in_the_prefix_cache(server: Running) -> None:
    cached, reset = [], ENGINES[server.engine.name].reset
    for attempt, new in enumerate((True, False, True)):
        if new and reset:
            assert server.ask("POST", server.engine.reset_path or "")[1].startswith(reset)
        salt = {} if reset else {"cache_salt": f"attempt {attempt - (not new)}"}
        last = server.stream("/v1/completions", completion(prompt=list(range(100, 500)), **salt))[
            -1
        ]
        cached.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0


def test_every_metric_that_we_read_is_there(server: Running) -> None:
    text = server.ask("GET", server.engine.metrics_path or "")[1]
    told = set(normalize(text, server.engine.metrics))
    assert set(server.engine.metrics) - told <= ENGINES[server.engine.name].untold


@pytest.mark.parametrize("engine", VLLM, indirect=True)
def test_the_work_that_vllm_counts_is_that_of_our_formulas(server: Running, model: Path) -> None:
    facts, device = model_facts(str(model), online=False), find("H100")
    assert facts is not None and device is not None
    work = step_work(facts, server.settings, device)
    assert isinstance(work, StepWork)
    random_tokens = random.Random("nobody has sent it before")
    prompt = [random_tokens.randrange(10, 2000) for _ in range(200)]

    def counted() -> dict[str, float]:
        return normalize(
            server.ask("GET", server.engine.metrics_path or "")[1], server.engine.metrics
        )

    before = counted()
    steps = 100  # the first one computes the prompt; each gives a token
    body = completion(prompt=prompt, max_tokens=steps, min_tokens=steps)
    assert server.stream("/v1/completions", body)[-1]["usage"]["completion_tokens"] == steps
    tokens = "generation_tokens_total"
    wait_for(lambda: counted()[tokens] >= before[tokens] + steps, 20, "vLLM counts its tokens")
    after = counted()
    contexts = sum(len(prompt) + step for step in range(1, steps))
    flops = (len(prompt) + steps - 1) * work.flops.token + steps * work.flops.sample
    flops += contexts * work.flops.decode_pair
    # vLLM lets each token of a prompt attend to all of it; half of it is before it
    flops += len(prompt) ** 2 * work.flops.prefill_pair
    grown = {name: after[name] - before.get(name, 0.0) for name in ESTIMATES}
    assert grown["estimated_flops_per_gpu_total"] == pytest.approx(flops, rel=0.005)
    read_bytes = steps * work.step.weights + contexts * work.step.context_token
    # vLLM counts what passes between layers, too, which is little beside the weights of real models
    assert grown["estimated_read_bytes_per_gpu_total"] == pytest.approx(read_bytes, rel=0.05)


# A model without training fills JSON with white space, where it may; it may not in an enum.
COLOUR = {"enum": ["red", "blue", 7]}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
DATE = r"[0-9]{4}-[0-9]{2}"


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize(
    ("constrain", "met"),
    [
        ({"json_schema": COLOUR, "variants": 2}, {True}),
        ({"json_schema": PERSON}, {True, None}),
        ({"regex": DATE}, {True}),
        ({"choice": ["yes", "no", "(maybe)"]}, {True}),
    ],
    ids=["enum", "object", "regex", "choice"],
)
def test_constrained_answers_are_what_they_have_to_be(
    server: Running, model: Path, api: str, constrain: dict[str, Any], met: set[bool | None]
) -> None:
    fields = {"name": "w", "api": api, "input_tokens": 8, "output_tokens": 24}
    dialect = replace(server.engine.dialects(server.settings)[api], prompt_token_ids=False)
    point = LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=dialect,
        workload=Workload.model_validate({**fields, "constrain": {**constrain, "share": 0.6}}),
        level=Level(control="concurrency", value=4),
        duration_s=None,
        requests=12,
        tokenizer=str(model),
        keep_replies=True,
    )
    client = LoadClient()
    client.prepare(point)
    result = client.run(time.monotonic_ns())
    rows = result.requests.to_pylist()
    assert {row["status"] for row in rows} == {"ok"}, rows
    answers = {reply.request_index: reply.text for reply in result.replies}
    constrained = [row for row in rows if row["constraint"] is not None]
    assert 0 < len(constrained) < len(rows)
    assert {row["constraint_met"] for row in constrained} <= met, answers
    assert {row["output_tokens"] for row in rows if row["constraint"] is None} == {24}
    for row in constrained:
        if row["constraint_met"]:
            check(constrain, answers[row["request_index"]])


@pytest.mark.parametrize("tool_choice", ["auto", "required", {"name": "get_weather"}], ids=str)
def test_calls_of_tools_are_answers_with_tokens_and_times(
    server: Running, tool_choice: Any
) -> None:
    fields = {"name": "w", "api": "chat", "input_tokens": 8, "output_tokens": 64}
    tools = {"tools": [WEATHER], "tool_choice": tool_choice}
    point = LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=server.engine.dialects(server.settings)["chat"],
        workload=Workload.model_validate({**fields, **tools}),
        level=Level(control="concurrency", value=2),
        duration_s=None,
        requests=6,
    )
    client = LoadClient()
    client.prepare(point)
    rows = client.run(time.monotonic_ns()).requests.to_pylist()
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert all(0 < row["output_tokens"] <= 64 for row in rows)
    assert all(row["output_tokens_counted"] == row["output_tokens"] for row in rows)
    assert all(row["first_token_ns"] < row["last_token_ns"] for row in rows)


def test_a_recorded_session_of_an_agent_is_taken_as_it_was_recorded(
    server: Running, tmp_path: Path
) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "Rain in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And in Rome?"},
    ]
    file = tmp_path / "agent.jsonl"
    file.write_text(json.dumps({"messages": messages, "tools": [WEATHER]}))
    fields = {"name": "w", "kind": "file", "api": "chat", "prompts": str(file), "use": "sessions"}
    point = LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=server.engine.dialects(server.settings)["chat"],
        workload=Workload.model_validate(fields | {"output_tokens": 8}),
        level=Level(control="concurrency", value=1),
        duration_s=None,
        requests=6,
    )
    client = LoadClient()
    client.prepare(point)
    rows = client.run(time.monotonic_ns()).requests.to_pylist()
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert [row["turn"] for row in rows] == [0, 1, 2] * 2
    tokens = [row["input_tokens"] for row in rows]
    assert tokens[0] < tokens[1] < tokens[2]
    assert tokens[:3] == tokens[3:], "recorded answers are in prompts, not those of the engine"


def check(constrain: dict[str, Any], answer: str) -> None:
    """Raises where an answer is not what it had to be, by other code than that of the client."""
    if "json_schema" in constrain:
        jsonschema.validate(json.loads(answer), constrain["json_schema"])
    elif "regex" in constrain:
        assert len(answer) == 7 and (answer[:4] + answer[5:]).isdigit() and answer[4] == "-"
    else:
        assert answer in constrain["choice"]


@pytest.mark.parametrize("engine", VLLM, indirect=True)
def test_adapters_answer_as_models_do_that_have_them_merged(
    server: Running, model: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(10, 2000) for _ in range(24)] for _ in range(4)]

    def answers(name: str) -> list[tuple[list[int], list[int]]]:
        found = []
        for prompt in prompts:
            body = completion(model=name, prompt=prompt, temperature=0, stream_options=None)
            status, text = server.ask("POST", "/v1/completions", body)
            assert status == 200, text
            found.append((prompt, json.loads(text)["choices"][0]["token_ids"]))
        return found

    own = answers(server.name)
    by_model = {str(model): own}
    for name in ("sql", "law"):
        by_model[str(merge(model, adapters[name], tmp_path / name))] = answers(name)
    assert answers("idle") == own
    assert own not in list(by_model.values())[1:]
    (tmp_path / "answers.json").write_text(json.dumps(by_model))
    python = home_of("vllm") / "bin" / "python"
    script_of_it = ROOT / "tests/integration/merged_answers.py"
    done = subprocess.run(
        [python, script_of_it, tmp_path / "answers.json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    same: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert [*same.values()] == [TOKENS * len(prompts)] * 3


@pytest.mark.parametrize("engine", VLLM, indirect=True)
def test_adapters_are_loaded_by_popularity_and_an_idle_one_is_found(server: Running) -> None:
    workload = RandomWorkload(
        name="tenants",
        input_tokens=Lengths(fixed=20),
        output_tokens=Lengths(fixed=4),
        adapters=Adapters(names=("sql", "law", "idle"), base_share=0.3),
    )
    point = LoadPoint(
        targets=(Target(server.base_url, server.name, api_key=server.key),),
        dialect=server.engine.dialects(server.settings)["completions"],
        workload=workload,
        level=Level(control="concurrency", value=8),
        duration_s=None,
        requests=40,
        id_range=IdRange(10, 2000),
    )

    def load(asked: LoadPoint) -> Loaded:
        client = LoadClient()
        client.prepare(asked)
        result = client.run(time.monotonic_ns())
        report = ClientReport(result.stats, (), result.requests_file, replies=result.replies)
        rows = result.requests
        return Loaded(span=UnixSpan(0, 1), requests=rows, reports={0: report})

    rows = load(point).requests.to_pylist()
    assert {row["status"] for row in rows} == {"ok"}, rows
    assert {row["adapter"] for row in rows} == {None, "sql", "law", "idle"}
    (found,) = failed_adapter_trials(load, point)
    assert (found.adapter, found.finding) == ("idle", AdapterFinding.LIKE_BASE)


@AGAINST_THE_CLOCK
@pytest.mark.parametrize("engine", VLLM, indirect=True)
def test_vllms_own_client_counts_and_times_the_same(
    server: Running, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = script("run", "benchmarks/agreement")
    monkeypatch.setitem(agreement.ENV, agreement.KEY, server.key)
    args = agreement.parse(["--model", str(model), "--served", server.name, "--requests", "40"])
    warm = tmp_path / "warm"
    warm.mkdir()
    agreement.vllm_bench(
        server.base_url, args, 3, warm
    )  # the first requests of a shape take longer
    theirs = agreement.vllm_bench(server.base_url, args, 1, tmp_path)
    ours = agreement.ours(server.base_url, args, 2, tmp_path)
    assert ours["output_tokens"] == theirs["output_tokens"] == args.output_tokens
    assert ours["input_tokens"] == args.input_tokens
    assert theirs["input_tokens"] == pytest.approx(args.input_tokens, rel=0.01)
    # Far apart, for a machine that does other things: benchmarks/agreement measures how near they
    # are.
    for name in agreement.LIMITS:
        assert 0.4 < ours[name] / theirs[name] < 2.5, (name, ours, theirs)


def test_the_key_is_in_no_command_line_and_not_in_the_log(server: Running) -> None:
    pid = server.processes[0].pid
    assert pid is not None
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(tree) >= 3, "a server, and what computes"
    assert not any(server.key in " ".join(process.cmdline()) for process in tree)
    assert server.key not in server.processes[0].log_tail(), "SGLang prints it"


def test_every_process_of_it_carries_the_mark_though_it_renames_itself(server: Running) -> None:
    pid = server.processes[0].pid
    assert pid is not None
    tree = {pid} | {child.pid for child in psutil.Process(pid).children(recursive=True)}
    assert tree <= {
        process.pid for process, _ in ownership.tagged({ownership.LAUNCH: server.node.launch_id})
    }
    part = ENGINES[server.engine.name].part
    assert any(process.name().startswith(part) for process in map(psutil.Process, tree))


def test_a_second_engine_on_its_port_is_told_that_it_is_taken(
    server: Running, model: Path, tmp_path: Path
) -> None:
    with running(usual(server.engine.name), tmp_path, model, port=server.node.port) as second:
        failure = failure_of(second)
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)
    assert str(server.node.port) in failure.sentence


def test_one_whose_port_is_held_by_somebody_silent_is_told_so_too(
    broken: dict[str, Running],
) -> None:
    """SGLang then waits for ever."""
    failure = failure_of(broken["port"])
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)
    assert str(broken["port"].node.port) in failure.sentence


def test_an_unknown_flag_is_bad_config(broken: dict[str, Running]) -> None:
    failure = failure_of(broken["flag"])
    assert (failure.kind, failure.failure_class) == ("bad_flag", FailureClass.BAD_CONFIG)
    assert "--no-such-flag" in failure.sentence


def test_a_model_that_is_not_there_is_bad_config(broken: dict[str, Running]) -> None:
    failure = failure_of(broken["model"])
    assert (failure.kind, failure.failure_class) == ("no_model", FailureClass.BAD_CONFIG)
    assert "/nowhere/model" in failure.sentence


@pytest.mark.vllm
def test_nothing_is_left_of_it_when_its_owner_is_killed(model: Path, tmp_path: Path) -> None:
    launch_id = f"test-{time.monotonic_ns()}"
    given = settings("vllm", max_model_len=1024, enforce_eager=True)
    argv = [
        f"{given.executable}/bin/vllm",
        "serve",
        str(model),
        "--port",
        "21999",
        "--dtype",
        "float32",
    ]
    owner = subprocess.Popen(
        [
            sys.executable,
            ROOT / "tests/integration/engine_owner.py",
            tmp_path,
            launch_id,
            "10",
            *argv,
            "--enforce-eager",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    try:
        deadline = time.monotonic() + 90
        while (
            len(list(ownership.tagged({ownership.LAUNCH: launch_id}))) < 3
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        assert len(list(ownership.tagged({ownership.LAUNCH: launch_id}))) >= 3, (
            "server and engine core are up"
        )
        owner.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while list(ownership.tagged({ownership.LAUNCH: launch_id})) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert list(ownership.tagged({ownership.LAUNCH: launch_id})) == []
    finally:
        owner.kill()
        owner.communicate()
        ownership.kill_tagged({ownership.LAUNCH: launch_id})


def test_an_engine_has_crashed_once_a_part_of_it_dies(
    server: Running,
) -> None:
    """The last test: nothing serves after it."""
    process, facts = server.processes[0], ENGINES[server.engine.name]
    assert process.pid is not None
    process.mark_ready()
    heard = LastWords(server.engine.log)
    tree = psutil.Process(process.pid).children(recursive=True)
    next(one for one in tree if one.name().startswith(facts.part)).kill()
    if facts.status is None:
        wait_for(
            lambda: heard.spoken(EnginePhase.SERVING, process.new_lines()), 20, "its last words"
        )
    else:
        status, text = server.ask(
            "POST", "/v1/completions", {"model": server.name, "stream": True} | completion()
        )
        assert "error" in text or status == 500
        assert died(process, limit_s=30)
    assert process.poll() == facts.status
    failure = classify(
        server.engine.log, EnginePhase.SERVING, process.log_tail(LOG_LINES), facts.status
    )
    assert (failure.kind, failure.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
