"""Every workload of the registry keeps the contract of orchestrator/workloads."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.load.schedule import kind_of
from orchestrator.plan.make import load_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.load import (
    MOST_TOKENS,
    WORKLOADS,
    LengthBounds,
    Lengths,
    LogNormal,
    Workload,
)
from orchestrator.workloads.content import RandomIds, Words
from orchestrator.workloads.drawn import DrawnRequests, RandomWorkload
from orchestrator.workloads.entries import PromptEntry
from orchestrator.workloads.file import (
    EntryLengths,
    FileWorkload,
    Summary,
    parse_prompts,
    summary,
)
from orchestrator.workloads.file_reading import MOST_PROBLEMS
from orchestrator.workloads.kind import IdRange, Message, Prompt, Prompter, WorkloadKind
from tests.unit.load.test_schedule import point

KINDS = sorted(WORKLOADS)
# kinds that write their prompts
WRITTEN_KINDS = [kind for kind in KINDS if kind not in ("file", "trace", "mix")]
TRACE_FILE = Path(__file__).with_name("trace.csv")
PROMPTS = Path(__file__).with_name("prompts.jsonl")
IDS = RandomIds(IdRange(1000, 2000))


def workload(kind: str, **fields: Any) -> Workload:
    """A workload of any registered kind, with the keys that the kinds of this repository require."""
    lengths = {
        "input_tokens": {"uniform": {"min": 5, "max": 50}},
        "output_tokens": {"uniform": {"min": 1, "max": 9}},
    }
    required = {
        "random": lengths,
        "conversations": {**lengths, "turns": 3},
        "file": {"prompts": str(PROMPTS), "output_tokens": lengths["output_tokens"]},
        "trace": {"trace": str(TRACE_FILE)},
        "mix": {
            "parts": [
                {"weight": 2, "workload": "a", "content": {"name": "a", **lengths}},
                {
                    "workload": "b",
                    "content": {"name": "b", "kind": "conversations", "turns": 3, **lengths},
                },
            ]
        },
    }
    return Workload.model_validate({"name": "w", "kind": kind, **required.get(kind, {}), **fields})


def entry(*texts: str, answer: int | None = None) -> PromptEntry:
    """An entry of messages: of the user, or of the role written before the text (``system:…``)."""
    messages = []
    for text in texts:
        role, _, content = text.rpartition(":")
        messages.append(Message(role or "user", (content,), 0))  # type: ignore[arg-type]
    return PromptEntry(tuple(messages), answer)


def file_of(path: Path | str, **fields: Any) -> FileWorkload:
    return FileWorkload(
        name="w", kind="file", prompts=str(path), output_tokens=Lengths(fixed=1), **fields
    )


def as_written(path: str) -> str:
    """Leaves a path of a workload's file as it is: those of these tests are absolute."""
    return path


def problems(workload: Workload) -> list[str]:
    """What keeps a workload from being sent."""
    try:
        workload.resolved(as_written)
    except ProblemsError as error:
        return [str(problem) for problem in error.problems]
    return []


def is_prompt(text: str) -> bool:
    """Whether a file of this text alone is read as text: it is not blank and begins like no JSON."""
    return bool(text.encode().strip()) and not text.lstrip().startswith(("[{", "{", "\ufeff"))


def requests_of(kind: str, seed: int = 3, **fields: Any) -> WorkloadKind:
    requests: WorkloadKind = workload(kind, **fields).requests(IDS, seed)
    return requests


def ids(prompt: Prompt) -> list[Any]:
    """A prompt's token ids, or a list of its text where it was written as text."""
    content = prompt.flat()
    return [content] if isinstance(content, str) else content.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_request_can_be_written_alone_and_is_always_the_same(kind: str) -> None:
    first, again = requests_of(kind), requests_of(kind)
    turns = [(session, turn) for session in (5000, 0, 17) for turn in range(first.turns(session))]
    prompts = {key: first.prompt(*key, "measure", ()) for key in turns}
    for key in reversed(turns):
        assert ids(again.prompt(*key, "measure", ())) == ids(prompts[key])
        assert again.output_tokens(*key) == first.output_tokens(*key)


