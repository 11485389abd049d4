"""One JSON object of a prompt file as a request.

Every key of an object is one of four things: what is sent, a setting of this request (the length of
its answer, its sampling), something that changes no request (an id, a category), or a problem. No
key is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from orchestrator.spec.constraint import Constraint, ConstraintKind
from orchestrator.spec.load import MOST_TOKENS
from orchestrator.spec.request_options import WITHOUT_ANY_ANSWER, schema_problem
from orchestrator.workloads.file_reading import EntryError
from orchestrator.workloads.images import PictureFiles, image_url_part
from orchestrator.workloads.kind import Message, Speaker
from orchestrator.workloads.recorded_tools import (
    MESSAGE_KEYS,
    SHAREGPT_CALL,
    SHAREGPT_RESULTS,
    TOOL_FIELDS,
    message_with_tools,
    must_call_tool,
    tool_fields,
    with_calls_of_sharegpt,
)

# Names of speakers in "messages", as OpenAI's API has them, and in "conversations".
_SPEAKERS: dict[str, Speaker] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}
OPENAI_SPEAKERS: dict[str, Speaker] = {**_SPEAKERS, "tool": "tool"}
SHAREGPT_SPEAKERS: dict[str, Speaker] = {
    **_SPEAKERS,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    SHAREGPT_CALL: "assistant",
    **dict.fromkeys(SHAREGPT_RESULTS, "tool"),
}
# Tokens that each of a trace's hash_ids stands for: Mooncake's traces have blocks of 512, Bailian's
# (Qwen) of 16. All rows of a file have blocks of one size.
BLOCK_TOKENS = {512: "Mooncake", 16: "Bailian"}

# The names that programs which write such files give to the length of a request's answer.
ANSWER_LENGTHS = (
    *("output_tokens", "output_length", "output_tokens_count"),
    *("max_tokens", "max_completion_tokens", "max_new_tokens"),
)
# Fields that are sent with the request as they are. OpenAI's API has them, or vLLM's and SGLang's.
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
# The recorded answer beside a prompt; its length can be that of the request's answer.
ANSWERS = ("completion", "response", "answer", "output")

# Keys that say something about an entry and change no request.
UNUSED = frozenset(
    {
        *("", "Unnamed: 0"),  # what pandas calls the numbers of rows
        *("id", "ids", "uid", "uuid", "idx", "index", "hash", "custom_id", "request_id", "task_id"),
        *("question_id", "prompt_id", "conversation_id", "session_id", "chat_id", "parent_chat_id"),
        *("user_id", "turn", "turns_count", "round", "round_index", "timestamp", "created", "date"),
        *("created_at", "time", "arrival_time", "category", "categories", "type", "task", "topic"),
        *("domain", "source", "dataset", "origin", "split", "subset", "language", "lang", "title"),
        *("description", "comment", "note", "notes", "tag", "tags", "label", "labels", "metadata"),
        *("meta", "license", "url", "difficulty", "level", "score", "quality", "rating", "views"),
        *("reference", "references", "expected", "expected_output", "ground_truth", "target"),
        *("canonical_solution", "solution", "test", "tests", "entry_point", "choices", "chosen"),
        *("rejected", "prompt_len", "prompt_length", "prompt_tokens", "completion_len"),
        *("completion_tokens", "input_tokens", "input_len", "output_len", "total_tokens"),
        *("num_tokens", "items", "weight", "redacted", "toxic", "openai_moderation"),
    }
)
_MESSAGE_LISTS = frozenset({"messages", "conversations"})
_MESSAGE_TEXTS = frozenset({"role", "content", "from", "value"})
_MESSAGE_PARTS = _MESSAGE_TEXTS.union(*MESSAGE_KEYS.values())
# Keys that would change the request, and why they are not sent. "image*" stands for every key that
# begins with "image".
_NO_PICTURES = "only text and images are sent"
_OWN_FIELD = "this program sets it itself"
_LENGTH = "each answer has exactly the length that the entry or 'output_tokens' gives"
_FORMAT = "give 'constrain' as a key of the workload, so that answers are checked"
_TOOLS = "of tools, 'tools' and 'tool_choice' are sent, and 'tool_calls' in messages"
_FUNCTIONS = "it is the older form of OpenAI's API: write 'tools' and 'tool_calls'"
# Keys that say what the answer must be, as OpenAI's API and vLLM have them.
_CONSTRAINTS = ("response_format", "structured_outputs")
# What vLLM calls each kind of constraint within "structured_outputs".
_STRUCTURED_KINDS = {
    "json": ConstraintKind.JSON_SCHEMA,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
}
# Keys that hold the pictures of a request: one, or a list of them (workloads/images.py).
PICTURES = ("image", "images", "image_files")
REFUSED = {
    "model": "every request goes to the model that is measured",
    "image*": _NO_PICTURES,
    "audio*": _NO_PICTURES,
    "video*": _NO_PICTURES,
    "multi_modal*": _NO_PICTURES,
    "tool*": _TOOLS,
    "function*": _FUNCTIONS,
    "guided_*": _FORMAT,
    "json_schema": _FORMAT,
    "grammar": _FORMAT,
    "regex": _FORMAT,
    "extra*": "write each sampling field beside the prompt: temperature, top_p, stop, ...",
    "n": "each request has one answer",
    "best_of": "each request has one answer",
    "stream*": _OWN_FIELD,
    "logprobs": _OWN_FIELD,
    "top_logprobs": _OWN_FIELD,
    "echo": _OWN_FIELD,
    "ignore_eos": _LENGTH,
    "min_tokens": _LENGTH,
    "adapter*": "give the workload 'adapters' instead",
    "lora*": "give the workload 'adapters' instead",
    "system": 'give it as a message of "messages"',
    "system_prompt": 'give it as a message of "messages"',
    "prefix": "write it into the prompt",
    "suffix": "text is not inserted",
    "delay": "pauses between turns are not replayed",
    "think_time": "pauses between turns are not replayed",
    "priority": "requests have no priorities",
}
# Keys with values that ask only for what is done anyway: one streamed answer per request, and what
# servers do where a request does not have the key.
_AS_ALWAYS: tuple[tuple[str, object], ...] = (
    *(("n", 1), ("best_of", 1), ("stream", True), ("echo", False), ("logprobs", False)),
    *(("use_beam_search", False), ("include_stop_str_in_output", False), ("store", False)),
    *(("continue_final_message", False), ("skip_special_tokens", True)),
    ("parallel_tool_calls", True),
)
# Keys that add something to a request, and nothing while they are empty or false.
_ADDITIONS = (
    *("image*", "audio*", "video*", "multi_modal*", "tool*", "function*", "extra*", "adapter*"),
    *("lora*", "stream_options", "system", "system_prompt", "prefix", "suffix", "annotations"),
)
_SYSTEM = ("system", "system_prompt")
# Names of REFUSED that tables with columns of their own names have for other things.
_ANY_COLUMN = ("n", "prefix", "suffix", "regex", "grammar", "delay", "priority", "echo")
_FRAME = ("custom_id", "method", "url", "body")  # keys of a line of an OpenAI batch
# Keys of other programs' files, and what to do with an entry that has none of our keys.
_OTHER_FILES = {
    "requests": "it is a session of an agent's trace: send it as a workload of 'kind: trace'",
    "prompt_0": 'write its turns as "messages"',
    "conversation": "give 'columns: {messages: conversation}' of the workload",
    "text": 'name its "text" "prompt"',
    "question": 'name its "question" "prompt"',
    "instruction": 'name its "instruction" "prompt"',
    "input": 'name its "input" "prompt"',
    "query": 'name its "query" "prompt"',
    "content": 'name its "content" "prompt"',
}


@dataclass(frozen=True, slots=True)
class LaterTurn:
    """What the user says after an answer, and the recorded answer to it; None: there is none.

    ``recorded``: in a session that is sent as it was recorded, all messages since the request
    before, its answer first; ``text`` and ``images`` are then empty.
    """

    text: str
    answer: str | None
    images: tuple[bytes, ...] = ()
    recorded: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """One request of the file, or a session. ``output_tokens``: None where the entry gives no
    length; the length that the workload gives applies then.

    ``messages`` is empty for an entry of a trace: ``input_tokens`` tokens are made for it. Each of
    its ``blocks`` stands for ``block_tokens`` tokens, and equal blocks get equal tokens.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None = None
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()
    block_tokens: int = max(BLOCK_TOKENS)
    answer: str | None = field(default=None, compare=False)  # None: no answer was recorded
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the request's body
    constraint: Constraint | None = field(default=None, compare=False)  # on its answer
    has_later_turns: bool = field(default=False, compare=False)  # the user says more
    # what the user says more, where it is sent
    later_turns: tuple[LaterTurn, ...] = field(default=(), compare=False)
    url: str | None = field(default=None, compare=False)  # of a line of an OpenAI batch
    model: str | None = field(default=None, compare=False)  # that such a line names
    unused: frozenset[str] = field(default=frozenset(), compare=False)  # keys that change nothing
    # answers that no user asked for, and what the system says behind the user's first message
    unsent_messages: int = field(default=0, compare=False)
    place: str = field(default="", compare=False)  # in its file, where it has tools
    is_line: bool = field(default=False, compare=False)  # its prompt is a line of a text

    @property
    def has_tools(self) -> bool:
        """Whether its request defines tools, or has messages of theirs."""
        return "tools" in self.fields or any(
            message.recorded is not None for message in self.all_messages()
        )

    def all_messages(self) -> Iterator[Message]:
        """The messages of its first request, and those that were recorded between its turns."""
        yield from self.messages
        for turn in self.later_turns:
            yield from turn.recorded

    @property
    def has_token_ids(self) -> bool:
        """Whether its prompt is given as token ids."""
        parts = [part for message in self.messages for part in message.content]
        return any(not isinstance(part, str) for part in parts)

    def images(self) -> Iterator[bytes]:
        """The pictures of all its messages, those of later turns too."""
        for message in self.all_messages():
            yield from message.images
        for turn in self.later_turns:
            yield from turn.images


