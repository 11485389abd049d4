"""Recorded tools: definitions, calls and results are sent as the file has them, or refused by line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.base.errors import ProblemsError
from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.dialect import ANY_TOOL_CHOICE, openai
from orchestrator.spec.load import Workload
from orchestrator.workloads.content import RandomIds
from orchestrator.workloads.entries import read_entry
from orchestrator.workloads.file import FileWorkload
from orchestrator.workloads.file_reading import EntryError
from orchestrator.workloads.kind import IdRange, Message
from orchestrator.workloads.request_options import options_of
from tests.unit.workloads import second_readers

IDS = RandomIds(IdRange(1000, 2000))
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
SYSTEM = {"role": "system", "content": "Be brief"}
ASKED = {"role": "user", "content": "Rain in Oslo?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RETURNED = {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "rain"}
TOLD = {"role": "assistant", "content": "Yes, rain."}
THANKED = {"role": "user", "content": "And tomorrow?"}
SESSION = [SYSTEM, ASKED, CALLED, RETURNED, TOLD, THANKED]


def planned(folder: Path, *entries: dict[str, Any], **keys: Any) -> FileWorkload:
    path = folder / "agent.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)))
    given = {"name": "w", "kind": "file", "api": "chat", "output_tokens": 9} | keys
    workload = Workload.model_validate(given | {"prompts": str(path)}).with_files(str)
    assert isinstance(workload, FileWorkload)
    return workload


def bodies(workload: FileWorkload, session: int = 0) -> list[dict[str, Any]]:
    """The bodies of a session's requests, after answers that no engine would have recorded."""
    kind = workload.requests(IDS, 1)
    kind.options = options_of(workload, 1)
    dialect = openai(tool_choices=ANY_TOOL_CHOICE)["chat"]
    earlier: list[Message] = []
    written = []
    for turn in range(kind.turns(session)):
        prompt = kind.request(session, turn, "measure", tuple(earlier))
        written.append(orjson.loads(WIRES[dialect.wire].body(prompt, 9, "m", dialect)))
        earlier += (prompt.messages[-1], Message("assistant", ("made up now",), 3))
    return written


def problem(entry: dict[str, Any]) -> str:
    with pytest.raises(EntryError) as caught:
        read_entry(entry, entry)
    (reason,) = caught.value.reasons
    return reason


def test_a_batch_line_is_sent_with_its_tools_up_to_what_a_tool_returned(tmp_path: Path) -> None:
    body = {"model": "gpt-x", "messages": SESSION[:5], "tools": [TOOL], "tool_choice": "auto"}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (sent,) = bodies(planned(tmp_path, line))
    assert sent["messages"] == SESSION[:4]
    assert sent["tools"] == [TOOL]
    assert (sent["tool_choice"], sent["model"]) == ("auto", "m")


def test_each_answer_of_an_agents_session_is_a_request_after_what_was_recorded(
    tmp_path: Path,
) -> None:
    workload = planned(tmp_path, {"messages": SESSION, "tools": [TOOL]}, use="sessions")
    sent = bodies(workload)
    assert [body["messages"] for body in sent] == [SESSION[:2], SESSION[:4], SESSION[:6]]
    assert all(body["tools"] == [TOOL] for body in sent)
    assert workload.summary().requests == 3
    assert workload.notes() == []


def test_a_session_without_calls_has_the_engines_own_answers(tmp_path: Path) -> None:
    talk = [ASKED, TOLD, THANKED]
    sent = bodies(planned(tmp_path, {"messages": talk, "tools": [TOOL]}, use="sessions"))
    assert [message["content"] for message in sent[1]["messages"]] == [
        "Rain in Oslo?",
        "made up now",
        "And tomorrow?",
    ]


def test_several_results_of_one_answer_are_one_request(tmp_path: Path) -> None:
    second = CALL | {"id": "call_2"}
    called = CALLED | {"tool_calls": [CALL, second]}
    other = RETURNED | {"tool_call_id": "call_2", "content": [{"type": "text", "text": "sun"}]}
    messages = [ASKED, called, RETURNED, other, TOLD]
    sent = bodies(planned(tmp_path, {"messages": messages}, use="sessions"))
    assert [len(body["messages"]) for body in sent] == [1, 4]
    assert sent[1]["messages"] == messages[:4]


