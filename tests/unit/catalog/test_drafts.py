"""What speculative decoding adds to the memory of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.drafts import draft_bytes, head_as_model, own_layer_as_model
from orchestrator.catalog.memory import GIB, NO_DRAFT, estimate_memory
from orchestrator.catalog.models import ModelFacts, facts_from_config, known_configs
from orchestrator.plan.feasibility import Feasibility, assess
from orchestrator.spec.settings import EngineSettings, Hardware, Speculative

LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"
LLAMA_3B, DEEPSEEK = "meta-llama/Llama-3.2-3B-Instruct", "deepseek-ai/DeepSeek-V3"
FP8 = {"quantization_config": {"quant_method": "fp8"}}
# config.json of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B; its file has 850 MB in 16 bits
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 128256,
    "draft_vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip


def facts(name: str, **changes: Any) -> ModelFacts:
    found = facts_from_config(name, known_configs()[name] | changes)
    assert found is not None
    return found


def settings(method: str, model: str | None = None, **more: Any) -> EngineSettings:
    spec = {"method": method, "num_speculative_tokens": 3, "model": model}
    given = {"engine": "vllm", "model": "m", "max_model_len": 4096, "speculative": spec}
    return EngineSettings.model_validate(given | more)


def judge(
    target: ModelFacts, draft: ModelFacts | None, on: str = "H100-80GB", **given: Any
) -> Feasibility:
    hardware = Hardware(name="x", accelerator=on, gpus_per_node=8)
    return assess(settings(**given), target, hardware, draft)


def test_a_draft_model_can_make_a_deployment_impossible() -> None:
    """70 billion FP8 weights and a draft of 3 billion in 16 bits have 73.7 GiB, vLLM takes 73.3."""
    target = facts(LLAMA_70B, **FP8)
    alone = judge(target, None, method="ngram")
    both = judge(target, facts(LLAMA_3B), method="draft_model", model=LLAMA_3B)
    assert alone.status == "fits"
    assert both.status == "impossible"
    added = both.starts[""].weight_bytes - alone.starts[""].weight_bytes
    assert added == pytest.approx(6.43e9, rel=0.005)
    (reason,) = (reason for reason in both.reasons if "weights" in reason)
    assert reason.startswith(
        "73.7 GiB of weights (6.0 GiB of them the draft's) on each rank do not"
    )


def test_a_draft_models_kv_cache_takes_room_from_the_models() -> None:
    target, draft = facts(LLAMA_8B), facts(LLAMA_3B)
    alone = judge(target, None, method="ngram").starts[""]
    both = judge(target, draft, method="draft_model", model=LLAMA_3B).starts[""]
    per_token = 2 * 2 * 8 * 128  # bytes of keys and values in one layer
    assert alone.kv_bytes_per_token == 32 * per_token
    assert both.kv_bytes_per_token == (32 + 28) * per_token
    rooms = both.kv_cache_memory_bytes, alone.kv_cache_memory_bytes
    assert both.kv_cache_tokens / alone.kv_cache_tokens == pytest.approx(
        32 / 60 * rooms[0] / rooms[1], rel=1e-4
    )


def test_the_models_own_draft_layer_counts_only_when_it_is_used() -> None:
    """The layer of DeepSeek-V3 has 11.5 GB of the files without its copies of the embedding and the
    output layer.
    """
    model = facts(DEEPSEEK)
    alone = judge(model, None, "H200", method="ngram", tensor_parallel_size=8).starts[""]
    both = judge(model, None, "H200", method="mtp", tensor_parallel_size=8).starts[""]
    added = 8 * (both.weight_bytes - alone.weight_bytes)
    assert added == pytest.approx(11.7e9 + 7 * 2 * 2 * 7168**2, rel=0.03)
    assert both.kv_bytes_per_token == alone.kv_bytes_per_token * 62 / 61


def test_a_draft_head_shares_embedding_and_output_layer_with_the_model() -> None:
    head = facts_from_config("eagle", EAGLE3)
    assert head is not None
    added = draft_bytes(facts(LLAMA_8B), settings("eagle3", "eagle"), head)
    assert added is not None
    assert added.weights == pytest.approx(850e6, rel=0.01)
    assert added.kv_per_token == 2 * 2 * 8 * 128
    two = draft_bytes(facts(LLAMA_8B), settings("eagle3", "eagle", tensor_parallel_size=2), head)
    assert two is not None
    assert two.weights == added.weights / 2


def test_a_draft_runs_on_the_last_pipeline_stage() -> None:
    target, draft = facts(LLAMA_70B), facts(LLAMA_8B)
    whole = settings("draft_model", LLAMA_8B, pipeline_parallel_size=3)
    added = draft_bytes(target, whole, draft)
    assert added is not None
    found = estimate_memory(target, whole, None, draft=added)
    plain = estimate_memory(target, whole, None)
    per_layer = 2 * 2 * 8 * 128
    assert plain.kv_bytes_per_token == 27 * per_layer
    assert found.kv_bytes_per_token == (26 + 32) * per_layer
    assert found.weight_bytes is not None and plain.weight_bytes is not None
    assert found.weight_bytes - plain.weight_bytes == pytest.approx(added.weights, rel=0.12)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_that_look_tokens_up_take_no_memory(method: str) -> None:
    assert draft_bytes(facts(LLAMA_8B), settings(method), None) is NO_DRAFT


def test_a_draft_of_which_nothing_is_known_makes_nothing_impossible() -> None:
    verdict = judge(facts(LLAMA_70B, **FP8), None, method="medusa", model="some/heads")
    assert verdict.status == "fits"
    sentence = "the draft's weights and KV cache are not counted: no formula for it"
    assert sentence in verdict.remarks
    unlike = facts_from_config("d", known_configs()[LLAMA_3B] | {"model_type": "new"})
    assert unlike is not None and not unlike.language_model_counted
    guess = judge(facts(LLAMA_70B, **FP8), unlike, method="draft_model", model="d")
    assert guess.status == "risky" and guess.starts[""].weight_bytes / GIB > 73.3


def test_multi_token_prediction_without_layers_for_it_is_a_risk() -> None:
    verdict = judge(facts(LLAMA_8B), None, method="mtp")
    assert verdict.status == "risky"
    assert verdict.reasons == ("speculative method mtp: the config names no layers for it",)


def test_settings_without_speculation_have_no_draft() -> None:
    plain = settings("ngram").model_copy(update={"speculative": None})
    assert draft_bytes(facts(LLAMA_8B), plain, facts(LLAMA_3B)) is NO_DRAFT
    assert isinstance(settings("ngram").speculative, Speculative)


def test_a_head_reads_an_output_layer_for_each_token_whosever_it_is() -> None:
    own = facts_from_config("x", EAGLE3)
    shared = facts_from_config("x", EAGLE3 | {"draft_vocab_size": None})
    assert own is not None
    assert shared is not None
    assert head_as_model(own).parameters.lm_head == 32000 * 4096
    assert head_as_model(own).shape.vocab_size == 32000
    assert head_as_model(shared).parameters.lm_head == 128256 * 4096
    added = head_as_model(own).parameters.attention - head_as_model(shared).parameters.attention
    assert added == 3 * 4096 * 4096  # joins three hidden states


def test_a_layer_for_drafts_has_the_parameters_of_its_file() -> None:
    parts = own_layer_as_model(facts(DEEPSEEK)).parameters
    own = parts.total - parts.embedding - parts.lm_head
    assert own == pytest.approx(11.5e9, rel=0.02)  # in FP8, one byte each
