"""What the lines of a prompt file ask for is sent, or the file is refused: nothing is dropped
without a word.
"""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.load.arrivals import recorded
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Arrivals, Lengths
from orchestrator.workloads.content import RandomIds, TokenizedText, Words
from orchestrator.workloads.entries import (
    ANSWER_LENGTHS,
    ANSWERS,
    REFUSED,
    SAMPLING,
    UNUSED,
    PromptEntry,
    read_entry,
)
from orchestrator.workloads.file import AnswerLengths, FileWorkload, parse_prompts
from orchestrator.workloads.files import EntryError

IDS = RandomIds((1000, 2000))


def read(**keys: Any) -> PromptEntry:
    line = read_entry({"prompt": "x", **keys}, "")
    assert line is not None
    return line


def reasons(entry: dict[str, Any]) -> list[str]:
    with pytest.raises(EntryError) as caught:
        read_entry(entry, entry)
    return list(caught.value.reasons)


def read_as(path: Path, what: str) -> None:
    if what == "trace":
        recorded(Arrivals(process="trace", trace=str(path)))
    else:
        parse_prompts(path.read_bytes(), str(path))


def refusal(path: Path, what: str = "prompts") -> str:
    """The only problem of a file."""
    with pytest.raises(ProblemsError) as caught:
        read_as(path, what)
    (problem,) = caught.value.problems
    return str(problem)


def workload(path: Path, entries: list[dict[str, Any]], **fields: Any) -> FileWorkload:
    path.write_text("\n".join(map(json.dumps, entries)))
    return FileWorkload(name="w", kind="file", prompts=str(path), **fields)


@pytest.mark.parametrize("name", ANSWER_LENGTHS)
def test_every_name_of_an_answers_length_is_honoured(name: str) -> None:
    assert read(**{name: 7}).output_tokens == 7
    assert read(**{name: None}).output_tokens is None


def test_two_lengths_of_one_answer_must_agree() -> None:
    assert read(output_tokens=5, max_tokens=5).output_tokens == 5
    assert reasons({"prompt": "x", "output_tokens": 5, "max_tokens": 6}) == [
        "output_tokens 5 and max_tokens 6 are two lengths of one answer: give one"
    ]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_sampling_of_a_line_is_in_the_body_of_its_request(api: str, tmp_path: Path) -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9, "stop": ["\n"], "seed": 4}
    entries = [{"prompt": "a", **sampling}, {"prompt": "b"}, {"prompt": "c", "top_k": None}]
    made = workload(tmp_path / "p.jsonl", entries, api=api, output_tokens=Lengths(fixed=3))
    kind = made.resolved(str).requests(IDS, 1)
    dialect = openai(extra_body={"temperature": 0.2, "user": "u"})[api]
    bodies = [
        orjson.loads(WIRES[dialect.wire].body(kind.prompt(at, 0, "measure", ()), 3, "m", dialect))
        for at in range(3)
    ]
    assert {name: bodies[0][name] for name in sampling} == sampling, "a line is nearer than all"
    assert [body["temperature"] for body in bodies[1:]] == [0.2, 0.2]
    assert all(not {"top_p", "top_k", "stop", "seed"} & body.keys() for body in bodies[1:])
    assert {body["user"] for body in bodies} == {"u"}


def test_sampling_of_a_line_is_refused_where_it_cannot_be_sent(tmp_path: Path) -> None:
    entries = [{"prompt": "a", "top_p": 0.5, "output_tokens": 3}]
    made = workload(tmp_path / "p.jsonl", entries, api="tgi")
    with pytest.raises(ProblemsError, match="has top_p, which the API 'tgi' is not sent"):
        made.resolved(str)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_key_that_would_change_a_request_is_refused_by_name(name: str) -> None:
    key = name.replace("*", "_x")
    (reason,) = reasons({"prompt": "x", key: "y"})
    assert reason == f"{key!r} is not sent: {REFUSED[name]}"
    assert read(**{key: None}) == read(**{key: []}) == read(), "it asks for nothing"


def test_a_key_that_nobody_knows_is_refused_unless_it_is_marked() -> None:
    (reason,) = reasons({"prompt": "x", "temprature": 0.5})
    assert reason.startswith("'temprature' is not sent: it is not known")
    assert read(_temprature=0.5).unused == {"_temprature"}


