"""Operations of attention, and the models for which the formulas lack a term."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.catalog.arithmetic import PairFlops, attention_pair_flops, no_term
from orchestrator.catalog.models import ModelFacts, model_facts


def facts(model: str = "meta-llama/Llama-3.1-8B-Instruct") -> ModelFacts:
    of_model = model_facts(model, online=False)
    assert of_model is not None
    return of_model


def test_a_pair_of_tokens_is_multiplied_with_the_key_and_the_value() -> None:
    # a product of two vectors of 128 numbers has 256 operations; the config has heads of 128
    assert attention_pair_flops(facts().shape) == PairFlops(decode=512, prefill=512)


def test_latent_attention_decodes_in_its_latent_space() -> None:
    flops = attention_pair_flops(facts("deepseek-ai/DeepSeek-V3").shape)
    assert flops.decode == 2 * (512 + 64) + 2 * 512  # config: kv_lora_rank 512, rope 64
    assert flops.prefill == 2 * (128 + 64) + 2 * 128  # config: heads of 128 + 64, values of 128


def test_the_formulas_cover_a_model_whose_layers_all_have_attention() -> None:
    assert no_term(facts()) is None


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"index_n_heads": 64}, "sparse attention"),
        ({"mixers": ("attention", "global")}, "layers with heads of their own"),
        ({"mixers": ("both", "both")}, "Mamba beside attention"),
        ({"mixers": ("attention", "linear")}, "layers without attention"),
    ],
)
def test_a_part_without_a_term_is_named(changes: dict[str, Any], part: str) -> None:
    llama = facts()
    shape = replace(llama.shape, num_hidden_layers=2, **changes)
    assert no_term(replace(llama, shape=shape)) == part
