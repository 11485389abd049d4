"""Readers of published traces, and of files of prompts, by the standard library alone, and what ours
read, in the same form.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from orchestrator.workloads.entries import PromptEntry
from orchestrator.workloads.trace_rows import TraceRows


@dataclass(frozen=True)
class RecordedRequest:
    """A request that is sent. ``row``: from 1. ``at_ns``: since the first request that is sent;
    None: the trace has no times. ``pause_s``: after the answer before; None: the trace has none.
    """

    row: int
    at_ns: int | None
    inputs: int
    outputs: int
    blocks: tuple[int, ...] = ()
    pause_s: float | None = None


Sessions = list[list[RecordedRequest]]


def sessions_of(rows: TraceRows) -> Sessions:
    """What our reader read."""
    sessions: Sessions = []
    for session in range(rows.sessions):
        first, end = rows.first_request[session : session + 2].tolist()
        sessions.append([_request_of(rows, session, request) for request in range(first, end)])
    return sessions


def _request_of(rows: TraceRows, session: int, request: int) -> RecordedRequest:
    at_ns = None
    if rows.starts_ns is not None and rows.offsets_ns is not None:
        at_ns = int(rows.starts_ns[session] + rows.offsets_ns[request])
    blocks: tuple[int, ...] = ()
    if rows.blocks is not None and rows.first_block is not None:
        first, end = rows.first_block[request : request + 2].tolist()
        blocks = tuple(rows.blocks[first:end].tolist())
    return RecordedRequest(
        row=int(rows.rows[request]),
        at_ns=at_ns,
        inputs=int(rows.inputs[request]),
        outputs=int(rows.outputs[request]),
        blocks=blocks,
        pause_s=None if rows.pauses_s is None else float(rows.pauses_s[request]),
    )


def burstgpt(text: str) -> Sessions:
    """Rows of one ``Session ID`` are a session; failed requests have an answer of 0 tokens."""
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    sent = [
        (row, line) for row, line in enumerate(table, start=1) if line["Response tokens"] != "0"
    ]
    first_s = min(Decimal(line["Timestamp"]) for _, line in sent)
    by_session: dict[str, list[RecordedRequest]] = {}
    end_s: dict[str, Decimal] = {}  # of the last answer of a session
    for row, line in sent:
        session = line.get("Session ID", f"row {row}")
        at_s = Decimal(line["Timestamp"])
        pause_s = None
        if "Elapsed time" in line:
            pause_s = max(0.0, float(at_s - end_s.get(session, at_s)))
            end_s[session] = at_s + Decimal(line["Elapsed time"])
        request = RecordedRequest(
            row=row,
            at_ns=int((at_s - first_s) * 1_000_000_000),
            inputs=int(line["Request tokens"]),
            outputs=int(line["Response tokens"]),
            pause_s=pause_s,
        )
        by_session.setdefault(session, []).append(request)
    return list(by_session.values())


def mooncake(text: str) -> Sessions:
    """Every line is a session; its time is in milliseconds."""
    requests = _timed_lines(text, ns_per_unit=1_000_000)
    return [[request] for _, request in requests]


def bailian(text: str) -> Sessions:
    """A line continues the session of its parent; its time is in seconds."""
    by_chat: dict[int, list[RecordedRequest]] = {}
    sessions: Sessions = []
    for keys, request in _timed_lines(text, ns_per_unit=1_000_000_000):
        session = by_chat.get(keys["parent_chat_id"])
        if session is None:
            session = []
            sessions.append(session)
        session.append(request)
        by_chat[keys["chat_id"]] = session
    return sessions


def _timed_lines(text: str, ns_per_unit: int) -> list[tuple[dict[str, Any], RecordedRequest]]:
    lines = [json.loads(line, parse_float=Decimal) for line in text.splitlines()]
    first = min(keys["timestamp"] for keys in lines)
    return [
        (
            keys,
            RecordedRequest(
                row=row,
                at_ns=int((keys["timestamp"] - first) * ns_per_unit),
                inputs=keys["input_length"],
                outputs=keys["output_length"],
                blocks=tuple(keys["hash_ids"]),
            ),
        )
        for row, keys in enumerate(lines, start=1)
    ]


def weka(text: str) -> Sessions:
    """A line is an agent. Its subagents are sessions of their own, behind that of the agent."""
    sessions: Sessions = []
    for row, line in enumerate(text.splitlines(), start=1):
        sessions.extend(_agents(row, json.loads(line)["requests"]))
    return sessions


def _agents(row: int, requests: list[dict[str, Any]]) -> Iterator[list[RecordedRequest]]:
    session: list[RecordedRequest] = []
    subagents: list[list[dict[str, Any]]] = []
    end_s: float | None = None  # of the answer before, where the trace says how long it took
    for keys in requests:
        if keys["type"] == "subagent":
            subagents.append(keys["requests"])
            continue
        pause_s = keys.get("think_time", 0.0) if session else 0.0
        if end_s is not None:
            pause_s = max(0.0, keys["t"] - end_s)
        end_s = keys["t"] + keys["api_time"] if "api_time" in keys else None
        request = RecordedRequest(
            row=row,
            at_ns=None,
            inputs=keys["in"],
            outputs=keys["out"],
            blocks=tuple(keys["hash_ids"]),
            pause_s=pause_s,
        )
        session.append(request)
    yield session
    for inner in subagents:
        yield from _agents(row, inner)


@dataclass(frozen=True)
class RecordedPrompt:
    """What a file says of a request, or of a session. ``said``: its messages in their order, each
    behind its speaker, with the recorded answers.
    """

    said: tuple[str, ...]
    output_tokens: int | None = None
    temperature: float | None = None


def prompts_of(entries: Sequence[PromptEntry | None]) -> list[RecordedPrompt]:
    """What our reader read, without the entries in which the user says nothing."""
    return [_prompt_of(entry) for entry in entries if entry is not None]


def _prompt_of(entry: PromptEntry) -> RecordedPrompt:
    said = [f"{message.role}: {message.text}" for message in entry.messages]
    if entry.answer is not None:
        said.append(f"assistant: {entry.answer}")
    for turn in entry.later_turns:
        said.append(f"user: {turn.text}")
        if turn.answer is not None:
            said.append(f"assistant: {turn.answer}")
    return RecordedPrompt(tuple(said), entry.output_tokens, entry.fields.get("temperature"))


def share_gpt(text: str) -> list[RecordedPrompt]:
    """An answer that nobody asked for is left out, and a conversation without a user."""
    speakers = {"system": "system", "human": "user", "gpt": "assistant"}
    prompts: list[RecordedPrompt] = []
    for talk in json.loads(text):
        said: list[str] = []
        has_user = False
        for message in talk["conversations"]:
            has_user = has_user or message["from"] == "human"
            if has_user or message["from"] == "system":
                said.append(f"{speakers[message['from']]}: {message['value']}")
        if has_user:
            prompts.append(RecordedPrompt(tuple(said)))
    return prompts


def share_gpt_tools(text: str) -> list[list[dict[str, Any]]]:
    """The messages of each request of an agent's session in LLaMA-Factory's ShareGPT: a request for
    each answer, whether it is a text or a call, with all that was recorded before it.
    """
    requests: list[list[dict[str, Any]]] = []
    for talk in json.loads(text):
        said: list[dict[str, Any]] = []
        calls: list[str] = []
        results = 0
        for message in talk["conversations"]:
            if message["from"] in ("gpt", "function_call"):
                requests.append(list(said))
            if message["from"] == "human":
                said.append({"role": "user", "content": message["value"]})
            elif message["from"] == "gpt":
                said.append({"role": "assistant", "content": message["value"]})
            elif message["from"] == "observation":
                said.append(
                    {"role": "tool", "content": message["value"], "tool_call_id": calls[results]}
                )
                results += 1
            else:
                tool_calls = []
                written = json.loads(message["value"])
                for call in written if isinstance(written, list) else [written]:
                    calls.append(f"call_{len(calls) + 1}")
                    arguments = json.dumps(call["arguments"], separators=(",", ":"))
                    function = {"name": call["name"], "arguments": arguments}
                    tool_calls.append({"id": calls[-1], "type": "function", "function": function})
                said.append({"role": "assistant", "content": None, "tool_calls": tool_calls})
        if talk["conversations"][-1]["from"] in ("human", "observation"):
            requests.append(said)
    return requests


def openai_batch(text: str) -> list[RecordedPrompt]:
    """A line has the messages of its request, which end with the user's."""
    prompts: list[RecordedPrompt] = []
    for line in text.splitlines():
        body = json.loads(line)["body"]
        said = tuple(f"{message['role']}: {message['content']}" for message in body["messages"])
        prompts.append(RecordedPrompt(said, body["max_tokens"], body.get("temperature")))
    return prompts


def prompt_table(text: str) -> list[RecordedPrompt]:
    """A table with the columns ``question``, ``role``, ``reply`` and ``limit``."""
    prompts: list[RecordedPrompt] = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        said = [f"system: {row['role']}"] if row["role"] else []
        said += [f"user: {row['question']}", f"assistant: {row['reply']}"]
        prompts.append(RecordedPrompt(tuple(said), int(row["limit"])))
    return prompts
