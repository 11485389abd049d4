"""Tools in a file of requests: their definitions, calls of them, and what they returned.

All of it is sent as it was recorded. An agent's session is replayed with the recorded calls between
its requests, because recorded results would answer no call that an engine makes now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from orchestrator.spec.constraint import ToolChoice
from orchestrator.spec.request_options import json_problem, tool_name
from orchestrator.workloads.kind import Message, Speaker

# Fields of a request's body that are about tools.
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
# Keys of a message beside its speaker and its text, by speaker.
MESSAGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "assistant": ("tool_calls",),
    "tool": ("tool_call_id", "name"),
}
# Speakers of ShareGPT's messages that call tools, and that are what tools returned (LLaMA-Factory,
# data/README.md: function_tag and observation_tag; others write ``tool``).
SHAREGPT_CALL = "function_call"
SHAREGPT_RESULTS = ("observation", "tool")
_CHOICES = ("auto", "none", "required")


def tool_choice_of(fields: Mapping[str, Any]) -> ToolChoice | None:
    """Who decides whether the answer to a request calls a tool; None where it has no tools."""
    if not fields.get("tools"):
        return None
    choice: ToolChoice | Mapping[str, Any] = fields.get("tool_choice") or "auto"
    return choice if isinstance(choice, str) else "named"


def must_call_tool(fields: Mapping[str, Any]) -> bool:
    """Whether the answer to a request must be a call of a tool, which is as long as it is."""
    return tool_choice_of(fields) in ("required", "named")


def tool_fields(
    keys: Mapping[str, Any], problems: list[str], are_bare: bool = False
) -> dict[str, Any]:
    """The fields of an entry that are about tools; none where it defines no tools. Adds what is
    wrong with them to ``problems``.

    ``are_bare``: its tools may be definitions of functions, without ``type`` and ``function`` around
    them, as ShareGPT has them.
    """
    try:
        tools = _tools(keys.get("tools"), are_bare)
        choice = _tool_choice(keys.get("tool_choice"), tools)
        parallel = keys.get("parallel_tool_calls")
        if parallel not in (None, "") and not isinstance(parallel, bool):
            raise ValueError(f"'parallel_tool_calls' is {str(parallel)[:60]!r}; give true or false")
    except ValueError as error:
        problems.append(str(error))
        return {}
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if choice is not None:
        fields["tool_choice"] = choice
    if parallel is False:  # servers take true where a request does not say it
        fields["parallel_tool_calls"] = False
    return fields


def _tools(value: Any, are_bare: bool) -> list[Any]:
    """The definitions of tools, which a cell of a table has as JSON. Raises ValueError."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise ValueError(f"'tools' are {value[:60]!r}; give a list of tools") from None
    if not isinstance(value, list):
        raise ValueError(f"'tools' are {str(value)[:60]!r}; give a list of tools")
    problem = json_problem(value)
    if problem is not None:
        raise ValueError(f"'tools' {problem}")
    tools = [_in_frame(tool) for tool in value] if are_bare else list(value)
    for number, tool in enumerate(tools, start=1):
        if tool_name(tool) is None:
            raise ValueError(
                f"tool {number} is {str(tool)[:60]!r}; give "
                '{"type": "function", "function": {"name": …, "parameters": …}}'
            )
    return tools


def _in_frame(tool: Any) -> Any:
    """A definition of a function as OpenAI's API has it; others as they are."""
    is_bare = isinstance(tool, dict) and "name" in tool and "function" not in tool
    return {"type": "function", "function": tool} if is_bare else tool


def _tool_choice(value: Any, tools: list[Any]) -> Any:
    """A recorded ``tool_choice``; None where servers do the same without it. Raises ValueError."""
    if value is None or value == "":
        return None
    name = tool_name(value)
    if value not in _CHOICES and name is None:
        raise ValueError(
            f"'tool_choice' is {str(value)[:60]!r}; give {', '.join(_CHOICES)} or "
            '{"type": "function", "function": {"name": …}}'
        )
    if not tools and value in ("auto", "none"):
        return None
    if not tools:
        raise ValueError("'tool_choice' needs 'tools'")
    if name is not None and name not in map(tool_name, tools):
        raise ValueError(f"'tool_choice' names {name[:60]!r}, which is none of the tools")
    return value


