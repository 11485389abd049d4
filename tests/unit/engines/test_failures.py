"""Failures: the engines' own words become a class, a kind and one sentence."""

from __future__ import annotations

import signal
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.engines.failures import SIGNATURES, cause, classify, root_exception
from orchestrator.errors import Failure, FailureClass

PREFIX = "(EngineCore pid=5670) ERROR 11-21 11:28:41 [core.py:133] "
# Lines as the engines write them: kind, class, where it stands in the source (or `seen` of a real one), line.
ROWS = [line.split("\t") for line in Path(__file__).with_name("failure_lines.tsv").read_text().splitlines()]
SEEN = [pytest.param(kind, group, line, id=f"{kind}, {source}") for kind, group, source, line in ROWS]


def failure(phase: str, log: str, status: int | None) -> Failure:
    found = classify(phase, log, status)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "failure_class", "line"), SEEN)
def test_what_engines_said_before_is_recognized(kind: str, failure_class: str, line: str) -> None:
    found = failure("start", f"INFO something\n{line}\nINFO more", 1)
    assert (found.kind, found.failure_class) == (kind, failure_class)
    assert found.sentence.startswith("the engine did not start: ")
    assert "[type=" not in found.sentence
    assert "\n" not in found.sentence
    assert line in found.log_tail


def test_every_signature_has_an_example() -> None:
    assert {signature.kind for signature in SIGNATURES} - {kind for kind, *_ in ROWS} <= {"driver"}


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-21T18:12:51.123456Z  INFO text_generation_launcher: Error: alibi is not supported, it is left out",
        "2026-11-21 18:12:51,123 - lmdeploy - WARNING - base.py:71 - Error: PD prefix caching is not supported.",
        "[2026-11-21 18:12:51 TP0] Warning: ValueError: x is not supported here",
        "[11/21/2026-18:12:51] [TRT-LLM] [W] Advanced sampling is not supported for MTP yet - this will be added soon.",
        "INFO 07-11 11:11:21 [start_utils.py:34] init func start_router_process : init ok",
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading.",
    ],
)
def test_what_an_engine_says_in_passing_is_no_refusal(line: str) -> None:
    assert failure("start", line, 1).kind in ("died_at_start", "engine_dead")
    assert failure("start", f"{line}\nValueError: no such thing", 1).kind == "bad_config"


def test_the_cause_is_told_without_an_engines_time_stamps() -> None:
    said = {line: failure("start", line, 1).sentence.partition(": ")[2] for *_, line in ROWS}
    assert not [sentence for sentence in said.values() if "2026" in sentence or "0.00.0" in sentence]


def test_a_cause_wins_over_what_it_leads_to() -> None:
    log = "torch.OutOfMemoryError: CUDA out of memory.\nEngineDeadError: EngineCore encountered an issue."
    assert failure("start", log, 1).kind == "oom_load"


