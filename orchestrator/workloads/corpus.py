"""The text file whose slices prompts are made of (``content: {text: FILE}``)."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.results.ids import content_digest
from orchestrator.spec.sessions import ContentSource
from orchestrator.workloads.file_reading import read_file, refuse_binary, status_of

WHAT = "text"  # what problems call the file
MOST_BYTES = 64 << 20  # every client holds the text and its tokens in memory


def identified(content: ContentSource, path: Callable[[str], str]) -> ContentSource:
    """The source with the path of its file resolved and the digest of its content. Raises
    ProblemsError where the file cannot be read, is no text, or is not the one that was planned.
    """
    assert content.text is not None
    file = path(content.text)
    digest = content_digest(_checked(content, file).encode())
    return content.model_copy(update={"text": file, "text_digest": digest})


def read_text(content: ContentSource) -> str:
    """The text of the file. Raises ProblemsError as ``identified`` does."""
    assert content.text is not None
    return _checked(content, content.text)


def _checked(content: ContentSource, file: str) -> str:
    status = status_of(WHAT, file)
    if status.st_size > MOST_BYTES:
        raise _problem(file, f"is larger than {MOST_BYTES >> 20} MiB")
    text = _text(file, status.st_mtime_ns, status.st_size)
    digest = content_digest(text.encode())
    if content.text_digest not in (None, digest):
        raise _problem(
            file,
            f"on {platform.node()} is not the file that was planned (digest {digest} instead of "
            f"{content.text_digest}): it has changed since, or differs on this node",
        )
    return text


@lru_cache(maxsize=4)
def _text(file: str, mtime_ns: int, size: int) -> str:
    """The text of a file that had this time and size. Raises ProblemsError."""
    data = read_file(WHAT, file)
    refuse_binary(WHAT, file, data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _problem(file, f"is not UTF-8 at byte {error.start:,}") from None
    if not text.strip():
        raise _problem(file, "is empty")
    return text


def _problem(file: str, reason: str) -> ProblemsError:
    return ProblemsError([Problem(f"{WHAT} {file!r} {reason}")])
