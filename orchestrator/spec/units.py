"""Durations and sizes with units: ``60s``, ``500ms``, ``2h``; ``16GiB``, ``80GB``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, ValidationInfo

MOST_TOKENS = 2**31 - 1  # of one prompt or answer: rows hold counts as int32

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_duration(text: object) -> float:
    """``"500ms"`` to 0.5 seconds. A bare number is refused (except 0): it would hide its unit.

    Raises ValueError with what to write instead.
    """
    return _parse(text, _SECONDS, "a duration with its unit, like 500ms, 60s or 2h")


def parse_bytes(text: object) -> int:
    """``"16GiB"`` to bytes. Raises ValueError with what to write instead."""
    return int(_parse(text, _BYTES, "a size with its unit, like 16GiB or 80GB"))


def _parse(text: object, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    if isinstance(text, float | int) and not isinstance(text, bool) and text == 0:
        return 0.0
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    unit = match.group(2).replace("µ", "u").lower() if match else ""
    if match is None or unit not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    return float(match.group(1)) * units[unit]


def format_duration(seconds: float) -> str:
    """Seconds as people write them: 0.5 to ``500ms``, 90 to ``90s``."""
    if 0 < seconds < 1:
        return f"{seconds * 1e3:g}ms"
    return f"{seconds:g}s"


def _duration(value: object, info: ValidationInfo) -> object:
    """Seconds already parsed (a float from a frozen plan) pass; in a user's file everything carries a unit."""
    users_file = bool(info.context and info.context.get("users_file"))
    return value if isinstance(value, float) and not users_file else parse_duration(value)


def _bytes(value: object) -> object:
    return parse_bytes(value) if isinstance(value, str) else value


Duration = Annotated[float, BeforeValidator(_duration)]
Bytes = Annotated[int, BeforeValidator(_bytes)]  # a whole number of bytes, or text with its unit
