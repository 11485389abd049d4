"""The skeleton that all engines share, by a small engine of its own."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.engines.command import Node
from orchestrator.engines.registry import ENGINES
from orchestrator.node.failures import EnginePhase, classify
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag
from tests.unit.engines.builders import ACME, acme

GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)


def test_command_has_the_flags_of_its_fields_and_then_extra_args() -> None:
    given = acme(
        dtype="half",
        extra_args={"--more": ["a", "b"], "--on": True, "--off": False},
        env={"ACME": "2"},
    )
    made = ACME.command(given, GPU, Node(port=7, devices=("0", "3")), "k3y")
    assert by_flag(made.argv) == by_flag(
        "acme --port 7 --ranks 1 --batch 64 --half-batch 32 --type half --more a b --on"
    )
    assert made.argv[-4:] == ("--more", "a", "b", "--on")
    assert made.env == {
        "ACME": "2", "CUDA_VISIBLE_DEVICES": "0,3", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert made.secrets == {"ACME_KEY": "k3y"}
    assert made.notes == ("max_num_seqs=64 was left open and is pinned", "so")
    assert made.grace_s is None
    assert ACME.command(given, GPU, Node(rank=1), "").grace_s == 0.5


def test_only_open_fields_are_pinned() -> None:
    assert ACME.open_pins(acme(max_num_seqs=3), GPU) == {}
    assert by_flag(ACME.command(acme(max_num_seqs=3), GPU, Node(), "").argv)["--batch"] == ["3"]


def test_figures_are_read_from_the_log() -> None:
    assert ACME.reported("a cache of 12,345 tokens") == {"kv_cache_tokens": 12345}


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("no cache left", FailureKind.OOM_KV),  # the engine's own words
        ("OSError: Address already in use", FailureKind.PORT_TAKEN),  # words that engines share
        ("note: no cache left\nKeyError: 'x'", FailureKind.DIED_AT_START),  # a note is no cause
        ("ValueError: all is lost\nKeyError: 'x'", FailureKind.DIED_AT_START),
    ],
)
def test_failures_are_found_by_words_of_the_engine_and_by_shared_words(
    log: str, kind: FailureKind
) -> None:
    assert classify(ACME.log, EnginePhase.START, log, 1).kind is kind


@pytest.mark.parametrize(
    ("name", "salted"),
    [
        ("vllm", {"completions", "chat"}),
        ("sglang", {"completions", "chat"}),
        ("emulator", {"completions", "chat"}),
        ("tensorrt_llm", {"chat"}),
        ("tgi", set()),
        ("lmdeploy", set()),
        ("lightllm", set()),
        ("llama_cpp", set()),
        ("transformers", set()),
        ("endpoint", set()),
    ],
)
def test_apis_that_take_a_cache_salt(name: str, salted: set[str]) -> None:
    dialects = ENGINES[name].dialects(EngineSettings(engine=name, model="m", url="http://x"))
    assert {api for api, dialect in dialects.items() if dialect.cache_salt} == salted
