"""Failures: the engines' own words become a class, a kind and one sentence."""

from __future__ import annotations

import signal

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import Failure, FailureClass
from orchestrator.engines.registry import ENGINES
from orchestrator.node.failures import LAST_WORDS_S, EnginePhase, LastWords, cause, classify

PREFIX = "(EngineCore pid=5670) ERROR 11-21 11:28:41 [core.py:133] "


def failure(phase: str, log: str, status: int | None, engine: str = "vllm") -> Failure:
    return classify(ENGINES[engine].log, EnginePhase(phase), log, status)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        (
            "tgi",
            (
                "2026-11-21T18:12:51.123456Z  INFO text_generation_launcher: Error: alibi is not "
                "supported, left out"
            ),
        ),
        (
            "lmdeploy",
            (
                "2026-11-21 18:12:51,123 - lmdeploy - WARNING - base.py:71 - Error: PD prefix is not "
                "supported."
            ),
        ),
        ("sglang", "[2026-11-21 18:12:51 TP0] Warning: ValueError: x is not supported here"),
        (
            "tensorrt_llm",
            "[11/21/2026-18:12:51] [TRT-LLM] [W] Advanced sampling is not supported for MTP yet",
        ),
        (
            "lightllm",
            "INFO 07-11 11:11:21 [start_utils.py:34] init func start_router_process : init ok",
        ),
        (
            "sglang",
            (
                "ValueError: TP rank 0 could finish the model loading, but there are other ranks that "
                "didn't."
            ),
        ),
    ],
)
def test_lines_in_passing_are_no_cause(engine: str, line: str) -> None:
    assert failure("start", line, 1, engine).kind in ("died_at_start", "engine_dead")
    assert failure("start", f"{line}\nValueError: no such thing", 1, engine).kind == "bad_config"


def test_hub_that_answers_404_is_not_unreachable() -> None:
    lost = (
        "OSError: We couldn't connect to 'https://hub.example' to load the files\nCheck your "
        "internet connection or"
    )
    absent = (
        "huggingface_hub.errors.HfHubHTTPError: Client error '404 Not Found' for url "
        "'https://hub.example/acme/none'"
    )
    assert failure("start", lost, 1).kind == "hub"
    result = failure("start", f"{absent}\n{lost}", 1)
    assert (result.kind, result.failure_class.retries) == ("no_model", 0)
    assert "'404 Not Found' for url 'https://hub.example/acme/none'" in result.sentence


def test_cause_wins_over_its_consequences() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory.\nEngineDeadError: EngineCore encountered "
        "an issue."
    )
    assert failure("start", log, 1).kind == "oom_load"


