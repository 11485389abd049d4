"""One JSON object of a prompt file as a request.

Every key of an object is one of four things: what is sent, a setting of this request (the length of
its answer, its sampling), something that changes no request (an id, a category), or a problem. None
is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.spec.load import MOST_TOKENS
from orchestrator.workloads.files import EntryError
from orchestrator.workloads.kind import Message, Speaker

# Names of speakers in "messages", as OpenAI's API has them, and in "conversations".
OPENAI_SPEAKERS: dict[str, Speaker] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}
SHAREGPT_SPEAKERS: dict[str, Speaker] = {
    **OPENAI_SPEAKERS,
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
}
# Tokens that each of a trace's hash_ids stands for: Mooncake's traces have blocks of 512, Bailian's
# (Qwen) of 16. All rows of a file have blocks of one size.
BLOCK_TOKENS = {512: "Mooncake", 16: "Bailian"}

# The length of a request's answer, as the programs that write such files call it.
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
# Keys that would change the request, and why they are not sent. The word before * begins a name.
_NO_PICTURES = "only text is sent"
_OWN_FIELD = "this program sets it itself"
_FORMAT = "answers are not held to a format"
_TOOLS = "tools and their calls are not sent"
REFUSED = {
    "model": "every request goes to the model that is measured",
    "image*": _NO_PICTURES,
    "audio*": _NO_PICTURES,
    "video*": _NO_PICTURES,
    "multi_modal*": _NO_PICTURES,
    "tool*": _TOOLS,
    "function*": _TOOLS,
    "parallel_tool_calls": _TOOLS,
    "response_format": _FORMAT,
    "guided_*": _FORMAT,
    "structured_outputs": _FORMAT,
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
    "ignore_eos": _OWN_FIELD,
    "min_tokens": _OWN_FIELD,
    "adapter*": "adapters are not asked for",
    "lora*": "adapters are not asked for",
    "system": 'give it as a message of "messages"',
    "system_prompt": 'give it as a message of "messages"',
    "prefix": "write it into the prompt",
    "suffix": "text is not inserted",
    "delay": "pauses between turns are not replayed",
    "think_time": "pauses between turns are not replayed",
    "priority": "requests have no priorities",
}
# Values of keys above that ask for nothing but what is done anyway.
_AS_ALWAYS: tuple[tuple[str, object], ...] = (("n", 1), ("best_of", 1), ("stream", True))
# Keys of other programs' files, where no key of ours is there.
_OTHER_FILES = {
    "body": 'it is a line of an OpenAI batch: write its "body" as the line, without "model"',
    "requests": "it is a session of an agent's trace, which is not read",
    "turns": 'write its turns as "messages"',
    "prompt_0": 'write its turns as "messages"',
    "text": 'name its "text" "prompt"',
    "question": 'name its "question" "prompt"',
    "instruction": 'name its "instruction" "prompt"',
    "input": 'name its "input" "prompt"',
    "query": 'name its "query" "prompt"',
    "content": 'name its "content" "prompt"',
}


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """One request of the file. ``output_tokens``: None where the line gives none; then the
    workload's apply.

    ``messages`` is empty for a trace: ``input_tokens`` tokens are made for it, alike where
    ``blocks`` are equal; each stands for ``block_tokens``.
    """

    messages: tuple[Message, ...]
    output_tokens: int | None = None
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()
    block_tokens: int = max(BLOCK_TOKENS)
    answer: str | None = field(default=None, compare=False)  # as it was recorded; None: it was not
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the request's body
    later_turns: bool = field(default=False, compare=False)  # the user says more, which is not sent
    unused: frozenset[str] = field(default=frozenset(), compare=False)  # keys that change nothing


def read_entry(entry: Any, shown: object) -> PromptEntry | None:
    """One entry as a PromptEntry; None where its user says nothing. ``shown``: the entry as the file has
    it.

    Raises EntryError with everything that is wrong with it.
    """
    given = entry if isinstance(entry, dict) else {}
    contents = [name for name in _CONTENTS if given.get(name) is not None]
    contents = contents or [name for name in _CONTENTS if name in given]
    if not contents:
        names = " or ".join(f'"{name}"' for name in _CONTENTS)
        remedy = next((text for name, text in _OTHER_FILES.items() if name in given), None)
        more = f"; {remedy}" if remedy else ""
        raise EntryError([f"{str(shown)[:60]!r} is not an object with {names}{more}"])
    problems: list[str] = []
    if len(contents) > 1:
        both = " and ".join(f'"{name}"' for name in contents)
        problems.append(f"{both} both say what is sent: give one of them")
    unused = _unused_keys(given, problems)
    output_tokens = _answer_length(given, problems)
    try:
        content = _CONTENTS[contents[0]](given)
        if content is None and "timestamp" in given:
            raise ValueError(
                "its user says nothing: without it, all prompts below it would be sent at the "
                "wrong times"
            )
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise EntryError(problems)
    if content is None:
        return None
    fields = {name: given[name] for name in SAMPLING if given.get(name) is not None}
    return PromptEntry(
        messages=content.messages,
        output_tokens=output_tokens,
        input_tokens=content.input_tokens,
        blocks=content.blocks,
        answer=content.answer,
        fields=fields,
        later_turns=content.later_turns,
        unused=unused,
    )


def _unused_keys(given: Mapping[str, Any], problems: list[str]) -> frozenset[str]:
    """The keys that change no request. Adds those that would, and those that nobody knows."""
    unused = []
    for name, value in given.items():
        if name in _CONTENTS or name in ANSWER_LENGTHS or name in SAMPLING or name == "hash_ids":
            continue
        if name in UNUSED or name in ANSWERS or name.startswith("_"):
            unused.append(name)
            continue
        if _asks_for_nothing(name, value):
            continue
        why = _why_refused(name)
        if why is None:
            why = "it is not known; a key that changes no request may begin with _"
        problems.append(f"{name[:60]!r} is not sent: {why}")
    if given.get("hash_ids") and "input_length" not in given:
        problems.append("'hash_ids' belong to 'input_length', which is missing")
    return frozenset(unused)


def _asks_for_nothing(name: str, value: Any) -> bool:
    if value is None or value is False or value in ("", [], {}):
        return name != "stream" or value is not False
    return any(name == other and value == usual for other, usual in _AS_ALWAYS)


def _why_refused(name: str) -> str | None:
    for key, why in REFUSED.items():
        if name == key or (key.endswith("*") and name.startswith(key[:-1])):
            return why
    return None


def _answer_length(given: Mapping[str, Any], problems: list[str]) -> int | None:
    """The length that the entry gives its answer; None where it gives none."""
    lengths: dict[str, int] = {}
    for name in ANSWER_LENGTHS:
        if given.get(name) is None:
            continue
        try:
            lengths[name] = _whole(given, name)
        except ValueError as error:
            problems.append(str(error))
    if len(set(lengths.values())) > 1:
        each = " and ".join(f"{name} {length}" for name, length in lengths.items())
        problems.append(f"{each} are two lengths of one answer: give one")
    return next(iter(lengths.values()), None)


# -- what is sent


@dataclass(frozen=True, slots=True)
class _Content:
    messages: tuple[Message, ...]
    answer: str | None = None
    later_turns: bool = False
    input_tokens: int = 0
    blocks: tuple[int, ...] = ()


def user_says(text: str) -> tuple[Message, ...]:
    """A text as the only message of a request."""
    return (Message("user", (text,), 0),)


def _prompt(given: Mapping[str, Any]) -> _Content:
    text = given["prompt"]
    if not isinstance(text, str) or not text:
        raise ValueError(f'"prompt" is {str(text)[:60]!r}; give a text')
    recorded = (given.get(name) for name in ANSWERS)
    answers = (answer for answer in recorded if isinstance(answer, str) and answer)
    return _Content(user_says(text), answer=next(answers, None))


def _chat(given: Mapping[str, Any]) -> _Content | None:
    """Up to the user's last message: what follows is an answer that was given then."""
    messages = list(_messages(given, "messages", "role", "content", OPENAI_SPEAKERS))
    last = max(
        (index for index, message in enumerate(messages) if _is_users(message)),
        default=None,
    )
    if last is None:
        return None
    return _Content(tuple(messages[: last + 1]), answer=_answer_after(messages, last))


