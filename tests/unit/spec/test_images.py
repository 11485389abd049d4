"""The pictures of a workload's requests, as a file writes them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.spec.images import Images, ImageSize


def test_a_size_is_a_width_and_a_height() -> None:
    assert ImageSize.of("1120x700") == ImageSize(width=1120, height=700)


def test_different_pictures_take_the_sizes_in_turn() -> None:
    images = Images.model_validate({"sizes": ["10x10", "20x10"], "distinct": 3})
    assert images.pixels == 100 + 200 + 100


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sizes": ["32"]}, "no size"),
        ({"sizes": ["0x7"]}, "no size"),
        ({"sizes": ["9000x10"]}, "at most 8,192"),
        ({"sizes": []}, "at least 1"),
        ({"sizes": ["8x8", "9x9"], "distinct": 1}, "need as many"),
        ({"sizes": ["8x8"], "count": 101}, "at most 100"),
        ({"sizes": ["8x8"], "count": {"lognormal": {"mean": 2, "sigma": 1}}}, "at most 100"),
        ({"sizes": ["8000x8000"], "distinct": 100}, "6,400,000,000 pixels"),
    ],
)
def test_pictures_that_cannot_be_made_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Images.model_validate(fields)
