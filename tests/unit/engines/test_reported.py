"""What engines say of themselves at start, read out of their logs.

``start_logs`` holds the lines as the engine's source writes them; a file's first line names the version and the place.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.engines import ENGINES

LOGS = Path(__file__).with_name("start_logs")
EXPECTED: dict[str, dict[str, int | str]] = {
    # the fullest rank of two, with two caches of one rank added up
    "sglang-two_ranks_two_caches": {
        "kv_cache_tokens": 123456,
        "max_model_len": 8192,
        "weight_bytes": round(14.99 * 2**30),
        "kv_cache_bytes": round(21.5 * 2**30),
    },
    "sglang-sized_after_capture": {"kv_cache_bytes": round(55.25 * 2**30)},
    "llama_cpp-as_started": {"kv_cache_tokens": 2048, "max_model_len": 512},
    "llama_cpp-verbose": {
        "kv_cache_tokens": 8192,
        "max_model_len": 8192,
        "weight_bytes": round(6378.4 * 2**20),
        "kv_cache_bytes": 512 * 2**20,
    },
    "lmdeploy-turbomind": {"kv_cache_bytes": round(55.25 * 2**30)},
    "lmdeploy-fallback": {"backend": "pytorch"},
    "tgi": {"kv_cache_tokens": 49920},
    "lightllm-profiled": {"kv_cache_tokens": 451379, "kv_cache_bytes": 451379 * 2**17},
    "lightllm-given": {"kv_cache_tokens": 4096},
    "tensorrt_llm": {
        "weight_bytes": round(14.99 * 2**30),
        "kv_cache_tokens": 262112,
        "kv_cache_bytes": round(2.25 * 2**30),
        "max_model_len": 262145,
    },
}


def test_every_log_is_expected_to_say_something() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_an_engine_says_of_itself_is_read_from_its_log(name: str) -> None:
    log = (LOGS / f"{name}.log").read_text()
    assert log.startswith("# ")
    assert ENGINES[name.partition("-")[0]]().reported(log) == EXPECTED[name]


@pytest.mark.parametrize("size", ["1.5GB", "12PiB", "1.5 GiB", "1.2.3GiB", ".GiB", "GiB", "1.5GiBs"])
def test_a_size_that_lmdeploy_writes_otherwise_is_left_out(size: str) -> None:
    assert ENGINES["lmdeploy"]().reported(f"[cache] region={size} free=1B") == {}
