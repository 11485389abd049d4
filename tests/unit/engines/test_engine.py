"""The skeleton that all engines share, by a small engine of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.engines import ENGINES
from orchestrator.engines.command import Command, Flag, Node, random_key, reading
from orchestrator.engines.drafts import Drafts
from orchestrator.engines.engine import Engine
from orchestrator.engines.log_words import LogWords
from orchestrator.engines.problems import problems_of
from orchestrator.node.failures import classify
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag

GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
CPU = Hardware(name="cpu")


def _half(value: int, settings: EngineSettings) -> int | None:
    return value // 2 if settings.dtype == "half" else None


ACME = Engine(
    name="acme",
    title="Acme",
    dialects=lambda settings: {"completions": Dialect("openai_completions", "/v1/completions")},
    flags={
        "max_num_seqs": (Flag("--batch"), Flag("--half-batch", of=_half)),
        "dtype": Flag("--type", choices=("half", "float")),
    },
    handled_fields=("tensor_parallel_size", "speculative"),
    unsupported={"tokenizer": "Acme has no tokenizer"},
    allowed_values={"load_format": ("dummy",)},
    reserved=("--port",),
    aliases={"-b": "the field max_num_seqs", "--ranks": "the field tensor_parallel_size"},
    drafts=Drafts({"ngram": "ngram"}),
    pins=lambda settings, hardware: {"max_num_seqs": 64},
    start=lambda settings, hardware, node: Command(
        ("acme", "--port", str(node.port), "--ranks", str(settings.tensor_parallel_size)),
        {"ACME": "1"},
        notes=("so",),
    ),
    key_variable="ACME_KEY",
    follower_grace_s=0.5,
    reported=reading({"kv_cache_tokens": (r"cache of ([\d,]+) tokens", int)}),
    log=LogWords(
        {FailureKind.OOM_KV: "no cache left"}, passing=r"note: ", consequences="all is lost"
    ),
)


def settings(**given: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "acme", "model": "/m/tiny"} | given)


def test_a_command_has_the_engines_own_words_the_flags_of_its_fields_and_extra_args_last() -> None:
    given = settings(
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


def test_only_what_was_left_open_is_pinned() -> None:
    assert ACME.open_pins(settings(max_num_seqs=3), GPU) == {}
    assert by_flag(ACME.command(settings(max_num_seqs=3), GPU, Node(), "").argv)["--batch"] == ["3"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"block_size": 16}, "block_size: Acme has no such setting"),
        ({"tokenizer": "x"}, "tokenizer: Acme has no tokenizer"),
        ({"url": "http://x"}, "url: is for the engine `endpoint`; this one is launched"),
        ({"dtype": "int4"}, "dtype: 'int4' is none of half, float; Acme has no other"),
        (
            {"env": {"CUDA_VISIBLE_DEVICES": "0"}},
            "env: CUDA_VISIBLE_DEVICES is set by this program",
        ),
        ({"nnodes": 2}, "nnodes: Acme runs on one node"),
        (
            {"extra_args": {"--port": 1}},
            "extra_args: --port is set by this program; Acme would get it twice",
        ),
        ({"extra_args": {"--batch=3": True}}, "--batch=3 is set by the field max_num_seqs"),
        (
            {"extra_args": {"--no-ranks": True}},
            "--no-ranks is set by the field tensor_parallel_size",
        ),
        ({"extra_args": {"--tensor-parallel-size": 2}}, "is set by the field tensor_parallel_size"),
        ({"extra_args": {"--half-batch": 2}}, "--half-batch is set by the field max_num_seqs"),
        ({"enable_lora": True}, "enable_lora: no workload asks for LoRA adapters, guided output"),
        (
            {"extra_args": {"--lora-paths": "a=b"}},
            "extra_args: --lora-paths: no workload asks for LoRA adapters",
        ),
        (
            {"extra_args": {"--mm-processor-kwargs": "{}"}},
            "no workload asks for LoRA adapters, guided output or images",
        ),
        ({"extra_args": {"-b": 1}}, "-b is set by the field max_num_seqs"),
        ({"extra_args": {"more": 1}}, "'more' is not a flag; write '--more'"),
        (
            {"speculative": {"method": "mtp", "num_speculative_tokens": 1}},
            "Acme has no method mtp; it has ngram",
        ),
        (
            {"speculative": {"method": "ngram", "num_speculative_tokens": 1, "model": "/d"}},
            "speculative: method ngram has no model",
        ),
    ],
)
def test_what_has_no_place_is_refused_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    (problem,) = problems_of(ACME, settings(**given), GPU)
    assert sentence in problem


def test_flags_that_leave_out_what_no_request_uses_are_welcome() -> None:
    leaving_out = {
        "--limit-mm-per-prompt": '{"image":0}',
        "--disable-grammar-support": True,
        "--no-enable-lora": True,
    }
    assert problems_of(ACME, settings(extra_args=leaving_out), GPU) == []


def test_gpus_and_several_nodes_are_what_it_says() -> None:
    assert problems_of(ACME, settings(), CPU) == ["hardware: Acme is run on GPUs only"]
    assert problems_of(replace(ACME, on_cpus=True), settings(), CPU) == []
    assert problems_of(replace(ACME, several_nodes=True), settings(nnodes=2), GPU) == []


def test_a_speculating_engine_makes_several_tokens_in_a_step() -> None:
    assert ACME.dialect(settings(), "completions").tokens_per_step == 1
    drafting = settings(speculative={"method": "ngram", "num_speculative_tokens": 3})
    assert ACME.dialect(drafting, "completions").tokens_per_step == 4


def test_its_log_is_read_by_its_own_words_and_by_those_of_all() -> None:
    assert ACME.reported("a cache of 12,345 tokens") == {"kv_cache_tokens": 12345}
    assert classify(ACME.log, "start", "no cache left", 1).kind is FailureKind.OOM_KV
    assert (
        classify(ACME.log, "start", "note: no cache left\nKeyError: 'x'", 1).kind
        is FailureKind.DIED_AT_START
    )
    assert (
        classify(ACME.log, "start", "ValueError: all is lost\nKeyError: 'x'", 1).kind
        is FailureKind.DIED_AT_START
    )
    assert (
        classify(ACME.log, "start", "OSError: Address already in use", 1).kind
        is FailureKind.PORT_TAKEN
    )


@pytest.mark.parametrize(
    ("name", "salted"),
    [
        ("vllm", {"completions", "chat"}),
        ("sglang", {"completions", "chat"}),
        ("emulator", {"completions", "chat"}),
    ]
    + [("tensorrt_llm", {"chat"})]
    + [
        (name, set())
        for name in ("tgi", "lmdeploy", "lightllm", "llama_cpp", "transformers", "endpoint")
    ],
)
def test_the_apis_that_take_a_cache_salt_are_recorded(name: str, salted: set[str]) -> None:
    dialects = ENGINES[name].dialects(EngineSettings(engine=name, model="m", url="http://x"))
    assert {api for api, dialect in dialects.items() if dialect.cache_salt} == salted


def test_no_random_key_looks_like_a_flag() -> None:
    keys = {random_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert not [key for key in keys if not key[0].isalnum() or len(key) < 32]
