"""The three APIs: what a request's body asks, checked the way the engines do, and how its tokens
look on the wire.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.emulator.batch import refusal
from orchestrator.emulator.flags import Options
from orchestrator.emulator.model import Replica
from orchestrator.emulator.prefix import Prompt

Json = dict[str, Any]
_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so "
    "up said what its about "
    "than into them can only other time new"
)
WORDS = tuple(f" {word}" for word in _COMMON.split())


def four_bytes(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand: one for every four bytes."""
    return max(1, len(text.encode()) // 4)


class Refused(Exception):
    """The request is not served. ``kind`` is the error type of the answer; "": its body was not
    even understood, and the answer is plain text.
    """

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        self.status, self.kind = status, kind
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served: how the process was started, and what follows from it."""

    options: Options
    replica: Replica
    vocab_size: int
    count_tokens: Callable[[str], int] = four_bytes

    def check(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raises Refused for a request that can never run."""
        if output_tokens < 1:
            raise Refused(
                f"the number of tokens to generate must be at least 1, got {output_tokens}"
            )
        if why := refusal(self.replica.limits, prompt_tokens, output_tokens):
            raise Refused(why)


@dataclass
class Answer(ABC):
    """One request, understood, and how one API gives out its tokens."""

    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    prompt: Prompt = b""  # for the prefix cache, with the salt
    vocab_size: int = 32000
    stream: bool = False
    cache_salt: str = ""
    cached_tokens: int = 0  # set when the prefix cache was asked
    received: bool = False  # the KV cache of its prompt comes from another replica
    finish_reason: str = "length"

    @abstractmethod
    def event(self, index: int, last: bool) -> bytes:
        """Payload of the index-th token of a stream, from 0."""

    def close(self) -> bytes:
        """What follows the last token of a stream."""
        return b""

    @abstractmethod
    def whole(self) -> object:
        """JSON of an answer that is not streamed."""

    def word(self, index: int) -> str:
        """Text of the index-th token."""
        return WORDS[(index * 7 + len(self.request_id) + self.prompt_tokens) % len(WORDS)]

    def token_id(self, index: int) -> int:
        """Id of the index-th token; the same text always has the same id."""
        return WORDS.index(self.word(index)) % self.vocab_size

    def said(self) -> Prompt:
        """What follows the prompt where a later prompt holds this answer."""
        if isinstance(self.prompt, bytes):
            return self.text().encode()
        return [self.token_id(index) for index in range(self.output_tokens)]

    def text(self) -> str:
        return "".join(self.word(index) for index in range(self.output_tokens))


def sse(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % payload


@dataclass
class OpenAIAnswer(Answer):
    """``/v1/completions`` and ``/v1/chat/completions`` as vLLM writes them."""

    chat: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    gives: bool = False  # the KV cache of its prompt to another replica

    def __post_init__(self) -> None:
        """Builds what does not change before the first token."""
        kind = "chat.completion" if self.chat else "text_completion"
        kind += ".chunk" if self.chat and self.stream else ""
        self._envelope = {
            "id": self.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }
        envelope = orjson.dumps(self._envelope)[:-1] + b',"choices":[{"index":0,'
        self._head = envelope + (b'"delta":{"content":"' if self.chat else b'"text":"')
        self._middle = (b'"},' if self.chat else b'",') + b'"logprobs":null,"finish_reason":'
        self._usage_head = b',"usage":{"prompt_tokens":%d,"total_tokens":' % self.prompt_tokens

    def said(self) -> Prompt:
        return b"\nassistant: " + self.text().encode() if self.chat else super().said()

    def event(self, index: int, last: bool) -> bytes:
        reason = b'"%b"' % self.finish_reason.encode() if last else b"null"
        ids = b',"token_ids":[%d]' % self.token_id(index) if self.return_token_ids else b""
        usage = b""
        if self.continuous_usage:
            total = self.prompt_tokens + index + 1
            usage = b'%b%d,"completion_tokens":%d}' % (self._usage_head, total, index + 1)
        word = self.word(index).encode()
        payload = sse(b"".join((self._head, word, self._middle, reason, ids, b"}]", usage, b"}")))
        return self._role() + payload if self.chat and index == 0 else payload

    def _role(self) -> bytes:
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return sse(orjson.dumps(self._envelope | {"choices": [choice]}))

    def close(self) -> bytes:
        usage = (
            sse(orjson.dumps(self._envelope | {"choices": [], "usage": self._usage()}))
            if self.include_usage
            else b""
        )
        return usage + b"data: [DONE]\n\n"

    def whole(self) -> object:
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": self.finish_reason}
        choice |= (
            {"message": {"role": "assistant", "content": self.text()}}
            if self.chat
            else {"text": self.text()}
        )
        if self.return_token_ids:
            choice["token_ids"] = [self.token_id(index) for index in range(self.output_tokens)]
        said: Json = {"choices": [choice], "usage": self._usage()}
        if self.gives:  # as vLLM's NixlConnector tells where to fetch it, through the router
            said["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "remote_engine_id": self.request_id,
            }
        return self._envelope | said

    def _usage(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens}
            if self.cached_tokens
            else None,
        }


@dataclass
class TgiAnswer(Answer):
    """``/generate`` and ``/generate_stream`` as text-generation-inference 3.3 writes them: one
    token per event.
    """

    details: bool = False
    in_list: bool = False

    def _token(self, index: int) -> Json:
        return {
            "id": self.token_id(index),
            "text": self.word(index),
            "logprob": -1.0,
            "special": False,
        }

    def _details(self) -> Json:
        return {
            "finish_reason": self.finish_reason,
            "generated_tokens": self.output_tokens,
            "seed": None,
        }

    def event(self, index: int, last: bool) -> bytes:
        payload: Json = {
            "index": index + 1,
            "token": self._token(index),
            "generated_text": None,
            "details": None,
        }
        if last:
            details = self._details() | {"input_length": self.prompt_tokens}
            payload |= {"generated_text": self.text(), "details": details}
        return sse(orjson.dumps(payload))

    def whole(self) -> object:
        answer: Json = {"generated_text": self.text()}
        if self.details:
            tokens = [self._token(index) for index in range(self.output_tokens)]
            answer["details"] = self._details() | {"prefill": [], "tokens": tokens}
        return [answer] if self.in_list else answer


def parse_completion(body: bytes, serving: Serving) -> OpenAIAnswer:
    """``/v1/completions``. Raises Refused."""
    value = _openai_body(body, serving)
    tokens, prompt = _prompt(value.get("prompt"), serving)
    return _openai(value, serving, tokens, _whole(value, "max_tokens", 16), prompt, chat=False)


def parse_chat(body: bytes, serving: Serving) -> OpenAIAnswer:
    """``/v1/chat/completions``. Every message costs 4 tokens beside its text, as chat templates do.
    Raises Refused.
    """
    value = _openai_body(body, serving)
    messages = value.get("messages")
    if (
        not isinstance(messages, list)
        or not all(isinstance(message, dict) for message in messages)
        or not messages
    ):
        raise Refused("messages must be a list of objects that is not empty")
    text = "\n".join(
        f"{message.get('role')}: {_content(message.get('content'))}" for message in messages
    )
    tokens = serving.count_tokens(text) + 4 * len(messages)
    given = _whole(value, "max_completion_tokens", 0) or _whole(value, "max_tokens", 0)
    room = serving.replica.limits.max_model_len - tokens
    limit = given or max(1, min(serving.options.profile.default_output_tokens, room))
    answer = _openai(value, serving, tokens, limit, text.encode(), chat=True)
    answer.finish_reason = "length" if given else "stop"
    return answer


def parse_tgi(body: bytes, serving: Serving, stream: bool | None) -> TgiAnswer:
    """TGI's native body; ``stream=None`` takes it from the body and answers with a list of one.
    Raises Refused.
    """
    try:
        value = _object(body)
    except Refused as refused:
        raise Refused(f"Failed to parse the request body as JSON: {refused}", 400, "") from None
    text, parameters = value.get("inputs"), value.get("parameters")
    if not isinstance(text, str) or not isinstance(parameters, dict | None):
        which = "parameters" if isinstance(text, str) else "inputs"
        raise Refused(
            f"Failed to deserialize the JSON body into the target type: {which}: invalid type",
            422,
            "",
        )
    try:
        if not text:
            raise Refused("`inputs` cannot be empty")
        parameters = parameters or {}
        tokens, limit = serving.count_tokens(text), _whole(parameters, "max_new_tokens", 100)
        serving.check(tokens, limit)
    except Refused as refused:
        raise Refused(f"Input validation error: {refused}", 422, "validation") from None
    return TgiAnswer(
        *(
            uuid.uuid4().hex,
            serving.options.model,
            tokens,
            limit,
            text.encode(),
            serving.vocab_size,
        ),
        stream=bool(value.get("stream")) if stream is None else stream,
        details=bool(parameters.get("details")),
        in_list=stream is None,
    )


def _object(body: bytes) -> Json:
    try:
        value = orjson.loads(body)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refused("the body is not a JSON object")
    return value


def _openai_body(body: bytes, serving: Serving) -> Json:
    value = _object(body)
    model = value.get("model")
    if model is not None and model != serving.options.model:
        raise Refused(f"The model `{model}` does not exist.", 404, "NotFoundError")
    if _whole(value, "n", 1) != 1 or value.get("echo") or value.get("best_of", 1) not in {None, 1}:
        raise Refused("the emulator gives one completion per request, without echo")
    return value


def _openai(
    value: Json, serving: Serving, tokens: int, limit: int, prompt: Prompt, chat: bool
) -> OpenAIAnswer:
    serving.check(tokens, limit)
    options = value.get("stream_options") or {}
    if options and not value.get("stream"):
        raise Refused("stream_options is only allowed when stream is true")
    include, salt = bool(options.get("include_usage")), value.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise Refused("Parameter 'cache_salt' must be a non-empty string if provided.")
    role, transfer = serving.options.role, value.get("kv_transfer_params") or {}
    request_id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
    return OpenAIAnswer(
        *(request_id, serving.options.model, tokens, limit, prompt, serving.vocab_size),
        stream=bool(value.get("stream")),
        cache_salt=salt or "",
        chat=chat,
        include_usage=include,
        continuous_usage=include and bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(value.get("return_token_ids")),
        gives=role == "prefill" and bool(transfer.get("do_remote_decode")),
        received=role == "decode" and bool(transfer.get("do_remote_prefill")),
    )


def _prompt(prompt: Any, serving: Serving) -> tuple[int, Prompt]:
    """Token count and prompt. A list of one prompt is taken as that prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return serving.count_tokens(prompt), prompt.encode()
    if (
        not isinstance(prompt, list)
        or not prompt
        or not all(type(token) is int for token in prompt)
    ):
        raise Refused("prompt must be one string or one list of token ids, not empty")
    if max(prompt) >= serving.vocab_size or min(prompt) < 0:
        raise Refused(f"Token id {max(prompt)} is out of vocabulary")
    return len(prompt), prompt


def _content(content: Any) -> str:
    """A message's text; parts that are not text are left out."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _whole(value: Json, name: str, otherwise: int) -> int:
    given = value.get(name)
    if given is None:
        return otherwise
    if type(given) is not int:
        raise Refused(f"{name} must be a whole number, got {given!r}")
    return given