def test_a_key_is_of_one_kind_only() -> None:
    kinds = [set(ANSWER_LENGTHS), set(SAMPLING), set(UNUSED), set(ANSWERS)]
    assert len(set.union(*kinds)) == sum(map(len, kinds))
    for name in set.union(*kinds):
        assert read(**{name: 1}) is not None, name


@given(st.dictionaries(st.text(max_size=12), st.integers(1, 9), max_size=4))
def test_no_key_of_a_line_disappears(keys: dict[str, int]) -> None:
    try:
        line = read(**keys)
    except EntryError:
        return
    used = {*line.unused, *line.fields, *(ANSWER_LENGTHS if line.output_tokens else ())}
    asked = {key for key, value in keys.items() if (key, value) not in (("n", 1), ("best_of", 1))}
    assert asked <= used


def test_only_one_key_may_say_what_is_sent() -> None:
    chat = [{"role": "user", "content": "y"}]
    assert reasons({"prompt": "x", "messages": chat}) == [
        '"prompt" and "messages" both say what is sent: give one of them'
    ]
    assert read(messages=None) == read()
    assert reasons({"prompt": "x", "hash_ids": [1]}) == [
        "'hash_ids' belong to 'input_length', which is missing"
    ]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": "x", "tool_calls": [1]}, "'tool_calls' is not sent"),
        ({"role": "user", "content": "x", "name": "Bob"}, "'name' is not sent"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
            "and a text",
        ),
    ],
)
def test_what_a_message_holds_besides_its_text_is_refused(
    message: dict[str, Any], said: str
) -> None:
    (reason,) = reasons({"messages": [message]})
    assert said in reason


def test_all_problems_are_said_and_those_that_repeat_are_counted(tmp_path: Path) -> None:
    entries = [{"prompt": "x", "image_files": ["a.png"], "model": "m"}] * 40
    with pytest.raises(ProblemsError) as caught:
        workload(tmp_path / "p.jsonl", entries, output_tokens=Lengths(fixed=1)).resolved(str)
    place = f"prompts {str(tmp_path / 'p.jsonl')!r}, line 1 and 39 more"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{place}: 'image_files' is not sent: only text is sent",
        f"{place}: 'model' is not sent: every request goes to the model that is measured",
    ]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.2,17,3.9,GPT-4,100,20,120,API log\n"
)
BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,1,5,x\n"
)


@pytest.mark.parametrize("what", ["prompts", "trace"])
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", AZURE.encode(), "is Azure's trace of LLM requests as a table"),
        ("a.txt", codecs.BOM_UTF8 + AZURE.encode(), "is Azure's trace"),
        ("a.csv", BURST.encode(), "is BurstGPT's trace"),
        ("a.txt", BURST_1.encode(), "is BurstGPT's trace"),
        ("a.csv", b'prompt,output_tokens\n"a\nb",5\n', "with the columns prompt, output_tokens"),
        ("a.tsv", b"prompt\tcategory\nx\ty\n", "is a table (CSV)"),
        ("a.txt", b"prompt;response\nx;y\n", "is a table (CSV)"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "x"}'), "is compressed (gzip)"),
        ("a.bz2", b"BZh91AY&SY", "is compressed (bzip2)"),
        ("a.jsonl", b"PAR1\x15", "is a Parquet file"),
        ("a.txt", "hello".encode("utf-16"), "is UTF-16, which is not read: save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_what_it_is(
    name: str, data: bytes, said: str, what: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    assert said in refusal(tmp_path / name, what)


def test_a_table_without_known_columns_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one, two\n")
    assert "is a table (CSV)" in refusal(tmp_path / "a.csv")
    assert parse_prompts(b"one, two\nHello, world; prompt\n", "a.txt")
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "a.parquet")
    assert "is a Parquet file, which is not read: write its rows" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", '{"text": "hello", "output_length": 8}\n', 'name its "text" "prompt"'),
        ("a.txt", '{"custom_id": "r", "body": {"messages": []}}\n', "a line of an OpenAI batch"),
        ("a.json", '{\n "data": [\n {"prompt": "x"}]}', "is one JSON object: give one object"),
    ],
)
def test_json_is_never_sent_as_text(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path / name)