def read_entry(
    entry: Any, shown: object, sessions: bool = False, pictures: PictureFiles | None = None
) -> PromptEntry | None:
    """The request of one entry; None where its user says nothing. ``shown``: the entry as the file
    has it. ``sessions``: all that the user says is sent, turn by turn. ``pictures``: reads those
    that the entry names; None: from the working folder.

    Raises EntryError with everything that is wrong with the entry.
    """
    unframed = _unframed(entry)
    keys = with_flat_messages(unframed.keys)
    problems = list(unframed.problems)
    contents = [name for name in _CONTENTS if keys.get(name) is not None]
    if not contents:  # a key without a value is read too: its reader says what is wrong
        contents = [name for name in _CONTENTS if name in keys]
    if not contents:
        raise EntryError([_no_content(keys, shown)])
    if len(contents) > 1:
        both = " and ".join(f'"{name}"' for name in contents)
        problems.append(f"{both} both say what is sent: give one of them")
    unused = _unused_keys(keys, problems) | _unused_in_messages(keys.get(contents[0]))
    if unframed.model is not None:
        unused |= {"model"}  # every request goes to the model that is measured
    if keys.get("hash_ids") and "input_length" not in keys:
        problems.append("'hash_ids' belong to 'input_length', which is missing")
    output_tokens = _answer_length(keys, problems)
    constraint = _constraint(keys, problems)
    fields = tool_fields(keys, problems, are_bare="conversations" in contents)
    if constraint is not None and must_call_tool(fields):
        problems.append("an answer that must be a call of a tool cannot be constrained otherwise")
    try:
        readers = _SESSIONS if sessions else _CONTENTS
        content = readers[contents[0]](keys)
        if content is None and "timestamp" in keys:
            raise ValueError(
                "its user says nothing: without it, all prompts below it would be sent at the "
                "wrong times"
            )
        if content is not None:
            content = _with_pictures(content, keys, pictures or PictureFiles(Path()))
            content = _with_answer_beside(content, keys)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise EntryError(problems)
    if content is None:
        return None
    fields |= {name: keys[name] for name in SAMPLING if keys.get(name) is not None}
    return PromptEntry(
        messages=content.messages,
        output_tokens=output_tokens,
        input_tokens=content.input_tokens,
        blocks=content.blocks,
        answer=content.answer,
        fields=fields,
        constraint=constraint,
        has_later_turns=bool(content.later_turns),
        later_turns=content.later_turns if sessions else (),
        unsent_messages=content.unsent_messages,
        unused=unused,
        url=unframed.url,
        model=unframed.model,
    )


