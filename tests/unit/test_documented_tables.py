"""Tables of the documentation say what the code says."""

from __future__ import annotations

import re

import pytest

from scripts.documented_tables import DOCS, TABLES, replaced


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_documentation_says_what_the_code_says(name: str) -> None:
    page = (DOCS / TABLES[name][0]).read_text()
    assert replaced(name, page) == page, "run `python -m scripts.documented_tables`"


def test_a_page_without_a_place_for_its_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place"):
        replaced("failure kinds", "# A page")


@pytest.mark.parametrize("page", sorted({page for page, _ in TABLES.values()}))
def test_code_on_a_page_has_no_escapes_of_prose(page: str) -> None:
    codes = re.findall(r"`[^`\n]+`", (DOCS / page).read_text())
    assert [code for code in codes if "\\*" in code or "&lt;" in code] == []
