"""Every workload of the registry keeps the contract of orchestrator/load/workloads."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.errors import InputError
from orchestrator.load.tokens import TokenIds, Words
from orchestrator.load.workloads import WORKLOADS, Exchanged, Kind, Prompt, pinned, problems
from orchestrator.load.workloads.file import MOST_PROBLEMS, Line, parse_prompts, summary
from orchestrator.spec.load import Lengths, LogNormal, Uniform, Workload
from orchestrator.spec.units import MOST_TOKENS

KINDS = sorted(WORKLOADS)
MADE = [kind for kind in KINDS if kind != "file"]  # those that write their prompts themselves
PROMPTS = Path(__file__).with_name("prompts.jsonl")
IDS = TokenIds((1000, 2000))


def make_workload() -> Workload:
    return Workload(name="w", input_tokens=Lengths(fixed=1), output_tokens=Lengths(fixed=1))


def is_prompt(text: str) -> bool:
    """Not blank, and nothing that is told apart by how a file begins."""
    return bool(text.encode().strip()) and not text.lstrip().startswith(("[{", "{", "\ufeff"))


def make(kind: str, seed: int = 3, **fields: Any) -> Kind:
    given: dict[str, Any] = {
        "name": "w",
        "kind": kind,
        "input_tokens": Lengths(uniform=Uniform(min=5, max=50)),
        "output_tokens": Lengths(uniform=Uniform(min=1, max=9)),
    }
    given |= {"prompts": str(PROMPTS), "input_tokens": None} if kind == "file" else {"turns": 3}
    return WORKLOADS[kind](Workload(**(given | fields)), IDS, seed)


def ids(content: Any) -> list[Any]:
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
    lines = parse_prompts(PROMPTS.read_bytes(), "prompts.jsonl")
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
        ("a.JSONL", '\ufeff{"prompt": "x"}\r\n', [Line("x")]),
        ("a.json", '{"prompt": "x", "output_tokens": 2147483647}', [Line("x", MOST_TOKENS)]),
        ("a.txt", "\ufeffone\rstill one\r\r\n[1] two", [Line("one\rstill one\r"), Line("[1] two")]),
    ],
)
def test_lines_are_text_or_json(name: str, text: str, lines: list[Line]) -> None:
    assert parse_prompts(text.encode(), name) == lines


@given(
    st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(is_prompt), min_size=1)
)
def test_any_text_is_sent_as_it_is(texts: list[str]) -> None:
    data = "".join(f"{text}\r\n" for text in texts).encode()
    assert [line.text for line in parse_prompts(data, "a.txt")] == texts


TOO_MANY = b'{"prompt": "x", "output_tokens": 3000000000}\n'


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", b" \n\n", "holds no prompt"),
        ("a.txt", b"fine\n\xff\xfe", "line 2: not UTF-8"),
        (
            "a.jsonl",
            b'{"prompt": "x"}\n' + TOO_MANY,
            "line 2: output_tokens is 3000000000; give a whole number from 1 to",
        ),
        ("a.jsonl", b'{"prompt": "x", "output_tokens": true}\n', "line 1: output_tokens is True"),
        ("a.txt", b'[{"prompt": "x"}]', "is a JSON array; write one object per line"),
        ("a.json", b'[\n {"prompt": "x"}\n]', "is a JSON array"),
        (".", None, "is not a regular file"),
        ("a\0", None, "cannot be read"),
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


def test_a_file_tells_all_its_problems_at_once_and_counts_those_beyond(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    workload = Workload(name="w", kind="file", prompts=str(file), output_tokens=Lengths(fixed=1))
    file.write_bytes(b'no\n{"prompt": "x"}\n\xff\n{"prompt": "x", "output_tokens": -1}\n')
    assert [problem.split("line ")[1][:2] for problem in problems(workload)] == ["1:", "3:", "4:"]
    file.write_bytes(b"no\n" * (MOST_PROBLEMS + 5))
    found = problems(workload)
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1].endswith("and 5 more")
    with pytest.raises(InputError) as error:
        WORKLOADS["file"](workload, IDS, 0)
    assert str(pickle.loads(pickle.dumps(error.value))) == "\n".join(found), "a client tells it to its driver"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    workload = Workload(name="w", kind="file", prompts=str(tmp_path / "pipe"), output_tokens=Lengths(fixed=1))
    assert "is not a regular file" in problems(workload)[0]


def test_a_client_sends_the_prompts_that_were_planned_or_none(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n")
    workload = pinned(Workload(name="w", kind="file", prompts=str(file), output_tokens=Lengths(fixed=1)))
    assert workload.prompts_digest == hashlib.sha256(b"one\n").hexdigest()[:16]
    assert WORKLOADS["file"](workload, IDS, 0).prompt(0, 0, "measure", ()).flat() == "one"
    assert problems(workload) == []
    file.write_text("three\n")
    with pytest.raises(InputError, match=r"a\.txt.*has changed since, or differs on this node"):
        WORKLOADS["file"](workload, IDS, 0)
    assert "has changed since" in problems(workload)[0]
    assert pinned(make_workload()) == make_workload()


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text('{"prompt": "x", "output_tokens": 4}\n{"prompt": "y"}\n')
    first = summary(str(file))
    assert (first.prompts, first.output_tokens) == (2, frozenset([4, None]))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: pytest.fail("read again"))
        assert summary(str(file)) == first
    file.write_text("other\n")
    assert summary(str(file)).digest != first.digest


@pytest.mark.parametrize("count", [0, MOST_TOKENS + 1, 3_000_000_000])
def test_lengths_are_what_rows_can_hold(count: int) -> None:
    parts = [
        {"fixed": count},
        {"uniform": {"min": 1, "max": count}},
        {"lognormal": {"mean": 9, "sigma": 1, "max": count}},
    ]
    for part in parts:
        with pytest.raises(ValidationError):
            Lengths.model_validate(part)
    assert Lengths(fixed=MOST_TOKENS).fixed == MOST_TOKENS


def test_a_length_without_a_limit_still_fits_its_column() -> None:
    made = make("random", output_tokens=Lengths(lognormal=LogNormal(mean=MOST_TOKENS, sigma=3)))
    assert max(made.output_tokens(session, 0) for session in range(2000)) == MOST_TOKENS


def test_a_workload_has_one_source_of_prompts() -> None:
    some: dict[str, Any] = {"name": "w", "output_tokens": Lengths(fixed=1)}
    wrongs: list[dict[str, Any]] = [
        {},
        {"input_tokens": Lengths(fixed=1), "prompts": "p"},
        {"prompts": "p", "turns": 2},
        {"input_tokens": Lengths(fixed=1), "prompts_digest": "0123456789abcdef"},
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
