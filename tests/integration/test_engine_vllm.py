"""Real vLLM on the CPU: it starts, is proven ours, serves, stops, and fails in the ways it really fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.engines import ownership
from orchestrator.engines.failures import classify
from orchestrator.engines.readiness import LOG_LINES
from orchestrator.errors import EngineFailure, Failure, FailureClass
from tests.integration.engine_real import CORES, ROOT, Running, died, running, script, settings

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]
TOKENS = 16
PROMPT = list(range(10, 30))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script("make_tiny_model").make(folder)
    return folder


@pytest.fixture(scope="module")
def broken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    """Engines that cannot start, started on the other core beside the one that can: each only reads its arguments."""
    flag, nowhere = settings("vllm", extra_args={"--no-such-flag": True}), Path("/nowhere/model")
    folder, cores = tmp_path_factory.mktemp("broken"), (CORES[-1:],)
    with (
        running(flag, folder / "flag", model, cores=cores) as unknown_flag,
        running(settings("vllm"), folder / "model", nowhere, cores=cores) as no_model,
    ):
        yield {"flag": unknown_flag, "model": no_model}


@pytest.fixture(scope="module")
def vllm(model: Path, broken: dict[str, Running], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    given = settings("vllm", max_model_len=1024, enforce_eager=True, kv_cache_tokens=8192, max_num_seqs=8)
    with running(given, tmp_path_factory.mktemp("vllm"), model) as found:
        found.ready = found.wait()
        yield found


def completion(**changes: object) -> dict[str, object]:
    usual = {"prompt": PROMPT, "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True}
    return usual | {"stream_options": {"include_usage": True}} | changes


def failure_of(found: Running) -> Failure:
    with pytest.raises(EngineFailure) as caught:
        found.wait()
    return caught.value.failure


def test_it_is_ready_and_proven_to_be_ours(vllm: Running) -> None:
    assert vllm.ready is not None
    assert vllm.ready.proofs == ("socket", "key", "name")
    assert vllm.ready.engine_version == "0.32.0"
    assert vllm.ready.max_model_len == 1024
    assert vllm.ready.reported["kv_cache_tokens"] == 8192
    assert vllm.ready.reported["max_concurrency"] == 8.0


def test_it_refuses_requests_without_our_key(vllm: Running) -> None:
    assert vllm.ask("POST", "/v1/completions", completion(), key=None)[0] == 401
    assert vllm.ask("POST", "/v1/completions", completion(), key="wrong")[0] == 401


def test_a_completion_streams_exactly_the_tokens_that_were_asked_for(vllm: Running) -> None:
    *chunks, last = vllm.stream("/v1/completions", completion())
    ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_ids"]]
    assert len(ids) == TOKENS
    assert last["usage"]["completion_tokens"] == TOKENS
    assert last["usage"]["prompt_tokens"] == len(PROMPT)
    assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    assert all(chunk["choices"][0]["text"] for chunk in chunks), "the tiny model speaks whole texts only"


def test_a_chat_streams_too(vllm: Running) -> None:
    messages = [{"role": "user", "content": "Kalomi ne ru?"}]
    events = vllm.stream("/v1/chat/completions", completion(messages=messages) | {"prompt": None})
    assert sum(len(choice.get("token_ids") or []) for event in events for choice in event["choices"]) == TOKENS


def test_the_prefix_cache_is_emptied_on_demand(vllm: Running) -> None:
    long = completion(prompt=list(range(100, 500)))
    cached = []
    for reset in (True, False, True):
        if reset:
            assert vllm.ask("POST", vllm.engine.reset_path or "")[1] == '{"success":true}'
        last = vllm.stream("/v1/completions", long)[-1]
        cached.append(last["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0


def test_every_metric_that_we_read_is_there(vllm: Running) -> None:
    text = vllm.ask("GET", vllm.engine.metrics_path or "")[1]
    found = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    wanted = set(vllm.engine.metrics.values())
    assert {name for name in wanted - found if "spec_decode" not in name} == set()


def test_vllms_own_client_counts_and_times_the_same(
    vllm: Running, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = script("run", "benchmarks/agreement")
    monkeypatch.setitem(agreement.ENV, agreement.KEY, vllm.key)
    args = agreement.parse(["--model", str(model), "--served", vllm.name, "--requests", "40"])
    theirs = agreement.vllm_bench(vllm.base_url, args, 1, tmp_path)
    ours = agreement.ours(vllm.base_url, args, 2, tmp_path)
    assert ours["output_tokens"] == theirs["output_tokens"] == args.output_tokens
    assert ours["input_tokens"] == args.input_tokens
    assert theirs["input_tokens"] == pytest.approx(args.input_tokens, rel=0.01)
    # Far apart, for a machine that does other things: benchmarks/agreement measures how near they are.
    for name in agreement.LIMITS:
        assert 0.4 < ours[name] / theirs[name] < 2.5, (name, ours, theirs)


def test_the_key_is_in_no_command_line_and_not_in_the_log(vllm: Running) -> None:
    pid = vllm.processes[0].pid
    assert pid is not None
    tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(tree) >= 3, "server, engine core, worker"
    assert not any(vllm.key in " ".join(process.cmdline()) for process in tree)
    assert vllm.key not in vllm.processes[0].log_path.read_text()


def test_every_process_of_it_carries_the_mark_though_it_renames_itself(vllm: Running) -> None:
    pid = vllm.processes[0].pid
    assert pid is not None
    tree = {pid} | {child.pid for child in psutil.Process(pid).children(recursive=True)}
    assert tree <= {process.pid for process, _ in ownership.tagged({ownership.LAUNCH: vllm.node.launch_id})}
    assert any("VLLM::" in process.name() for process in map(psutil.Process, tree))


def test_a_second_engine_on_its_port_is_told_that_the_port_is_taken(vllm: Running, model: Path, tmp_path: Path) -> None:
    given = settings("vllm", max_model_len=1024, enforce_eager=True)
    with running(given, tmp_path, model, port=vllm.node.port) as second:
        failure = failure_of(second)
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)
    assert str(vllm.node.port) in failure.sentence


def test_an_unknown_flag_is_bad_config(broken: dict[str, Running]) -> None:
    failure = failure_of(broken["flag"])
    assert (failure.kind, failure.failure_class) == ("bad_flag", FailureClass.BAD_CONFIG)
    assert "--no-such-flag" in failure.sentence


def test_a_model_that_is_not_there_is_bad_config(broken: dict[str, Running]) -> None:
    failure = failure_of(broken["model"])
    assert (failure.kind, failure.failure_class) == ("no_model", FailureClass.BAD_CONFIG)
    assert "/nowhere/model" in failure.sentence


def test_nothing_is_left_of_it_when_its_owner_is_killed(model: Path, tmp_path: Path) -> None:
    launch_id = f"test-{time.monotonic_ns()}"
    given = settings("vllm", max_model_len=1024, enforce_eager=True)
    argv = [f"{given.executable}/bin/vllm", "serve", str(model), "--port", "21999", "--dtype", "float32"]
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
        while len(list(ownership.tagged({ownership.LAUNCH: launch_id}))) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(list(ownership.tagged({ownership.LAUNCH: launch_id}))) >= 3, "server and engine core are up"
        owner.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while list(ownership.tagged({ownership.LAUNCH: launch_id})) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert list(ownership.tagged({ownership.LAUNCH: launch_id})) == []
    finally:
        owner.kill()
        owner.communicate()
        ownership.kill_tagged({ownership.LAUNCH: launch_id})


def test_an_engine_whose_core_dies_while_it_serves_ends_with_status_0_and_that_is_a_crash(vllm: Running) -> None:
    """The last test: nothing serves after it."""
    process = vllm.processes[0]
    assert process.pid is not None
    tree = psutil.Process(process.pid).children(recursive=True)
    next(one for one in tree if one.name().startswith("VLLM::EngineCor")).kill()
    status, text = vllm.ask("POST", "/v1/completions", {"model": vllm.name, "stream": True} | completion())
    assert "error" in text or status == 500
    assert died(process, limit_s=30)
    assert process.poll() == 0, "vLLM ends with status 0 when it dies while serving"
    failure = classify(vllm.engine.log, "run", process.log_tail(LOG_LINES), 0)
    assert (failure.kind, failure.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