def with_flat_messages(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an entry, with one list of messages where each turn has a list of its own, as of
    VisionArena.
    """
    flat = dict(keys)
    for name in _MESSAGE_LISTS & keys.keys():
        turns = keys[name]
        if isinstance(turns, list) and turns and all(isinstance(turn, list) for turn in turns):
            flat[name] = [message for turn in turns for message in turn]
    return flat


def has_content(names: Iterable[str]) -> bool:
    """Whether one of these keys says what is sent."""
    return not {*names}.isdisjoint({*_CONTENTS, "body"})


@dataclass(frozen=True, slots=True)
class _Unframed:
    """The keys of an entry. Where it is a line of an OpenAI batch, they are those of its body.

    ``url`` and ``model``: what such a line names. ``problems``: what is wrong around its body.
    """

    keys: Mapping[str, Any]
    url: str | None = None
    model: str | None = None
    problems: Sequence[str] = ()


def _unframed(entry: Any) -> _Unframed:
    """The entry, taken out of the frame of an OpenAI batch where it has one."""
    if not isinstance(entry, dict):
        return _Unframed({})
    body, url = entry.get("body"), entry.get("url")
    if not isinstance(body, dict) or not isinstance(url, str):
        return _Unframed(entry)
    keys = {name: value for name, value in body.items() if name != "model"}
    keys["custom_id"] = entry.get("custom_id")
    model = body.get("model")
    return _Unframed(keys, url, None if model is None else str(model), _problems_of_frame(entry))


def _problems_of_frame(entry: Mapping[str, Any]) -> list[str]:
    """What is wrong around the body of a line of an OpenAI batch."""
    problems: list[str] = []
    method = entry.get("method", "POST")
    if method != "POST":
        problems.append(f'"method" is {str(method)[:60]!r}; requests are sent by POST')
    for name in entry:
        if name in _FRAME or _changes_nothing(name):
            continue
        problems.append(f'{name[:60]!r} is not sent: it stands beside "body", not in it')
    return problems


def _no_content(keys: Mapping[str, Any], shown: object) -> str:
    """The problem of an entry without any key that says what is sent, and what to do about it."""
    names = " or ".join(f'"{name}"' for name in _CONTENTS)
    problem = f"{str(shown)[:60]!r} is not an object with {names}"
    for name, remedy in _OTHER_FILES.items():
        if name in keys:
            return f"{problem}; {remedy}"
    return problem


def _changes_nothing(name: str) -> bool:
    """Whether a key says something about an entry, or about a message, and changes no request."""
    return name in UNUSED or name.startswith("_")


def _unused_keys(keys: Mapping[str, Any], problems: list[str]) -> frozenset[str]:
    """The keys that change no request. Adds to the problems the keys that would change it and the
    unknown ones.
    """
    unused = []
    for name, value in keys.items():
        if name in _CONTENTS or name in ANSWER_LENGTHS or name in SAMPLING or name == "hash_ids":
            continue
        if name in PICTURES:
            continue
        if name in _CONSTRAINTS or name in TOOL_FIELDS:
            continue  # _constraint, tool_fields
        if _changes_nothing(name) or name in ANSWERS or name in WITHOUT_ANY_ANSWER:
            unused.append(name)
            continue
        if _asks_for_nothing(name, value):
            continue
        reason = _reason_to_refuse(name)
        if reason is None and _is_blank(value):
            unused.append(name)
            continue
        if reason is None:
            reason = "it is not known; a key that changes no request may begin with _"
        problems.append(f"{name[:60]!r} is not sent: {reason}")
    return frozenset(unused)


def _constraint(keys: Mapping[str, Any], problems: list[str]) -> Constraint | None:
    """What the answer must be; None: it is free."""
    constraints: list[Constraint] = []
    for name, read in (
        ("response_format", _of_response_format),
        ("structured_outputs", _of_structured_outputs),
    ):
        if keys.get(name) is None:
            continue
        try:
            constraint = read(keys[name])
        except ValueError as error:
            problems.append(str(error))
            continue
        if constraint is not None:
            constraints.append(constraint)
    if len(constraints) > 1:
        problems.append("'response_format' and 'structured_outputs' both constrain the answer")
    return constraints[0] if constraints else None


def _of_response_format(response_format: Any) -> Constraint | None:
    """The JSON schema that the answer must be an instance of, as OpenAI's API has it; None: the
    answer is free. Raises ValueError.
    """
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return None
    named = response_format.get("json_schema") if kind == "json_schema" else None
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise ValueError(
            "'response_format' is not sent: answers are checked, which needs "
            '{"type": "json_schema", "json_schema": {"schema": …}}'
        )
    return _shared_constraint("response_format", ConstraintKind.JSON_SCHEMA, schema)


def _of_structured_outputs(outputs: Any) -> Constraint:
    """A constraint as vLLM has it. Raises ValueError."""
    given: dict[str, Any] = {}
    if isinstance(outputs, dict):
        given = {name: value for name, value in outputs.items() if value is not None}
    if len(given) != 1 or not given.keys() <= _STRUCTURED_KINDS.keys():
        raise ValueError(
            "'structured_outputs' is not sent: answers are checked, which needs one of "
            '{"json": …}, {"regex": …} and {"choice": […]}'
        )
    ((name, content),) = given.items()
    return _shared_constraint("structured_outputs", _STRUCTURED_KINDS[name], content)


def _shared_constraint(source: str, kind: ConstraintKind, content: Any) -> Constraint:
    """The same constraint for all lines that say the same. ``source``: the key that says it. Raises
    ValueError for what answers cannot be checked against.
    """
    return _constraint_of(source, kind, orjson.dumps(content, option=orjson.OPT_SORT_KEYS))


@lru_cache(maxsize=1024)  # the lines of a file share a few constraints
def _constraint_of(source: str, kind: ConstraintKind, written: bytes) -> Constraint:
    """The constraint of its JSON. Raises ValueError."""
    content = orjson.loads(written)
    match kind:
        case ConstraintKind.JSON_SCHEMA:
            problem = schema_problem(content)
            if problem is not None:
                raise ValueError(f"the schema of {source!r} {problem}")
            return Constraint(kind, schema=content)
        case ConstraintKind.REGEX:
            try:
                re.compile(content)
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"the regex of {source!r} is no regular expression: {error}"
                ) from None
            return Constraint(kind, regex=content)
        case ConstraintKind.CHOICE:
            is_list = isinstance(content, list) and bool(content)
            if not is_list or not all(isinstance(text, str) and text for text in content):
                raise ValueError(f"the choice of {source!r} is no list of texts")
            return Constraint(kind, choices=tuple(content))


def problems_of_unsent(
    cells: Mapping[str, Any], roles: Collection[str], left_out: Collection[str]
) -> list[str]:
    """The columns that no role names and that would change the request.

    ``cells``: of these columns. ``roles``: that other columns have. ``left_out``: columns that the
    user leaves out on purpose.
    """
    problems = []
    for name, value in cells.items():
        if name in left_out or name in _ANY_COLUMN:
            continue
        if _is_blank(value) or _asks_for_nothing(name, value):
            continue
        reason = _reason_to_refuse(name)
        if name in ANSWER_LENGTHS:
            reason = None if "output_tokens" in roles else "give it as 'output_tokens' of 'columns'"
        elif name in PICTURES:
            reason = "give it as 'images' of 'columns'"
        elif name in SAMPLING:
            reason = "with 'columns' no sampling is sent"
        elif name in _SYSTEM:
            reason = "give it as 'system' of 'columns', beside 'prompt'"
        elif name in _CONSTRAINTS:
            reason = _FORMAT
        elif name == "tools":
            reason = "give it as 'tools' of 'columns'"
        elif name in TOOL_FIELDS:
            reason = "with 'columns' only 'tools' are sent of it"
        if reason is not None:
            problems.append(
                f"{name!r} is not sent: {reason}; to send requests without it, give "
                f"'leave_out: [{name}]' in 'columns'"
            )
    return problems


def _is_blank(value: Any) -> bool:
    """Whether a value is null, or a cell of a table is empty."""
    return value is None or value == ""


def _asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a request is the same with this known key and without it."""
    if _is_blank(value):
        return _reason_to_refuse(name) is not None
    is_empty = value is False or value in ([], {})
    if is_empty and any(_is_named(name, key) for key in _ADDITIONS):
        return True
    return any(
        name == key and value == usual and type(value) is type(usual) for key, usual in _AS_ALWAYS
    )


def _reason_to_refuse(name: str) -> str | None:
    """Why a key of REFUSED is not sent; None for other keys."""
    for key, reason in REFUSED.items():
        if _is_named(name, key):
            return reason
    return None


def _is_named(name: str, key: str) -> bool:
    """Whether a name is this key, or begins with it where the key ends in a star."""
    if key.endswith("*"):
        return name.startswith(key[:-1])
    return name == key


def _answer_length(keys: Mapping[str, Any], problems: list[str]) -> int | None:
    """The length that the entry gives its answer; None where it gives none."""
    lengths: dict[str, int] = {}
    for name in ANSWER_LENGTHS:
        if keys.get(name) is None:
            continue
        try:
            lengths[name] = _whole_number(keys, name)
        except ValueError as error:
            problems.append(str(error))
    if len(set(lengths.values())) > 1:
        in_words = " and ".join(f"{name} {length}" for name, length in lengths.items())
        problems.append(f"{in_words} are two lengths of one answer: give one")
    return next(iter(lengths.values()), None)


# -- what is sent


@dataclass(frozen=True, slots=True)
class _Content:
    """What an entry says of the prompt: the messages, or the length of those to make."""

    messages: tuple[Message, ...]
    answer: str | None = None
    later_turns: tuple[LaterTurn, ...] = ()
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()
    unsent_messages: int = 0


def _with_pictures(content: _Content, keys: Mapping[str, Any], pictures: PictureFiles) -> _Content:
    """The content with the pictures of the entry before the text of its last message. Raises
    ValueError.
    """
    named: list[Any] = []
    for name in PICTURES:
        value = keys.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):  # a cell of a table
            value = _json_list(value)
        if value is None or value in ("", [], b""):
            continue
        named += value if isinstance(value, list) else [value]
    if not named:
        return content
    if not content.messages:
        raise ValueError("pictures go with a text, not with a length")
    images = tuple(map(pictures.part, named))
    *before, last = content.messages
    return replace(content, messages=(*before, replace(last, images=(*last.images, *images))))


