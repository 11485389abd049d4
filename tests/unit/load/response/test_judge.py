"""What became of a request, by what came back."""

from __future__ import annotations

import pytest

from orchestrator.load.request_record import ERROR_CHARACTERS, RequestRecord
from orchestrator.load.response.judge import judge_stream
from orchestrator.load.wire.parsed import UNKNOWN, Parsed
from orchestrator.results.outcomes import ErrorClass, RequestStatus
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect
from tests.in_flight import finish, sent_request

KEPT = Dialect("", "")
FREE = Dialect("", "", length_control="none")
NO_MARKER = Dialect("", "", done_marker=False)


def answer(status: int, body: bytes) -> RequestRecord:
    raw = b"HTTP/1.1 %d Reason\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    flight = sent_request(output_tokens=2)
    flight.parts, flight.times = [raw], [1]
    flight.read_head()
    return finish(flight, "openai_completions", KEPT)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (201, ("invalid", "garbage")), (302, ("invalid", "garbage")), (400, ("error", "http_4xx")),
        (429, ("error", "http_429")), (500, ("error", "http_5xx")), (503, ("error", "http_5xx")),
    ],
)  # fmt: skip
def test_the_error_of_a_status_has_its_class_and_the_body(
    status: int, expected: tuple[str, str]
) -> None:
    record = answer(status, b"the body")
    assert (record.status, record.error_class) == expected
    assert record.error == f"HTTP {status} Reason: the body"
    assert answer(200, b"").error_class == "no_end"


@pytest.mark.parametrize(
    "body", [b'{"message": "The request queue is full."}', b"Model is overloaded"]
)
@pytest.mark.parametrize("status", [400, 422, 503])
def test_a_server_that_says_it_is_full_has_refused(status: int, body: bytes) -> None:
    """As within a stream of status 200: nothing died, the load is more than it takes."""
    record = answer(status, body)
    assert (record.status, record.error_class, record.http_status) == ("error", "http_429", status)


def test_errors_are_cut() -> None:
    assert len(answer(500, b"x" * 10_000).error or "") == ERROR_CHARACTERS


@pytest.mark.parametrize(
    ("parsed", "done", "dialect", "error_class"),
    [
        (Parsed([1, 1], "token_ids"), True, KEPT, None),
        (Parsed([1, 1], "token_ids", error="dead"), True, KEPT, "stream_error"),
        (Parsed([1, 1], "token_ids", garbage="what"), True, KEPT, "garbage"),
        (Parsed([1, 1], "token_ids", finish_reason="length"), False, KEPT, "no_end"),
        (Parsed([1, 1], "token_ids", finish_reason="length"), False, NO_MARKER, None),
        (Parsed([1, 1], "token_ids"), False, NO_MARKER, "no_end"),
        (Parsed([1, 1], "native", ended=True), False, KEPT, None),
        (Parsed([0, 0]), True, KEPT, "wrong_length"),
        (Parsed([1], "token_ids"), True, KEPT, "wrong_length"),
        (Parsed([1], "token_ids"), True, FREE, None),
        (Parsed([UNKNOWN]), True, KEPT, None),  # nobody counted: chunks are no proof
        (Parsed([UNKNOWN], output_tokens=1), True, KEPT, "wrong_length"),
    ],
)
def test_a_stream_is_ok_only_when_it_is_whole(
    parsed: Parsed, done: bool, dialect: Dialect, error_class: str | None
) -> None:
    output = (
        parsed.output_tokens
        if parsed.output_tokens is not None
        else sum(abs(count) for count in parsed.tokens)
    )
    request = sent_request(output_tokens=2)
    request.parsed = parsed
    request.done_marker_ns = 1 if done else None
    record = request.record
    record.output_tokens = output
    judge_stream(request, dialect, is_framed=False)
    assert record.error_class == error_class
    assert (record.status == "ok") == (error_class is None)


def test_every_class_belongs_to_one_status_of_the_schema() -> None:
    def named(column: str) -> set[str]:
        text = REQUESTS.field(column).metadata[b"description"].decode()
        return {word.strip() for word in text.split("|")}

    assert {str(error_class) for error_class in ErrorClass} == named("error_class")
    assert (
        {str(error_class.status) for error_class in ErrorClass} | {"ok"}
        == named("status")
        == set(map(str, RequestStatus))
    )
