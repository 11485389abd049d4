"""Scripts within a page, by the hash that its policy allows, and templates that escape."""

from __future__ import annotations

import base64
import hashlib

import pytest
from jinja2 import UndefinedError

from orchestrator.report.page.inlined import FOLDER, inlined, page_templates


def test_a_script_is_allowed_by_the_hash_of_its_bytes() -> None:
    script = inlined("judge.js")
    content = (FOLDER / "judge.js").read_bytes()
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    assert script.text.encode() == content
    assert script.source == f"'sha256-{digest}'"


def test_templates_escape_what_comes_from_results() -> None:
    template = page_templates().from_string("{{ name }}")
    assert template.render(name="<b>") == "&lt;b&gt;"


def test_a_name_that_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        page_templates().from_string("{{ name }}").render()
