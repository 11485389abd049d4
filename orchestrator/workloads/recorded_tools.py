"""Tools in a file of requests: their definitions, calls of them, and what they returned.

All of it is sent as it was recorded. An agent's session is replayed with the recorded calls between
its requests, because recorded results would answer no call that an engine makes now.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def tool_fields(keys: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The fields of an entry that are about tools; none where it defines no tools. Adds what is
    wrong with them to ``problems``.
    """
    try:
        tools = _tools(keys.get("tools"))
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


def _tools(value: Any) -> list[Any]:
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
    for number, tool in enumerate(value, start=1):
        if tool_name(tool) is None:
            raise ValueError(
                f"tool {number} is {str(tool)[:60]!r}; give "
                '{"type": "function", "function": {"name": …, "parameters": …}}'
            )
    return value


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


def message_with_tools(speaker: Speaker, entry: Mapping[str, Any], text: str) -> Message | None:
    """The message where it calls tools or is what a tool returned; None: it is another one.

    ``entry``: the message as it was recorded. ``text``: of its content. Raises ValueError.
    """
    calls = entry.get("tool_calls") or []
    if speaker == "assistant" and calls:
        content = entry.get("content")
        recorded = {"role": speaker, "content": content, "tool_calls": calls}
        return Message(speaker, (text + _calls_text(calls),), 0, recorded=orjson.dumps(recorded))
    if speaker == "tool":
        recorded = {"role": speaker, "content": entry["content"]}
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
