"""Groups of values by a key, and lists of names in a sentence."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values by key. Keys and values keep their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def listed(names: Sequence[str], most: int = 3) -> str:
    """``a, b, c and 2 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed_within(names: Sequence[str], room: int, most: int = 5) -> str:
    """As many names as fit into ``room`` characters, at least one, and how many more there are."""
    for shown in range(min(most, len(names)), 1, -1):
        text = listed(names, shown)
        if len(text) <= room:
            return text
    return listed(names, 1)
