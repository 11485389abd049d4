"""Dialects: salts against shared prefix caches, and what a router passes on."""

from __future__ import annotations

from orchestrator.spec.dialect import SGLANG_GENERATE, TGI_STREAM, Dialect, openai

CHAT = Dialect("openai_chat", "/v1/chat/completions", cache_salt=True)


def test_a_salt_is_sent_and_can_be_left_out_again() -> None:
    salted = CHAT.salted("a")
    assert salted.extra_body == {"cache_salt": "a"}
    unsalted = salted.unsalted()
    assert unsalted.extra_body == {}
    assert not unsalted.cache_salt


def test_an_api_without_salts_gets_none() -> None:
    assert TGI_STREAM.salted("a") is TGI_STREAM


def test_other_fields_stay_beside_a_salt() -> None:
    dialect = Dialect("openai_chat", "/", cache_salt=True, extra_body={"top_p": 0.5})
    assert dialect.salted("a").extra_body == {"top_p": 0.5, "cache_salt": "a"}
    assert dialect.salted("a").unsalted().extra_body == {"top_p": 0.5}


def test_a_router_passes_on_only_what_it_knows() -> None:
    engine = Dialect(
        "openai_completions",
        "/v1/completions",
        prompt_token_ids=True,
        continuous_usage=True,
        return_token_ids=True,
        cache_salt=True,
    )
    router = Dialect("openai_completions", "/v1/completions", continuous_usage=True)
    through = engine.through(router)
    assert through == Dialect("openai_completions", "/v1/completions", continuous_usage=True)
    assert router.through(engine) == router


def test_only_completions_take_token_ids() -> None:
    dialects = openai(prompt_token_ids=True)
    assert dialects["completions"].prompt_token_ids
    assert not dialects["chat"].prompt_token_ids
    assert dialects["chat"].path == "/v1/chat/completions"


def test_allowed_fields_hold_the_field_of_the_prompt() -> None:
    dialects = openai(allowed_fields=["top_p"], done_marker=False)
    assert dialects["completions"].allowed_fields == {"top_p", "prompt"}
    assert dialects["chat"].allowed_fields == {"top_p", "messages"}
    assert not dialects["chat"].done_marker
    assert openai()["chat"].allowed_fields is None


def test_native_apis_send_no_model_and_ask_for_no_usage() -> None:
    for dialect in (TGI_STREAM, SGLANG_GENERATE):
        assert not dialect.include_usage
        assert not dialect.model_field


def test_a_field_is_applied_where_it_is_taken_and_has_an_effect() -> None:
    dialect = openai(allowed_fields=("seed", "stop"), without_effect=frozenset({"stop"}))["chat"]
    assert dialect.applies("seed")
    assert not dialect.applies("stop")
    assert not dialect.applies("top_k")
    assert not openai()["chat"].applies("seed"), "it is not known"
