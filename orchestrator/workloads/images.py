"""Pictures as parts of messages: made of coloured blocks, or read from files, as finished JSON.

A picture is turned into JSON once; requests then hold a copy of its bytes.
"""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.spec.images import Images, ImageSize
from orchestrator.workloads.kind import IMAGE_STREAM, stream
from orchestrator.workloads.random_values import draw

MOST_PICTURE_BYTES = 1 << 30  # of a file's pictures as they are sent; a client holds them all
BLOCK_PIXELS = 16  # side of a block of one colour
COMPRESSION = 1  # zlib's fastest
# Phases have different pictures, because the warm-up must not fill the cache that is measured.
PHASES = {"warmup": 0, "measure": 1}
_PNG = b"\x89PNG\r\n\x1a\n"
_RGB = 2  # PNG's colour type
_PIXELS, _CHOICE = range(2)  # the random streams below IMAGE_STREAM
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,[A-Za-z0-9+/]+={0,2}")
# How the files of each format begin.
_BEGINNINGS = {
    "image/png": (_PNG, 0),
    "image/jpeg": (b"\xff\xd8\xff", 0),
    "image/gif": (b"GIF8", 0),
    "image/webp": (b"WEBP", 8),
}


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of an array of height x width x 3 (red, green, blue).

    https://www.w3.org/TR/png-3/: signature, then chunks of length, type, data and CRC; each row of
    pixels begins with the number of its filter, 0 for none.
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    data = zlib.compress(rows.tobytes(), COMPRESSION)
    return _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def coloured_blocks(size: ImageSize, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Pixels of random blocks of BLOCK_PIXELS: unlike noise they compress, as photographs do."""
    blocks_high = -(-size.height // BLOCK_PIXELS)
    blocks_wide = -(-size.width // BLOCK_PIXELS)
    colours = rng.integers(0, 256, (blocks_high, blocks_wide, 3), dtype=np.uint8)
    pixels = colours.repeat(BLOCK_PIXELS, axis=0).repeat(BLOCK_PIXELS, axis=1)
    return pixels[: size.height, : size.width]


def format_of(picture: bytes) -> str | None:
    """The media type of a file by its first bytes; None: it is no PNG, JPEG, GIF or WebP."""
    for media_type, (beginning, place) in _BEGINNINGS.items():
        if picture[place : place + len(beginning)] == beginning:
            return media_type
    return None


def image_part(picture: bytes) -> bytes:
    """The JSON of a message's part with this picture in it (OpenAI's ``image_url``). Raises
    ValueError for bytes of another format.
    """
    media_type = format_of(picture)
    if media_type is None:
        raise ValueError("it is no PNG, JPEG, GIF or WebP")
    return image_url_part(f"data:{media_type};base64,{b64encode(picture).decode()}")


def image_url_part(url: str) -> bytes:
    """The JSON of a message's part with a data URL. Raises ValueError for another URL."""
    if _DATA_URL.fullmatch(url) is None:
        raise ValueError("it is no data URL of an image")
    return b'{"type":"image_url","image_url":{"url":"%b"}}' % url.encode()


class PictureFiles:
    """Reads the pictures that entries of a file name, each once. ``folder``: where relative paths
    begin.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, bytes] = {}
        self._bytes = 0

    def part(self, picture: Any) -> bytes:
        """The JSON of a message's part with one picture: a path, a data URL, the bytes of a file, or
        a mapping that has these ``bytes`` (as columns of hub datasets have). Raises ValueError.
        """
        if isinstance(picture, dict):
            content = picture.get("bytes")
            picture = picture.get("path") if content is None else content
        if isinstance(picture, bytes):
            return self._counted(image_part(picture))
        if not isinstance(picture, str) or not picture:
            raise ValueError(f"a picture is {str(picture)[:60]!r}; give a path or a data URL")
        if picture.startswith("data:"):
            return self._counted(image_url_part(picture))
        if "://" in picture:
            raise ValueError(
                f"a picture is at {picture[:60]!r}: pictures are sent within the request, so "
                "download it and give its path"
            )
        if picture not in self._parts:
            self._parts[picture] = self._counted(self._read(picture))
        return self._parts[picture]

    def _read(self, name: str) -> bytes:
        try:
            return image_part((self._folder / name).expanduser().read_bytes())
        except OSError as error:
            raise ValueError(f"picture {name!r}: {error.strerror or error}") from None
        except ValueError as error:
            raise ValueError(f"picture {name!r}: {error}") from None

    def _counted(self, part: bytes) -> bytes:
        self._bytes += len(part)
        if self._bytes > MOST_PICTURE_BYTES:
            raise ValueError(f"all pictures together have more than {MOST_PICTURE_BYTES >> 20} MiB")
        return part


class NamedPicture(NamedTuple):
    """A picture of a point by its number, and how many tokens it becomes."""

    number: int
    tokens: int


def image_tokens(size: ImageSize, patch: int) -> int:
    """Tokens of a picture of which each square of ``patch`` pixels is one, its sides rounded to whole
    squares, as Qwen2-VL and its successors do (arXiv 2409.12191: squares of 28 pixels).
    """
    return max(1, round(size.width / patch)) * max(1, round(size.height / patch))


class DrawnImages:
    """The pictures of a point's user messages: a pure function of seed, session and turn."""

    def __init__(self, images: Images, seed: int) -> None:
        self._images = images
        self._seed = seed
        self._sizes = [ImageSize.of(text) for text in images.sizes]
        self._parts: list[bytes] = []  # of both phases

    def make(self) -> None:
        """Makes all pictures, unless they are made."""
        if self._parts:
            return
        self._parts = [
            self._made(phase_number, number)
            for phase_number in PHASES.values()
            for number in range(self._images.distinct)
        ]

    def of_message(self, session: int, turn: int, phase: str) -> tuple[bytes, ...]:
        """The parts of one user message, whose number is drawn."""
        rng = self._choices(session, turn)
        (count,) = draw(self._images.count, (1,), rng)
        return self._chosen(int(count), phase, rng)

    def named(self, session: int, turn: int, phase: str, patch: int) -> list[NamedPicture]:
        """The same pictures as ``of_message``, without making them. ``patch``: side in pixels of the
        square that becomes one token.
        """
        rng = self._choices(session, turn)
        (count,) = draw(self._images.count, (1,), rng)
        first = PHASES[phase] * self._images.distinct
        pictures: list[NamedPicture] = []
        for number in rng.integers(0, self._images.distinct, int(count)).tolist():
            size = self._sizes[number % len(self._sizes)]
            pictures.append(NamedPicture(first + number, image_tokens(size, patch)))
        return pictures

    def so_many(self, count: int, session: int, turn: int, phase: str) -> tuple[bytes, ...]:
        """The parts of one user message that has ``count`` pictures."""
        return self._chosen(count, phase, self._choices(session, turn))

    def _choices(self, session: int, turn: int) -> np.random.Generator:
        return stream(self._seed, IMAGE_STREAM, _CHOICE, session, turn)

    def _chosen(self, count: int, phase: str, rng: np.random.Generator) -> tuple[bytes, ...]:
        self.make()
        first = PHASES[phase] * self._images.distinct
        numbers = first + rng.integers(0, self._images.distinct, count)
        return tuple(self._parts[number] for number in numbers)

    def _made(self, phase_number: int, number: int) -> bytes:
        rng = stream(self._seed, IMAGE_STREAM, _PIXELS, phase_number, number)
        size = self._sizes[number % len(self._sizes)]
        return image_part(png(coloured_blocks(size, rng)))
