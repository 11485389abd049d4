"""The three APIs: reads what a request's body asks for, checks it as the engines do, and writes its
tokens as the engines write them.
"""

import struct
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import orjson

from orchestrator.emulator.batch import refusal
from orchestrator.emulator.flags import Options
from orchestrator.emulator.instances import constrained_answer, pieces_of
from orchestrator.emulator.model import Replica
from orchestrator.emulator.prefix import Prompt

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so "
    "up said what its about "
    "than into them can only other time new"
)
WORDS = tuple(f" {word}" for word in _COMMON.split())
PATCH_PIXELS = 28 * 28  # of a token of a picture, as Qwen2-VL has them
DEFAULT_IMAGE_TOKENS = 256
MESSAGE_TOKENS = 4  # that a chat template adds to every message


def four_bytes(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand: one for every four bytes."""
    return max(1, len(text.encode()) // 4)


class Refused(Exception):
    """The request is not served. ``kind``: the error type of the answer; empty where the request's
    body was not understood, so that the answer is plain text.
    """

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        self.status = status
        self.kind = kind
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
        reason = refusal(self.replica.limits, prompt_tokens, output_tokens)
        if reason is not None:
            raise Refused(reason)


@dataclass
class Completion(ABC):
    """One request as its API understands it. Makes the bytes in which this API sends its tokens."""

    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    prompt: Prompt = b""  # for the prefix cache
    adapter: str | None = None  # the LoRA adapter that it asks for
    vocab_size: int = 32000
    stream: bool = False
    cache_salt: str = ""
    cached_tokens: int = 0  # of the prompt; set once the prefix cache was looked up
    kv_received: bool = False  # the KV cache of its prompt comes from another replica
    finish_reason: str = "length"
    # the text of each token, of a constrained answer; None: common words
    pieces: tuple[str, ...] | None = None

    @abstractmethod
    def event(self, index: int, is_last: bool) -> bytes:
        """The event of a stream with the token at this index, from 0."""

    def closing_events(self) -> bytes:
        """The events that follow the last token of a stream."""
        return b""

    @abstractmethod
    def document(self) -> object:
        """The JSON of an answer that is not streamed."""

    @property
    def cache_key(self) -> str:
        """Requests with different keys share no prefix cache. Adapters compute other values for the
        same tokens, so each has a cache of its own.
        """
        return self.cache_salt if self.adapter is None else f"{self.cache_salt} {self.adapter}"

    def word(self, index: int) -> str:
        """Text of the token at this index. Each adapter answers in other words."""
        if self.pieces is not None:
            return self.pieces[index]
        place = index * 7 + len(self.request_id) + self.prompt_tokens
        if self.adapter is not None:
            place += 1 + crc32(self.adapter.encode()) % (len(WORDS) - 1)
        return WORDS[place % len(WORDS)]

    def token_id(self, index: int) -> int:
        """Id of the token at this index; the same text always has the same id."""
        if self.pieces is not None:
            return zlib.crc32(self.pieces[index].encode()) % self.vocab_size
        return WORDS.index(self.word(index)) % self.vocab_size

    def token_ids(self) -> list[int]:
        """Ids of all tokens."""
        return [self.token_id(index) for index in range(self.output_tokens)]

    def text(self) -> str:
        """All tokens as text."""
        return "".join(self.word(index) for index in range(self.output_tokens))

    def continuation(self) -> Prompt:
        """What follows the prompt in a later prompt that contains this answer."""
        if isinstance(self.prompt, bytes):
            return self.text().encode()
        return self.token_ids()


def sse(payload: bytes) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % payload


@dataclass
class OpenAICompletion(Completion):
    """``/v1/completions`` and ``/v1/chat/completions`` as vLLM writes them."""

    chat: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    hands_kv_over: bool = False  # the KV cache of its prompt goes to another replica

    def __post_init__(self) -> None:
        """Builds, before the first token, what is the same in all events."""
        if not self.chat:
            kind = "text_completion"
        elif self.stream:
            kind = "chat.completion.chunk"
        else:
            kind = "chat.completion"
        self._envelope = {
            "id": self.request_id,
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }
        envelope = orjson.dumps(self._envelope)[:-1] + b',"choices":[{"index":0,'
        if self.chat:
            self._before_word = envelope + b'"delta":{"content":"'
            self._after_word = b'"},"logprobs":null,"finish_reason":'
        else:
            self._before_word = envelope + b'"text":"'
            self._after_word = b'","logprobs":null,"finish_reason":'
        self._usage_head = b',"usage":{"prompt_tokens":%d,"total_tokens":' % self.prompt_tokens

    def continuation(self) -> Prompt:
        if self.chat:
            return b"\nassistant: " + self.text().encode()
        return super().continuation()

    def event(self, index: int, is_last: bool) -> bytes:
        reason = b'"%b"' % self.finish_reason.encode() if is_last else b"null"
        token_ids = b""
        if self.return_token_ids:
            token_ids = b',"token_ids":[%d]' % self.token_id(index)
        usage = b""
        if self.continuous_usage:
            total = self.prompt_tokens + index + 1
            usage = b'%b%d,"completion_tokens":%d}' % (self._usage_head, total, index + 1)
        parts = (
            self._before_word,
            self._json_word(index),
            self._after_word,
            reason,
            token_ids,
            b"}]",
            usage,
            b"}",
        )
        event = sse(b"".join(parts))
        if self.chat and index == 0:
            return self._role_event() + event
        return event

    def _json_word(self, index: int) -> bytes:
        """Text of the token at this index as it stands in a JSON string."""
        word = self.word(index)
        return word.encode() if self.pieces is None else orjson.dumps(word)[1:-1]

    def _role_event(self) -> bytes:
        """The first event of a chat's stream, which holds no token."""
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return sse(orjson.dumps(self._envelope | {"choices": [choice]}))

    def closing_events(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self.include_usage:
            return done
        usage = self._envelope | {"choices": [], "usage": self._usage()}
        return sse(orjson.dumps(usage)) + done

    def document(self) -> object:
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": self.finish_reason,
        }
        if self.chat:
            choice["message"] = {"role": "assistant", "content": self.text()}
        else:
            choice["text"] = self.text()
        if self.return_token_ids:
            choice["token_ids"] = self.token_ids()
        document = self._envelope | {"choices": [choice], "usage": self._usage()}
        if self.hands_kv_over:
            # as vLLM's NixlConnector tells the router where the decode replica fetches it
            document["kv_transfer_params"] = {
                "do_remote_prefill": True,
                "remote_engine_id": self.request_id,
            }
        return document

    def _usage(self) -> dict[str, Any]:
        details = {"cached_tokens": self.cached_tokens} if self.cached_tokens else None
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "completion_tokens": self.output_tokens,
            "prompt_tokens_details": details,
        }


