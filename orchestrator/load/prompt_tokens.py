"""The tokens of prompts that are texts of a file, as the engine counts them.

They are counted when the load is over, each prompt of the file once. Chats are written by the
model's own template first, so that what a cache finds again is known from the first token on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from orchestrator.base.errors import InputError
from orchestrator.load.point import LoadPoint
from orchestrator.load.wire.openai import chat_messages
from orchestrator.workloads.content import load_tokenizer
from orchestrator.workloads.kind import Message
from orchestrator.workloads.segments import Segment

# Of different prompts; a core counts about 2 million a second, and the point waits for it.
MOST_CHARACTERS = 20_000_000
CHAT = "openai_chat"  # the wire whose messages a template writes


class UncountedError(Exception):
    """The tokens of a point's prompts cannot be counted here after its load: they are too many, or
    the model's template does not write a chat.
    """


class PromptTokens:
    """Counts the tokens of one point's prompts. ``block_tokens``: of the engine's prefix cache."""

    def __init__(self, tokenizer: Any, template: Any, block_tokens: int) -> None:
        """``template``: a tokenizer of transformers, which writes chats; None: prompts are texts."""
        self._tokenizer = tokenizer
        self._template = template
        self._block_tokens = block_tokens
        self._characters_left = MOST_CHARACTERS

    @classmethod
    def of(cls, point: LoadPoint) -> PromptTokens | None:
        """None where there is no tokenizer, no template of chats, or no prefix cache."""
        if point.tokenizer is None or point.cache_block_tokens is None:
            return None
        try:
            tokenizer = load_tokenizer(point.tokenizer)
        except InputError:
            return None
        template = None
        if point.dialect.wire == CHAT:
            template = _chat_template(point.tokenizer)
            if template is None:
                return None
        return cls(tokenizer, template, point.cache_block_tokens)

    def segments(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[Segment]:
        """A prompt as one segment for each block of its tokens. Raises UncountedError."""
        if self._template is None:
            text = "".join(message.text for message in messages)
        else:
            text = self._chat(messages, tools)
        self._characters_left -= len(text)
        if self._characters_left < 0:
            raise UncountedError(f"more than {MOST_CHARACTERS:,} characters")
        # a template writes the special tokens itself
        encoding = self._tokenizer.encode(text, add_special_tokens=self._template is None)
        ids = np.array(encoding.ids, np.int32)
        blocks = range(0, len(ids), self._block_tokens)
        pieces = [ids[begin : begin + self._block_tokens] for begin in blocks]
        return [Segment(piece.tobytes(), len(piece)) for piece in pieces]

    def _chat(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        written = orjson.loads(orjson.dumps(chat_messages(messages)))
        for message in written:
            _as_servers_read(message)
        try:
            text: str = self._template.apply_chat_template(
                written, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template is a program of the model's makers
            raise UncountedError(f"the chat template: {error}") from error
        return text


def _as_servers_read(message: dict[str, Any]) -> None:
    """Puts a message in the form in which servers give it to templates: its content is a text, and
    the arguments of calls are an object, empty where they are no JSON of one.
    """
    content = message["content"]
    if content is None:
        message["content"] = ""
    elif isinstance(content, list):
        message["content"] = "\n".join(part.get("text", "") for part in content)
    for call in message.get("tool_calls") or ():
        try:
            arguments = orjson.loads(call["function"]["arguments"])
        except orjson.JSONDecodeError:
            arguments = {}
        call["function"]["arguments"] = arguments if isinstance(arguments, Mapping) else {}


def _chat_template(path: str) -> Any:
    """What writes the chats of a model, from the folder of its tokenizer; None: it has none."""
    from transformers import AutoTokenizer  # takes seconds

    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # its files are of no kind that is known
    return tokenizer if tokenizer.chat_template else None
