"""The emulator as a process of its own, over real sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.harness import AGAINST_THE_CLOCK, free_port, orchestrator, rows, write_experiment

pytestmark = AGAINST_THE_CLOCK

ROOT = Path(__file__).resolve().parents[2]
CLIENT_VENV = ROOT / ".engines" / "tgi-client" / "bin" / "python"
# 10 ms a step whatever is in it: the stated timing is easy to compute.
STEADY = {
    "accelerator": {"memory_gb": 80, "bandwidth_gb_s": 1e6, "tflops": {"bfloat16": 1e6}, "link_gb_s": 1e3},
    "constants": {
        "step_overhead_s": 0.01, "sequence_overhead_s": 0, "layer_overhead_s": 0, "prefill_layer_overhead_s": 0,
        "request_overhead_s": 0, "jitter": 0,
    },
}  # fmt: skip


@dataclass
class Server:
    port: int
    process: subprocess.Popen[str]
    log: Path

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def get(self, path: str) -> tuple[int, str]:
        return self.send("GET", path)

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = self.connect()
        try:
            connection.request(
                method, path, None if body is None else json.dumps(body), headers or {}
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def metric(self, name: str) -> float:
        found = re.search(
            rf"^{re.escape(name)}\{{.*\}} (\S+)$", self.get("/metrics")[1], re.MULTILINE
        )
        assert found, name
        return float(found[1])


@contextmanager
def emulator(
    folder: Path, *flags: str, env: dict[str, str] | None = None, **settings: Any
) -> Iterator[Server]:
    (folder / "profile.json").write_text(json.dumps(STEADY))
    config = {
        "settings": {
            "engine": "emulator",
            "model": "m",
            "profile": str(folder / "profile.json"),
            **settings,
        }
    }
    (folder / "config.json").write_text(json.dumps(config))
    port, log = free_port(), folder / "log"
    argv = [sys.executable, "-m", "orchestrator.emulator", "--config", str(folder / "config.json")]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*argv, "--port", str(port), *flags],
            stdout=out,
            stderr=out,
            text=True,
            env=os.environ | (env or {}),
            cwd=ROOT,
        )
    try:
        yield Server(port, process, log)
    finally:
        process.kill()
        process.wait(10)


def wait_until(condition: Callable[[], bool], limit_s: float = 15) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.01)


def ready(server: Server) -> bool:
    try:
        return server.get("/health")[0] == 200
    except OSError:
        return False


@contextmanager
def serving(folder: Path, *flags: str, **more: Any) -> Iterator[Server]:
    with emulator(folder, *flags, **more) as server:
        wait_until(lambda: ready(server))
        yield server


def completion(tokens: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "prompt": [1, 2, 3, 4],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        **more,
    }


def test_streams_arrive_in_the_stated_time(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        connection = server.connect()
        errors_ms = []
        for _ in range(5):
            started_s = time.monotonic()
            connection.request("POST", "/v1/completions", json.dumps(completion(20)))
            answer = connection.getresponse()
            times_s = []
            while line := answer.readline():
                if line.startswith(b"data: {"):
                    times_s.append(time.monotonic() - started_s)
            assert len(times_s) == 20
            errors_ms += [abs(one - 0.01 * (index + 1)) * 1e3 for index, one in enumerate(times_s)]
        connection.close()
        # Loose, for a machine that does other things: benchmarks/emulator/timing.py measures the
        # figure.
        assert sorted(errors_ms)[len(errors_ms) // 2] < 3


def test_everything_it_says_of_itself_says_emulator(tmp_path: Path) -> None:
    with serving(tmp_path, "--served-model-name", "mine") as server:
        assert json.loads(server.get("/version")[1])["version"].endswith("+emulator")
        assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "mine"
        assert json.loads(server.get("/info")[1])["router"] == "emulator"
        assert "EMULATED" in server.log.read_text()
        # "m" is not served here
        assert server.send("POST", "/v1/completions", completion())[0] == 404
        assert server.get("/nothing")[0] == 404
        assert server.send("PUT", "/health")[0] == 405


def test_who_loads_it_as_an_endpoint_is_told_and_every_row_says_so(tmp_path: Path) -> None:
    text = """
