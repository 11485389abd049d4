"""The Markdown pages of this repository, their headings and their links."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")


def tracked(*patterns: str) -> list[Path]:
    """The files of the repository that match ``patterns``, those not yet committed too."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listed.splitlines())
    return sorted(path for path in paths if path.exists())


def anchors(page: Path) -> set[str]:
    """What ``page#...`` may name: its headings, as GitHub and the site write them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {anchor(heading) for heading in headings}


def anchor(heading: str) -> str:
    """The anchor of a heading: lower case, without punctuation, hyphens for spaces."""
    words = re.sub(r"[^\w\- ]", "", heading.lower())
    return words.replace(" ", "-")


def links(page: Path) -> list[str]:
    """The targets of the links of ``page``, as they are written, without those to other hosts."""
    text = INLINE_CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
