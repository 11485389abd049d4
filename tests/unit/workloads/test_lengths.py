"""The numbers of sessions: turns, pairs of lengths, documents, and sessions that have begun."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.spec.load import Bin, Lengths, Uniform
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.sessions import Documents, LengthPair, Pauses, Turns
from orchestrator.workloads.lengths import BLOCK, SessionLengths, SessionShape

SHORT, LONG = Lengths(fixed=10), Lengths(fixed=1000)
SOME_TURNS = Turns(histogram=(Bin(min=1, max=1, weight=3), Bin(min=9, max=9, weight=1)))


def shape(**fields: Any) -> SessionShape:
    return SessionShape(**{"pairs": (LengthPair(input=SHORT, output=SHORT),), **fields})


def test_pairs_belong_together_and_come_by_weight() -> None:
    pairs = (
        LengthPair(input=SHORT, output=LONG, weight=3),
        LengthPair(input=LONG, output=SHORT, weight=1),
    )
    lengths = SessionLengths(shape(pairs=pairs), seed=1)
    drawn = Counter(
        (lengths.input_tokens(session, 0), lengths.output_tokens(session, 0))
        for session in range(8 * BLOCK)
    )
    assert set(drawn) == {(10, 1000), (1000, 10)}
    assert drawn[10, 1000] / drawn.total() == pytest.approx(0.75, abs=0.02)


def test_the_first_prompt_may_have_lengths_of_its_own() -> None:
    turns = Turns(fixed=3)
    lengths = SessionLengths(shape(first_input=LONG, turns=turns), seed=1)
    assert [lengths.input_tokens(7, turn) for turn in range(3)] == [1000, 10, 10]
    assert lengths.conversation_tokens(7, 2) == 1000 + 10 + 10 + 10 + 10


def test_turns_are_drawn_for_each_session() -> None:
    lengths = SessionLengths(shape(turns=SOME_TURNS), seed=2)
    turns = Counter(lengths.turns(session) for session in range(4 * BLOCK))
    assert set(turns) == {1, 9}
    assert turns[9] / turns.total() == pytest.approx(0.25, abs=0.03)


def test_sessions_that_have_begun_are_long_ones_met_anywhere() -> None:
    lengths = SessionLengths(shape(turns=SOME_TURNS), seed=2, running=4 * BLOCK)
    met = [(lengths.turns(session), lengths.first_turn(session)) for session in range(4 * BLOCK)]
    # of all turns, 9 of 12 belong to the quarter of sessions with 9 turns
    assert np.mean([turns == 9 for turns, _ in met]) == pytest.approx(0.75, abs=0.03)
    first_turns = Counter(first for turns, first in met if turns == 9)
    assert set(first_turns) == set(range(9))
    assert min(first_turns.values()) > 0.7 * first_turns.total() / 9
    assert {lengths.first_turn(session) for session in range(4 * BLOCK, 5 * BLOCK)} == {0}
    later = [lengths.turns(session) == 9 for session in range(4 * BLOCK, 8 * BLOCK)]
    assert np.mean(later) == pytest.approx(0.25, abs=0.03)


def test_pauses_are_drawn_for_each_turn() -> None:
    pauses = Pauses.model_validate({"exponential": {"mean": "2s"}})
    lengths = SessionLengths(shape(turns=Turns(fixed=4), pauses=pauses), seed=3)
    drawn = [lengths.pause_s(session, turn) for session in range(BLOCK) for turn in range(4)]
    assert len(set(drawn)) == len(drawn)
    assert np.mean(drawn) == pytest.approx(2.0, rel=0.1)


def test_documents_count_as_input_and_have_a_length_of_their_own() -> None:
    documents = Documents(
        count=Lengths(uniform=Uniform(min=1, max=4)),
        tokens=Lengths(uniform=Uniform(min=100, max=200)),
        pool=50,
        popularity=Popularity(zipf=1.0),
    )
    lengths = SessionLengths(shape(documents=documents), seed=4)
    requests = Counter[int]()
    for session in range(2000):
        chosen = lengths.documents(session, 0)
        assert 1 <= len(set(chosen)) == len(chosen) <= 4
        tokens = [lengths.document_tokens(document) for document in chosen]
        assert all(100 <= count <= 200 for count in tokens)
        assert lengths.input_tokens(session, 0) == 10 + sum(tokens)
        requests.update(chosen)
    assert requests[0] > 3 * requests[20] > 0


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=6), st.integers(0, 2**40))
def test_a_session_does_not_depend_on_what_was_asked_before(sessions: list[int], seed: int) -> None:
    documents = Documents(count=Lengths(fixed=2), tokens=SHORT, pool=9)
    drawn = shape(turns=Turns(fixed=2), documents=documents)
    first, second = SessionLengths(drawn, seed, 5), SessionLengths(drawn, seed, 5)
    in_order = [(first.documents(s, 1), first.first_turn(s)) for s in sessions]
    reversed_order = [(second.documents(s, 1), second.first_turn(s)) for s in reversed(sessions)]
    assert in_order == reversed_order[::-1]


def test_the_sample_has_only_turns_that_are_sent() -> None:
    assert set(SessionLengths(shape(turns=SOME_TURNS), seed=0).sample()) == {
        10 + 20 * turn for turn in range(9)
    }
    turns = Counter(SessionLengths(shape(turns=SOME_TURNS), seed=0).sample().tolist())
    assert turns[10] == 1000 > 4 * turns[30]
