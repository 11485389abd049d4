"""How generated tokens look on the wire: one class per API, each turning token numbers into the bytes of events.

``event(index, last)`` gives the payload of the ``index``-th token (from 0), ``close()`` what follows the last one,
``whole()`` the body of an answer that is not streamed. Everything that does not change is built before the first token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.engines.emulator.http import dumps

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its about "
    "than into them can only other time new"
)
WORDS = tuple(f" {word}" for word in _COMMON.split())


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, understood: what every API's answer needs."""

    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    stream: bool = False
    finish_reason: str = "length"
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    details: bool = False
    vocab_size: int = 32000

    def word(self, index: int) -> str:
        """Text of the index-th token."""
        return WORDS[(index * 7 + len(self.request_id) + self.prompt_tokens) % len(WORDS)]

    def token_id(self, index: int) -> int:
        """Id of the index-th token; the same text always has the same id."""
        return WORDS.index(self.word(index)) % self.vocab_size

    def text(self) -> str:
        return "".join(self.word(index) for index in range(self.output_tokens))

    def usage(self, completion_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens} if self.cached_tokens else None,
        }


class Answer(Protocol):
    """One API's way to give out tokens."""

    asked: Asked

    def event(self, index: int, last: bool) -> bytes: ...

    def close(self) -> bytes: ...

    def whole(self) -> bytes: ...


def sse(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % payload


class OpenAI:
    """``/v1/completions`` and ``/v1/chat/completions`` as vLLM writes them."""

    def __init__(self, asked: Asked, chat: bool) -> None:
        self.asked, self._chat = asked, chat
        self._created = int(time.time())
        kind = "chat.completion" if chat else "text_completion"
        self._object = kind + ".chunk" if chat and asked.stream else kind
        envelope = dumps(self._envelope())[:-1] + b',"choices":[{"index":0,'
        self._head = envelope + (b'"delta":{"content":"' if chat else b'"text":"')
        self._middle = (b'"},' if chat else b'",') + b'"logprobs":null,"finish_reason":'
        self._usage_head = b',"usage":{"prompt_tokens":%d,"total_tokens":' % asked.prompt_tokens

    def _envelope(self) -> dict[str, Any]:
        asked = self.asked
        return {"id": asked.request_id, "object": self._object, "created": self._created, "model": asked.model}

    def event(self, index: int, last: bool) -> bytes:
        asked = self.asked
        reason = b'"%b"' % asked.finish_reason.encode() if last else b"null"
        ids = b',"token_ids":[%d]' % asked.token_id(index) if asked.return_token_ids else b""
        usage = b""
        if asked.continuous_usage:
            total = asked.prompt_tokens + index + 1
            usage = b'%b%d,"completion_tokens":%d}' % (self._usage_head, total, index + 1)
        word = asked.word(index).encode()
        payload = sse(b"".join((self._head, word, self._middle, reason, ids, b"}]", usage, b"}")))
        return self._role() + payload if self._chat and index == 0 else payload

    def _role(self) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return sse(dumps(self._envelope() | {"choices": [choice]}))

    def close(self) -> bytes:
        usage = b""
        if self.asked.include_usage:
            usage = sse(dumps(self._envelope() | {"choices": [], "usage": self.asked.usage(self.asked.output_tokens)}))
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> bytes:
        asked = self.asked
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": asked.finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": asked.text()}
        else:
            choice["text"] = asked.text()
        if asked.return_token_ids:
            choice["token_ids"] = [asked.token_id(index) for index in range(asked.output_tokens)]
        return dumps(self._envelope() | {"choices": [choice], "usage": asked.usage(asked.output_tokens)})


class Tgi:
    """``/generate`` and ``/generate_stream`` as text-generation-inference 3.3 writes them: one token per event."""

    def __init__(self, asked: Asked, in_list: bool = False) -> None:
        self.asked, self._in_list = asked, in_list

    def _token(self, index: int) -> dict[str, Any]:
        asked = self.asked
        return {"id": asked.token_id(index), "text": asked.word(index), "logprob": -1.0, "special": False}

    def event(self, index: int, last: bool) -> bytes:
        asked = self.asked
        payload: dict[str, Any] = {
            "index": index + 1,
            "token": self._token(index),
            "generated_text": None,
            "details": None,
        }
        if last:
            payload["generated_text"] = asked.text()
            payload["details"] = {
                "finish_reason": "length",
                "generated_tokens": asked.output_tokens,
                "seed": None,
                "input_length": asked.prompt_tokens,
            }
        return b"data:%b\n\n" % dumps(payload)

    def close(self) -> bytes:
        return b""

    def whole(self) -> bytes:
        asked = self.asked
        answer: dict[str, Any] = {"generated_text": asked.text()}
        if asked.details:
            answer["details"] = {
                "finish_reason": "length",
                "generated_tokens": asked.output_tokens,
                "seed": None,
                "prefill": [],
                "tokens": [self._token(index) for index in range(asked.output_tokens)],
            }
        return dumps([answer] if self._in_list else answer)