@pytest.mark.parametrize("kind", WRITTEN_KINDS)
def test_the_mean_of_turns_is_that_of_its_sessions(kind: str) -> None:
    requests = requests_of(kind)
    turns = [requests.turns(session) for session in range(2000)]
    # requests a second are planned from this mean
    assert requests.mean_turns == pytest.approx(sum(turns) / len(turns), rel=0.1)


@pytest.mark.parametrize("kind", WRITTEN_KINDS)
def test_prompts_differ_between_requests_and_seeds(kind: str) -> None:
    of_seed_1, of_seed_2 = (requests_of(kind, seed, input_tokens=16) for seed in (1, 2))
    prompts = {
        tuple(ids(requests.prompt(session, turn, "measure", ())))
        for requests in (of_seed_1, of_seed_2)
        for session in range(40)
        for turn in range(requests.turns(session))
    }
    assert len(prompts) == 40 * (of_seed_1.turns(0) + of_seed_2.turns(0))


@pytest.mark.parametrize("kind", WRITTEN_KINDS)
def test_a_prompt_has_as_many_tokens_as_were_drawn(kind: str) -> None:
    requests = requests_of(kind, shared_prefix_tokens=7)
    for session in range(50):
        prompt = requests.prompt(session, 0, "measure", ())
        assert len(ids(prompt)) == prompt.tokens == requests.input_tokens(session, 0)
        assert 1 <= requests.output_tokens(session, 0) <= 9


@pytest.mark.parametrize("kind", WRITTEN_KINDS)
def test_the_warm_up_has_a_prefix_of_its_own(kind: str) -> None:
    requests = requests_of(kind, shared_prefix_tokens=20)
    prefixes = {
        phase: {tuple(ids(requests.prompt(s, 0, phase, ()))[:20]) for s in range(5)}
        for phase in ("warmup", "measure")
    }
    assert all(len(distinct) == 1 for distinct in prefixes.values())
    assert prefixes["warmup"].isdisjoint(prefixes["measure"])


@pytest.mark.parametrize("kind", WRITTEN_KINDS)
def test_sessions_share_as_many_prefixes_as_are_asked_for(kind: str) -> None:
    requests = requests_of(kind, shared_prefix_tokens=20, shared_prefix_count=3)
    prefixes_by_session = [
        [
            tuple(ids(requests.prompt(session, turn, "measure", ()))[:20])
            for turn in range(requests.turns(session))
        ]
        for session in range(120)
    ]
    assert all(len(set(prefixes)) == 1 for prefixes in prefixes_by_session), (
        "all turns of a session have the same"
    )
    prefixes = [of_turns[0] for of_turns in prefixes_by_session]
    assert len(set(prefixes)) == 3
    assert min(map(prefixes.count, set(prefixes))) > 20, "each of the three about as often"
    assert len(set(prefixes[::2])) == len(set(prefixes[1::2])) == 3, "two replicas see all of them"
    warmup = {tuple(ids(requests.prompt(session, 0, "warmup", ()))[:20]) for session in range(60)}
    assert len(warmup - set(prefixes)) == 3


def test_random_requests_are_single_turns_without_sessions() -> None:
    requests = requests_of("random")
    assert (requests.mean_turns, requests.has_sessions, requests.needs_reply) == (1, False, False)


def test_a_conversation_holds_what_was_said_before() -> None:
    requests = requests_of("conversations")
    first = requests.prompt(4, 0, "measure", ())
    answer = np.array([9, 9, 9], np.int32)
    second = requests.prompt(4, 1, "measure", [*first.messages, Message("assistant", (answer,), 3)])
    new_ids = ids(Prompt(second.messages[-1:], 0))
    assert ids(second) == ids(first) + [9, 9, 9] + new_ids
    assert second.tokens == first.tokens + 3 + len(new_ids)
    assert requests.has_sessions and requests.needs_reply and requests.turns(4) == 3


def test_a_file_is_sent_as_it_is_in_its_order_and_again_from_its_start() -> None:
    requests = requests_of("file")
    entries = [entry for entry in parse_prompts(PROMPTS.read_bytes(), "prompts.jsonl") if entry]
    sent = [requests.prompt(session, 0, "measure", ()) for session in range(5)]
    assert [prompt.messages for prompt in sent] == [entries[at].messages for at in (0, 1, 2, 0, 1)]
    assert {prompt.tokens for prompt in sent} == {requests.input_tokens(0, 0)} == {0}, (
        "nobody counted them"
    )
    assert [requests.output_tokens(session, 0) for session in (0, 2, 3)] == [7, 9, 7]
    assert 1 <= requests.output_tokens(1, 0) <= 9, "a line that names none has the workload's"
    assert (requests.mean_turns, requests.has_sessions, requests.needs_reply) == (1, False, False)