@dataclass
class TgiCompletion(Completion):
    """``/generate`` and ``/generate_stream`` as text-generation-inference 3.3 writes them: one
    token per event.
    """

    details: bool = False
    in_list: bool = False

    def _token(self, index: int) -> dict[str, Any]:
        return {
            "id": self.token_id(index),
            "text": self.word(index),
            "logprob": -1.0,
            "special": False,
        }

    def _details(self) -> dict[str, Any]:
        return {
            "finish_reason": self.finish_reason,
            "generated_tokens": self.output_tokens,
            "seed": None,
        }

    def event(self, index: int, is_last: bool) -> bytes:
        event: dict[str, Any] = {
            "index": index + 1,
            "token": self._token(index),
            "generated_text": None,
            "details": None,
        }
        if is_last:
            event["generated_text"] = self.text()
            event["details"] = self._details() | {"input_length": self.prompt_tokens}
        return sse(orjson.dumps(event))

    def document(self) -> object:
        document: dict[str, Any] = {"generated_text": self.text()}
        if self.details:
            tokens = [self._token(index) for index in range(self.output_tokens)]
            document["details"] = self._details() | {"prefill": [], "tokens": tokens}
        return [document] if self.in_list else document


def parse_completion(body: bytes, serving: Serving) -> OpenAICompletion:
    """``/v1/completions``. Raises Refused."""
    fields = _openai_fields(body, serving)
    prompt = _prompt(fields.get("prompt"), serving)
    if isinstance(prompt, bytes):
        prompt_tokens = serving.count_tokens(prompt.decode())
    else:
        prompt_tokens = len(prompt)
    output_tokens = _whole_number(fields, "max_tokens", 16)
    return _openai_completion(fields, serving, prompt, prompt_tokens, output_tokens, chat=False)


