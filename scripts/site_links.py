"""A hook of MkDocs: pages may link to files outside docs/, as they do on GitHub.

Such a file becomes part of the site, below ``repository/``. A Markdown file is rendered, and what it
links to follows; a folder is its README.md. A link to nothing is an error of the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = "repository"  # of the site
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds every file of the repository that a page links to."""
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path]
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for match in LINK.finditer(page.read_text(encoding="utf-8")):
            path = linked_file(page, match[1])
            if _is_in(path, Path(config.docs_dir)) or path in added:
                continue
            added.add(path)
            files.append(_copied(path, config))
            if path.suffix == ".md":
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to files of the repository as links within the site."""
    source = Path(page.file.abs_src_path or page.file.src_uri)
    here = PurePosixPath(page.file.src_uri).parent

    def within_the_site(match: re.Match[str]) -> str:
        path = linked_file(source, match[1])
        target = _place(path, Path(config.docs_dir))
        return f"]({os.path.relpath(target, here)}{match[2] or ''})"

    return LINK.sub(within_the_site, markdown)


def linked_file(page: Path, link: str) -> Path:
    """The file that ``link`` on ``page`` leads to. Raises PluginError where there is none."""
    path = Path(os.path.normpath(page.parent / link))
    if path.is_dir():
        path = path / "README.md"
    if not path.is_file():
        raise PluginError(f"{page.relative_to(REPOSITORY)}: {link}: no such file")
    return path


def _copied(path: Path, config: MkDocsConfig) -> File:
    return File.generated(
        config,
        str(_place(path, Path(config.docs_dir))),
        abs_src_path=str(path),
        inclusion=InclusionLevel.NOT_IN_NAV,
    )


def _place(path: Path, docs: Path) -> PurePosixPath:
    """The path of a file in the site, whether it lies in docs/ or elsewhere in the repository."""
    if _is_in(path, docs):
        return PurePosixPath(path.relative_to(docs))
    return FOLDER / PurePosixPath(path.relative_to(REPOSITORY))


def _is_in(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder)
