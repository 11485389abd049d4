"""What became of a request, by what came back."""

from __future__ import annotations

import pytest

from orchestrator.load.http import Head
from orchestrator.load.outcome import OK, failed, of_status, of_stream
from orchestrator.load.wire import UNKNOWN, Parsed
from orchestrator.results.schemas import REQUESTS
from orchestrator.spec.dialect import Dialect

KEPT = Dialect("", "")
FREE = Dialect("", "", length_control="none")
NO_MARKER = Dialect("", "", done_marker=False)


def head(status: int, **headers: str) -> Head:
    return Head(status, "Reason", headers, 0, False, 0, True)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (201, ("invalid", "garbage")), (302, ("invalid", "garbage")), (400, ("error", "http_4xx")),
        (429, ("error", "http_429")), (500, ("error", "http_5xx")), (503, ("error", "http_5xx")),
    ],
)  # fmt: skip
def test_a_status_has_its_class_and_says_what_the_body_says(status: int, expected: tuple[str, str]) -> None:
    outcome = of_status(head(status), b"the body")
    assert outcome is not None
    assert (outcome.status, outcome.error_class) == expected
    assert outcome.error == f"HTTP {status} Reason: the body"
    assert of_status(head(200), b"") is None


def test_errors_are_cut_to_500_characters() -> None:
    outcome = of_status(head(500), b"x" * 10_000)
    assert outcome is not None
    assert len(outcome.error or "") == 500


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
    output = parsed.output_tokens if parsed.output_tokens is not None else sum(abs(count) for count in parsed.tokens)
    outcome = of_stream(parsed, done, 2, output, dialect)
    assert outcome.error_class == error_class
    assert (outcome.status == "ok") == (error_class is None)


def test_every_class_belongs_to_one_status_of_the_schema() -> None:
    def named(column: str) -> set[str]:
        text = REQUESTS.field(column).metadata[b"description"].decode()
        return {word.strip() for word in text.split("|")}

    outcomes = [failed(error_class, "x") for error_class in named("error_class")]
    assert {outcome.error_class for outcome in outcomes} == named("error_class")
    assert {outcome.status for outcome in [*outcomes, OK, failed("aborted", "x")]} == named("status") - {"lost"}
