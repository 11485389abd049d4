"""The tokens of prompts that are texts, as the engine counts them.

They are counted when the load is over. Chats are written by the model's own template first, so that
what a cache finds again is known from the first token on.
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
from orchestrator.workloads.kind import Message, TokenIds

# Of all prompts, those of a file once; a core counts about 2 million a second, and the point waits for it.
MOST_CHARACTERS = 20_000_000
CHAT = "openai_chat"  # the wire whose messages a template writes
PICTURE = "\ue000"  # stands for a picture in a text: a character that no text has (private use)
NO_TOKENIZER = "the client has no tokenizer of the model to count prompts with"


class UncountedError(Exception):
    """The tokens of a point's prompts cannot be counted here after its load. Its text says why, as
    the end of a sentence.
    """


class PromptTokens:
    """Counts the tokens of one point's prompts. ``characters``: of all that were counted."""

    def __init__(self, tokenizer: Any, template: Any) -> None:
        """``template``: a tokenizer of transformers, which writes chats; None: prompts are texts."""
        self._tokenizer = tokenizer
        self._template = template
        self.characters = 0

    @classmethod
    def of(cls, point: LoadPoint) -> PromptTokens:
        """Raises UncountedError where there is no tokenizer, or no template of chats."""
        if point.tokenizer is None:
            raise UncountedError(NO_TOKENIZER)
        try:
            tokenizer = load_tokenizer(point.tokenizer)
        except InputError as error:
            raise UncountedError(f"{NO_TOKENIZER} ({error})") from None
        template = None
        if point.dialect.wire == CHAT:
            template = _chat_template(point.tokenizer)
            if template is None:
                raise UncountedError(
                    "the model's tokenizer has no template here, which would say how a chat is written"
                )
        return cls(tokenizer, template)

    def pieces(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[TokenIds]:
        """The tokens of a prompt: those before its first picture, those between each two pictures,
        and those after the last one. Raises UncountedError.
        """
        if self._template is None:
            texts = ["".join(message.text for message in messages)]
        else:
            texts = self._chat(messages, tools)
        return [self._ids(text, with_special=self._template is None) for text in texts]

    def of_text(self, text: str) -> TokenIds:
        """The tokens of a text within a prompt. Raises UncountedError."""
        return self._ids(text, with_special=False)

    def too_long(self) -> UncountedError:
        return UncountedError(
            f"prompts have more than {MOST_CHARACTERS:,} characters, too many to count after a load"
        )

    def _ids(self, text: str, with_special: bool) -> TokenIds:
        self.characters += len(text)
        if self.characters > MOST_CHARACTERS:
            raise self.too_long()
        # a template writes the special tokens itself
        encoding = self._tokenizer.encode(text, add_special_tokens=with_special)
        return np.array(encoding.ids, np.int32)

    def _chat(self, messages: Sequence[Message], tools: Sequence[Any]) -> list[str]:
        """The text of a chat, cut at its pictures. Some templates take a content with pictures as a
        text, some as a list of parts.
        """
        pictures = sum(len(message.images) for message in messages)
        problem = "its pictures have no place in it"
        for as_parts in (False, True) if pictures else (False,):
            written = [_as_servers_read(message, as_parts) for message in messages]
            try:
                text: str = self._template.apply_chat_template(
                    written, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
                )
            except Exception as error:  # a template is a program of the model's makers
                problem = str(error)
                continue
            texts = text.split(PICTURE)
            if len(texts) == pictures + 1:
                return texts
        raise UncountedError(f"the model's template does not write the chat: {problem}")


def _as_servers_read(message: Message, as_parts: bool) -> dict[str, Any]:
    """A message in the form in which servers give it to templates: its content is a text, and the
    arguments of calls are an object, empty where they are no JSON of one. Before the text of one
    with pictures stands PICTURE for each. ``as_parts``: the content of such a message is a list.
    """
    if message.images:
        text = PICTURE * len(message.images) + message.text
        content: Any = [{"type": "text", "text": text}] if as_parts else text
        return {"role": message.role, "content": content}
    written: dict[str, Any] = orjson.loads(orjson.dumps(chat_messages([message])))[0]
    content = written["content"]
    if content is None:
        written["content"] = ""
    elif isinstance(content, list):
        written["content"] = "\n".join(part.get("text", "") for part in content)
    for call in written.get("tool_calls") or ():
        try:
            arguments = orjson.loads(call["function"]["arguments"])
        except orjson.JSONDecodeError:
            arguments = {}
        call["function"]["arguments"] = arguments if isinstance(arguments, Mapping) else {}
    return written


def _chat_template(path: str) -> Any:
    """What writes the chats of a model, from the folder of its tokenizer; None: it has none."""
    from transformers import AutoTokenizer  # takes seconds

    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception:  # its files are of no known kind, or need further packages
        return None
    return tokenizer if tokenizer.chat_template else None
