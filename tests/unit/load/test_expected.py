"""The prefix hits that a client expects of what it sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.load import expected as expected_module
from orchestrator.load import kept_answers, prompt_tokens, sent_prompts
from orchestrator.load.expected import with_expected_hits
from orchestrator.load.kept_answers import KeptAnswer, KeptAnswers
from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.requests import Assignment
from orchestrator.load.sent_prompts import _size_of_png
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, Dialect
from orchestrator.spec.load import Level, Workload
from orchestrator.workloads.content import load_tokenizer

IDS = Dialect(
    "openai_completions",
    "/v1/completions",
    prompt_token_ids=True,
    return_token_ids=True,
    adapter_field="model",
)


def point_of(block: int | None = 16, dialect: Dialect = IDS, **keys: Any) -> LoadPoint:
    content = {"name": "w", "input_tokens": 32, "output_tokens": 16, **keys}
    return LoadPoint(
        targets=(Target("http://127.0.0.1:1", "m"),),
        dialect=dialect,
        workload=Workload.model_validate(content),
        level=Level(control="request_rate", value=10.0),
        duration_s=None,
        requests=12,
        warmup_s=0.0,
        cache_block_tokens=block,
    )


def expected(
    point: LoadPoint,
    client: int = 0,
    clients: int = 1,
    failed: tuple[int, ...] = (),
    counted: Callable[[int], int] | None = None,
    answers: KeptAnswers | None = None,
) -> dict[int, int | None]:
    """By request_index, what a client expects after it sent its share of a point. ``counted``: the
    tokens that the engine counts in the prompt of a session, by default those that were asked for.
    """
    return expectation(point, client, clients, failed, counted, answers)[0]


def expectation(
    point: LoadPoint,
    client: int = 0,
    clients: int = 1,
    failed: tuple[int, ...] = (),
    counted: Callable[[int], int] | None = None,
    answers: KeptAnswers | None = None,
) -> tuple[dict[int, int | None], str | None]:
    """As ``expected``, and why nothing is expected of some requests."""
    assignment = Assignment.of(point, client, clients)
    rows: list[dict[str, Any]] = []
    for session in assignment.schedule.own_sessions():
        for turn in range(assignment.schedule.turns(session)):
            planned = assignment.schedule.request(session, turn)
            assert planned is not None
            record = assignment.unsent_record(planned, 5)
            if planned.index in failed:
                record.fail(ErrorClass.TIMEOUT, "no end")
            else:
                record.output_tokens = record.output_tokens_asked
            record.input_tokens = record.input_tokens_asked
            if counted is not None:
                record.input_tokens = counted(session)
            rows.append({"measurement_id": "m", "attempt_id": "a", **asdict(record)})
    rows.reverse()  # the order in which requests end is any order
    table = pa.Table.from_pylist(rows, schema=REQUESTS)
    hits = with_expected_hits(
        RowFile("requests", len(rows), table), assignment, answers or KeptAnswers()
    )
    filled = hits.requests.read()
    assert filled.drop(["expected_cached_tokens"]) == table.drop(["expected_cached_tokens"])
    indices = filled["request_index"].to_pylist()
    by_index = dict(zip(indices, filled["expected_cached_tokens"].to_pylist(), strict=True))
    return by_index, hits.reason


def test_requests_that_share_nothing_expect_nothing() -> None:
    assert set(expected(point_of()).values()) == {0}


def test_all_but_the_first_expect_the_whole_blocks_of_their_prefix() -> None:
    hits = expected(point_of(shared_prefix_tokens=100))
    assert hits.pop(0) == 0
    assert set(hits.values()) == {96}
    assert expected(point_of(block=1, shared_prefix_tokens=100))[11] == 100


def test_a_warm_up_shares_no_prefix_with_what_is_measured() -> None:
    point = replace(point_of(shared_prefix_tokens=64), warmup_s=0.5)
    hits = expected(point)
    assert list(hits.values()).count(0) == 2, "the first of either phase"


def test_prompts_that_cannot_be_counted_have_no_expectation_and_say_why(tmp_path: Path) -> None:
    chat = Dialect("openai_chat", "/v1/chat/completions", tool_choices=frozenset({"auto"}))
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    with_tools = point_of(dialect=chat, api="chat", tools=[tool])
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six\n" * 20)
    slices = point_of(content={"text": str(text)}, shared_prefix_tokens=64)
    for point in (with_tools, slices):
        hits, reason = expectation(point)
        assert set(hits.values()) == {None}
        assert reason == "the client has no tokenizer of the model to count prompts with"
    assert expectation(point_of(content="words")) == (dict.fromkeys(range(12), 0), None)


def test_the_other_parts_of_a_mix_keep_their_expectation(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six\n" * 20)
    slices = point_of(name="slices", content={"text": str(text)}).workload
    prefixed = point_of(name="prefixed", shared_prefix_tokens=100).workload
    parts = [{"workload": part.name, "content": part, "weight": 1} for part in (slices, prefixed)]
    mixed = Workload.model_validate({"name": "mixed", "kind": "mix", "parts": parts})
    point = replace(point_of(), workload=mixed, requests=40)
    kind = Assignment.of(point, 0, 1).kind
    hits = expected(point)
    by_part: dict[str | None, list[int | None]] = {}
    for session, tokens in sorted(hits.items()):
        by_part.setdefault(kind.part(session), []).append(tokens)
    assert set(by_part["slices"]) == {None}
    first, *later = by_part["prefixed"]
    assert first == 0
    assert set(later) == {96}
    assert expected(point, 0, 2) | expected(point, 1, 2) == hits


TALK = {"kind": "conversations", "turns": 3}


def test_a_turn_expects_everything_before_it_but_the_answers_last_token() -> None:
    hits = expected(point_of(**TALK))
    assert [hits[index] for index in range(6)] == [0, 32, 80, 0, 32, 80]


def test_answers_that_do_not_come_back_are_not_expected() -> None:
    silent = replace(IDS, return_token_ids=False)
    keys = {**TALK, "output_tokens": 33}
    assert expected(point_of(**keys))[1] == 64
    hits = expected(point_of(dialect=silent, **keys))
    # the second prompt has other ids in place of the engine's answer; the third has these, too
    assert [hits[index] for index in range(3)] == [0, 32, 96]


def test_a_failed_turn_is_in_later_prompts_without_an_answer() -> None:
    hits = expected(point_of(kind="conversations", turns=4), failed=(1,))
    # the third prompt has the first turn, two messages in a row, and what was computed of it is 32
    # tokens and 15 of an answer; the fourth has the third and 15 more
    assert [hits[index] for index in range(4)] == [0, None, 32, 112]


@pytest.mark.parametrize("clients", [1, 2])
def test_nothing_is_expected_of_a_prefix_that_was_only_sent_in_vain(clients: int) -> None:
    point = point_of(shared_prefix_tokens=64, shared_prefix_count=3)
    # sessions 4 and 6, both of client 0, are the first with the third prefix
    assert expected(point, 0, clients)[6] == 64
    assert expected(point, 0, clients, failed=(4,))[6] == 0


@pytest.mark.parametrize("clients", [1, 2])
def test_a_client_without_a_single_answer_expects_nothing(clients: int) -> None:
    point = point_of(shared_prefix_tokens=64)
    assert set(expected(point, 0, clients, failed=tuple(range(12))).values()) == {None}


def test_clients_together_expect_what_one_does() -> None:
    point = point_of(shared_prefix_tokens=100, shared_prefix_count=3)
    alone = expected(point)
    together: dict[int, int | None] = {}
    for client in range(3):
        together |= expected(point, client, 3)
    assert together == alone


def test_a_mix_expects_what_its_parts_do() -> None:
    keys = {"input_tokens": 32, "output_tokens": 16}
    talk = Workload.model_validate({"name": "talk", **TALK, **keys})
    prefixed = Workload.model_validate({"name": "prefixed", "shared_prefix_tokens": 100, **keys})
    parts = [{"workload": part.name, "content": part, "weight": 1} for part in (talk, prefixed)]
    mixed = Workload.model_validate({"name": "mixed", "kind": "mix", "parts": parts})
    point = replace(point_of(), workload=mixed, requests=40)
    hits = expected(point)
    assert set(hits.values()) == {0, 32, 80, 96}
    together: dict[int, int | None] = {}
    for client in range(2):
        together |= expected(point, client, 2)
    assert together == hits


def test_each_replica_has_a_cache_of_its_own() -> None:
    point = point_of(shared_prefix_tokens=64)
    target = point.targets[0]
    hits = expected(replace(point, targets=(target, replace(target, replica=1))))
    assert [hits[index] for index in range(4)] == [0, 0, 64, 64]


@pytest.mark.parametrize("block", [None])
def test_an_engine_that_keeps_no_prefixes_has_no_expectation(block: None) -> None:
    assert set(expected(point_of(block=block, shared_prefix_tokens=64)).values()) == {None}


def test_adapters_find_nothing_of_each_others_prompts() -> None:
    shared = {"shared_prefix_tokens": 64}
    adapters = {"names": ["sql", "law"]}
    of_one: dict[int, Any] = expected(point_of(**shared))
    of_two: dict[int, Any] = expected(point_of(**shared, adapters=adapters))
    assert sorted(map(int, of_one.values())) == [0] + [64] * 11
    # each adapter computes the prefix once
    assert sorted(map(int, of_two.values())) == [0, 0] + [64] * 10


CHAT = Dialect("openai_chat", "/v1/chat/completions", tool_choices=ANY_TOOL_CHOICE)
TEXTS = Dialect("openai_completions", "/v1/completions")
# as many tokens as words: a role, what was said, and the mark of the answer
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for message in messages %}{{ message.role }} {{ message.content }} "
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }} {% endfor %}"
    "{% endfor %}assistant"
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The folder of a tokenizer that has a token for each word, and a template of chats."""
    folder = tmp_path / "model"
    folder.mkdir()
    names = ["assistant", "system", "tool", "user", "weather", "Oslo", "Rome"]
    words = {word: number for number, word in enumerate(["[UNK]", *map(str, range(100)), *names])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def numbers(first: int, count: int) -> str:
    """A text of so many tokens."""
    return " ".join(map(str, range(first, first + count)))


def point_of_file(model: str, folder: Path, entries: list[Any], **keys: Any) -> LoadPoint:
    """A point whose requests send the entries once each, or as often as 12 requests do."""
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    content = {"kind": "file", "prompts": str(path), "input_tokens": None, "api": "chat"}
    given = {name: value for name, value in (content | keys).items() if value is not None}
    workload = Workload.model_validate({"name": "w", "output_tokens": 16, **given})
    dialect = CHAT if given["api"] == "chat" else TEXTS
    return replace(point_of(4, dialect), workload=workload, tokenizer=model)


def test_texts_of_a_file_expect_what_an_earlier_one_began_with(model: str, tmp_path: Path) -> None:
    texts = [numbers(0, 10), numbers(0, 7) + " 50 51", numbers(20, 9)]
    entries = [{"prompt": text} for text in texts]
    point = point_of_file(model, tmp_path, entries, api="completions")
    hits = expected(point, counted=lambda session: len(texts[session % 3].split()))
    # 7 tokens in common are one whole block of 4; later the same texts come again
    assert [hits[index] for index in range(6)] == [0, 4, 0, 8, 8, 8]


def test_chats_are_written_by_the_models_template(model: str, tmp_path: Path) -> None:
    chats = [
        [{"role": "system", "content": numbers(0, 9)}, {"role": "user", "content": said}]
        for said in ("60", "61")
    ]
    point = point_of_file(model, tmp_path, [{"messages": chat} for chat in chats])
    # system, nine words, user, one word, assistant
    hits = expected(point, counted=lambda session: 13)
    assert [hits[index] for index in range(4)] == [0, 8, 12, 12]


def test_a_session_with_tools_expects_what_was_recorded(model: str, tmp_path: Path) -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        {"role": "user", "content": numbers(0, 8)},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": numbers(20, 5)},
        {"role": "assistant", "content": "70"},
        {"role": "user", "content": "71"},
    ]
    tool = {"type": "function", "function": {"name": "weather"}}
    entries = [{"messages": messages, "tools": [tool]}]
    point = replace(point_of_file(model, tmp_path, entries, use="sessions"), requests=3)
    lengths = iter([11, 19, 23])
    hits = expected(point, counted=lambda _: next(lengths))
    # weather user 0 … 7 assistant | the same, Oslo tool 20 … 24 assistant | the same, 70 user 71 …
    assert [hits[index] for index in range(3)] == [0, 8, 16]


