"""What is read of a file of another tool, and what is said of values that do not fit."""

from __future__ import annotations

import pytest

from orchestrator.exchange.fields import (
    MOST_PROBLEMS,
    Count,
    Fields,
    printable_name,
    read_fields,
    size_of,
)
from orchestrator.exchange.imported import UnreadableFile


class Run(Fields):
    requests: Count


class Document(Fields):
    runs: list[Run]


def reasons(document: object) -> tuple[str, ...]:
    with pytest.raises(UnreadableFile) as error:
        read_fields(Document, document)
    return error.value.reasons


def test_fields_that_are_not_declared_are_kept_beside_the_others() -> None:
    run = read_fields(Run, {"requests": 3, "host": "a"})
    assert run.requests == 3
    assert run.others == {"host": "a"}


def test_a_missing_field_is_named_by_its_place() -> None:
    assert reasons({"runs": [{}]}) == ("runs.0.requests is missing",)


def test_text_is_not_taken_as_a_number() -> None:
    (reason,) = reasons({"runs": [{"requests": "3"}]})
    assert reason.startswith("runs.0.requests is '3': ")


def test_a_long_value_is_cut() -> None:
    (reason,) = reasons({"runs": "x" * 100})
    assert reason.startswith(f"runs is '{'x' * 36}...: ")


def test_many_problems_are_counted_after_the_first_ones() -> None:
    problems = reasons({"runs": [{}] * (MOST_PROBLEMS + 2)})
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == "and 2 more fields are wrong"


def test_the_size_of_a_document_is_the_number_of_its_values() -> None:
    assert size_of({"a": [1, 2, {"b": 3}], "c": None, "d": []}) == 4


def test_a_name_has_at_most_two_hundred_characters() -> None:
    assert printable_name("x" * 300) == "x" * 200