def _json_list(cell: str) -> list[Any]:
    try:
        value = orjson.loads(cell)
    except orjson.JSONDecodeError:
        raise ValueError(f"pictures are {cell[:60]!r}; give a path or a JSON list") from None
    return value if isinstance(value, list) else [value]


def _with_answer_beside(content: _Content, keys: Mapping[str, Any]) -> _Content:
    """A request with the recorded answer that stands beside what the user says, where no answer
    stands in its messages. An answer beside several turns may be that of any of them.
    """
    if content.answer is not None or content.later_turns:
        return content
    for name in ANSWERS:
        answer = keys.get(name)
        if isinstance(answer, str) and answer:
            return replace(content, answer=answer)
    return content


def user_says(text: str) -> tuple[Message, ...]:
    """A text as the only message of a request."""
    return (Message("user", (text,), 0),)


def _prompt(keys: Mapping[str, Any]) -> _Content:
    """A text or token ids."""
    prompt = keys["prompt"]
    if isinstance(prompt, list) and prompt and all(map(_is_token_id, prompt)):
        ids = np.array(prompt, np.int32)
        return _Content((Message("user", (ids,), len(ids)),))
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f'"prompt" is {str(prompt)[:60]!r}; give a text or a list of token ids')
    return _Content(user_says(prompt))


