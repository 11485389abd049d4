"""Pictures: their bytes are what other programs read, the same for everybody, and made once."""

from __future__ import annotations

import io
import json
from base64 import b64decode
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.load.wire.wires import WIRES
from orchestrator.spec.dialect import Dialect
from orchestrator.spec.images import Images, ImageSize
from orchestrator.spec.load import Workload
from orchestrator.workloads.content import Words
from orchestrator.workloads.images import (
    DrawnImages,
    coloured_blocks,
    format_of,
    image_part,
    image_tokens,
    image_url_part,
    png,
)

CHAT = Dialect("openai_chat", "/v1/chat/completions")


def opened(part: bytes) -> PIL.Image.Image:
    """The picture in a message's part, as Pillow reads it."""
    url = json.loads(part)["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")
    return PIL.Image.open(io.BytesIO(b64decode(url.partition(",")[2])))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32))
def test_a_png_holds_the_pixels_that_were_asked_for(width: int, height: int, seed: int) -> None:
    pixels = coloured_blocks(ImageSize(width, height), np.random.default_rng(seed))
    assert pixels.shape == (height, width, 3)
    read = PIL.Image.open(io.BytesIO(png(pixels)))
    assert read.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(read), pixels)


def images(seed: int = 1, **fields: Any) -> DrawnImages:
    return DrawnImages(Images.model_validate({"sizes": ["32x16"], "distinct": 4} | fields), seed)


def test_so_many_differ_and_they_have_the_sizes_in_turn() -> None:
    drawn = images(sizes=["32x16", "16x48"], count=2)
    messages = [drawn.of_message(session, 0, "measure") for session in range(200)]
    assert {len(message) for message in messages} == {2}
    different = {part for message in messages for part in message}
    assert len(different) == 4
    sizes = sorted(opened(part).size for part in different)
    assert sizes == [(16, 48), (16, 48), (32, 16), (32, 16)]


def test_the_warm_up_has_other_pictures() -> None:
    drawn = images()
    warm = {drawn.of_message(session, 0, "warmup") for session in range(50)}
    measured = {drawn.of_message(session, 0, "measure") for session in range(50)}
    assert warm.isdisjoint(measured)


@given(st.integers(0, 2**48), st.integers(0, 1000), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_pictures_are_the_same_for_every_client(seed: int, session: int, turn: int) -> None:
    first, second = images(seed), images(seed)
    second.of_message(session + 1, turn, "measure")
    assert first.of_message(session, turn, "measure") == second.of_message(session, turn, "measure")


def test_a_request_holds_its_pictures_before_its_text_and_again_in_later_turns() -> None:
    workload = Workload.model_validate(
        {
            "name": "w",
            "kind": "conversations",
            "turns": 2,
            "api": "chat",
            "input_tokens": 5,
            "output_tokens": 3,
            "images": {"sizes": ["32x16"], "distinct": 50},
        }
    )
    kind = workload.requests(Words(), 7)
    first = kind.prompt(0, 0, "measure", ())
    second = kind.prompt(0, 1, "measure", first.messages)
    assert (first.images, second.images) == (1, 2)
    assert (first.tokens, kind.input_tokens(0, 0)) == (0, 0)
    body = json.loads(WIRES["openai_chat"].body(second, 3, "m", CHAT))
    earlier, later = body["messages"]
    assert [part["type"] for part in earlier["content"]] == ["image_url", "text"]
    assert earlier["content"][0] == json.loads(first.messages[0].images[0])
    assert later["content"][0] != earlier["content"][0]
    assert later["content"][1]["text"] == second.messages[1].text
    assert opened(second.messages[1].images[0]).size == (32, 16)


def test_lengths_of_prompts_with_pictures_are_not_known() -> None:
    fields = {"name": "w", "api": "chat", "input_tokens": 100, "output_tokens": 20}
    workload = Workload.model_validate({**fields, "images": {"sizes": ["32x16"]}})
    assert workload.sends_images()
    assert workload.token_bounds() == (120, None)


def test_only_chats_have_pictures() -> None:
    fields = {"name": "w", "input_tokens": 100, "output_tokens": 20}
    with pytest.raises(ValidationError, match="through the API chat, not through 'completions'"):
        Workload.model_validate({**fields, "images": {"sizes": ["32x16"]}})


def test_the_format_of_a_picture_is_told_by_its_first_bytes() -> None:
    picture = PIL.Image.new("RGB", (4, 4))
    for name, media_type in (("PNG", "png"), ("JPEG", "jpeg"), ("GIF", "gif"), ("WEBP", "webp")):
        file = io.BytesIO()
        picture.save(file, name)
        assert format_of(file.getvalue()) == f"image/{media_type}"
    with pytest.raises(ValueError, match="no PNG, JPEG, GIF or WebP"):
        image_part(b"<svg/>")
    with pytest.raises(ValueError, match="no data URL"):
        image_url_part('data:image/png;base64,AA"}')


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ("1120x700", 40 * 25),
        ("512x512", 18 * 18),  # of 18.3 squares
        ("14x2000", 71),  # at least one square on each side
    ],
)
def test_each_square_of_a_picture_is_a_token(size: str, tokens: int) -> None:
    assert image_tokens(ImageSize.of(size), 28) == tokens


def test_pictures_that_are_only_named_are_those_that_are_sent() -> None:
    drawn = images(sizes=["32x16", "16x48"], count={"uniform": {"min": 1, "max": 3}})
    for phase in ("warmup", "measure"):
        part_by_number: dict[int, bytes] = {}
        for session in range(60):
            named = drawn.named(session, 1, phase, 16)
            sent = drawn.of_message(session, 1, phase)
            assert len(named) == len(sent)
            for picture, part in zip(named, sent, strict=True):
                width, height = opened(part).size
                assert picture.tokens == (width // 16) * (height // 16)
                assert part_by_number.setdefault(picture.number, part) == part
        assert len(part_by_number) == len(set(part_by_number.values())) == 4
