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
)
from orchestrator.spec.settings import OneLine, Strict, as_tuple

MOST_DOCUMENTS = 1_000  # of one prompt
MOST_POOLED = 1_000_000  # documents or prefixes to choose from by popularity
PauseLength = Annotated[Duration, Field(ge=0, le=MOST_SECONDS)]


class Turns(Lengths):
    """Requests of a session: as ``Lengths``, at most MOST_TURNS."""

    WANTED: ClassVar[str] = Lengths.WANTED.replace("10, max: 20", "2, max: 8")

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
    def _few(self) -> Self:
        least, most = self.bounds
        if max(least, most or 1) > MOST_TURNS:
            raise ValueError(f"a session has at most {MOST_TURNS:,} turns")
        return self

    @property
    def most(self) -> int:
        """Turns of the longest session. Without a limit of their own, more are never drawn."""
        return self.bounds[1] or MOST_TURNS

    @model_serializer(mode="wrap")
    def _stored(self, handler: SerializerFunctionWrapHandler) -> Any:
        """A number is stored as one, as before turns could be drawn."""
        return handler(self) if self.fixed is None else self.fixed


class UniformPause(Strict):
    """Uniform pauses."""

    min: PauseLength
    max: PauseLength

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max ({self.max:g} s) is below min ({self.min:g} s)")
        return self


class LogNormalPause(Strict):
    """Log-normal pauses by their mean (of the distribution itself, not of its logarithm)."""

    mean: Annotated[Duration, Field(gt=0, le=MOST_SECONDS)]
    sigma: float = Field(ge=0, le=10)
    min: PauseLength = 0.0
    max: PauseLength | None = None


class NormalPause(Strict):
    """Normal pauses. What is drawn beyond ``min`` and ``max`` becomes these."""

    mean: PauseLength
    sigma: PauseLength  # the standard deviation
    min: PauseLength = 0.0
    max: PauseLength | None = None


class ExponentialPause(Strict):
    """Exponential pauses, as of users who do not wait for anything."""

    mean: Annotated[Duration, Field(gt=0, le=MOST_SECONDS)]
    max: PauseLength | None = None


class Pauses(Strict):
    """``2s`` | ``{uniform: {min: 1s, max: 9s}}`` | ``{lognormal: {mean: 8s, sigma: 1, max: 60s}}``
    | ``{normal: {mean: 8s, sigma: 2s}}`` | ``{exponential: {mean: 8s}}``.
    """

    WANTED: ClassVar[str] = "a duration like 2s, or {lognormal: {mean: 8s, sigma: 1}}"

    fixed: PauseLength | None = None
    uniform: UniformPause | None = None
    lognormal: LogNormalPause | None = None
    normal: NormalPause | None = None
    exponential: ExponentialPause | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_duration(cls, value: Any) -> Any:
        return {"fixed": value} if isinstance(value, str | int | float) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [self.fixed, self.uniform, self.lognormal, self.normal, self.exponential]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("give one of: a duration, uniform, lognormal, normal, exponential")
        return self

    @model_serializer(mode="wrap")
    def _stored(self, handler: SerializerFunctionWrapHandler) -> Any:
        """A duration is stored as a number of seconds, as before pauses could be drawn."""
        return handler(self) if self.fixed is None else self.fixed


class LengthPair(Strict):
    """Lengths of a prompt and its answer that belong together, and how often they come."""

    input: Lengths
    output: Lengths
    weight: Weight = 1.0


LengthPairs = Annotated[
    tuple[LengthPair, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=10_000)
]


class Popularity(Strict):
    """``{zipf: 1.2}``: the k-th most popular is chosen with a probability proportional to
    1 / k**1.2.
    """

    WANTED: ClassVar[str] = "{zipf: 1.2}"

    zipf: float = Field(gt=0, le=20)


class Documents(Strict):
    """Documents that each request has before its own text, out of a pool. A document always has the
    same text and length, so a prefix cache finds the first ones of a prompt again.
    """

    count: Lengths  # of a request, all different
    tokens: Lengths  # of a document
    pool: int = Field(ge=1, le=MOST_POOLED)
    popularity: Popularity | None = None  # None: all are as popular

    @model_validator(mode="after")
    def _enough(self) -> Self:
        most = self.count.bounds[1]
        if most is None or most > MOST_DOCUMENTS:
            raise ValueError(f"count: a prompt has at most {MOST_DOCUMENTS:,} documents; give max")
        if most > self.pool:
            raise ValueError(f"a prompt may have {most} documents, and the pool has {self.pool}")
        return self


class ContentSource(Strict):
    """``words`` | ``{text: FILE}``: what prompts are made of instead of random token ids."""

    WANTED: ClassVar[str] = "words, or {text: FILE}"

    words: Literal[True] | None = None
    text: OneLine | None = None  # a UTF-8 file; prompts are slices of it
    text_digest: str | None = Field(default=None, pattern="^[0-9a-f]{16}$")  # of the file's bytes

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"words": True} if value == "words" else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.words is None) == (self.text is None):
            raise ValueError("give words, or a text file")
        return self