CHAT = (
    '{"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}, '
    '{"role": "assistant", '
    '"content": "Yes?"}, {"role": "user", "content": [{"type": "text", "text": "W"}, {"type": '
    '"text", "text": "hy"}]}, '
    '{"role": "assistant", "content": "Because"}], "output_tokens": 9}'
)
SHARE_GPT = [
    [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "What?"}],
    [
        {"from": "gpt", "value": "I"},
        {"from": "system", "value": "Be kind"},
        {"from": "user", "value": "Ho"},
    ],
    [{"from": "gpt", "value": "nobody asked"}],
    [],
]
SHARE_GPT_LINES = [json.dumps({"id": "a", "conversations": turns}) for turns in SHARE_GPT]
SHARE_GPT_ENTRIES = [entry("Hi"), entry("system:Be kind", "Ho"), None, None]
TRACE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}'


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("a.txt", "one\r\n\n  two {\u2028\n", [entry("one"), entry("  two {\u2028")]),
        ("a.txt", '{"prompt": "x"}\n', [entry("x")]),
        ("a.txt", '["x"] and more\n', [entry('["x"] and more')]),
        (
            "a.jsonl",
            '{"prompt": "x\\ny", "output_tokens": 3, "id": 7}\n',
            [entry("x\ny", answer=3)],
        ),
        ("a.JSONL", '\ufeff{"prompt": "x"}\r\n', [entry("x")]),
        (
            "a.json",
            '{"prompt": "x", "output_tokens": 2147483647}',
            [entry("x", answer=MOST_TOKENS)],
        ),
        (
            "a.txt",
            "\ufeffone\rstill one\r\r\n[1] two",
            [entry("one\rstill one\r"), entry("[1] two")],
        ),
        ("a.txt", '[{"prompt": "x"}]', [entry("x")]),
        (
            "a.json",
            '\ufeff[\n {"prompt": "x"},\n {"prompt": "y", "output_length": 2}\n]',
            [entry("x"), entry("y", answer=2)],
        ),
        ("a.txt", CHAT, [entry("system:Be brief", "Hi", "assistant:Yes?", "Why", answer=9)]),
        ("a.json", f"[{','.join(SHARE_GPT_LINES)}]", SHARE_GPT_ENTRIES),
        ("a.jsonl", "\n".join(SHARE_GPT_LINES), SHARE_GPT_ENTRIES),
        ("a.txt", TRACE, [PromptEntry((), 5, 600, (7, 9))]),
        ("a.jsonl", '{"input_length": 3}', [PromptEntry((), None, 3)]),
    ],
)
def test_lines_are_text_or_json(name: str, text: str, entries: list[PromptEntry | None]) -> None:
    assert parse_prompts(text.encode(), name) == entries


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
            is_prompt
        ),
        min_size=1,
    )
)
def test_any_text_is_sent_as_it_is(texts: list[str]) -> None:
    data = "".join(f"{text}\r\n" for text in texts).encode()
    entries = parse_prompts(data, "a.txt")
    assert [entry and entry.messages[0].text for entry in entries] == texts


KEYS = [
    "prompt",
    "messages",
    "conversations",
    "input_length",
    "hash_ids",
    "role",
    "content",
    "from",
    "value",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, min_size=1), st.booleans())
def test_any_json_is_read_or_refused_with_its_place(values: list[Any], array: bool) -> None:
    text = json.dumps(values) if array else "\n".join(map(json.dumps, values))
    entries: list[PromptEntry | None] = []
    messages: list[str] = []
    try:
        entries = parse_prompts(text.encode(), "a.json")
    except ProblemsError as error:
        messages = [str(problem) for problem in error.problems]
    assert bool(entries) != bool(messages)
    assert all(message.startswith("prompts 'a.json'") for message in messages)
    assert len(entries) <= len(values)
    assert all(entry.input_tokens or entry.messages[-1].text for entry in entries if entry), (
        "each has something to send"
    )


