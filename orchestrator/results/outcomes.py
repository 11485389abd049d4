"""What became of a request: its status, and where that is not ``ok`` the class of its error. The one list of both."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

# What an attempt found in the prefix caches: nothing, as its requests carry a salt of their own, as they were emptied
# before it, or as there are none; or whatever was there.
CacheState = Literal["salted", "emptied", "off", "unknown"]

BUFFERED_SHARE = 0.2  # of chunks that came together with the one before: above it their times tell of no token


class Status(StrEnum):
    """Slow is never a failure, and a failure is never slow."""

    OK = "ok"
    ERROR = "error"  # no response, or one that says no
    INVALID = "invalid"  # a response, but not a whole one, or not what was asked for
    TIMEOUT = "timeout"
    ABORTED = "aborted"  # the run was ended from our side
    LOST = "lost"  # its client died


class ErrorClass(StrEnum):
    """Which way a request failed, and the status that goes with it."""

    status: Status

    def __new__(cls, name: str, status: Status) -> ErrorClass:
        made = str.__new__(cls, name)
        made._value_ = name
        made.status = status
        return made

    CONNECT = "connect", Status.ERROR
    RESET = "reset", Status.ERROR
    HTTP_4XX = "http_4xx", Status.ERROR
    HTTP_429 = "http_429", Status.ERROR
    HTTP_5XX = "http_5xx", Status.ERROR
    STREAM_ERROR = "stream_error", Status.INVALID  # an error object within a stream
    TRUNCATED = "truncated", Status.INVALID
    NO_END = "no_end", Status.INVALID
    WRONG_LENGTH = "wrong_length", Status.INVALID
    GARBAGE = "garbage", Status.INVALID  # not HTTP, or not this API
    TIMEOUT = "timeout", Status.TIMEOUT
    CLIENT = "client", Status.ERROR  # no socket on the client's machine
    ABORTED = "aborted", Status.ABORTED
    LOST = "lost", Status.LOST
