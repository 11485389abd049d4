"""The code blocks of Markdown pages, and what the comment above a block says about it.

``<!-- run by: TEST, REASON -->``: another test file runs it, which reads it by ``blocks_run_by``; of
its commands, ``status``, ``stop`` and ``watch`` are run with the page all the same.
``<!-- emulated: REASON -->``: its commands run with small sweeps of emulators as their files.
``<!-- server: FOR WHOM -->``: its command starts a server, which serves until all of the page is
read.
``<!-- file: NAME -->``: a reader is to save it under this name.
``<!-- printed -->``: the commands above it print its lines.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.unit.documentation.pages import ROOT

BLOCK = re.compile(
    r"^(?:(?P<indent> *)<!-- (?P<mark>run by|emulated|server|file|printed)(?:: (?P<value>.+?))? -->\n)?"
    r"(?P<margin> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=margin)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. ``line``: of its first line in the page; ``run_by``: a test file's path."""

    page: Path
    line: int
    language: str
    text: str
    run_by: str | None
    file_name: str | None
    is_printed: bool
    is_server: bool
    is_emulated: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        run_by = match["value"].partition(",")[0] if match["mark"] == "run by" else None
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("text")) + 1,
            language=match["language"],
            text=textwrap.dedent(match["text"]),
            run_by=run_by,
            file_name=match["value"] if match["mark"] == "file" else None,
            is_printed=match["mark"] == "printed",
            is_server=match["mark"] == "server",
            is_emulated=match["mark"] == "emulated",
        )


def blocks_run_by(test: str, page: str) -> list[Block]:
    """The blocks that a page leaves to a test file. ``test``: its ``__file__``; ``page``: its path in
    the repository.
    """
    path = str(Path(test).relative_to(ROOT))
    return [block for block in blocks(ROOT / page) if block.run_by == path]


def command_lines(block: Block) -> Iterator[list[str]]:
    """The words of each command of a block of shell commands, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words
