"""How requests end: each error class has one status."""

from __future__ import annotations

import pytest

from orchestrator.results.outcomes import EXACT_SOURCES, ErrorClass, RequestStatus, TokenCounts


@pytest.mark.parametrize(
    ("error_class", "status"),
    [
        (ErrorClass.CONNECT, RequestStatus.ERROR),
        (ErrorClass.HTTP_429, RequestStatus.ERROR),
        (ErrorClass.TRUNCATED, RequestStatus.INVALID),
        (ErrorClass.STREAM_ERROR, RequestStatus.INVALID),
        (ErrorClass.TIMEOUT, RequestStatus.TIMEOUT),
        (ErrorClass.ABORTED, RequestStatus.ABORTED),
        (ErrorClass.LOST, RequestStatus.LOST),
    ],
)
def test_an_error_class_tells_the_status(error_class: ErrorClass, status: RequestStatus) -> None:
    assert error_class.status is status


def test_no_error_class_is_a_success() -> None:
    assert RequestStatus.OK not in {error_class.status for error_class in ErrorClass}


def test_an_error_class_is_stored_as_its_name() -> None:
    assert f"{ErrorClass.NO_END}" == "no_end"


def test_counts_of_whole_answers_do_not_say_what_an_event_held() -> None:
    assert TokenCounts.USAGE not in EXACT_SOURCES
    assert TokenCounts.TOKENIZER not in EXACT_SOURCES
    assert TokenCounts.CHUNKS not in EXACT_SOURCES