def test_what_the_engine_counts_otherwise_has_no_expectation(model: str, tmp_path: Path) -> None:
    texts = [numbers(0, 10), numbers(0, 9)]
    entries = [{"prompt": text} for text in texts]
    point = point_of_file(model, tmp_path, entries, api="completions")
    assert set(expected(point, counted=lambda session: 11).values()) == {None}
    assert set(expected(replace(point, tokenizer=None)).values()) == {None}


def test_more_text_than_can_be_counted_has_no_expectation(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = point_of_file(model, tmp_path, [{"prompt": numbers(0, 10)}], api="completions")
    assert set(expected(point, counted=lambda session: 10).values()) == {0, 8}
    monkeypatch.setattr(prompt_tokens, "MOST_CHARACTERS", 10)
    assert set(expected(point, counted=lambda session: 10).values()) == {None}


def test_a_chat_that_the_template_refuses_has_no_expectation(model: str, tmp_path: Path) -> None:
    config = Path(model) / "tokenizer_config.json"
    refusing = TEMPLATE + "{{ raise_exception('no') }}"
    config.write_text(config.read_text().replace(json.dumps(TEMPLATE), json.dumps(refusing)))
    point = point_of_file(model, tmp_path, [{"prompt": "1 2 3"}])
    assert set(expected(point, counted=lambda session: 5).values()) == {None}
    config.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert set(expected(point, counted=lambda session: 5).values()) == {None}


def test_a_tokenizer_that_needs_further_packages_to_write_chats_has_no_expectation(
    model: str, tmp_path: Path
) -> None:
    """This one needs SentencePiece and jieba, and raises ImportError without them."""
    config = Path(model) / "tokenizer_config.json"
    config.write_text(json.dumps({"tokenizer_class": "CpmTokenizer", "chat_template": TEMPLATE}))
    point = point_of_file(model, tmp_path, [{"prompt": "1 2 3"}])
    hits, reason = expectation(point, counted=lambda session: 5)
    assert set(hits.values()) == {None}
    assert reason is not None and "has no template here" in reason


@pytest.mark.parametrize("template", ["{{ messages[0].content + 1 }}", "{{ messages[9].role.x }}"])
def test_a_chat_at_which_the_template_fails_has_no_expectation(
    model: str, tmp_path: Path, template: str
) -> None:
    config = Path(model) / "tokenizer_config.json"
    config.write_text(config.read_text().replace(json.dumps(TEMPLATE), json.dumps(template)))
    point = point_of_file(model, tmp_path, [{"prompt": "1 2 3"}])
    assert set(expected(point, counted=lambda session: 5).values()) == {None}


def test_the_parts_of_what_a_tool_returned_are_given_to_the_template_as_a_text(
    model: str, tmp_path: Path
) -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    call = {"id": "c", "type": "function", "function": function}
    parts = [{"type": "text", "text": "3"}, {"type": "text", "text": "4"}]
    messages = [
        {"role": "user", "content": "1 2"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    tool = {"type": "function", "function": {"name": "weather"}}
    point = point_of_file(model, tmp_path, [{"messages": messages, "tools": [tool]}])
    # weather user 1 2 assistant Oslo tool 3 4 assistant
    assert set(expected(point, counted=lambda session: 10).values()) == {0, 8}


def test_more_blocks_than_can_be_looked_up_have_no_expectation(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = point_of_file(model, tmp_path, [{"prompt": numbers(0, 10)}], api="completions")
    monkeypatch.setattr(expected_module, "MOST_SEGMENTS", 3)
    assert set(expected(point, counted=lambda session: 10).values()) == {None}


def sessions_of(model: str, folder: Path) -> LoadPoint:
    """Six sessions of two turns, of two that a file has."""
    entries = []
    for first in (0, 20):
        said = [("user", numbers(first, 9)), ("assistant", "5"), ("user", numbers(first, 2))]
        messages = [{"role": role, "content": text} for role, text in said]
        entries.append({"messages": messages})
    return point_of_file(model, folder, entries, use="sessions")


def answers_of(texts: list[str], ids: list[int] | None = None) -> KeptAnswers:
    """The first answers of sessions; with ``ids`` as the tokens that the engine made of each."""
    answers = KeptAnswers()
    made = None if ids is None else np.array(ids, np.int32)
    for session, text in enumerate(texts):
        answers.keep(session, 0, KeptAnswer((text,), made))
    return answers


# user 0 … 8 assistant | the same, 70 … 76 user 0 1 assistant
TURNS_OF_SESSIONS = [11, 22]


def test_live_answers_in_sessions_of_a_file_are_expected_in_the_next_turn(
    model: str, tmp_path: Path
) -> None:
    point = sessions_of(model, tmp_path)
    lengths = cycle(TURNS_OF_SESSIONS)
    said = [numbers(70, 7)] * 4 + [numbers(80, 7)] * 2
    hits = expected(point, counted=lambda _: next(lengths), answers=answers_of(said))
    # 11 tokens and 6 of the answer's 7, in blocks of 4
    assert [hits[index] for index in range(4)] == [0, 16, 0, 16]
    # sessions that come again have the same answers, and then others
    assert [hits[index] for index in range(4, 12)] == [8, 20, 8, 20, 8, 16, 8, 16]


def test_tokens_that_the_engine_made_of_an_answer_are_those_in_its_cache(
    model: str, tmp_path: Path
) -> None:
    """Here its text has other tokens, so that only the first of them are found again."""
    point = sessions_of(model, tmp_path)
    lengths = cycle(TURNS_OF_SESSIONS)
    as_text = [numbers(70, 7)] * 6
    vocabulary = load_tokenizer(model)
    ids = vocabulary.encode("70 71 72 73 99 75 76").ids
    hits = expected(point, counted=lambda _: next(lengths), answers=answers_of(as_text, ids))
    assert hits[1] == 12
    lengths = cycle(TURNS_OF_SESSIONS)
    assert expected(point, counted=lambda _: next(lengths), answers=answers_of(as_text))[1] == 16


def test_sessions_that_come_again_are_expected_by_one_client_alone(
    model: str, tmp_path: Path
) -> None:
    point = sessions_of(model, tmp_path)
    answers = answers_of([numbers(70, 7)] * 6)
    lengths = cycle(TURNS_OF_SESSIONS)
    hits, reason = expectation(point, 0, 2, counted=lambda _: next(lengths), answers=answers)
    assert set(hits.values()) == {None}
    assert reason == "sessions of the file came again, and other clients have the answers to some"
    lengths = cycle(TURNS_OF_SESSIONS)
    once = replace(point, requests=4)
    hits = expected(once, 1, 2, counted=lambda _: next(lengths), answers=answers)
    assert list(hits.values()) == [16, 0]  # the last request ends first


def test_answers_that_are_too_many_to_keep_have_no_expectation(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "MOST_ANSWERS", 30)
    point = sessions_of(model, tmp_path)
    hits, reason = expectation(point, answers=answers_of([numbers(70, 7)] * 6))
    assert set(hits.values()) == {None}
    assert reason is not None and "too many to keep" in reason


def longest_common(prompts: list[list[int]], block: int) -> list[int]:
    """What an unlimited cache has of each prompt, by comparing all of its tokens."""
    hits = []
    for place, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:place]:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt, earlier, strict=False))
            longest = max(longest, sum(1 for _ in same))
        hits.append(min(longest, len(prompt) - 1) // block * block)
    return hits


@pytest.mark.parametrize("clients", [1, 3])
def test_slices_of_a_text_are_expected_where_they_begin_alike(
    model: str, tmp_path: Path, clients: int
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(numbers(0, 7))
    slices = {"content": {"text": str(text)}, "input_tokens": {"uniform": {"min": 9, "max": 40}}}
    point = replace(point_of(4, **slices), tokenizer=model, requests=40)
    kind = Assignment.of(point, 0, 1).kind
    flat = [kind.request(session, 0, "measure", ()).flat() for session in range(40)]
    by_comparing = longest_common([np.asarray(ids).tolist() for ids in flat], 4)
    hits: dict[int, int | None] = {}
    for client in range(clients):
        hits |= expected(point, client, clients)
    assert [hits[index] for index in range(40)] == by_comparing
    assert sum(by_comparing) > 200


def test_a_workloads_tools_are_expected_as_the_template_writes_them(model: str) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}] * 9
    point = point_of(4, CHAT, api="chat", tools=tools, input_tokens=5)
    point = replace(point, tokenizer=model)
    # weather, nine times, user, words of which the tokenizer has none, assistant
    lengths: list[int] = []
    kind = Assignment.of(point, 0, 1).kind
    for session in range(12):
        words = kind.request(session, 0, "measure", ()).messages[-1].text
        lengths.append(9 + 1 + len(words.split()) + 1)
    hits = expected(point, counted=lambda session: lengths[session])
    assert hits[0] == 0
    assert min(map(int, filter(None, hits.values()))) >= 8


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(("tokens_of_tools", "least"), [(9, 8), (0, 0)])
def test_tools_that_no_answer_may_call_are_expected_as_far_as_the_engine_counts_them(
    model: str, clients: int, tokens_of_tools: int, least: int
) -> None:
    """vLLM writes them, SGLang does not."""
    tools = [{"type": "function", "function": {"name": "weather"}}] * 9
    keys = {"api": "chat", "tools": tools, "tool_choice": "none", "input_tokens": 5}
    point = replace(point_of(4, CHAT, **keys), tokenizer=model)
    hits: dict[int, int | None] = {}
    for client in range(clients):
        # a role, five words, and the mark of the answer
        hits |= expected(point, client, clients, counted=lambda session: tokens_of_tools + 7)
    assert hits.pop(0) == 0
    assert min(tokens for tokens in hits.values() if tokens is not None) == least
    assert None not in hits.values()


@pytest.mark.parametrize("sizes", [["8x8"], ["8x8", "16x8", "24x8"]])
@pytest.mark.parametrize("clients", [1, 2])
def test_the_same_pictures_are_expected_as_many_tokens_as_the_engine_counts(
    model: str, sizes: list[str], clients: int
) -> None:
    images = {"sizes": sizes, "count": 2, "distinct": 3}
    point = point_of(4, CHAT, api="chat", input_tokens=3, images=images)
    point = replace(point, tokenizer=model, requests=30)
    kind = Assignment.of(point, 0, 1).kind
    tokens_of_sizes = [10, 7, 5]
    pictures: dict[bytes, int] = {}
    prompts: list[list[int]] = []
    for session in range(30):
        message = kind.request(session, 0, "measure", ()).messages[-1]
        prompt = [1000]  # its role; the last one is the mark of the answer
        for picture in message.images:
            pictures.setdefault(picture, len(pictures))
            size = _size_of_png(picture)
            assert size is not None
            length = tokens_of_sizes[sizes.index(f"{size[0]}x{size[1]}")]
            prompt += [-1 - pictures[picture]] * length
        prompts.append([*prompt, *load_tokenizer(model).encode(message.text).ids, 1001])
    hits: dict[int, int | None] = {}
    for client in range(clients):
        hits |= expected(point, client, clients, counted=lambda session: len(prompts[session]))
    assert [hits[index] for index in range(30)] == longest_common(prompts, 4)
    assert max(map(int, filter(None, hits.values()))) >= 10


def test_pictures_whose_tokens_the_counts_do_not_say_have_no_expectation(model: str) -> None:
    images = {"sizes": ["8x8"], "count": 2}
    point = point_of(4, CHAT, api="chat", input_tokens=3, images=images)
    point = replace(point, tokenizer=model)
    hits, reason = expectation(point, counted=lambda session: 2)
    assert set(hits.values()) == {None}
    assert reason == "the engine's counts do not say how many tokens a picture takes"


def test_prompts_that_would_take_too_long_are_given_up_early(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    point = point_of(4, CHAT, api="chat", tools=[tool], input_tokens=5)
    point = replace(point, tokenizer=model)
    monkeypatch.setattr(sent_prompts, "ESTIMATED_AFTER", 2)
    monkeypatch.setattr(sent_prompts, "MOST_CHARACTERS", 300)
    _, reason = expectation(point)
    assert reason is not None and "too many to count after a load" in reason


def test_the_texts_of_a_part_of_a_mix_are_expected_beside_the_others(
    model: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": numbers(0, 10)}))
    texts = {"name": "texts", "kind": "file", "prompts": str(path), "output_tokens": 4}
    drawn = {"name": "drawn", "input_tokens": 20, "output_tokens": 4, "shared_prefix_tokens": 8}
    contents = {given["name"]: Workload.model_validate(given) for given in (texts, drawn)}
    mix = {"name": "m", "kind": "mix", "parts": [{"workload": name} for name in contents]}
    workload = Workload.model_validate(mix).with_contents(contents)
    point = replace(point_of(4, TEXTS), workload=workload, tokenizer=None)
    assert {None, 0, 8} == set(expected(point).values())
    hits = expected(replace(point, tokenizer=model), counted=lambda session: 10)
    assert set(hits.values()) == {0, 8}
