"""The pictures of a workload's requests, as a file writes them."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from orchestrator.spec.document import wrong
from orchestrator.spec.load import Lengths
from orchestrator.spec.settings import Strict, as_tuple

MOST_IMAGES = 100  # of one message
MOST_DISTINCT = 10_000
MOST_SIDE = 8_192  # pixels
MOST_PIXELS = 2_000_000_000  # of all pictures of a point; a client holds about a byte for every 8
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")


class ImageSize(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    @classmethod
    def of(cls, text: str) -> ImageSize:
        """The size of a text like ``1120x700``. Raises ValueError with what to write instead."""
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no size; write width and height like 1120x700")
        size = cls(int(match[1]), int(match[2]))
        if max(size) > MOST_SIDE:
            raise ValueError(f"{text!r}: a side has at most {MOST_SIDE:,} pixels")
        return size


def _is_size(text: str) -> str:
    ImageSize.of(text)
    return text


SizeText = Annotated[str, AfterValidator(_is_size)]
SizeTexts = Annotated[
    tuple[SizeText, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=1_000)
]


class Images(Strict):
    """Pictures that each user message has before its text: PNGs of coloured blocks, made once for
    each point and sent within the request.
    """

    WANTED: ClassVar[str] = "{sizes: [1120x700], count: 1, distinct: 64}"

    sizes: SizeTexts = Field(
        examples=[["1120x700", "512x512"]],
        description="Width and height in pixels; different pictures take them in turn.",
    )
    count: Lengths = Field(
        default=Lengths(fixed=1),
        description=f"Pictures of each user message, at most {MOST_IMAGES}.",
    )
    distinct: int = Field(
        default=64,
        ge=1,
        le=MOST_DISTINCT,
        description=(
            "How many different pictures there are. Each request draws among them; an engine that "
            "caches pictures finds them again."
        ),
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        most = self.count.bounds.most
        if most is None or most > MOST_IMAGES:
            raise wrong("count", f"a message has at most {MOST_IMAGES} images", "give max")
        if self.distinct < len(self.sizes):
            text = f"{len(self.sizes)} sizes need as many different images, not {self.distinct}"
            raise wrong("distinct", text)
        if self.pixels > MOST_PIXELS:
            text = f"the images of a point have {self.pixels:,} pixels, at most {MOST_PIXELS:,}"
            raise wrong("distinct", text, "give fewer, or smaller ones")
        return self

    @property
    def pixels(self) -> int:
        """Pixels of all different pictures together."""
        areas = [width * height for width, height in map(ImageSize.of, self.sizes)]
        rounds, more = divmod(self.distinct, len(areas))
        return rounds * sum(areas) + sum(areas[:more])
