"""Messages, prompts and random streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workloads.kind import Message, Prompt, WorkloadKind, stream


class SingleRequests(WorkloadKind):
    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        return Prompt((Message("user", (f"{session}",), 0),), 0)

    def output_tokens(self, session: int, turn: int) -> int:
        return 1


def test_a_prompt_of_texts_is_one_text() -> None:
    messages = (Message("system", ("a ", "b"), 0), Message("user", (" c",), 0))
    assert Prompt(messages, 0).flat() == "a b c"
    assert messages[0].text == "a b"


def test_a_prompt_of_token_ids_is_one_array() -> None:
    ids = [np.array([1, 2], np.int32), np.array([3], np.int32)]
    messages = (Message("system", (ids[0],), 2), Message("user", (ids[1],), 1))
    flat = Prompt(messages, 3).flat()
    assert isinstance(flat, np.ndarray)
    assert flat.tolist() == [1, 2, 3]


def test_a_single_part_is_not_copied() -> None:
    ids = np.array([1, 2], np.int32)
    assert Prompt((Message("user", (ids,), 2),), 2).flat() is ids


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 9), st.integers(0, 9))
def test_streams_of_one_seed_are_independent_and_repeatable(
    seed: int, purpose: int, other_purpose: int
) -> None:
    first = stream(seed, purpose).integers(0, 2**62, 4).tolist()
    assert stream(seed, purpose).integers(0, 2**62, 4).tolist() == first
    if purpose != other_purpose:
        assert stream(seed, other_purpose).integers(0, 2**62, 4).tolist() != first


def test_a_session_is_a_single_request_by_default() -> None:
    kind = SingleRequests()
    assert kind.turns(5) == 1
    assert kind.mean_turns == 1.0
    assert not kind.needs_reply
    assert kind.input_tokens(0, 0) == 0
