"""What a step with drafts costs, and how many of them are accepted."""

from __future__ import annotations

import pytest

from orchestrator.catalog.models import facts_from_config, known_configs
from orchestrator.emulator.drafts import Drafts, acceptance_of, drafts_of
from orchestrator.emulator.step_costs import Chunk, Costs, step_costs
from tests.unit.emulator.builders import IDEAL, a_replica, device, facts, settings

SMALL = {"hidden_size": 1024, "num_hidden_layers": 4, "intermediate_size": 2048}


def drafts(method: str, tokens: int = 4, small: bool = False) -> Drafts:
    spec = {"method": method, "num_speculative_tokens": tokens}
    draft = facts(**SMALL) if small else None
    return drafts_of(settings(speculative=spec), facts(), draft, device(), IDEAL, 0.5)


@pytest.mark.parametrize("tokens", [1, 4, 9])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.6, 1.0])
def test_the_probability_of_a_draft_gives_the_share_of_all_drafts(
    tokens: int, share: float
) -> None:
    probability = acceptance_of(share, tokens)
    accepted = sum(probability**place for place in range(1, tokens + 1))
    assert accepted / tokens == pytest.approx(share, abs=1e-9)


def test_a_step_that_verifies_reads_once_and_computes_every_draft() -> None:
    costs = a_replica().costs
    looked_up = drafts("ngram")
    assert isinstance(costs, Costs)
    # at the device's peaks a sequence alone is limited by what is read, which stays the same
    step_s = looked_up.step_s(1, 1000, 0.0, [])
    assert costs.decode(1, 1000, 0.0).step_s < step_s < 1.02 * costs.decode(1, 1000, 0.0).step_s
    # many are limited by arithmetic: as 5 tokens each
    arithmetic_s = 200 * 5 * (costs.token_s + costs.sample_s)
    assert looked_up.step_s(200, 200, 0.0, []) > arithmetic_s
    assert looked_up.step_s(200, 200, 0.0, []) == pytest.approx(
        costs.mixed(200, 200, 0.0, [], drafts=800)
    )


def test_attention_reads_a_context_once_for_all_drafts_until_it_is_limited_by_arithmetic() -> None:
    context_s = a_replica().costs.context_s  # type: ignore[attr-defined]
    assert drafts("ngram", tokens=4).verifying.context_s == context_s
    assert drafts("ngram", tokens=200).verifying.context_s > context_s


def test_a_draft_model_takes_a_step_of_its_own_for_each_draft() -> None:
    with_model, looked_up = drafts("draft_model", small=True), drafts("ngram")
    drafter = with_model.drafter
    assert drafter is not None
    drafting_s = with_model.step_s(8, 8000, 0.0, []) - looked_up.step_s(8, 8000, 0.0, [])
    assert drafting_s == pytest.approx(4 * drafter.decode(8, 8000, 0.0).step_s)
    prompt = [Chunk(0, 500)]
    with_prompt_s = with_model.step_s(8, 8000, 0.0, prompt) - looked_up.step_s(8, 8000, 0.0, prompt)
    following_s = 3 * drafter.decode(9, 8500, 0.0).step_s
    assert with_prompt_s == pytest.approx(drafter.mixed(8, 8000, 0.0, prompt) + following_s)


def test_a_models_own_layer_costs_as_any_of_its_layers_and_its_output_layer() -> None:
    model = facts_from_config("deepseek", known_configs()["deepseek-ai/DeepSeek-V3"])
    assert model is not None
    deployment = settings(
        tensor_parallel_size=8, speculative={"method": "mtp", "num_speculative_tokens": 1}
    )
    drafter = drafts_of(deployment, model, None, device(), IDEAL, 0.5).drafter
    costs = step_costs(deployment, model, device(), IDEAL)
    assert drafter is not None
    assert drafter.sample_s == costs.sample_s
    assert drafter.context_s == pytest.approx(costs.context_s / 61)
    assert drafter.experts_s == pytest.approx(costs.experts_s / 58)
    assert drafter.weights_s < 0.1 * costs.weights_s
