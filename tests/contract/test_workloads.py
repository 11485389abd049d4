"""Every workload of the registry keeps the contract of orchestrator/load/workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.load.tokens import TokenIds, Words
from orchestrator.load.workloads import WORKLOADS, Exchanged, Kind, Prompt, problems
from orchestrator.load.workloads.file import Line, read_prompts
from orchestrator.spec.load import Lengths, LogNormal, Uniform, Workload

KINDS = sorted(WORKLOADS)
MADE = [kind for kind in KINDS if kind != "file"]  # those that write their prompts themselves
PROMPTS = Path(__file__).with_name("prompts.jsonl")
IDS = TokenIds((1000, 2000))


def make(kind: str, seed: int = 3, **fields: Any) -> Kind:
    given: dict[str, Any] = {
        "name": "w",
        "kind": kind,
        "input_tokens": Lengths(uniform=Uniform(min=5, max=50)),
        "output_tokens": Lengths(uniform=Uniform(min=1, max=9)),
    }
    given |= {"prompts": str(PROMPTS), "input_tokens": None} if kind == "file" else {"turns": 3}
    return WORKLOADS[kind](Workload(**(given | fields)), IDS, seed)


def ids(content: Any) -> list[int]:
    """Its token ids, or the text itself where it is one."""
    return [] if content is None else [content] if isinstance(content, str) else np.asarray(content).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_request_can_be_written_alone_and_is_always_the_same(kind: str) -> None:
    first, again = make(kind), make(kind)
    wanted = [(session, turn) for session in (5000, 0, 17) for turn in range(first.turns)]
    prompts = {key: first.prompt(*key, "measure", ()) for key in wanted}
    for key in reversed(wanted):
        assert ids(again.prompt(*key, "measure", ()).user) == ids(prompts[key].user)
        assert again.output_tokens(*key) == first.output_tokens(*key)


@pytest.mark.parametrize("kind", MADE)
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


@pytest.mark.parametrize("kind", MADE)
def test_the_length_meant_is_the_length_made(kind: str) -> None:
    made = make(kind, shared_prefix_tokens=7)
    for session in range(50):
        prompt = made.prompt(session, 0, "measure", ())
        assert len(ids(prompt.flat())) == prompt.tokens == made.input_tokens(session, 0)
        assert 1 <= made.output_tokens(session, 0) <= 9


@pytest.mark.parametrize("kind", MADE)
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


def test_a_file_is_sent_as_it_is_in_its_order_and_again_from_its_start() -> None:
    made = make("file")
    lines = read_prompts(str(PROMPTS))
    sent = [made.prompt(session, 0, "measure", ()) for session in range(5)]
    assert [prompt.flat() for prompt in sent] == [lines[at].text for at in (0, 1, 2, 0, 1)]
    assert {prompt.tokens for prompt in sent} == {made.input_tokens(0, 0)} == {0}, "nobody counted them"
    assert [made.output_tokens(session, 0) for session in (0, 2, 3)] == [7, 9, 7]
    assert 1 <= made.output_tokens(1, 0) <= 9, "a line that names none has the workload's"
    assert (made.turns, made.sessions, made.needs_reply) == (1, False, False)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.txt", "one\r\n\n  two {\u2028\n", [Line("one"), Line("  two {\u2028")]),
        ("a.txt", '{"prompt": "x"}\n', [Line("x")]),
        ("a.txt", '{"x": 1}\n', [Line('{"x": 1}')]),
        ("a.jsonl", '{"prompt": "x\\ny", "output_tokens": 3, "id": 7}\n', [Line("x\ny", 3)]),
    ],
)
def test_lines_are_text_or_json(name: str, text: str, lines: list[Line], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_prompts(str(tmp_path / name)) == lines


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", b" \n\n", "holds no prompt"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.jsonl", b"plain\n", "line 1: 'plain' is no object with a text \"prompt\""),
        ("a.jsonl", b'{"prompt": "x"}\n\n{"prompt": ""}\n', "line 3"),
        ("a.txt", b'{"prompt": "x"}\n{"prompt": "y", "output_tokens": 0}\n', "line 2: output_tokens is 0"),
        ("missing", None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_sent_says_where(name: str, text: bytes | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text)
    workload = Workload(name="w", kind="file", prompts=str(tmp_path / name), output_tokens=Lengths(fixed=1))
    (problem,) = problems(workload)
    assert said in problem
    with pytest.raises(InputError, match="prompts"):
        WORKLOADS["file"](workload, IDS, 0)


def test_a_workload_has_one_source_of_prompts() -> None:
    some: dict[str, Any] = {"name": "w", "output_tokens": Lengths(fixed=1)}
    wrongs: list[dict[str, Any]] = [
        {},
        {"input_tokens": Lengths(fixed=1), "prompts": "p"},
        {"prompts": "p", "turns": 2},
    ]
    for wrong in wrongs:
        with pytest.raises(ValidationError, match="prompts"):
            Workload(**some, **wrong)
    assert problems(Workload(**some, prompts="p")) == ["'prompts' belongs to kind 'file', and kind 'file' needs it"]
    assert problems(Workload(**some, input_tokens=Lengths(fixed=1))) == []


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
