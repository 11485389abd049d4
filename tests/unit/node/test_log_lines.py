"""Lines of logs: whose they are and how grave, in every format that engines write."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.log_lines import LogLevel, read

# What is no error: {} is the text.
PASSING = [
    "(EngineCore pid=5670) WARNING 11-21 11:28:41 [core.py:133] {}",
    "(Worker pid=71) (Worker_TP0 pid=71) WARNING 11-21 11:28:41 [core.py:133] {}",
    "(RayWorkerWrapper pid=71, ip=10.0.0.2) INFO 11-21 11:28:41 [worker.py:1] {}",
    "WARNING 08-16 18:47:21 engine.py:456] {}",
    "vllm-1  | WARNING 11-21 11:28:41 [core.py:133] {}",
    "2026-11-21T18:12:51.123456789Z stderr F WARNING 11-21 11:28:41 [core.py:133] {}",
    "Nov 21 11:28:41 host vllm[123]: (EngineCore pid=5) WARNING 11-21 11:28:41 [core.py:1] {}",
    "[rank1]: WARNING {}",
    "INFO:     {}",
    "WARNING:root:{}",
    "2026-11-21 11:28:41,123 - lmdeploy - WARNING - base.py:71 - {}",
    "2026-11-21 11:28:41,123\tWARNING services.py:1996 -- {}",
    "[2026-11-21 11:28:41,123] [WARNING] [real.py:162:get] {}",
    "[2026-11-21 11:28:41,123] torch._dynamo.convert_frame: [WARNING] {}",
    "[WARNING|modeling_utils.py:12] 2026-11-21 11:28:41 >> {}",
    "2026-11-21 11:28:41.123 | WARNING  | package.module:function:12 - {}",
    "2026-11-21T18:12:51.123456Z  WARN text_generation_launcher: {}",
    "[2026-11-21T11:28:41Z WARN  hf_hub] {}",
    '{{"timestamp":"2026-11-21","level":"WARN","fields":{{"message":"{}"}}}}',
    'time="2026-11-21T11:28:41Z" level=warning msg="{}"',
    "[11/21/2026-18:12:51] [TRT-LLM] [W] {}",
    "[11/21/2026-18:12:51] [TRT-LLM] [RANK 0] [W] {}",
    "[TensorRT-LLM][WARNING] {}",
    "[1,0]<stderr>:[TensorRT-LLM][WARNING] {}",
    "[TM][WARN][0914.14:00:37.807188][cast.cu:264] {}",
    "0.00.002.711 W {}",
    "llama_model_load: warning: {}",
    "W1121 11:28:41.123456 12345 file.cc:12] {}",
    "[W1122 03:32:41.123 socket.cpp:464] [c10d] {}",
    "[W socket.cpp:464] {}",
    "[rank0]:[W1122 03:32:41.123 ProcessGroupNCCL.cpp:1496] {}",
    "host1:812:1301 [0] NCCL WARN {}",
    "[2026-11-21 11:28:41,123 W 123 456] (raylet) file.cc:12: {}",
    "/x/y.py:12: UserWarning: {}",
    "nvcc warning : {}",
    "x.cu(12): warning #20012-D: {}",
    "2026/11/21 11:28:41 [warn] 1#2: {}",
    "2026-11-21 11:28:41 [warning  ] {}",
]
# What is one, or does not say.
TELLING = [
    "{}",
    "(EngineCore pid=5670) ERROR 11-21 11:28:41 [core.py:133] {}",
    "(Worker pid=71) (Worker_TP1 pid=71) ERROR 03-05 09:56:09 [multiproc_executor.py:880] {}",
    "ERROR:    (Worker_TP1 pid=3534) ERROR 10-11 22:28:17 [multiproc_executor.py:694] {}",
    "ERROR 08-16 18:47:21 [engine.py:456] {}",
    "vllm-1  | {}",
    "[rank0]: {}",
    "[1,0]<stderr>:{}",
    "2026-11-21 18:12:51,123 - lmdeploy - ERROR - base.py:71 - {}",
    "[TM][FATAL][0914.14:00:37.807188][cast.cu:264] {}",
    "2026-11-21T18:12:51.123456Z ERROR text_generation_launcher: {}",
    "[11/21/2026-18:12:51] [TRT-LLM] [E] {}",
    "2026-11-21 11:28:41.123 | ERROR    | package.module:function:12 - {}",
    "0.00.002.711 E {}",
    "E1121 11:28:41.123456 12345 file.cc:12] {}",
]


@pytest.mark.parametrize("form", PASSING)
def test_a_warning_is_one_in_the_format_of_any_engine(form: str) -> None:
    line = read(form.format("CUDA out of memory"))
    assert line.is_passing
    assert "CUDA out of memory" in line.text


@pytest.mark.parametrize("form", TELLING)
def test_an_error_is_read_without_its_header(form: str) -> None:
    line = read(form.format("ValueError: 404 is no number"))
    assert not line.is_passing
    assert line.text.removeprefix("text_generation_launcher: ") == "ValueError: 404 is no number"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: Warning: User-specified context_length is greater than the derived one",
        "RuntimeError: [TensorRT-LLM][ERROR] Assertion failed: INFO is missing",
        "vllm: error: unrecognized arguments: --log-level=info",
        "Error: DownloadError",
        "  Value error, the level=info is unknown",
        "404 Client Error. (Request ID: Root=1)",
    ],
)
def test_a_level_in_the_text_of_a_line_is_not_its_own(text: str) -> None:
    line = read(text)
    assert line.level in (None, LogLevel.ERROR)
    assert line.text == text.strip()


def test_the_process_that_wrote_a_line_is_known() -> None:
    assert read("(Worker_TP0 pid=71) ERROR 11-21 11:28:41 [x.py:1] y").origin == (
        "(Worker_TP0 pid=71)"
    )
    assert read("[rank0]: y").origin == "[rank0]:"
    assert read("y").origin == ""


@hypothesis.settings(deadline=None)
@given(st.text())
def test_any_line_can_be_read(raw: str) -> None:
    line = read(raw)
    assert line.raw == raw
    assert line.text == line.text.strip()
