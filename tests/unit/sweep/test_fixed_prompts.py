"""The prompts that every launch answers before its first point."""

from __future__ import annotations

from orchestrator.sweep.fixed_prompts import ANSWERS_WITHIN_S, PROMPTS, fixed_prompts
from tests.unit.sweep.test_measure import TARGET, load_point


def test_prompts_are_the_same_whatever_is_loaded() -> None:
    first = fixed_prompts(load_point(seed=7, tokenizer="a"), logprobs=True)
    second = fixed_prompts(load_point(seed=8), logprobs=True)
    assert first == second


def test_all_prompts_are_sent_at_once() -> None:
    point = fixed_prompts(load_point(), logprobs=True)
    assert (point.requests, point.level.value) == (PROMPTS, PROMPTS)
    assert point.level.control == "concurrency"


def test_prompts_are_text_whatever_the_api_takes() -> None:
    assert not fixed_prompts(load_point(), logprobs=True).dialect.prompt_token_ids


def test_each_of_many_replicas_answers_a_few_of_the_same_prompts() -> None:
    few = fixed_prompts(load_point(targets=(TARGET,)), logprobs=True)
    many = fixed_prompts(load_point(targets=(TARGET,) * 10), logprobs=True)
    assert (few.requests, many.requests) == (32, 40)
    assert (few.seed, few.workload) == (many.seed, many.workload)


def test_answers_are_waited_for_no_longer_than_a_minute() -> None:
    assert fixed_prompts(load_point(), logprobs=True).request_timeout_s == ANSWERS_WITHIN_S
    quick = fixed_prompts(load_point(request_timeout_s=5.0), logprobs=True)
    assert quick.request_timeout_s == 5.0