version: 1
name: swept
model: m
deployments: {engine: endpoint, url: "%s"}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [1]}, requests: 3}
"""
    there = tmp_path / "results"
    with serving(tmp_path) as server:
        url, results = f"http://127.0.0.1:{server.port}", ("--results", str(there))
        length = (
            "--concurrency",
            "1",
            "--requests",
            "3",
            "--input-tokens",
            "4",
            "--output-tokens",
            "2",
        )
        loaded = orchestrator("load", url, *length, *results)
        experiment = write_experiment(tmp_path, text % url)
        swept = orchestrator("run", str(experiment), *results, "--address", "local")
    assert (loaded.returncode, swept.returncode) == (0, 0), loaded.stderr + swept.stderr
    assert "emulated" in loaded.stdout
    assert [row["emulated"] for table in ("points", "launches") for row in rows(there, table)] == [
        True
    ] * 4
    assert [row["cache_state"] for row in rows(there, "points")] == ["salted"] * 2, (
        "/v1/models says whose it is"
    )
    for command, *options in (
        ("results",),
        ("best", "--slo", "ttft<=9s"),
        ("results", "--launches"),
    ):
        assert "emulated" in orchestrator(command, str(there), *options).stdout


def test_many_streams_at_once_each_get_their_own_tokens(tmp_path: Path) -> None:
    with serving(tmp_path, max_num_seqs=16) as server:
        results: list[int] = []

        def one() -> None:
            status, text = server.send(
                "POST", "/v1/completions", completion(30, return_token_ids=True)
            )
            results.append(
                text.count('"token_ids":[') if status == 200 and text.endswith("[DONE]\n\n") else -1
            )

        threads = [threading.Thread(target=one) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results == [30] * 40
        assert server.metric("vllm:generation_tokens_total") == 1200
        assert server.metric("vllm:num_requests_running") == 0
        assert server.metric("vllm:request_queue_time_seconds_sum") > 0
        text = server.get("/metrics")[1]
        assert (
            'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 40'
            in text
        )
        families = set(re.findall(r"^# TYPE vllm:(\S+)", text, re.MULTILINE))
        asked = {re.sub("_(bucket|sum|count)$", "", name) for name in dashboards()}
        assert len(asked) > 12
        assert asked <= families
        # of vLLM's own dashboards
        assert families >= {"engine_sleep_state", "num_requests_waiting_by_reason"}
        assert 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0' in text


def dashboards() -> set[str]:
    """vLLM's metrics on the dashboards that Ray ships, but for parts that the emulator has none of."""
    folder = Path(ray.__file__).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    texts = [path.read_text() for path in folder.glob("*llm_dashboard_panels.py")]
    names = {name for text in texts for name in re.findall(r"ray_vllm_([a-z_]{2,})", text)}
    return {
        name
        for name in names
        if not re.match("nixl|kv_offload|external|num_requests_swapped", name)
    }


def test_a_repeated_prompt_hits_the_prefix_cache_until_it_is_reset(tmp_path: Path) -> None:
    def cached(server: Server) -> int:
        body = {"model": "m", "prompt": list(range(64)), "max_tokens": 1}
        usage = json.loads(server.send("POST", "/v1/completions", body)[1])["usage"]
        return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)

    with serving(tmp_path) as server:
        assert [cached(server), cached(server)] == [0, 48]
        assert server.send("POST", "/reset_prefix_cache")[0] == 200
        assert cached(server) == 0


def test_the_key_from_the_environment_guards_what_generates(tmp_path: Path) -> None:
    with serving(tmp_path, env={"EMULATOR_API_KEY": "k"}) as server:
        assert server.get("/health")[0] == 200
        assert server.get("/v1/models")[0] == 401
        assert server.send("POST", "/v1/completions", completion())[0] == 401
        assert server.send("POST", "/generate", {"inputs": "x"})[0] == 401
        assert (
            server.send("POST", "/v1/completions", completion(), {"Authorization": "Bearer k"})[0]
            == 200
        )


