"""How many tokens pictures take, from what the engine counts. What is expected of whole prompts is
tested in test_expected.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.load.prompt_tokens import UncountedError
from orchestrator.load.sent_prompts import CountedPictures, PictureTokens
from orchestrator.workloads.images import image_part, image_url_part, png


def picture(width: int, shade: int = 0) -> bytes:
    return image_part(png(np.full((8, width, 3), shade, np.uint8)))


SMALL, LARGE, JPEG = picture(8), picture(32), image_part(b"\xff\xd8\xff" + b"x" * 40)


def test_pictures_of_one_size_take_equally_many_tokens() -> None:
    pictures = PictureTokens()
    assert pictures.lengths([SMALL, picture(8, shade=9)], 20) == [10, 10]
    assert pictures.lengths([picture(8, shade=7)], None) == [10]
    assert pictures.number(SMALL) != pictures.number(picture(8, shade=9))
    assert pictures.number(SMALL) == pictures.number(picture(8))


def test_pictures_that_come_together_are_told_apart_by_several_prompts() -> None:
    together = [
        CountedPictures([SMALL, LARGE], 25),
        CountedPictures([SMALL, LARGE, LARGE, JPEG], 47),
        CountedPictures([JPEG], 7),
    ]
    pictures = PictureTokens()
    pictures.learn(together)
    assert pictures.lengths([JPEG, LARGE, SMALL], None) == [7, 15, 10]


@pytest.mark.parametrize("data", ["iVBORw0KGgo=", "iVBORw0KGgoAAAA", "AA"])
def test_data_that_are_too_short_for_a_picture_end_nothing(data: str) -> None:
    """Data URLs of a file are sent as they are, and a server need not look at them."""
    cut_off = image_url_part(f"data:image/png;base64,{data}")
    pictures = PictureTokens()
    assert pictures.lengths([cut_off, cut_off], 14) == [7, 7]


@pytest.mark.parametrize(("shown", "tokens"), [([SMALL, LARGE], 25), ([SMALL, SMALL], 25)])
def test_counts_that_leave_the_tokens_of_a_picture_open_are_refused(
    shown: list[bytes], tokens: int
) -> None:
    pictures = PictureTokens()
    pictures.learn([CountedPictures(shown, tokens)])
    with pytest.raises(UncountedError, match="how many tokens a picture takes"):
        pictures.lengths(shown, tokens)
