"""Says what an export wrote, and what it left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.base.text import counted


def export_text(
    title: str,
    files: Sequence[str],
    points: int,
    reasons: Sequence[str],
    reasons_of_parts: Sequence[str] = (),
) -> Iterator[str]:
    """The lines that ``export`` prints.

    ``title``: what the files contain. ``files``: the paths of the files that were written.
    ``points``: how many points they have together. ``reasons``: for each point that was left out,
    why. ``reasons_of_parts``: the same for each mix that was written without its parts.
    """
    if not files:
        yield f"{title}: nothing to write"
    elif len(files) == 1:
        yield f"{files[0]}: {counted(points, 'point')}, {title}"
    else:
        folder = files[0].rpartition("/")[0] or "."
        yield f"{counted(len(files), 'file')} in {folder}: {title}"
    for reason, count in Counter(reasons).most_common():
        yield f"left out: {counted(count, 'point')}: {reason}"
    for reason, count in Counter(reasons_of_parts).most_common():
        if count == 1:
            yield f"1 point of a mix is written whole, without its parts: {reason}"
        else:
            yield f"{count} points of mixes are written whole, without their parts: {reason}"