def _share_gpt(given: Mapping[str, Any]) -> _Content | None:
    """The user's first message, with the system's before it, and the recorded answer to it."""
    messages = list(_messages(given, "conversations", "from", "value", SHAREGPT_SPEAKERS))
    first = next((index for index, message in enumerate(messages) if _is_users(message)), None)
    if first is None:
        return None
    sent = [
        message for message in messages[: first + 1] if message.role != "assistant" and message.text
    ]
    later = any(_is_users(message) for message in messages[first + 1 :])
    return _Content(tuple(sent), answer=_answer_after(messages, first), later_turns=later)


def _is_users(message: Message) -> bool:
    return message.role == "user" and bool(message.text)


def _answer_after(messages: list[Message], index: int) -> str | None:
    """The answer that follows the message at ``index``; None where none was recorded."""
    if index + 1 < len(messages) and messages[index + 1].role == "assistant":
        return messages[index + 1].text or None
    return None


def _sizes(given: Mapping[str, Any]) -> _Content:
    input_tokens = _whole(given, "input_length")
    blocks = given.get("hash_ids") or []
    if not isinstance(blocks, list) or not all(
        type(block) is int and block >= 0 for block in blocks
    ):
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
    "input_length": _sizes,
}


def _messages(
    given: Mapping[str, Any], name: str, role: str, text: str, speakers: dict[str, Speaker]
) -> Iterator[Message]:
    entries = given[name]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'"{name}" is {str(entries)[:60]!r}; give a list of objects')
    for number, entry in enumerate(entries, start=1):
        speaker, said = speakers.get(str(entry.get(role))), _joined(entry.get(text))
        if speaker is None or not isinstance(said, str):
            raise ValueError(
                f'message {number} of "{name}": "{role}" is {str(entry.get(role))[:60]!r} and '
                f'"{text}" {str(said)[:60]!r}; give one of {", ".join(speakers)} and a text'
            )
        for key, value in entry.items():
            if key in (role, text) or key in UNUSED or key.startswith("_"):
                continue
            if not _asks_for_nothing(key, value):
                why = _why_refused(key) or "only its role and its text are"
                raise ValueError(f'message {number} of "{name}": {key[:60]!r} is not sent: {why}')
        yield Message(speaker, (said,), 0)


def _joined(content: Any) -> Any:
    """The text of a content that OpenAI's API writes as a list of parts; any other as it is."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return content
        if {*part} - {"type", "text"} or not isinstance(part.get("text"), str):
            return content
    return "".join(part["text"] for part in content)


def _whole(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if type(value) is int and 1 <= value <= MOST_TOKENS:
        return value
    raise ValueError(f"{name} is {value!r}; give a whole number from 1 to {MOST_TOKENS}")