def _is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _chat(keys: Mapping[str, Any]) -> _Content | None:
    """Messages up to the last one of the user or of a tool. What follows that is the recorded
    answer, and messages that are not sent.
    """
    messages = list(_messages(keys, "messages", _OPENAI_NAMES))
    asking = [index for index, message in enumerate(messages) if _asks(message)]
    if not asking:
        return None
    last = asking[-1]
    answer = _answer_after(messages, last)
    following = [message for message in messages[last + 1 :] if _has_content(message)]
    return _Content(
        tuple(messages[: last + 1]),
        answer=answer,
        unsent_messages=len(following) if answer is None else len(following) - 1,
    )


def _share_gpt(keys: Mapping[str, Any]) -> _Content | None:
    """The user's first message, with the system's before it, and the recorded answer to it."""
    return _turn_by_turn(list(_messages(keys, "conversations", _SHAREGPT_NAMES)))


def _share_gpt_session(keys: Mapping[str, Any]) -> _Content | None:
    """All that the user says, turn by turn; with calls of tools, as they were recorded."""
    return _session(list(_messages(keys, "conversations", _SHAREGPT_NAMES)))


def _chat_session(keys: Mapping[str, Any]) -> _Content | None:
    """As ``_share_gpt_session``, of OpenAI's messages."""
    return _session(list(_messages(keys, "messages", _OPENAI_NAMES)))