def test_death_while_serving_names_the_first_exception() -> None:
    log = "\n".join(
        PREFIX + line
        for line in (
            "Traceback (most recent call last):",
            '  File "/x/gpu_model_runner.py", line 3174, in gather',
            "    assert self.intermediate_tensors is not None",
            "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
            "AssertionError",
            "KeyError: 'cmpl-1'",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        )
    )
    result = failure("run", log, 0)
    assert (result.kind, result.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
    assert result.sentence == (
        "the engine failed while it served: it died: AssertionError (assert "
        "self.intermediate_tensors is not None)"
    )


def test_refused_request_is_no_reason_for_a_later_death() -> None:
    log = "ValueError: this request is too long\nWorker proc died unexpectedly (exit code: -9)"
    assert failure("run", log, 0).kind == "engine_dead"


@pytest.mark.parametrize(
    ("phase", "status", "kind", "words"),
    [
        ("start", 1, "died_at_start", "it ended with status 1"),
        ("run", 0, "died", "it ended with status 0"),
        ("run", -signal.SIGKILL, "killed", "killed by SIGKILL"),
        ("run", 128 + signal.SIGKILL, "killed", "killed by SIGKILL"),  # says a container
        (
            "start",
            -signal.SIGILL,
            "illegal_instruction",
            "an instruction that this processor does not have",
        ),
        ("run", -signal.SIGSEGV, "died", "it ended by SIGSEGV"),
        ("run", -99, "died", "it ended by signal 99"),
        ("run", None, "not_answering", "it runs but does not answer"),
    ],
)
def test_exit_status_decides_without_a_signature(
    phase: str, status: int | None, kind: str, words: str
) -> None:
    result = failure(phase, "nothing of note", status)
    assert result.kind == kind
    assert words in result.sentence


def test_last_error_is_quoted_without_a_signature() -> None:
    assert failure("start", "fine\nfatal: the moon is full\nbye", 3).sentence.endswith(
        "saying: fatal: the moon is full"
    )


def test_header_of_the_log_is_not_read() -> None:
    assert (
        failure("start", "# $ vllm serve --reason 'invalid choice: x'\nbye", 1).kind
        == "died_at_start"
    )


def test_cause_loses_time_stamps_and_length() -> None:
    assert cause(PREFIX + "KeyError: 'x'") == "KeyError: 'x'"
    assert cause("2026-11-21T11:28:41.123Z ERROR text") == "text"
    assert len(cause("x" * 1000)) == 240


@hypothesis.settings(deadline=None)
@given(st.text(), st.sampled_from(["start", "run"]), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_log_gives_one_sentence(log: str, phase: str, status: int | None) -> None:
    result = failure(phase, log, status)
    assert result.sentence.strip()
    assert len(result.log_tail.splitlines()) <= 80 or result.log_tail.count("\n") < 80


def test_line_in_passing_is_not_why_it_was_killed() -> None:
    log = (
        "(APIServer pid=7) INFO 11-21 12:14:38 [cpu.py:224] FlashInfer is not supported on this "
        "platform.\n"
    )
    assert failure("start", log, -9).failure_class is not FailureClass.BAD_CONFIG
    refused = failure("start", log + "ValueError: fp9 is not supported\n", 1)
    assert refused.failure_class is FailureClass.BAD_CONFIG


QUANT = "torch.bfloat16 is not supported for quantization method awq, casting to float16"
# Said in passing, of what the engine then does another way.
NOTICES = [
    ("vllm", f"(Worker_TP0 pid=71) WARNING 11-21 11:28:41 [awq.py:1] {QUANT}"),
    ("vllm", f"(RayWorkerWrapper pid=71, ip=10.0.0.2) WARNING 11-21 11:28:41 [awq.py:1] {QUANT}"),
    ("sglang", f"[2026-11-21 18:12:51 TP0] {QUANT}"),
    (
        "tgi",
        (
            "2026-11-21T18:12:51.123456Z  WARN text_generation_launcher: awq quantization is not "
            "supported for AutoModel"
        ),
    ),
    ("tensorrt_llm", "[11/21/2026-18:12:51] [TRT-LLM] [W] Unsupported quant mode 3, casting"),
    (
        "lmdeploy",
        "2026-11-21 18:12:51,123 - lmdeploy - WARNING - base.py:71 - unsupported quant config",
    ),
    ("lmdeploy", "[TM][WARNING][1121.18:12:51.123456][engine.cc:262] unsupported quant config"),
    (
        "lightllm",
        (
            "INFO 07-11 11:11:21 [x.py:1] Model type foo is not supported by flash decoding, using "
            "triton"
        ),
    ),
    (
        "llama_cpp",
        "0.00.004.048 W llama_model_load: unknown model architecture in a comment, left out",
    ),
    (
        "transformers",
        (
            "/x/quantizers/awq.py:12: UserWarning: Can't load the configuration of 'x', using its "
            "default"
        ),
    ),
]
CAUSES = {
    "any": [
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms",
            "dist",
        ),
        ("KeyError: 'rope_scaling'", "died_at_start"),
    ],
    "vllm": [
        (
            "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
            "engine_dead",
        )
    ],
    "sglang": [
        (
            (
                "[2026-11-21 18:12:51] ERROR:    [Errno 98] error while binding: address already in "
                "use"
            ),
            "port_taken",
        )
    ],
    "lightllm": [("RuntimeError: port 8000 has been used", "port_taken")],
    "llama_cpp": [
        (
            (
                "0.00.002.711 E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, "
                "port: 2841"
            ),
            "port_taken",
        ),
        (
            "0.00.068.596 E common_init_: failed to create context with model '/models/tiny.gguf'",
            "bad_config",
        ),
    ],
}


@pytest.mark.parametrize(
    ("engine", "notice", "line", "kind"),
    [
        (engine, notice, *cause)
        for engine, notice in NOTICES
        for cause in CAUSES["any"] + CAUSES.get(engine, [])
    ],
)
def test_notice_does_not_hide_the_cause_below_it(
    engine: str, notice: str, line: str, kind: str
) -> None:
    assert failure("start", f"{notice}\n{line}", 1, engine).kind == kind


@pytest.mark.parametrize(("engine", "notice"), NOTICES)
@pytest.mark.parametrize("phase", ["start", "run"])
def test_notice_alone_is_no_cause(engine: str, notice: str, phase: str) -> None:
    result = failure(phase, f"{notice}\nbye", 1, engine)
    assert result.kind == ("died_at_start" if phase == "start" else "died")
    assert result.sentence.endswith("it ended with status 1")
    assert failure(phase, notice, -signal.SIGKILL, engine).kind == "killed"


def test_only_lines_after_readiness_count_for_a_death_while_serving() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory, trying a smaller graph\n# ready\nserving"
    assert failure("run", log, 0).kind == "died"
    assert (
        failure("run", f"{log}\ntorch.OutOfMemoryError: CUDA out of memory", 0).kind == "oom_load"
    )
    assert failure("run", "CUDA out of memory\n# ready", -signal.SIGKILL).kind == "killed"
    assert "trying a smaller graph" in failure("run", log, 0).log_tail, (
        "the tail is for people: all of it"
    )


def test_last_of_several_causes_counts() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory, trying a smaller graph\nOSError: [Errno "
        "98] Address already in use"
    )
    assert failure("start", log, 1).kind == "port_taken"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "gpu_fault"),
        (
            "ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
            "hub",
        ),
        ("OSError: [Errno 24] Too many open files", "node_limit"),
    ],
)
def test_faults_of_node_and_hub_win_over_refusals(cause: str, kind: str) -> None:
    log = (
        f"{cause}\nOSError: Can't load the configuration of 'acme/tiny'\nRuntimeError: NCCL "
        "error: unhandled"
    )
    result = failure("start", log, 1)
    assert (result.kind, result.failure_class) == (kind, FailureClass.INFRA)