def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(completion(4000)))
        connection.getresponse().readline()
        assert server.metric("vllm:num_requests_running") == 1
        assert connection.sock is not None
        connection.close()
        wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_above_the_queue_limit_vllm_says_503_and_tgi_says_429(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-concurrent-requests", "1", max_num_queued_reqs=2) as server:
        busy = [server.connect() for _ in range(2)]
        busy[0].request(
            "POST",
            "/generate_stream",
            json.dumps({"inputs": "x", "parameters": {"max_new_tokens": 2000}}),
        )
        busy[0].getresponse().readline()
        status, text = server.send("POST", "/generate", {"inputs": "x"})
        assert (status, json.loads(text)["error_type"]) == (429, "overloaded")
        busy[1].request("POST", "/v1/completions", json.dumps(completion(2000)))
        busy[1].getresponse().readline()
        assert server.send("POST", "/v1/completions", completion())[0] == 503
        for connection in busy:
            connection.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fault", "start=die"], "EngineCore failed to start"),
        (["--fault", "start=oom"], "torch.OutOfMemoryError: CUDA out of memory"),
        (["--fault", "nonsense=1"], "Value error,"),
    ],
)
def test_a_scripted_death_at_start_exits_1_with_the_engines_words(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    with emulator(tmp_path, *flags) as server:
        assert server.process.wait(15) == 1
        assert words in server.log.read_text()


def test_a_port_that_is_taken_is_a_failure_of_its_own(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with emulator(tmp_path, "--port", str(taken.getsockname()[1])) as server:
            assert server.process.wait(15) == 1
            assert "cannot listen" in server.log.read_text()


def test_a_slow_start_and_a_hang_do_not_answer(tmp_path: Path) -> None:
    with emulator(tmp_path, "--fault", "start_delay_s=0.5") as server:
        started_s = time.monotonic()
        wait_until(lambda: ready(server))
        assert time.monotonic() - started_s > 0.5
    with emulator(tmp_path, "--fault", "start=hang") as server:
        wait_until(lambda: "waits for a signal" in server.log.read_text())
        assert not ready(server)
        server.process.terminate()
        assert server.process.wait(10) == 0


def test_it_dies_at_the_request_it_was_told_to_with_vllms_exit_status(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "die_at_request=2") as server:
        assert server.send("POST", "/v1/completions", completion())[0] == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            server.send("POST", "/v1/completions", completion())
        assert server.process.wait(10) == 0
        assert "EngineDeadError" in server.log.read_text()


def test_every_third_request_is_a_500_and_every_fourth_stream_is_cut(tmp_path: Path) -> None:
    outcomes = []
    with serving(tmp_path, "--fault", "error_every=3", "--fault", "cut_every=4") as server:
        for _ in range(12):
            try:
                outcomes.append(str(server.send("POST", "/v1/completions", completion())[0]))
            except (http.client.IncompleteRead, ConnectionError):
                outcomes.append("cut")
        assert outcomes == [
            "200",
            "200",
            "500",
            "cut",
            "200",
            "500",
            "200",
            "cut",
            "500",
            "200",
            "200",
            "500",
        ]
        assert server.metric("vllm:num_requests_running") == 0


def test_a_stall_holds_up_everyone_and_garbage_only_its_own_stream(tmp_path: Path) -> None:
    with serving(
        tmp_path,
        "--fault",
        "stall_at_request=1",
        "--fault",
        "stall_s=0.7",
        "--fault",
        "garbage_at_request=2",
    ) as server:
        started_s = time.monotonic()
        server.send("POST", "/v1/completions", completion(3))
        assert 0.7 < time.monotonic() - started_s < 3
        assert "�" in server.send("POST", "/v1/completions", completion(3))[1]
        assert "�" not in server.send("POST", "/v1/completions", completion(3))[1]


def test_the_scripted_orphan_outlives_its_parent(tmp_path: Path) -> None:
    with serving(tmp_path, "--fault", "orphan") as server:
        (child,) = psutil.Process(server.process.pid).children()
        try:
            server.process.terminate()
            assert server.process.wait(10) == 0
            child.terminate()
            time.sleep(0.2)
            assert child.is_running()
            assert os.getsid(child.pid) == child.pid
        finally:
            child.kill()


def test_a_headless_rank_holds_its_place_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with emulator(tmp_path, "--headless") as server:
        wait_until(lambda: "waits for a signal" in server.log.read_text())
        assert not ready(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0


def test_sigterm_ends_it_in_mid_stream_and_it_reports_its_timing_error(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(completion(4000)))
        connection.getresponse().readline()
        server.process.terminate()
        assert server.process.wait(10) == 0
        assert re.search(r"timing error: \d+ tokens, mean", server.log.read_text())
        connection.close()


OFFICIAL = """
import sys
from text_generation import Client
from text_generation.errors import OverloadedError
client = Client(sys.argv[1], timeout=20)
whole = client.generate("What is this?", max_new_tokens=7)
assert whole.details.generated_tokens == 7 and whole.generated_text, whole
tokens = [event.token.text for event in client.generate_stream("What is this?", max_new_tokens=7)]
assert "".join(tokens) == whole.generated_text, tokens
stream = client.generate_stream("x", max_new_tokens=500)
next(stream)
try:
    client.generate("y", max_new_tokens=1)
except OverloadedError as error:
    print("overloaded:", error)
"""


@pytest.mark.skipif(
    not CLIENT_VENV.exists(),
    reason=f"no official TGI client in {CLIENT_VENV.parent.parent}, see docs/reference/emulator.md",
)
def test_the_official_tgi_client_accepts_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-concurrent-requests", "1") as server:
        done = subprocess.run(
            [str(CLIENT_VENV), "-c", OFFICIAL, f"http://127.0.0.1:{server.port}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "overloaded: Model is overloaded" in done.stdout


def test_the_command_line_serves_any_setting(tmp_path: Path) -> None:
    port = free_port()
    argv = ["emulator", "--port", str(port), "--profile", "H100-80GB/Llama-3.1-8B", "--model", "x"]
    argv += ["--set", "tensor_parallel_size=2", "--set", "max_model_len=4096"]
    with (tmp_path / "log").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *argv],
            stdout=out,
            stderr=out,
            text=True,
            cwd=ROOT,
        )
    server = Server(port, process, tmp_path / "log")
    try:
        wait_until(lambda: ready(server))
        assert json.loads(server.get("/v1/models")[1])["data"][0]["max_model_len"] == 4096
    finally:
        process.terminate()
        assert process.wait(10) == 0


def test_wrong_settings_on_the_command_line_start_nothing() -> None:
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        "emulator",
        "--set",
        "tensor_parallel_size=0",
        "--set",
        "nope=1",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, cwd=ROOT)
    assert done.returncode == 2
    assert "tensor_parallel_size" in done.stderr
    assert "nope" in done.stderr
