"""A real llama.cpp on the CPU, started alone and by ``run``: GGUF files, slots, and ways to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.base.errors import EngineFailure, Failure, FailureClass
from orchestrator.base.http import HttpResponse, ask
from orchestrator.catalog.memory import estimate_memory
from orchestrator.catalog.models import model_facts
from orchestrator.node.failures import EnginePhase, classify
from orchestrator.node.readiness import LOG_LINES, Expected, wait_ready
from orchestrator.spec.settings import EngineSettings
from tests.harness import (
    MODEL,
    assert_nothing_left,
    assert_rows_equal_schedule,
    orchestrator,
    rows,
)
from tests.integration.engine_real import INSTALL_LIMIT_S, Running, died, running, settings
from tests.integration.llama_cpp_files import experiment_of, gguf_of

pytestmark = [pytest.mark.llama_cpp, pytest.mark.timeout(INSTALL_LIMIT_S + 120)]
VERSION = "b1-0c1e570"
IDS = list(range(300, 340))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model in float32 and q8_0."""
    return gguf_of(MODEL, tmp_path_factory.mktemp("gguf"), also="q8_0")


def given(**more: Any) -> EngineSettings:
    return settings("llama_cpp", **{"dtype": None, "max_model_len": 1000, "max_num_seqs": 2} | more)


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    verbose = given(extra_args={"--log-verbosity": 4})  # only then it logs how many bytes it takes
    with running(verbose, tmp_path_factory.mktemp("server"), models / "model-q8_0.gguf") as started:
        started.ready = started.wait()
        yield started


def failure_of(engine: Running) -> Failure:
    with pytest.raises(EngineFailure) as caught:
        engine.wait()
    return caught.value.failure


def test_it_is_proven_ours_and_reports_its_version_and_its_vocabulary(server: Running) -> None:
    assert server.ready is not None
    assert server.ready.reported["proofs"] == "socket key name"
    assert server.ready.version == VERSION
    assert server.ready.reported["vocab_size"] == 2048
    assert server.ask("POST", "/v1/completions", {"prompt": IDS}, key=None)[0] == 401


def test_what_the_plan_reads_in_the_files_header_is_what_the_engine_takes(
    server: Running, models: Path
) -> None:
    assert server.ready is not None
    name = str(models / "model-q8_0.gguf")
    facts = model_facts(name)
    plain = given(model=name)
    assert facts is not None
    pinned = plain.model_copy(update=server.engine.open_pins(plain, None))
    predicted = estimate_memory(facts, pinned, None)
    reported = server.ready.reported
    assert reported["max_model_len"] == 1024, "a slot is rounded up"
    assert reported["kv_cache_tokens"] == predicted.kv_cache_tokens == 2 * 1024
    assert reported["weight_bytes"] == pytest.approx(predicted.weight_bytes, rel=0.01)
    assert reported["kv_cache_bytes"] == predicted.kv_bytes_per_token * 2 * 1024
    assert facts.shape.vocab_size == 2048


def test_a_prompt_that_no_slot_holds_and_an_id_that_no_vocabulary_has_are_refused(
    server: Running,
) -> None:
    status, text = server.ask("POST", "/v1/completions", {"prompt": [400] * 1100, "max_tokens": 4})
    assert status == 400
    assert "exceed_context_size_error" in text
    status, text = server.ask("POST", "/v1/completions", {"prompt": [30_000], "max_tokens": 4})
    # sweep/detect_dialect.py knows these words
    assert status == 400
    assert "Prompt contains invalid tokens" in text


def test_every_metric_that_we_read_is_there(server: Running) -> None:
    server.ask("POST", "/v1/completions", {"prompt": IDS, "max_tokens": 4})
    text = server.ask("GET", server.engine.metrics_path or "")[1]
    exposed = {
        line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")
    }
    assert {
        name for names in server.engine.metrics.values() for name in names.split(" + ")
    } <= exposed


def test_without_its_prefix_cache_nothing_is_kept(models: Path, tmp_path: Path) -> None:
    with running(
        given(enable_prefix_caching=False), tmp_path, models / "model-f32.gguf"
    ) as started:
        started.wait()
        body = {"prompt": IDS, "max_tokens": 4, "stream_options": {"include_usage": True}}
        body |= started.engine.dialects(started.settings)["completions"].extra_body
        cached = [
            started.stream("/v1/completions", body)[-1]["usage"]["prompt_tokens_details"]
            for _ in range(2)
        ]
        assert [details["cached_tokens"] for details in cached] == [0, 0]
        assert "prompt cache is enabled" not in started.processes[0].log_path.read_text()


