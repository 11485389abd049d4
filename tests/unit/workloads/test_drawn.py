"""Lengths and prompts that are drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.spec.load import Lengths, LogNormal, Uniform
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.drawn import ConversationsWorkload, Drawn, RandomWorkload
from orchestrator.workloads.draws import draw
from orchestrator.workloads.kind import Message, stream
from orchestrator.workloads.lengths import BLOCK, SessionLengths, SessionShape

IDS = RandomIds((1000, 2000))
UNIFORM = Lengths(uniform=Uniform(min=10, max=30))
OPEN = Lengths(lognormal=LogNormal(mean=50, sigma=1))


def random_requests(**fields: Any) -> RandomWorkload:
    lengths = {"input_tokens": Lengths(fixed=8), "output_tokens": Lengths(fixed=4)}
    return RandomWorkload.model_validate({"name": "w", **lengths, **fields})


def conversations(**fields: Any) -> ConversationsWorkload:
    lengths = {"input_tokens": Lengths(fixed=8), "output_tokens": Lengths(fixed=4)}
    content = {"name": "w", "kind": "conversations", "turns": 3, **lengths, **fields}
    return ConversationsWorkload.model_validate(content)


def test_fixed_lengths_are_all_alike() -> None:
    assert (draw(Lengths(fixed=7), (3, 2), stream(1)) == 7).all()


def test_uniform_lengths_reach_both_ends() -> None:
    counts = draw(UNIFORM, (5_000,), stream(1))
    assert (counts.min(), counts.max()) == (10, 30)


def test_lognormal_lengths_have_their_mean_and_stay_within_their_limits() -> None:
    lengths = Lengths(lognormal=LogNormal(mean=100, sigma=0.5, min=20, max=400))
    counts = draw(lengths, (50_000,), stream(1))
    assert counts.mean() == pytest.approx(100, rel=0.02)
    assert counts.min() >= 20
    assert counts.max() <= 400


def test_lengths_of_a_session_do_not_depend_on_which_were_asked_before() -> None:
    first = SessionLengths(SessionShape.of(UNIFORM, UNIFORM, 2), seed=5)
    second = SessionLengths(SessionShape.of(UNIFORM, UNIFORM, 2), seed=5)
    sessions = [0, BLOCK - 1, BLOCK, 5 * BLOCK + 3]
    expected = [first.input_tokens(session, 1) for session in sessions]
    actual = [second.input_tokens(session, 1) for session in reversed(sessions)]
    assert actual == expected[::-1]


def test_a_conversation_holds_all_turns_before() -> None:
    lengths = SessionLengths(SessionShape.of(UNIFORM, UNIFORM, 3), seed=5)
    inputs = [lengths.input_tokens(4, turn) for turn in range(3)]
    outputs = [lengths.output_tokens(4, turn) for turn in range(3)]
    assert lengths.conversation_tokens(4, 0) == inputs[0]
    assert lengths.conversation_tokens(4, 2) == sum(inputs) + sum(outputs[:2])


def test_a_sample_is_sorted() -> None:
    sample = SessionLengths(SessionShape.of(UNIFORM, UNIFORM, 2), seed=0).sample()
    assert (np.diff(sample) >= 0).all()


@pytest.mark.parametrize(
    ("workload", "bounds"),
    [
        (random_requests(shared_prefix_tokens=100), (112, 112)),
        (random_requests(input_tokens=UNIFORM), (14, 34)),
        (conversations(), (36, 36)),
        (conversations(output_tokens=OPEN), (27, None)),
    ],
)
def test_the_last_turn_contains_all_others(workload: Drawn, bounds: tuple[int, int | None]) -> None:
    assert workload.token_bounds() == bounds


@pytest.mark.parametrize(
    ("workload", "tokens", "share"),
    [
        (random_requests(), 7, 1.0),
        (random_requests(), 8, 0.0),
        (random_requests(output_tokens=OPEN), 8, 0.0),
        (conversations(), 31, None),
        (conversations(), 32, 0.0),
    ],
)
def test_the_share_of_longer_prompts_is_certain_at_its_bounds(
    workload: Drawn, tokens: int, share: float | None
) -> None:
    estimate = workload.longer_prompts(tokens)
    if share is None:
        assert 0 < estimate < 1
    else:
        assert estimate == share


def test_a_share_without_an_upper_bound_is_never_certain() -> None:
    workload = conversations(output_tokens=OPEN)
    assert 0 < workload.longer_prompts(2**31 - 1) < 0.01


def test_a_warm_up_has_another_prefix_than_the_measurement() -> None:
    requests = random_requests(shared_prefix_tokens=5).requests(IDS, seed=3)
    measured = requests.prompt(0, 0, "measure", ()).messages
    warm_up = requests.prompt(0, 0, "warmup", ()).messages
    assert [message.role for message in measured] == ["system", "user"]
    assert measured[0].content[0].tolist() != warm_up[0].content[0].tolist()  # type: ignore[union-attr]
    assert requests.warmup_differs


def test_a_conversation_sends_all_earlier_messages() -> None:
    requests = conversations().requests(IDS, seed=3)
    earlier = (Message("user", ("a",), 1), Message("assistant", ("b",), 1))
    prompt = requests.prompt(0, 1, "measure", earlier)
    assert prompt.messages[:2] == earlier
    assert prompt.tokens == 10
    assert requests.needs_reply
    assert requests.mean_turns == 3.0