def _session(messages: list[Message]) -> _Content | None:
    if any(message.recorded is not None for message in messages):
        return _as_recorded(messages)
    return _turn_by_turn(messages)


def _as_recorded(messages: list[Message]) -> _Content | None:
    """A request for each answer to the user or to a tool, and for what no answer follows. Each has
    all messages before it, those of the assistant too.
    """
    ends = [
        index + 1
        for index, message in enumerate(messages)
        if _asks(message) and (index + 1 == len(messages) or _is_answer(messages[index + 1]))
    ]
    if not ends:
        return None
    first = ends[0]
    later_turns: list[LaterTurn] = []
    for before, end in pairwise(ends):
        answer = _answer_after(messages, end - 1)
        later_turns.append(LaterTurn("", answer, recorded=tuple(messages[before:end])))
    last_answer = messages[ends[-1] : ends[-1] + 1]
    unsent = len(messages) - ends[-1] - len(last_answer)
    return _Content(
        tuple(messages[:first]),
        _answer_after(messages, first - 1),
        tuple(later_turns),
        unsent_messages=unsent,
    )


def _turn_by_turn(messages: list[Message]) -> _Content | None:
    """The user's first message, with the system's before it, and what the user says later. Other
    messages are not sent: answers that no message of the user asks for, and what the system says
    later.
    """
    of_user = [index for index, message in enumerate(messages) if _is_users(message)]
    if not of_user:
        return None
    first = of_user[0]
    with_content = [message for message in messages if _has_content(message)]
    sent = [
        message
        for message in messages[: first + 1]
        if message.role != "assistant" and _has_content(message)
    ]
    later_turns = [
        LaterTurn(messages[index].text, _answer_after(messages, index), messages[index].images)
        for index in of_user[1:]
    ]
    answer = _answer_after(messages, first)
    answers = [answer, *(turn.answer for turn in later_turns)]
    recorded = [text for text in answers if text is not None]
    used = len(sent) + len(later_turns) + len(recorded)
    return _Content(
        tuple(sent), answer, tuple(later_turns), unsent_messages=len(with_content) - used
    )