def test_an_array_over_several_lines_is_json_by_whatever_name() -> None:
    text = json.dumps([{"prompt": "x"}, {"prompt": "y"}], indent=1)
    assert len(parse_prompts(text.encode(), "a.txt")) == 2


SHARE_GPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": "Say one"},
            {"from": "gpt", "value": "one two three"},
            {"from": "human", "value": "and two"},
            {"from": "gpt", "value": "two"},
        ],
    },
    {"id": "b", "conversations": []},
    {"id": "c", "conversations": [{"from": "human", "value": "no answer was recorded"}]},
    {"id": "d", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]},
    {"prompt": "a text", "completion": "one two three four"},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a b"}]},
    {"prompt": "its own length", "completion": "one two", "max_tokens": 9},
]


def tokenizer() -> Tokenizer:
    """One token a word."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def test_answers_get_the_lengths_of_the_recorded_ones(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    made = workload(tmp_path / "s.jsonl", SHARE_GPT, output_tokens=lengths).resolved(str)
    assert made.distinct_requests() == 5
    assert made.token_bounds() == (2, None)
    counted = made.requests(RandomIds((1, 2), tokenizer()), 0)
    assert [counted.output_tokens(session, 0) for session in range(6)] == [3, 1, 4, 2, 9, 3]
    sent = [counted.prompt(session, 0, "measure", ()).flat() for session in range(5)]
    assert sent == ["Say one", "x", "a text", "x", "its own length"]
    assert made.notes() == [
        "of 1 conversation with more turns only the user's first message is sent",
        "1 entry of the prompts is skipped: the user says nothing there",
        "1 entry of the prompts is skipped: no answer was recorded",
        "keys of the prompts that change no request: completion, id",
    ]
    again = FileWorkload.model_validate_json(made.model_dump_json())
    assert again == made and again.counts_answers


def test_recorded_answers_need_a_tokenizer(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    made = workload(tmp_path / "s.jsonl", SHARE_GPT, output_tokens=lengths).resolved(str)
    for prompter in (IDS, Words()):
        kind = made.requests(prompter, 0)
        with pytest.raises(InputError, match="counted with the model's tokenizer, and none"):
            kind.prompt(0, 0, "measure", ())
        assert kind.output_tokens(0, 0) == 0, "of a request that was lost with its client"


def test_a_file_without_recorded_answers_is_refused_for_their_lengths(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    made = workload(tmp_path / "s.jsonl", [{"prompt": "x"}], output_tokens=lengths)
    with pytest.raises(ProblemsError, match="has no recorded answers: give a number"):
        made.resolved(str)
    some = workload(tmp_path / "t.jsonl", SHARE_GPT[:1])
    with pytest.raises(ProblemsError, match=r"\(a number, or file for the lengths of the recorded"):
        some.resolved(str)


def test_words_with_a_tokenizer_are_counted_by_it() -> None:
    assert Words().count("a b") is IDS.count("a b") is None
    assert RandomIds((1, 2), tokenizer()).count("a b c") == 3
    assert TokenizedText.count(_with(tokenizer()), "a b") == 2


def _with(made: Tokenizer) -> TokenizedText:
    text = TokenizedText.__new__(TokenizedText)
    text._tokenizer = made
    return text


def test_blocks_of_a_trace_have_the_one_size_that_fits_all_its_lines(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "input_length": 40, "output_length": 5, "hash_ids": [5, 6, 9]},
        {"chat_id": 2, "input_length": 16, "output_length": 5, "hash_ids": [5]},
        {"chat_id": 3, "input_length": 33, "output_length": 5, "hash_ids": [5, 6, 7]},
    ]
    made = workload(tmp_path / "bailian.jsonl", rows).resolved(str).requests(IDS, 1)
    first, second, third = (made.prompt(at, 0, "measure", ()).flat().tolist() for at in range(3))
    assert [len(first), len(second), len(third)] == [40, 16, 33]
    assert first[:16] == second == third[:16]
    assert first[16:32] == third[16:32]
    assert first[32] != third[32]
    mixed = [*rows, {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}]
    with pytest.raises(ProblemsError, match="of some lines stand for blocks of 512 and of others"):
        workload(tmp_path / "mixed.jsonl", mixed).resolved(str)
