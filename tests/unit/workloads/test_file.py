"""Workloads of a prompt file: what its lines ask for is sent, and answers get the recorded lengths."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.assumptions import ANSWER_LENGTHS
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Lengths
from orchestrator.spec.traces import Keep
from orchestrator.workloads.content import RandomIds, Words
from orchestrator.workloads.facts import facts_of
from orchestrator.workloads.file import (
    AnswerLengths,
    FileRules,
    FileWorkload,
    PromptColumns,
    parse_prompts,
)
from orchestrator.workloads.images import image_part, png
from orchestrator.workloads.kind import IdRange, Message
from tests.unit.workloads import second_readers

IDS = RandomIds(IdRange(1000, 2000))


def workload(path: Path, entries: list[dict[str, Any]], **fields: Any) -> FileWorkload:
    path.write_text("\n".join(map(json.dumps, entries)))
    return FileWorkload(name="w", kind="file", prompts=str(path), **fields)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_sampling_of_a_line_is_in_the_body_of_its_request(api: str, tmp_path: Path) -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9, "stop": ["\n"], "seed": 4}
    entries = [{"prompt": "a", **sampling}, {"prompt": "b"}, {"prompt": "c", "top_k": None}]
    planned = workload(tmp_path / "p.jsonl", entries, api=api, output_tokens=Lengths(fixed=3))
    kind = planned.resolved(str).requests(IDS, 1)
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
    planned = workload(tmp_path / "p.jsonl", entries, api="tgi")
    with pytest.raises(ProblemsError, match="has top_p, which the API 'tgi' is not sent"):
        planned.resolved(str)


def test_what_the_prompts_of_a_file_that_is_gone_were_made_of_is_unknown(tmp_path: Path) -> None:
    planned = workload(tmp_path / "p.jsonl", [{"prompt": "a", "output_tokens": 3}])
    assert planned.content_source() == "file"
    (tmp_path / "p.jsonl").unlink()
    assert planned.content_source() is None


def test_all_problems_are_reported_and_repeated_ones_counted(tmp_path: Path) -> None:
    entries = [{"prompt": "x", "audio": "a.wav", "model": "m"}] * 40
    with pytest.raises(ProblemsError) as caught:
        workload(tmp_path / "p.jsonl", entries, output_tokens=Lengths(fixed=1)).resolved(str)
    place = f"prompts {str(tmp_path / 'p.jsonl')!r}, line 1 and 39 more"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{place}: 'audio' is not sent: only text and images are sent",
        f"{place}: 'model' is not sent: every request goes to the model that is measured",
    ]


def test_a_text_that_looks_like_a_table_is_noted(tmp_path: Path) -> None:
    lines = ["topic,ask", "a,Why?", "b,How?"]
    (tmp_path / "p.txt").write_text("\n".join(lines))
    keys = {"name": "w", "kind": "file", "output_tokens": 3}
    text = FileWorkload.model_validate(keys | {"prompts": str(tmp_path / "p.txt")})
    [note] = text.resolved(str).notes()
    assert note.startswith("its lines look like a table of 2 columns")
    as_json = [{"prompt": line, "output_tokens": 3} for line in lines]
    assert workload(tmp_path / "p.jsonl", as_json).resolved(str).notes() == []


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
    word_tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1}, unk_token="[UNK]"))
    word_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return word_tokenizer


def test_answers_get_the_lengths_of_the_recorded_ones(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    planned = workload(tmp_path / "s.jsonl", SHARE_GPT, output_tokens=lengths).resolved(str)
    assert planned.distinct_requests() == 5
    assert planned.token_bounds() == (2, None)
    counted = planned.requests(RandomIds(IdRange(1, 2), tokenizer()), 0)
    assert [counted.output_tokens(session, 0) for session in range(6)] == [3, 1, 4, 2, 9, 3]
    sent = [counted.prompt(session, 0, "measure", ()).flat() for session in range(5)]
    assert sent == ["Say one", "x", "a text", "x", "its own length"]
    assert planned.notes() == [
        "of 1 conversation with more turns only the user's first message is sent",
        "1 entry of the prompts is skipped: the user says nothing there",
        "1 entry of the prompts is skipped: no answer was recorded",
        "keys of the prompts that change no request: id",
    ]
    again = FileWorkload.model_validate_json(planned.model_dump_json())
    assert again == planned and again.counts_answers


def test_recorded_answers_need_a_tokenizer(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    planned = workload(tmp_path / "s.jsonl", SHARE_GPT, output_tokens=lengths).resolved(str)
    for prompter in (IDS, Words()):
        kind = planned.requests(prompter, 0)
        with pytest.raises(InputError, match="counted with the model's tokenizer, and none"):
            kind.prompt(0, 0, "measure", ())
        assert kind.output_tokens(0, 0) == 0, "of a request that was lost with its client"


def test_a_file_without_recorded_answers_is_refused_for_their_lengths(tmp_path: Path) -> None:
    lengths = AnswerLengths.model_validate("file")
    planned = workload(tmp_path / "s.jsonl", [{"prompt": "x"}], output_tokens=lengths)
    with pytest.raises(ProblemsError, match="has no recorded answers: give a number"):
        planned.resolved(str)
    first_conversation = workload(tmp_path / "t.jsonl", SHARE_GPT[:1])
    with pytest.raises(ProblemsError, match=r"\(a number, or file for the lengths of the recorded"):
        first_conversation.resolved(str)


def test_blocks_of_a_trace_have_the_size_that_fits_all_lines(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "input_length": 40, "output_length": 5, "hash_ids": [5, 6, 9]},
        {"chat_id": 2, "input_length": 16, "output_length": 5, "hash_ids": [5]},
        {"chat_id": 3, "input_length": 33, "output_length": 5, "hash_ids": [5, 6, 7]},
    ]
    planned = workload(tmp_path / "bailian.jsonl", rows).resolved(str).requests(IDS, 1)
    first, second, third = (planned.prompt(at, 0, "measure", ()).flat().tolist() for at in range(3))
    assert [len(first), len(second), len(third)] == [40, 16, 33]
    assert first[:16] == second == third[:16]
    assert first[16:32] == third[16:32]
    assert first[32] != third[32]
    mixed = [*rows, {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}]
    with pytest.raises(ProblemsError, match="of some lines stand for blocks of 512 and of others"):
        workload(tmp_path / "mixed.jsonl", mixed).resolved(str)


# -- sessions

TALKS = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "Be kind"},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "one two three"},
            {"from": "human", "value": "And?"},
            {"from": "gpt", "value": "four five"},
            {"from": "human", "value": "Bye"},
        ],
    },
    {"id": "b", "conversations": [{"from": "human", "value": "Yo"}]},
]


class CountedWords(Words):
    """A tokenizer that counts words."""

    def count(self, text: str) -> int | None:
        return len(text.split())


def test_sessions_send_turn_by_turn_with_the_answers_of_the_engine(tmp_path: Path) -> None:
    talk = workload(tmp_path / "s.jsonl", TALKS, use="sessions", output_tokens=9, api="chat")
    requests = talk.requests(Words(), 0)
    assert talk.mean_turns() == 2.0
    assert requests.mean_turns == 2.0
    assert talk.distinct_requests() == 4
    assert [requests.turns(session) for session in range(3)] == [3, 1, 3]
    assert requests.has_sessions and requests.needs_reply
    first = requests.prompt(0, 0, "measure", ())
    assert [message.text for message in first.messages] == ["Be kind", "Hi"]
    earlier = (first.messages[-1], Message("assistant", ("live",), 1))
    second = requests.prompt(0, 1, "measure", earlier)
    assert [message.text for message in second.messages] == ["Be kind", "Hi", "live", "And?"]
    assert talk.notes() == ["keys of the prompts that change no request: id"]


def test_recorded_answers_have_their_lengths_turn_by_turn(tmp_path: Path) -> None:
    talk = workload(
        tmp_path / "s.jsonl",
        TALKS,
        use="sessions",
        output_tokens=AnswerLengths(recorded=True),
        api="chat",
    )
    requests = talk.requests(CountedWords(), 0)
    assert [requests.turns(session) for session in range(2)] == [2, 2], "turns without one end it"
    assert [requests.output_tokens(0, turn) for turn in range(2)] == [3, 2]
    assert talk.notes()[0] == "1 entry of the prompts is skipped: no answer was recorded"


def test_messages_and_turns_are_sessions_too_where_these_are_asked_for(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ]
        },
        {"question_id": 81, "category": "writing", "turns": ["d", "e", "f"]},
    ]
    talk = workload(tmp_path / "s.jsonl", entries, use="sessions", output_tokens=9)
    requests = talk.requests(Words(), 0)
    assert [requests.turns(session) for session in range(2)] == [2, 3]
    flat = workload(tmp_path / "s.jsonl", entries, output_tokens=9)
    alone = flat.requests(Words(), 0)
    assert [alone.turns(session) for session in range(2)] == [1, 1]
    assert len(alone.prompt(0, 0, "measure", ()).messages) == 3, "as it is written"
    assert "of 1 conversation with more turns only the user's first message is sent" in flat.notes()


def test_a_workload_without_the_new_keys_is_stored_as_before(tmp_path: Path) -> None:
    plain = workload(tmp_path / "s.jsonl", [{"prompt": "x"}], output_tokens=9)
    assert not {"use", "columns"} & plain.identity().keys()
    talk = workload(tmp_path / "s.jsonl", [{"prompt": "x"}], output_tokens=9, use="sessions")
    assert talk.identity()["use"] == "sessions"


# -- OpenAI batches


def batch(url: str = "/v1/chat/completions") -> list[dict[str, Any]]:
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 8,
        "temperature": 0.3,
    }
    return [{"custom_id": "r-1", "method": "POST", "url": url, "body": body}]


def test_a_batch_is_sent_to_the_measured_model(tmp_path: Path) -> None:
    chat = workload(tmp_path / "b.jsonl", batch(), api="chat").resolved(str)
    requests = chat.requests(Words(), 0)
    prompt = requests.prompt(0, 0, "measure", ())
    assert (prompt.messages[0].text, requests.output_tokens(0, 0)) == ("Hi", 8)
    assert prompt.fields == {"temperature": 0.3}


def test_a_batch_of_several_models_is_refused(tmp_path: Path) -> None:
    [line] = batch()
    other = {**line, "body": {**line["body"], "model": "other"}}
    with pytest.raises(ProblemsError, match=r"several models \(.*other.*all go to the one that is"):
        workload(tmp_path / "b.jsonl", [line, other], api="chat").resolved(str)


def test_a_batch_of_another_api_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="has requests of /v1/chat/completions, and the API is"):
        workload(tmp_path / "b.jsonl", batch()).resolved(str)
    with pytest.raises(ProblemsError, match="has requests of /v1/embeddings"):
        workload(tmp_path / "b.jsonl", batch("/v1/embeddings"), api="chat").resolved(str)


def picture(folder: Path, name: str, shade: int) -> bytes:
    """Writes a PNG; returns the part of a message that holds it."""
    content = png(np.full((8, 8, 3), shade, np.uint8))
    (folder / name).write_bytes(content)
    return image_part(content)


def test_pictures_of_a_file_are_sent_within_the_request(tmp_path: Path) -> None:
    first, second = picture(tmp_path, "a.png", 1), picture(tmp_path, "b.png", 2)
    url = json.loads(second)["image_url"]["url"]
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url}}]
    entries: list[dict[str, Any]] = [
        {"prompt": "x", "image": "a.png"},
        {"prompt": "y", "image_files": ["a.png", "b.png"]},
        {"messages": [{"role": "user", "content": parts}]},
        {"prompt": "z", "images": []},
    ]
    planned = workload(tmp_path / "p.jsonl", entries, api="chat", output_tokens=Lengths(fixed=1))
    planned = planned.resolved(str)
    assert planned.sends_images()
    kind = planned.requests(Words(), 1)
    prompts = [kind.prompt(session, 0, "measure", ()) for session in range(4)]
    assert [prompt.messages[-1].images for prompt in prompts] == [
        (first,),
        (first, second),
        (second,),
        (),
    ]
    assert [prompt.messages[-1].text for prompt in prompts] == ["x", "y", "see", "z"]


def test_a_picture_that_changed_since_it_was_planned_is_refused(tmp_path: Path) -> None:
    picture(tmp_path, "a.png", 1)
    entries = [{"prompt": "x", "image": "a.png"}]
    written = workload(tmp_path / "p.jsonl", entries, api="chat", output_tokens=Lengths(fixed=1))
    planned = written.resolved(str)
    picture(tmp_path, "a.png", 2)
    with pytest.raises(ProblemsError, match="is not the file that was planned"):
        planned.requests(Words(), 1)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"prompt": "x", "image": "gone.png"}, "picture 'gone.png': No such file"),
        ({"prompt": "x", "image": "p.jsonl"}, "picture 'p.jsonl': it is no PNG, JPEG, GIF or WebP"),
        ({"prompt": "x", "image": "https://a/b.png"}, "download it and give its path"),
        ({"prompt": "x", "images": [7]}, "a picture is '7'"),
        ({"input_length": 5, "image": "a.png"}, "pictures go with a text, not with a length"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "sent within the request, as data URLs",
        ),
    ],
)
def test_a_picture_that_cannot_be_sent_is_refused_with_its_line(
    tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    picture(tmp_path, "a.png", 1)
    with pytest.raises(ProblemsError) as caught:
        workload(
            tmp_path / "p.jsonl", [entry], api="chat", output_tokens=Lengths(fixed=1)
        ).resolved(str)
    (problem,) = caught.value.problems
    assert "line 1" in str(problem)
    assert words in str(problem)


def test_pictures_are_sent_through_chat_alone(tmp_path: Path) -> None:
    picture(tmp_path, "a.png", 1)
    entries = [{"prompt": "x", "image": "a.png", "output_tokens": 3}]
    with pytest.raises(ProblemsError, match="through the API chat, not 'completions'"):
        workload(tmp_path / "p.jsonl", entries).resolved(str)


def test_a_parquet_file_holds_pictures_as_hub_datasets_do(tmp_path: Path) -> None:
    part = picture(tmp_path, "a.png", 1)
    content = (tmp_path / "a.png").read_bytes()
    rows = [{"question": "what is it?", "image": {"bytes": content, "path": "elsewhere.png"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    planned = FileWorkload(
        name="w",
        kind="file",
        prompts=str(tmp_path / "p.parquet"),
        columns=PromptColumns(prompt="question", images="image"),
        output_tokens=Lengths(fixed=1),
        api="chat",
    ).resolved(str)
    (message,) = planned.requests(Words(), 1).prompt(0, 0, "measure", ()).messages
    assert (message.text, message.images) == ("what is it?", (part,))


def test_a_line_constrains_its_answer_by_a_response_format(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["age"]}
    formats = [
        {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        {"type": "text"},
        {"type": "json_schema", "json_schema": {"schema": schema}},
    ]
    lines = [
        json.dumps({"prompt": "hi", "output_tokens": 9, "response_format": response_format})
        for response_format in formats
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(lines))
    workload = FileWorkload(name="w", kind="file", prompts=str(file))
    assert workload.constraint_kinds() == {"json_schema"}
    assert workload.known_to_engines_only() is ANSWER_LENGTHS
    requests = workload.requests(Words(), 0)
    first, free, again = (requests.request(index, 0, "measure", ()) for index in range(3))
    assert first.constraint is again.constraint is not None
    assert first.constraint.schema == schema
    assert first.ends_naturally
    assert (free.constraint, free.ends_naturally) == (None, False)


@pytest.mark.parametrize(
    ("response_format", "problem"),
    [
        ({"type": "json_object"}, "'response_format' is not sent: answers are checked"),
        ("json", "'response_format' is not sent"),
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}},
            "line 1: the schema of 'response_format' is no JSON schema at type",
        ),
    ],
)
def test_a_response_format_that_cannot_be_checked_is_refused(
    tmp_path: Path, response_format: object, problem: str
) -> None:
    file = tmp_path / "p.jsonl"
    line = {"prompt": "hi", "output_tokens": 9, "response_format": response_format}
    file.write_text(json.dumps(line))
    with pytest.raises(ProblemsError, match=problem):
        FileWorkload(name="w", kind="file", prompts=str(file)).resolved(str)


def test_what_is_left_out_on_purpose_is_no_part_of_the_identity(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [{"q": "x", "m": 1}]
    plain = workload(path, lines, columns={"prompt": "q"}, output_tokens=8)
    without = workload(path, lines, columns={"prompt": "q", "leave_out": ["m"]}, output_tokens=8)
    assert plain.identity() == without.identity()
    assert "leave_out" not in plain.identity()["columns"]


# -- files of prompts, read by another reader

SHARE_GPT_FILE = """[
  {"id": "a_0", "conversations": [
    {"from": "system", "value": "Be kind"},
    {"from": "human", "value": "Gr\\u00fc\\u00dfe \\"there\\",\\nand \\ud83d\\ude00"},
    {"from": "gpt", "value": "  One.\\n\\nTwo. "},
    {"from": "human", "value": "And?"},
    {"from": "gpt", "value": "Three"},
    {"from": "human", "value": "Bye"}]},
  {"id": "b_0", "conversations": [
    {"from": "gpt", "value": "What else?"},
    {"from": "human", "value": "この話"},
    {"from": "gpt", "value": "はい"}]},
  {"id": "c_0", "conversations": [{"from": "gpt", "value": "Nobody asked"}]},
  {"id": "d_0", "conversations": []}
]
"""
BATCH_FILE = r"""
{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "system", "content": "Be \"kind\""}, {"role": "user", "content": "One\ttwo"}], "max_tokens": 7}}
{"custom_id": "2", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\n"}, {"role": "user", "content": " \u00e9\\n "}], "max_tokens": 300, "temperature": 0.25}}
""".lstrip()
TABLE_FILE = (
    "question,limit,role,reply\r\n"
    '"Why, and ""how""?",5,Be kind,Because.\r\n'
    '"Two\nlines; one\ttab",12,,"Yes, no"\r\n'
    " spaces ,300,,ünïcode\r\n"
)
TABLE_RULES = FileRules(
    PromptColumns(prompt="question", output_tokens="limit", system="role", answer="reply")
)


@pytest.mark.parametrize(
    ("name", "text", "rules", "read_again"),
    [
        ("s.json", SHARE_GPT_FILE, FileRules(sessions=True), second_readers.share_gpt),
        ("b.jsonl", BATCH_FILE, FileRules(), second_readers.openai_batch),
        ("t.csv", TABLE_FILE, TABLE_RULES, second_readers.prompt_table),
    ],
    ids=["ShareGPT", "OpenAI batch", "table"],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_file_of_prompts_is_read_as_another_reader_reads_it(
    name: str,
    text: str,
    rules: FileRules,
    read_again: Callable[[str], list[second_readers.RecordedPrompt]],
    is_packed: bool,
) -> None:
    data = gzip.compress(text.encode()) if is_packed else text.encode()
    path = f"{name}.gz" if is_packed else name
    expected = read_again(text)
    assert len(expected) >= 2
    assert second_readers.prompts_of(parse_prompts(data, path, rules)) == expected


def test_a_column_of_answers_is_named_in_a_note_as_the_file_has_it(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("question,reply\nx,y\n")
    keys = {"name": "w", "kind": "file", "prompts": str(file), "output_tokens": 9}
    columns = {"prompt": "question", "answer": "reply"}
    workload = FileWorkload.model_validate({**keys, "columns": columns})
    assert workload.notes() == ["keys of the prompts that are not sent: reply"]
    counted = FileWorkload.model_validate({**keys, "columns": columns, "output_tokens": "file"})
    assert counted.notes() == []


def words_of(*counts: int) -> list[dict[str, Any]]:
    """Entries whose prompts have so many words, each a token."""
    return [{"prompt": " ".join(["x"] * count), "output_tokens": 10} for count in counts]


def kept_prompts(kind: Any, sessions: range) -> list[int]:
    """The words of the prompts of these sessions."""
    return [len(kind.prompt(at, 0, "measure", ()).messages[0].text.split()) for at in sessions]


def test_prompts_of_other_lengths_are_left_out_and_counted(tmp_path: Path) -> None:
    keep = {"input_tokens": [4, 8], "total_tokens": [1, 17]}
    entries = words_of(3, 4, 8, 9, 7, 5)  # 8 + 10 is too long in all
    planned = workload(tmp_path / "p.jsonl", entries, keep=keep).resolved(str)
    kind = planned.requests(RandomIds((1, 2), tokenizer()), 1)
    assert kept_prompts(kind, range(1)) == [4]
    assert (kind.looked_at, kind.filtered) == (2, 1)  # no further than it is needed
    assert kept_prompts(kind, range(7)) == [4, 7, 5, 4, 7, 5, 4]
    assert [kind.comes_again(session) for session in range(4)] == [False, False, False, True]
    facts = facts_of(planned, RandomIds((1, 2), tokenizer()), 1, 100)
    assert (facts.requests, facts.left_out) == (3, 3)
    assert "3 of the first 6 entries are left out: lengths outside of 'keep'" in facts.notes
    assert any("workload show counts them" in note for note in planned.notes())
    # the warm-up ends with the last entry that is kept
    warm_up = planned.others(2).requests(RandomIds((1, 2), tokenizer()), 1)
    assert kept_prompts(warm_up, range(2)) == [7, 5]


def test_recorded_answers_are_lengths_that_may_be_kept(tmp_path: Path) -> None:
    entries = [{"prompt": "x", "completion": " ".join(["y"] * count)} for count in (1, 6, 3)]
    keep = {"output_tokens": [2, 5]}
    planned = workload(tmp_path / "p.jsonl", entries, keep=keep, output_tokens="file").resolved(str)
    kind = planned.requests(RandomIds((1, 2), tokenizer()), 1)
    assert [kind.output_tokens(session, 0) for session in range(2)] == [3, 3]


def test_lengths_of_a_file_are_kept_without_a_tokenizer(tmp_path: Path) -> None:
    entries = [{"input_length": count, "output_length": 5} for count in (10, 600, 20)]
    planned = workload(tmp_path / "p.jsonl", entries, keep={"input_tokens": [1, 100]})
    kind = planned.resolved(str).requests(IDS, 1)
    assert [kind.input_tokens(session, 0) for session in range(3)] == [10, 20, 10]


def test_lengths_of_texts_are_not_kept_without_a_tokenizer(tmp_path: Path) -> None:
    planned = workload(tmp_path / "p.jsonl", words_of(3), keep={"input_tokens": [4, 8]})
    kind = planned.resolved(str).requests(IDS, 1)
    with pytest.raises(InputError, match="'keep' needs the model's tokenizer"):
        kind.prompt(0, 0, "measure", ())


def test_where_no_prompt_is_kept_it_says_so(tmp_path: Path) -> None:
    planned = workload(tmp_path / "p.jsonl", words_of(3, 2), keep={"input_tokens": [4, 8]})
    kind = planned.resolved(str).requests(RandomIds((1, 2), tokenizer()), 1)
    with pytest.raises(InputError, match=r"none of the prompts has lengths within 'keep' \(2\)"):
        kind.prompt(0, 0, "measure", ())


def test_sessions_have_no_lengths_to_keep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'keep' is about single requests"):
        workload(tmp_path / "p.jsonl", words_of(3), keep={"input_tokens": [4, 8]}, use="sessions")


def test_a_file_that_keeps_everything_has_the_identity_it_had(tmp_path: Path) -> None:
    plain = workload(tmp_path / "p.jsonl", words_of(3)).resolved(str)
    assert "keep" not in plain.identity()
    kept = plain.model_copy(update={"keep": Keep(input_tokens=(1, 8))})
    assert kept.identity() != plain.identity()