def _turns(keys: Mapping[str, Any]) -> _Content:
    """What a user says, text after text, as MT-Bench has it."""
    texts = keys["turns"]
    is_list = isinstance(texts, list) and bool(texts)
    if not is_list or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f'"turns" are {str(texts)[:60]!r}; give a list of texts')
    later_turns = tuple(LaterTurn(text, None) for text in texts[1:])
    return _Content(user_says(texts[0]), later_turns=later_turns)


def _has_content(message: Message) -> bool:
    return bool(message.text or message.images or message.recorded)


def _is_users(message: Message) -> bool:
    return message.role == "user" and _has_content(message)


def _asks(message: Message) -> bool:
    """Whether a message asks for an answer: it is the user's, or what a tool returned."""
    return message.role == "tool" or _is_users(message)


def _is_answer(message: Message) -> bool:
    return message.role == "assistant"


def _answer_after(messages: list[Message], index: int) -> str | None:
    """The answer that follows the message at ``index``; None where none was recorded."""
    if index + 1 < len(messages) and messages[index + 1].role == "assistant":
        return messages[index + 1].text or None
    return None


def _sizes(keys: Mapping[str, Any]) -> _Content:
    input_tokens = _whole_number(keys, "input_length")
    blocks = keys.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(map(_is_block, blocks)):
        raise ValueError(f"hash_ids are {str(blocks)[:60]!r}; give a list of whole numbers")
    if blocks and not block_sizes(input_tokens, len(blocks)):
        wanted = [
            f"{blocks_of(input_tokens, size):,} of {size} tokens ({name})"
            for size, name in BLOCK_TOKENS.items()
        ]
        raise ValueError(
            f"{len(blocks)} hash_ids for {input_tokens} tokens; there are {' or '.join(wanted)}"
        )
    return _Content((), input_tokens=input_tokens, blocks=tuple(blocks))