def test_recorded_calls_are_counted_as_answers(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    called = CALLED | {"content": "One moment "}
    messages = [ASKED, called, RETURNED, TOLD, THANKED]
    keys = {"use": "sessions", "output_tokens": "file"}
    kind = planned(tmp_path, {"messages": messages}, **keys).requests(
        RandomIds(IdRange(1, 2), tokenizer), 0
    )
    # `One moment {"name": "weather", "arguments": {"city": "Oslo"}}`, and `Yes, rain.`
    assert [kind.output_tokens(0, turn) for turn in range(kind.turns(0))] == [7, 2]


@pytest.mark.parametrize(
    ("choice", "is_natural"),
    [
        ("required", True),
        ({"type": "function", "function": {"name": "weather"}}, True),
        ("auto", False),
        (None, False),
    ],
)
def test_an_answer_that_must_be_a_call_is_as_long_as_it_is(
    choice: object, is_natural: bool, tmp_path: Path
) -> None:
    entry = {"messages": [ASKED], "tools": [TOOL], "tool_choice": choice}
    kind = planned(tmp_path, entry).requests(IDS, 0)
    assert kind.request(0, 0, "measure", ()).ends_naturally is is_natural


def test_the_workloads_choice_goes_before_the_recorded_one_and_only_where_there_are_tools(
    tmp_path: Path,
) -> None:
    entries = [{"messages": [ASKED], "tools": [TOOL], "tool_choice": "required"}, {"prompt": "x"}]
    workload = planned(tmp_path, *entries, tool_choice="none")
    assert workload.asked_tool_choices() == {"none": ""}
    with_tools, without = (bodies(workload, session)[0] for session in range(2))
    assert with_tools["tool_choice"] == "none"
    assert not {"tools", "tool_choice"} & without.keys()
    kind = workload.requests(IDS, 0)
    kind.options = options_of(workload, 0)
    assert not kind.request(0, 0, "measure", ()).ends_naturally


def test_a_tool_that_entries_do_not_define_cannot_be_chosen(tmp_path: Path) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    chosen = {"tools": [other], "tool_choice": {"name": "other"}}
    entry = {"messages": [ASKED], "tools": [TOOL]}
    with pytest.raises(ProblemsError, match="tools lack 'other', which 'tool_choice' names"):
        planned(tmp_path, entry, **chosen)
    assert planned(tmp_path, entry | {"tools": [TOOL, other]}, **chosen)


def test_where_tools_stand_is_known_by_line(tmp_path: Path) -> None:
    entries = [
        {"prompt": "x"},
        {"messages": SESSION[:4]},
        {"messages": [ASKED], "tools": [TOOL]},
        {"messages": [ASKED], "tools": [TOOL], "tool_choice": "required"},
    ]
    workload = planned(tmp_path, *entries)
    file = f"prompts {str(tmp_path / 'agent.jsonl')!r}"
    assert workload.tools_at() == f"{file}, line 2"
    assert workload.asked_tool_choices() == {
        "auto": f"{file}, line 3",
        "required": f"{file}, line 4",
    }
    assert workload.summary().with_tools == 3


def test_tools_are_sent_to_the_chat_api_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ProblemsError, match=r"has tools \(line 1\), which are sent through the API"
    ):
        planned(tmp_path, {"prompt": "x", "tools": [TOOL]}, api="completions")
    with pytest.raises(ProblemsError, match="has no tools, which 'tool_choice' needs"):
        planned(tmp_path, {"prompt": "x", "tools": []}, tool_choice="none")
    entry = {"prompt": "x", "tools": [TOOL], "tool_choice": "required"}
    with pytest.raises(ProblemsError, match=r"must be a call of a tool \(line 1\)"):
        planned(tmp_path, entry, constrain={"regex": "a"})


def test_a_column_of_tools_is_json_and_may_have_another_name(tmp_path: Path) -> None:
    rows = {"talk": [[ASKED]], "functions": [json.dumps([TOOL])]}
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(rows), file)
    keys = {"name": "w", "kind": "file", "api": "chat", "output_tokens": 9, "prompts": str(file)}
    columns = {"messages": "talk", "tools": "functions"}
    workload = Workload.model_validate(keys | {"columns": columns}).with_files(str)
    assert isinstance(workload, FileWorkload)
    (sent,) = bodies(workload)
    assert (sent["tools"], sent["messages"]) == ([TOOL], [ASKED])


def test_a_file_without_a_column_of_tools_is_the_workload_that_it_was(tmp_path: Path) -> None:
    workload = planned(tmp_path, {"prompt": "x"}, columns={"prompt": "prompt"})
    assert "tools" not in workload.identity()["columns"]


