"""Which rows of a recorded trace are sent, as a file writes it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.spec.load import MOST_TOKENS, Duration
from orchestrator.spec.settings import OneLine, Strict, as_tuple


class TraceColumns(Strict):
    """The names of a table's columns, or of the keys of JSON lines."""

    time: OneLine | None = Field(
        default=None,
        description="The column of times. Without it, rows are sent in their order and arrivals "
        "are drawn.",
    )
    input_tokens: OneLine = Field(description="The column of prompt lengths, in tokens.")
    output_tokens: OneLine = Field(description="The column of answer lengths, in tokens.")
    session: OneLine | None = Field(
        default=None,
        description="The column that names the session; rows of one session follow one another. A "
        "row whose session is empty stands alone.",
    )
    elapsed: OneLine | None = Field(
        default=None,
        description="The column of how long the recorded request took, in the unit of the times.",
    )
    images: OneLine | None = Field(
        default=None,
        description="The column that counts images, whose sizes `images` of the workload says.",
    )
    blocks: OneLine | None = Field(
        default=None,
        description="The column of lists of whole numbers that name the prompt's blocks (Parquet, "
        "JSON lines): equal names are equal tokens.",
    )
    block_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="Tokens of each of `blocks`; the last of a prompt may be shorter.",
    )

    @property
    def names(self) -> list[str]:
        """The names of the columns that are given."""
        columns = self.model_dump(exclude_none=True, exclude={"block_tokens"})
        return list(columns.values())

    @model_validator(mode="after")
    def _blocks_have_a_size(self) -> Self:
        if (self.blocks is None) != (self.block_tokens is None):
            raise ValueError("give 'blocks' and 'block_tokens' together")
        return self


class Filter(Strict):
    """Rows whose column has one of these values, compared as text."""

    column: OneLine = Field(description="The name of the column.")
    values: tuple[str, ...] = Field(description="The values that a row may have there, as text.")


def _as_filters(value: Any) -> Any:
    """``{Model: GPT-4, "Log Type": [a, b]}`` as filters."""
    if not isinstance(value, dict):
        return as_tuple(value)
    filters = []
    for column, written in value.items():
        values = written if isinstance(written, list) else [written]
        if not all(isinstance(item, str | int | float) for item in values):
            raise ValueError(f"{column!r}: give a value or a list of values")
        filters.append(Filter(column=column, values=tuple(map(cell_text, values))))
    return tuple(filters)


def cell_text(value: object) -> str:
    """A value of a column as filters compare it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# what a file may have for the values of one column
_WrittenValues = str | int | float | list[str | int | float]
Filters = Annotated[
    tuple[Filter, ...],
    BeforeValidator(_as_filters, json_schema_input_type=dict[str, _WrittenValues]),
]
_Bound = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
_TokenBounds = Annotated[tuple[_Bound, _Bound], BeforeValidator(as_tuple)]


class Keep(Strict):
    """Rows whose lengths lie within these bounds, both ends included. Others are left out, and how
    many they are is reported.
    """

    input_tokens: _TokenBounds | None = Field(
        default=None, description="Fewest and most tokens of the prompt, as `[4, 8000]`."
    )
    output_tokens: _TokenBounds | None = Field(
        default=None, description="Fewest and most tokens of the answer, as `[1, 2000]`."
    )
    total_tokens: _TokenBounds | None = Field(
        default=None, description="Fewest and most tokens of both together, as `[5, 8192]`."
    )

    def holds(self, prompt_tokens: int, answer_tokens: int) -> bool:
        """Whether the lengths of a request lie within the bounds."""
        for bounds, tokens in (
            (self.input_tokens, prompt_tokens),
            (self.output_tokens, answer_tokens),
            (self.total_tokens, prompt_tokens + answer_tokens),
        ):
            if bounds is not None and not bounds[0] <= tokens <= bounds[1]:
                return False
        return True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in type(self).model_fields:
            bounds = getattr(self, name)
            if bounds is None:
                continue
            fewest, most = bounds
            if most < fewest:
                raise ValueError(f"{name}: {most} is below {fewest}")
        return self


_SinceFirstRow = Annotated[Duration, Field(ge=0)]


class Window(Strict):
    """``[10m, 20m]``: the rows from 10 to 20 minutes after the first one."""

    WANTED: ClassVar[str] = "two durations, like [10m, 20m]"
    SHORTHAND: ClassVar[Any] = tuple[_SinceFirstRow, _SinceFirstRow]

    start: _SinceFirstRow = Field(description="Begin of the window, since the first row.")
    end: _SinceFirstRow = Field(description="End of the window, since the first row.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            if len(value) != 2:
                raise ValueError(f"give {cls.WANTED}")
            return {"start": value[0], "end": value[1]}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"it ends at {self.end:g} s, not after its start at {self.start:g} s")
        return self
