"""Scripts and styles that are part of a page, and the templates of pages.

Everything that comes from results is escaped by the templates. A page's policy lets a browser run
only the scripts of this folder, by their hashes.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Inlined:
    """A script or a style that is part of the page. ``source``: what the page's policy allows."""

    text: Markup
    source: str


def inlined(name: str) -> Inlined:
    """A script or a style of this folder."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Inlined(Markup(text), f"'sha256-{digest}'")  # noqa: S704 - the program's own files


def page_templates() -> Environment:
    """The templates of this folder. A name that a template is not given is an error."""
    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
