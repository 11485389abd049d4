"""Lengths and prompts that are drawn at random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.base.arrays import Floats
from orchestrator.results.ids import digest
from orchestrator.spec.load import Arrivals, Lengths, Level, LogNormal, Uniform, Workload
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.drawn import ConversationsWorkload, Drawn, RandomWorkload
from orchestrator.workloads.kind import IdRange, Message, stream
from orchestrator.workloads.lengths import BLOCK, SessionLengths, SessionShape
from orchestrator.workloads.random_values import draw

IDS = RandomIds(IdRange(1000, 2000))
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


def prompts_by_step(start: str, steps: int) -> Floats:
    """The mean prompt of each step of a closed loop in which all answers take one step."""
    slots = 2000
    turns = {"lognormal": {"mean": 12, "sigma": 0.8, "max": 60}}
    workload = conversations(start=start, turns=turns)
    kind = workload.requests(IDS, seed=4).at_level(
        Level(control="concurrency", value=slots), Arrivals()
    )
    sessions = list(range(slots))
    begun = slots
    places = [kind.first_turn(session) for session in sessions]
    means: list[float] = []
    for _ in range(steps):
        tokens: list[int] = []
        for slot in range(slots):
            if places[slot] == kind.turns(sessions[slot]):
                sessions[slot] = begun
                places[slot] = kind.first_turn(begun)
                begun += 1
            tokens.append(kind.input_tokens(sessions[slot], places[slot]))
            places[slot] += 1
        means.append(float(np.mean(tokens)))
    return np.array(means)


def test_a_closed_loop_of_sessions_that_are_met_anywhere_is_steady_at_once() -> None:
    later = prompts_by_step("first_turn", 80)[60:].mean()
    anywhere = prompts_by_step("anywhere", 10)
    assert anywhere == pytest.approx(np.full(10, later), rel=0.1)
    assert prompts_by_step("first_turn", 1)[0] < later / 5, "all begin with their first turn"


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


# -- bounds of what can be drawn in more ways

PAIRS = [
    {"input": {"uniform": {"min": 5, "max": 9}}, "output": 7},
    {"input": 100, "output": {"histogram": [{"min": 1, "max": 3}]}, "weight": 4},
]


@pytest.mark.parametrize(
    ("fields", "bounds", "longest"),
    [
        ({"lengths": PAIRS}, (3 * 5 + 3 * 1, 3 * 100 + 3 * 7), 3 * 100 + 2 * 7),
        ({"first_input_tokens": 50}, (50 + 2 * 8 + 3 * 4,) * 2, 50 + 2 * 8 + 2 * 4),
        (
            {"turns": {"uniform": {"min": 1, "max": 5}}, "shared_prefix_tokens": 10},
            (10 + 12, 10 + 5 * 12),
            10 + 5 * 8 + 4 * 4,
        ),
        (
            {"documents": {"count": 2, "tokens": {"uniform": {"min": 3, "max": 6}}, "pool": 9}},
            (3 * (8 + 4 + 2 * 3), 3 * (8 + 4 + 2 * 6)),
            3 * (8 + 2 * 6) + 2 * 4,
        ),
    ],
)
def test_no_session_is_beyond_its_bounds_and_the_longest_prompt_is_known(
    fields: dict[str, Any], bounds: tuple[int, int], longest: int
) -> None:
    lengths = {} if "lengths" in fields else {"input_tokens": 8, "output_tokens": 4}
    content = {"name": "w", "kind": "conversations", "turns": 3, **lengths, **fields}
    workload = ConversationsWorkload.model_validate(content)
    assert workload.token_bounds() == bounds
    assert workload.longer_prompts(longest) == 0.0
    assert workload.longer_prompts(longest - 1) > 0.0
    requests = workload.requests(IDS, seed=3)
    for session in range(300):
        last = requests.turns(session) - 1
        total = requests.input_tokens(session, last) + requests.output_tokens(session, last)
        assert bounds[0] <= total <= bounds[1]
        prompt = requests.prompt(session, 0, "measure", ())
        assert prompt.tokens == len(prompt.flat()) == requests.input_tokens(session, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": PAIRS, "input_tokens": 4}, "'input_tokens' and 'lengths' exclude each other"),
        ({"input_tokens": 4}, "'output_tokens' is missing"),
        (
            {"input_tokens": 4, "output_tokens": 4, "popularity": {"zipf": 1}},
            "'popularity' is that of prefixes",
        ),
    ],
)
def test_keys_that_belong_together_are_given_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RandomWorkload.model_validate({"name": "w", **fields})


def test_popular_prefixes_are_sent_more_often() -> None:
    popular = random_requests(
        shared_prefix_tokens=5, shared_prefix_count=20, popularity={"zipf": 1.5}
    )
    requests = popular.requests(IDS, seed=3)
    prefixes = [
        np.asarray(requests.prompt(session, 0, "measure", ()).messages[0].content[0]).tobytes()
        for session in range(500)
    ]
    counts = sorted((prefixes.count(prefix) for prefix in set(prefixes)), reverse=True)
    weights = np.arange(1, 21) ** -1.5
    assert counts[0] / 500 == pytest.approx(weights[0] / weights.sum(), abs=0.07)


def test_a_text_of_few_prompts_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 10)
    sliced = random_requests(content={"text": str(tmp_path / "a.txt")})
    (note,) = sliced.notes()
    assert note.startswith("text of 60 words: prompts of about 6 words will begin alike")
    (tmp_path / "a.txt").unlink()
    assert sliced.notes() == []


def test_a_text_is_sent_in_slices_and_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be that is the question " * 20)
    sliced = random_requests(content={"text": str(tmp_path / "a.txt")}).resolved(str)
    requests = sliced.requests(IDS, seed=3)
    text = requests.prompt(0, 0, "measure", ()).messages[0].text
    assert text.strip() in "to be or not to be that is the question " * 21
    (tmp_path / "b.txt").write_text("to be or not to be that is the question " * 20)
    copied = random_requests(content={"text": str(tmp_path / "b.txt")}).resolved(str)
    assert copied.notes() == []
    assert copied.identity() == sliced.identity()
    assert sliced.identity() != random_requests().identity()


def test_words_are_sent_where_ids_could_be() -> None:
    requests = random_requests(content="words").requests(IDS, seed=3)
    assert len(requests.prompt(0, 0, "measure", ()).messages[0].text.split()) == 8


@pytest.mark.parametrize(
    ("keys", "identity", "prompts"),
    [
        (
            {
                "name": "a",
                "input_tokens": 100,
                "output_tokens": {"lognormal": {"mean": 9, "sigma": 0.5}},
            },
            "5b98c6c627dc1b67",
            "ef05e46b36e52547",
        ),
        (
            {
                "name": "b",
                "kind": "conversations",
                "turns": 4,
                "think_time": 2.0,
                "input_tokens": {"uniform": {"min": 3, "max": 30}},
                "output_tokens": 5,
                "shared_prefix_tokens": 7,
                "shared_prefix_count": 3,
                "api": "chat",
            },
            "6ccf856bcdab1b16",
            "7a3b9006eb4759dc",
        ),
    ],
)
def test_ids_and_prompts_of_stored_workloads_stay_what_they_were(
    keys: dict[str, Any], identity: str, prompts: str
) -> None:
    workload = Workload.model_validate(keys)
    requests = workload.requests(IDS, seed=7)
    flat = [
        np.asarray(requests.prompt(session, 0, "measure", ()).flat()).tolist()
        for session in (0, 5, 1030)
    ]
    assert (digest(workload.identity()), digest(flat)) == (identity, prompts)
