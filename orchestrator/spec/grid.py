"""Blocks of ``vary``: each is a list of choices, and the blocks multiply.

``grid``: every combination of its values; ``zip``: first with first, second with second; ``cases``: as they stand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.spec.document import Place

KINDS = ("grid", "zip", "cases")
Report = Callable[..., None]  # (place, message, hint=None)


@dataclass(frozen=True, slots=True)
class Choice:
    """Some settings that go together, and where each of them is written."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]


def read_blocks(vary: Any, place: Place, report: Report) -> list[list[Choice]]:
    """The choices of every block, in the order of the file. Blocks that are wrong are reported and left out."""
    if vary is None:
        return []
    if not isinstance(vary, list):
        report(place, "'vary' must be a list of blocks", "write each block as '- grid: …', '- zip: …' or '- cases: …'")
        return []
    blocks = [_read_block(block, (*place, index), report) for index, block in enumerate(vary)]
    return [block for block in blocks if block]


def count(blocks: Sequence[Sequence[Choice]]) -> int:
    """How many combinations the blocks make; 1 when there are none."""
    return math.prod(len(block) for block in blocks)


def product(blocks: Sequence[Sequence[Choice]]) -> Iterator[tuple[Choice, ...]]:
    """Every combination of one choice per block; the last block varies fastest."""
    return itertools.product(*blocks)


def _read_block(block: Any, place: Place, report: Report) -> list[Choice]:
    if not isinstance(block, dict) or len(block) != 1 or next(iter(block)) not in KINDS:
        report(place, "a block of 'vary' must be one of grid, zip or cases")
        return []
    kind, content = next(iter(block.items()))
    place = (*place, kind)
    if kind == "cases":
        return _cases(content, place, report)
    axes = _axes(kind, content, place, report)
    return [] if axes is None else _grid(axes, place) if kind == "grid" else _zip(axes, place, report)


def _cases(content: Any, place: Place, report: Report) -> list[Choice]:
    if not isinstance(content, list) or not content:
        report(place, "'cases' must be a list of mappings, each with the settings that differ")
        return []
    choices = []
    for index, case in enumerate(content):
        if not isinstance(case, dict):
            report((*place, index), "a case must be a mapping (name: value)")
            continue
        choices.append(Choice(case, {name: (*place, index, name) for name in case}))
    return choices


def _axes(kind: str, content: Any, place: Place, report: Report) -> dict[str, list[Any]] | None:
    if not isinstance(content, dict) or not content:
        report(place, f"{kind!r} must be a mapping of settings to lists of values")
        return None
    wrong = [name for name, values in content.items() if not isinstance(values, list) or not values]
    for name in wrong:
        report((*place, name), f"{name!r} must be a list of at least one value", f"write {name}: [first, second]")
    return None if wrong else content


def _grid(axes: dict[str, list[Any]], place: Place) -> list[Choice]:
    ranges = [range(len(values)) for values in axes.values()]
    return [_choice(axes, indices, place) for indices in itertools.product(*ranges)]


def _zip(axes: dict[str, list[Any]], place: Place, report: Report) -> list[Choice]:
    lengths = {name: len(values) for name, values in axes.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        report(place, f"the lists of 'zip' must be of equal length: {text}")
        return []
    return [_choice(axes, (index,) * len(axes), place) for index in range(len(next(iter(axes.values()))))]


def _choice(axes: dict[str, list[Any]], indices: Sequence[int], place: Place) -> Choice:
    picked = dict(zip(axes, indices, strict=True))
    return Choice(
        {name: axes[name][index] for name, index in picked.items()},
        {name: (*place, name, index) for name, index in picked.items()},
    )
