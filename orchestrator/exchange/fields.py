"""Types of values in files of other tools, and the sentences for values that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.base.redaction import redact
from orchestrator.exchange.imported import UnreadableFile

MOST_PROBLEMS = 5  # of one file that are named; a file of another version has hundreds
Count = Annotated[int, Field(ge=0, lt=2**31)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
UnixSeconds = Annotated[float, Field(ge=0, le=9e9)]  # until the year 2255
UnixNs = Annotated[int, Field(ge=0, lt=2**63)]
GapSeconds = Annotated[float, Field(ge=0, le=2_000)]  # in us it fits the column gaps_us
Value = Annotated[float, Field(ge=-1e15, le=1e15)]
ModelT = TypeVar("ModelT", bound="Fields")


class Fields(BaseModel):
    """The fields that are read of a JSON object; it may have more.

    Text is never taken as a number.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    @property
    def others(self) -> Mapping[str, Any]:
        """The fields that are not declared."""
        return self.model_extra or {}


def read_fields(model: type[ModelT], document: object) -> ModelT:
    """The object as a record.

    Raises UnreadableFile with a sentence for each field that is wrong.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False)
        reasons = [_reason(detail) for detail in details[:MOST_PROBLEMS]]
        if len(details) > MOST_PROBLEMS:
            reasons.append(f"and {len(details) - MOST_PROBLEMS} more fields are wrong")
        raise UnreadableFile(reasons) from error


def _reason(detail: Mapping[str, Any]) -> str:
    """``benchmarks.0.metrics is missing``."""
    place = ".".join(map(str, detail["loc"])) or "the document"
    if detail["type"] == "missing":
        return redact(f"{place} is missing")
    return redact(f"{place} is {_shown(detail['input'])}: {detail['msg'].lower()}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def size_of(value: object) -> int:
    """How many values a JSON value holds."""
    if isinstance(value, Mapping):
        return sum(size_of(each) for each in value.values())
    if isinstance(value, list):
        return sum(size_of(each) for each in value)
    return 1


def printable_name(name: str) -> str:
    """The name of a field as text that any file can hold."""
    return redact(name)[:200]
