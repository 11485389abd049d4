"""Lists of names, numbers of things and times in a sentence."""

from collections.abc import Sequence


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


def counted(number: float, noun: str) -> str:
    """``1 point``, ``2,000 points``, ``0.5 CPUs``."""
    ending = "" if number == 1 else "s"
    return f"{number:,.15g} {noun}{ending}"


def hours(seconds: float) -> str:
    """Seconds rounded for estimates: ``90 s``, ``5 min`` or ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