def test_prompts_of_a_trace_have_its_lengths_and_equal_blocks_have_equal_tokens(
    tmp_path: Path,
) -> None:
    trace = [
        {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [3, 8, 1]},
        {"timestamp": 1, "input_length": 1030, "output_length": 6, "hash_ids": [3, 8, 2]},
        {"timestamp": 2, "input_length": 40, "output_length": 7},
        {"timestamp": 3, "input_length": 40, "output_length": 8},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, trace)))
    trace_workload = FileWorkload(
        name="w", kind="file", prompts=str(tmp_path / "t.jsonl")
    ).resolved(as_written)
    assert trace_workload.token_bounds() == (47, 1205)
    requests = trace_workload.requests(IDS, 3)
    prompts = [ids(requests.prompt(session, 0, "measure", ())) for session in range(5)]
    assert [len(prompt) for prompt in prompts] == [1200, 1030, 40, 40, 1200]
    assert [requests.input_tokens(session, 0) for session in range(4)] == [1200, 1030, 40, 40]
    assert [requests.output_tokens(session, 0) for session in range(4)] == [5, 6, 7, 8]
    # the first two blocks are equal; of the third, the second prompt has the first 6 tokens
    assert prompts[0][: 2 * 512] == prompts[1][: 2 * 512]
    assert prompts[0][2 * 512 : 1030] != prompts[1][2 * 512 : 1030]
    assert prompts[2] != prompts[3]
    assert prompts[4] == prompts[0], "after the last the first again"
    other_seed = trace_workload.requests(IDS, 4)
    assert prompts != [ids(other_seed.prompt(session, 0, "measure", ())) for session in range(5)]
    text = trace_workload.requests(Words(), 3).prompt(0, 0, "measure", ()).flat()
    assert isinstance(text, str) and len(text.split()) == 1200


def test_a_workload_needs_output_tokens_where_a_line_of_its_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "output_tokens": 3}\n{"prompt": "y"}\n')
    file_workload = FileWorkload(name="w", kind="file", prompts=str(tmp_path / "a.jsonl"))
    assert problems(file_workload) == [
        (
            f"prompts {file_workload.prompts!r} does not say for each prompt how long the answer shall be: give "
            "'output_tokens' (a number)"
        )
    ]
    with pytest.raises(InputError, match="give 'output_tokens'"):
        file_workload.requests(IDS, 0)