def test_error_of_a_rank_that_lost_another_is_a_consequence() -> None:
    log = (
        "torch.OutOfMemoryError: CUDA out of memory.\nRuntimeError: NCCL error: remote process "
        "exited"
    )
    assert failure("start", log, 1).kind == "oom_load"


def test_full_kv_cache_counts_though_logged_as_information() -> None:
    log = (
        "INFO 07-11 11:11:21 [mem_manager.py:72] -3.25 GB space is available after load the model "
        "weight\n"
        "ERROR 07-11 11:11:21 [start_utils.py:34] init func start_router_process : init failed"
    )
    assert failure("start", log, 1, "lightllm").kind == "oom_kv"


@pytest.mark.parametrize(
    "assertion", ["AssertionError: expected 3 got 4", "AssertionError: (3, 4)", "AssertionError"]
)
def test_assertion_within_the_engine_is_a_death(assertion: str) -> None:
    assert failure("start", assertion, 1).kind == "died_at_start"
    dead = failure(
        "start", f"{assertion}\nWorker proc VllmWorker-1 died unexpectedly (exit code: -9).", 1
    )
    assert (dead.kind, dead.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
    assert "AssertionError" in dead.sentence


def test_line_in_passing_is_not_quoted_as_last_words() -> None:
    log = (
        "\x1b[2m2026-11-22T05:20:53.362852Z\x1b[0m \x1b[33m WARN\x1b[0m x: Found no NVIDIA "
        "driver: an error\nbye"
    )
    assert (
        failure("start", log, 1, "tgi").sentence
        == "the engine did not start: it ended with status 1"
    )


TAKEN = (
    "[2026-11-22 03:32:41] ERROR:    [Errno 98] error while attempting to bind on address: "
    "address already in use"
)
PART_DIED = (
    "[2026-11-22 03:35:21] Subprocess detokenizer (pid=20877) crashed with exit code -9. "
    "Triggering SIGQUIT."
)


@pytest.mark.parametrize(
    ("engine", "phase", "line", "over"),
    [
        ("sglang", "start", TAKEN, True),
        ("sglang", "run", TAKEN, False),  # the port of something else
        ("sglang", "run", PART_DIED, True),
        ("vllm", "run", "EngineDeadError: EngineCore encountered an issue.", True),
        (
            "vllm",
            "start",
            "[W1122 03:32:41.123 socket.cpp:464] [c10d] (errno: 98 - Address already in use).",
            False,
        ),
        (
            "vllm",
            "start",
            "INFO 11-21 11:28:41 [core.py:133] address already in use, taking another",
            False,
        ),
        ("sglang", "start", "ValueError: no such thing", False),  # it may go on without
        (
            "tgi",
            "run",
            "ERROR text_generation_launcher: Shard process was signaled to shutdown with signal 9",
            True,
        ),
    ],
)
def test_engine_is_over_some_seconds_after_its_last_words(
    engine: str, phase: str, line: str, over: bool
) -> None:
    now = [0.0]
    last_words = LastWords(ENGINES[engine].log, lambda: now[0])
    assert not last_words.spoken(EnginePhase(phase), [line]), "it may end by itself and say more"
    now[0] = LAST_WORDS_S
    assert (
        last_words.spoken(
            EnginePhase(phase), [("[2026-11-22 03:35:21] Decode batch, #running-req: 1")]
        )
        is over
    )


REFUSED = "pydantic_core._pydantic_core.ValidationError: 1 validation error for "


def test_refusal_is_whole_though_another_process_writes_between_its_lines() -> None:
    log = f"""(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/arg_utils.py", line 7, in create_engine_config
(APIServer pid=1) {REFUSED}VllmConfig
(EngineCore pid=2) INFO 11-28 10:00:00 [utils.py:1] waiting for the other ranks
(APIServer pid=1)   Value error, 8 heads must be divisible by 3. [type=value_error, input_value=3, input_type=int]
(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.12/v/value_error"""
    assert failure("start", log, 1).sentence.endswith(": 8 heads must be divisible by 3.")


def test_refusal_by_a_validator_function_is_quoted() -> None:
    log = f"""Traceback (most recent call last):
  File "/x/config.py", line 7, in validate
{REFUSED}function-wrap[validate()]
mode.lax-or-strict[lax=str,strict=function-before[f(),int]]
  Input should be 'a' or 'b' [type=literal_error, input_value='z', input_type=str]"""
    assert failure("start", log, 1).sentence.endswith("]: Input should be 'a' or 'b'")
