"""What sessions and their prompts are drawn from, as a file writes it: turns, pauses, pairs of
lengths, documents, popularity, and where the content comes from.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from orchestrator.spec.document import wrong
from orchestrator.spec.load import (
    MOST_SECONDS,
    MOST_TURNS,
    Duration,
    Lengths,
    Weight,
    check_bounds,
)
from orchestrator.spec.popularity import Popularity
from orchestrator.spec.settings import OneLine, Strict, as_tuple

MOST_DOCUMENTS = 1_000  # of one prompt
MOST_POOLED = 1_000_000  # documents or prefixes to choose from by popularity
PauseLength = Annotated[Duration, Field(ge=0, le=MOST_SECONDS)]


class Turns(Lengths):
    """Requests of a session: as ``Lengths``, at most MOST_TURNS."""

    WANTED: ClassVar[str] = (
        "a whole number, {uniform: {min: 2, max: 8}} or {lognormal: {mean: 4, sigma: 0.6}}"
    )
    SHORTHAND: ClassVar[Any] = Annotated[int, Field(ge=1, le=MOST_TURNS)]

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value > MOST_TURNS:
            raise wrong((), f"'turns' must be at most {MOST_TURNS}, not {value}")
        if value < 1:
            raise wrong((), f"'turns' must be at least 1, not {value}")
        return {"fixed": value}

    @model_validator(mode="after")
    def _within_limit(self) -> Self:
        bounds = self.bounds
        longest = bounds.least if bounds.most is None else bounds.most
        if longest > MOST_TURNS:
            raise ValueError(f"a session has at most {MOST_TURNS:,} turns")
        return self

    @property
    def most(self) -> int:
        """Turns of the longest session. Without a limit of their own, more are never drawn."""
        return self.bounds.most or MOST_TURNS

    @model_serializer(mode="wrap")
    def _stored(self, handler: SerializerFunctionWrapHandler) -> Any:
        """A number is stored as one, as before turns could be drawn."""
        return handler(self) if self.fixed is None else self.fixed


class UniformPause(Strict):
    """Uniform pauses."""

    min: PauseLength = Field(description="The shortest pause, for example `1s`.")
    max: PauseLength = Field(description="The longest pause, for example `9s`.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max, " s")
        return self


class LogNormalPause(Strict):
    """Log-normal pauses by their mean (of the distribution itself, not of its logarithm)."""

    mean: Annotated[Duration, Field(gt=0, le=MOST_SECONDS)] = Field(
        description="Mean of the pauses, for example `8s`."
    )
    sigma: float = Field(
        ge=0, le=10, description="Standard deviation of the pauses' natural logarithm."
    )
    min: PauseLength = Field(
        default=0.0, description="The shortest pause: shorter ones become this one."
    )
    max: PauseLength | None = Field(
        default=None, description="The longest pause: longer ones become this one."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max, " s")
        return self


class NormalPause(Strict):
    """Normal pauses. What is drawn beyond ``min`` and ``max`` becomes these."""

    mean: PauseLength = Field(description="Mean of the pauses, for example `8s`.")
    sigma: PauseLength = Field(description="Standard deviation of the pauses, for example `2s`.")
    min: PauseLength = Field(
        default=0.0, description="The shortest pause: shorter ones become this one."
    )
    max: PauseLength | None = Field(
        default=None, description="The longest pause: longer ones become this one."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_bounds(self.min, self.max, " s")
        return self


class ExponentialPause(Strict):
    """Exponential pauses: how long one has lasted says nothing about when it ends."""

    mean: Annotated[Duration, Field(gt=0, le=MOST_SECONDS)] = Field(
        description="Mean of the pauses, for example `8s`."
    )
    max: PauseLength | None = Field(
        default=None, description="The longest pause: longer ones become this one."
    )


class PauseBin(UniformPause):
    """One bin of a histogram: uniform within it."""

    weight: Weight = Field(
        default=1.0, description="How often this bin comes, relative to the other bins."
    )


PauseBins = Annotated[
    tuple[PauseBin, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=10_000)
]


class Pauses(Strict):
    """``2s`` | ``{uniform: {min: 1s, max: 9s}}`` | ``{lognormal: {mean: 8s, sigma: 1, max: 60s}}``
    | ``{normal: {mean: 8s, sigma: 2s}}`` | ``{exponential: {mean: 8s}}`` | ``{histogram: [{min: 1s,
    max: 2s, weight: 3}, {min: 30s, max: 2m}]}``.
    """

    WANTED: ClassVar[str] = "a duration like 2s, or {lognormal: {mean: 8s, sigma: 1}}"
    SHORTHAND: ClassVar[Any] = PauseLength

    fixed: PauseLength | None = Field(
        default=None, description="The same pause always; a duration alone means this."
    )
    uniform: UniformPause | None = Field(
        default=None, description="All pauses between two are equally likely."
    )
    lognormal: LogNormalPause | None = Field(
        default=None, description="Log-normal pauses, by the mean of the pauses themselves."
    )
    normal: NormalPause | None = Field(default=None, description="Normal pauses.")
    exponential: ExponentialPause | None = Field(
        default=None,
        description="Exponential pauses: how long one has lasted says nothing about when it ends.",
    )
    histogram: PauseBins | None = Field(
        default=None, description="Bins with weights; pauses are uniform within each bin."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_duration(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, str | int | float) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        shapes = [self.uniform, self.lognormal, self.normal, self.exponential, self.histogram]
        if sum(way is not None for way in (self.fixed, *shapes)) != 1:
            raise ValueError(
                "give one of: a duration, uniform, lognormal, normal, exponential, histogram"
            )
        return self

    @model_serializer(mode="wrap")
    def _stored(self, handler: SerializerFunctionWrapHandler) -> Any:
        """A duration is stored as a number of seconds, as before pauses could be drawn; a histogram
        only where there is one, so that ids stay what they were before there were any.
        """
        if self.fixed is not None:
            return self.fixed
        content = handler(self)
        if self.histogram is None:
            content.pop("histogram", None)
        return content


class LengthPair(Strict):
    """Lengths of a prompt and its answer that belong together, and how often they come."""

    input: Lengths = Field(description="Length of the prompt, in tokens.")
    output: Lengths = Field(description="Length of the answer, in tokens.")
    weight: Weight = Field(
        default=1.0, description="How often this pair comes, relative to the other pairs."
    )


LengthPairs = Annotated[
    tuple[LengthPair, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=10_000)
]


class Documents(Strict):
    """Documents that each request has before its own text, out of a pool. A document always has the
    same text and length, so a prefix cache finds the first ones of a prompt again.
    """

    count: Lengths = Field(description="Documents of one request, all of them different.")
    tokens: Lengths = Field(description="Length of a document, in tokens.")
    pool: int = Field(
        ge=1, le=MOST_POOLED, description="How many documents there are to choose from."
    )
    popularity: Popularity | None = Field(
        default=None,
        description="How much more often some documents are chosen, for example `{zipf: 1.0}`. "
        "By default all are chosen equally often.",
    )

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most = self.count.bounds.most
        if most is None or most > MOST_DOCUMENTS:
            raise ValueError(f"count: a prompt has at most {MOST_DOCUMENTS:,} documents; give max")
        if most > self.pool:
            raise ValueError(f"a prompt may have {most} documents, and the pool has {self.pool}")
        return self


class ContentSource(Strict):
    """``words`` | ``{text: FILE}``: what prompts are made of instead of random token ids."""

    WANTED: ClassVar[str] = "words, or {text: FILE}"
    SHORTHAND: ClassVar[Any] = Literal["words"]

    words: Literal[True] | None = Field(
        default=None, description="Text made of words; `content: words` means this."
    )
    text: OneLine | None = Field(
        default=None, description="A UTF-8 file of at most 64 MiB; prompts are slices of it."
    )
    text_digest: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{16}$",
        description="Digest of the file's bytes. `plan` sets it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"words": True} if value == "words" else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.words is None) == (self.text is None):
            raise ValueError("give words, or a text file")
        return self