def parse_chat(body: bytes, serving: Serving) -> OpenAICompletion:
    """``/v1/chat/completions``. Raises Refused."""
    fields = _openai_fields(body, serving)
    messages: Any = fields.get("messages")
    if not _is_filled_list_of(messages, dict):
        raise Refused("messages must be a list of objects that is not empty")
    texts: list[str] = []
    prompt: list[bytes] = []
    image_tokens = 0
    if fields.get("tools"):  # where chat templates write them
        tools = orjson.dumps(fields["tools"])
        texts.append(tools.decode())
        prompt.append(tools)
    for message in messages:
        role = f"{message.get('role')}: "
        text = _content(message.get("content")) + _calls(message.get("tool_calls"))
        images = [_image_tokens(url) for url in _image_urls(message.get("content"))]
        image_tokens += sum(len(image) for image in images) // 4
        texts.append(role + text)
        prompt.append(role.encode() + b"".join(images) + text.encode())
    prompt_tokens = serving.count_tokens("\n".join(texts)) + MESSAGE_TOKENS * len(messages)
    prompt_tokens += image_tokens
    limit = _whole_number(fields, "max_completion_tokens", 0)
    limit = limit or _whole_number(fields, "max_tokens", 0)
    output_tokens = limit
    if not limit:
        most_tokens = serving.replica.limits.max_model_len - prompt_tokens
        default_tokens = serving.options.profile.default_output_tokens
        output_tokens = max(1, min(default_tokens, most_tokens))
    completion = _openai_completion(
        fields, serving, b"\n".join(prompt), prompt_tokens, output_tokens, chat=True
    )
    if completion.pieces is None:
        completion.finish_reason = "length" if limit else "stop"
    return completion


def parse_tgi(body: bytes, serving: Serving, stream: bool | None) -> TgiCompletion:
    """TGI's native body. Where ``stream`` is None, the body says whether to stream, and an answer
    that is not streamed is a list of one. Raises Refused.
    """
    try:
        fields = _json_object(body)
    except Refused as refused:
        raise Refused(f"Failed to parse the request body as JSON: {refused}", 400, "") from None
    text = fields.get("inputs")
    parameters = fields.get("parameters")
    if not isinstance(text, str):
        raise _not_deserialized("inputs")
    if not isinstance(parameters, dict | None):
        raise _not_deserialized("parameters")
    parameters = parameters or {}
    try:
        if not text:
            raise Refused("`inputs` cannot be empty")
        prompt_tokens = serving.count_tokens(text)
        output_tokens = _whole_number(parameters, "max_new_tokens", 100)
        serving.check(prompt_tokens, output_tokens)
        adapter = parameters.get("adapter_id")
        if adapter is not None and adapter not in serving.options.adapters:
            raise Refused(f"adapter_id {adapter!r} is not served")
    except Refused as refused:
        raise Refused(f"Input validation error: {refused}", 422, "validation") from None
    return TgiCompletion(
        request_id=uuid.uuid4().hex,
        model=serving.options.model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt=text.encode(),
        adapter=adapter,
        vocab_size=serving.vocab_size,
        stream=bool(fields.get("stream")) if stream is None else stream,
        details=bool(parameters.get("details")),
        in_list=stream is None,
    )


def _not_deserialized(field: str) -> Refused:
    """TGI's refusal of a field with another JSON type."""
    message = f"Failed to deserialize the JSON body into the target type: {field}: invalid type"
    return Refused(message, 422, "")