def test_a_model_that_takes_a_while_to_load_is_waited_for(models: Path, tmp_path: Path) -> None:
    """While it clears 2 GiB of KV cache the server answers 503 to all, with or without the key."""
    answers = []

    def ask_and_keep(url: str, method: str, api_key: str) -> HttpResponse:
        answers.append(ask(url, method, api_key))
        return answers[-1]

    with running(
        given(max_model_len=4096, max_num_seqs=256), tmp_path, models / "model-f32.gguf"
    ) as started:
        process = started.processes[0]
        expected = Expected(
            started.engine, started.settings, started.node, started.base_url, started.key, process
        )
        ready = wait_ready(expected, 120, ask=ask_and_keep)
    assert any(answer.status == 503 and b"Loading model" in answer.body for answer in answers)
    assert ready.reported["proofs"] == "socket key name"


@pytest.mark.parametrize(
    ("more", "file", "kind", "words"),
    [
        ({"extra_args": {"--no-such-flag": True}}, "model-f32.gguf", "bad_flag", "--no-such-flag"),
        ({}, "not-there.gguf", "no_model", "not-there.gguf"),
        ({}, "text.gguf", "no_model", "text.gguf"),
    ],
    ids=["flag", "no file", "no GGUF"],
)
def test_a_wrong_flag_or_file_is_named_and_not_tried_again(
    models: Path, tmp_path: Path, more: dict[str, Any], file: str, kind: str, words: str
) -> None:
    (models / "text.gguf").write_text("no GGUF")
    with running(given(**more), tmp_path, models / file) as started:
        failure = failure_of(started)
    assert (failure.kind, failure.failure_class) == (kind, FailureClass.BAD_CONFIG)
    assert words in failure.sentence + failure.log_tail


def test_a_taken_port_is_a_failure_of_the_node(
    server: Running, models: Path, tmp_path: Path
) -> None:
    with running(given(), tmp_path, models / "model-f32.gguf", port=server.node.port) as second:
        failure = failure_of(second)
    assert (failure.kind, failure.failure_class) == ("port_taken", FailureClass.INFRA)


def test_one_that_is_killed_while_it_serves_is_a_crash(server: Running) -> None:
    """The last test of this server."""
    process = server.processes[0]
    assert process.pid is not None
    psutil.Process(process.pid).kill()
    assert died(process, limit_s=10)
    failure = classify(
        server.engine.log, EnginePhase.SERVING, process.log_tail(LOG_LINES), process.poll() or 0
    )
    assert failure.failure_class is FailureClass.ENGINE_CRASH


SLOTS = """
  vary: [{grid: {model: [model-f32.gguf, model-q8_0.gguf], max_num_seqs: [2, 8]}}]
workloads:
  - {name: ids, input_tokens: {uniform: {min: 32, max: 96}}, output_tokens: 16}
  - {name: too_long, input_tokens: 1020, output_tokens: 16}
load: {levels: {concurrency: [2]}, warmup: 0s, requests: 12}
"""


def test_files_beside_the_experiment_are_measured_each_with_its_slots(
    models: Path, tmp_path: Path
) -> None:
    experiment = models / "experiment.yaml"
    experiment.write_text(experiment_of("llama-cpp", SLOTS))
    completed = orchestrator(
        "run", str(experiment), "--results", str(tmp_path), "--address", "local"
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    points = rows(tmp_path, "points")
    assert [row["status"] for row in points] == ["ok"] * 4, [row["reason"] for row in points]
    assert not {row["validity"] for row in points} & {
        "invalid",
        "failing",
        "broken_output",
    }  # a busy machine may be slow
    assert {row["engine_version"] for row in rows(tmp_path, "launches")} == {VERSION}
    reported = [json.loads(row["engine_reported_json"]) for row in rows(tmp_path, "launches")]
    assert sorted(figures["kv_cache_tokens"] for figures in reported) == [2048, 2048, 8192, 8192]
    assert not any("flags_known_as_of" in figures for figures in reported), (
        "the flags of this build are the recorded ones"
    )
    requests = rows(tmp_path, "requests")
    assert all(
        row["output_tokens"] == 16 and row["input_tokens"] == row["input_tokens_asked"]
        for row in requests
    )
    assert_rows_equal_schedule(tmp_path)
    assert_nothing_left()
