"""How a deployment is asked: by its engine, its drafts, and the router in front of it."""

from __future__ import annotations

import pytest

from orchestrator.engines.dialects import dialect_of, dialects_of
from orchestrator.engines.registry import ENGINES
from tests.unit.engines.builders import ACME, acme, settings_of


def test_an_engine_without_drafts_makes_one_token_in_a_step() -> None:
    assert dialect_of(ACME, acme(), "completions").tokens_per_step == 1


def test_a_speculating_engine_makes_several_tokens_in_a_step() -> None:
    drafting = acme(speculative={"method": "ngram", "num_speculative_tokens": 3})
    assert dialect_of(ACME, drafting, "completions").tokens_per_step == 4


def test_an_api_that_an_engine_does_not_have_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        dialect_of(ACME, acme(), "tgi")


def test_without_a_router_the_dialects_are_those_of_the_engine() -> None:
    settings = settings_of("sglang")
    engine = ENGINES["sglang"]
    assert dialects_of(engine, settings) == engine.dialects(settings)


def test_a_router_takes_away_what_it_does_not_pass_on() -> None:
    routed = settings_of("sglang", router={"engine": "sglang_router", "model": "acme/tiny"})
    engine = ENGINES["sglang"]
    assert engine.dialects(routed)["chat"].cache_salt
    assert not dialects_of(engine, routed)["chat"].cache_salt


def test_an_api_that_the_router_does_not_have_is_left_out() -> None:
    routed = settings_of("emulator", router={"engine": "vllm_router", "model": "acme/tiny"})
    engine = ENGINES["emulator"]
    assert "tgi" in engine.dialects(routed)
    assert "tgi" not in dialects_of(engine, routed)
