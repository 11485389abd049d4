"""Mixes: sessions of several workloads, drawn by weight and the same for every number of clients."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import Assignment
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.load import Arrivals, Level, Workload
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.facts import facts_by_part, sampled
from orchestrator.workloads.kind import IdRange, WorkloadKind
from orchestrator.workloads.mix import MixRequests, MixWorkload
from orchestrator.workloads.reuse import reuse_of
from tests.unit.workloads import traces

IDS = RandomIds(IdRange(1000, 30_000))
CHAT = {
    "name": "chat",
    "kind": "conversations",
    "turns": 3,
    "think_time": 2.0,
    "input_tokens": 10,
    "output_tokens": 5,
}
RAG = {"name": "rag", "input_tokens": 40, "output_tokens": 7}


def mix(*parts: tuple[float, dict[str, Any]], **fields: Any) -> MixWorkload:
    """A mix of workloads with their weights."""
    written = [
        {"weight": weight, "workload": content["name"], "content": content}
        for weight, content in parts
    ]
    workload = Workload.model_validate({"name": "office", "kind": "mix", "parts": written} | fields)
    assert isinstance(workload, MixWorkload)
    return workload


def requests_of(workload: MixWorkload, seed: int = 3) -> MixRequests:
    return workload.requests(IDS, seed)


def test_sessions_are_of_the_parts_in_proportion_to_their_weights() -> None:
    requests = requests_of(mix((6, CHAT), (3, RAG), (1, {**RAG, "name": "long"})))
    parts = [requests.part(session) for session in range(20_000)]
    counts = [parts.count(name) for name in ("chat", "rag", "long")]
    assert chisquare(counts, np.array([0.6, 0.3, 0.1]) * 20_000).pvalue > 1e-3
    independent = sum(a == b == "rag" for a, b in zip(parts, parts[1:], strict=False))
    assert independent == pytest.approx(0.09 * 20_000, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    weights=st.lists(st.floats(0.01, 1e6), min_size=2, max_size=4),
    clients=st.integers(2, 5),
    control=st.sampled_from(["request_rate", "concurrency"]),
)
def test_any_number_of_clients_sends_the_same_bytes_of_the_same_parts(
    seed: int, weights: list[float], clients: int, control: str
) -> None:
    contents = [CHAT, RAG, {**RAG, "name": "long", "input_tokens": 90}, {**CHAT, "name": "slow"}]
    point = point_of(mix(*zip(weights, contents, strict=False)), control, seed)
    of_one = sent(point, 1)
    assert sent(point, clients) == of_one
    assert {row[0] for row in of_one.values()} <= {content["name"] for content in contents}


def point_of(workload: MixWorkload, control: str, seed: int) -> LoadPoint:
    return LoadPoint(
        targets=(Target("http://127.0.0.1:1", "m"),),
        dialect=Dialect("openai_completions", "/v1/completions", prompt_token_ids=True),
        workload=workload,
        level=Level(control=control, value=10.0),  # type: ignore[arg-type]
        duration_s=None,
        requests=60,
        seed=seed,
    )


def sent(point: LoadPoint, clients: int) -> dict[int, tuple[Any, ...]]:
    """Part, session and prompt of the first request of each session, by request_index."""
    rows: dict[int, tuple[Any, ...]] = {}
    for client in range(clients):
        assignment = Assignment.of(point, client, clients)
        for session in assignment.schedule.own_sessions():
            planned = assignment.schedule.first_request(session, 0)
            if planned is None:
                continue
            prompt = assignment.kind.prompt(session, planned.turn, "measure", ())
            record = assignment.record(planned, 0, "measure", prompt.tokens, 1)
            rows[planned.index] = (record.part, planned.session, str(prompt.flat()))
    return rows


def test_a_trace_in_a_mix_keeps_its_order_and_its_blocks_at_the_rate_of_the_mix(
    tmp_path: Path,
) -> None:
    recorded = traces.trace(tmp_path / "moon.jsonl", traces.MOONCAKE, name="moon")
    workload = mix((1, RAG), (1, recorded.model_dump()))
    requests = requests_of(workload)
    of_moon = [session for session in range(40) if requests.part(session) == "moon"]
    lengths = [requests.input_tokens(session, 0) for session in of_moon]
    assert lengths == ([1300, 600, 1200] * 40)[: len(of_moon)]
    prompts = [requests.prompt(session, 0, "measure", ()).flat() for session in of_moon[:4]]
    first, second, third, again = (np.asarray(prompt) for prompt in prompts)
    assert np.array_equal(first[:512], second[:512]), "hash_ids 0"
    assert np.array_equal(first[:1024], third[:1024]), "hash_ids 0 and 7"
    assert len(again) == len(first) and not np.array_equal(again[:512], first[:512])

    point = point_of(workload, "request_rate", seed=5)
    assert sent(point, 3) == sent(point, 1)
    assert workload.recorded_rate() is None
    assert any("after about 6 requests of the mix" in note for note in workload.notes())


def test_pauses_within_sessions_of_a_trace_stay_in_a_mix(tmp_path: Path) -> None:
    recorded = traces.trace(tmp_path / "burst.csv", traces.BURSTGPT_2, name="burst")
    requests = requests_of(mix((1, RAG), (1, recorded.model_dump())))
    of_burst = next(session for session in range(40) if requests.part(session) == "burst")
    assert requests.turns(of_burst) == 2
    assert requests.pause_s(of_burst, 0) == 29.5 - 5.5 - 3.5


def test_each_part_sends_its_own_sessions_in_its_own_order() -> None:
    requests = requests_of(mix((1, CHAT), (1, RAG)))
    by_part: dict[str, list[int]] = {"chat": [], "rag": []}
    for session in range(5000):
        place = requests.place(session)
        by_part[place.part].append(place.session)
        assert requests.turns(session) == (3 if place.part == "chat" else 1)
        assert requests.pause_s(session, 0) == (2.0 if place.part == "chat" else 0.0)
        assert requests.input_tokens(session, 0) == (10 if place.part == "chat" else 40)
    for sessions in by_part.values():
        assert sessions == list(range(len(sessions)))


def test_two_parts_of_equal_lengths_send_different_prompts() -> None:
    requests = requests_of(mix((1, RAG), (1, {**RAG, "name": "again"})))
    prompts = {str(requests.prompt(session, 0, "measure", ()).flat()) for session in range(200)}
    assert len(prompts) == 200


def test_a_rate_is_one_of_requests_so_sessions_of_several_turns_weigh_as_many() -> None:
    workload = mix((1, CHAT), (1, RAG))
    assert workload.mean_turns() == requests_of(workload).mean_turns == 2.0
    assert workload.shares == {"chat": 0.5, "rag": 0.5}
    assert workload.request_shares == {"chat": 0.75, "rag": 0.25}


def test_a_mix_answers_every_question_that_a_kind_is_asked() -> None:
    questions = {
        name
        for name, member in inspect.getmembers(WorkloadKind, inspect.isfunction)
        if not name.startswith("_")
    }
    answered = {name for name in vars(MixRequests) if not name.startswith("_")}
    # A mix draws when its sessions begin, also those of a trace. `request` asks `prompt`.
    assert questions - answered == {"starts_s", "request"}


def test_a_closed_loop_meets_the_sessions_of_each_part_in_the_middle() -> None:
    requests = requests_of(mix((1, {**CHAT, "turns": 50, "start": "anywhere"}), (1, RAG)))
    at_level = requests.at_level(Level(control="concurrency", value=40.0), Arrivals())
    chats = [session for session in range(80) if at_level.part(session) == "chat"]
    begun = [session for session in chats if session < 40]
    assert len(begun) > 10
    assert sum(at_level.first_turn(session) > 0 for session in begun) > len(begun) / 2
    assert not any(at_level.first_turn(session) for session in chats if session >= 40)


def test_bounds_and_shares_of_long_prompts_are_those_of_all_parts() -> None:
    workload = mix((1, CHAT), (1, RAG))
    # the last turn of a chat: three messages and the answers to them
    assert workload.token_bounds() == (45, 47)
    assert workload.longer_prompts(39) == pytest.approx(
        0.75 * workload.contents[0].longer_prompts(39) + 0.25
    )  # type: ignore[operator]
    assert workload.longer_prompts(40) == 0.0
    assert workload.longer_prompts(9) == 1.0
    unlimited = {"lognormal": {"mean": 99, "sigma": 1}}
    assert mix((1, CHAT), (1, {**RAG, "output_tokens": unlimited})).token_bounds()[1] is None


def test_the_identity_has_names_and_weights_of_parts() -> None:
    first = mix((1, CHAT), (1, RAG)).identity()
    assert mix((1, CHAT), (1, RAG), name="other").identity() == first
    assert mix((2, CHAT), (1, RAG)).identity() != first
    assert mix((1, CHAT), (1, {**RAG, "name": "docs"})).identity() != first


def test_what_a_mix_holds_is_shown_by_part() -> None:
    workload = mix((1, CHAT), (1, RAG))
    by_part = {part.workload.name: part for part in facts_by_part(workload, IDS, 0, 400)}
    chat, rag = by_part["chat"].facts, by_part["rag"].facts
    assert chat is not None and rag is not None
    assert rag.prompt_tokens is not None and rag.prompt_tokens.mean == 40
    assert chat.prompt_tokens is not None and chat.prompt_tokens.most == 40
    assert chat.requests + rag.requests >= 400
    parts = {request.part for request in sampled(workload, IDS, 0, 50)}
    assert parts == {"chat", "rag"}


def test_parts_share_no_tokens_with_each_other() -> None:
    shared = {**RAG, "shared_prefix_tokens": 160}
    alone = reuse_of(mix((1, shared), (1, {**RAG, "name": "other"})), 0, range(200)).of_all
    both = reuse_of(mix((1, shared), (1, {**shared, "name": "other"})), 0, range(200)).of_all
    assert alone is not None and both is not None
    assert both.cached_tokens == 198 * 160, "each part has a prefix of its own"
    assert 0 < alone.cached_tokens < both.cached_tokens


def test_each_part_asks_for_its_own_adapters_also_at_a_level() -> None:
    tenants = {**RAG, "adapters": {"names": ["sql", "law"], "base_share": 0.2}}
    workload = mix((1, CHAT), (1, tenants))
    assert workload.adapter_names() == ("sql", "law")
    requests = requests_of(workload).at_level(Level(control="concurrency", value=8), Arrivals())
    adapters: dict[str, set[str | None]] = {"chat": set(), "rag": set()}
    for session in range(100):
        adapters[requests.part(session)].add(requests.adapter(session))
    assert adapters == {"chat": {None}, "rag": {None, "sql", "law"}}


@pytest.mark.parametrize(
    "option",
    [
        {"adapters": {"names": ["sql"]}},
        {"constrain": {"json_schema": "person.json"}},
        {"tools": "tools.json", "api": "chat"},
    ],
)
def test_options_belong_to_the_parts_of_a_mix(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"'{next(iter(option))}' belongs to the parts"):
        mix((1, CHAT), (1, RAG), **option)


def test_what_prompts_are_made_of_is_that_of_all_parts(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("one two three")
    text = {**RAG, "name": "text", "content": {"text": str(tmp_path / "corpus.txt")}}
    assert mix((1, CHAT), (1, RAG)).content_source() == "random"
    assert mix((1, CHAT), (1, text)).content_source() == "mixed"
