"""A guide answers one question: it is short, and shows a picture that can be read aloud."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.documentation.pages import DOCS

MOST_LINES = 150
MOST_BYTES = 150_000
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
GUIDES = [page for page in sorted((DOCS / "guides").glob("*.md")) if page.name != "README.md"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_is_short(guide: Path) -> None:
    assert len(guide.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_has_a_small_picture_and_says_what_it_shows(guide: Path) -> None:
    pictures = PICTURE.findall(guide.read_text(encoding="utf-8"))
    assert pictures
    for description, link in pictures:
        assert len(description.split()) >= 5
        assert (guide.parent / link).stat().st_size < MOST_BYTES