def _json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused."""
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Refused("the body is not a JSON object")
    return document


def _openai_fields(body: bytes, serving: Serving) -> dict[str, Any]:
    """The fields of a request to an OpenAI API, for this model and one choice. Raises Refused."""
    fields = _json_object(body)
    model = fields.get("model")
    served = (None, serving.options.model, *serving.options.adapters)
    if model not in served:
        raise Refused(f"The model `{model}` does not exist.", 404, "NotFoundError")
    is_one_choice = _whole_number(fields, "n", 1) == 1 and fields.get("best_of", 1) in {None, 1}
    if not is_one_choice or fields.get("echo"):
        raise Refused("the emulator gives one completion per request, without echo")
    return fields


def _openai_completion(
    fields: dict[str, Any],
    serving: Serving,
    prompt: Prompt,
    prompt_tokens: int,
    output_tokens: int,
    chat: bool,
) -> OpenAICompletion:
    """The completion that a request asks for. Raises Refused."""
    serving.check(prompt_tokens, output_tokens)
    stream_options = fields.get("stream_options") or {}
    if stream_options and not fields.get("stream"):
        raise Refused("stream_options is only allowed when stream is true")
    salt = fields.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise Refused("Parameter 'cache_salt' must be a non-empty string if provided.")
    include_usage = bool(stream_options.get("include_usage"))
    continuous_usage = bool(stream_options.get("continuous_usage_stats"))
    model = fields.get("model")
    adapter = model if model in serving.options.adapters else None
    role = serving.options.role
    transfer = fields.get("kv_transfer_params") or {}
    prefix = "chatcmpl-" if chat else "cmpl-"
    pieces = _constrained_pieces(fields, serving, prompt_tokens)
    finish_reason = "length"
    if pieces is not None:
        finish_reason = "stop" if len(pieces) <= output_tokens else "length"
        output_tokens = min(output_tokens, len(pieces))
    return OpenAICompletion(
        request_id=prefix + uuid.uuid4().hex,
        model=adapter or serving.options.model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt=prompt,
        adapter=adapter,
        vocab_size=serving.vocab_size,
        stream=bool(fields.get("stream")),
        cache_salt=salt or "",
        chat=chat,
        include_usage=include_usage,
        continuous_usage=include_usage and continuous_usage,
        return_token_ids=bool(fields.get("return_token_ids")),
        hands_kv_over=role == "prefill" and bool(transfer.get("do_remote_decode")),
        kv_received=role == "decode" and bool(transfer.get("do_remote_prefill")),
        finish_reason=finish_reason,
        pieces=pieces,
    )


def _constrained_pieces(
    fields: dict[str, Any], serving: Serving, prompt_tokens: int
) -> tuple[str, ...] | None:
    """The answer to a constrained request, as the texts of its tokens; None for a free one. Raises
    Refused.
    """
    if serving.options.profile.faults.ignore_constraints:
        return None
    try:
        answer = constrained_answer(fields, prompt_tokens)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Refused(f"the constraint cannot be imitated: {error}") from error
    return None if answer is None else pieces_of(answer) or ("",)


def _prompt(prompt: Any, serving: Serving) -> Prompt:
    """A prompt of text or of token ids. A list of one prompt is taken as that prompt. Raises
    Refused.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt.encode()
    if not _is_filled_list_of(prompt, int):
        raise Refused("prompt must be one string or one list of token ids, not empty")
    if max(prompt) >= serving.vocab_size or min(prompt) < 0:
        raise Refused(f"Token id {max(prompt)} is out of vocabulary")
    token_ids: list[int] = prompt
    return token_ids


def _is_filled_list_of(value: Any, kind: type) -> bool:
    """Whether a value is a list of this type (of which bool is no int) that is not empty."""
    if not isinstance(value, list) or not value:
        return False
    return all(type(item) is kind for item in value)


def _content(content: Any) -> str:
    """A message's text; parts that are not text are left out."""
    if isinstance(content, list):
        texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
        return " ".join(texts)
    return str(content or "")


def _calls(tool_calls: Any) -> str:
    """Calls of tools, as chat templates write them."""
    return orjson.dumps(tool_calls).decode() if tool_calls else ""


def _image_urls(content: Any) -> list[str]:
    """The data URLs of a message's pictures. Raises Refused for other URLs."""
    urls: list[str] = []
    parts = content if isinstance(content, list) else []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "image_url":
            continue
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else None
        if not isinstance(url, str) or not url.startswith("data:image/"):
            raise Refused("the emulator takes pictures as data URLs only")
        urls.append(url)
    return urls


def _image_tokens(url: str) -> bytes:
    """What stands for a picture in the prompt: four bytes for each of its tokens, the same for the
    same picture. It has a token for every PATCH_PIXELS pixels; one whose size is not known has
    DEFAULT_IMAGE_TOKENS.
    """
    tokens = DEFAULT_IMAGE_TOKENS
    head = url.partition(",")[2][:32]  # 24 bytes: a PNG's signature, and its width and height
    if head.startswith("iVBORw0KGgo") and len(head) == 32:
        width, height = struct.unpack(">II", b64decode(head)[16:24])
        tokens = max(1, -(-width * height // PATCH_PIXELS))
    return crc32(url.encode()).to_bytes(4, "big") * tokens


def _whole_number(fields: dict[str, Any], name: str, default: int) -> int:
    """A field with a whole number; ``default`` if it is missing or null. Raises Refused."""
    number = fields.get(name)
    if number is None:
        return default
    if type(number) is not int:
        raise Refused(f"{name} must be a whole number, got {number!r}")
    return number