def _is_block(value: Any) -> bool:
    return type(value) is int and value >= 0


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Blocks that a prompt of this length has; the last may be shorter."""
    return -(-tokens // block_tokens)


def block_sizes(tokens: int, count: int) -> set[int]:
    """The sizes of blocks with which a prompt of ``tokens`` tokens has ``count`` blocks."""
    return {size for size in BLOCK_TOKENS if blocks_of(tokens, size) == count}


_CONTENTS: dict[str, Callable[[Mapping[str, Any]], _Content | None]] = {
    "prompt": _prompt,
    "messages": _chat,
    "conversations": _share_gpt,
    "turns": _turns,
    "input_length": _sizes,
}
# The same where all that a user says is sent.
_SESSIONS = {**_CONTENTS, "messages": _chat_session, "conversations": _share_gpt_session}


@dataclass(frozen=True, slots=True)
class _MessageNames:
    """The names that a format gives to the parts of a message."""

    speaker: str
    text: str
    speakers: Mapping[str, Speaker]


_OPENAI_NAMES = _MessageNames("role", "content", OPENAI_SPEAKERS)
_SHAREGPT_NAMES = _MessageNames("from", "value", SHAREGPT_SPEAKERS)


def _messages(keys: Mapping[str, Any], name: str, names: _MessageNames) -> Iterator[Message]:
    """The messages of the key ``name``. Raises ValueError for a message that cannot be sent."""
    entries = _list_of_objects(keys, name)
    if names is _SHAREGPT_NAMES:
        entries = with_calls_of_sharegpt(entries)
    for number, entry in enumerate(entries, start=1):
        written_speaker = str(entry.get(names.speaker))
        speaker = names.speakers.get(written_speaker)
        text, images = _text_and_images(entry.get(names.text))
        if text is None and speaker == "assistant" and entry.get("tool_calls"):
            text = ""  # an answer may be calls alone
        if speaker is None or not isinstance(text, str):
            raise ValueError(
                f'message {number} of "{name}": "{names.speaker}" is {written_speaker[:60]!r} and '
                f'"{names.text}" {str(text)[:60]!r}; give one of {", ".join(names.speakers)} and a '
                "text"
            )
        of_tools = MESSAGE_KEYS.get(speaker, ())
        unsent = [
            key
            for key, value in entry.items()
            if key not in (names.speaker, names.text, *of_tools)
            and not _changes_nothing(key)
            and not _is_blank(value)
            and not _asks_for_nothing(key, value)
        ]
        if unsent:
            raise ValueError(f'message {number} of "{name}": {_problem_of_message(unsent)}')
        if images and speaker != "user":
            raise ValueError(f'message {number} of "{name}": only users send images')
        if of_tools:
            try:
                with_tools = message_with_tools(speaker, entry, entry.get(names.text), text)
            except ValueError as error:
                raise ValueError(f'message {number} of "{name}": {error}') from None
            if with_tools is not None:
                yield with_tools
                continue
        yield Message(speaker, (text,), 0, images)


def _problem_of_message(unsent: Sequence[str]) -> str:
    """What is wrong with a message that has keys which are not sent, and what to do about it."""
    reason = _reason_to_refuse(unsent[0])
    refused = unsent[:1] if reason else [key for key in unsent if not _reason_to_refuse(key)]
    shown = [key[:60] for key in refused]
    verb, them = ("is", "it") if len(shown) == 1 else ("are", "them")
    return (
        f"{', '.join(map(repr, shown))} {verb} not sent: {reason or 'only its role and its text are'}; "
        f"to send messages without {them}, give 'leave_out: [{', '.join(shown)}]' in 'columns'"
    )


def _unused_in_messages(messages: Any) -> frozenset[str]:
    """The keys of messages that change no request; none of what is no list of messages."""
    unused: set[str] = set()
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        for key, value in message.items():
            is_unknown = key not in _MESSAGE_PARTS and _reason_to_refuse(key) is None
            if _changes_nothing(key) or (_is_blank(value) and is_unknown):
                unused.add(key)
    return frozenset(unused)


def without_keys_of_messages(
    keys: Mapping[str, Any], left_out: Collection[str]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The keys of an entry whose messages have none of the keys that are left out, and those of
    them that they had.
    """
    kept = with_flat_messages(keys)
    found: set[str] = set()
    left_out = {*left_out} - _MESSAGE_TEXTS
    for name in _MESSAGE_LISTS:
        messages = kept.get(name)
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            continue
        found |= {key for message in messages for key in message if key in left_out}
        kept[name] = [
            {key: value for key, value in message.items() if key not in left_out}
            for message in messages
        ]
    return kept, frozenset(found)


def _list_of_objects(keys: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    entries = keys[name]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'"{name}" is {str(entries)[:60]!r}; give a list of objects')
    return entries


def _text_and_images(content: Any) -> tuple[Any, tuple[bytes, ...]]:
    """The text of a content that OpenAI's API writes as a list of parts, and its pictures as data
    URLs; other contents as they are. Raises ValueError for a picture elsewhere.
    """
    if not isinstance(content, list):
        return content, ()
    texts: list[str] = []
    images: list[bytes] = []
    for written_part in content:
        if not isinstance(written_part, dict):
            return content, ()
        # in Parquet every part has the keys of all
        part = {key: value for key, value in written_part.items() if value is not None}
        kind = part.get("type")
        if kind == "image" and part.keys() == {"type"}:
            raise ValueError(
                "a picture stands in its content without its data: write the content as a text, and "
                "give the pictures as 'images' of 'columns'"
            )
        if kind == "text" and part.keys() == {"type", "text"} and isinstance(part["text"], str):
            texts.append(part["text"])
        elif kind == "image_url" and part.keys() <= {"type", "image_url"}:
            images.append(_data_url_part(part.get("image_url")))
        else:
            return content, ()
    return "".join(texts), tuple(images)


def _data_url_part(image_url: Any) -> bytes:
    url = image_url.get("url") if isinstance(image_url, dict) else None
    if not isinstance(url, str) or not url.startswith("data:"):
        raise ValueError(
            f"an image is at {str(url)[:60]!r}: images are sent within the request, as data URLs"
        )
    return image_url_part(url)


def _whole_number(keys: Mapping[str, Any], name: str) -> int:
    value = keys[name]
    if type(value) is int and 1 <= value <= MOST_TOKENS:
        return value
    raise ValueError(f"{name} is {value!r}; give a whole number from 1 to {MOST_TOKENS}")