def message_with_tools(
    speaker: Speaker, entry: Mapping[str, Any], content: Any, text: str
) -> Message | None:
    """The message where it calls tools or is what a tool returned; None: it is another one.

    ``entry``: the message as it was recorded. ``content``: what it says, of which ``text`` is the
    text. Raises ValueError.
    """
    calls = entry.get("tool_calls") or []
    if speaker == "assistant" and calls:
        recorded = {"role": speaker, "content": content, "tool_calls": calls}
        return Message(speaker, (text + _calls_text(calls),), 0, recorded=orjson.dumps(recorded))
    if speaker == "tool":
        recorded = {"role": speaker, "content": content}
        for key in MESSAGE_KEYS[speaker]:
            value = entry.get(key)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{key!r} is {str(value)[:60]!r}; give a text")
            if value:
                recorded[key] = value
        return Message(speaker, (text,), 0, recorded=orjson.dumps(recorded))
    return None


def _calls_text(calls: Any) -> str:
    """Calls of tools as models write them, an object with name and arguments for each, by which
    their tokens can be counted. Raises ValueError.
    """
    if not isinstance(calls, list):
        raise ValueError(f"'tool_calls' are {str(calls)[:60]!r}; give a list of calls")
    return "\n".join(_call_text(call, number) for number, call in enumerate(calls, start=1))


def _call_text(call: Any, number: int) -> str:
    name = tool_name(call)
    arguments = call["function"].get("arguments") if name is not None else None
    if not isinstance(arguments, str) or not isinstance(call.get("id"), str):
        raise ValueError(
            f"call {number} of 'tool_calls' is {str(call)[:60]!r}; give "
            '{"id": …, "type": "function", "function": {"name": …, "arguments": "…"}}'
        )
    # a model may have written no JSON, and servers go on then
    return f'{{"name": "{name}", "arguments": {arguments or "{}"}}}'


# -- ShareGPT


def with_calls_of_sharegpt(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """ShareGPT's messages with calls of tools as OpenAI's API has them, beside the keys that they
    have. A call is JSON, ``{"name": …, "arguments": {…}}`` or a list of these; results follow in the
    order of the calls, or one result follows for all of them, as LLaMA-Factory has it (data/README.md,
    data/glaive_toolcall_en_demo.json). Raises ValueError.
    """
    numbered: list[Mapping[str, Any]] = []
    calls_so_far = 0
    results = 0  # of the last calls
    waiting: list[str] = []  # ids of calls whose results have not come yet
    for number, message in enumerate(messages, start=1):
        speaker = message.get("from")
        if speaker in SHAREGPT_RESULTS:
            results += 1
            if waiting:
                message = {"tool_call_id": waiting.pop(0), **message}
            numbered.append(message)
            continue
        if waiting and results != 1:
            raise ValueError(
                f'message {number} of "conversations" comes before what {len(waiting)} of the '
                "calls before it returned: give an observation for each call, or one for all"
            )
        waiting = []
        if speaker == SHAREGPT_CALL:
            calls = _sharegpt_calls(message.get("value"), number, calls_so_far)
            calls_so_far += len(calls)
            results = 0
            waiting = [call["id"] for call in calls]
            message = {**message, "value": None, "tool_calls": calls}
        numbered.append(message)
    return numbered


def _sharegpt_calls(value: Any, number: int, calls_so_far: int) -> list[dict[str, Any]]:
    """The calls of message ``number``. Their ids count all calls of the conversation."""
    try:
        content = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        content = None
    calls = content if isinstance(content, list) else [content]
    are_plain = all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls)
    if not calls or not are_plain:
        raise ValueError(
            f'message {number} of "conversations": "{SHAREGPT_CALL}" is {str(value)[:60]!r}; give '
            'JSON, {"name": …, "arguments": {…}} or a list of these'
        )
    return [
        {
            "id": f"call_{identifier}",
            "type": "function",
            "function": {"name": call["name"], "arguments": _arguments(call.get("arguments"))},
        }
        for identifier, call in enumerate(calls, start=calls_so_far + 1)
    ]


def _arguments(value: Any) -> str:
    """The arguments of a call, which OpenAI's API has as a text of JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps({} if value is None else value).decode()
