"""Every link between Markdown pages leads to a file and a heading that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.documentation.pages import ROOT, anchors, links, tracked

PAGES = tracked("*.md")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for link in links(page):
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            dead.append(f"{link}: no such file")
        elif heading and target.suffix == ".md" and heading not in anchors(target):
            dead.append(f"{link}: no such heading")
    assert dead == []
