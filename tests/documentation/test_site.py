"""The documentation builds as a site, strictly: no dead link, no page outside the navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.documentation.pages import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    expected = {
        page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html")
        for page in pages
    }
    assert [page for page in expected if not (site / page).is_file()] == []


def test_a_file_that_a_page_links_to_is_part_of_the_site(site: Path) -> None:
    assert (site / "repository/experiments/llama70b-parallelism.yaml").is_file()
    assert "repository/experiments/" in (site / "start/sweep.html").read_text()


def test_lists_and_tables_are_rendered_as_such(site: Path) -> None:
    """Where a list or a table follows a line of text without a blank line between them, MkDocs
    renders it as a part of that text; GitHub does not.
    """
    signs_of_text = ("<p>- ", "<p>| ", "\n- ", "\n| ")
    for page in site.rglob("*.html"):
        article = page.read_text().partition("<article")[2].partition("</article>")[0]
        without_code = re.sub("<pre>.*?</pre>", "", article, flags=re.DOTALL)
        assert [sign for sign in signs_of_text if sign in without_code] == [], page
