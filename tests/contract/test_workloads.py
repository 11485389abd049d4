"""Every workload of the registry keeps the contract of orchestrator/load/workloads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.load.tokens import TokenIds, Words
from orchestrator.load.workloads import WORKLOADS, Exchanged, Kind, Prompt
from orchestrator.spec.load import Lengths, LogNormal, Uniform, Workload

KINDS = sorted(WORKLOADS)
IDS = TokenIds((1000, 2000))


def make(kind: str, seed: int = 3, **fields: Any) -> Kind:
    given: dict[str, Any] = {
        "name": "w",
        "kind": kind,
        "input_tokens": Lengths(uniform=Uniform(min=5, max=50)),
        "output_tokens": Lengths(uniform=Uniform(min=1, max=9)),
        "turns": 3,
    }
    return WORKLOADS[kind](Workload(**(given | fields)), IDS, seed)


def ids(content: Any) -> list[int]:
    return [] if content is None else np.asarray(content).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_request_can_be_written_alone_and_is_always_the_same(kind: str) -> None:
    first, again = make(kind), make(kind)
    wanted = [(session, turn) for session in (5000, 0, 17) for turn in range(first.turns)]
    prompts = {key: first.prompt(*key, "measure", ()) for key in wanted}
    for key in reversed(wanted):
        assert ids(again.prompt(*key, "measure", ()).user) == ids(prompts[key].user)
        assert again.output_tokens(*key) == first.output_tokens(*key)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_differ_between_requests_and_seeds(kind: str) -> None:
    fixed = {"input_tokens": Lengths(fixed=16)}
    one, other = make(kind, 1, **fixed), make(kind, 2, **fixed)
    texts = {
        tuple(ids(made.prompt(s, t, "measure", ()).user))
        for made in (one, other)
        for s in range(40)
        for t in range(made.turns)
    }
    assert len(texts) == 40 * (one.turns + other.turns)


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_meant_is_the_length_made(kind: str) -> None:
    made = make(kind, shared_prefix_tokens=7)
    for session in range(50):
        prompt = made.prompt(session, 0, "measure", ())
        assert len(ids(prompt.flat())) == prompt.tokens == made.input_tokens(session, 0)
        assert 1 <= made.output_tokens(session, 0) <= 9


@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_has_a_prefix_of_its_own(kind: str) -> None:
    made = make(kind, shared_prefix_tokens=20)
    prefixes = {
        phase: {tuple(ids(made.prompt(s, 0, phase, ()).prefix)) for s in range(5)} for phase in ("warmup", "measure")
    }
    assert all(len(found) == 1 for found in prefixes.values())
    assert prefixes["warmup"].isdisjoint(prefixes["measure"])


def test_random_requests_are_single_turns_without_sessions() -> None:
    made = make("random")
    assert (made.turns, made.sessions, made.needs_reply) == (1, False, False)


def test_a_conversation_holds_what_was_said_before() -> None:
    made = make("conversations")
    first = made.prompt(4, 0, "measure", ())
    answer = np.array([9, 9, 9], np.int32)
    said = Exchanged(first.user, first.user_tokens, answer, 3)
    second = made.prompt(4, 1, "measure", [said])
    assert ids(second.flat()) == ids(first.user) + [9, 9, 9] + ids(second.user)
    assert second.tokens == first.tokens + 3 + second.user_tokens
    assert made.sessions and made.needs_reply and made.turns == 3


def test_text_parts_are_joined_as_text() -> None:
    prompt = Prompt("a b", (Exchanged(" c", 1, " d", 1),), " e", 1, 5)
    assert prompt.flat() == "a b c d e"


def test_lognormal_lengths_have_their_own_mean_and_their_limits() -> None:
    made = make("random", input_tokens=Lengths(lognormal=LogNormal(mean=150, sigma=0.6, min=20, max=2000)))
    lengths = np.array([made.input_tokens(session, 0) for session in range(20_000)])
    assert lengths.mean() == pytest.approx(150, rel=0.03)
    assert lengths.min() >= 20
    assert lengths.max() <= 2000


def test_words_without_a_tokenizer_are_about_one_token_each() -> None:
    text = Words().make(np.random.default_rng(0), 30)
    assert isinstance(text, str)
    assert len(text.split()) == 30