def test_the_tokens_of_a_prompt_of_given_length_are_unknown_with_tools(tmp_path: Path) -> None:
    kind = planned(tmp_path, {"input_length": 7, "tools": [TOOL]}).requests(IDS, 0)
    assert (kind.input_tokens(0, 0), kind.prompt(0, 0, "measure", ()).tokens) == (0, 0)
    assert not kind.has_lengths


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"parallel_tool_calls": True, "tool_choice": None}, {}),
    ],
)
def test_what_servers_do_anyway_is_not_sent(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    entry = read_entry({"prompt": "x", "tools": [TOOL], **fields}, "")
    assert entry is not None
    assert entry.fields == {"tools": [TOOL], **sent}
    without = read_entry({"prompt": "x", "tools": [], **fields}, "")
    assert without is not None
    assert without.fields == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": "weather"}, "'tools' are 'weather'; give a list of tools"),
        ({"tools": [{"name": "weather"}]}, "tool 1 is"),
        ({"tools": [TOOL], "tool_choice": "any"}, "'tool_choice' is 'any'; give auto, none"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "'tool_choice' names 'f', which is none of the tools",
        ),
        ({"tool_choice": "required"}, "'tool_choice' needs 'tools'"),
        ({"tools": [TOOL], "parallel_tool_calls": "no"}, "'parallel_tool_calls' is 'no'"),
        ({"tools": [TOOL], "parallel_tool_calls": 0}, "'parallel_tool_calls' is '0'"),
        ({"functions": [{"name": "f"}]}, "write 'tools' and 'tool_calls'"),
        (
            {"tools": [TOOL], "tool_choice": "required", "structured_outputs": {"regex": "a"}},
            "cannot be constrained otherwise",
        ),
    ],
)
def test_tools_that_no_server_takes_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert reason in problem({"prompt": "x", **fields})


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (CALLED | {"tool_calls": "weather"}, "'tool_calls' are 'weather'; give a list of calls"),
        (CALLED | {"tool_calls": [{"name": "f"}]}, "call 1 of 'tool_calls' is"),
        (CALLED | {"tool_calls": [{**CALL, "id": None}]}, "call 1 of 'tool_calls' is"),
        (CALLED | {"tool_calls": [CALL, {**CALL, "type": "custom"}]}, "call 2 of 'tool_calls' is"),
        (
            CALLED | {"tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]},
            "call 1 of 'tool_calls' is",
        ),
        ({"role": "assistant", "content": None}, "and a text"),
        (RETURNED | {"content": None}, "and a text"),
        (RETURNED | {"tool_call_id": 7}, "'tool_call_id' is '7'; give a text"),
        (ASKED | {"tool_call_id": "a"}, "'tool_call_id' is not sent"),
        (CALLED | {"reasoning_content": "hm"}, "'reasoning_content' is not sent"),
    ],
)
def test_messages_of_tools_that_no_server_takes_are_refused(
    message: dict[str, Any], reason: str
) -> None:
    refusal = problem({"messages": [ASKED, message]})
    assert refusal.startswith('message 2 of "messages": ')
    assert re.search(re.escape(reason), refusal)


# -- ShareGPT, as LLaMA-Factory documents it (data/README.md, data/glaive_toolcall_en_demo.json)

AREA = {
    "name": "area",
    "parameters": {"type": "object", "properties": {"sides": {"type": "array"}}},
}
SHARE_GPT_FILE = r"""[
  {"conversations": [
    {"from": "human", "value": "A rectangle of 5 by 3?"},
    {"from": "function_call", "value": "{\"name\": \"area\", \"arguments\": {\"sides\": [5, 3]}}"},
    {"from": "observation", "value": "{\"area\": 15}"},
    {"from": "gpt", "value": "15 square units."},
    {"from": "human", "value": "And of 4 by 4, and 1 by 2?"},
    {"from": "function_call", "value": "[{\"name\": \"area\", \"arguments\": {\"sides\": [4, 4]}}, {\"name\": \"area\", \"arguments\": {\"sides\": [1, 2]}}]"},
    {"from": "observation", "value": "16"},
    {"from": "observation", "value": "2"},
    {"from": "gpt", "value": "16 and 2."}],
   "tools": "[{\"name\": \"area\", \"parameters\": {\"type\": \"object\", \"properties\": {\"sides\": {\"type\": \"array\"}}}}]"},
  {"conversations": [
    {"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Bye"}],
   "tools": "[]"}
]
"""


def share_gpt(folder: Path, **keys: Any) -> FileWorkload:
    path = folder / "glaive.json"
    path.write_text(SHARE_GPT_FILE)
    given = {"name": "w", "kind": "file", "api": "chat", "output_tokens": 9} | keys
    workload = Workload.model_validate(given | {"prompts": str(path)}).with_files(str)
    assert isinstance(workload, FileWorkload)
    return workload