def test_a_death_while_serving_names_the_first_exception_not_its_consequences() -> None:
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
    found = failure("run", log, 0)
    assert (found.kind, found.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
    assert found.sentence == (
        "the engine failed while it served: it died: AssertionError (assert self.intermediate_tensors is not None)"
    )


def test_words_of_a_refused_request_are_no_reason_for_a_later_death() -> None:
    log = "ValueError: this request is too long\nWorker proc died unexpectedly (exit code: -9)"
    assert failure("run", log, 0).kind == "engine_dead"


@pytest.mark.parametrize(
    ("phase", "status", "kind", "words"),
    [
        ("start", 1, "died_at_start", "it ended with status 1"),
        ("run", 0, "died", "it ended with status 0"),
        ("run", -signal.SIGKILL, "killed", "killed by SIGKILL"),
        ("start", -signal.SIGILL, "illegal_instruction", "an instruction that this processor does not have"),
        ("run", -signal.SIGSEGV, "died", "it ended by SIGSEGV"),
        ("run", -99, "died", "it ended by signal 99"),
        ("run", None, "not_answering", "it runs but does not answer"),
    ],
)
def test_without_known_words_the_exit_status_is_told(phase: str, status: int | None, kind: str, words: str) -> None:
    found = failure(phase, "nothing of note", status)
    assert found.kind == kind
    assert words in found.sentence


def test_unknown_last_words_are_quoted() -> None:
    assert failure("start", "fine\nfatal: the moon is full\nbye", 3).sentence.endswith(
        "saying: fatal: the moon is full"
    )


def test_an_expected_stop_is_no_failure() -> None:
    assert classify("run", "CUDA out of memory", -15, expected_stop=True) is None


def test_our_own_header_in_the_log_is_not_taken_for_the_engines_words() -> None:
    assert failure("start", "# $ vllm serve --reason 'invalid choice: x'\nbye", 1).kind == "died_at_start"


def test_a_cause_is_cleaned_and_cut() -> None:
    assert cause(PREFIX + "KeyError: 'x'") == "KeyError: 'x'"
    assert cause("2026-11-21T11:28:41.123Z ERROR text") == "ERROR text"
    assert len(cause("x" * 1000)) == 240


@hypothesis.settings(deadline=None)
@given(st.text(), st.sampled_from(["start", "run"]), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_log_gives_one_sentence(log: str, phase: str, status: int | None) -> None:
    found = failure(phase, log, status)
    assert found.sentence.strip()
    assert len(found.log_tail.splitlines()) <= 80 or found.log_tail.count("\n") < 80


@hypothesis.settings(deadline=None)
@given(st.lists(st.text()))
def test_looking_for_an_exception_never_fails(lines: list[str]) -> None:
    found = root_exception(lines)
    assert found is None or found.strip()


def test_what_is_said_in_passing_is_not_why_it_was_killed() -> None:
    log = "(APIServer pid=7) INFO 11-21 12:14:38 [cpu.py:224] FlashInfer is not supported on this platform.\n"
    failure = classify("start", log, -9)
    assert failure is not None
    assert failure.failure_class is not FailureClass.BAD_CONFIG
    refused = classify("start", log + "ValueError: fp9 is not supported\n", 1)
    assert refused is not None
    assert refused.failure_class is FailureClass.BAD_CONFIG


QUANT = "torch.bfloat16 is not supported for quantization method awq, casting to float16"
NOTICES = {
    "vllm": f"(Worker_TP0 pid=71) WARNING 11-21 11:28:41 [awq.py:1] {QUANT}",
    "vllm on ray": f"(RayWorkerWrapper pid=71, ip=10.0.0.2) WARNING 11-21 11:28:41 [awq.py:1] {QUANT}",
    "sglang": f"[2026-11-21 18:12:51 TP0] {QUANT}",
    "tgi": f"2026-11-21T18:12:51.123456Z  WARN text_generation_launcher: {QUANT}",
    "tensorrt_llm": f"[11/21/2026-18:12:51] [TRT-LLM] [W] {QUANT}",
    "lmdeploy": f"2026-11-21 18:12:51,123 - lmdeploy - WARNING - base.py:71 - {QUANT}",
    "lmdeploy's turbomind": f"[TM][WARNING][1121.18:12:51.123456][engine.cc:262] {QUANT}",
    "lightllm": "INFO 07-11 11:11:21 [x.py:1] Model type foo is not supported by flash decoding, using triton",
    "llama_cpp": "0.00.004.048 W get_repo_files: failed to resolve commit for acme/tiny",
    "transformers": f"/x/quantizers/awq.py:12: UserWarning: {QUANT}",
}


@pytest.mark.parametrize("engine", NOTICES)
@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", "port_taken"),
        ("0.00.002.711 E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 28441", "port_taken"),
        ("[2026-11-21 18:12:51 +0000] [71] [ERROR] Connection in use: ('127.0.0.1', 8000)", "port_taken"),
        ("[2026-11-21 18:12:51] ERROR:    [Errno 98] error while binding: address already in use", "port_taken"),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms", "dist"),
        ("0.00.068.596 E common_init_: failed to create context with model '/models/tiny.gguf'", "bad_config"),
        ("Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.", "engine_dead"),
        ("KeyError: 'rope_scaling'", "died_at_start"),
    ],
)
def test_a_notice_before_the_cause_does_not_hide_it(engine: str, line: str, kind: str) -> None:
    assert failure("start", f"{NOTICES[engine]}\n{line}", 1).kind == kind


@pytest.mark.parametrize("engine", NOTICES)
def test_a_notice_counts_when_the_engine_said_nothing_else_and_was_not_killed(engine: str) -> None:
    assert failure("start", f"{NOTICES[engine]}\nbye", 1).kind in ("bad_quant", "bad_model", "no_model")
    assert failure("start", NOTICES[engine], -signal.SIGKILL).kind == "killed"


def test_a_cache_without_room_stands_before_the_death_that_follows_though_it_is_told_as_information() -> None:
    log = (
        "INFO 07-11 11:11:21 [mem_manager.py:72] -3.25 GB space is available after load the model weight\n"
        "ERROR 07-11 11:11:21 [start_utils.py:34] init func start_router_process : init failed"
    )
    assert failure("start", log, 1).kind == "oom_kv"


@pytest.mark.parametrize("assertion", ["AssertionError: expected 3 got 4", "AssertionError: (3, 4)", "AssertionError"])
def test_an_assertion_of_the_engines_own_is_a_death_and_no_refusal(assertion: str) -> None:
    assert failure("start", assertion, 1).kind == "died_at_start"
    dead = failure("start", f"{assertion}\nWorker proc VllmWorker-1 died unexpectedly (exit code: -9).", 1)
    assert (dead.kind, dead.failure_class) == ("engine_dead", FailureClass.ENGINE_CRASH)
    assert "AssertionError" in dead.sentence
