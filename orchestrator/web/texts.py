"""The lines of text of a served page, most of which stay from one change to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import orjson

from orchestrator.report.page.html import PageContent, page_html
from orchestrator.report.page.packing import packed
from orchestrator.web.watched import Watched

Lines = tuple[str, ...]
MOST_SERIALS = 4  # contents whose texts are kept; pages that slept longer get all lines anew


@dataclass(frozen=True, slots=True)
class PageTexts:
    """The texts of a page.

    ``html``: the tables that need no script. ``described``: what the page judges, except the
    requests. ``timelines``: see ``Timelines.lines``.
    """

    html: Lines
    described: Lines
    timelines: Lines

    def packed(self) -> str:
        return packed(orjson.dumps(self))


@dataclass(frozen=True, slots=True)
class Kept:
    """Lines that stay, from ``first`` up to ``end``."""

    first: int
    end: int


Edit = Kept | str  # a string is a new line


@dataclass(frozen=True, slots=True)
class TextChanges:
    """What turns the texts of a page into newer ones."""

    html: list[Edit]
    described: list[Edit]
    timelines: list[Edit]

    def packed(self) -> str:
        return packed(orjson.dumps(self))


NO_TEXTS = PageTexts((), (), ())


def texts_of(content: PageContent) -> PageTexts:
    """The texts of a page with this content."""
    return PageTexts(
        html=tuple(page_html(content, has_scripts=False).splitlines()),
        described=tuple(content.payload.lines()),
        timelines=tuple(content.timelines.lines()),
    )


def changes_between(before: PageTexts, after: PageTexts) -> TextChanges:
    """What turns the texts ``before`` into ``after``."""
    return TextChanges(
        html=list(line_edits(before.html, after.html)),
        described=list(line_edits(before.described, after.described)),
        timelines=list(line_edits(before.timelines, after.timelines)),
    )


def line_edits(before: Sequence[str], after: Sequence[str]) -> Iterator[Edit]:
    """Yields what turns the lines ``before`` into ``after``.

    A line that ``before`` has is given by its place there, any other line as it is.
    """
    at_start = _equal_lines(before, after)
    at_end = _equal_lines(before[at_start:][::-1], after[at_start:][::-1])
    old = before[at_start : len(before) - at_end]
    new = after[at_start : len(after) - at_end]
    if at_start:
        yield Kept(0, at_start)
    for operation, first, end, new_first, new_end in SequenceMatcher(None, old, new).get_opcodes():
        if operation == "equal":
            yield Kept(at_start + first, at_start + end)
        else:
            yield from new[new_first:new_end]
    if at_end:
        yield Kept(len(before) - at_end, len(before))


def _equal_lines(before: Sequence[str], after: Sequence[str]) -> int:
    """How many lines at the start of two texts are the same."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old != new:
            break
        count += 1
    return count


class KeptTexts:
    """Keeps the texts of the latest contents, each made when it is first asked for."""

    def __init__(self) -> None:
        self._by_serial: OrderedDict[int, PageTexts] = OrderedDict()
        self._lock = threading.Lock()  # requests are answered in threads

    def at(self, now: Watched) -> PageTexts:
        """The texts of what is known at this moment."""
        with self._lock:
            if now.serial not in self._by_serial:
                self._by_serial[now.serial] = texts_of(now.content)
                if len(self._by_serial) > MOST_SERIALS:
                    self._by_serial.popitem(last=False)
            return self._by_serial[now.serial]

    def since(self, serial: int, now: Watched) -> TextChanges:
        """What turns the texts of an earlier serial into those of ``now``.

        These are all lines if the earlier texts are no longer kept.
        """
        with self._lock:
            before = self._by_serial.get(serial, NO_TEXTS)
        return changes_between(before, self.at(now))
