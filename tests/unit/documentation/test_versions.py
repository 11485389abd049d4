"""Paths in the documentation name the version of the figures that is written now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.results.records import METRICS_VERSION
from tests.unit.documentation.pages import DOCS

VERSION = re.compile(r"computed/v=(\d+)")
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if VERSION.search(page.read_text())]


def test_a_page_names_the_computed_figures() -> None:
    assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_paths_of_computed_figures_have_the_present_version(page: Path) -> None:
    assert set(VERSION.findall(page.read_text())) == {str(METRICS_VERSION)}
