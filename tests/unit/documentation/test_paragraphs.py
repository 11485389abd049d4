"""No page is a wall of text: its paragraphs and bullets can be read in one go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.documentation.pages import DOCS, FENCE, ROOT

MOST_WORDS = 120
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
BULLET = re.compile(r"(?:[-*]|\d+\.) ")
TARGET = re.compile(r"\]\([^)]*\)")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def passages(text: str) -> Iterator[str]:
    """The paragraphs and bullets of a page, without its headings, tables, pictures and code."""
    lines: list[str] = []
    for line in [*COMMENT.sub("", FENCE.sub("", text)).split("\n"), ""]:
        stripped = line.strip()
        is_text = bool(stripped) and not stripped.startswith(("|", "#", "!["))
        if lines and (not is_text or BULLET.match(stripped)):
            yield " ".join(lines)
            lines = []
        if is_text:
            lines.append(stripped)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_passage_is_longer_than_one_reads_in_one_go(page: Path) -> None:
    for passage in passages(page.read_text(encoding="utf-8")):
        words = len(TARGET.sub("]", passage).split())
        assert words <= MOST_WORDS, f"{words} words: {passage[:80]}"


def test_bullets_and_paragraphs_are_counted_by_themselves() -> None:
    page = "# head\n\none two\nthree\n\n- four\n- five\n  six\n\n| a | b |\n```sh\nls\n```\nseven"
    assert list(passages(page)) == ["one two three", "- four", "- five six", "seven"]
