"""The outcome of a request: its status, the class of its error unless the status is ``ok``, and
where its token count comes from; and what an attempt knows of prefix caches.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

# Why an attempt cannot have found earlier prompts in the prefix caches: its requests carry a salt
# of their own (salted), the caches were emptied before it, or they are off. Otherwise it is unknown
# whether it found any.
CacheState = Literal["salted", "emptied", "off", "unknown"]

# share of chunks that arrive together with the one before; above it, chunk times say nothing about
# the times of tokens
BUFFERED_SHARE = 0.2
# with fewer chunks, of unknown lengths, TPOT may be off by more than a fifth
FEW_CHUNKS = 5
MANY_TOKENS = 2  # per chunk, on average: more are lumps of tokens
# finish reasons of answers that were cut at a limit on their length
CUT_ENDS = frozenset(
    ["length", "max_tokens", "max_new_tokens", "max_length", "model_length", "max_output_tokens"]
)


def is_cut_end(reason: str) -> bool:
    """Whether a finish reason says that an answer was cut at a limit on its length."""
    return reason.lower() in CUT_ENDS


class TokenCounts(StrEnum):
    """Where the token count of a request comes from."""

    USAGE = "usage"  # the engine's total
    IDS = "token_ids"
    CONTINUOUS_USAGE = "continuous_usage"
    NATIVE = "native"
    TOKENIZER = "tokenizer"
    CHUNKS = "chunks"  # tokens are not counted: each event is taken as one token


# sources of token counts that say what each event held
EXACT_SOURCES = (TokenCounts.IDS, TokenCounts.CONTINUOUS_USAGE, TokenCounts.NATIVE)


class RequestStatus(StrEnum):
    """How a request ended. A slow request is not a failure."""

    OK = "ok"
    ERROR = "error"  # no response, or an error response
    INVALID = "invalid"  # an incomplete response, or not what was asked for
    TIMEOUT = "timeout"
    ABORTED = "aborted"  # we ended the run
    LOST = "lost"  # its client died


class ErrorClass(StrEnum):
    """How a request failed, and the status that goes with it."""

    status: RequestStatus

    def __new__(cls, name: str, status: RequestStatus) -> ErrorClass:
        member = str.__new__(cls, name)
        member._value_ = name
        member.status = status
        return member

    CONNECT = "connect", RequestStatus.ERROR
    RESET = "reset", RequestStatus.ERROR
    HTTP_4XX = "http_4xx", RequestStatus.ERROR
    HTTP_429 = "http_429", RequestStatus.ERROR
    HTTP_5XX = "http_5xx", RequestStatus.ERROR
    STREAM_ERROR = "stream_error", RequestStatus.INVALID  # an error object within a stream
    TRUNCATED = "truncated", RequestStatus.INVALID
    NO_END = "no_end", RequestStatus.INVALID
    WRONG_LENGTH = "wrong_length", RequestStatus.INVALID
    GARBAGE = "garbage", RequestStatus.INVALID  # not HTTP, or not this API
    TIMEOUT = "timeout", RequestStatus.TIMEOUT
    CLIENT = "client", RequestStatus.ERROR  # no socket on the client's machine
    ABORTED = "aborted", RequestStatus.ABORTED
    LOST = "lost", RequestStatus.LOST