TOO_MANY = b'{"prompt": "x", "output_tokens": 3000000000}\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", b" \n\n", "is empty"),
        ("a.txt", b"fine\n\xff\xfe", "line 2: not UTF-8"),
        (
            "a.jsonl",
            b'{"prompt": "x"}\n' + TOO_MANY,
            "line 2: output_tokens is 3000000000; give a whole number from 1 to",
        ),
        ("a.jsonl", b'{"prompt": "x", "output_tokens": true}\n', "line 1: output_tokens is True"),
        (
            "a.json",
            b'[\n {"prompt": "x"},\n {"prompt": 3}]',
            "entry 2: \"prompt\" is '3'; give a text",
        ),
        ("a.json", b'[\n {"prompt": "x"}\n', "line 3: "),
        ("a.jsonl", b'{"messages": "x"}', "line 1: \"messages\" is 'x'; give a list of objects"),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": "x"}, {"role": "function", "content": "x"}]}',
            'line 1: message 2 of "messages": "role" is \'function\'',
        ),
        (
            "a.jsonl",
            b'{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}',
            "and a text",
        ),
        (
            "a.jsonl",
            b'{"conversations": [{"from": "gpt", "value": "x"}]}',
            "the user says nothing in any of them",
        ),
        (
            "a.jsonl",
            b'{"prompt": "x"}\n{"timestamp": 2, "conversations": [{"from": "gpt", "value": "x"}]}',
            "line 2: its user says nothing",
        ),
        (
            "a.jsonl",
            b'{"conversations": [{"from": "human"}]}',
            "\"value\" 'None'; give one of system, user,",
        ),
        (
            "a.jsonl",
            b'{"input_length": 0, "output_length": 1}',
            "line 1: input_length is 0; give a whole number",
        ),
        (
            "a.jsonl",
            b'{"input_length": 513, "hash_ids": [1]}',
            "1 hash_ids for 513 tokens; there are 2 of 512 tokens (Mooncake) or 33 of 16 tokens",
        ),
        ("a.jsonl", b'{"input_length": 9, "hash_ids": [-1]}', "give a list of whole numbers"),
        (".", None, "is not a regular file"),
        ("a\0", None, "cannot be read"),
        ("a.jsonl", b"plain\n", "line 1: 'plain' is not an object with \"prompt\" or"),
        ("a.jsonl", b'{"prompt": "x"}\n\n{"prompt": ""}\n', "line 3"),
        (
            "a.txt",
            b'{"prompt": "x"}\n{"prompt": "y", "output_tokens": 0}\n',
            "line 2: output_tokens is 0",
        ),
        ("missing", None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_sent_says_where(
    name: str, text: bytes | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    file_workload = file_of(tmp_path / name)
    (problem,) = problems(file_workload)
    assert message in problem
    with pytest.raises(InputError, match="prompts"):
        file_workload.requests(IDS, 0)


def test_all_problems_of_a_file_are_shown_at_once_and_those_beyond_a_limit_are_counted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.jsonl"
    file_workload = file_of(file)
    file.write_bytes(b'no\n{"prompt": "x"}\n\xff\n{"prompt": "x", "output_tokens": -1}\n')
    assert [problem.split("line ")[1][:2] for problem in problems(file_workload)] == [
        "1:",
        "3:",
        "4:",
    ]
    file.write_bytes(b"no\n" * 7)
    (repeated,) = problems(file_workload)
    assert "a.jsonl', line 1 and 6 more: 'no' is not an object with" in repeated
    file.write_text("".join(f"{number}\n" for number in range(MOST_PROBLEMS + 5)))
    shown = problems(file_workload)
    assert len(shown) == MOST_PROBLEMS + 1
    assert shown[-1].endswith("and 5 more problems")
    with pytest.raises(InputError) as error:
        file_workload.requests(IDS, 0)
    assert str(pickle.loads(pickle.dumps(error.value))) == "\n".join(shown), (
        "a client sends the error to the driver"
    )


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file_workload = file_of(tmp_path / "pipe")
    assert "is not a regular file" in problems(file_workload)[0]


def test_a_client_refuses_a_file_that_has_changed_since_it_was_planned(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    planned = file_of(file).resolved(as_written)
    assert planned.prompts_digest == hashlib.sha256(b"one\n").hexdigest()[:16]
    assert planned.requests(IDS, 0).prompt(0, 0, "measure", ()).flat() == "one"
    assert problems(planned) == []
    file.write_text("three\n")
    with pytest.raises(InputError, match=r"a\.txt.*has changed since, or differs on this node"):
        planned.requests(IDS, 0)
    assert "has changed since" in problems(planned)[0]
    assert workload("random").resolved(as_written) == workload("random")


def test_a_warm_up_sends_the_last_texts_of_a_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    warm_up_of_4 = file_of(file).resolved(as_written).others(4).requests(IDS, 0)
    texts = [warm_up_of_4.prompt(session, 0, "measure", ()).flat() for session in range(4)]
    # it ends with the last text; the measurement begins with the first
    assert texts == ["three", "one", "two", "three"]
    assert file_of(file).requests(IDS, 0).prompt(0, 0, "measure", ()).flat() == "one"
    assert workload("random").others(4) == workload("random")


def test_conversations_without_a_text_of_their_user_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(SHARE_GPT_LINES))
    assert file_of(file).left_out() == 2


def test_a_file_is_read_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text('{"prompt": "x", "output_tokens": 4}\n{"prompt": "y"}\n')
    first = summary((str(file),))
    assert first == Summary(
        first.digest,
        2,
        0,
        frozenset([EntryLengths(0, 4), EntryLengths(0, None)]),
        unanswered=1,
        requests=2,
    )
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: pytest.fail("read again"))
        assert summary((str(file),)) == first
    file.write_text("other\n")
    assert summary((str(file),)).digest != first.digest


@pytest.mark.parametrize("count", [0, MOST_TOKENS + 1, 3_000_000_000])
def test_no_length_is_larger_than_the_column_of_a_row_holds(count: int) -> None:
    distributions = [
        {"fixed": count},
        {"uniform": {"min": 1, "max": count}},
        {"lognormal": {"mean": 9, "sigma": 1, "max": count}},
    ]
    for distribution in distributions:
        with pytest.raises(ValidationError):
            Lengths.model_validate(distribution)
    assert Lengths(fixed=MOST_TOKENS).fixed == MOST_TOKENS


def test_a_length_without_a_limit_still_fits_its_column() -> None:
    requests = requests_of(
        "random", output_tokens=Lengths(lognormal=LogNormal(mean=MOST_TOKENS, sigma=3))
    )
    assert max(requests.output_tokens(session, 0) for session in range(2000)) == MOST_TOKENS


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_knows_the_bounds_of_every_kinds_requests(kind: str) -> None:
    planned = workload(kind).resolved(as_written)
    requests: WorkloadKind = planned.requests(IDS, 3)
    least, most = planned.token_bounds()
    last_turns = [(session, requests.turns(session) - 1) for session in range(50)]
    sums = {requests.input_tokens(*turn) + requests.output_tokens(*turn) for turn in last_turns}
    assert 1 <= least <= (most or MOST_TOKENS)
    # where requests repeat, as those of a file do, nobody may have counted a prompt: 0 tokens
    may_be_uncounted = planned.distinct_requests() is not None
    assert min(sums) >= (0 if may_be_uncounted else requests.turns(0))
    if most is not None:
        assert least <= min(sums) and max(sums) <= most, "no request is outside its bounds"
    assert planned.resolved(as_written) == planned, "resolved once is resolved"


@pytest.mark.parametrize("kind", KINDS)
def test_a_workload_goes_through_a_plan_and_to_a_client_unchanged(kind: str) -> None:
    planned = workload(kind).resolved(as_written)
    text = planned.model_dump_json(exclude_defaults=True)
    assert Workload.model_validate_json(text) == planned
    assert Workload.model_validate(json.loads(text)) == planned
    assert pickle.loads(pickle.dumps(planned)) == planned
    assert type(planned) is WORKLOADS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_of_a_workload_holds_its_prompts_and_not_where_its_file_lies(
    kind: str, tmp_path: Path
) -> None:
    planned = workload(kind).resolved(as_written)
    json.dumps(planned.identity())
    assert workload(kind, api="chat").identity() != planned.identity()
    assert workload(kind, name="other").resolved(as_written).identity() == planned.identity(), (
        "a name is no part of the identity"
    )
    source = TRACE_FILE if kind == "trace" else PROMPTS
    moved = tmp_path / source.name
    moved.write_bytes(source.read_bytes())
    elsewhere = planned.resolved(lambda place: str(moved))
    assert elsewhere.identity() == planned.identity()


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_a_kind_does_not_have_is_an_error(kind: str) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        workload(kind, no_such_key=1)


@pytest.mark.parametrize(
    ("kind", "fields", "bounds"),
    [
        ("random", {}, (150, 150)),
        ("random", {"shared_prefix_tokens": 30}, (180, 180)),
        ("conversations", {"turns": 4, "shared_prefix_tokens": 30}, (630, 630)),
        ("random", {"input_tokens": {"uniform": {"min": 5, "max": 10}}}, (55, 60)),
        ("random", {"input_tokens": {"lognormal": {"mean": 99, "sigma": 1}}}, (51, None)),
        (
            "random",
            {"output_tokens": {"lognormal": {"mean": 99, "sigma": 1, "min": 4, "max": 8}}},
            (104, 108),
        ),
    ],
)
def test_the_longest_request_is_known_within_bounds(
    kind: str, fields: dict[str, Any], bounds: tuple[int, int | None]
) -> None:
    assert (
        workload(kind, **{"input_tokens": 100, "output_tokens": 50, **fields}).token_bounds()
        == bounds
    )


@pytest.mark.parametrize(
    ("lines", "smallest"),
    [
        (['{"prompt": "x", "output_tokens": 7}', '{"prompt": "x", "output_tokens": 3}'], 4),
        (['{"prompt": "x", "output_tokens": 900}', '{"prompt": "x"}'], 501),
        (['{"prompt": "x", "output_tokens": 900}'], 901),
        (["text"], 501),
    ],
)
def test_the_smallest_request_of_a_file_is_known_from_its_lines(
    lines: list[str], smallest: int, tmp_path: Path
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("\n".join(lines))
    assert workload("file", prompts=str(file), output_tokens=500).token_bounds() == (smallest, None)


class Echo(Workload):
    """A kind from outside this repository: every prompt is as long as a list of words."""

    kind: Literal["echo"]
    words: list[str] = Field(min_length=1)

    def token_bounds(self) -> LengthBounds:
        return LengthBounds(1 + len(self.words), None)

    def requests(self, prompter: Prompter, seed: int) -> DrawnRequests:
        return RandomWorkload(
            name=self.name,
            input_tokens=Lengths(fixed=len(self.words)),
            output_tokens=Lengths(fixed=1),
        ).requests(prompter, seed)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the kind as its line in the registry or its entry point would."""
    monkeypatch.setitem(WORKLOADS._builtin, "echo", f"{__name__}:Echo")


@pytest.mark.usefixtures("echo")
def test_a_new_kind_is_one_class_and_one_registry_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(ECHO.format("words: [a, b]"))
    plan = load_plan(file)
    again = Plan.from_json(plan.to_json())
    planned = again.points[0].workload
    assert planned == plan.points[0].workload == Echo(name="w", kind="echo", words=["a", "b"])
    assert len(ids(planned.requests(IDS, 0).prompt(0, 0, "measure", ()))) == 2
    file.write_text(ECHO.format("words: [a, b]\n    api: chat"))
    assert load_plan(file).points[0].point_id != plan.points[0].point_id
    file.write_text(ECHO.format("words: [a, b]").replace("max_model_len: 9", "max_model_len: 2"))
    assert "needs at least 3 tokens a request" in load_plan(file).deployments[0].reasons[-1]


@pytest.mark.usefixtures("echo")
def test_all_mistakes_in_the_keys_of_a_new_kind_are_shown_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(ECHO.format("word: 1\n    words: 7") + "wrong: 1\n")
    with pytest.raises(ProblemsError) as error:
        load_plan(file)
    assert [(problem.line, problem.message) for problem in error.value.problems] == [
        (9, "unknown key 'word'"),
        (10, "'words' must be a list, not 7"),
        (11, "unknown key 'wrong'"),
    ]
    assert error.value.problems[0].hint == "did you mean 'words'?"


ECHO = """\
version: 1
name: x
model: org/m
deployments: {{engine: vllm, hardware: cpu, max_model_len: 9}}
load: {{levels: {{concurrency: [1]}}}}
workloads:
  - name: w
    kind: echo
    {}
"""


def test_text_parts_are_joined_as_text() -> None:
    parts = (("a b",), (" c", " d"), (" e",))
    prompt = Prompt(tuple(Message("user", content, 1) for content in parts), 5)
    assert prompt.flat() == "a b c d e"


def test_lognormal_lengths_have_their_own_mean_and_their_limits() -> None:
    requests = requests_of(
        "random", input_tokens=Lengths(lognormal=LogNormal(mean=150, sigma=0.6, min=20, max=2000))
    )
    lengths = np.array([requests.input_tokens(session, 0) for session in range(20_000)])
    assert lengths.mean() == pytest.approx(150, rel=0.03)
    assert lengths.min() >= 20
    assert lengths.max() <= 2000


def test_words_without_a_tokenizer_are_about_one_token_each() -> None:
    text = Words().make(np.random.default_rng(0), 30)
    assert isinstance(text, str)
    assert len(text.split()) == 30


OF_ONE = [kind for kind in KINDS if kind != "mix"]  # adapters belong to the parts of a mix


@pytest.mark.parametrize("kind", OF_ONE)
def test_every_kind_asks_for_the_adapters_of_its_workload(kind: str) -> None:
    asked = workload(kind, adapters={"names": ["a", "b"], "base_share": 0.3}).resolved(as_written)
    kind_of_point = kind_of(point(workload=asked), IDS)
    names = {kind_of_point.adapter(session) for session in range(60)}
    assert names == {None, "a", "b"}
    assert asked.adapter_names() == ("a", "b")


@pytest.mark.parametrize("kind", OF_ONE)
def test_a_workload_without_adapters_is_stored_as_before_there_were_any(kind: str) -> None:
    assert "adapters" not in workload(kind).resolved(as_written).identity()
    adapters = {"names": ["a"]}
    assert "adapters" in workload(kind, adapters=adapters).resolved(as_written).identity()