def test_sessions_of_sharegpt_with_calls_are_sent_as_another_reader_reads_them(
    tmp_path: Path,
) -> None:
    workload = share_gpt(tmp_path, use="sessions")
    sent = bodies(workload)
    expected = second_readers.share_gpt_tools(SHARE_GPT_FILE)
    assert [body["messages"] for body in sent] == expected[:4]
    assert [len(body["messages"]) for body in sent] == [1, 3, 5, 8]
    assert all(body["tools"] == [{"type": "function", "function": AREA}] for body in sent)
    # a conversation without calls has the engine's own answers
    without_calls = bodies(workload, 1)
    assert without_calls[1]["messages"][1]["content"] == "made up now"
    assert "tools" not in without_calls[1]
    assert workload.notes() == []


def test_without_sessions_what_follows_the_first_message_of_sharegpt_is_counted(
    tmp_path: Path,
) -> None:
    workload = share_gpt(tmp_path)
    (sent,) = bodies(workload)
    assert sent["messages"] == [{"role": "user", "content": "A rectangle of 5 by 3?"}]
    assert any("not sent" in note for note in workload.notes()), workload.notes()


def test_a_result_without_a_call_is_sent_as_one_without_an_id(tmp_path: Path) -> None:
    """As files do whose calls stand within the answers' texts."""
    talk = [
        {"from": "human", "value": "x"},
        {"from": "gpt", "value": '<tool_call>{"name": "f"}</tool_call>'},
        {"from": "tool", "value": "y"},
        {"from": "gpt", "value": "z"},
    ]
    sent = bodies(planned(tmp_path, {"conversations": talk}, use="sessions"))
    assert sent[1]["messages"] == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": '<tool_call>{"name": "f"}</tool_call>'},
        {"role": "tool", "content": "y"},
    ]


def test_one_result_for_several_calls_is_sent_as_that_of_the_first(tmp_path: Path) -> None:
    """LLaMA-Factory takes observations in odd places alone, so one stands for all calls before it."""
    calls = '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]'
    talk = [
        {"from": "human", "value": "x"},
        {"from": "function_call", "value": calls},
        {"from": "observation", "value": "[1, 2]"},
        {"from": "function_call", "value": '{"name": "h", "arguments": {}}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "z"},
    ]
    sent = bodies(planned(tmp_path, {"conversations": talk}, use="sessions"))
    said = sent[-1]["messages"]
    ids = [[call["id"] for call in message.get("tool_calls", ())] for message in said]
    assert ids == [[], ["call_1", "call_2"], [], ["call_3"], []]
    assert [message.get("tool_call_id") for message in said] == [
        *(None, None, "call_1", None, "call_3")
    ]
    assert said[2]["content"] == "[1, 2]"


CALL_OF_F = {"from": "function_call", "value": '{"name": "f", "arguments": "{}"}'}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (
            [CALL_OF_F | {"value": "f(1)"}],
            'message 2 of "conversations": "function_call" is \'f(1)\'; give JSON, {"name": …',
        ),
        ([CALL_OF_F | {"value": "[]"}], "\"function_call\" is '[]'; give JSON"),
        ([CALL_OF_F | {"value": '{"arguments": {}}'}], "give JSON"),
        (
            [CALL_OF_F, {"from": "gpt", "value": "z"}],
            'message 3 of "conversations" comes before what 1 of the calls before it returned',
        ),
        (
            [
                CALL_OF_F | {"value": f"[{', '.join([CALL_OF_F['value']] * 3)}]"},
                {"from": "observation", "value": "1"},
                {"from": "observation", "value": "2"},
                {"from": "human", "value": "y"},
            ],
            "before what 1 of the calls before it returned: give an observation for each call, or",
        ),
        ([{"from": "observation", "value": None}], "and a text"),
    ],
)
def test_calls_of_sharegpt_that_are_not_plain_are_refused(
    messages: list[dict[str, Any]], reason: str
) -> None:
    assert reason in problem({"conversations": [{"from": "human", "value": "x"}, *messages]})


def test_tools_without_a_frame_are_those_of_sharegpt_alone() -> None:
    talk = [{"from": "human", "value": "x"}]
    entry = read_entry({"conversations": talk, "tools": [AREA]}, "")
    assert entry is not None
    assert entry.fields == {"tools": [{"type": "function", "function": AREA}]}
    assert "tool 1 is" in problem({"prompt": "x", "tools": [AREA]})
