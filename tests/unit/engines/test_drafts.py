"""Speculative decoding in the words of each engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.engines.command import Node
from orchestrator.engines.dialects import dialect_of
from orchestrator.engines.problems import problems_of
from orchestrator.engines.registry import ENGINES
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.command_lines import by_flag

GPU = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)


def settings(engine: str, **given: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": engine, "model": "m", **given})


def flags(engine: str, speculative: dict[str, Any], **given: Any) -> dict[str, list[str]]:
    made = settings(engine, speculative=speculative, **given)
    assert problems_of(ENGINES[engine], made, GPU) == []
    own_flags: dict[str, list[str]] = by_flag(
        list(ENGINES[engine].command(made, GPU, Node(), "k").argv)
    )
    return own_flags


def problems(engine: str, speculative: dict[str, Any] | None = None, **given: Any) -> str:
    made = settings(engine, speculative=speculative, **given)
    return "\n".join(problems_of(ENGINES[engine], made, GPU))


@pytest.mark.parametrize(
    "drafts",
    [
        {"method": "dspark", "num_speculative_tokens": 7},
        {"method": "dflash", "num_speculative_tokens": 15, "model": "/d"},
        {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        {"method": "custom_class", "num_speculative_tokens": 3, "model": "ours.Proposer"},
        {"method": "qwen3_next_mtp", "num_speculative_tokens": 2},
        {"method": "ernie_mtp", "num_speculative_tokens": 1},
        {"num_speculative_tokens": 4, "model": "google/gemma-4-31B-it-assistant"},
    ],
)
def test_vllm_gets_the_draft_as_it_stands(drafts: dict[str, Any]) -> None:
    assert json.loads(flags("vllm", drafts)["--speculative-config"][0]) == drafts


def test_further_keys_of_a_draft_go_into_vllms_json() -> None:
    further = {
        "attention_backend": "FLASH_ATTN",
        "moe_backend": "triton",
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "max_model_len": 4096,
        "quantization": "fp8",
    }
    drafts = {"method": "eagle3", "num_speculative_tokens": 3, "model": "/d"}
    given = flags("vllm", drafts | {"extra_args": further})["--speculative-config"][0]
    assert json.loads(given) == drafts | further


@pytest.mark.parametrize(
    ("drafts", "sentence"),
    [
        (
            {"method": "dflsh", "num_speculative_tokens": 3},
            "speculative: vLLM has no method dflsh; did you mean 'dflash'?",
        ),
        (
            {"num_speculative_tokens": 3},
            "speculative: without a method it needs the draft model, which tells the method",
        ),
        (
            {"method": "dflash", "num_speculative_tokens": 3},
            "speculative: method dflash needs a model",
        ),
        (
            {"method": "mtp", "num_speculative_tokens": 3, "extra_args": {"moe_backnd": "x"}},
            (
                "speculative: extra_args: vLLM has no key 'moe_backnd' there; did you mean "
                "'moe_backend'?"
            ),
        ),
        (
            {"method": "mtp", "num_speculative_tokens": 3, "extra_args": {"model": "x"}},
            "speculative: extra_args: model is a key of speculative itself",
        ),
        ({"method": "mtp", "num_speculative_tokens": 3, "eagle_topk": 2}, "vLLM has no eagle_topk"),
    ],
)
def test_draft_settings_that_vllm_lacks_are_refused(drafts: dict[str, Any], sentence: str) -> None:
    assert sentence in problems("vllm", drafts)


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        (
            {"method": "eagle", "model": "/d", "eagle_topk": 4, "num_draft_tokens": 16},
            {"algorithm": "EAGLE", "num-steps": "3", "eagle-topk": "4", "num-draft-tokens": "16"},
        ),
        (
            {"method": "eagle3", "model": "/d"},
            {"algorithm": "EAGLE3", "num-steps": "3", "eagle-topk": "1", "num-draft-tokens": "4"},
        ),
        ({"method": "NEXTN"}, {"algorithm": "NEXTN", "num-steps": "3", "eagle-topk": "1"}),
        ({"method": "dflash", "model": "/d"}, {"algorithm": "DFLASH", "num-draft-tokens": "4"}),
        ({"method": "DSPARK"}, {"algorithm": "DSPARK", "num-draft-tokens": "4"}),
        ({"method": "ngram"}, {"algorithm": "NGRAM", "num-draft-tokens": "3"}),
    ],
)
def test_sglang_gets_chains_trees_and_blocks(
    drafts: dict[str, Any], expected: dict[str, str]
) -> None:
    own_flags = flags("sglang", drafts | {"num_speculative_tokens": 3})
    assert (
        expected.items()
        <= {
            flag.removeprefix("--speculative-"): values[0]
            for flag, values in own_flags.items()
            if flag.startswith("--speculative-")
        }.items()
    )
    assert ("--speculative-num-steps" in own_flags) is ("num-steps" in expected)


def test_a_tree_without_its_size_is_refused() -> None:
    tree = {"method": "eagle", "model": "/d", "num_speculative_tokens": 3, "eagle_topk": 4}
    assert "makes a tree, which needs num_draft_tokens" in problems("sglang", tree)
    chain = {"method": "eagle", "model": "/d", "num_speculative_tokens": 3, "num_draft_tokens": 9}
    assert "num_draft_tokens is for trees" in problems("sglang", chain)


@pytest.mark.parametrize(
    ("engine", "extra", "tokens"),
    [
        ("vllm", {"--speculative-config": '{"method":"mtp","num_speculative_tokens":2}'}, 2),
        (
            "vllm",
            {
                "--speculative-config.method": "mtp",
                "--speculative-config.num_speculative_tokens": 3,
            },
            3,
        ),
        ("vllm", {"--spec-method": "ngram", "--spec-tokens": 5}, 5),
        (
            "sglang",
            {"--speculative-algorithm": "EAGLE", "--speculative-num-steps": 4},
            4,
        ),
    ],
)
def test_flags_may_give_the_draft_only_where_the_field_speculative_does_not(
    engine: str, extra: dict[str, Any], tokens: int
) -> None:
    made = settings(engine, extra_args=extra)
    assert problems_of(ENGINES[engine], made, GPU) == []
    assert dialect_of(ENGINES[engine], made, "completions").tokens_per_step == 1 + tokens
    # the memory of drafts that only flags give is not predicted
    assert ENGINES[engine].rules.memory_overrides(made)
    drafts = {"method": "mtp", "num_speculative_tokens": 1}
    assert "is set by the field speculative" in problems(engine, drafts, extra_args=extra)


@pytest.mark.parametrize(
    ("engine", "method", "flag", "value"),
    [
        ("lmdeploy", "qwen3_5_mtp", "--speculative-algorithm", "qwen3_5_mtp"),
        ("lmdeploy", "mtp", "--speculative-algorithm", "deepseek_mtp"),
        ("llama_cpp", "ngram-map-k", "--spec-ngram-map-k-size-m", "3"),
        ("llama_cpp", "draft-mtp", "--spec-draft-n-max", "3"),
        ("lightllm", "vanilla_with_att", "--mtp_mode", "vanilla_with_att"),
    ],
)
def test_an_engines_own_name_of_a_method_is_taken(
    engine: str, method: str, flag: str, value: str
) -> None:
    needed: dict[str, dict[str, Any]] = {
        "lmdeploy": {"extra_args": {"--backend": "pytorch"}},
        "llama_cpp": {"max_model_len": 4096},
    }
    drafts = {"method": method, "num_speculative_tokens": 3}
    own_flags = flags(engine, drafts, **needed.get(engine, {}))
    assert own_flags[flag] == [value]
