"""Which LoRA adapter a session asks for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.spec.popularity import Popularity
from orchestrator.spec.request_options import Adapters
from orchestrator.workloads.adapters import PopularAdapters

SESSIONS = 4_000


def counts(**fields: object) -> Counter[str | None]:
    chosen = PopularAdapters(Adapters.model_validate(fields), seed=7)
    return Counter(chosen.of_session(session) for session in range(SESSIONS))


def test_without_a_popularity_all_adapters_are_as_popular() -> None:
    by_adapter = counts(names=["a", "b", "c", "d"])
    assert set(by_adapter) == {"a", "b", "c", "d"}
    # a binomial count of 1,000 has a standard deviation of 27
    assert all(abs(count - SESSIONS / 4) < 5 * 27 for count in by_adapter.values())


def test_the_base_has_its_share_and_the_first_adapter_is_the_most_popular() -> None:
    by_adapter = counts(names=["a", "b", "c"], pick={"zipf": 1.5}, base_share=0.2)
    # 800 of 4,000: a standard deviation of 25
    assert abs(by_adapter[None] - 0.2 * SESSIONS) < 5 * 25
    weights = [1, 2**-1.5, 3**-1.5]
    for name, weight in zip("abc", weights, strict=True):
        expected = 0.8 * SESSIONS * weight / sum(weights)
        assert abs(by_adapter[name] - expected) < 5 * expected**0.5


@given(st.integers(0, 2**48), st.integers(0, 2**31))
def test_a_session_has_the_same_adapter_whoever_asks(seed: int, session: int) -> None:
    adapters = Adapters(names=("a", "b", "c"), pick=Popularity(zipf=1.2), base_share=0.5)
    first = PopularAdapters(adapters, seed).of_session(session)
    assert PopularAdapters(adapters, seed).of_session(session) == first


@pytest.mark.parametrize(
    "fields",
    [
        {"names": []},
        {"names": ["a", "a"]},
        {"names": ["a=b"]},
        {"names": ["a b"]},
        {"names": ["a"], "base_share": 1.0},
        {"names": ["a"], "pick": {"zipf": 0}},
    ],
)
def test_adapters_that_cannot_be_asked_for_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Adapters.model_validate(fields)


def test_a_session_that_was_written_ahead_is_not_drawn_again_as_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapters = PopularAdapters(Adapters(names=("a", "b")), seed=7)
    drawn = [adapters.of_session(session) for session in range(20_000)]
    monkeypatch.setattr("orchestrator.workloads.adapters.stream", None)
    assert [adapters.of_session(session) for session in range(20_000)] == drawn
